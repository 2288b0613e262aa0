"""Whether a new replica comes up, and how long it may take."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from kvmedic.model.evidence import Absence, Measured, Missing, Pool, Reading, Stale, Unsupported
from kvmedic.model.fleet import Pod
from kvmedic.rollout.moves import Failed, Wait
from kvmedic.rollout.start_failure import StartLimits, canary_pool_move, start_limit, unready_since
from run_builder import NEW, NOW, a_pod

LIMITS = StartLimits(timedelta(seconds=600), timedelta(seconds=120))


def pool(blocks: int) -> Reading[Pool]:
    return Measured(Pool(blocks, 16, "auto", True), NOW)


@pytest.mark.parametrize(
    ("found", "least", "age", "expected"),
    [
        (pool(90), 100, 60, None),
        (pool(89), 100, 60, Failed),
        (pool(1), 0, 60, None),
        (Unsupported(), 100, 60, None),
        (Unsupported(), 0, 60, None),
        (Missing(Absence.NOTHING_FOUND), 0, 60, None),
        (Missing(Absence.NOTHING_FOUND), 100, 600, Wait),
        (Missing(Absence.NOTHING_FOUND), 100, 601, Failed),
        (Missing(Absence.SOURCE_UNAVAILABLE), 0, 600, Wait),
        (Missing(Absence.SOURCE_UNAVAILABLE), 0, 601, Failed),
        (Stale(NOW), 100, 60, Wait),
    ],
    ids=[
        "as many blocks as it must have",
        "one block too few",
        "nothing to compare with",
        "an engine without a figure of its pool",
        "an engine without one, before and now",
        "no series of a pool, before and now",
        "no series of a pool yet",
        "no series of a pool in time",
        "no answer yet",
        "no answer in time",
        "an old answer",
    ],
)
def test_what_a_canarys_pool_says(
    found: Reading[Pool], least: int, age: float, expected: type[Failed | Wait] | None
) -> None:
    pod = a_pod("new", NEW, created_at=NOW - timedelta(seconds=age))

    move = canary_pool_move(pod, found, least, LIMITS, NOW)

    assert (None if move is None else type(move)) == expected


MINUTE = timedelta(minutes=1)


@pytest.mark.parametrize(
    ("pod", "since"),
    [
        (a_pod("x", ready_at=None, unready_for=3 * MINUTE, unready_at=NOW), NOW - 3 * MINUTE),
        (a_pod("x", ready_at=None, unready_at=NOW - 2 * MINUTE), NOW - 2 * MINUTE),
        (a_pod("x", ready_at=None, created_at=NOW - MINUTE), NOW - MINUTE),
    ],
    ids=["by who watches it", "by what the API server says", "since it was made"],
)
def test_since_when_a_replica_is_not_ready(pod: Pod, since: datetime) -> None:
    assert unready_since(pod, NOW) == since


def started(minutes: float, restarts: int = 0) -> Pod:
    """A replica that became Ready so long after it was made."""
    return a_pod("x", created_at=NOW - minutes * MINUTE, ready_at=NOW, restarts=restarts)


@pytest.mark.parametrize(
    ("deadline", "timeout", "pods", "minutes"),
    [
        (None, None, (), 10),
        (0, None, (), 10),
        (300, None, (), 5),
        (300, 20 * MINUTE, (), 20),
        (1800, 20 * MINUTE, (), 30),
        (300, None, (started(2), started(8)), 16),
        (300, None, (started(60),), 120),
        (300, None, (started(60.1),), 5),
        (300, None, (started(8, restarts=1),), 5),
        (300, None, (a_pod("x", created_at=NOW - 30 * MINUTE, ready_at=None),), 5),
        (300, None, (started(-5),), 5),
    ],
    ids=[
        "nobody says anything",
        "a deadline of zero",
        "the Deployment's deadline",
        "a spec that allows more",
        "a spec that allows less than the Deployment",
        "twice the slowest start",
        "the longest start that is believed",
        "a probe that failed in between",
        "a start that was tried twice",
        "a replica that is not Ready",
        "times that contradict each other",
    ],
)
def test_how_long_a_start_may_take(
    deadline: int | None, timeout: timedelta | None, pods: tuple[Pod, ...], minutes: float
) -> None:
    assert start_limit(deadline, timeout, pods) == minutes * MINUTE
