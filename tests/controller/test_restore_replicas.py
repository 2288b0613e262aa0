"""What is held for a while, from look to look: asked when due, noted, forgotten, rerouted. No cluster."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from kvmedic.controller.blockers import check_ownership
from kvmedic.controller.evidence import Survey
from kvmedic.controller.ports import SurveyInput
from kvmedic.controller.survey import survey
from kvmedic.controller.temporary import note_temporary, why_not_restored, with_holder
from kvmedic.model.evidence import EVERY_SIGNAL
from kvmedic.model.fleet import Fleet, Minimum, ObjectRef, Owner
from kvmedic.model.plan import Goal, MinimumHolder, ReplicasStep
from kvmedic.model.reasons import Reason
from kvmedic.model.spec import Mode, Objectives, ScaleBound
from kvmedic.model.status import Record, Resource, TemporaryChange
from kvmedic.record.events import notes
from kvmedic.record.surveys import REFRESH
from kvmedic.rollout.preconditions import Autoscaler, Neighbours
from kvmedic.runbooks.branches import NoChange
from kvmedic.runbooks.workload import View
from lab.scripted.readings import State
from run_builder import NOW
from worlds.asked import Asked, a_resource
from worlds.settled import HELD, POLICY, REVISION, TEMPLATE, Town, a_settled_fleet, four

ALLOWED = ScaleBound(most=6, step=1, restore_after=timedelta(hours=1))
HPA = Autoscaler("HorizontalPodAutoscaler", "llm", 3, 8, uid="hpa-1")
AN_HOUR_AND_MORE = timedelta(hours=1, seconds=1)


def resource_with(
    held: TemporaryChange | None, bound: ScaleBound | None = ALLOWED, **policy: Any
) -> Resource:
    resource = a_resource(good=REVISION)
    assert resource.record is not None
    record = replace(resource.record, temporary=(held,) if held else ())
    return replace(resource, record=record, policy=replace(resource.policy, scale_out=bound, **policy))


async def looked(
    state: State, held: TemporaryChange | None = HELD, fleet: Fleet | None = None, **policy: Any
) -> tuple[Survey, Asked]:
    resource, metrics = resource_with(held, **policy), Asked(state)
    view: Any = View(fleet=fleet or four(), template=TEMPLATE)
    return await survey(resource, resource.policy, view, SurveyInput(metrics, metrics, NOW)), metrics


async def test_a_calm_fleet_is_asked_whether_fewer_do_once_it_is_due() -> None:
    due, asked = await looked(State.IDLE)
    early, quick = await looked(State.IDLE, replace(HELD, calm_since=NOW - timedelta(minutes=59)))

    assert [look.signals for look in asked.looks][-1] == EVERY_SIGNAL
    assert due.plan.steps == (
        ReplicasStep(HELD.step.target, HELD.step.container, 4, 3, REVISION, Reason.REPLICAS_GIVEN_BACK),
    )
    assert (due.goal, due.blocked) == (Goal.CALM, None)
    assert due.baseline(Objectives()) is None, "an idle fleet has no figures, and needs none"
    assert (early.plan, early.outlook, len(quick.looks)) == (None, "", 1)


async def test_a_load_that_did_not_fall_keeps_them_and_is_reported() -> None:
    found, _ = await looked(State.RECOVERED)

    assert found.plan is None
    assert found.outlook == "60 requests wait on 4 replicas"


@pytest.mark.parametrize("state", [State.THRASH, State.MISSING])
async def test_a_fleet_that_is_not_calm_is_not_asked(state: State) -> None:
    found, _ = await looked(state, bound=None)

    assert not [step for step in (found.plan.steps if found.plan else ()) if isinstance(step, ReplicasStep)]
    assert found.outlook == ""


@pytest.mark.parametrize(
    "fleet",
    [
        replace(four(), uid="another"),
        four(scaler=Owner(Reason.REPLICAS_AUTOSCALED, "HorizontalPodAutoscaler llm")),
        a_settled_fleet(),
    ],
    ids=["another Deployment", "an autoscaler decides now", "another number"],
)
async def test_what_is_somebody_elses_now_is_forgotten_with_an_event(fleet: Fleet) -> None:
    found, _ = await looked(State.IDLE, fleet=fleet)
    before = resource_with(HELD).record
    assert before is not None

    after = note_temporary(before, found, POLICY, NOW)

    assert (found.plan, after.added_replicas) == (None, None)
    [note] = [each for each in notes(before, after) if each.reason is Reason.REPLICAS_CHANGED]
    assert "replicas 3 -> 4" in note.message
    assert "and that number stays" in note.message


async def test_calm_is_noted_once_and_ended_by_a_look_that_says_nothing() -> None:
    record = Record(temporary=(replace(HELD, calm_since=None, outlook="", looked_at=None),))
    calm, _ = await looked(State.RECOVERED)
    blind, _ = await looked(State.MISSING)

    first = note_temporary(record, calm, POLICY, NOW)
    later = note_temporary(first, replace(calm, outlook=""), POLICY, NOW + timedelta(minutes=1))

    assert first.added_replicas.calm_since == NOW
    assert later == first, "nothing new is worth no write"
    ended = note_temporary(first, blind, POLICY, NOW).added_replicas
    assert ended.calm_since is None


async def test_an_outlook_is_renewed_when_it_is_old() -> None:
    calm, _ = await looked(State.RECOVERED)
    fresh = Record(temporary=(HELD,))
    old = Record(temporary=(replace(HELD, looked_at=NOW - REFRESH),))

    added = [note_temporary(each, calm, POLICY, NOW).added_replicas for each in (fresh, old)]

    assert [each.outlook for each in added if each] == [HELD.outlook, "60 requests wait on 4 replicas"]


def test_why_they_are_still_there_is_said_where_there_are_some() -> None:
    resource = resource_with(HELD)
    assert resource.record is not None

    said = why_not_restored(resource.record, resource.policy)

    assert why_not_restored(Record(), resource.policy) is None
    assert said.reason is Reason.TEMPORARY_CHANGE_HELD
    assert "after 60 minutes of calm" in said.message


async def test_nothing_is_noted_where_nothing_is_held() -> None:
    calm, _ = await looked(State.RECOVERED, None)
    record = Record()

    assert note_temporary(record, calm, POLICY, NOW) == record


async def test_a_plan_to_give_back_stands_while_a_person_approves_it() -> None:
    found, _ = await looked(State.IDLE, mode=Mode.APPROVE)

    assert found.plan.reason is Reason.REPLICAS_GIVEN_BACK


class Keeper(Town):
    """A town whose autoscaler has a minimum."""

    minimum: Minimum | None = None

    async def with_minimum(self, view: Any, holder: ObjectRef) -> Any:
        assert holder == ObjectRef("HorizontalPodAutoscaler", "llm")
        return View(fleet=replace(view.fleet, minimum=self.minimum), template=view.template)


def a_minimum(number: int = 3) -> Minimum:
    return Minimum("HorizontalPodAutoscaler", "llm", "hpa-1", "7", number, is_given=True, most=8)


async def short(town: Keeper) -> Survey:
    """Return what is found of a thrashing fleet that may only be scaled, beside its neighbours."""
    resource, metrics = resource_with(None, levers=()), Asked(State.THRASH)
    scaler = Owner(Reason.REPLICAS_AUTOSCALED, "HorizontalPodAutoscaler llm")
    view = View(fleet=a_settled_fleet(scaler=scaler), template=TEMPLATE)
    found = await survey(resource, resource.policy, view, SurveyInput(metrics, metrics, NOW))
    return await check_ownership(found, resource, resource.policy, town)  # type: ignore[arg-type]


async def test_where_an_autoscaler_decides_the_plan_goes_through_it() -> None:
    town = Keeper(Neighbours((HPA,)))
    town.minimum = a_minimum()

    found = await short(town)

    assert found.diagnosis.reason is Reason.CAPACITY_SHORT
    assert found.blocked is None
    [step] = found.plan.steps
    assert isinstance(step, ReplicasStep)
    assert step.number_in.kind == "HorizontalPodAutoscaler"
    assert (step.before, step.after) == (3, 4)
    assert "goes on setting the replicas (3 to 8)" in found.plan.message


@pytest.mark.parametrize(
    ("scaler", "minimum", "reason"),
    [
        (HPA, a_minimum(2), Reason.REPLICAS_CHANGED),
        (HPA, None, Reason.REPLICAS_CHANGED),
        (replace(HPA, paused=True), a_minimum(), Reason.REPLICAS_AUTOSCALED),
        (replace(HPA, desired=5), a_minimum(), Reason.AUTOSCALER_ACTIVE),
    ],
    ids=["it moved since", "it is gone since", "paused", "it is scaling"],
)
async def test_an_autoscaler_that_cannot_be_asked_stands_in_the_way(
    scaler: Autoscaler, minimum: Minimum | None, reason: Reason
) -> None:
    town = Keeper(Neighbours((scaler,)))
    town.minimum = minimum

    found = await short(town)

    assert found.blocked.reason is reason


async def test_only_what_an_autoscaler_holds_is_read_with_its_minimum() -> None:
    town, view = Keeper(Neighbours()), View(fleet=four(), template=TEMPLATE)
    town.minimum = a_minimum(4)
    hpa = ObjectRef("HorizontalPodAutoscaler", "llm")
    step = replace(HELD.step, holder=MinimumHolder(hpa, "hpa-1", is_given=True))
    through = replace(HELD, step=step)

    seen: Any = [await with_holder(view, held, town) for held in (None, HELD, through)]  # type: ignore[arg-type]

    assert [each.fleet.minimum for each in seen] == [None, None, a_minimum(4)]


async def test_where_nothing_is_left_the_numbers_for_a_split_are_shown() -> None:
    found, _ = await looked(State.THRASH, None, a_settled_fleet(), bound=ScaleBound(most=3), levers=())

    assert found.diagnosis.reason is Reason.CAPACITY_EXHAUSTED
    assert found.plan is None
    assert "disaggregate prefill and decode" in found.blocked.message
    assert "3 replicas with 1 GPU each" in found.blocked.message


def test_the_last_word_passes_on_only_where_it_says_so() -> None:
    assert not NoChange(Reason.PREEMPTIONS_CHEAP, "cheap").passes_on
