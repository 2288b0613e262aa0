"""Effects on a pod: out of rotation, back into it, and gone. Each is one write on the pod's own version.

A process that looked at a pod before anything about it changed gets a `Conflict` and has changed nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, assert_never

from kvmedic.cluster.orphan_pods import move_orphan, owner_operations, retire
from kvmedic.cluster.ownership import (
    ANNOTATIONS,
    CORDON_COST,
    CORDONED,
    CORDONED_FOR,
    DELETION_COST,
    LABELS,
    RELEASED,
    STAND_IN_COST,
    guard_version,
    path_of,
)
from kvmedic.cluster.stateful.relabelling import LABEL_VALUE, relabel_operations, return_operations
from kvmedic.kube.errors import Call, Conflict
from kvmedic.kube.objects import (
    PODS,
    REPLICA_SETS,
    WORKLOADS,
    JsonObject,
    Preconditions,
    Ref,
    annotations_of,
    items,
    labels_of,
    note_on,
    pod_template,
    section,
    uid_of,
)
from kvmedic.model.edits import PatchOperation
from kvmedic.model.fleet import Cordoned, Fleet, Pod
from kvmedic.rollout.moves import (
    AdoptPod,
    Cordon,
    CordonOrphan,
    DeletePod,
    MarkStandIn,
    PodMove,
    ReleasePod,
    Uncordon,
)

if TYPE_CHECKING:
    from kvmedic.kube.client import Client

_COST, _COST_LIMIT = re.compile("-?[1-9][0-9]{0,9}|0"), 2**31
"""A deletion cost: 32 bits, no plus, no leading zeros (core/v1, GetDeletionCostFromPodAnnotations)."""


async def move_pod(client: Client, fleet: Fleet, move: PodMove) -> None:
    """Carry out one move on a pod of a fleet as it was looked at.

    A pod is deleted with its own grace period; one that is gone already is a success.

    Raises:
        Conflict: the pod changed since it was looked at, is gone, or another took its name.
    """
    match move:
        case Cordon(pod):
            await cordon(client, fleet, pod)
        case Uncordon(pod):
            await uncordon(client, fleet, pod)
        case DeletePod(pod):
            ref = Ref(PODS, fleet.namespace, pod.name)
            await client.delete(ref, Preconditions(pod.uid, pod.resource_version))
        case ReleasePod() | AdoptPod() | MarkStandIn() | CordonOrphan():
            await move_orphan(client, fleet, move)
        case _:
            assert_never(move)


async def cordon(client: Client, fleet: Fleet, pod: Pod) -> None:
    """Take a pod out of rotation and make it the first to go, in one patch.

    Once EndpointSlices show the label, the ReplicaSet's controller knows the cost too, because it
    came with the same version of the pod. What the pod had before is kept in an annotation on it;
    cordoning again changes nothing about that, unless nobody can read it.

    Raises:
        Conflict: the pod changed since it was looked at, or is gone.
    """
    ref = Ref(PODS, fleet.namespace, pod.name)
    live = await _read_unchanged(client, ref, pod.resource_version)
    if fleet.rotation.relabel is not None:
        changes = relabel_operations(live, fleet.rotation.relabel.keys, fleet.uid)
        await client.json_patch(ref, [*guard_version(pod), *changes])
        return
    marks, label = annotations_of(live), fleet.rotation.label
    noted = _note_in(live) or {"label": labels_of(live).get(label), "cost": marks.get(DELETION_COST)}
    before = {"label": noted["label"], "cost": noted["cost"]}
    note = {**before, "key": label, "draining": fleet.rotation.draining, "deployment": fleet.uid}
    operations = [
        *guard_version(pod),
        # A pod may have neither map.
        *([] if labels_of(live) else [PatchOperation("add", LABELS, {})]),
        *([] if marks else [PatchOperation("add", ANNOTATIONS, {})]),
        PatchOperation("add", path_of(LABELS, label), fleet.rotation.draining),
        PatchOperation("add", path_of(LABELS, CORDONED_FOR), fleet.uid),
        PatchOperation("add", path_of(ANNOTATIONS, DELETION_COST), CORDON_COST),
        PatchOperation("add", path_of(ANNOTATIONS, CORDONED), json.dumps(note)),
    ]
    await client.json_patch(ref, operations)


async def uncordon(client: Client, fleet: Fleet, pod: Pod) -> None:
    """Put a pod back into rotation: with the pod template's label, and the deletion cost that it had.

    Its own note is not believed about the label: every Service in front selects the template's value, and
    any other keeps the pod out. A cost that no pod can have, or that is ours, is none. Uncordoning a pod
    that carries no mark of ours changes nothing.

    Raises:
        Conflict: the pod changed since it was looked at, or is gone.
    """
    ref = Ref(PODS, fleet.namespace, pod.name)
    live = await _read_unchanged(client, ref, pod.resource_version)
    marks = annotations_of(live)
    if not pod.cordoned and CORDONED not in marks:
        return
    workload = await client.get(Ref(WORKLOADS[fleet.kind], fleet.namespace, fleet.name)) or {}
    own = labels_of(pod_template(workload))
    note, label = _note_in(live) or {}, fleet.rotation.label
    back = return_operations(live, fleet.uid, own)
    operations = [
        *guard_version(pod),
        *(back or _mark_operation(labels_of(live), LABELS, label, own.get(label))),
        *_mark_operation(labels_of(live), LABELS, CORDONED_FOR, None),
        *_mark_operation(marks, ANNOTATIONS, DELETION_COST, _deletion_cost(note.get("cost"))),
        *_mark_operation(marks, ANNOTATIONS, CORDONED, None),
    ]
    await client.json_patch(ref, operations)


async def find_cordoned_pods(client: Client, namespace: str, selector: str = "") -> tuple[Cordoned, ...]:
    """Return the pods that a note of ours says are cordoned, under any owner; an empty namespace means all.

    Args:
        selector: `CORDONED_FOR` asks the API server for the marked ones alone.
    """
    found: list[Cordoned] = []
    for pod in await client.list(PODS, namespace, selector):
        metadata, noted = section(pod, "metadata"), (_note_in(pod) or {}).get("deployment")
        uid = noted if isinstance(noted, str) else labels_of(pod).get(CORDONED_FOR, "")
        if uid and "deletionTimestamp" not in metadata:
            version = metadata["resourceVersion"]
            found.append(Cordoned(metadata["namespace"], metadata["name"], uid_of(pod), version, uid))
    return tuple(found)


async def free(client: Client, found: Cordoned) -> None:
    """Put a pod back into rotation that no fleet has any more: what we set of it becomes what it was.

    What somebody else set meanwhile stays. Its label is the one that its ReplicaSet makes pods with, where
    it still has one. One that was released from it goes instead, once it had time to finish its requests.

    Raises:
        Conflict: the pod changed since it was looked at, or is gone.
    """
    ref = Ref(PODS, found.namespace, found.name)
    live = await _read_unchanged(client, ref, found.resource_version)
    labels, marks = labels_of(live), annotations_of(live)
    if RELEASED in marks:
        await retire(client, found, live)
        return
    note = _note_in(live) or {}
    key = str(note.get("key", ""))
    operations = [*guard_version(found)]
    if key and labels.get(key) == note.get("draining"):
        operations += _mark_operation(labels, LABELS, key, await _label_before(client, live, note, key))
    if marks.get(DELETION_COST) in (CORDON_COST, STAND_IN_COST):
        operations += _mark_operation(marks, ANNOTATIONS, DELETION_COST, _deletion_cost(note.get("cost")))
    operations += _mark_operation(marks, ANNOTATIONS, CORDONED, None)
    operations += _mark_operation(labels, LABELS, CORDONED_FOR, None)
    operations += owner_operations(live, found.deployment)
    operations += return_operations(live, found.deployment)
    await client.json_patch(ref, operations)


async def _label_before(client: Client, pod: JsonObject, note: Mapping[str, object], key: str) -> str | None:
    """Return the value of a label on a pod that was never cordoned: its ReplicaSet's, else the noted one."""
    owners = (each for each in items(section(pod, "metadata"), "ownerReferences") if each.get("controller"))
    name = next((str(each.get("name")) for each in owners if each.get("kind") == "ReplicaSet"), "")
    namespace = str(section(pod, "metadata")["namespace"])
    owner = await client.get(Ref(REPLICA_SETS, namespace, name)) if name else None
    noted = note.get("label")
    if owner is not None:
        return section(owner, "spec", "template", "metadata", "labels").get(key)
    return noted if isinstance(noted, str) and LABEL_VALUE.fullmatch(noted) else None


async def confirm(client: Client, fleet: Fleet, names: Collection[str]) -> None:
    """Make sure that the replicas which are to go are still what they were, right before they are let go.

    It took a while to see their drains end. Had one gone meanwhile, or become Ready beside a peer that is
    not, the controller would take that peer.

    Raises:
        Conflict: one changed since it was looked at, is gone or goes already.
    """
    for pod in fleet.pods:
        if pod.name in names:
            await _read_unchanged(client, Ref(PODS, fleet.namespace, pod.name), pod.resource_version)


async def _read_unchanged(client: Client, ref: Ref, resource_version: str) -> JsonObject:
    """Return the pod as it is now, which must be as it was looked at; the patch tests the same again."""
    live = await client.get(ref)
    if live is None or section(live, "metadata").get("resourceVersion") != resource_version:
        raise Conflict(Call("patch", ref.path), None, "it changed since it was looked at")
    return live


def _note_in(pod: JsonObject) -> Mapping[str, object] | None:
    """Return what a pod's note says of the time before; None where there is none that can be read."""
    before = note_on(pod, CORDONED)
    return before if {"label", "cost"} <= before.keys() else None


def _deletion_cost(noted: object) -> str | None:
    """Return a deletion cost as the API server takes it; None where it is none, or only ours."""
    if not isinstance(noted, str) or not _COST.fullmatch(noted) or noted in (CORDON_COST, STAND_IN_COST):
        return None
    return noted if -_COST_LIMIT <= int(noted) < _COST_LIMIT else None


def _mark_operation(
    seen: Mapping[str, str], parent: str, name: str, value: str | None
) -> list[PatchOperation]:
    """Return the operation that gives a label or annotation its value, or takes it away."""
    if value is None:
        return [PatchOperation("remove", path_of(parent, name))] if name in seen else []
    return [PatchOperation("add", path_of(parent, name), value)]
