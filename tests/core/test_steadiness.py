"""The verdict on a change that is to end restarts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builders import NO_SERIES, STALE, THRASHING, TRIGGER, Nothing, Replica, an_observation, without
from kvmedic.model.evidence import Observation, Signal
from kvmedic.model.reasons import Reason
from kvmedic.model.run import Judged, Verdict
from kvmedic.model.spec import Objectives, OnInconclusive
from kvmedic.verdict.baseline import FEWEST_FINISHED
from kvmedic.verdict.goals import judge_steadiness
from kvmedic.verdict.vetoes import VerdictInput, keep_first_replicas


def seen(looked: Observation, restarts: int = 0) -> VerdictInput:
    return VerdictInput(None, looked, Objectives(), TRIGGER, restarts)


def busy(finished: float) -> Replica:
    return Replica(finished=finished, preemptions=0, stalls=0)


@pytest.mark.parametrize(
    ("finished", "restarts", "verdict"),
    [
        (FEWEST_FINISHED, 0, Verdict.RECOVERED),
        (FEWEST_FINISHED - 1, 0, Verdict.INCONCLUSIVE),
        (0, 0, Verdict.INCONCLUSIVE),
        (0, 1, Verdict.NOT_RECOVERED),
        (1000, 1, Verdict.NOT_RECOVERED),
    ],
    ids=["enough traffic", "one request too few", "no traffic", "a restart without traffic", "a restart"],
)
def test_staying_up_under_load_is_what_counts(finished: float, restarts: int, verdict: Verdict) -> None:
    found = judge_steadiness(seen(an_observation(busy(finished)), restarts))

    assert found.verdict is verdict


def test_the_traffic_is_that_of_the_whole_fleet() -> None:
    share = FEWEST_FINISHED / 2

    found = judge_steadiness(seen(an_observation(busy(share), busy(share), window_seconds=600)))

    assert (found.verdict, found.reason) == (Verdict.RECOVERED, Reason.RECOVERED)
    assert found.message == "none of 2 replicas restarted; 50 requests finished in 600 s"


def test_preemptions_do_not_decide_it() -> None:
    assert judge_steadiness(seen(an_observation(THRASHING))).verdict is Verdict.RECOVERED


@pytest.mark.parametrize(
    ("why", "reason"), [(NO_SERIES, Reason.METRICS_MISSING), (STALE, Reason.METRICS_STALE)]
)
def test_a_replica_that_cannot_be_read_proves_nothing(why: Nothing, reason: Reason) -> None:
    silent = without(busy(500).readings(), Signal.REQUESTS_FINISHED, why)

    found = judge_steadiness(seen(an_observation(busy(500), silent)))

    assert (found.verdict, found.reason) == (Verdict.INCONCLUSIVE, reason)


@pytest.mark.parametrize(
    ("verdict", "up", "otherwise", "expected"),
    [
        (Verdict.NOT_RECOVERED, 1, OnInconclusive.HOLD, Verdict.IMPROVED),
        (Verdict.NOT_RECOVERED, 0, OnInconclusive.HOLD, Verdict.NOT_RECOVERED),
        (Verdict.INCONCLUSIVE, 1, OnInconclusive.ROLL_BACK, Verdict.IMPROVED),
        (Verdict.INCONCLUSIVE, 1, OnInconclusive.HOLD, Verdict.INCONCLUSIVE),
        (Verdict.INCONCLUSIVE, 0, OnInconclusive.ROLL_BACK, Verdict.INCONCLUSIVE),
        (Verdict.RECOVERED, 2, OnInconclusive.ROLL_BACK, Verdict.RECOVERED),
        (Verdict.IMPROVED, 2, OnInconclusive.HOLD, Verdict.IMPROVED),
    ],
    ids=[
        "one is up, and some restarted",
        "none is up",
        "one is up, and nobody can say more",
        "held until somebody can",
        "none is up, and nobody can say more",
        "recovered",
        "improved",
    ],
)
def test_replicas_that_are_up_where_none_was_are_not_taken_away_again(
    verdict: Verdict, up: int, otherwise: OnInconclusive, expected: Verdict
) -> None:
    given = replace(seen(an_observation()), first_up=up, on_inconclusive=otherwise)

    found = keep_first_replicas(Judged(verdict, Reason(verdict.value), "so it is"), given)

    assert (found.verdict, found.reason) == (expected, Reason(expected.value))
    assert found.message.startswith("so it is")
    assert ("none was before" in found.message) is (expected is not verdict)
