"""The one next move of an open run, as a table."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvmedic.model.evidence import Blocked
from kvmedic.model.reasons import Reason
from kvmedic.model.run import ComparisonState, Judged, Outcome, ReplicaComparison, StepState, Verdict
from kvmedic.model.spec import OnInconclusive, answer_to_no_verdict
from kvmedic.model.status import Wish
from kvmedic.rollout.decide import (
    Close,
    Direction,
    Keep,
    Leave,
    Rest,
    Situation,
    TurnBack,
    Walk,
    Watch,
    decide,
)
from kvmedic.rollout.drift import Standing
from run_builder import CONFIG, NOW, REPLACE, ROLLBACK, SCALE, a_run, a_scaling, an_intent

SUSPENDED = Blocked(Reason.SUSPENDED, "suspended")
ENDING = Outcome(Reason.RECOVERED, "better")
S, V, C = StepState, Verdict, ComparisonState


def judged(verdict: Verdict) -> Judged:
    return Judged(verdict, Reason(verdict.value), "numbers")


def unjudged(reason: Reason, why: str = "") -> Judged:
    return Judged(Verdict.INCONCLUSIVE, reason, f"{reason.sentence}{why}")


def seen(
    standing=Standing.AS_RECORDED,
    wish=Wish.NONE,
    blocked=None,
    verdict=None,
    answer=OnInconclusive.HOLD,
    beside=None,
) -> Situation:
    compared = ReplicaComparison(NOW, ("new-0",), beside, "figures") if beside else None
    return Situation(standing, wish, blocked, judged(verdict) if verdict else None, answer, compared)


REPLACING = a_run(S.ROLLING_OUT, a_scaling(1, 3, 4), step=REPLACE)
REPLACED = a_run(S.VERIFYING, a_scaling(2, 4, 3), step=REPLACE)
ADDING = a_run(S.ROLLING_OUT, a_scaling(1, 3, 4), step=SCALE)
ADDED = a_run(S.VERIFYING, a_scaling(1, 3, 4), step=SCALE)
RETURNING = a_run(S.ROLLING_OUT, a_scaling(2, 4, 3), step=SCALE.inverse())
RETURNED = a_run(S.VERIFYING, a_scaling(2, 4, 3), step=SCALE.inverse())
GIVING = replace(CONFIG, reason=Reason.HOST_MEMORY_GIVEN_BACK)
UNLENDING = a_run(S.ROLLING_OUT, an_intent(), step=GIVING)
RESTORING = a_run(S.VERIFYING, an_intent(), step=GIVING)
ROWS = [
    (
        "deleted while host memory is given back: on",
        UNLENDING,
        seen(wish=Wish.DELETE, blocked=SUSPENDED),
        Walk(Direction.FORWARD),
    ),
    ("deleted before that began: on", a_run(step=GIVING), seen(wish=Wish.DELETE), Walk(Direction.FORWARD)),
    ("deleted when it was given back: close", RESTORING, seen(wish=Wish.DELETE), "Close"),
    (
        "deleted while it is given back, and the file changed: theirs counts",
        UNLENDING,
        seen(Standing.SOURCE_CHANGED, wish=Wish.DELETE),
        "TurnBack",
    ),
    (
        "deleted before that began, and the file changed: planned anew",
        a_run(step=GIVING),
        seen(Standing.SOURCE_CHANGED, wish=Wish.DELETE),
        "Close",
    ),
    (
        "deleted while what did not hold is set again: on",
        a_run(S.ROLLING_BACK, an_intent(), step=GIVING),
        seen(wish=Wish.DELETE),
        Walk(Direction.BACK),
    ),
    ("without host memory it is not calm: set again", RESTORING, seen(verdict=V.NOT_RECOVERED), "TurnBack"),
    ("without host memory it is calm: kept", RESTORING, seen(verdict=V.RECOVERED), "Keep"),
    ("a recorded plan begins", a_run(), seen(), Walk(Direction.FORWARD)),
    ("a walk goes on", a_run(S.ROLLING_OUT, an_intent()), seen(), Walk(Direction.FORWARD)),
    (
        "new replicas are compared with old ones: the fleet rests",
        a_run(S.ROLLING_OUT, an_intent()),
        seen(beside=C.WATCHING),
        Rest(Reason.COMPARING_REPLICAS, "figures"),
    ),
    (
        "new replicas serve no worse: on",
        a_run(S.ROLLING_OUT, an_intent()),
        seen(beside=C.GO_ON),
        Walk(Direction.FORWARD),
    ),
    (
        "they cannot be compared: on, and judged afterwards",
        a_run(S.ROLLING_OUT, an_intent()),
        seen(beside=C.NOT_COMPARABLE),
        Walk(Direction.FORWARD),
    ),
    (
        "they serve worse: take back",
        a_run(S.ROLLING_OUT, an_intent()),
        seen(beside=C.ROLL_BACK),
        TurnBack(Outcome(Reason.NOT_RECOVERED, "figures"), V.NOT_RECOVERED),
    ),
    (
        "there was no verdict on them in time: take back",
        a_run(S.ROLLING_OUT, an_intent()),
        seen(beside=C.UNJUDGED),
        TurnBack(Outcome(Reason.INCONCLUSIVE, "figures"), V.INCONCLUSIVE),
    ),
    (
        "a person lets the change stay while replicas are compared: on",
        a_run(S.ROLLING_OUT, an_intent()),
        seen(wish=Wish.KEEP, beside=C.WATCHING),
        Walk(Direction.FORWARD),
    ),
    (
        "a person takes it back while replicas are compared",
        a_run(S.ROLLING_OUT, an_intent()),
        seen(wish=Wish.ROLL_BACK, beside=C.WATCHING),
        "TurnBack",
    ),
    (
        "deleted while replicas are compared: walk back",
        a_run(S.ROLLING_OUT, an_intent()),
        seen(wish=Wish.DELETE, beside=C.WATCHING),
        "TurnBack",
    ),
    (
        "abandoned while replicas are compared: leave",
        a_run(S.ROLLING_OUT, an_intent()),
        seen(wish=Wish.ABANDON, beside=C.WATCHING),
        "Leave",
    ),
    (
        "suspended while replicas are compared: that is reported",
        a_run(S.ROLLING_OUT, an_intent()),
        seen(blocked=SUSPENDED, beside=C.GO_ON),
        Rest(Reason.SUSPENDED, "suspended"),
    ),
    (
        "somebody edits the template while replicas are compared: leave it",
        a_run(S.ROLLING_OUT, an_intent()),
        seen(Standing.DRIFTED, beside=C.WATCHING),
        "Leave",
    ),
    (
        "replicas that were compared say nothing on the way back",
        a_run(S.ROLLING_BACK, an_intent()),
        seen(beside=C.WATCHING),
        Walk(Direction.BACK),
    ),
    ("a way back goes on", a_run(S.ROLLING_BACK, an_intent()), seen(), Walk(Direction.BACK)),
    (
        "a way back goes on while suspended",
        a_run(S.ROLLING_BACK, an_intent()),
        seen(blocked=SUSPENDED),
        Walk(Direction.BACK),
    ),
    (
        "suspended before the first effect: nothing was done, so the run closes",
        a_run(),
        seen(blocked=SUSPENDED),
        Close(Outcome(Reason.SUSPENDED, "suspended")),
    ),
    (
        "suspended in the middle: the fleet rests",
        a_run(S.ROLLING_OUT, an_intent()),
        seen(blocked=SUSPENDED),
        Rest(Reason.SUSPENDED, "suspended"),
    ),
    ("the window is open: watch", a_run(S.VERIFYING, an_intent()), seen(), "Watch"),
    (
        "recovered: keep",
        a_run(S.VERIFYING, an_intent()),
        seen(verdict=V.RECOVERED),
        Keep(judged(V.RECOVERED)),
    ),
    ("improved: keep", a_run(S.VERIFYING, an_intent()), seen(verdict=V.IMPROVED), Keep(judged(V.IMPROVED))),
    (
        "not recovered: take back",
        a_run(S.VERIFYING, an_intent()),
        seen(verdict=V.NOT_RECOVERED),
        TurnBack(Outcome(Reason.NOT_RECOVERED, "numbers"), V.NOT_RECOVERED),
    ),
    (
        "inconclusive: hold",
        a_run(S.VERIFYING, an_intent()),
        seen(verdict=V.INCONCLUSIVE),
        Watch(Reason.INCONCLUSIVE, "numbers"),
    ),
    (
        "inconclusive and set to roll back: take back",
        a_run(S.VERIFYING, an_intent()),
        seen(verdict=V.INCONCLUSIVE, answer=OnInconclusive.ROLL_BACK),
        TurnBack(Outcome(Reason.INCONCLUSIVE, "numbers"), V.INCONCLUSIVE),
    ),
    (
        "inconclusive and set to keep: it stays, unjudged",
        a_run(S.VERIFYING, an_intent()),
        seen(verdict=V.INCONCLUSIVE, answer=OnInconclusive.KEEP),
        Keep(unjudged(Reason.KEPT_UNJUDGED, " (numbers)")),
    ),
    (
        "a person lets it stay while the window is open",
        a_run(S.VERIFYING, an_intent()),
        seen(wish=Wish.KEEP),
        Keep(unjudged(Reason.KEPT_BY_HAND)),
    ),
    (
        "a person lets it stay without a verdict",
        a_run(S.VERIFYING, an_intent()),
        seen(wish=Wish.KEEP, verdict=V.INCONCLUSIVE),
        Keep(unjudged(Reason.KEPT_BY_HAND, " (numbers)")),
    ),
    (
        "a person lets it stay, and it did harm: taken back",
        a_run(S.VERIFYING, an_intent()),
        seen(wish=Wish.KEEP, verdict=V.NOT_RECOVERED),
        TurnBack(Outcome(Reason.NOT_RECOVERED, "numbers"), V.NOT_RECOVERED),
    ),
    (
        "a person lets it stay before it is everywhere: on",
        a_run(S.ROLLING_OUT, an_intent()),
        seen(wish=Wish.KEEP),
        Walk(Direction.FORWARD),
    ),
    (
        "a person lets it stay while it is taken back: on",
        a_run(S.ROLLING_BACK, an_intent(), ENDING),
        seen(wish=Wish.KEEP),
        Walk(Direction.BACK),
    ),
    ("kept: close", a_run(S.KEPT, an_intent(), ENDING), seen(), Close(ENDING)),
    (
        "kept and then deleted: close",
        a_run(S.KEPT, an_intent(), ENDING),
        seen(wish=Wish.DELETE),
        Close(ENDING),
    ),
    (
        "kept, and the claim is off already: still closes as what it was",
        a_run(S.KEPT, an_intent(), ENDING),
        seen(Standing.FENCE_LOST),
        Close(ENDING),
    ),
    ("reverted: close", a_run(S.REVERTED, an_intent(), ENDING), seen(), Close(ENDING)),
    ("left: go on leaving", a_run(S.LEFT, an_intent(), ENDING), seen(Standing.DRIFTED), Leave(ENDING)),
    (
        "somebody else's template: leave it",
        a_run(S.ROLLING_OUT, an_intent()),
        seen(Standing.DRIFTED),
        "Leave",
    ),
    (
        "somebody put the old setting back: leave it, and remember",
        a_run(S.ROLLING_OUT, an_intent()),
        seen(Standing.REVERTED),
        Leave(Outcome(Reason.CHANGE_REVERTED, Reason.CHANGE_REVERTED.sentence)),
    ),
    ("drift on the way back: leave it", a_run(S.ROLLING_BACK, an_intent()), seen(Standing.DRIFTED), "Leave"),
    ("the target is gone: close", a_run(S.ROLLING_OUT, an_intent()), seen(Standing.GONE), "Close"),
    ("the claim is another's: close", a_run(S.ROLLING_OUT, an_intent()), seen(Standing.FENCE_LOST), "Close"),
    (
        "deleted in the middle: walk back",
        a_run(S.ROLLING_OUT, an_intent()),
        seen(wish=Wish.DELETE),
        "TurnBack",
    ),
    (
        "deleted while verifying: walk back",
        a_run(S.VERIFYING, an_intent()),
        seen(wish=Wish.DELETE),
        "TurnBack",
    ),
    ("deleted before the first effect: close", a_run(), seen(wish=Wish.DELETE), "Close"),
    ("abandoned: leave", a_run(S.ROLLING_OUT, an_intent()), seen(wish=Wish.ABANDON), "Leave"),
    ("asked to roll back: walk back", a_run(S.VERIFYING, an_intent()), seen(wish=Wish.ROLL_BACK), "TurnBack"),
    (
        "scaled to zero: the old template comes back",
        a_run(S.VERIFYING, an_intent()),
        seen(Standing.SCALED_TO_ZERO),
        "TurnBack",
    ),
    (
        "a way back to another revision did not help: it is taken back",
        a_run(S.VERIFYING, an_intent(), step=ROLLBACK),
        seen(verdict=V.NOT_RECOVERED),
        TurnBack(Outcome(Reason.NOT_RECOVERED, "numbers"), V.NOT_RECOVERED),
    ),
    (
        "the ConfigMap was edited before the first effect: close",
        a_run(step=CONFIG),
        seen(Standing.SOURCE_CHANGED),
        Close(Outcome(Reason.CONFIG_MAP_CHANGED, Reason.CONFIG_MAP_CHANGED.sentence)),
    ),
    (
        "the ConfigMap was edited in the middle: walk back",
        a_run(S.ROLLING_OUT, an_intent(), step=CONFIG),
        seen(Standing.SOURCE_CHANGED),
        TurnBack(Outcome(Reason.CONFIG_MAP_CHANGED, Reason.CONFIG_MAP_CHANGED.sentence)),
    ),
    (
        "the ConfigMap was edited while the change is verified: walk back, whatever the verdict",
        a_run(S.VERIFYING, an_intent(), step=CONFIG),
        seen(Standing.SOURCE_CHANGED, verdict=V.RECOVERED),
        "TurnBack",
    ),
    (
        "the ConfigMap was edited on the way back: go on",
        a_run(S.ROLLING_BACK, an_intent(), step=CONFIG),
        seen(Standing.SOURCE_CHANGED),
        Walk(Direction.BACK),
    ),
    ("a replacement begins", a_run(step=REPLACE), seen(), Walk(Direction.FORWARD)),
    ("somebody scaled: leave it", REPLACING, seen(Standing.RESCALED), "Leave"),
    ("somebody scaled to zero: leave it", REPLACING, seen(Standing.SCALED_TO_ZERO), "Leave"),
    ("a replacement is deleted in the middle: walk back", REPLACING, seen(wish=Wish.DELETE), "TurnBack"),
    (
        "deleted while a replacement is verified: nothing to take back",
        REPLACED,
        seen(wish=Wish.DELETE),
        Close(Outcome(Reason.RESOURCE_DELETED, "it was done already; nothing is left to take back")),
    ),
    ("a replacement helped: keep", REPLACED, seen(verdict=V.RECOVERED), Keep(judged(V.RECOVERED))),
    (
        "a replacement did not help: it stays, as nothing brings the replica back",
        REPLACED,
        seen(verdict=V.NOT_RECOVERED),
        Keep(judged(V.NOT_RECOVERED)),
    ),
    (
        "nothing can be said about a replacement: hold",
        REPLACED,
        seen(verdict=V.INCONCLUSIVE),
        Watch(Reason.INCONCLUSIVE, "numbers"),
    ),
    ("replicas are added", a_run(step=SCALE), seen(), Walk(Direction.FORWARD)),
    ("more did not help: they go", ADDED, seen(verdict=V.NOT_RECOVERED), "TurnBack"),
    ("somebody scaled while more are added: leave it", ADDING, seen(Standing.RESCALED), "Leave"),
    ("somebody scaled while more are verified: leave it", ADDED, seen(Standing.RESCALED), "Leave"),
    ("scaled to zero while more are added: leave it", ADDING, seen(Standing.SCALED_TO_ZERO), "Leave"),
    ("deleted while more are added: they go", ADDING, seen(wish=Wish.DELETE), "TurnBack"),
    ("deleted while more are verified: they go", ADDED, seen(wish=Wish.DELETE), "TurnBack"),
    ("suspended while replicas are given back: the fleet rests", RETURNING, seen(blocked=SUSPENDED), "Rest"),
    (
        "deleted while replicas are given back: it goes on, whatever is stopped",
        RETURNING,
        seen(wish=Wish.DELETE, blocked=SUSPENDED),
        Walk(Direction.FORWARD),
    ),
    (
        "deleted before the first is given back: it goes on",
        a_run(step=SCALE.inverse()),
        seen(wish=Wish.DELETE, blocked=SUSPENDED),
        Walk(Direction.FORWARD),
    ),
    (
        "deleted after the last was given back: nobody waits for a verdict",
        RETURNED,
        seen(wish=Wish.DELETE),
        Close(Outcome(Reason.RESOURCE_DELETED, Reason.RESOURCE_DELETED.sentence)),
    ),
    (
        "asked to roll back while replicas are given back: they come back",
        RETURNING,
        seen(wish=Wish.ROLL_BACK),
        "TurnBack",
    ),
    ("fewer are too few: they come back", RETURNED, seen(verdict=V.NOT_RECOVERED), "TurnBack"),
    ("fewer are enough: keep", RETURNED, seen(verdict=V.RECOVERED), Keep(judged(V.RECOVERED))),
    ("abandoned while replicas are added: leave", ADDING, seen(wish=Wish.ABANDON), "Leave"),
    (
        "nothing can be said about a replacement, and set to roll back: it ends",
        REPLACED,
        seen(verdict=V.INCONCLUSIVE, answer=OnInconclusive.ROLL_BACK),
        Keep(judged(V.INCONCLUSIVE)),
    ),
]


HOUR = timedelta(hours=1)


@pytest.mark.parametrize(
    ("asked", "held", "answer"),
    [
        ("Hold", 2 * HOUR, "Hold"),
        ("Hold", 2.01 * HOUR, "RollBack"),
        ("Hold", -HOUR, "Hold"),
        ("Keep", 2 * HOUR, "Hold"),
        ("Keep", 2.01 * HOUR, "Keep"),
        ("RollBack", 0 * HOUR, "RollBack"),
    ],
)
def test_how_long_a_verdict_is_waited_for(asked: str, held: timedelta, answer: str) -> None:
    assert answer_to_no_verdict(OnInconclusive(asked), held, 2 * HOUR) == OnInconclusive(answer)


@pytest.mark.parametrize(
    ("run", "situation", "expected"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS]
)
def test_the_next_move(run, situation, expected):
    decision = decide(run, situation)

    assert type(decision).__name__ == expected if isinstance(expected, str) else decision == expected


@settings(deadline=None)
@given(verdicts=st.lists(st.sampled_from([V.RECOVERED, V.IMPROVED, V.NOT_RECOVERED]), min_size=1, max_size=5))
def test_every_sequence_of_verdicts_ends_within_two_moves_a_step_and_two(verdicts):
    run = a_run()
    moves = 0
    for _ in range(50):
        state = run.current.state
        verdict = verdicts[0] if state is S.VERIFYING else None
        decision = decide(run, seen(verdict=verdict))
        moves += 1
        match decision:
            case Close():
                break
            case Keep(judgement):
                run = run.keep_step(judgement)
            case TurnBack(outcome, why):
                run = run.turn_step_back(outcome, why)
            case Walk(Direction.FORWARD):
                run = run.open_verification(NOW)
            case Walk(Direction.BACK):
                run = run.end_reverted()
            case _:
                raise AssertionError(decision)

    assert isinstance(decision, Close)
    assert moves <= 2 * len(run.steps) + 2
