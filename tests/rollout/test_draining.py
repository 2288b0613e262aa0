"""What counts of requests, and the time that passed, say of a drain."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from kvmedic.model.evidence import Absence, Measured, Missing, Reading, Stale
from kvmedic.rollout.draining import ZERO_COUNTS, Drain, drain_by_counts, drain_of_unreached, drain_past_limit
from run_builder import NOW, a_pod

QUIET = timedelta(seconds=5)
SOON = timedelta(seconds=4.9)
NONE, ONE = Measured(0.0, NOW), Measured(1.0, NOW)
SILENT, UNFOUND, OLD = Missing(Absence.SOURCE_UNAVAILABLE), Missing(Absence.NOTHING_FOUND), Stale(NOW)


@pytest.mark.parametrize(
    ("out", "counts", "drain"),
    [
        (SOON, [], Drain.BUSY),
        (SOON, [NONE] * ZERO_COUNTS, Drain.BUSY),
        (QUIET, [], None),
        (QUIET, [NONE], None),
        (QUIET, [NONE] * (ZERO_COUNTS - 1), None),
        (QUIET, [NONE] * ZERO_COUNTS, Drain.IDLE),
        (QUIET, [ONE], Drain.BUSY),
        (QUIET, [NONE, ONE], Drain.BUSY),
        (QUIET, [SILENT], Drain.UNKNOWN),
        (QUIET, [NONE, SILENT], Drain.UNKNOWN),
        (QUIET, [OLD], Drain.UNKNOWN),
    ],
)
def test_a_drain_ends_with_two_counts_of_zero_after_a_while(
    out: timedelta, counts: list[Reading[float]], drain: Drain | None
) -> None:
    assert drain_by_counts(out, QUIET, counts) is drain


def test_more_than_one_count_of_zero_is_needed() -> None:
    assert ZERO_COUNTS == 2


@pytest.mark.parametrize(
    ("count", "drain"),
    [
        (NONE, Drain.DOWN),
        (ONE, Drain.BUSY),
        (SILENT, Drain.DOWN),
        (UNFOUND, Drain.UNKNOWN),
        (OLD, Drain.UNKNOWN),
    ],
)
def test_a_replica_that_no_service_reaches_needs_one_count(count: Reading[float], drain: Drain) -> None:
    assert drain_of_unreached(count) is drain


@pytest.mark.parametrize("proceeds", [False, True])
@pytest.mark.parametrize("found", Drain)
def test_past_its_limit_only_an_idle_replica_goes_unless_the_spec_says_so(
    found: Drain, proceeds: bool
) -> None:
    gone, late = replace(a_pod("a", "old"), in_rotation=False), Drain.TIMED_OUT if proceeds else Drain.HELD
    idle = found in (Drain.IDLE, Drain.DOWN)

    assert drain_past_limit(found, gone, proceeds=proceeds) is (found if idle else late)
    assert drain_past_limit(found, replace(gone, in_rotation=True), proceeds=proceeds) is late


def test_past_its_limit_a_replica_that_is_down_goes_whatever_the_spec_says() -> None:
    down = replace(a_pod("a", "old"), in_rotation=False, ready_at=None, is_stopped=True)

    assert down.is_unreached
    assert drain_past_limit(Drain.UNKNOWN, down, proceeds=False) is Drain.TIMED_OUT
