"""When one runbook leaves a fleet to the other, on which evidence, and whether that is the second time."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from builders import NOW
from kvmedic.model.evidence import Inconclusive
from kvmedic.model.reasons import Reason
from kvmedic.model.spec import Fix
from kvmedic.model.status import FailedFix, HandOver, TurnedOff
from kvmedic.model.trial import Answer, Growth, Question, Reclaim, Score, Scored
from kvmedic.runbooks import RUNBOOKS
from kvmedic.runbooks.branches import Branch, Diagnosed, Diagnosis, Finding
from kvmedic.runbooks.compression.hand_over import Grounds, Heard, hand_over_of, taken_back
from run_builder import NEW, OLD

LATER = NOW + timedelta(minutes=5)
COMPRESSION, THRASH = "CompressionWithoutSavings", "PreemptionThrash"
ANSWER = Answer(Question.RECLAMATION, OLD, "on a trial pod 16384 tokens", NOW, 3, Reclaim.RECLAIMS)
SCORED = Scored(NEW, "e1e1", "0.870 over 200 samples", NOW, 3, Score(0.87, 200))
OFF = TurnedOff("Theirs", Reason.BLOCKS_NOT_FREED, NOW)
FAILED = FailedFix(Fix.FP8_KV_CACHE, "a loss of 0.200", 3)
GROUNDS = Grounds(3, OLD, "TriAttention", (ANSWER,), (SCORED,), OFF, (FAILED,), ("Mine",))
PRESSED = Reason.PRESSED_THOUGH_COMPRESSED


def branch(reason: Reason) -> Branch:
    """Return the branch with a reason, of whichever runbook has it."""
    return next(each for table in RUNBOOKS.values() for each in table if each.reason is reason)


def says(reason: Reason, text: str = "2.5 per request") -> Diagnosed:
    return Diagnosed(branch(reason), (Finding("fleet", None, None, None, text),))


PARTIAL = Inconclusive(Reason.PARTIAL_PRESSURE, "1 of 3 replicas")


def over(
    first: Diagnosis | None = None, then: Diagnosis | None = None, *, is_pressed: bool = True
) -> HandOver | None:
    """Return what a look amounts to at which the other runbook has the word."""
    said = says(PRESSED) if first is None else first
    heard = Heard(said, THRASH, then or says(Reason.FLEET_WIDE_DEMAND), is_pressed, is_planned=True)
    return hand_over_of(heard, GROUNDS, None, NOW)


def back(newest: HandOver | None, grounds: Grounds = GROUNDS, *, is_planned: bool = True) -> HandOver | None:
    """Return what a look amounts to at which the compression runbook has the word."""
    said = says(Reason.EAGER_FALLBACK)
    return hand_over_of(
        Heard(said, COMPRESSION, said, is_pressed=True, is_planned=is_planned), grounds, newest, LATER
    )


def found(given: HandOver | None) -> HandOver:
    assert given is not None
    return given


OVER = found(over())
BACK = found(back(OVER))


def test_a_hand_over_names_both_runbooks_and_why() -> None:
    assert (OVER.from_runbook, OVER.to_runbook, OVER.reason) == (COMPRESSION, THRASH, PRESSED)
    assert (OVER.evidence, OVER.at) == (GROUNDS.digest(PRESSED), NOW)
    assert "fleet: 2.5 per request" in OVER.message
    assert OVER.message.endswith("; PreemptionThrash goes on: FleetWideDemand")


@pytest.mark.parametrize(
    "reason",
    [
        Reason.COMPRESSION_SAVES,
        Reason.COMPRESSION_UNDOUBTED,
        Reason.FIX_WAITS,
        Reason.PRESSED_THOUGH_COMPRESSED,
        Reason.PAGE_SELECTION,
    ],
)
def test_each_branch_that_asks_for_no_change_hands_over(reason: Reason) -> None:
    assert found(over(says(reason))).reason is reason


@pytest.mark.parametrize(
    ("first", "then", "is_pressed"),
    [
        pytest.param(says(Reason.NO_COMPRESSION), None, True, id="a fleet without a method"),
        pytest.param(says(PRESSED), says(Reason.HEALTHY), True, id="the other one is content"),
        pytest.param(says(PRESSED), PARTIAL, False, id="inconclusive, and nobody is pressed"),
    ],
)
def test_what_is_no_hand_over(first: Diagnosis, then: Diagnosis | None, is_pressed: bool) -> None:
    assert over(first, then, is_pressed=is_pressed) is None


@pytest.mark.parametrize("reason", [Reason.METHOD_UNKNOWN, Reason.TRIAL_IMPOSSIBLE, Reason.TRIAL_UNANSWERED])
def test_what_cannot_be_asked_or_answered_is_handed_over(reason: Reason) -> None:
    given = found(over(Inconclusive(reason, "no room")))

    assert (given.reason, given.evidence) == (reason, GROUNDS.digest(reason))
    assert given.message == f"inconclusive: {reason}: no room; PreemptionThrash goes on: FleetWideDemand"


def test_a_pressure_that_the_other_runbook_cannot_judge_is_handed_over() -> None:
    assert found(over(then=PARTIAL)).message.endswith("; PreemptionThrash goes on: PartialPressure")


def test_figures_that_move_are_the_same_evidence() -> None:
    moved = found(over(says(PRESSED, "9.9 per request"), says(Reason.CAPACITY_SHORT)))

    assert moved.is_like(OVER)


SAME = {
    "the same shown again": replace(GROUNDS, answers=(ANSWER, replace(ANSWER, message="again", at=LATER))),
    "a trial that showed nothing": replace(GROUNDS, answers=(ANSWER, replace(ANSWER, reclaim=None))),
    "a score that was none": replace(GROUNDS, scores=(SCORED, replace(SCORED, score=None))),
    "other words for why a fix failed": replace(GROUNDS, failed=(replace(FAILED, why="a loss of 0.201"),)),
    "a failed fix that is on record": replace(GROUNDS, failed=(), turned_off=replace(OFF, failed=(FAILED,))),
    "when it was turned off": replace(GROUNDS, turned_off=replace(OFF, at=LATER)),
}
OTHER = {
    "the spec": replace(GROUNDS, generation=4),
    "the pod template": replace(GROUNDS, template=NEW),
    "the method": replace(GROUNDS, method="Mine"),
    "no method": replace(GROUNDS, method=""),
    "no answer": replace(GROUNDS, answers=()),
    "what a trial showed of blocks": replace(GROUNDS, answers=(replace(ANSWER, reclaim=Reclaim.NONE),)),
    "what a trial showed of prompts": replace(
        GROUNDS, answers=(ANSWER, replace(ANSWER, question=Question.PROMPTS, growth=Growth.SQUARE))
    ),
    "how many blocks a start told": replace(
        GROUNDS, answers=(ANSWER, replace(ANSWER, question=Question.START, reclaim=None, blocks=299))
    ),
    "of which template": replace(GROUNDS, answers=(replace(ANSWER, template=NEW),)),
    "that an engine refused": replace(GROUNDS, answers=(replace(ANSWER, reclaim=None, refused=True),)),
    "a score": replace(GROUNDS, scores=(replace(SCORED, score=Score(0.6, 200)),)),
    "a configuration that was refused": replace(GROUNDS, scores=(replace(SCORED, score=None, refused=True),)),
    "nothing was turned off": replace(GROUNDS, turned_off=None),
    "for another wall": replace(GROUNDS, turned_off=replace(OFF, wall=Reason.EAGER_FALLBACK)),
    "no fix failed": replace(GROUNDS, failed=()),
    "another fix failed": replace(GROUNDS, failed=(replace(FAILED, fix=Fix.COMPACTING_METHOD),)),
    "nothing had to be put back": replace(GROUNDS, kept=()),
}


@pytest.mark.parametrize("grounds", SAME.values(), ids=SAME)
def test_what_is_no_evidence_keeps_the_digest(grounds: Grounds) -> None:
    assert grounds.digest(PRESSED) == GROUNDS.digest(PRESSED)


@pytest.mark.parametrize("grounds", OTHER.values(), ids=OTHER)
def test_each_piece_of_evidence_changes_the_digest(grounds: Grounds) -> None:
    assert grounds.digest(PRESSED) != GROUNDS.digest(PRESSED)


def test_another_branch_that_hands_over_is_other_evidence() -> None:
    assert GROUNDS.digest(Reason.FIX_WAITS) != GROUNDS.digest(PRESSED)
    assert len(GROUNDS.digest(PRESSED)) == 16


def test_the_evidence_is_told_for_a_person() -> None:
    assert GROUNDS.line() == (
        f"spec generation 3, pod template {OLD}, method TriAttention, Theirs turned off, trials: Reclamation "
        "Reclaims"
    )
    assert Grounds(3, OLD).line().endswith(f"{OLD}, trials: none that showed anything")


def test_the_way_back_is_on_the_evidence_that_it_takes_back() -> None:
    assert (BACK.from_runbook, BACK.to_runbook) == (THRASH, COMPRESSION)
    assert (BACK.reason, BACK.evidence, BACK.at) == (Reason.EAGER_FALLBACK, OVER.evidence, LATER)
    assert BACK.takes_back(OVER)
    assert not found(back(OVER, OTHER["no answer"])).takes_back(OVER)


def test_the_word_goes_back_once_and_with_a_plan_only() -> None:
    assert back(None) is None
    assert back(BACK) is None
    assert back(OVER, is_planned=False) is None


def always(_given: HandOver) -> bool:
    return True


def never(_given: HandOver) -> bool:
    return False


OLDER = replace(OVER, evidence="0" * 16)


@pytest.mark.parametrize(
    ("given", "known", "expected"),
    [
        pytest.param(OVER, (), None, id="the first time"),
        pytest.param(OVER, (OVER,), None, id="again, and nothing went back"),
        pytest.param(BACK, (OVER,), None, id="the way back"),
        pytest.param(OVER, (BACK, OVER), BACK, id="there, back and there"),
        pytest.param(BACK, (OVER, BACK), OVER, id="back, there and back"),
        pytest.param(OVER, (OVER, BACK), None, id="again, and what went back went before"),
        pytest.param(OVER, (OLDER, BACK, OVER), BACK, id="with other evidence in between"),
        pytest.param(OLDER, (BACK, OVER), None, id="on other evidence"),
        pytest.param(OVER, (replace(BACK, evidence="1"), OVER), None, id="back on other evidence"),
    ],
)
def test_the_second_hand_over_on_the_same_evidence_is_one_after_a_way_back(
    given: HandOver, known: tuple[HandOver, ...], expected: HandOver | None
) -> None:
    assert taken_back(given, known, always) == expected


def test_a_way_back_on_which_nothing_came_took_nothing_back() -> None:
    assert taken_back(OVER, (BACK, OVER), never) is None
