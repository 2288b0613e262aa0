"""Pods that are released from their ReplicaSet to be drained: how they are found, and the writes on them.

Each write is one JSON patch that tests the pod's uid and the labels that it changes. A pod is ours only
where its note, its label and a reference to the Deployment as an owner say so together. That owner is no
controller: by it the pod goes with the Deployment, and tools that prune see that it belongs to something.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, assert_never

from kvmedic.cluster.ownership import (
    ANNOTATIONS,
    CORDONED_FOR,
    DELETION_COST,
    LABELS,
    RELEASED,
    STAND_IN_COST,
    path_of,
    same_object,
)
from kvmedic.kube.errors import Call, Conflict
from kvmedic.kube.objects import (
    PODS,
    JsonObject,
    Preconditions,
    Ref,
    annotations_of,
    controller_uid,
    is_finished,
    items,
    labels_of,
    moment,
    note_on,
    section,
    uid_of,
)
from kvmedic.model.edits import PatchOperation
from kvmedic.model.fleet import POD_TEMPLATE_HASH, Cordoned, Fleet, Pod
from kvmedic.rollout.moves import AdoptPod, CordonOrphan, MarkStandIn, OrphanMove, ReleasePod
from kvmedic.rollout.orphan_drain import LONGEST_DRAIN, RELEASED_HASH, draining_value

if TYPE_CHECKING:
    from kvmedic.kube.client import Client

OWNERS = "/metadata/ownerReferences"


async def move_orphan(client: Client, fleet: Fleet, move: OrphanMove) -> None:
    """Carry out one move on a pod that is released, was, or stands in for one; repeating it changes nothing.

    Raises:
        Conflict: the pod is not what was looked at.
    """
    match move:
        case ReleasePod(pod):
            await release(client, fleet, pod, dry_run=False)
        case AdoptPod(orphan):
            await _put_back(client, fleet, orphan.pod)
        case MarkStandIn(pod):
            await _mark_stand_in(client, fleet, pod)
        case CordonOrphan(orphan, keys, linger):
            live = await _read_pod(client, Ref(PODS, fleet.namespace, orphan.pod.name), orphan.pod.uid)
            await cordon_orphan(client, live, keys, linger)
        case _:
            assert_never(move)


async def release(client: Client, fleet: Fleet, pod: Pod, *, dry_run: bool) -> None:
    """Have the ReplicaSet let go of a pod; a dry run asks the API server whether both patches may be made.

    Dying after it leaves a replica that serves, and one more that is started. Its labels are changed only
    later, and in one patch with the deadline at which the kubelet ends it.
    """
    ref = Ref(PODS, fleet.namespace, pod.name)
    live = await _read_pod(client, ref, pod.uid)
    labels, marks = labels_of(live), annotations_of(live)
    own = labels.get(POD_TEMPLATE_HASH, "")
    if RELEASED in marks or not own:
        raise Conflict(Call("patch", ref.path), None, "it was released already")
    keys = fleet.rotation.orphan.keys if fleet.rotation.orphan else ()
    note = {
        "replicaSet": next((str(each.get("name")) for each in _owners(live) if each.get("controller")), ""),
        "deployment": fleet.uid,
        "labels": {key: labels.get(key) for key in (POD_TEMPLATE_HASH, *keys)},
        "keys": list(keys),
    }
    owner = {"apiVersion": "apps/v1", "kind": "Deployment", "name": fleet.name, "uid": fleet.uid}
    operations = [
        same_object(pod.uid),
        PatchOperation("test", "/metadata/deletionTimestamp", None),
        PatchOperation("test", path_of(LABELS, POD_TEMPLATE_HASH), own),
        PatchOperation("replace", path_of(LABELS, POD_TEMPLATE_HASH), f"{RELEASED_HASH}{own}"),
        PatchOperation("add", path_of(LABELS, CORDONED_FOR), fleet.uid),
        *([] if marks else [PatchOperation("add", ANNOTATIONS, {})]),
        PatchOperation("add", path_of(ANNOTATIONS, RELEASED), json.dumps(note)),
        PatchOperation("add", f"{OWNERS}/-", {**owner, "blockOwnerDeletion": False}),
    ]
    await client.json_patch(ref, operations, dry_run=dry_run)
    if dry_run:
        await cordon_orphan(client, live, keys, LONGEST_DRAIN, dry_run=True)


async def _put_back(client: Client, fleet: Fleet, pod: Pod) -> None:
    """Give a pod the hash of its ReplicaSet again, which takes it in within seconds.

    Our label stays until the run ends: by it the reference to the Deployment is found, which goes only once
    the pod has its controller again.
    """
    ref = Ref(PODS, fleet.namespace, pod.name)
    live = await _read_pod(client, ref, pod.uid)
    changed = labels_of(live).get(POD_TEMPLATE_HASH, "")
    if not changed.startswith(RELEASED_HASH):
        raise Conflict(Call("patch", ref.path), None, "it is not released")
    await client.json_patch(
        ref,
        [
            same_object(pod.uid),
            PatchOperation("test", path_of(LABELS, POD_TEMPLATE_HASH), changed),
            PatchOperation(
                "replace", path_of(LABELS, POD_TEMPLATE_HASH), changed.removeprefix(RELEASED_HASH)
            ),
            PatchOperation("remove", path_of(ANNOTATIONS, RELEASED)),
        ],
    )


async def _mark_stand_in(client: Client, fleet: Fleet, pod: Pod) -> None:
    """Make a pod the first of its ReplicaSet to go, of those that are as Ready as it is."""
    ref = Ref(PODS, fleet.namespace, pod.name)
    live = await _read_pod(client, ref, pod.uid)
    await client.json_patch(
        ref,
        [
            same_object(pod.uid),
            PatchOperation("add", path_of(LABELS, CORDONED_FOR), fleet.uid),
            *([] if annotations_of(live) else [PatchOperation("add", ANNOTATIONS, {})]),
            PatchOperation("add", path_of(ANNOTATIONS, DELETION_COST), STAND_IN_COST),
        ],
    )


async def cordon_orphan(
    client: Client, live: JsonObject, keys: tuple[str, ...], linger: timedelta, *, dry_run: bool = False
) -> None:
    """Take a released pod out of rotation, and have the kubelet end it after a while, in one patch.

    A deadline may be made shorter and never longer (core/v1 validation), so one that is there stays. Labels
    are changed and never removed: what selects by their absence does not take the pod in.

    Args:
        keys: the labels to change; none: those in its note.
        linger: how long it may go on from now.
    """
    metadata, labels = section(live, "metadata"), labels_of(live)
    ref = Ref(PODS, str(metadata["namespace"]), str(metadata["name"]))
    noted = note_on(live, RELEASED).get("keys")
    chosen = {*keys, *(noted if isinstance(noted, list) else ())} & labels.keys()
    began = section(live, "status").get("startTime") or metadata["creationTimestamp"]
    age = datetime.now(UTC) - moment(began)
    operations = [
        same_object(uid_of(live)),
        *(PatchOperation("test", path_of(LABELS, key), labels[key]) for key in sorted(chosen)),
        *(
            PatchOperation("replace", path_of(LABELS, key), draining_value(uid_of(live)))
            for key in sorted(chosen)
        ),
    ]
    if "activeDeadlineSeconds" not in section(live, "spec"):
        seconds = max(1, int((age + linger).total_seconds()))
        operations.append(PatchOperation("add", "/spec/activeDeadlineSeconds", seconds))
    await client.json_patch(ref, operations, dry_run=dry_run)


async def retire(client: Client, found: Cordoned, live: JsonObject) -> None:
    """See to a released pod that no run drains any more: it leaves rotation, finishes what it has, and goes.

    No operator counts its requests then. The kubelet ends it at its deadline, and it is deleted after that.
    """
    if is_finished(live):
        await client.delete(
            Ref(PODS, found.namespace, found.name), Preconditions(found.uid, found.resource_version)
        )
    elif not is_relabelled(live):
        await cordon_orphan(client, live, (), ABANDONED_LINGER)


ABANDONED_LINGER = timedelta(minutes=11)
"""How long a released pod goes on that no run is about: the usual drain time-out, and a minute."""


def is_released(body: Mapping[str, object], deployment: str) -> bool:
    """Return whether a pod was released from a ReplicaSet of a Deployment, by note, label and owner."""
    owned = any(each.get("uid") == deployment for each in _owners(body))
    return RELEASED in annotations_of(body) and labels_of(body).get(CORDONED_FOR) == deployment and owned


def is_put_back(body: Mapping[str, object], deployment: str) -> bool:
    """Return whether a pod was put back that its ReplicaSet has yet to take in."""
    owned = any(each.get("uid") == deployment for each in _owners(body))
    return owned and RELEASED not in annotations_of(body) and not is_owned(body)


def owned_by_hash(pod: JsonObject, replica_sets: Sequence[JsonObject]) -> JsonObject | None:
    """Return a pod as it is once the ReplicaSet of its hash has taken it in; None where there is none."""
    own = labels_of(pod).get(POD_TEMPLATE_HASH)
    for each in replica_sets:
        if own and labels_of(each).get(POD_TEMPLATE_HASH) == own:
            owner = {"kind": "ReplicaSet", "uid": uid_of(each), "controller": True}
            metadata = {**section(pod, "metadata"), "ownerReferences": [*_owners(pod), owner]}
            return {**pod, "metadata": metadata}
    return None


def is_relabelled(body: Mapping[str, object]) -> bool:
    """Return whether a label of a released pod was changed by which requests were led to it."""
    return draining_value(uid_of(body)) in labels_of(body).values()


def find_unchanged_labels(body: Mapping[str, object], keys: Iterable[str]) -> tuple[str, ...]:
    """Return which labels of a released pod are as they were, of those that are to be changed."""
    labels, changed = labels_of(body), draining_value(uid_of(body))
    return tuple(key for key in keys if labels.get(key) not in (None, changed))


def is_owned(body: Mapping[str, object]) -> bool:
    """Return whether a controller still owns a pod."""
    return bool(controller_uid(body))


def owner_operations(live: JsonObject, deployment: str) -> list[PatchOperation]:
    """Return the operations that take our reference to the Deployment off a pod with a controller."""
    if not is_owned(live):
        return []
    return [
        operation
        for index, each in enumerate(_owners(live))
        if each.get("uid") == deployment and not each.get("controller")
        for operation in (
            PatchOperation("test", f"{OWNERS}/{index}/uid", deployment),
            PatchOperation("remove", f"{OWNERS}/{index}"),
        )
    ]


def _owners(body: Mapping[str, object]) -> list[JsonObject]:
    return items(section(body, "metadata"), "ownerReferences")


async def _read_pod(client: Client, ref: Ref, uid: str) -> JsonObject:
    """Return a pod as it is now, which must be the one that was looked at; the patch tests that again."""
    live = await client.get(ref)
    if live is None or uid_of(live) != uid:
        raise Conflict(Call("patch", ref.path), None, "it is gone, or another took its name")
    return live
