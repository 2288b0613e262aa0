"""A fleet whose replicas all run one template, for looks without a cluster."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from api.records import holding_record
from kvmedic.model.fleet import Fleet, template_hash
from kvmedic.rollout.preconditions import Neighbours
from kvmedic.rollout.spares.room import Finding, Room
from run_builder import a_fleet, a_pod
from worlds.asked import a_resource
from worlds.world import deployment

TEMPLATE = deployment(3)["spec"]["template"]
REVISION = template_hash(TEMPLATE)


@dataclass
class Town:
    """A target and its neighbours, and how often they were asked."""

    neighbours_there: Neighbours
    asked: int = 0
    room: Finding = field(default_factory=lambda: Room(("gpu-1",)))
    measured: int = 0
    """How often the room for a spare was computed."""

    async def neighbours(self, view: Any, step: Any = None) -> Neighbours:
        self.asked += 1
        return self.neighbours_there

    async def room_for(self, view: Any) -> Finding:
        del view
        self.measured += 1
        return self.room


def a_settled_fleet(**changes: Any) -> Fleet:
    fleet = a_fleet()
    pods = tuple(replace(pod, revision=REVISION) for pod in fleet.pods)
    sets = tuple(replace(each, revision=REVISION) for each in fleet.replica_sets)
    return replace(fleet, revision=REVISION, pods=pods, replica_sets=sets, **changes)


HELD = holding_record().temporary[0]
HELD = replace(HELD, step=replace(HELD.step, template=REVISION))
POLICY = a_resource(good=REVISION).policy


def four(**changes: Any) -> Fleet:
    fleet = a_settled_fleet()
    sets = tuple(replace(each, desired=4, available=4) for each in fleet.replica_sets)
    pods = (*fleet.pods, a_pod("z", REVISION))
    return replace(fleet, replicas=4, pods=pods, replica_sets=sets, **changes)
