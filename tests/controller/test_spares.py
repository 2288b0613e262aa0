"""A plan meets the room for its spare before anything is changed."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from kvmedic.controller.evidence import Survey
from kvmedic.controller.obstacles import check_ownership
from kvmedic.controller.ports import Senses
from kvmedic.controller.spares import check_spare
from kvmedic.controller.survey import examine
from kvmedic.model.evidence import Blocked
from kvmedic.model.reasons import Reason
from kvmedic.model.spec import Policy
from kvmedic.rollout.preconditions import Neighbours, VerticalAutoscaler
from kvmedic.rollout.spares.room import Finding, NoRoom, Room, RoomUnknown
from kvmedic.runbooks.workload import View
from lab.scripted.readings import State
from worlds.asked import Asked, a_resource
from worlds.settled import TEMPLATE, Town, a_settled_fleet

FULL = NoRoom("none of 1 node takes it (gpu-1: 8 of 8 nvidia.com/gpu taken)")


def policy(**rollout: Any) -> Policy:
    found = a_resource().policy
    assert found is not None
    return replace(found, rollout=replace(found.rollout, **rollout))


async def looked(town: Town, spec: Policy | None = None, *, state: State = State.THRASH) -> Survey:
    spec = spec or policy()
    resource = replace(a_resource(), policy=spec)
    view = View(fleet=a_settled_fleet(), template=TEMPLATE, templates={})
    metrics: Any = Asked(state)
    here: Any = town
    found = await examine(resource, spec, view, Senses(metrics, metrics))
    return await check_spare(await check_ownership(found, resource, spec, here), spec, here)


def with_room(seen: Finding) -> Town:
    return Town(Neighbours(), room=seen)


async def test_where_there_is_room_nothing_is_said() -> None:
    plain, found = await looked(with_room(Room(("gpu-2",)))), await looked(with_room(Room(("gpu-1",))))

    assert found.obstacle is None
    assert found.plan == plain.plan


async def test_no_room_is_said_with_figures_and_a_way_out_and_nothing_begins() -> None:
    found = await looked(with_room(FULL))

    assert found.plan is not None, "it is shown all the same"
    assert isinstance(found.obstacle, Blocked)
    assert found.obstacle.reason is Reason.NO_ROOM_FOR_SPARE
    assert found.obstacle.message.startswith(f"{FULL.message}: free that much, or raise the quota")


@pytest.mark.parametrize(
    ("seen", "spec", "said"),
    [
        (RoomUnknown("403"), {}, "whether a spare finds a place is not known (403); it is tried"),
        (replace(FULL, adds_nodes="Karpenter"), {}, "Karpenter may add a node, so the spare waits"),
        (FULL, {"spare_limit": timedelta(minutes=15)}, "spec.rollout.spareLimit is set, so the spare waits"),
    ],
    ids=["not known", "an autoscaler", "the team says so"],
)
async def test_where_no_room_is_not_sure_the_spare_is_tried(seen: Finding, spec: Any, said: str) -> None:
    found = await looked(with_room(seen), policy(**spec))

    assert found.obstacle is None
    assert found.plan is not None
    assert said in found.plan.message


async def test_the_nodes_are_not_looked_at_where_something_else_stands_in_the_way() -> None:
    town = Town(Neighbours(vertical=(VerticalAutoscaler("llm", "Auto"),)), room=FULL)

    found = await looked(town)

    assert found.obstacle is not None
    assert found.obstacle.reason is not Reason.NO_ROOM_FOR_SPARE
    assert town.measured == 0


async def test_a_calm_fleet_asks_nothing_of_the_nodes() -> None:
    town = with_room(FULL)

    found = await looked(town, state=State.RECOVERED)

    assert (found.plan, found.obstacle, town.measured) == (None, None, 0)
