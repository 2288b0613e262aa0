"""Maintenance windows: wall-clock times of a zone, over midnight and over the changes of the clocks."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvmedic.model.spec import DAYS, MaintenanceWindow
from kvmedic.rollout.gates.opening import is_window_open, next_opening

BERLIN = ZoneInfo("Europe/Berlin")
OFFICE = MaintenanceWindow(frozenset({"Mon", "Tue"}), time(9), time(17), ZoneInfo("UTC"))
NIGHT = MaintenanceWindow(frozenset({"Sat"}), time(22), time(6), BERLIN)
ALL_DAY = MaintenanceWindow(frozenset({"Wed"}), time(0), time(0), ZoneInfo("UTC"))


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("window", "now", "expected"),
    [
        (OFFICE, "2026-11-23T09:00", True),
        (OFFICE, "2026-11-23T08:59:59", False),
        (OFFICE, "2026-11-23T17:00", False),
        (OFFICE, "2026-11-25T12:00", False),
        (NIGHT, "2026-11-21T20:59", False),
        (NIGHT, "2026-11-21T21:00", True),
        (NIGHT, "2026-11-22T04:59", True),
        (NIGHT, "2026-11-22T05:00", False),
        (NIGHT, "2026-11-22T22:00", False),
        (NIGHT, "2026-07-04T20:00", True),
        (NIGHT, "2026-07-05T04:00", False),
        (ALL_DAY, "2026-11-25T00:00", True),
        (ALL_DAY, "2026-11-25T23:59", True),
        (ALL_DAY, "2026-11-26T00:00", False),
    ],
)
def test_when_a_window_is_open(window: MaintenanceWindow, now: str, expected: bool) -> None:
    assert is_window_open([window], at(now)) is expected


def test_without_windows_every_time_is_open() -> None:
    assert is_window_open([], at("2026-11-21T12:00"))


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        ("2026-11-21T12:00", "2026-11-21T21:00"),
        ("2026-11-22T05:00", "2026-11-23T09:00"),
        ("2026-11-24T17:00", "2026-11-28T21:00"),
        ("2026-03-28T12:00", "2026-03-28T21:00"),
        ("2026-04-02T12:00", "2026-04-04T20:00"),
    ],
    ids=["today", "the other window", "days ahead", "the night of the change", "summer time"],
)
def test_when_the_next_window_opens(now: str, expected: str) -> None:
    assert next_opening([OFFICE, NIGHT], at(now)) == at(expected)


def test_a_night_in_which_the_clocks_change_is_an_hour_shorter_or_longer() -> None:
    window = MaintenanceWindow(frozenset({"Sun"}), time(1), time(5), BERLIN)

    (spring,) = [turn for turn in window.around(at("2026-03-29T12:00")) if turn[1].day == 29]
    (autumn,) = [turn for turn in window.around(at("2026-10-25T12:00")) if turn[1].day == 25]

    assert spring[1] - spring[0] == timedelta(hours=3)
    assert autumn[1] - autumn[0] == timedelta(hours=5)


@given(
    days=st.sets(st.sampled_from(DAYS), min_size=1),
    start=st.times().map(lambda t: t.replace(second=0, microsecond=0)),
    end=st.times().map(lambda t: t.replace(second=0, microsecond=0)),
    now=st.integers(0, 2 * 365 * 24 * 60).map(lambda n: at("2026-01-01T00:00") + timedelta(minutes=n)),
)
def test_outside_of_a_window_it_opens_next_within_a_week_and_not_before(
    days: set[str], start: time, end: time, now: datetime
) -> None:
    windows = [MaintenanceWindow(frozenset(days), start, end, BERLIN)]

    if not is_window_open(windows, now):
        opens = next_opening(windows, now)
        assert now < opens <= now + timedelta(days=7, hours=1)
        assert is_window_open(windows, opens)
        assert not is_window_open(windows, opens - timedelta(microseconds=1))
