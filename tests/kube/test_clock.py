"""How long something has been seen, and the API server's time, whatever this machine's clock shows."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from kvmedic.kube.clock import ServerClock, Stopwatch

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


@dataclass
class Hand:
    """A monotonic clock that a test moves."""

    seconds: float = 1000.0

    def __call__(self) -> float:
        return self.seconds


def test_time_is_counted_from_when_something_was_first_seen_and_anew_by_a_successor() -> None:
    hand = Hand()
    watch = Stopwatch(hand)
    first = watch.measure_wait("r", "run-1", "drain", "a")
    hand.seconds += 60

    assert first == timedelta(0)
    assert watch.measure_wait("r", "run-1", "drain", "a") == timedelta(seconds=60)
    assert watch.measure_wait("r", "run-1", "drain", "b") == timedelta(0)
    assert watch.measure_wait("other", "run-1", "drain", "a") == timedelta(0)
    assert Stopwatch(hand).measure_wait("r", "run-1", "drain", "a") == timedelta(0)


def test_what_was_seen_of_an_earlier_run_or_before_another_led_is_forgotten() -> None:
    hand = Hand()
    watch = Stopwatch(hand)
    for forget in (
        lambda: watch.forget("r"),
        watch.forget_all,
        lambda: watch.measure_wait("r", "run-2", "drain"),
    ):
        watch.measure_wait("r", "run-1", "drain")
        hand.seconds += 60
        forget()
        assert watch.measure_wait("r", "run-1", "drain") == timedelta(0)


def note_answer(clock: ServerClock, at: datetime) -> datetime:
    clock.note_date(format_datetime(at, usegmt=True))
    return clock.now()


def test_the_servers_time_goes_on_between_its_answers() -> None:
    hand = Hand()
    clock = ServerClock(hand)
    note_answer(clock, NOON)
    hand.seconds += 90.5

    assert clock.now() == NOON + timedelta(seconds=90.5)
    assert note_answer(clock, NOON + timedelta(seconds=90)) == NOON + timedelta(seconds=90.5), "whole seconds"
    assert note_answer(clock, NOON + timedelta(hours=2)) == NOON + timedelta(hours=2), "its clock was set"
    assert note_answer(clock, NOON) == NOON


@pytest.mark.parametrize("date", [None, "", "yesterday", "Sun, 99 Mar 2026 12:00:00 GMT"])
def test_a_date_that_cannot_be_read_changes_nothing(date: str | None) -> None:
    clock = ServerClock(Hand())
    note_answer(clock, NOON)

    clock.note_date(date)

    assert clock.now() == NOON


def test_before_the_first_answer_the_machines_own_clock_has_to_do() -> None:
    before = datetime.now(UTC)

    assert before <= ServerClock(Hand()).now() <= datetime.now(UTC)
