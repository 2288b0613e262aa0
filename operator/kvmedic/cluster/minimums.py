"""The minimum of an autoscaler: read by name, and set by one guarded patch.

A patch tests the object's uid and the very version that was looked at, sets the minimum and marks the
object with the run and the number, in one breath. Whoever looked earlier gets a `Conflict` and has
changed nothing.
"""

from __future__ import annotations

import json

from kvmedic.cluster.bounds import BOUNDS
from kvmedic.cluster.marks import RECORDED, RUN
from kvmedic.cluster.patches import annotating, as_seen, unmarking
from kvmedic.core.edit import PatchOperation
from kvmedic.core.fleet import Fleet, Minimum
from kvmedic.core.moves import SetMinimum
from kvmedic.core.plan import ObjectRef
from kvmedic.kube.client import NOT_FOUND, Client
from kvmedic.kube.errors import Refused
from kvmedic.kube.objects import JsonObject, Ref, annotations_of, section


async def minimum_of(client: Client, namespace: str, holder: ObjectRef) -> Minimum | None:
    """Return an autoscaler's minimum as it is now; None where there is no such object, or no such kind."""
    try:
        body = await client.get(_ref(namespace, holder.kind, holder.name))
    except Refused as error:
        if error.code == NOT_FOUND:
            return None
        raise
    return None if body is None else _minimum(holder, body)


async def set_minimum(client: Client, fleet: Fleet, move: SetMinimum, claim: str) -> None:
    """Give an autoscaler another minimum.

    Dying before the patch changes nothing; dying after it leaves the mark, which has the number that was
    set. Repeating it after it was committed is a conflict: the version that it tests is gone.

    Args:
        client: the API.
        fleet: the fleet whose autoscaler it is.
        move: what to assign.
        claim: the mark's new value.

    Raises:
        Conflict: the object is not what was looked at.
    """
    holder = move.holder
    ref = _ref(fleet.namespace, holder.kind, holder.name)
    live = await client.get(ref) or {}
    bounds = BOUNDS[holder.kind]
    field, notes = bounds.minimum_field, {RUN: claim}
    operations = [*as_seen(holder)]
    if move.is_given:
        operations.append(PatchOperation("add", f"/spec/{field}", move.number))
    elif bounds.is_given(section(live, "spec")):
        operations.append(PatchOperation("remove", f"/spec/{field}"))
    if RECORDED not in annotations_of(live):
        notes[RECORDED] = json.dumps({field: holder.number if holder.is_given else None})
    await client.json_patch(ref, [*operations, *annotating(live, notes)])


async def unmark(client: Client, namespace: str, holder: Minimum) -> None:
    """Remove our annotations from an autoscaler; nothing to do where it has none.

    Raises:
        Conflict: the object is not what was looked at.
    """
    ref = _ref(namespace, holder.kind, holder.name)
    live = await client.get(ref)
    if removals := unmarking(live or {}):
        await client.json_patch(ref, [*as_seen(holder), *removals])


def _minimum(holder: ObjectRef, body: JsonObject) -> Minimum:
    metadata, spec = section(body, "metadata"), section(body, "spec")
    bounds = BOUNDS[holder.kind]
    return Minimum(
        kind=holder.kind,
        name=holder.name,
        uid=str(metadata["uid"]),
        resource_version=str(metadata["resourceVersion"]),
        number=bounds.minimum(spec),
        is_given=bounds.is_given(spec),
        most=bounds.maximum(spec),
        mark=annotations_of(body).get(RUN, ""),
    )


def _ref(namespace: str, kind: str, name: str) -> Ref:
    return Ref(BOUNDS[kind].resource, namespace, name)
