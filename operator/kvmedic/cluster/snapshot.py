"""One look at a fleet: the Deployment, its ReplicaSets and pods, and what leads requests to them.

Six reads, each consistent in itself, one after the other in the order of cause and effect:
Deployment, ReplicaSets, pods, Services, EndpointSlices; autoscalers come last. So what a later read
shows is never older than what an earlier one claims: a Deployment that says "observed" is followed by
ReplicaSets at least as new, and a pod that was cordoned is followed by EndpointSlices that may already
know it. What changes in between shows up no later than in the effect: each one tests what it was
decided on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kvmedic.cluster.autoscalers import scaler_of
from kvmedic.cluster.exposure import in_rotation, reaches, rotation_of, selector_text
from kvmedic.cluster.marks import PREFIX, RUN
from kvmedic.cluster.ownership import edits_of, last_editor, owner_of
from kvmedic.cluster.pods import Frame, is_finished, pod_of
from kvmedic.core.config_map import Sight
from kvmedic.core.fleet import Fleet, Pod, ReplicaSet, RolloutFields, Rotation
from kvmedic.core.policy import RotationLabel, TargetRef
from kvmedic.core.quantity import parse_count
from kvmedic.core.redaction import redact
from kvmedic.core.template import template_hash
from kvmedic.engines import ENGINES
from kvmedic.kube.client import Client
from kvmedic.kube.objects import (
    AUTOSCALERS,
    DEPLOYMENTS,
    ENDPOINT_SLICES,
    PODS,
    REPLICA_SETS,
    SERVICES,
    JsonObject,
    Ref,
    annotations_of,
    controller_uid,
    items,
    moment,
    section,
    uid_of,
)
from kvmedic.manifests.invocation import NotAnEngine, invocation_of

REVISION = "deployment.kubernetes.io/revision"
"""Annotation of a ReplicaSet: the number that `kubectl rollout history` shows."""
EARLIER_REVISIONS = "deployment.kubernetes.io/revision-history"
"""Annotation of a ReplicaSet that was rolled out again: its numbers of before, with commas between."""

UNMADE = "ReplicaFailure"
"""Condition of a ReplicaSet whose last pod was refused (Kubernetes 1.36, apps/v1)."""
FAILURE_LENGTH = 300
"""Characters of its message that are kept: a quota's names pod, quota and amounts in under 200."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A fleet and the pod template behind it."""

    fleet: Fleet
    template: Mapping[str, object]
    """The Deployment's `spec.template`. It may hold secrets: never print it, never store it."""
    templates: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    """The pod template of each ReplicaSet, by its name. The same holds for these."""
    config_maps: Mapping[str, Sight] = field(default_factory=dict)
    """ConfigMaps that the engine reads its configuration from, by name, and what these were copied from."""


@dataclass(frozen=True, slots=True)
class _Parts:
    """What was read, in the order of reading."""

    deployment: JsonObject
    replica_sets: list[JsonObject]
    pods: list[JsonObject]
    services: list[JsonObject]
    slices: list[JsonObject]
    autoscalers: list[JsonObject]


async def snapshot(
    client: Client, namespace: str, target: TargetRef, label: RotationLabel
) -> Snapshot | None:
    """Return a fleet as it is now, or None when there is no such Deployment.

    Raises:
        ApiError: a read failed.
    """
    deployment = await client.get(Ref(DEPLOYMENTS, namespace, target.name))
    if deployment is None:
        return None
    parts = await _parts(client, namespace, deployment)
    template = section(deployment, "spec", "template")
    index = container_index(template, target.container)
    uids = frozenset(uid_of(pod) for pod in parts.pods)
    rotation = rotation_of(deployment, label, parts.services, parts.slices, uids)
    kept = {
        str(section(rs, "metadata")["name"]): section(rs, "spec", "template") for rs in parts.replica_sets
    }
    return Snapshot(_fleet(parts, rotation, _name_at(template, index)), template, kept)


def container_index(template: Mapping[str, Any], name: str | None) -> int | None:
    """Return the place of the engine's container in a pod template: the named one, else the only one."""
    containers = items(section(template, "spec"), "containers")
    if name is not None:
        names = [each.get("name") for each in containers]
        return names.index(name) if name in names else None
    if len(containers) == 1:
        return 0
    engines = [index for index, each in enumerate(containers) if _runs_an_engine(each)]
    return engines[0] if len(engines) == 1 else None


def _runs_an_engine(container: Mapping[str, Any]) -> bool:
    """Return whether a container starts a known engine, as far as its command line can be followed."""
    return not all(isinstance(invocation_of(container, profile), NotAnEngine) for profile in ENGINES)


async def _parts(client: Client, namespace: str, deployment: JsonObject) -> _Parts:
    """Read what belongs to a Deployment: by owner, since labels alone may be shared."""
    selector = selector_text(section(deployment, "spec", "selector"))
    sets = _owned(await client.list(REPLICA_SETS, namespace, selector), {uid_of(deployment)})
    pods = _owned(await client.list(PODS, namespace, selector), {uid_of(each) for each in sets})
    services = await client.list(SERVICES, namespace)
    slices = await client.list(ENDPOINT_SLICES, namespace)
    autoscalers = await client.list(AUTOSCALERS, namespace)
    active = [pod for pod in pods if not is_finished(pod)]
    return _Parts(deployment, sets, active, services, slices, autoscalers)


def _owned(objects: Iterable[JsonObject], owners: set[str]) -> list[JsonObject]:
    return [each for each in objects if controller_uid(each) in owners]


def _fleet(parts: _Parts, rotation: Rotation, container: str | None) -> Fleet:
    body = parts.deployment
    metadata, spec, status = section(body, "metadata"), section(body, "spec"), section(body, "status")
    marks = {key: text for key, text in annotations_of(body).items() if key.startswith(PREFIX)}
    return Fleet(
        namespace=str(metadata["namespace"]),
        name=str(metadata["name"]),
        uid=str(metadata["uid"]),
        resource_version=str(metadata["resourceVersion"]),
        generation=int(metadata["generation"]),
        observed=_is_observed(body),
        replicas=int(spec.get("replicas", 1)),
        strategy=str(section(spec, "strategy").get("type", "")),
        fields=rollout_fields(spec),
        revision=template_hash(section(spec, "template")),
        status_replicas=int(status.get("replicas", 0)),
        updated_replicas=int(status.get("updatedReplicas", 0)),
        fence=marks.pop(RUN, ""),
        replica_sets=tuple(_replica_set(each, parts) for each in parts.replica_sets),
        pods=_pods(parts, rotation, container),
        rotation=rotation,
        owner=owner_of(body),
        recorded=marks,
        scaler=scaler_of(body, parts.autoscalers),
        editor=last_editor(body),
        edits=edits_of(body),
        kept_by=_kept_by(metadata),
    )


def _kept_by(metadata: JsonObject) -> tuple[str, ...]:
    if "deletionTimestamp" not in metadata:
        return ()
    return tuple(metadata.get("finalizers") or ("its own grace period",))


def rollout_fields(spec: Mapping[str, Any]) -> RolloutFields:
    """Return those fields of a Deployment's spec that a frozen rollout borrows.

    The API server fills in `maxSurge`, `maxUnavailable` and `progressDeadlineSeconds`, and leaves out
    a `paused` of false and a `minReadySeconds` of 0. A strategy without numbers counts as 0 and 0.
    """
    rolling = section(spec, "strategy", "rollingUpdate")
    return RolloutFields(
        paused=bool(spec.get("paused", False)),
        max_surge=rolling.get("maxSurge", 0),
        max_unavailable=rolling.get("maxUnavailable", 0),
        min_ready_seconds=int(spec.get("minReadySeconds", 0)),
        progress_deadline_seconds=spec.get("progressDeadlineSeconds"),
    )


def _replica_set(body: JsonObject, parts: _Parts) -> ReplicaSet:
    spec, metadata = section(body, "spec"), section(body, "metadata")
    number = _numbers(body, REVISION)
    return ReplicaSet(
        name=str(metadata["name"]),
        revision=template_hash(section(spec, "template")),
        number=number[0] if number else 0,
        desired=int(spec.get("replicas", 1)),
        available=int(section(body, "status").get("availableReplicas", 0)),
        min_ready_seconds=int(spec.get("minReadySeconds", 0)),
        observed=_is_observed(body),
        created_at=moment(metadata["creationTimestamp"]) if "creationTimestamp" in metadata else None,
        reachable=reaches(parts.services, parts.deployment, section(spec, "template", "metadata", "labels")),
        earlier_numbers=_numbers(body, EARLIER_REVISIONS),
        failure=_failure(body),
    )


def _numbers(body: JsonObject, annotation: str) -> tuple[int, ...]:
    """Return the whole numbers in an annotation; what is none is left out."""
    texts = annotations_of(body).get(annotation, "").split(",")
    return tuple(number for text in texts if (number := parse_count(text)) is not None)


def _failure(replica_set: JsonObject) -> str:
    """Return why pods of a ReplicaSet cannot be made; its controller takes the condition off with success."""
    said = items(section(replica_set, "status"), "conditions")
    told = (str(each.get("message", "")) for each in said if each.get("type") == UNMADE)
    return redact(next(told, ""))[:FAILURE_LENGTH]


def _pods(parts: _Parts, rotation: Rotation, container: str | None) -> tuple[Pod, ...]:
    revisions = {
        uid_of(each): template_hash(section(each, "spec", "template")) for each in parts.replica_sets
    }
    serving = in_rotation(parts.slices)
    return tuple(
        pod_of(each, Frame(revisions[controller_uid(each)], container, rotation, serving))
        for each in parts.pods
    )


def _is_observed(body: JsonObject) -> bool:
    generation = int(section(body, "metadata")["generation"])
    return int(section(body, "status").get("observedGeneration", 0)) >= generation


def _name_at(template: Mapping[str, Any], index: int | None) -> str | None:
    if index is None:
        return None
    return str(items(section(template, "spec"), "containers")[index].get("name"))
