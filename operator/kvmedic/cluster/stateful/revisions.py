"""A StatefulSet in the shape in which a fleet is read: its revisions as ReplicaSets, and its fields.

A StatefulSet has no ReplicaSets. Its ControllerRevisions keep the pod templates, each pod names the one that
it was made from, and `partition` says which ordinals follow the newest. As many replicas as a revision has
count as its desired number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kvmedic.cluster.ownership import ANNOTATIONS, CORDONED_FOR, PERMIT, path_of
from kvmedic.kube.objects import (
    CONTROLLER_REVISIONS,
    PODS,
    JsonObject,
    annotations_of,
    controller_uid,
    is_finished,
    is_ready,
    items,
    labels_of,
    name_of,
    section,
    uid_of,
)
from kvmedic.model.edits import PatchOperation
from kvmedic.model.fleet import FROZEN_PARTITION, ON_DELETE, ROLLING, RolloutFields

if TYPE_CHECKING:
    from kvmedic.kube.client import Reader

REVISION_OF_POD = "controller-revision-hash"
"""Label of a pod: the name of the ControllerRevision that it was made from (apps/v1)."""
WHOLE = "$patch"
"""What a ControllerRevision says beside the template: that it takes the whole place of another (1.36,
stateful_set_utils.go, getPatch)."""


async def pods_of_set(reader: Reader, namespace: str, body: JsonObject, selector: str) -> list[JsonObject]:
    """Return the pods of a StatefulSet, those among them whose labels were changed so that they are drained.

    Raises:
        ApiError: a read failed.
    """
    uid = uid_of(body)
    found = await reader.list(PODS, namespace, selector)
    own = {uid_of(pod): pod for pod in found if controller_uid(pod) == uid}
    for pod in await reader.list(PODS, namespace, f"{CORDONED_FOR}={uid}"):
        owners = items(section(pod, "metadata"), "ownerReferences")
        if any(each.get("uid") == uid for each in owners):
            own.setdefault(uid_of(pod), pod)
    return [pod for pod in own.values() if not is_finished(pod)]


async def revisions_of_set(
    reader: Reader, namespace: str, body: JsonObject, selector: str
) -> tuple[JsonObject, ...]:
    """Return the ControllerRevisions of a StatefulSet.

    Raises:
        ApiError: a read failed.
    """
    found = await reader.list(CONTROLLER_REVISIONS, namespace, selector)
    return tuple(each for each in found if controller_uid(each) == uid_of(body))


def as_replica_sets(
    body: JsonObject, revisions: Sequence[JsonObject], pods: Sequence[JsonObject], number: str
) -> list[JsonObject]:
    """Return a StatefulSet's revisions as ReplicaSets, each with as many replicas as it has.

    Args:
        number: the annotation by which a ReplicaSet's number is found.
    """
    spec, status = section(body, "spec"), section(body, "status")
    own = section(spec, "template")
    observed = int(status.get("observedGeneration", 0)) >= int(section(body, "metadata")["generation"])
    newest = str(status.get("updateRevision", "")) if observed else ""
    live = [pod for pod in pods if "deletionTimestamp" not in section(pod, "metadata")]
    made = Counter(labels_of(pod).get(REVISION_OF_POD) for pod in live)
    ready = Counter(labels_of(pod).get(REVISION_OF_POD) for pod in live if is_ready(pod))
    # Of those that are Ready the newest are not Available yet; one that is drained may be counted by nobody.
    counted = sum(is_ready(pod) and bool(controller_uid(pod)) for pod in live)
    lacking = max(0, counted - int(status.get("availableReplicas", 0)))
    return [
        {
            "metadata": {
                **section(each, "metadata"),
                "generation": 1,
                "annotations": {number: str(each.get("revision", 0))},
            },
            "spec": {
                "replicas": made[name_of(each)],
                "minReadySeconds": spec.get("minReadySeconds", 0),
                "template": own if name_of(each) == newest else template_in(each, own),
            },
            "status": {
                "observedGeneration": 1,
                "availableReplicas": max(
                    0, ready[name_of(each)] - (lacking if name_of(each) == newest else 0)
                ),
            },
        }
        for each in revisions
    ]


def template_in(revision: JsonObject, own: Mapping[str, Any]) -> JsonObject:
    """Return the pod template that a revision keeps, as the API server would return it.

    Its controller may have written one of long ago with an empty time of creation, which newer versions leave
    out: it is there where the StatefulSet's own template has it.
    """
    kept = section(revision, "data", "spec", "template")
    kept.pop(WHOLE, None)
    metadata = section(kept, "metadata")
    metadata.pop("creationTimestamp", None)
    if "creationTimestamp" in section(own, "metadata"):
        metadata["creationTimestamp"] = None
    return {**kept, "metadata": metadata}


def ordinal_of(pod: Mapping[str, Any], body: Mapping[str, Any]) -> int | None:
    """Return a pod's place in its StatefulSet, from 0 wherever ordinals start; None: its name has none."""
    number = name_of(pod).rpartition("-")[2]
    first = int(section(body, "spec", "ordinals").get("start") or 0)
    return int(number) - first if number.isdecimal() else None


def is_complete(body: JsonObject) -> bool:
    """Return whether the controller of a StatefulSet counts its last rollout as complete."""
    status = section(body, "status")
    return status.get("updateRevision", "") in ("", status.get("currentRevision", ""))


def partition_fields(body: Mapping[str, Any]) -> RolloutFields:
    """Return those fields of a StatefulSet that a frozen rollout changes for a while.

    Its strategy has neither a surge nor a pause: a partition above all replicas counts as one.
    """
    spec = section(body, "spec")
    strategy = section(spec, "updateStrategy")
    partition = int(section(strategy, "rollingUpdate").get("partition") or 0)
    kind = str(strategy.get("type", ROLLING))
    return RolloutFields(
        paused=partition == FROZEN_PARTITION,
        max_surge=0,
        max_unavailable=section(strategy, "rollingUpdate").get("maxUnavailable", 1),
        min_ready_seconds=int(spec.get("minReadySeconds", 0)),
        progress_deadline_seconds=None,
        strategy=kind,
        partition=partition,
        permits=kind == ON_DELETE and PERMIT in annotations_of(body),
    )


def partition_operations(live: JsonObject, fields: RolloutFields) -> tuple[PatchOperation, ...]:
    """Return the operations that give a StatefulSet these fields; nothing else of its strategy is changed."""
    spec = section(live, "spec")
    rolling = {
        key: each
        for key, each in section(spec, "updateStrategy", "rollingUpdate").items()
        if key != "maxUnavailable"
    }
    if fields.max_unavailable != 1:
        rolling["maxUnavailable"] = fields.max_unavailable
    strategy: dict[str, Any] = {"type": fields.strategy}
    if fields.strategy == ROLLING:
        strategy["rollingUpdate"] = {**rolling, "partition": fields.partition or 0}
    return (PatchOperation("add", "/spec/updateStrategy", strategy), *permit_operations(live, fields))


def permit_operations(live: JsonObject, fields: RolloutFields) -> tuple[PatchOperation, ...]:
    """Return the operations by which a workload bears the mark of a permit exactly while one stands."""
    marks = annotations_of(live)
    if fields.permits and marks:
        return (PatchOperation("add", path_of(ANNOTATIONS, PERMIT), "true"),)
    if fields.permits:
        return (PatchOperation("add", ANNOTATIONS, {PERMIT: "true"}),)
    return (PatchOperation("remove", path_of(ANNOTATIONS, PERMIT)),) if PERMIT in marks else ()
