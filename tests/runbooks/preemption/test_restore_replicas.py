"""What is kept of added replicas when a run is closed."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvmedic.model.fleet import Fleet, ObjectRef, Owner
from kvmedic.model.plan import ReplicasStep
from kvmedic.model.reasons import Reason
from kvmedic.model.run import Outcome, Run, StepState
from kvmedic.model.spec import ScaleBound
from kvmedic.model.status import Load, TemporaryChange
from kvmedic.runbooks.preemption.restore import (
    is_unchanged_number,
    step_back,
    temporary_after,
    with_calm,
    with_outlook,
)
from run_builder import BASELINE, NOW, OLD, STEP, a_fleet, a_run, a_scaling, an_intent

TARGET = ObjectRef("Deployment", "llm")
KEPT = Outcome(Reason.RECOVERED, "better")
HELD = TemporaryChange(
    step=ReplicasStep(TARGET, None, 3, 5, OLD, Reason.REPLICAS_ADDED),
    run="20260301-020000",
    target_uid="uid-1",
    at=NOW - timedelta(hours=3),
    fewest=3,
    calm_since=NOW - timedelta(hours=2),
    outlook="4 replicas would do",
    looked_at=NOW,
)


def left_after(
    run: Run, held: TemporaryChange | None, fleet: Fleet | None, outcome: Outcome
) -> TemporaryChange | None:
    found = temporary_after((held,) if held else (), run, fleet, outcome, NOW)
    return next((each for each in found if each.adds_replicas), None)


def a_step(before: int, after: int) -> ReplicasStep:
    return ReplicasStep(TARGET, None, before, after, OLD, Reason.REPLICAS_ADDED)


def a_scaled_run(before: int, after: int, state: StepState = StepState.KEPT) -> Run:
    return a_run(state, a_scaling(1, before, after), step=a_step(before, after))


def fleet_of(replicas: int | None) -> Fleet | None:
    return None if replicas is None else a_fleet(replicas=replicas)


def test_replicas_that_helped_are_held_with_the_load_that_was_too_much():
    run = replace(a_scaled_run(3, 4), baseline=replace(BASELINE, running_mean=60.0))

    held = left_after(run, None, fleet_of(4), KEPT)

    assert (held.step.before, held.step.after, held.run, held.at, held.calm_since) == (
        3,
        4,
        run.id,
        NOW,
        None,
    )
    assert held.load == Load(
        running=20, tokens_per_second=380, prompt_tokens=BASELINE.prompt_tokens_mean, output_tokens=190
    )


def test_a_load_that_was_not_measured_is_not_made_up():
    held = left_after(a_scaled_run(3, 4), None, fleet_of(4), KEPT)

    assert held.load is None


ENDS = [
    ("it did not help and is gone", None, a_scaled_run(3, 4, StepState.ROLLING_BACK), 3, KEPT, None),
    ("somebody set another number", None, a_scaled_run(3, 4), 7, KEPT, None),
    ("somebody set the very number", None, a_scaled_run(3, 4), 4, Outcome(Reason.REPLICAS_CHANGED, ""), None),
    ("scaled to zero", HELD, a_scaled_run(5, 6), 0, Outcome(Reason.SCALED_TO_ZERO, ""), None),
    ("the target is gone", HELD, a_scaled_run(5, 6), None, Outcome(Reason.TARGET_DELETED, ""), None),
    ("another run left the number alone", HELD, a_run(StepState.KEPT, an_intent(), KEPT), 5, KEPT, (3, 5)),
    ("more on top of more: the first number counts", HELD, a_scaled_run(5, 6), 6, KEPT, (3, 6)),
    ("more on top did not help", HELD, a_scaled_run(5, 6, StepState.ROLLING_BACK), 5, KEPT, (3, 5)),
    ("given back", HELD, a_scaled_run(5, 3), 3, KEPT, None),
    ("given back in part", HELD, a_scaled_run(5, 4), 4, KEPT, (3, 4)),
    (
        "a giving back that was left half way",
        HELD,
        a_scaled_run(5, 3, StepState.ROLLING_BACK),
        4,
        KEPT,
        (3, 4),
    ),
    ("too few: they came back", HELD, a_scaled_run(5, 3, StepState.ROLLING_BACK), 5, KEPT, (3, 5)),
    ("somebody scaled below", HELD, a_scaled_run(5, 3), 2, KEPT, None),
]


@pytest.mark.parametrize(
    ("held", "run", "number", "outcome", "expected"), [row[1:] for row in ENDS], ids=[row[0] for row in ENDS]
)
def test_what_is_held_once_a_run_is_closed(held, run, number, outcome, expected):
    found = left_after(run, held, fleet_of(number), outcome)

    assert (found and (found.step.before, found.step.after)) == expected


@given(
    before=st.integers(1, 6),
    first=st.integers(1, 4),
    numbers=st.lists(st.integers(0, 14), max_size=6),
)
@settings(deadline=None)
def test_whatever_numbers_come_only_what_was_added_is_ever_given_back(before, first, numbers):
    held = left_after(a_scaled_run(before, before + first), None, fleet_of(before + first), KEPT)
    for number in numbers:
        if held is None:
            break
        desired = number if before <= number != held.step.after else before
        held = left_after(a_scaled_run(held.step.after, desired), held, fleet_of(number), KEPT)

        assert held is None or (held.step.before, held.step.after) == (before, number)
        assert held is None or held.step.before < held.step.after


@pytest.mark.parametrize(
    ("fleet", "expected"),
    [
        (a_fleet(replicas=5), True),
        (a_fleet(replicas=4), False),
        (a_fleet(replicas=5, uid="another"), False),
        (a_fleet(replicas=5, scaler=Owner(Reason.REPLICAS_AUTOSCALED, "HorizontalPodAutoscaler llm")), False),
    ],
    ids=["as it was set", "another number", "another Deployment", "an autoscaler decides now"],
)
def test_a_number_that_is_not_ours_any_more_is_not_held(fleet, expected):
    assert is_unchanged_number(HELD, fleet) is expected


def test_calm_counts_from_its_first_moment_and_ends_with_trouble():
    fresh = replace(HELD, calm_since=None, outlook="", looked_at=None)

    assert with_calm(fresh, NOW).calm_since == NOW
    assert with_calm(HELD, NOW) is HELD
    assert with_calm(HELD, None) == fresh
    assert with_calm(fresh, None) is fresh


@pytest.mark.parametrize(("after", "minutes", "due"), [(60, 59, False), (60, 60, True), (5, 5, True)])
def test_it_is_asked_whether_fewer_do_after_as_long_a_calm_as_the_spec_says(after, minutes, due):
    held = replace(HELD, calm_since=NOW - timedelta(minutes=minutes))

    assert held.is_due(timedelta(minutes=after), NOW) is due


def test_without_calm_nobody_asks():
    assert not replace(HELD, calm_since=None).is_due(timedelta(0), NOW)


@pytest.mark.parametrize(
    ("minutes", "outlook", "shown"),
    [(9, "new", "4 replicas would do"), (10, "new", "new"), (10, "", "4 replicas would do")],
    ids=["the one that is shown is fresh", "it is old", "nobody asked"],
)
def test_an_outlook_is_reported_anew_once_it_is_old(minutes, outlook, shown):
    refresh, now = timedelta(minutes=10), NOW + timedelta(minutes=minutes)

    assert with_outlook(HELD, outlook, now, refresh).outlook == shown


@pytest.mark.parametrize(
    ("bound", "limit"), [(ScaleBound(), 4), (ScaleBound(step=3), 6), (ScaleBound(most=8, step=3), 8)]
)
def test_without_a_greatest_number_one_step_is_the_limit(bound, limit):
    assert bound.limit(3) == limit


def test_the_step_back_is_the_way_from_what_is_there_to_what_was():
    step = step_back(HELD.step, HELD.fewest, HELD.fewest, OLD)

    assert (step.before, step.after, step.gives_back, step.target) == (5, 3, True, TARGET)
    assert "replicas 3 -> 5 since 2026-03-01T00:00:00Z (run 20260301-020000)" in HELD.line()


def test_a_flag_of_another_run_adds_no_replicas():
    assert left_after(a_run(StepState.KEPT, an_intent(), KEPT, STEP), None, fleet_of(3), KEPT) is None
