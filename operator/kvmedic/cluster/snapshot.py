"""One look at a fleet: the workload, its revisions and pods, and what leads requests to them.

Of a Deployment six reads, each consistent in itself, one after the other in the order of cause and effect:
Deployment, ReplicaSets, pods, Services, EndpointSlices; autoscalers come last. So what a later read
shows is never older than what an earlier one claims: a Deployment that says "observed" is followed by
ReplicaSets at least as new, and a pod that was cordoned is followed by EndpointSlices that may already
know it. What changes in between shows up no later than in the effect: each one tests what it was
decided on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from kvmedic.cluster.fronts import (
    BY_LABEL,
    DrainWay,
    find_label_fronts,
    front_port,
    reaches,
    selects,
    usable_label,
    with_orphan_drain,
)
from kvmedic.cluster.neighbours.autoscalers import scaler_of
from kvmedic.cluster.orphan_pods import find_unchanged_labels, is_owned, is_relabelled
from kvmedic.cluster.ownership import (
    CORDON_COST,
    CORDONED,
    DELETION_COST,
    PREFIX,
    RELEASED,
    RUN,
    STAND_IN_COST,
    edits_of,
    last_editor,
    owner_of,
)
from kvmedic.cluster.parts import READERS, REVISION, SERVICE_NAME, Parts
from kvmedic.cluster.stateful.groups import group_fields
from kvmedic.cluster.stateful.revisions import REVISION_OF_POD, ordinal_of, partition_fields
from kvmedic.engines import ENGINES, profiles_for
from kvmedic.kube.cpu import in_thread
from kvmedic.kube.objects import (
    WORKLOADS,
    JsonObject,
    Ref,
    annotations_of,
    condition_of,
    controller_uid,
    is_finished,
    items,
    labels_of,
    moment,
    name_of,
    note_on,
    section,
    uid_of,
)
from kvmedic.manifests.flags import port_of
from kvmedic.manifests.invocation import NotAnEngine, invocation_of
from kvmedic.model.compression import parse_count
from kvmedic.model.devices import ContainerEnd, Instance
from kvmedic.model.engine import EngineProfile
from kvmedic.model.fleet import (
    DEPLOYMENT,
    ROLLING,
    STATEFUL_SET,
    Fleet,
    Orphan,
    Pod,
    ReplicaSet,
    RolloutFields,
    Rotation,
    template_hash,
)
from kvmedic.model.redaction import redact
from kvmedic.model.spec import RotationLabel, RotationWay, TargetRef
from kvmedic.runbooks.workload import View

if TYPE_CHECKING:
    from kvmedic.kube.client import Reader

PLACES = (("state", Instance.PRESENT), ("lastState", Instance.PREVIOUS))
"""Where the kubelet shows how an instance of a container ended, by instance. While it waits before it starts
a container again it shows the newest end in either, in turn (seen on Kubernetes 1.36)."""


@dataclass(frozen=True, slots=True)
class Frame:
    """What has to be known beside a pod's own object."""

    revision: str
    """Hash of its ReplicaSet's pod template."""
    container: str | None
    """The engine's container; None: not known, so every container counts."""
    rotation: Rotation
    serving: Mapping[str, tuple[str, ...]]
    """Who leads requests to a pod, by its uid; others get none."""
    profiles: Sequence[EngineProfile] = ENGINES
    """The engines that the container may run."""
    port: int | None = None
    """Where the metrics are, by the spec; None: the pod shows it."""
    front_port: int | None = None
    """The one port of the pods that the Services lead to; None: none, or several."""
    engine_ports: tuple[int, ...] = ()
    """Ports that the spec names or InferencePools lead to, declared by containers or not: several are an
    engine each."""
    has_other_engines: bool = False
    """Other containers of the pod run engines, too."""


def pod_of(body: Mapping[str, Any], frame: Frame) -> Pod:
    """Return the facts of one pod."""
    metadata, spec, status = (section(body, part) for part in ("metadata", "spec", "status"))
    engines = [
        each
        for each in items(status, "containerStatuses")
        if frame.container is None or each.get("name") == frame.container
    ]
    waiting = (section(each, "state", "waiting").get("reason") for each in engines)
    running = (section(each, "state", "running").get("startedAt") for each in engines)
    ports = [
        port
        for each in (*items(spec, "containers"), *items(spec, "initContainers"))
        for port in _tcp_ports(each)
    ]
    drains = labels_of(body).get(frame.rotation.label) == frame.rotation.draining
    costs_least = annotations_of(body).get(DELETION_COST) == CORDON_COST
    port = frame.port or _metrics_port(body, frame)
    return Pod(
        name=str(metadata["name"]),
        uid=uid_of(body),
        resource_version=str(metadata["resourceVersion"]),
        revision=frame.revision,
        address=str(status.get("podIP", "")),
        created_at=moment(metadata["creationTimestamp"]),
        ready_at=_since(status, "True"),
        terminating="deletionTimestamp" in metadata,
        unschedulable=condition_of(status, "PodScheduled").get("reason") == "Unschedulable",
        in_rotation=uid_of(body) in frame.serving,
        cordoned=drains and costs_least,
        is_stand_in=annotations_of(body).get(DELETION_COST) == STAND_IN_COST,
        half_cordoned=drains and not costs_least and CORDONED in annotations_of(body),
        restarts=sum(int(each.get("restartCount", 0)) for each in engines),
        waiting_reason=next((str(reason) for reason in waiting if reason), ""),
        node=str(spec.get("nodeName", "")),
        last_end=_last_end(engines[0]) if len(engines) == 1 else None,
        unready_at=_since(status, "False"),
        image=str(engines[0].get("imageID", "")) if len(engines) == 1 else "",
        # Of several that may be the engine's, the one that runs longest.
        runs_since=min((moment(at) for at in running if at), default=None),
        # Every container that may be the engine's has a status, and none runs.
        is_stopped=bool(engines) and not any("running" in (each.get("state") or {}) for each in engines),
        ports=tuple(sorted({*(int(port["containerPort"]) for port in ports), *frame.engine_ports})),
        port=port,
        engine_ports=frame.engine_ports if len(frame.engine_ports) > 1 else (),
        only_port=(port or 0) if frame.has_other_engines else None,
        listed_by=frame.serving.get(uid_of(body), ()),
    )


def _tcp_ports(container: Mapping[str, Any]) -> list[JsonObject]:
    return [port for port in items(container, "ports") if port.get("protocol", "TCP") == "TCP"]


SCRAPE_PORT = "prometheus.io/port"
"""Annotation of a pod by which many installations of Prometheus find its metrics."""
NAMED_PORTS = ("metrics", "http")
"""Names of the engine's port where its container declares several; the first counts most."""


def _metrics_port(body: Mapping[str, Any], frame: Frame) -> int | None:
    """Return where a pod's engine serves its metrics, by the first that says so; None: nothing does."""
    containers = items(section(body, "spec"), "containers")
    named = [each for each in containers if each.get("name") == frame.container]
    engines = named if frame.container else containers
    ports = [port for each in named for port in _tcp_ports(each)]
    by_name = {str(port["name"]): int(port["containerPort"]) for port in ports if port.get("name")}
    declared = {int(port["containerPort"]) for port in ports}
    candidates = (
        *(port_of(each, frame.profiles) for each in engines if len(engines) == 1),
        *(by_name.get(name) for name in NAMED_PORTS),
        next(iter(declared)) if len(declared) == 1 else None,
        parse_count(annotations_of(body).get(SCRAPE_PORT, "")),
        frame.front_port,
        *(each.launch.default_port for each in frame.profiles if each.launch.default_port in declared),
    )
    return next((port for port in candidates if port and port < 65536), None)


def _since(status: Mapping[str, Any], truth: str) -> datetime | None:
    """Return since when the Ready condition has a status; None where it has another, or is not there."""
    condition = condition_of(status, "Ready")
    at = condition.get("lastTransitionTime")
    return moment(at) if at and condition.get("status") == truth else None


def _last_end(container: Mapping[str, Any]) -> ContainerEnd | None:
    """Return the newest end; of two within one second the present instance's.

    One that does not say since when the instance ran leaves it no time at all.
    """
    ends = [
        ContainerEnd(
            container=str(container.get("name", "")),
            exit_code=int(ended.get("exitCode", 0)),
            reason=str(ended.get("reason", "")),
            started_at=moment(ended.get("startedAt") or ended["finishedAt"]),
            ended_at=moment(ended["finishedAt"]),
            instance=instance,
        )
        for place, instance in PLACES
        if (ended := section(container, place, "terminated")).get("finishedAt")
    ]
    return max(ends, key=lambda end: end.ended_at, default=None)


def map_ready_listings(slices: Iterable[JsonObject]) -> dict[str, tuple[str, ...]]:
    """Return which Services list a pod as ready and not terminating, by its uid; no others are in rotation.

    A slice of no Service counts by its own name: its readers are nobody's that we know.

    An unknown readiness counts as ready, as the API asks of its readers (discovery.k8s.io/v1,
    EndpointConditions).
    """
    found: dict[str, set[str]] = {}
    for each in slices:
        service, name = labels_of(each).get(SERVICE_NAME, ""), section(each, "metadata").get("name")
        front = f"Service {service}" if service else f"EndpointSlice {name}"
        for uid, serves in _endpoints(each):
            if serves:
                found.setdefault(uid, set()).add(front)
    return {uid: tuple(sorted(fronts)) for uid, fronts in found.items()}


def rotation_of(
    deployment: Mapping[str, Any],
    label: RotationLabel,
    services: Sequence[JsonObject],
    listing: frozenset[str],
) -> Rotation:
    """Return how the pods of a Deployment are taken out of rotation.

    A Service counts when its selector matches the pod template, or when its EndpointSlices list one
    of the pods: slices of a Service without a selector are written by somebody else and do not
    follow a label.
    """
    template = section(deployment, "spec", "template", "metadata", "labels")
    drained = {**template, label.key: label.draining}
    by_name = {name_of(each): each for each in services}
    selecting = {
        name: section(each, "spec", "selector") for name, each in by_name.items() if selects(each, template)
    }
    rivals = sorted(
        name for name, each in by_name.items() if selects(each, drained) and not selects(each, template)
    )
    names = tuple(sorted({*selecting, *listing} - {""}))
    selector = section(deployment, "spec", "selector")
    keys = {*section(selector, "matchLabels"), *(e.get("key") for e in items(selector, "matchExpressions"))}
    return Rotation(
        label=label.key,
        draining=label.draining,
        services=names,
        effective=bool(names)
        and not rivals
        and "" not in listing
        and template.get(label.key) != label.draining
        and all(label.key in selecting.get(name, {}) for name in names),
        in_selector=label.key in keys,
        rivals=tuple(rivals),
    )


def find_listing_services(slices: Iterable[JsonObject], pods: frozenset[str]) -> frozenset[str]:
    """Return the Services whose EndpointSlices list one of the pods; an empty name for slices of none."""
    return frozenset(
        labels_of(each).get(SERVICE_NAME, "")
        for each in slices
        if any(uid in pods for uid, _ in _endpoints(each))
    )


def _endpoints(piece: JsonObject) -> list[tuple[str, bool]]:
    """Return each endpoint of an EndpointSlice as the uid of its pod and whether it gets requests."""
    found = []
    for endpoint in items(piece, "endpoints"):
        conditions = section(endpoint, "conditions")
        serves = conditions.get("ready") is not False and conditions.get("terminating") is not True
        found.append((str(section(endpoint, "targetRef").get("uid", "")), serves))
    return found


PARALLEL = "Parallel"
"""The policy by which a StatefulSet makes its replicas all at once (`podManagementPolicy`)."""
EARLIER_REVISIONS = "deployment.kubernetes.io/revision-history"
"""Annotation of a ReplicaSet that was rolled out again: its numbers of before, with commas between."""

UNMADE = "ReplicaFailure"
"""Condition of a ReplicaSet whose last pod was refused (Kubernetes 1.36, apps/v1)."""
FAILURE_LENGTH = 300
"""Characters of its message that are kept: a quota's names pod, quota and amounts in under 200."""


async def snapshot(
    client: Reader,
    namespace: str,
    target: TargetRef,
    label: RotationLabel,
    drain: DrainWay = BY_LABEL,
) -> View | None:
    """Return a fleet as it is now, or None when there is no such workload.

    Args:
        client: of the cluster.
        namespace: of the workload.
        target: the workload.
        label: by which its replicas are drained, where it does it.
        drain: how they are drained, by the spec, and how much is read of what that depends on.

    Raises:
        ApiError: a read failed.
    """
    deployment = await client.get(Ref(WORKLOADS[target.kind], namespace, target.name))
    if deployment is None:
        return None
    parts = await READERS[target.kind](client, namespace, deployment)
    deployment = parts.deployment
    template = section(deployment, "spec", "template")
    profiles = profiles_for(target.engine)
    index, several = await in_thread(_engine_of, template, target.container, profiles)
    name = None if index is None else str(items(section(template, "spec"), "containers")[index].get("name"))
    uids = frozenset(uid_of(pod) for pod in (*parts.pods, *parts.released))
    listing, way = find_listing_services(parts.slices, uids), drain.way
    rotation = rotation_of(deployment, label, parts.services, listing)
    if way is RotationWay.ORPHAN or (way is RotationWay.AUTO and not usable_label(rotation)):
        fronts = parts.services, listing
        found = await with_orphan_drain(client, deployment, rotation, drain.routers, fronts, drain.depth)
        is_led = rotation.services or (found.orphan and found.orphan.keys)
        # Where nothing leads requests to the pods at all, the label's own message says so.
        rotation = found if is_led or way is RotationWay.ORPHAN else rotation
    if target.kind != DEPLOYMENT:
        rotation = replace(rotation, orphan=None, relabel=rotation.orphan)
    kept = {
        name_of(each): _share_pod(template, section(each, "spec", "template")) for each in parts.replica_sets
    }
    front = front_port(parts.services, template)
    way_of_drain = rotation.orphan or rotation.relabel
    serving, pools = map_ready_listings(parts.slices), way_of_drain.fronts if way_of_drain else ()
    if not rotation.services:
        serving = {**find_label_fronts((*parts.pods, *parts.released), pools), **serving}
    ports = tuple(port for each in pools for port in each.ports)
    named, front = target.first_port, front or next(iter(ports), None)
    frame = Frame("", name, rotation, serving, profiles, named, front, target.ports or ports, several)
    # A pod's port is read from its command line too.
    return View(await in_thread(_fleet, parts, frame), template, kept)


def _share_pod(template: JsonObject, other: JsonObject) -> JsonObject:
    """Return another template with the same pod as this one has, where they are equal: thousands are kept."""
    is_same = other.get("spec") == template.get("spec")
    return {**other, "spec": template.get("spec")} if is_same else other


def container_index(
    template: Mapping[str, Any], name: str | None, profiles: Sequence[EngineProfile] = ENGINES
) -> int | None:
    """Return the place of the engine's container in a pod template: the named one, else the only one."""
    containers = items(section(template, "spec"), "containers")
    if name is not None:
        names = [each.get("name") for each in containers]
        return names.index(name) if name in names else None
    if len(containers) == 1:
        return 0
    engines = _engine_places(template, profiles)
    return engines[0] if len(engines) == 1 else None


def _engine_of(
    template: Mapping[str, Any], name: str | None, profiles: Sequence[EngineProfile]
) -> tuple[int | None, bool]:
    """Return the place of the engine's container, and whether several start one.

    A tenant wrote the command lines: they are read in a thread.
    """
    return container_index(template, name, profiles), len(_engine_places(template, profiles)) > 1


def _engine_places(template: Mapping[str, Any], profiles: Sequence[EngineProfile]) -> list[int]:
    """Return which containers start a known engine, as far as their command lines can be followed."""
    return [
        index
        for index, each in enumerate(items(section(template, "spec"), "containers"))
        if not all(isinstance(invocation_of(each, profile), NotAnEngine) for profile in profiles)
    ]


def _pods(parts: Parts, frame: Frame) -> Iterator[Pod]:
    """Yield the pods with the revision of each: one that no revision is known of has none."""
    by_maker = {uid_of(rs): template_hash(section(rs, "spec", "template")) for rs in parts.replica_sets}
    by_name = {name_of(rs): by_maker[uid_of(rs)] for rs in parts.replica_sets}
    for body in parts.pods:
        if parts.kind == DEPLOYMENT:
            yield pod_of(body, replace(frame, revision=by_maker[controller_uid(body)]))
            continue
        made_from = labels_of(body).get(REVISION_OF_POD, "")
        pod = pod_of(body, replace(frame, revision=by_name.get(made_from, "")))
        out = is_relabelled(body)
        place = ordinal_of(body, parts.deployment)
        released = out and parts.kind == STATEFUL_SET
        yield replace(pod, ordinal=place, cordoned=pod.cordoned or out, is_released=released)


def _fleet(parts: Parts, frame: Frame) -> Fleet:
    body = parts.deployment
    metadata, spec, status = section(body, "metadata"), section(body, "spec"), section(body, "status")
    marks = {key: text for key, text in annotations_of(body).items() if key.startswith(PREFIX)}
    going, fields = "deletionTimestamp" in metadata, rollout_fields(body)
    return Fleet(
        namespace=str(metadata["namespace"]),
        name=str(metadata["name"]),
        uid=str(metadata["uid"]),
        resource_version=str(metadata["resourceVersion"]),
        generation=int(metadata["generation"]),
        observed=_is_observed(body),
        replicas=int(spec.get("replicas", 1)),
        strategy=fields.strategy,
        fields=fields,
        revision=template_hash(section(spec, "template")),
        status_replicas=int(status.get("replicas", 0)),
        updated_replicas=int(status.get("updatedReplicas", 0)),
        fence=marks.pop(RUN, ""),
        replica_sets=tuple(_replica_set(each, parts) for each in parts.replica_sets),
        pods=tuple(_pods(parts, frame)),
        rotation=frame.rotation,
        orphans=tuple(sorted(_orphans(parts, frame), key=lambda each: each.pod.name)),
        owner=owner_of(body),
        recorded=marks,
        scaler=scaler_of(body, parts.kind, parts.autoscalers),
        editor=last_editor(body),
        edits=edits_of(body),
        kept_by=tuple(metadata.get("finalizers") or ("its own grace period",)) if going else (),
        kind=parts.kind,
        in_order=parts.kind == STATEFUL_SET and spec.get("podManagementPolicy") != PARALLEL,
        is_complete=parts.is_complete,
        groups=parts.groups,
    )


def _orphans(parts: Parts, frame: Frame) -> Iterator[Orphan]:
    """Yield the pods that were released; those whose ReplicaSet is gone have no revision."""
    made = {name_of(each): template_hash(section(each, "spec", "template")) for each in parts.replica_sets}
    for body in parts.released:
        revision = made.get(str(note_on(body, RELEASED).get("replicaSet")), "")
        pod = pod_of(body, replace(frame, revision=revision))
        pod = replace(pod, cordoned=is_relabelled(body), is_released=True)
        keys = frame.rotation.orphan.keys if frame.rotation.orphan else ()
        left = find_unchanged_labels(body, keys)
        yield Orphan(pod, is_owned=is_owned(body), has_ended=is_finished(body), led_by=left)


def rollout_fields(body: Mapping[str, Any]) -> RolloutFields:
    """Return those fields of a workload that a frozen rollout changes for a while.

    The API server fills in `maxSurge`, `maxUnavailable` and `progressDeadlineSeconds`, and leaves out
    a `paused` of false and a `minReadySeconds` of 0. A strategy without numbers counts as 0 and 0.
    """
    spec = section(body, "spec")
    if "leaderWorkerTemplate" in spec:
        return group_fields(body)
    if "updateStrategy" in spec:
        return partition_fields(body)
    rolling = section(spec, "strategy", "rollingUpdate")
    return RolloutFields(
        paused=bool(spec.get("paused", False)),
        max_surge=rolling.get("maxSurge", 0),
        max_unavailable=rolling.get("maxUnavailable", 0),
        min_ready_seconds=int(spec.get("minReadySeconds", 0)),
        progress_deadline_seconds=spec.get("progressDeadlineSeconds"),
        strategy=str(section(spec, "strategy").get("type", ROLLING)),
    )


def _replica_set(body: JsonObject, parts: Parts) -> ReplicaSet:
    spec, metadata, status = (section(body, part) for part in ("spec", "metadata", "status"))
    number = _numbers(body, REVISION)
    return ReplicaSet(
        name=str(metadata["name"]),
        revision=template_hash(section(spec, "template")),
        number=number[0] if number else 0,
        desired=int(spec.get("replicas", 1)),
        available=int(status.get("availableReplicas", 0)),
        min_ready_seconds=int(spec.get("minReadySeconds", 0)),
        observed=_is_observed(body),
        created_at=moment(metadata["creationTimestamp"]) if "creationTimestamp" in metadata else None,
        reachable=reaches(parts.services, parts.deployment, section(spec, "template", "metadata", "labels")),
        earlier_numbers=_numbers(body, EARLIER_REVISIONS),
        # Why pods cannot be made; the controller takes the condition off with success.
        failure=redact(str(condition_of(status, UNMADE).get("message", "")))[:FAILURE_LENGTH],
    )


def _numbers(body: JsonObject, annotation: str) -> tuple[int, ...]:
    """Return the whole numbers in an annotation; what is none is left out."""
    texts = annotations_of(body).get(annotation, "").split(",")
    return tuple(number for text in texts if (number := parse_count(text)) is not None)


def _is_observed(body: JsonObject) -> bool:
    generation = int(section(body, "metadata")["generation"])
    return int(section(body, "status").get("observedGeneration", 0)) >= generation
