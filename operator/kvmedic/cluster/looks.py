"""Looks at a target: a whole one, and a quick look that costs the API server nothing.

A quick look is made of what watches keep, and anew only where something of that changed. It decides whether a
fleet is calm, and no more: before anything is decided on, let alone changed, the fleet is read from the API
server.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING

from kvmedic.cluster.config_maps import config_maps_of
from kvmedic.cluster.fronts import INFERENCE_POOLS, Depth, DrainWay, complete_drain
from kvmedic.cluster.neighbours.appliers import neighbours_of
from kvmedic.cluster.neighbours.autoscalers import SCALED_OBJECTS, VERTICAL_AUTOSCALERS
from kvmedic.cluster.neighbours.pod_policies import DISRUPTION_BUDGETS, NETWORK_POLICIES
from kvmedic.cluster.node_inventory import SURROUNDINGS_LAST, SharedSurroundings, room_for
from kvmedic.cluster.ownership import with_ownership
from kvmedic.cluster.snapshot import snapshot
from kvmedic.kube.clock import loop_seconds
from kvmedic.kube.cpu import in_thread
from kvmedic.kube.objects import (
    AUTOSCALERS,
    CONTROLLER_REVISIONS,
    ENDPOINT_SLICES,
    NODES,
    PODS,
    QUOTAS,
    REPLICA_SETS,
    SERVICES,
    WORKLOADS,
    JsonObject,
    items,
    section,
    without_bookkeeping,
)
from kvmedic.kube.packing import Packed, Packer
from kvmedic.kube.watches import Asked, Recording, Watched, Watches
from kvmedic.model.config_edits import find_previous
from kvmedic.model.evidence import Blocked
from kvmedic.model.fleet import ObjectRef
from kvmedic.model.spec import Policy, TargetRef
from kvmedic.rollout.preconditions import Neighbours
from kvmedic.rollout.spares.room import Finding
from kvmedic.runbooks.workload import EngineLine, View

if TYPE_CHECKING:
    from kvmedic.kube.client import Reader


async def read_target(
    reader: Reader, namespace: str, policy: Policy, depth: Depth = Depth.WHOLE
) -> View | None:
    """Return a target as its objects say it is, or None when there is no such Deployment."""
    rollout = policy.rollout
    drain = DrainWay(rollout.rotation, rollout.routers, depth)
    seen = await snapshot(reader, namespace, policy.target, rollout.rotation_label, drain)
    if seen is None:
        return None
    seen = seen.with_fleet(replace(seen.fleet, owner=with_ownership(seen.fleet.owner, policy.ownership)))
    lines = await in_thread(_read_lines, seen, policy.target)
    maps = await config_maps_of(reader, namespace, lines)
    if not maps:
        return seen
    view = replace(seen, config_maps=maps)
    await in_thread(_read_lines, view, policy.target)
    return view


def _read_lines(view: View, target: TargetRef) -> list[EngineLine | Blocked]:
    """Return the command lines of a target now and before its last change, which the view keeps.

    Tenants wrote them: they are read in a thread, and the loop goes on meanwhile.
    """
    earlier = find_previous(view.fleet)
    sets = ("", *([earlier.name] if earlier and earlier.name in view.templates else []))
    return [view.engine_line(target, each) for each in sets]


@dataclass(slots=True)
class TargetSurroundings:
    """What is around a target, as a reader has it."""

    reader: Reader
    _shared: SharedSurroundings = field(init=False)

    def __post_init__(self) -> None:
        self._shared = SharedSurroundings(self.reader, SURROUNDINGS_LAST)

    async def with_drain(self, view: View, policy: Policy) -> View:
        """Return a target with all that draining depends on, where only a quick look was taken."""
        return await complete_drain(self.reader, view, policy.rollout.routers)

    async def room_around(self, view: View) -> Finding:
        """Return whether one pod more of the target finds a place now."""
        return await room_for(self.reader, view.fleet, view.template, self._shared)

    async def neighbours_around(self, view: View) -> Neighbours:
        """Return who else has a say in a target's replicas and pods."""
        return await neighbours_of(self.reader, view.fleet, view.template)


OF_CONTAINERS = frozenset(
    {
        "volumeMounts",
        "livenessProbe",
        "readinessProbe",
        "startupProbe",
        "lifecycle",
        "securityContext",
        "terminationMessagePath",
        "terminationMessagePolicy",
    }
)
"""Fields of a pod's containers that no look reads."""


def watched_kinds() -> tuple[Watched, ...]:
    """Return what is watched for quick looks."""
    return (
        *(Watched(each, _keep_all) for each in WORKLOADS.values()),
        *(Watched(each, without_bookkeeping) for each in (REPLICA_SETS, CONTROLLER_REVISIONS, SERVICES)),
        *(Watched(each, without_bookkeeping) for each in (ENDPOINT_SLICES, AUTOSCALERS, DISRUPTION_BUDGETS)),
        *(Watched(each, without_bookkeeping) for each in (QUOTAS, NETWORK_POLICIES, *INFERENCE_POOLS)),
        # Most clusters lack these, which a watch finds out once for all fleets.
        *(Watched(each, without_bookkeeping) for each in (SCALED_OBJECTS, VERTICAL_AUTOSCALERS)),
        Watched(PODS, _light_pod, is_shared=True),
        Watched(NODES, without_bookkeeping, clusterwide=True),
    )


def _keep_all(body: JsonObject) -> JsonObject:
    """Return a workload: who edited which of its fields counts."""
    return body


def _light_pod(body: JsonObject) -> JsonObject:
    spec = section(body, "spec")
    for kind in ("containers", "initContainers"):
        if kind in spec:
            spec[kind] = [_without(each, OF_CONTAINERS) for each in items(spec, kind)]
    spec["volumes"] = [each for each in items(spec, "volumes") if "persistentVolumeClaim" in each]
    return {**without_bookkeeping(body), "spec": spec}


def _without(body: JsonObject, fields: frozenset[str]) -> JsonObject:
    return {key: value for key, value in body.items() if key not in fields}


UNUSED_FOR = timedelta(hours=1)
"""After which a quick look that nobody asked for again is forgotten."""


@dataclass(frozen=True, slots=True)
class _QuickLook:
    packed: Packed
    """By what it was made, and the view."""
    asked: Sequence[Asked]
    used_at: float


@dataclass(slots=True)
class QuickLooks:
    """The last quick look at each fleet, packed: thousands are calm, and each is looked at every 30 s."""

    watches: Watches
    _last: dict[tuple[str, ObjectRef], _QuickLook] = field(default_factory=dict)
    """In the order in which they were asked for."""
    _packer: Packer = field(default_factory=Packer)

    async def at(self, namespace: str, policy: Policy) -> View | None:
        """Return a fleet without what only draining depends on; None when there is no such workload."""
        where, now = (namespace, ObjectRef(policy.target.kind, policy.target.name)), loop_seconds()
        last = self._last.pop(where, None)
        last = self._unchanged_look(last) if last is not None else None
        # On the loop: in a thread it would keep Python to itself as well, as pickle is written in C, and each
        # calm fleet would wait there behind what another tenant wrote. 390 words take 4 ms, 4,000 escapes
        # 7 to 37.
        made_by, view = last.packed.object() if last is not None else (None, None)
        if last is None or made_by != policy:
            reader = Recording(self.watches)
            view = await read_target(reader, namespace, policy, Depth.QUICK)
            if view is None or not reader.is_whole:
                return view
            packed = await in_thread(self._packer.pack_object, (policy, view))
            last = _QuickLook(packed, reader.asked, now)
        self._last[where] = replace(last, used_at=now)
        oldest = next(iter(self._last))
        if now - self._last[oldest].used_at > UNUSED_FOR.total_seconds():
            del self._last[oldest]
        return view

    def _unchanged_look(self, last: _QuickLook) -> _QuickLook | None:
        """Return a quick look while what it was made of is the same."""
        asked = [self.watches.ask_again(each) for each in last.asked]
        same = all(now.versions == then.versions for now, then in zip(asked, last.asked, strict=True))
        return replace(last, asked=asked) if same else None
