"""What a closed run leaves in memory, so that it is not tried again on the same evidence."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvmedic.model.engine import Knob
from kvmedic.model.plan import ConfigStep, FlagStep, Step
from kvmedic.model.reasons import Reason
from kvmedic.model.run import Judged, Outcome, StepState, Verdict
from kvmedic.model.spec import Fix
from kvmedic.model.status import (
    HISTORY_LENGTH,
    ClosedRun,
    Record,
    SizedCap,
    TriedBundle,
    TriedLever,
    TriedReplacement,
    TriedRollback,
    TriedScaling,
    TurnedOff,
)
from kvmedic.record.runs import close_run
from kvmedic.runbooks.fleet_plans import (
    replaced_in_vain,
    rolled_back_in_vain,
    scaled_in_vain,
    turned_off_in_vain,
)
from run_builder import (
    BUNDLE,
    CONFIG,
    NEW,
    NOW,
    OLD,
    RECALL,
    REPLACE,
    SCALE,
    STEP,
    a_fleet,
    a_run,
    a_scaling,
    an_intent,
)

FAILED = Judged(Verdict.NOT_RECOVERED, Reason.NOT_RECOVERED, "still beyond the trigger")


def after_verdict(step: Step, verdict: Verdict, before: Record | None = None) -> Record:
    """The record once a run with one step was judged and closed."""
    scaling = an_intent() if step is STEP else a_scaling(2, 4, 3)
    run = a_run(StepState.VERIFYING, scaling, step=step)
    judged = replace(FAILED, verdict=verdict)
    outcome = Outcome(judged.reason, judged.message)
    if step is REPLACE or verdict is not Verdict.NOT_RECOVERED:
        run = run.kept(judged)
    else:
        run = run.turned_back(outcome, verdict).reverted()
    return close_run(replace(before or Record(), run=run), run, outcome, 1, NOW)


def test_a_replacement_that_did_not_help_is_remembered_by_template_and_number() -> None:
    done = after_verdict(REPLACE, Verdict.NOT_RECOVERED)

    assert done.replacements == (TriedReplacement("a", OLD, 3, Verdict.NOT_RECOVERED, NOW),)
    assert done.levers == ()
    assert done.history[0].steps == ("Deployment/llm: replica a -> a new one: Kept",)


@pytest.mark.parametrize("verdict", [Verdict.RECOVERED, Verdict.INCONCLUSIVE])
def test_a_replacement_that_may_have_helped_is_not(verdict: Verdict) -> None:
    assert after_verdict(REPLACE, verdict).replacements == ()


@pytest.mark.parametrize("step", [STEP, CONFIG], ids=["on the command line", "in a file"])
def test_a_lever_that_did_not_help_is_remembered_and_no_replacement(step: FlagStep | ConfigStep) -> None:
    done = after_verdict(step, Verdict.NOT_RECOVERED)

    assert done.levers == (
        TriedLever(step.knob, OLD, 149, Verdict.NOT_RECOVERED, NOW, 64, 190, Reason.CAP_RIGHT_SIZED),
    )
    assert done.replacements == ()


def test_the_same_evidence_is_remembered_once_and_memory_is_bounded() -> None:
    old = tuple(TriedReplacement("x", OLD, 3 + i, Verdict.NOT_RECOVERED, NOW) for i in range(HISTORY_LENGTH))

    done = after_verdict(REPLACE, Verdict.NOT_RECOVERED, Record(replacements=old))

    assert [one.pod for one in done.replacements] == ["a"] + ["x"] * (HISTORY_LENGTH - 1)
    assert len({(one.revision, one.replicas) for one in done.replacements}) == HISTORY_LENGTH


def test_another_template_or_number_is_other_evidence() -> None:
    tried = after_verdict(REPLACE, Verdict.NOT_RECOVERED).replacements

    assert replaced_in_vain(tried, a_fleet())
    assert not replaced_in_vain(tried, a_fleet(revision=NEW))
    assert not replaced_in_vain(tried, a_fleet(replicas=4))
    assert not replaced_in_vain((), a_fleet())


def after_way_back(reason: Reason, before: Record | None = None, step: Step = RECALL) -> Record:
    """The record once a run that rolled a revision back, or turned a method off, was itself taken back."""
    outcome = Outcome(reason, "numbers")
    verdict = Verdict.NOT_RECOVERED if reason is Reason.NOT_RECOVERED else None
    run = a_run(StepState.VERIFYING, an_intent(), step=step).turned_back(outcome, verdict).reverted()
    return close_run(replace(before or Record(), run=run), run, outcome, 1, NOW)


@pytest.mark.parametrize("reason", [Reason.NOT_RECOVERED, Reason.CANARY_FAILED])
def test_a_rollback_that_did_not_help_or_could_not_start_is_remembered_by_its_template(
    reason: Reason,
) -> None:
    done = after_way_back(reason)

    assert done.rollbacks == (TriedRollback(OLD, NEW, reason, NOW),)
    assert (done.levers, done.replacements) == ((), ())
    assert rolled_back_in_vain(done.rollbacks, a_fleet())
    assert not rolled_back_in_vain(done.rollbacks, a_fleet(revision=NEW))
    assert not rolled_back_in_vain((), a_fleet())


@pytest.mark.parametrize(
    "reason", [Reason.ROLLED_BACK_BY_HAND, Reason.SPARE_UNSCHEDULABLE, Reason.REVISION_GONE]
)
def test_a_rollback_that_ended_otherwise_may_be_tried_again(reason: Reason) -> None:
    assert after_way_back(reason).rollbacks == ()


@pytest.mark.parametrize("reason", [Reason.NOT_RECOVERED, Reason.CANARY_FAILED])
def test_a_method_that_had_to_be_turned_on_again_is_remembered_by_its_template(reason: Reason) -> None:
    old = tuple(TriedBundle(each, OLD, reason, NOW) for each in ("TriAttention", *map(str, range(10))))

    done = after_way_back(reason, Record(bundles=old), BUNDLE)

    assert done.bundles[0] == TriedBundle("TriAttention", OLD, reason, NOW)
    assert len({one.method for one in done.bundles}) == len(done.bundles) == HISTORY_LENGTH
    assert (done.levers, done.rollbacks) == ((), ())
    assert "TriAttention" in turned_off_in_vain(done.bundles, a_fleet())
    assert turned_off_in_vain(done.bundles, a_fleet(revision=NEW)) == frozenset()


@pytest.mark.parametrize("reason", [Reason.ROLLED_BACK_BY_HAND, Reason.SPARE_UNSCHEDULABLE])
def test_a_method_that_was_turned_on_again_for_another_reason_may_be_turned_off_again(reason: Reason) -> None:
    assert after_way_back(reason, step=BUNDLE).bundles == ()
    assert after_verdict(BUNDLE, Verdict.RECOVERED).bundles == ()


def test_a_rollback_that_helped_is_not_remembered_as_one_that_did_not() -> None:
    assert after_verdict(RECALL, Verdict.RECOVERED).rollbacks == ()


def test_rollbacks_are_remembered_once_each_and_their_number_is_bounded() -> None:
    old = tuple(TriedRollback(each, NEW, Reason.NOT_RECOVERED, NOW) for each in (OLD, *map(str, range(10))))

    done = after_way_back(Reason.CANARY_FAILED, Record(rollbacks=old))

    assert done.rollbacks[0] == TriedRollback(OLD, NEW, Reason.CANARY_FAILED, NOW)
    assert len(done.rollbacks) == HISTORY_LENGTH
    assert len({one.revision for one in done.rollbacks}) == HISTORY_LENGTH


def test_more_replicas_that_did_not_help_are_remembered_by_template_and_number() -> None:
    done = after_verdict(SCALE, Verdict.NOT_RECOVERED)

    assert done.scalings == (TriedScaling(3, 4, OLD, Verdict.NOT_RECOVERED, NOW),)
    assert (done.levers, done.replacements) == ((), ())
    assert scaled_in_vain(done.scalings, a_fleet())
    assert not scaled_in_vain(done.scalings, a_fleet(replicas=4))
    assert not scaled_in_vain(done.scalings, a_fleet(revision=NEW))


def test_fewer_replicas_that_were_too_few_are_no_lever_that_failed() -> None:
    assert after_verdict(SCALE.inverse(), Verdict.NOT_RECOVERED).scalings == ()


def test_the_same_number_is_remembered_once_and_memory_is_bounded() -> None:
    old = tuple(TriedScaling(3 + i, 9, OLD, Verdict.NOT_RECOVERED, NOW) for i in range(HISTORY_LENGTH))

    done = after_verdict(SCALE, Verdict.NOT_RECOVERED, Record(scalings=old))

    assert len({(one.revision, one.before) for one in done.scalings}) == HISTORY_LENGTH
    assert done.scalings[0].after == 4


def kept(step: Step, before: SizedCap | None = None, verdict: Verdict = Verdict.IMPROVED) -> SizedCap | None:
    """The cap that is remembered once a run with one step is over."""
    return after_verdict(step, verdict, Record(sized=before)).sized


FIRST = SizedCap(NEW, "16", NOW)
AGAIN = replace(STEP, before="16", after="11", before_template=NEW, after_template="c")


def test_a_cap_that_was_kept_is_remembered_so_that_it_can_be_corrected_once() -> None:
    assert kept(STEP) == FIRST
    assert kept(CONFIG) == FIRST
    assert kept(AGAIN, FIRST) == SizedCap("c", "11", NOW, is_corrected=True)
    assert kept(AGAIN, replace(FIRST, revision="other")) == SizedCap("c", "11", NOW)


def test_a_cap_that_was_taken_back_and_another_lever_leave_what_is_remembered() -> None:
    watermark = replace(STEP, knob=Knob.WATERMARK)

    assert kept(AGAIN, FIRST, Verdict.NOT_RECOVERED) == FIRST
    assert kept(watermark, FIRST) == FIRST
    assert kept(REPLACE, None) is None


def after_keeping(step: Step, before: Record | None = None) -> Record:
    """The record once a run with one step was kept and closed."""
    judged = Judged(Verdict.RECOVERED, Reason.RECOVERED, "numbers")
    run = a_run(StepState.VERIFYING, an_intent(), step=step).kept(judged)
    outcome = Outcome(judged.reason, judged.message)
    return close_run(replace(before or Record(), run=run), run, outcome, 1, NOW)


def test_a_method_that_is_off_for_good_is_remembered_until_something_takes_its_place() -> None:
    gone = after_keeping(BUNDLE)
    assert gone.turned_off == TurnedOff("TriAttention", Reason.FLEET_WIDE_DEMAND, NOW)

    came = after_keeping(replace(BUNDLE, fix=Fix.FP8_KV_CACHE), gone)
    back = after_way_back(Reason.NOT_RECOVERED, gone, replace(BUNDLE, fix=Fix.FP8_KV_CACHE))

    assert came.turned_off is None
    assert back.turned_off == gone.turned_off


def test_a_fix_that_had_to_go_again_has_failed() -> None:
    gone = after_keeping(replace(BUNDLE, undoes=Fix.COMPACTING_METHOD)).turned_off

    assert gone is not None
    assert gone.spoken_of(Fix.COMPACTING_METHOD, 1) is not None
    assert gone.spoken_of(Fix.COMPACTING_METHOD, 2) is None
    assert gone.spoken_of(Fix.FP8_KV_CACHE, 1) is None


def test_runs_that_only_asked_a_trial_pod_make_room_for_those_that_changed_something() -> None:
    def asked(number: int) -> ClosedRun:
        return ClosedRun(f"t{number}", Reason.FIX_DUE, Reason.TRIAL_ANSWERED, "", (), NOW, NOW)

    changed = ClosedRun("c", Reason.FLEET_WIDE_DEMAND, Reason.RECOVERED, "", (), NOW, NOW)
    full = Record(history=(*(asked(number) for number in range(HISTORY_LENGTH - 1)), changed))

    done = after_keeping(BUNDLE, full)

    kept = [run.id for run in done.history]
    assert len(kept) == HISTORY_LENGTH
    assert kept[-1] == "c"
    assert f"t{HISTORY_LENGTH - 2}" not in kept
