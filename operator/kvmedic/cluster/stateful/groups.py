"""A LeaderWorkerSet in the shape in which a fleet is read: each group is one replica, by its leader.

Its controller keeps the leaders in a StatefulSet of its own, and the workers of each in another, which goes
with the leader. So a group is replaced by replacing its leader. It has no field that is owned by people in
these StatefulSets: only the LeaderWorkerSet is ever changed.

A group is Ready once its leader and all its workers are. The leader alone serves and exports metrics.

Source: LeaderWorkerSet 0.7 to 0.9, `pkg/controllers` (leaderworkerset_controller.go, pod_controller.go),
`pkg/utils/revision`, `pkg/webhooks/pod_webhook.go`; the partition is there since 0.7.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvmedic.cluster.fronts import selects
from kvmedic.cluster.ownership import PERMIT
from kvmedic.cluster.stateful.revisions import REVISION_OF_POD, WHOLE, is_complete, permit_operations
from kvmedic.engines import profiles_for
from kvmedic.kube.objects import (
    CONTROLLER_REVISIONS,
    PODS,
    STATEFUL_SETS,
    TEMPLATE,
    JsonObject,
    Ref,
    annotations_of,
    condition_of,
    controller_uid,
    is_finished,
    is_ready,
    items,
    labels_of,
    name_of,
    namespace_of,
    pod_template,
    section,
    template_path,
    uid_of,
)
from kvmedic.manifests.invocation import NotAnEngine, invocation_of
from kvmedic.model.edits import PatchOperation
from kvmedic.model.fleet import FROZEN_PARTITION, ROLLING, Groups, RolloutFields, template_hash
from kvmedic.rollout.orphan_drain import GROUP_LABELS

if TYPE_CHECKING:
    from kvmedic.kube.client import Reader

NAME, WORKER_INDEX, GROUP_INDEX, REVISION_KEY = (
    f"{GROUP_LABELS}{name}" for name in ("name", "worker-index", "group-index", "template-revision-hash")
)
WORKERS = f"{GROUP_LABELS}worker-template"
"""A label that no pod has."""
LEADER = "0"
"""A leader's `worker-index`."""
ROLLING_FIELDS = ("spec", "rolloutStrategy", "rollingUpdateConfiguration")

LEFT_OUT_WHERE_ZERO = frozenset(
    {
        *("hostNetwork", "hostPID", "hostIPC", "stdin", "stdinOnce", "tty", "readOnly"),
        *("initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold"),
        *("hostPort", "weight"),
    }
)
"""Fields of a pod template that Kubernetes' own types leave out where they are false or 0 (core/v1, 1.36)."""
LEFT_OUT_WHERE_EMPTY = frozenset(
    {"resources", "labels", "annotations", "nodeSelector", "limits", "requests", "matchLabels"}
)
"""Maps that are left out, or written, where they are empty."""


def normalise_part(value: Any, name: str = "") -> Any:
    """Return a part of a pod template without what means the same as nothing.

    The object has it as somebody wrote it, and its controller's revisions as Go's types are written out: so
    the same template differs in these.
    """
    if isinstance(value, Mapping):
        parts = {key: normalise_part(each, key) for key, each in value.items() if key != WHOLE}
        return {key: each for key, each in parts.items() if not _says_nothing(key, each)}
    return [normalise_part(each, name) for each in value] if isinstance(value, list) else value


def _says_nothing(name: str, value: Any) -> bool:
    if value is None or value in ("", []):
        return True
    if value == {}:
        return name in LEFT_OUT_WHERE_EMPTY
    return value in (False, 0) and name in LEFT_OUT_WHERE_ZERO


def leader_template(body: Mapping[str, Any], name: str) -> JsonObject:
    """Return the pod template of the leaders of a body with a `leaderWorkerTemplate`, as pods have it.

    With the labels that its controllers give every leader: by them Services may select.
    """
    return _as_leader(pod_template(body), body, name)


def _as_leader(template: Mapping[str, Any], body: Mapping[str, Any], name: str) -> JsonObject:
    template = normalise_part(template)
    labels = {**labels_of(template), NAME: name, WORKER_INDEX: LEADER, **_beside(body)}
    return {**template, "metadata": {**section(template, "metadata"), "labels": labels}}


def _beside(body: Mapping[str, Any]) -> dict[str, str]:
    """Return what distinguishes templates of workers, as a group is made anew for either's sake."""
    groups = section(body, "spec", "leaderWorkerTemplate")
    if not groups.get("leaderTemplate"):
        return {}
    return {WORKERS: template_hash(normalise_part(section(groups, "workerTemplate")))}


def normalise_template(body: Mapping[str, Any], template: Mapping[str, Any] | None = None) -> JsonObject:
    """Return a workload's pod template, or another for it, in the form in which they are compared."""
    own = dict(pod_template(body) if template is None else template)
    if template_path(body) == TEMPLATE:
        return own
    return _as_leader(own, body, name_of(body))


def as_workload(body: JsonObject) -> JsonObject:
    """Return a workload whose pod template is where a Deployment has its own; others as they are."""
    if template_path(body) == TEMPLATE:
        return body
    selector = {"matchLabels": {NAME: name_of(body), WORKER_INDEX: LEADER}}
    spec = {**section(body, "spec"), "template": leader_template(body, name_of(body)), "selector": selector}
    return {**body, "spec": spec}


def on_groups(live: Mapping[str, Any], operations: Iterable[PatchOperation]) -> tuple[PatchOperation, ...]:
    """Return a patch of a pod template where the workload has it; a whole template without their labels."""
    path = template_path(live)
    if path == TEMPLATE:
        return tuple(operations)
    return tuple(
        PatchOperation(each.op, f"{path}{each.path.removeprefix(TEMPLATE)}", _own_part(each))
        if each.path == TEMPLATE or each.path.startswith(f"{TEMPLATE}/")
        else each
        for each in operations
    )


def _own_part(operation: PatchOperation) -> Any:
    value = operation.value
    if operation.path != TEMPLATE or not isinstance(value, Mapping):
        return value
    labels = {key: text for key, text in labels_of(value).items() if not key.startswith(GROUP_LABELS)}
    return {**value, "metadata": {**section(value, "metadata"), "labels": labels}}


def group_fields(body: Mapping[str, Any]) -> RolloutFields:
    """Return those fields of a LeaderWorkerSet that a frozen rollout changes for a while."""
    rolling = section(body, *ROLLING_FIELDS)
    partition = int(rolling.get("partition") or 0)
    return RolloutFields(
        paused=partition == FROZEN_PARTITION,
        max_surge=rolling.get("maxSurge", 0),
        max_unavailable=rolling.get("maxUnavailable", 1),
        min_ready_seconds=0,
        progress_deadline_seconds=None,
        strategy=str(section(body, "spec", "rolloutStrategy").get("type", ROLLING)),
        partition=partition,
        permits=partition != FROZEN_PARTITION and PERMIT in annotations_of(body),
    )


def group_operations(live: JsonObject, fields: RolloutFields) -> tuple[PatchOperation, ...]:
    """Return the operations that give a LeaderWorkerSet these fields; the rest of its strategy stays."""
    rolling = {
        **section(live, *ROLLING_FIELDS),
        "maxSurge": fields.max_surge,
        "maxUnavailable": fields.max_unavailable,
        "partition": fields.partition or 0,
    }
    strategy = {**section(live, "spec", "rolloutStrategy"), "type": fields.strategy}
    strategy["rollingUpdateConfiguration"] = rolling
    return (PatchOperation("add", "/spec/rolloutStrategy", strategy), *permit_operations(live, fields))


@dataclass(frozen=True, slots=True)
class GroupParts:
    """What belongs to a LeaderWorkerSet, in the shape of a Deployment's parts."""

    workload: JsonObject
    replica_sets: list[JsonObject]
    leaders: list[JsonObject]
    """Each is Ready where its whole group is, and names its revision as a StatefulSet's pod does."""
    groups: Groups
    is_complete: bool
    """Its leaders' controller counts the last rollout as complete."""
    owners: frozenset[str]
    """Uids of what its controllers' own objects belong to."""
    worker_labels: Mapping[str, str]
    """Of each worker; empty where there are none."""


async def read_groups(reader: Reader, body: JsonObject) -> GroupParts:
    """Read what belongs to a LeaderWorkerSet.

    Raises:
        ApiError: a read failed.
    """
    namespace, name, uid = namespace_of(body), name_of(body), uid_of(body)
    leaders = await reader.get(Ref(STATEFUL_SETS, namespace, name)) or {}
    if controller_uid(leaders) != uid:
        leaders = {}
    selector = f"{NAME}={name}"
    revisions = await reader.list(CONTROLLER_REVISIONS, namespace, selector)
    found = {uid_of(pod): pod for pod in await reader.list(PODS, namespace, selector)}
    pods = [pod for pod in found.values() if not is_finished(pod)]
    made = [pod for pod in pods if uid_of(leaders) and controller_uid(pod) == uid_of(leaders)]
    kept = _newest_by_key([each for each in revisions if controller_uid(each) == uid])
    names = {key: name_of(each) for key, each in kept.items()}
    size = int(section(body, "spec", "leaderWorkerTemplate").get("size") or 1)
    replicas = [_as_replica(pod, pods, size, names) for pod in made]
    current = section(leaders, "status").get("currentRevision")
    key = next(
        (
            labels_of(section(each, "data", "spec", "template")).get(REVISION_KEY, "")
            for each in revisions
            if name_of(each) == current and controller_uid(each) == uid_of(leaders)
        ),
        "",
    )
    comes_back = template_hash(_template_in(kept[key], name)) if key in kept else ""
    return GroupParts(
        _with_status(body, leaders, kept),
        [_as_replica_set(each, replicas, name) for each in kept.values()],
        replicas,
        Groups(_read_obeyed_partition(leaders), comes_back, _find_shape_blocker(body, size)),
        is_complete(leaders),
        frozenset({uid, *(uid_of(pod) for pod in made)}),
        _worker_labels(body) if size > 1 else {},
    )


def _newest_by_key(revisions: Iterable[JsonObject]) -> dict[str, JsonObject]:
    """Return the revisions by what pods call them; of one that came back the newest."""
    in_order = sorted(revisions, key=lambda each: int(each.get("revision", 0)))
    return {labels_of(each).get(REVISION_KEY, ""): each for each in in_order}


def _template_in(revision: Mapping[str, Any], name: str) -> JsonObject:
    return leader_template(section(revision, "data"), name)


def _as_replica(
    leader: JsonObject, pods: Iterable[JsonObject], size: int, names: Mapping[str, str]
) -> JsonObject:
    """Return a leader as a StatefulSet's pod: its revision's name in its label, Ready if its group is."""
    labels, metadata = labels_of(leader), section(leader, "metadata")
    made_from = {REVISION_OF_POD: names.get(labels.get(REVISION_KEY, ""), "")}
    whole = {**leader, "metadata": {**metadata, "labels": {**labels, **made_from}}}
    mine = (GROUP_INDEX, REVISION_KEY)
    workers = [
        pod
        for pod in pods
        if labels_of(pod).get(WORKER_INDEX) != LEADER
        and all(labels_of(pod).get(key) == labels.get(key) for key in mine)
    ]
    status = section(leader, "status")
    condition = condition_of(status, "Ready")
    if condition.get("status") != "True" or sum(map(is_ready, workers)) >= size - 1:
        return whole
    # Not before the leader was: until then Services may have led requests to it.
    since = (condition_of(section(pod, "status"), "Ready").get("lastTransitionTime", "") for pod in workers)
    at = max([str(condition.get("lastTransitionTime", "")), *(str(each or "") for each in since)])
    others = [each for each in items(status, "conditions") if each.get("type") != "Ready"]
    unready = {**condition, "status": "False", "lastTransitionTime": at}
    return {**whole, "status": {**status, "conditions": [*others, unready]}}


def _as_replica_set(revision: JsonObject, pods: Sequence[JsonObject], name: str) -> JsonObject:
    """Return a revision as a ReplicaSet that desires as many replicas as it has."""
    live = [pod for pod in pods if "deletionTimestamp" not in section(pod, "metadata")]
    made = Counter(labels_of(pod)[REVISION_OF_POD] for pod in live)
    ready = Counter(labels_of(pod)[REVISION_OF_POD] for pod in live if is_ready(pod))
    return {
        "metadata": {
            **section(revision, "metadata"),
            "generation": 1,
            "annotations": {"deployment.kubernetes.io/revision": str(revision.get("revision", 0))},
        },
        "spec": {"replicas": made[name_of(revision)], "template": _template_in(revision, name)},
        "status": {"observedGeneration": 1, "availableReplicas": ready[name_of(revision)]},
    }


def _with_status(body: JsonObject, leaders: Mapping[str, Any], kept: Mapping[str, JsonObject]) -> JsonObject:
    """Return a LeaderWorkerSet as a workload that says whether its controller has seen its newest spec.

    It says so itself from 0.9 on. Before, it has seen it once its leaders' StatefulSet is made from it.
    """
    spec, desired = section(leaders, "spec"), section(body, "spec")
    seen = kept.get(labels_of(leaders).get(REVISION_KEY, ""), {})
    templates = [
        normalise_part(section(each, "spec", "leaderWorkerTemplate"))
        for each in (section(seen, "data"), body)
    ]
    partition = int(section(spec, "updateStrategy", "rollingUpdate").get("partition") or 0)
    generation = int(section(body, "metadata")["generation"])
    observed = section(body, "status").get("observedGeneration")
    is_seen = (
        templates[0] == templates[1]
        and int(spec.get("replicas", 1)) == int(desired.get("replicas", 1))
        and partition >= int(section(body, *ROLLING_FIELDS).get("partition") or 0)
        and _read_obeyed_partition(leaders) is not None
        and (observed is None or int(observed) >= generation)
    )
    status = {**section(body, "status"), "observedGeneration": generation if is_seen else 0}
    return {**as_workload(body), "status": status}


def _read_obeyed_partition(leaders: Mapping[str, Any]) -> int | None:
    """Return the partition that the StatefulSet controller goes by now; None: it has not seen the newest."""
    if not leaders:
        return None
    generation = int(section(leaders, "metadata").get("generation", 0))
    if int(section(leaders, "status").get("observedGeneration", 0)) < generation:
        return None
    return int(section(leaders, "spec", "updateStrategy", "rollingUpdate").get("partition") or 0)


def _worker_labels(body: Mapping[str, Any]) -> dict[str, str]:
    workers = section(body, "spec", "leaderWorkerTemplate", "workerTemplate")
    return {**labels_of(workers), NAME: name_of(body), WORKER_INDEX: "1"}


def _find_shape_blocker(body: Mapping[str, Any], size: int) -> str:
    """Return why groups of this shape are not changed, and what helps; empty where they are."""
    if "partition" not in section(body, *ROLLING_FIELDS):
        return (
            "it has no spec.rolloutStrategy.rollingUpdateConfiguration.partition, by which groups are held: "
            "install LeaderWorkerSet 0.7 or newer, its definitions and its controller"
        )
    groups = section(body, "spec", "leaderWorkerTemplate")
    workers = items(section(groups, "workerTemplate", "spec"), "containers")
    apart = size > 1 and bool(section(groups, "leaderTemplate"))
    engines = profiles_for(None)
    starting = [
        str(each.get("name"))
        for each in workers
        if not all(isinstance(invocation_of(each, profile), NotAnEngine) for profile in engines)
    ]
    if apart and starting:
        return (
            f"container {starting[0]} of its workerTemplate starts an engine too, and the flags of both must "
            "agree: change both by hand, or leave out leaderTemplate where leader and workers may start alike"
        )
    return ""


def find_selector_blocker(services: Iterable[JsonObject], labels: Mapping[str, str]) -> str:
    """Return what keeps a group from being drained by its leader, where Services select workers too."""
    names = sorted(name_of(each) for each in services if labels and selects(each, labels))
    if not names:
        return ""
    return (
        f"Service {', '.join(names)} selects the workers of each group too, so that no leader is out of "
        "rotation alone: give leaderTemplate a label of its own, such as role: leader, and select by it"
    )
