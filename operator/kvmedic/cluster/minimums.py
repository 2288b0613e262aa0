"""The minimum of an autoscaler: read by name, and set by one guarded patch.

A patch tests the object's uid and the very version that was looked at, sets the minimum and marks the
object with the run and the number, in one breath. Whoever looked earlier gets a `Conflict` and has
changed nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from kvmedic.cluster.marks import PREFIX, RECORDED, RUN
from kvmedic.cluster.neighbours import HPA_MINIMUM, KEDA_MAXIMUM, KEDA_MINIMUM, SCALED_OBJECTS
from kvmedic.core.edit import PatchOperation
from kvmedic.core.fleet import Fleet, Minimum
from kvmedic.core.moves import SetMinimum
from kvmedic.core.plan import ObjectRef
from kvmedic.kube.client import NOT_FOUND, Client
from kvmedic.kube.errors import Refused
from kvmedic.kube.objects import AUTOSCALERS, JsonObject, Ref, Resource, annotations_of, section

HPA, SCALED_OBJECT = "HorizontalPodAutoscaler", "ScaledObject"
KINDS: Mapping[str, Resource] = MappingProxyType({HPA: AUTOSCALERS, SCALED_OBJECT: SCALED_OBJECTS})
FIELDS = MappingProxyType(
    {HPA: ("minReplicas", "maxReplicas"), SCALED_OBJECT: ("minReplicaCount", "maxReplicaCount")}
)
"""Where each kind has its fewest and most replicas (autoscaling/v2, KEDA 2.21)."""
DEFAULTS = MappingProxyType({HPA: (HPA_MINIMUM, HPA_MINIMUM), SCALED_OBJECT: (KEDA_MINIMUM, KEDA_MAXIMUM)})


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
    live = await client.get(ref)
    field = FIELDS[holder.kind][0]
    path = f"/spec/{field}"
    operations = [*_guards(holder)]
    if move.is_given:
        operations.append(PatchOperation("add", path, move.number))
    elif field in section(live or {}, "spec"):
        operations.append(PatchOperation("remove", path))
    if not annotations_of(live or {}):
        operations.append(PatchOperation("add", "/metadata/annotations", {}))
    operations.append(PatchOperation("add", _annotation(RUN), claim))
    if RECORDED not in annotations_of(live or {}):
        before = holder.number if holder.is_given else None
        operations.append(PatchOperation("add", _annotation(RECORDED), json.dumps({field: before})))
    await client.json_patch(ref, operations)


async def unmark(client: Client, namespace: str, holder: Minimum) -> None:
    """Remove our annotations from an autoscaler; nothing to do where it has none.

    Raises:
        Conflict: the object is not what was looked at.
    """
    ref = _ref(namespace, holder.kind, holder.name)
    live = await client.get(ref)
    ours = [] if live is None else [name for name in annotations_of(live) if name.startswith(PREFIX)]
    if ours:
        removals = [PatchOperation("remove", _annotation(name)) for name in sorted(ours)]
        await client.json_patch(ref, [*_guards(holder), *removals])


def _minimum(holder: ObjectRef, body: JsonObject) -> Minimum:
    metadata, spec = section(body, "metadata"), section(body, "spec")
    least, most = FIELDS[holder.kind]
    return Minimum(
        kind=holder.kind,
        name=holder.name,
        uid=str(metadata["uid"]),
        resource_version=str(metadata["resourceVersion"]),
        number=_count(spec, least, DEFAULTS[holder.kind][0]),
        is_given=least in spec,
        most=_count(spec, most, DEFAULTS[holder.kind][1]),
        mark=annotations_of(body).get(RUN, ""),
    )


def _count(spec: Mapping[str, Any], field: str, default: int) -> int:
    return int(spec.get(field, default))


def _guards(holder: Minimum) -> tuple[PatchOperation, ...]:
    return (
        PatchOperation("test", "/metadata/uid", holder.uid),
        PatchOperation("test", "/metadata/resourceVersion", holder.resource_version),
    )


def _annotation(name: str) -> str:
    """Return the path of an annotation (RFC 6901: a slash in a name is written ~1)."""
    return f"/metadata/annotations/{name.replace('~', '~0').replace('/', '~1')}"


def _ref(namespace: str, kind: str, name: str) -> Ref:
    return Ref(KINDS[kind], namespace, name)
