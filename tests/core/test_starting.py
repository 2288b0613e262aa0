"""Whether a new replica comes up, and how long it may take."""

from __future__ import annotations

from datetime import timedelta

import pytest

from kvmedic.core.evidence import Absence, Measured, Missing, Pool, Reading, Stale, Unsupported
from kvmedic.core.moves import Failed, Wait
from kvmedic.core.starting import StartLimits, canary_pool_move
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
