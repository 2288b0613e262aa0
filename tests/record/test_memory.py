"""What a closed run leaves in memory, so that it is not tried again on the same evidence."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvmedic.core.plan import Step
from kvmedic.core.reasons import Reason
from kvmedic.core.record import HISTORY_LENGTH, Record, TriedLever, TriedReplacement, TriedScaling
from kvmedic.core.run import Outcome, StepState
from kvmedic.core.verdict import Judged, Verdict
from kvmedic.record.runs import closed
from kvmedic.runbooks.planning import replaced_in_vain, scaled_in_vain
from run_builder import NEW, NOW, OLD, REPLACE, SCALE, STEP, a_fleet, a_run, a_scaling, an_intent

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
    return closed(replace(before or Record(), run=run), run, outcome, 1, NOW)


def test_a_replacement_that_did_not_help_is_remembered_by_template_and_number() -> None:
    done = after_verdict(REPLACE, Verdict.NOT_RECOVERED)

    assert done.replacements == (TriedReplacement("a", OLD, 3, Verdict.NOT_RECOVERED, NOW),)
    assert done.levers == ()
    assert done.history[0].steps == ("Deployment/llm: replica a -> a new one: Kept",)


@pytest.mark.parametrize("verdict", [Verdict.RECOVERED, Verdict.INCONCLUSIVE])
def test_a_replacement_that_may_have_helped_is_not(verdict: Verdict) -> None:
    assert after_verdict(REPLACE, verdict).replacements == ()


def test_a_lever_that_did_not_help_is_remembered_and_no_replacement() -> None:
    done = after_verdict(STEP, Verdict.NOT_RECOVERED)

    assert done.levers == (TriedLever(STEP.knob, OLD, 149, Verdict.NOT_RECOVERED, NOW, 64, 190),)
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
