"""What a closed run leaves in memory, so that it is not tried again on the same evidence."""

from dataclasses import replace
from datetime import timedelta

import pytest

from kvmedic.model.engine import Knob
from kvmedic.model.plan import Step
from kvmedic.model.reasons import Reason
from kvmedic.model.run import Judged, Outcome, StepState, Verdict
from kvmedic.model.spec import Fix
from kvmedic.model.status import (
    HISTORY_LENGTH,
    Attempt,
    CapChange,
    ClosedRun,
    Record,
    SizedCap,
    TurnedOff,
    failed_fix,
    find_failure,
)
from kvmedic.record.runs import close_run
from run_builder import (
    BASELINE,
    BUNDLE,
    CONFIG,
    NEW,
    NOW,
    OLD,
    REPLACE,
    ROLLBACK,
    SCALE,
    STEP,
    a_failure,
    a_run,
    a_scaling,
    an_intent,
)

OVER = Outcome(Reason.NOT_RECOVERED, "still beyond the trigger")
FAILED = Judged(Verdict.NOT_RECOVERED, Reason.NOT_RECOVERED, "still beyond the trigger")


def after_verdict(step: Step, verdict: Verdict, before: Record | None = None) -> Record:
    """The record once a run with one step was judged and closed."""
    scaling = an_intent() if step is STEP else a_scaling(2, 4, 3)
    run = a_run(StepState.VERIFYING, scaling, step=step)
    judged = replace(FAILED, verdict=verdict)
    outcome = Outcome(judged.reason, judged.message)
    if step is REPLACE or verdict is not Verdict.NOT_RECOVERED:
        run = run.keep_step(judged)
    else:
        run = run.turn_step_back(outcome, verdict).end_reverted()
    return close_run(replace(before or Record(), run=run), run, outcome, 1, NOW)


def after_way_back(reason: Reason, before: Record | None = None, step: Step = ROLLBACK) -> Record:
    """The record once a run whose one step was taken back is closed."""
    outcome = Outcome(reason, "numbers")
    verdict = Verdict.NOT_RECOVERED if reason is Reason.NOT_RECOVERED else None
    run = a_run(StepState.VERIFYING, an_intent(), step=step).turn_step_back(outcome, verdict).end_reverted()
    return close_run(replace(before or Record(), run=run), run, outcome, 1, NOW)


REMEMBERED = {
    "a replica": (REPLACE, Attempt.REPLACE_REPLICA, "3", "replica a -> a new one"),
    "a lever on the command line": (STEP, Attempt.TURN_LEVER, "maxNumSeqs", "maxNumSeqs 64 -> 16"),
    "a lever in a file": (CONFIG, Attempt.TURN_LEVER, "maxNumSeqs", "maxNumSeqs 64 -> 16 (ConfigMap"),
    "a revision": (ROLLBACK, Attempt.ROLL_BACK_REVISION, "", "pod template of revision 7 -> of revision 6"),
    "a method": (BUNDLE, Attempt.SWITCH_METHOD, "TriAttention", "TriAttention "),
    "more replicas": (SCALE, Attempt.ADD_REPLICAS, "3", "replicas 3 -> 4"),
}


@pytest.mark.parametrize(("step", "attempt", "key", "change"), REMEMBERED.values(), ids=REMEMBERED)
def test_what_did_not_help_is_remembered_with_its_template(step, attempt, key, change):
    done = after_verdict(step, Verdict.NOT_RECOVERED)

    [found] = done.failed_attempts
    assert found == replace(a_failure(attempt, key, change=found.change, blocks=149), load=found.load)
    assert found.change.startswith(change)
    assert find_failure(done.failed_attempts, attempt, key, OLD) == found
    assert find_failure(done.failed_attempts, attempt, key, NEW) is None
    assert find_failure(done.failed_attempts, attempt, f"another {key}", OLD) is None
    assert find_failure((), attempt, key, OLD) is None


def test_the_load_that_it_failed_on_is_remembered_where_it_was_measured():
    run = (
        a_run(StepState.VERIFYING, an_intent(), step=STEP).turn_step_back(OVER, FAILED.verdict).end_reverted()
    )
    measured = replace(run, baseline=replace(BASELINE, running_mean=60.0))

    [found] = close_run(Record(run=measured), measured, OVER, 1, NOW).failed_attempts

    assert found.load is not None
    assert (found.load.running, found.load.prompt_tokens, found.load.output_tokens) == (20, 64, 190)
    assert after_verdict(STEP, Verdict.NOT_RECOVERED).failed_attempts[0].load is None


@pytest.mark.parametrize("step", [REPLACE, STEP, CONFIG, ROLLBACK, BUNDLE, SCALE])
@pytest.mark.parametrize("verdict", [Verdict.RECOVERED, Verdict.INCONCLUSIVE])
def test_what_may_have_helped_is_not_remembered(step, verdict):
    assert after_verdict(step, verdict).failed_attempts == ()


def test_fewer_replicas_that_were_too_few_are_no_attempt_that_failed():
    assert after_verdict(SCALE.inverse(), Verdict.NOT_RECOVERED).failed_attempts == ()


@pytest.mark.parametrize("step", [STEP, ROLLBACK, BUNDLE])
def test_what_could_not_start_is_remembered(step):
    assert [one.why for one in after_way_back(Reason.CANARY_FAILED, step=step).failed_attempts] == [
        "CanaryFailed"
    ]


@pytest.mark.parametrize("step", [STEP, ROLLBACK, BUNDLE])
@pytest.mark.parametrize(
    "reason",
    [Reason.ROLLED_BACK_BY_HAND, Reason.SPARE_UNSCHEDULABLE, Reason.IMAGE_UNAVAILABLE, Reason.REVISION_GONE],
)
def test_what_was_taken_back_for_another_reason_may_be_tried_again(step, reason):
    assert after_way_back(reason, step=step).failed_attempts == ()


@pytest.mark.parametrize("attempt", Attempt)
def test_the_same_attempt_is_remembered_once_and_each_kind_is_bounded_by_itself(attempt):
    old = tuple(a_failure(attempt, key) for key in (3, *range(10, 20)))
    other = a_failure(Attempt.REPLACE_REPLICA, 4)

    done = after_verdict(REPLACE, Verdict.NOT_RECOVERED, Record(failed_attempts=(*old, other)))

    same = attempt is Attempt.REPLACE_REPLICA
    kept = [one for one in done.failed_attempts if one.attempt is attempt]
    assert done.failed_attempts[0].change == "replica a -> a new one"
    assert len({one.key for one in kept}) == len(kept) == HISTORY_LENGTH
    assert kept[0].key == "3"
    assert (other in done.failed_attempts) is not same


def kept(step: Step, before: SizedCap | None = None, verdict: Verdict = Verdict.IMPROVED) -> SizedCap | None:
    """The cap that is remembered once a run with one step is over."""
    return after_verdict(step, verdict, Record(sized=before)).sized


CUT = CapChange("64", "16", NOW)
FIRST = SizedCap(NEW, "16", NOW, before="64", changes=(CUT,), figures=BASELINE)
AGAIN = replace(STEP, before="16", after="11", before_template=NEW, after_template="c")


def test_a_cap_that_was_kept_is_remembered_so_that_it_can_be_corrected_once():
    assert kept(STEP) == FIRST
    assert kept(CONFIG) == FIRST
    assert kept(AGAIN, FIRST) == SizedCap(
        "c",
        "11",
        NOW,
        is_corrected=True,
        before="64",
        changes=(CapChange("16", "11", NOW), CUT),
        figures=BASELINE,
    )
    assert kept(AGAIN, replace(FIRST, revision="other")) == SizedCap(
        "c", "11", NOW, before="16", changes=(CapChange("16", "11", NOW),), figures=BASELINE
    )


def test_a_cap_that_was_raised_may_be_corrected_and_remembers_what_there_was_first():
    raised = replace(AGAIN, after="32", reason=Reason.CAP_RAISED)

    assert kept(raised, FIRST) == SizedCap(
        "c", "32", NOW, before="64", changes=(CapChange("16", "32", NOW), CUT), figures=BASELINE
    )
    assert kept(replace(raised, before=None)) == SizedCap(
        "c", "32", NOW, changes=(CapChange("", "32", NOW),), figures=BASELINE
    )


def test_changes_of_a_cap_are_remembered_for_a_day():
    old, young = (replace(CUT, at=NOW - timedelta(hours=hours)) for hours in (24, 23))

    found = kept(AGAIN, replace(FIRST, changes=(young, old)))

    assert found is not None
    assert found.changes == (CapChange("16", "11", NOW), young)


def test_a_cap_that_was_taken_back_and_another_lever_leave_what_is_remembered():
    watermark = replace(STEP, knob=Knob.WATERMARK)

    assert kept(AGAIN, FIRST, Verdict.NOT_RECOVERED) == FIRST
    assert kept(watermark, FIRST) == FIRST
    assert kept(REPLACE, None) is None


BACK = replace(STEP.inverse(), reason=Reason.CAP_TAKEN_BACK)
"""The cap that was kept first goes back."""


def test_a_cap_that_was_taken_back_is_ours_no_more_and_is_not_set_again():
    done = after_verdict(BACK, Verdict.RECOVERED, Record(sized=FIRST))

    [failed] = done.failed_attempts
    assert done.sized is None
    assert (failed.attempt, failed.key, failed.template) == (Attempt.TURN_LEVER, "maxNumSeqs", OLD)
    assert (failed.change, failed.blocks) == ("maxNumSeqs 64 -> 16", 149)


def test_a_raise_that_was_taken_back_leaves_our_cap_of_before_and_is_not_made_again():
    up = replace(AGAIN, after="32", reason=Reason.CAP_RAISED)
    raised = kept(up, FIRST)

    done = after_verdict(
        replace(up.inverse(), reason=Reason.CAP_TAKEN_BACK), Verdict.RECOVERED, Record(sized=raised)
    )

    assert done.sized is not None
    assert (done.sized.revision, done.sized.cap, done.sized.before) == (NEW, "16", "64")
    assert (done.sized.figures, done.sized.is_corrected) == (None, True)
    assert [each.attempt for each in done.failed_attempts] == [Attempt.RAISE_CAP]


@pytest.mark.parametrize(
    ("reason", "is_over"),
    [
        (Reason.NOT_RECOVERED, True),
        (Reason.CANARY_FAILED, True),
        (Reason.ROLLED_BACK_BY_HAND, True),
        (Reason.SPARE_UNSCHEDULABLE, False),
    ],
)
def test_a_cap_that_came_back_after_all_is_on_probation_no_more(reason, is_over):
    done = after_way_back(reason, Record(sized=FIRST), BACK)

    assert done.sized == (replace(FIRST, figures=None) if is_over else FIRST)


def test_a_cap_that_somebody_else_put_back_is_on_probation_no_more():
    outcome = Outcome(Reason.CHANGE_REVERTED, "by argocd")
    run = a_run(StepState.ROLLING_OUT, an_intent(), step=BACK).leave_target(outcome)

    done = close_run(Record(run=run, sized=FIRST), run, outcome, 1, NOW)

    assert done.sized == replace(FIRST, figures=None)


def test_a_cap_that_a_person_kept_is_not_on_probation():
    judged = Judged(Verdict.INCONCLUSIVE, Reason.LOAD_DIFFERS, "numbers")
    run = a_run(StepState.VERIFYING, an_intent(), step=STEP).keep_step(judged)

    done = close_run(Record(run=run), run, Outcome(Reason.KEPT_BY_HAND, "asked for"), 1, NOW)

    assert done.sized == replace(FIRST, figures=None)


def after_keeping(step: Step, before: Record | None = None) -> Record:
    """The record once a run with one step was kept and closed."""
    judged = Judged(Verdict.RECOVERED, Reason.RECOVERED, "numbers")
    run = a_run(StepState.VERIFYING, an_intent(), step=step).keep_step(judged)
    outcome = Outcome(judged.reason, judged.message)
    return close_run(replace(before or Record(), run=run), run, outcome, 1, NOW)


def test_a_method_that_is_off_for_good_is_remembered_until_something_takes_its_place():
    gone = after_keeping(BUNDLE)
    assert gone.turned_off == TurnedOff("TriAttention", Reason.FLEET_WIDE_DEMAND, NOW)

    came = after_keeping(replace(BUNDLE, fix=Fix.FP8_KV_CACHE), gone)
    back = after_way_back(Reason.NOT_RECOVERED, gone, replace(BUNDLE, fix=Fix.FP8_KV_CACHE))

    assert came.turned_off is None
    assert back.turned_off == gone.turned_off


def test_a_fix_that_had_to_go_again_has_failed():
    gone = after_keeping(replace(BUNDLE, undoes=Fix.COMPACTING_METHOD))

    assert [(one.key, one.generation) for one in gone.failed_fixes] == [(Fix.COMPACTING_METHOD, 1)]


def test_the_next_method_that_goes_for_good_begins_without_failed_fixes():
    failed = (failed_fix(Fix.FP8_KV_CACHE, "a loss", 1, NOW), a_failure(Attempt.TURN_LEVER))

    gone = after_keeping(BUNDLE, Record(failed_attempts=failed))

    assert gone.failed_attempts == failed[1:]


def test_runs_that_only_asked_a_trial_pod_make_room_for_those_that_changed_something():
    def asked(number: int) -> ClosedRun:
        return ClosedRun(f"t{number}", Reason.FIX_DUE, Reason.TRIAL_ANSWERED, "", (), NOW, NOW)

    changed = ClosedRun("c", Reason.FLEET_WIDE_DEMAND, Reason.RECOVERED, "", (), NOW, NOW)
    full = Record(history=(*(asked(number) for number in range(HISTORY_LENGTH - 1)), changed))

    done = after_keeping(BUNDLE, full)

    kept = [run.id for run in done.history]
    assert len(kept) == HISTORY_LENGTH
    assert kept[-1] == "c"
    assert f"t{HISTORY_LENGTH - 2}" not in kept
