"""Objects from manifests instead of an API server: read in the same way, so that one rule judges both.

What a manifest leaves open is filled in as the API server and its controllers would: defaults, and one Ready
replica after the other, in every EndpointSlice that selects it. Documents that have ReplicaSets and pods of
their own, such as a namespace that was saved with kubectl, are taken as they are.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from kvmedic.cluster.fronts import selects
from kvmedic.cluster.parts import REVISION, SERVICE_NAME
from kvmedic.cluster.stateful.groups import (
    GROUP_INDEX,
    NAME,
    REVISION_KEY,
    ROLLING_FIELDS,
    WORKER_INDEX,
    leader_template,
)
from kvmedic.cluster.stateful.revisions import REVISION_OF_POD
from kvmedic.doctor.shapes import find_fault
from kvmedic.kube.objects import (
    WORKLOADS,
    JsonObject,
    Ref,
    Resource,
    annotations_of,
    controller_uid,
    has_fields,
    labels_of,
    name_of,
    section,
    takes_selector,
    uid_of,
)
from kvmedic.manifests.documents import containers_of, rendering_hint, summarise
from kvmedic.manifests.errors import ManifestError
from kvmedic.model.fleet import (
    DEPLOYMENT,
    LEADER_WORKER_SET,
    POD_TEMPLATE_HASH,
    ROLLING,
    STATEFUL_SET,
    template_hash,
)

DEFAULT_NAMESPACE = "default"
"""Where kubectl puts what names no namespace."""
CREATED_AT = datetime(2000, 1, 1, tzinfo=UTC)
"""When objects of a document that names no time were made: long ago, so that nothing is new."""
MOST_REPLICAS = 5000
"""Of a workload in a document, at most: a cluster has 5000 nodes at most (Kubernetes, Considerations for
large clusters), and each pod is made in memory."""
START = timedelta(minutes=5)
"""How long a replica of a document took to start, since none shows it. The operator waits twice as long for
another, which is then what a Deployment that names no `progressDeadlineSeconds` allows (10 m, apps/v1)."""


class DocumentsError(Exception):
    """A text is no manifest; the message says why."""


@contextmanager
def reject_malformed() -> Iterator[None]:
    """Reject what no API server would take: the readers of a cluster rely on what it has checked.

    Raises:
        DocumentsError: an object has something in a place where its kind has something else.
    """
    try:
        yield
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DocumentsError(
            "an object is not what an API server would take: kubectl apply --dry-run=server names the field"
        ) from error


def documents_in(text: str) -> list[JsonObject]:
    """Return the objects of a manifest's text, those of a List one by one.

    Raises:
        DocumentsError: it cannot be read.
    """
    readable = containers_of(text)
    if isinstance(readable, ManifestError):
        raise DocumentsError(readable.message)
    try:
        # Dates become texts again, as they are on the wire.
        bodies = json.loads(json.dumps(list(YAML(typ="safe", pure=True).load_all(text)), default=str))
    except (YAMLError, ValueError, TypeError, RecursionError) as error:
        why = summarise(error) if isinstance(error, YAMLError) else str(error)
        message = f"not readable as objects: {why}{rendering_hint(text)}"
        raise DocumentsError(message) from None
    found = list(_flat(bodies))
    _refuse_malformed(found)
    return found


def _refuse_malformed(documents: Iterable[JsonObject]) -> None:
    """Refuse what an API server would not take.

    Raises:
        DocumentsError: the first fault, by object and field.
    """
    if fault := next(filter(None, map(find_fault, documents)), ""):
        raise DocumentsError(fault)


def _flat(bodies: Iterable[object]) -> Iterator[JsonObject]:
    for body in bodies:
        if not isinstance(body, dict):
            continue
        if str(body.get("kind", "")).endswith("List") and isinstance(body.get("items"), list):
            yield from _flat(body["items"])
        elif body.get("kind") and name_of(body):
            yield body


def plural_of(kind: str) -> str:
    """Return the name of a kind in a path: `NetworkPolicy` is found under `networkpolicies`."""
    name = kind.lower()
    return f"{name[:-1]}ies" if name.endswith("y") else f"{name}s"


@dataclass(frozen=True, slots=True)
class Documents:
    """A reader of objects that are in no cluster."""

    bodies: Sequence[JsonObject]

    async def get(self, ref: Ref) -> JsonObject | None:
        """Return the object of a name, or None when there is none."""
        found = await self.list(ref.resource, ref.namespace)
        return next((each for each in found if name_of(each) == ref.name), None)

    async def list(
        self, resource: Resource, namespace: str, label_selector: str = "", fields: str = ""
    ) -> list[JsonObject]:
        """Return all objects of a kind in a namespace, of an empty one in all.

        One that names no namespace is in each.
        """
        return [
            each
            for each in self.bodies
            if _is_of(each, resource)
            and namespace in ("", section(each, "metadata").get("namespace", namespace))
            and takes_selector(label_selector, labels_of(each))
            and has_fields(fields, each)
        ]

    async def read_each(
        self, resource: Resource, namespace: str, label_selector: str = "", fields: str = ""
    ) -> AsyncIterator[JsonObject]:
        """Yield the same one by one."""
        for body in await self.list(resource, namespace, label_selector, fields):
            yield body


def _is_of(body: JsonObject, resource: Resource) -> bool:
    """Return whether a body is of a kind, in any version of its group: they are the same object."""
    group, desired = (_group(text) for text in (str(body.get("apiVersion", "")), resource.group_version))
    return group == desired and plural_of(str(body.get("kind", ""))) == resource.plural


def _group(version: str) -> str:
    return version.rpartition("/")[0]


def as_served(documents: Iterable[JsonObject], namespace: str) -> Documents:
    """Return documents as a namespace would serve them once they are applied and every replica is Ready.

    Raises:
        DocumentsError: an API server would not take one of them.
    """
    documents = list(documents)
    _refuse_malformed(documents)
    bodies = [_fill_metadata(each, namespace) for each in documents]
    for workload in [each for each in bodies if each.get("kind") in WORKLOADS]:
        if _replicas_asked(workload) > MOST_REPLICAS:
            text = f"{workload['kind']}/{name_of(workload)} asks for more than {MOST_REPLICAS} replicas"
            raise DocumentsError(f"{text}: write fewer, as a pod is made of each")
        if not any(controller_uid(each) == uid_of(workload) for each in bodies):
            settle, make = _MADE[workload["kind"]]
            settle(workload)
            bodies += make(workload, bodies)
    return Documents(bodies)


def _fill_metadata(body: JsonObject, namespace: str) -> JsonObject:
    """Return an object with what the API server gives each one."""
    body = json.loads(json.dumps(body))
    metadata = body["metadata"]
    kind, place = str(body.get("kind")), metadata.get("namespace", namespace)
    given = {
        "namespace": place,
        "uid": f"{kind}/{place}/{metadata.get('name')}",
        "resourceVersion": "1",
        "generation": 1,
        "creationTimestamp": CREATED_AT.isoformat(),
    }
    body["metadata"] = {**given, **{key: value for key, value in metadata.items() if value is not None}}
    return dict(body)


def _replicas_asked(body: JsonObject) -> int:
    """Return how many replicas a workload asks for; one where it does not say."""
    value = section(body, "spec").get("replicas")
    return 1 if value is None else int(value)


def _settle(deployment: JsonObject) -> None:
    """Fill in a Deployment as the API server does, with the status of one that is complete (apps/v1)."""
    spec = deployment["spec"] = section(deployment, "spec")
    strategy = section(spec, "strategy")
    if strategy.get("type", ROLLING) == ROLLING:
        numbers = {"maxSurge": "25%", "maxUnavailable": "25%", **section(strategy, "rollingUpdate")}
        spec["strategy"] = {"type": ROLLING, "rollingUpdate": numbers}
    spec["replicas"] = _replicas_asked(deployment)
    spec.setdefault("progressDeadlineSeconds", 600)
    replicas = spec["replicas"]
    deployment["status"] = {
        "observedGeneration": deployment["metadata"]["generation"],
        "replicas": replicas,
        "updatedReplicas": replicas,
        "readyReplicas": replicas,
        "availableReplicas": replicas,
    }


def _children_of_deployment(deployment: JsonObject, bodies: Sequence[JsonObject]) -> Iterator[JsonObject]:
    """Yield what controllers make for a Deployment that is at rest: ReplicaSet, pods and EndpointSlices."""
    namespace, spec = section(deployment, "metadata")["namespace"], section(deployment, "spec")
    template = section(spec, "template")
    revision = template_hash(template)
    metadata = {
        **section(template, "metadata"),
        "labels": {**labels_of(template), POD_TEMPLATE_HASH: revision[:10]},
    }
    made = {**template, "metadata": metadata}
    owner = _child("apps/v1", "ReplicaSet", deployment, f"{name_of(deployment)}-{revision[:10]}", metadata)
    owner["metadata"]["annotations"] = {REVISION: annotations_of(deployment).get(REVISION, "1")}
    replicas = spec["replicas"]
    owner["spec"] = {"replicas": replicas, "selector": spec.get("selector"), "template": made}
    owner["status"] = {"observedGeneration": 1, "replicas": replicas, "availableReplicas": replicas}
    yield owner
    pods = [_pod(owner, made, number) for number in range(replicas)]
    yield from (*pods, *_slices(pods, namespace, bodies))


def _settle_set(body: JsonObject) -> None:
    """Fill in a StatefulSet as the API server does, with the status of one that is complete (apps/v1)."""
    spec = body["spec"] = section(body, "spec")
    strategy = section(spec, "updateStrategy")
    if strategy.get("type", ROLLING) == ROLLING:
        rolling = {"partition": 0, **section(strategy, "rollingUpdate")}
        spec["updateStrategy"] = {"type": ROLLING, "rollingUpdate": rolling}
    replicas = spec["replicas"] = _replicas_asked(body)
    counts = dict.fromkeys(("replicas", "updatedReplicas", "readyReplicas", "availableReplicas"), replicas)
    name = f"{name_of(body)}-{template_hash(section(spec, 'template'))[:10]}"
    status = {"observedGeneration": body["metadata"]["generation"], "currentRevision": name}
    body["status"] = {**status, "updateRevision": name, **counts}


def _children_of_set(body: JsonObject, bodies: Sequence[JsonObject]) -> Iterator[JsonObject]:
    """Yield what controllers make for a StatefulSet at rest: its revision, pods and EndpointSlices."""
    template = section(body, "spec", "template")
    revision = _child(
        "apps/v1", "ControllerRevision", body, body["status"]["updateRevision"], section(template, "metadata")
    )
    revision["data"], revision["revision"] = {"spec": {"template": template}}, 1
    yield revision
    labels = {**labels_of(template), REVISION_OF_POD: name_of(revision)}
    made = {**template, "metadata": {**section(template, "metadata"), "labels": labels}}
    pods = [_pod(body, made, number) for number in range(body["spec"]["replicas"])]
    yield from (*pods, *_slices(pods, str(body["metadata"]["namespace"]), bodies))


def _settle_groups(body: JsonObject) -> None:
    """Fill in a LeaderWorkerSet as its webhook does, with the status of one that is complete (0.8)."""
    spec = body["spec"] = section(body, "spec")
    groups = section(spec, "leaderWorkerTemplate")
    spec["leaderWorkerTemplate"] = {"size": 1, **groups}
    rolling = {"partition": 0, "maxUnavailable": 1, "maxSurge": 0, **section(body, *ROLLING_FIELDS)}
    spec["rolloutStrategy"] = {"type": ROLLING, "rollingUpdateConfiguration": rolling}
    replicas = spec["replicas"] = _replicas_asked(body)
    body["status"] = dict.fromkeys(("replicas", "updatedReplicas", "readyReplicas"), replicas)


def _children_of_groups(body: JsonObject, bodies: Sequence[JsonObject]) -> Iterator[JsonObject]:
    """Yield what controllers make for a LeaderWorkerSet at rest: what keeps its leaders, and all its pods."""
    name, groups = name_of(body), section(body, "spec", "leaderWorkerTemplate")
    key, size = template_hash(groups)[:10], int(groups["size"])
    own = {NAME: name, REVISION_KEY: key}
    revision = _child("apps/v1", "ControllerRevision", body, f"{name}-{key}-1", {"labels": own})
    revision["data"], revision["revision"] = {"spec": {"leaderWorkerTemplate": groups}}, 1
    leaders = _child("apps/v1", "StatefulSet", body, name, {"labels": own})
    template = leader_template(body, name)
    labelled = {**section(template, "metadata"), "labels": {**labels_of(template), **own}}
    leaders["spec"] = {"replicas": body["spec"]["replicas"], "template": {**template, "metadata": labelled}}
    leaders["spec"]["updateStrategy"] = {"type": ROLLING, "rollingUpdate": {"partition": 0}}
    _settle_set(leaders)
    kept = list(_children_of_set(leaders, bodies))
    for each in kept:
        mine = {GROUP_INDEX: name_of(each).rpartition("-")[2]} if each["kind"] == "Pod" else {}
        each["metadata"]["labels"] = {**labels_of(each), **own, **mine}
    yield from (revision, leaders, *kept)
    places = range(body["spec"]["replicas"])
    made = section(groups, "workerTemplate")
    for place, number in product(places, range(1, size)):
        pod = _pod({**body, "metadata": {**body["metadata"], "name": f"{name}-{place}"}}, made, number)
        mine = {GROUP_INDEX: str(place), WORKER_INDEX: str(number)}
        pod["metadata"]["labels"] = {**labels_of(pod), **own, **mine}
        yield pod


_MADE: Mapping[str, tuple[Callable[[JsonObject], None], Callable[..., Iterator[JsonObject]]]] = {
    DEPLOYMENT: (_settle, _children_of_deployment),
    STATEFUL_SET: (_settle_set, _children_of_set),
    LEADER_WORKER_SET: (_settle_groups, _children_of_groups),
}
"""How a workload of each kind is filled in, and what its controllers make."""


def _slices(pods: Sequence[JsonObject], namespace: str, bodies: Sequence[JsonObject]) -> Iterator[JsonObject]:
    """Yield the EndpointSlices of all Services that select the pods of one template."""
    for service in bodies:
        lives_here = section(service, "metadata").get("namespace") == namespace
        selected = bool(pods) and selects(service, labels_of(pods[0]))
        if service.get("kind") == "Service" and lives_here and selected:
            yield _slice(service, pods)


def _pod(owner: JsonObject, template: Mapping[str, Any], number: int) -> JsonObject:
    pod = _child("v1", "Pod", owner, f"{name_of(owner)}-{number}", section(template, "metadata"))
    ready = {
        "type": "Ready",
        "status": "True",
        "lastTransitionTime": (CREATED_AT + START).isoformat(),
    }
    pod["spec"] = section(template, "spec")
    pod["status"] = {"phase": "Running", "conditions": [ready]}
    return pod


def _slice(service: JsonObject, pods: Sequence[JsonObject]) -> JsonObject:
    made = _child("discovery.k8s.io/v1", "EndpointSlice", service, f"{name_of(service)}-slice", {})
    made["metadata"]["labels"] = {SERVICE_NAME: name_of(service)}
    made["endpoints"] = [
        {"conditions": {"ready": True}, "targetRef": {"kind": "Pod", "uid": uid_of(pod)}} for pod in pods
    ]
    return made


def _child(version: str, kind: str, owner: JsonObject, name: str, metadata: Mapping[str, Any]) -> JsonObject:
    reference = {"kind": owner.get("kind"), "name": name_of(owner), "uid": uid_of(owner), "controller": True}
    named = {**metadata, "name": name, "ownerReferences": [reference]}
    namespace = str(section(owner, "metadata")["namespace"])
    return _fill_metadata({"apiVersion": version, "kind": kind, "metadata": named}, namespace)
