"""What is kept of a temporary setting when a run is closed."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from kvmedic.model.engine import Knob
from kvmedic.model.plan import FlagStep
from kvmedic.model.reasons import Reason
from kvmedic.model.run import Judged, Outcome, Run, StepState, Verdict
from kvmedic.model.spec import RotationLabel, RunSpec
from kvmedic.model.status import Attempt, Load, Record, TemporaryChange
from kvmedic.record.runs import close_run
from kvmedic.runbooks.preemption.restore import is_value, temporary_after
from run_builder import BASELINE, CONFIG, NEW, NOW, OLD, SCALE, STEP, a_run, an_intent

KNOB = Knob.KV_OFFLOADING_SIZE
HOST_MEMORY = replace(STEP, knob=KNOB, before=None, after="32", reason=Reason.HOST_MEMORY_USED)
IN_FILE = replace(CONFIG, knob=KNOB, before="8", after="32", reason=Reason.HOST_MEMORY_USED)
BACK = replace(
    HOST_MEMORY,
    before="32",
    after=None,
    before_template=NEW,
    after_template=OLD,
    reason=Reason.HOST_MEMORY_GIVEN_BACK,
)
RUN_SPEC = RunSpec(RotationLabel("serving", "draining"), timedelta(minutes=10))
FIGURES = replace(BASELINE, running_mean=60.0)
THEN = Load(20, 380, BASELINE.prompt_tokens_mean, 190)
HELD = TemporaryChange(
    step=HOST_MEMORY,
    run="20260301-000000",
    target_uid="uid-1",
    at=NOW - timedelta(hours=3),
    load=THEN,
    run_spec=RUN_SPEC,
    calm_since=NOW - timedelta(hours=2),
    outlook="up to 9 at once",
    looked_at=NOW,
)
KEPT = Outcome(Reason.IMPROVED, "smoother")


def verified(step: FlagStep, **changes: object) -> Run:
    run = a_run(StepState.VERIFYING, an_intent(), step=step)
    return replace(run, baseline=FIGURES, run_spec=RUN_SPEC, **changes)


def kept(step: FlagStep) -> Run:
    return verified(step).keep_step(Judged(Verdict.IMPROVED, Reason.IMPROVED, "smoother"))


def turned(step: FlagStep, ending: Reason, **changes: object) -> Run:
    return verified(step, **changes).turn_step_back(Outcome(ending, ""), None).end_reverted()


@pytest.mark.parametrize(
    ("step", "before"), [(HOST_MEMORY, None), (IN_FILE, "8")], ids=["on the command line", "in a file"]
)
def test_what_helped_is_recorded_with_what_was_before_and_the_load_that_was_too_much(step, before):
    run = kept(step)

    [change] = temporary_after((), run, None, KEPT, NOW)

    assert (change.step.before, change.step.after, change.step) == (before, "32", step)
    assert (change.run, change.at, change.target_uid) == (run.id, NOW, run.target_uid)
    assert (change.load, change.run_spec) == (THEN, RUN_SPEC)
    assert (change.calm_since, change.outlook) == (None, "")
    assert "kvOffloadingSize" in change.line()


def test_a_load_that_was_not_measured_is_not_made_up():
    run = replace(kept(HOST_MEMORY), baseline=replace(FIGURES, running_mean=None))

    [change] = temporary_after((), run, None, KEPT, NOW)

    assert change.load is None


@pytest.mark.parametrize(
    "run",
    [kept(STEP), turned(HOST_MEMORY, Reason.NOT_RECOVERED), a_run(step=HOST_MEMORY), a_run(step=SCALE)],
    ids=["another knob", "taken back", "not begun", "another kind of step"],
)
def test_what_was_not_kept_or_is_not_temporary_changes_nothing(run):
    assert temporary_after((HELD,), run, None, KEPT, NOW) == (HELD,)
    assert temporary_after((), run, None, KEPT, NOW) == ()


def test_of_a_target_that_is_gone_nothing_is_temporary():
    assert temporary_after((), kept(HOST_MEMORY), None, Outcome(Reason.TARGET_DELETED, ""), NOW) == ()


@pytest.mark.parametrize(
    ("present", "first", "load"),
    [
        (replace(HELD, step=replace(HOST_MEMORY, after_template=OLD)), None, THEN),
        (replace(HELD, step=replace(HOST_MEMORY, after_template="other")), None, None),
        (replace(HELD, step=replace(HOST_MEMORY, after="16")), "32", THEN),
    ],
    ids=["nothing moved since", "the template moved since", "the first is somebody else's now"],
)
def test_what_is_added_in_two_parts_goes_back_to_what_was_before_both(present, first, load):
    more = replace(HOST_MEMORY, before="32", after="64")

    [change] = temporary_after((present,), kept(more), None, KEPT, NOW)

    assert (change.step.before, change.step.after, change.load) == (first, "64", load)


def test_what_was_given_back_is_gone():
    assert temporary_after((HELD,), kept(BACK), None, KEPT, NOW) == ()


@pytest.mark.parametrize(
    ("ending", "remembered"),
    [
        (Reason.NOT_RECOVERED, True),
        (Reason.CANARY_FAILED, True),
        (Reason.ROLLED_BACK_BY_HAND, True),
        (Reason.INCONCLUSIVE, False),
        (Reason.SPARE_UNSCHEDULABLE, False),
    ],
)
def test_a_way_back_that_was_taken_back_leaves_the_change_and_what_spoke_against_it(ending, remembered):
    run = turned(BACK, ending)
    done = close_run(Record(run=run, temporary=(HELD,)), run, Outcome(ending, ""), 1, NOW)

    found = [(one.attempt, one.key, one.template, one.at, one.load) for one in done.failed_attempts]
    assert found == [(Attempt.GIVE_BACK, KNOB, NEW, NOW, THEN)] * remembered
    [left] = temporary_after((HELD,), run, None, Outcome(ending, ""), NOW)
    assert left == replace(HELD, calm_since=None, outlook="", looked_at=None)


def test_a_way_back_that_did_not_hold_is_no_lever_that_did_not_help():
    run = (
        verified(BACK).turn_step_back(Outcome(Reason.NOT_RECOVERED, ""), Verdict.NOT_RECOVERED).end_reverted()
    )

    done = close_run(Record(run=run, temporary=(HELD,)), run, Outcome(Reason.NOT_RECOVERED, ""), 1, NOW)

    assert [one.attempt for one in done.failed_attempts] == [Attempt.GIVE_BACK]


@pytest.mark.parametrize(
    "run",
    [a_run(step=BACK), verified(BACK).leave_target(Outcome(Reason.FLAG_DRIFTED, ""))],
    ids=["not begun", "left"],
)
def test_a_way_back_that_was_not_gone_leaves_the_change_as_it_is(run):
    assert temporary_after((HELD,), run, None, Outcome(Reason.SUSPENDED, ""), NOW) == (HELD,)


@pytest.mark.parametrize(
    "run",
    [
        verified(BACK, reason=Reason.RESOURCE_DELETED),
        verified(BACK),
        turned(BACK, Reason.CANARY_FAILED, reason=Reason.RESOURCE_DELETED),
    ],
    ids=["given back for it", "deleted meanwhile", "it could not be given back"],
)
def test_of_a_resource_that_is_deleted_nothing_is_tried_twice(run):
    ending = run.ending or Outcome(Reason.RESOURCE_DELETED, "")

    assert temporary_after((HELD,), run, None, ending, NOW) == ()


@pytest.mark.parametrize(
    ("text", "given", "same"),
    [
        ("1e1", 10, True),
        ("32", 32.0, True),
        ("32", "32", True),
        ("32", 16, False),
        ("auto", "auto", True),
        ("auto", 1, False),
        ("nan", "nan", False),
        ("1", True, False),
    ],
)
def test_values_are_compared_and_not_their_spelling(text, given, same):
    assert is_value(text, given) is same


def test_the_steps_back_are_distinguished_from_all_others():
    assert BACK.gives_back
    assert replace(IN_FILE, reason=Reason.HOST_MEMORY_GIVEN_BACK).gives_back
    assert not HOST_MEMORY.gives_back
    assert not BACK.inverse().gives_back
