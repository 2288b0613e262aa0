"""The moves of a trial on a replica: out of rotation, drained, asked, answered, given up."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from core.test_trial_moves import STEP as ON_A_POD
from core.test_trial_moves import watched
from kvmedic.model.compression import Scattered
from kvmedic.model.fleet import Fleet
from kvmedic.model.reasons import Reason
from kvmedic.model.run import StepState, Victim
from kvmedic.model.trial import Interrupted, Progress, Reclaim, Underway
from kvmedic.rollout.draining import Drain
from kvmedic.rollout.moves import Cordon, Failed, Wait
from kvmedic.rollout.preconditions import Purpose, step_refusal
from kvmedic.rollout.trial import Answered, BeginTest, DrainedMove, DrainedSight, drained_move
from run_builder import NOW, a_fleet, a_run

STEP = replace(ON_A_POD, replica="a", replica_uid="uid-a")
WHOLE = a_fleet()
HALF_WAY = Underway(8192, 16_384)


def with_pod(name: str, fleet: Fleet = WHOLE, **changes: object) -> Fleet:
    pods = (replace(pod, **changes) if pod.name == name else pod for pod in fleet.pods)
    return replace(fleet, pods=tuple(pods))


OUT = with_pod("a", cordoned=True, in_rotation=False)
VICTIM = Victim("a", "uid-a", NOW - timedelta(minutes=1), NOW - timedelta(seconds=50))


def moved(
    fleet: Fleet,
    drain: Drain = Drain.IDLE,
    progress: Progress | None = None,
    victim: Victim | None = VICTIM,
    least: int = 1,
    **run_is: object,
) -> DrainedMove:
    run = replace(a_run(StepState.PENDING), victim=victim, **run_is)
    return drained_move(DrainedSight(fleet, drain, progress, least), STEP, run, NOW)


def given_up(move: DrainedMove) -> str:
    assert isinstance(move, Failed), move
    assert move.reason is Reason.TRIAL_UNANSWERED
    return move.message


def test_the_named_replica_leaves_rotation_first() -> None:
    assert moved(WHOLE, Drain.UNKNOWN, victim=None) == Cordon(WHOLE.pods[0])


@pytest.mark.parametrize(
    ("fleet", "drain"),
    [
        (with_pod("a", cordoned=True), Drain.UNKNOWN),
        (OUT, Drain.BUSY),
        (OUT, Drain.UNKNOWN),
    ],
    ids=["still in the EndpointSlices", "busy", "the engine does not tell"],
)
def test_what_runs_on_it_is_waited_for(fleet: Fleet, drain: Drain) -> None:
    move = moved(fleet, drain)

    assert isinstance(move, Wait)
    assert move.reason is Reason.DRAINING


def test_the_test_begins_once_it_is_idle_and_goes_on() -> None:
    assert moved(OUT) == BeginTest(OUT.pods[0])
    assert moved(OUT, Drain.UNKNOWN, HALF_WAY) == Wait(
        Reason.RECLAMATION_PROBED, "a generates: 50 % of 16384 tokens"
    )


def test_requests_that_do_not_end_are_not_talked_over() -> None:
    assert "drainTimeout" in given_up(moved(OUT, Drain.TIMED_OUT))


def test_what_was_seen_is_told_with_the_replica() -> None:
    move = moved(OUT, Drain.UNKNOWN, watched(Scattered()))

    assert isinstance(move, Answered)
    assert move.answer.reclaim is Reclaim.SCATTERED
    assert "on replica a, drained for it, 16384 tokens" in move.answer.message


def test_an_answer_counts_whatever_became_of_the_replica() -> None:
    assert isinstance(moved(replace(WHOLE, pods=WHOLE.pods[1:]), progress=watched(Scattered())), Answered)


@pytest.mark.parametrize("progress", [None, HALF_WAY])
@pytest.mark.parametrize(
    ("fleet", "says"),
    [
        (replace(OUT, pods=OUT.pods[1:]), "a is gone"),
        (with_pod("a", OUT, terminating=True), "a is gone"),
        (with_pod("a", OUT, ready_at=None), "a is not Ready"),
        (with_pod("b", OUT, in_rotation=False), "1 replicas serve beside a, 2 must"),
        (with_pod("b", OUT, ready_at=None), "1 replicas serve beside a, 2 must"),
    ],
)
def test_a_replica_that_is_gone_or_needed_is_given_up(
    fleet: Fleet, says: str, progress: Progress | None
) -> None:
    assert given_up(moved(fleet, progress=progress, least=2)) == says


def test_a_replica_is_needed_where_nobody_else_serves_whatever_is_demanded() -> None:
    alone = replace(OUT, pods=OUT.pods[:1])

    assert given_up(moved(alone, least=0, in_rotation=1)) == "0 replicas serve beside a, 1 must"


def test_as_many_serve_beside_it_as_before() -> None:
    one_fewer = with_pod("b", OUT, ready_at=None)

    assert isinstance(moved(one_fewer, in_rotation=2), BeginTest), "b was down before"
    assert given_up(moved(one_fewer, in_rotation=3)) == "1 replicas serve beside a, 2 must"


def test_a_replica_that_somebody_put_back_is_left_to_requests() -> None:
    assert "put a back" in given_up(moved(WHOLE, Drain.UNKNOWN, HALF_WAY))


def test_an_engine_that_breaks_off_ends_it() -> None:
    assert "answered 400" in given_up(moved(OUT, progress=Interrupted("the engine answered 400")))


def test_a_test_that_is_over_time_is_given_up() -> None:
    run = replace(a_run(StepState.PENDING), victim=VICTIM, started_at=NOW - timedelta(seconds=1801))

    move = drained_move(DrainedSight(OUT, Drain.BUSY, None, 1), STEP, run, NOW)

    assert "1800 s" in given_up(move)


ROTATION = WHOLE.rotation


@pytest.mark.parametrize(
    ("fleet", "reason"),
    [
        (replace(WHOLE, rotation=replace(ROTATION, effective=False)), Reason.TRIAL_IMPOSSIBLE),
        (replace(WHOLE, rotation=replace(ROTATION, in_selector=True)), Reason.TRIAL_IMPOSSIBLE),
        (replace(WHOLE, replicas=1, pods=WHOLE.pods[:1]), Reason.TRIAL_IMPOSSIBLE),
        (with_pod("b", ready_at=None, unready_at=NOW), Reason.TARGET_NOT_SETTLED),
        (with_pod("b", cordoned=True), Reason.TARGET_NOT_SETTLED),
    ],
    ids=["no effect", "in the selector", "the only one", "a peer is down", "a peer is out of rotation"],
)
def test_nothing_is_begun_on_a_fleet_that_cannot_spare_it(fleet: Fleet, reason: Reason) -> None:
    refused = step_refusal(fleet, STEP, Purpose.RELIEF)

    assert refused is not None
    assert refused.reason is reason
    assert isinstance(moved(fleet, Drain.UNKNOWN, victim=None, least=0), Failed)


def test_a_whole_fleet_is_allowed() -> None:
    assert step_refusal(WHOLE, STEP, Purpose.RELIEF) is None
