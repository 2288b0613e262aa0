"""What two or three pages of a replica say, taken by hand and without a clock.

Counters tell everything between two pages exactly, wherever these were taken. Gauges tell two moments,
so as much as possible is read off counters: the running set from the tokens per step of the engine,
the time between the pages from the number of steps and what one takes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from math import inf

from kvmedic.metrics.page import Page, evaluate_signal, gauge, observe_pages, replica_of
from kvmedic.metrics.readings import Replica, read_number
from kvmedic.model.evidence import (
    Absence,
    CounterSource,
    Measured,
    Missing,
    Observation,
    PodReadings,
    Reading,
    Signal,
    SignalTable,
    Unsupported,
)
from kvmedic.model.readings import mean_below

MANY = 10
"""Pages from which gauges are read as from a monitoring system that samples every 30 s for 5 minutes."""
BUSIER = 1.5
"""Running set by gauges over that by counters, from which the engine was idle or lightly loaded for part of
the time and the moments tell the trouble better. Tokens per step never read too high; single moments of
thrashing engines with few sequences lay at half to 1.3 times the mean (simulated)."""
LONGEST_STEP_SECONDS = 1.0
"""Gaps between tokens up to this are single steps of the engine; what is longer is a stall."""

_GAUGES = (Signal.RUNNING_MEAN, Signal.WAITING_MEAN, Signal.KV_CACHE_USAGE_MEAN, Signal.KV_CACHE_USAGE_MAX)
_START = datetime(2000, 1, 1, tzinfo=UTC)
"""Pages without a clock are a second apart here; only their order counts."""


@dataclass(frozen=True, slots=True)
class Glimpse:
    """Some pages of each replica as one look, and what about it is not as from a monitoring system."""

    observation: Observation
    """Its window is the time that was given, or that the busiest replica was busy for; infinite where
    neither is known."""
    resting: tuple[str, ...]
    """Replicas that ran requests between their pages, but none at the moment of any page."""


def moment(place: int) -> datetime:
    """Return the stand-in time of a page by its place."""
    return _START + timedelta(seconds=place)


def glimpse(pages: Mapping[str, Sequence[Page]], table: SignalTable, seconds: float | None) -> Glimpse:
    """Return what pages of each replica say, by its name; two or more of each, oldest first.

    Args:
        pages: by replica; their times are stand-ins (`moment`).
        seconds: time between the first and the last page; None: it is read off the engine's steps.

    Raises:
        ValueError: fewer than two pages of a replica.
    """
    seen = observe_pages(pages, table)
    readings = {name: _sparse(one, pages[name], table) for name, one in seen.pods.items()}
    busy = max(_busy_seconds(readings[name], many, table) for name, many in pages.items())
    window = busy if seconds is None else seconds
    resting = tuple(
        name
        for name, many in sorted(pages.items())
        if not _loaded_pages(many, table) and _value_or_zero(readings[name].number(Signal.GENERATED_TOKENS))
    )
    return Glimpse(replace(seen, window_seconds=window, pods=readings), resting)


def was_restarted(pages: Sequence[Page], table: SignalTable) -> bool:
    """Return whether pages are of different processes: another start, or a counter that fell."""
    if len({start_of(page) for page in pages}) > 1:
        return True
    sources = [source for source in table.signals.values() if isinstance(source, CounterSource)]
    names = {name for source in sources for name in source.names}
    return any(_fell(earlier, later, names) for earlier, later in pairwise(pages))


def start_of(page: Page) -> float | None:
    """Return when the replica's process started (Unix time), or None where the page does not tell."""
    found = page.find("process_start_time_seconds")
    return found[0].value if found else None


def _fell(earlier: Page, later: Page, names: set[str]) -> bool:
    before = {
        (name, frozenset(one.labels.items())): one.value for name in names for one in earlier.find(name)
    }
    return any(
        one.value < before.get((name, frozenset(one.labels.items())), one.value)
        for name in names
        for one in later.find(name)
    )


def _sparse(readings: PodReadings, pages: Sequence[Page], table: SignalTable) -> PodReadings:
    """Return readings without what few pages cannot tell, the running set as counters tell it."""
    replica = replica_of(pages[-1], table)
    if replica is None:
        return readings
    timeless: dict[Signal, Reading[float]] = {**readings.numbers, Signal.STARTED_SECONDS: Unsupported()}
    if len(pages) >= MANY:
        return replace(readings, numbers=timeless)
    loaded = _loaded_pages(pages, table)
    gauges = {signal: gauge(replica, signal, loaded or pages) for signal in _GAUGES}
    if not loaded and _value_or_zero(readings.number(Signal.GENERATED_TOKENS)):
        gauges = dict.fromkeys(_GAUGES, Missing(Absence.NOTHING_FOUND))
    running = _running_set(gauges[Signal.RUNNING_MEAN], readings, pages, replica)
    numbers = {**timeless, **gauges, Signal.RUNNING_MEAN: running, Signal.RUNNING_MAX: Unsupported()}
    return replace(readings, numbers=numbers, gauge_samples=len(loaded))


def _loaded_pages(pages: Sequence[Page], table: SignalTable) -> list[Page]:
    """Return the pages at whose moment something ran: an idle moment says nothing about a load."""
    return [page for page in pages if any(one.value > 0 for one in page.find(table.presence))]


def _running_set(
    gauge: Reading[float], readings: PodReadings, pages: Sequence[Page], replica: Replica
) -> Reading[float]:
    """Return the running set by tokens per step; the gauge where that was of a far higher load."""
    steps = _steps(pages, replica)
    tokens = _value_or_zero(readings.number(Signal.GENERATED_TOKENS))
    if not steps or not tokens:
        return gauge
    counted = Measured(tokens / steps * readings.engines, pages[-1].at)
    if not isinstance(gauge, Measured):
        return counted
    return gauge if gauge.value > BUSIER * counted.value else counted


def _steps(pages: Sequence[Page], replica: Replica) -> float:
    """Return the steps of all engines of a replica together; 0 where they are not exported."""
    series = evaluate_signal(replica.table.steps, pages)
    return _value_or_zero(read_number(replica, replica.table.steps, series)) if series else 0.0


def _busy_seconds(readings: PodReadings, pages: Sequence[Page], table: SignalTable) -> float:
    """Return how long a replica was busy: its steps times what one takes; infinite where it does not tell.

    A request is in the engine's hands only while it steps, so a request's residence is never longer.
    """
    replica = replica_of(pages[-1], table)
    if replica is None or not pages[-1].find(*table.steps.names):
        return inf
    gaps = readings.histogram(Signal.INTER_TOKEN_SECONDS)
    if not isinstance(gaps, Measured) or gaps.value.count <= 0:
        return 0.0
    return _steps(pages, replica) / readings.engines * mean_below(gaps.value, LONGEST_STEP_SECONDS)


def _value_or_zero(reading: Reading[float]) -> float:
    """Return a number that is there, else 0."""
    return reading.value if isinstance(reading, Measured) else 0.0
