"""A plan meets the room for its spare before anything is changed."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from kvmedic.controller import reconcile, spares
from kvmedic.controller.blockers import check_ownership
from kvmedic.controller.evidence import Survey
from kvmedic.controller.ports import SurveyInput
from kvmedic.controller.spares import check_spare, needs_spare
from kvmedic.controller.survey import examine
from kvmedic.model.evidence import Blocked
from kvmedic.model.fleet import OrphanDrain, Rotation
from kvmedic.model.plan import Step
from kvmedic.model.reasons import Reason
from kvmedic.model.spec import Policy, Spare
from kvmedic.model.status import ClosedRun, Record
from kvmedic.rollout.preconditions import Neighbours, VerticalAutoscaler
from kvmedic.rollout.spares.room import Finding, NoRoom, Room, RoomUnknown
from kvmedic.runbooks.branches import NoChange
from kvmedic.runbooks.preemption.restore import Fits
from kvmedic.runbooks.workload import View
from lab.scripted.readings import State
from run_builder import BUNDLE, NOW, REPLACE, ROLLBACK, STEP
from worlds.asked import Asked, a_resource
from worlds.settled import TEMPLATE, Town, a_settled_fleet
from worlds.steps import GATE, MINIMUM, TRIAL

FULL = NoRoom("none of 1 node takes it (gpu-1: 8 of 8 nvidia.com/gpu taken)")


def policy(**rollout: Any) -> Policy:
    found = a_resource().policy
    assert found is not None
    return replace(found, rollout=replace(found.rollout, **rollout))


async def looked(
    town: Town,
    spec: Policy | None = None,
    *,
    state: State = State.THRASH,
    record: Record | None = None,
    **fleet: Any,
) -> Survey:
    spec = spec or policy()
    resource = replace(a_resource(), policy=spec, record=record)
    view = View(fleet=a_settled_fleet(**fleet), template=TEMPLATE, templates={})
    metrics: Any = Asked(state)
    here: Any = town
    found = await examine(resource, spec, view, SurveyInput(metrics, metrics))
    return await check_spare(await check_ownership(found, resource, spec, here), resource, spec, here)


def with_room(seen: Finding) -> Town:
    return Town(Neighbours(), room=seen)


async def test_where_there_is_room_nothing_is_said() -> None:
    plain, found = await looked(with_room(Room(("gpu-2",)))), await looked(with_room(Room(("gpu-1",))))

    assert found.blocked is None
    assert found.plan == plain.plan


async def test_no_room_is_said_with_figures_and_a_way_out_and_nothing_begins() -> None:
    found = await looked(with_room(FULL))

    assert found.plan is not None, "it is shown all the same"
    assert isinstance(found.blocked, Blocked)
    assert found.blocked.reason is Reason.NO_ROOM_FOR_SPARE
    assert found.blocked.message.startswith(f"{FULL.message}: free that much, or raise the quota")


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

    assert found.blocked is None
    assert found.plan is not None
    assert said in found.plan.message


BEST_EFFORT, NO_SPARE = policy(spare=Spare.BEST_EFFORT), policy(spare=Spare.NONE)


def carries(monkeypatch: pytest.MonkeyPatch, found: Fits | NoChange) -> None:
    monkeypatch.setattr(spares, "without_one_replica", lambda *_: found)


async def test_with_room_the_best_effort_is_a_spare() -> None:
    found = await looked(with_room(Room(("gpu-1",))), BEST_EFFORT)

    assert (found.blocked, found.may_lack) == (None, 0)


async def test_without_room_it_goes_one_short_where_the_others_carry_the_load(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    carries(monkeypatch, Fits("2 replicas would run 3.0 sequences each"))

    found = await looked(with_room(FULL), BEST_EFFORT)

    assert found.plan is not None
    assert (found.blocked, found.may_lack) == (None, 1)
    assert f"{FULL.message}: the fleet is one replica short" in found.plan.message
    assert found.plan.message.endswith("2 replicas would run 3.0 sequences each")


async def test_a_fleet_that_thrashes_has_no_headroom_and_nothing_is_changed() -> None:
    found = await looked(with_room(FULL), BEST_EFFORT)

    assert isinstance(found.blocked, Blocked)
    assert (found.blocked.reason, found.may_lack) == (Reason.NO_HEADROOM, 0)


@pytest.mark.parametrize("seen", [RoomUnknown("403"), replace(FULL, adds_nodes="Karpenter")])
async def test_where_no_room_is_not_sure_the_best_effort_tries_a_spare_once(
    monkeypatch: pytest.MonkeyPatch, seen: Finding
) -> None:
    carries(monkeypatch, Fits("they do"))
    ended = ClosedRun("1", Reason.FLEET_WIDE_DEMAND, Reason.SPARE_UNSCHEDULABLE, "", (), NOW, NOW)

    first = await looked(with_room(seen), BEST_EFFORT)
    then = await looked(with_room(seen), BEST_EFFORT, record=Record(history=(ended,)))

    assert (first.blocked, first.may_lack) == (None, 0)
    assert (then.blocked, then.may_lack) == (None, 1)


async def test_without_any_spare_nobody_looks_at_the_nodes_or_the_load() -> None:
    town = with_room(FULL)

    found = await looked(town, NO_SPARE)

    assert (found.blocked, found.may_lack, town.measured) == (None, 1, 0)


ORPHAN = replace(a_settled_fleet().rotation, orphan=OrphanDrain(("app",)))


async def test_without_a_label_it_goes_one_short_as_well() -> None:
    found = await looked(with_room(FULL), NO_SPARE, rotation=ORPHAN)

    assert (found.blocked, found.may_lack) == (None, 1)


@pytest.mark.parametrize("spec", [BEST_EFFORT, NO_SPARE], ids=["best effort", "none"])
@pytest.mark.parametrize("rotation", [a_settled_fleet().rotation, ORPHAN], ids=["label", "no label"])
async def test_the_only_replica_needs_the_spare(spec: Policy, rotation: Rotation) -> None:
    known = await looked(with_room(Room(("gpu-1",))), BEST_EFFORT)
    assert known.plan is not None
    alone = (replace(a_settled_fleet().replica_sets[0], desired=1),)
    fleet = replace(known.view.fleet, replicas=1, replica_sets=alone, rotation=rotation)
    view = replace(known.view, fleet=fleet)
    here: Any = with_room(FULL)

    found = await check_spare(replace(known, view=view), replace(a_resource(), policy=spec), spec, here)

    assert isinstance(found.blocked, Blocked)
    assert found.blocked.reason is Reason.SPARE_NEEDED
    assert "nobody serves while the only replica is away" in found.blocked.message


async def test_the_nodes_are_not_looked_at_where_something_else_stands_in_the_way() -> None:
    town = Town(Neighbours(vertical=(VerticalAutoscaler("llm", "Auto"),)), room=FULL)

    found = await looked(town)

    assert found.blocked is not None
    assert found.blocked.reason is not Reason.NO_ROOM_FOR_SPARE
    assert town.measured == 0


async def test_a_calm_fleet_asks_nothing_of_the_nodes() -> None:
    town = with_room(FULL)

    found = await looked(town, state=State.RECOVERED)

    assert (found.plan, found.blocked, town.measured) == (None, None, 0)


class Gates:
    """What a plan goes through before a run is opened, in the order of asking; one may be closed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, closed: str = "") -> None:
        for name in ("find_foreign_claim", "gate", "consent", "pressed_baseline"):
            found = Blocked(Reason.OBSERVE_ONLY, name) if name == closed else None
            monkeypatch.setattr(reconcile, name, self.answering(found))
        self.ports: Any = SimpleNamespace(
            run_limits=SimpleNamespace(hint=self.answering(None)),
            store=SimpleNamespace(finalize=self.answering(None)),
            metrics=None,
        )

    @staticmethod
    def answering(found: Blocked | None) -> Any:
        async def answer(*_: object, **__: object) -> Blocked | None:
            return found

        return answer


@pytest.mark.parametrize(
    ("closed", "asked", "reason"),
    [
        ("gate", 0, Reason.OBSERVE_ONLY),
        ("consent", 0, Reason.OBSERVE_ONLY),
        ("", 1, Reason.NO_ROOM_FOR_SPARE),
    ],
    ids=["Observe, a cooldown, a window", "not approved yet", "every gate is open"],
)
async def test_while_a_plan_waits_for_something_else_nobody_looks_for_room(
    monkeypatch: pytest.MonkeyPatch, closed: str, asked: int, reason: Reason
) -> None:
    town, resource, spec = with_room(FULL), a_resource(), policy()
    view = View(fleet=a_settled_fleet(), template=TEMPLATE, templates={})
    metrics: Any = Asked(State.THRASH)
    found = await examine(resource, spec, view, SurveyInput(metrics, metrics))
    gates = Gates(monkeypatch, closed)
    gates.ports.target = town

    why = await reconcile._begin_run(resource, spec, Record(), found, gates.ports, NOW)

    assert why is not None
    assert (why.reason, town.measured) == (reason, asked)


@pytest.mark.parametrize(
    ("step", "needs"),
    [
        *((each, True) for each in (STEP, BUNDLE, ROLLBACK, REPLACE, MINIMUM)),
        *((each, False) for each in (replace(MINIMUM, before=4, after=2), TRIAL, GATE)),
    ],
)
def test_a_step_needs_a_spare_where_it_makes_one_pod_more(step: Step, needs: bool) -> None:
    fleet = a_settled_fleet()

    assert fleet.total_desired == fleet.replicas
    assert needs_spare(step, fleet) is needs


@pytest.mark.parametrize("step", [STEP, BUNDLE, ROLLBACK, REPLACE])
def test_a_rollout_that_is_turned_back_has_its_spare_already(step: Step) -> None:
    fleet = a_settled_fleet()
    turned = replace(fleet, replicas=fleet.replicas - 1)

    assert not needs_spare(step, turned)
