"""What replicas did in stretches of time, counted so that it adds up: over replicas, and over stretches.

New and old replicas are compared by these counts (`kvmedic.verdict.side_by_side`), from a metrics source or
from saved pages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from math import inf
from operator import attrgetter

from kvmedic.model.evidence import Absence, Measured, Missing, PodReadings, Signal
from kvmedic.model.readings import count_above
from kvmedic.model.spec import Objectives
from kvmedic.verdict.served_in_time import STALL_SECONDS, first_token_limit

NUMBERS = (
    Signal.REQUESTS_FINISHED,
    Signal.GENERATED_TOKENS,
    Signal.WAITING_MEAN,
    Signal.RUNNING_MEAN,
    Signal.REQUESTS_IN_FLIGHT_CHANGE,
)
NEEDED = frozenset({*NUMBERS, Signal.INTER_TOKEN_SECONDS, Signal.TIME_TO_FIRST_TOKEN_SECONDS})
"""Signals without which nothing can be said."""


def list_needs(promised: Objectives) -> frozenset[Signal]:
    """Return the signals without which nothing can be said under these objectives.

    The histogram of an objective is needed with it: one that is missing has nothing beyond the objective.
    """
    return NEEDED if promised.e2e_p95_seconds is None else NEEDED | {Signal.E2E_SECONDS}


class CapChange(StrEnum):
    """What a change does to the cap on sequences."""

    LOWERED = "lowered"
    RAISED = "raised"


class Routing(StrEnum):
    """How requests find a replica, as far as it decides which comparison is valid."""

    EVEN = "even"
    """Each replica gets its share, whatever its load: round robin, at random."""
    LOAD_AWARE = "load-aware"
    """A replica that is slow gets less."""
    STICKY = "sticky"
    """Keys decide who gets what: replicas cannot be compared."""


@dataclass(frozen=True, slots=True)
class Counts:
    """What some replicas did in one stretch of time; counts add up over replicas and over stretches."""

    replica_seconds: float = 0.0
    """Seconds, once for each replica."""
    finished: float = 0.0
    aborted: float = 0.0
    tokens: float = 0.0
    first_tokens: float = 0.0
    in_time: float = 0.0
    """First tokens within the limit."""
    stalls: float = 0.0
    waiting_seconds: float = 0.0
    """Waiting requests times seconds."""
    in_flight_seconds: float = 0.0
    """Running and waiting requests times seconds."""
    waiting_change: float = 0.0
    in_flight_change: float = 0.0
    full_seconds: float = 0.0
    """Seconds of replicas at which requests waited."""
    gaps: float = 0.0
    """Gaps between two tokens of one request."""
    slow_gaps: float = 0.0
    """Gaps beyond the objective on them."""
    slow_requests: float = 0.0
    """Finished requests beyond the objective on whole requests."""

    def __add__(self, other: Counts) -> Counts:
        """Return both together."""
        return Counts(*(a + b for a, b in zip(_values_of(self), _values_of(other), strict=True)))

    @property
    def arrivals(self) -> float:
        """Return the requests that came: those that ended, and those that are there in addition."""
        return max(0.0, self.finished + self.aborted + self.in_flight_change)

    @property
    def late(self) -> float:
        """Return how many first tokens came late."""
        return self.first_tokens - self.in_time


_values_of = attrgetter(*(each.name for each in fields(Counts)))


@dataclass(frozen=True, slots=True)
class Arm:
    """The replicas of one side."""

    replicas: int
    blocks: tuple[Counts, ...]
    """One for each stretch of time, oldest first; as many as the other side has."""
    waiting: tuple[float, ...]
    """Requests that wait on all replicas, at the end of each stretch."""

    @property
    def whole(self) -> Counts:
        """Return all stretches together."""
        return sum(self.blocks, Counts())

    def without_newest(self) -> Arm:
        """Return what was seen one stretch of time ago."""
        return Arm(self.replicas, self.blocks[:-1], self.waiting[:-1])


@dataclass(frozen=True, slots=True)
class Limits:
    """What counts as in time, and what users were promised."""

    objectives: Objectives = field(default_factory=Objectives)
    routing: Routing | None = None
    """None: inferred."""
    cap: CapChange | None = None
    """None: the change is something else, and is tried as soon as requests come."""
    must_gain: bool | None = None
    """Whether a change that neither helps nor harms is taken back in the end. None: it is watched on."""
    patience_seconds: float | None = None
    """How late a first token may come, as the figures from before the change have it. None: by objectives."""

    @property
    def first_token_seconds(self) -> float:
        """Return how late a first token may come: the objective, else what clients sit through."""
        return first_token_limit(self.objectives) if self.patience_seconds is None else self.patience_seconds


def count_replica(
    readings: PodReadings, seconds: float, limits: Limits, waits_at: Sequence[float]
) -> Counts | Missing:
    """Return what one replica did over one stretch of time.

    Args:
        readings: over that stretch.
        seconds: how long it was.
        limits: what is too late, and too slow.
        waits_at: waiting requests at each moment that was seen.
    """
    found = [readings.number(each) for each in NUMBERS]
    gaps = readings.histogram(Signal.INTER_TOKEN_SECONDS)
    firsts = readings.histogram(Signal.TIME_TO_FIRST_TOKEN_SECONDS)
    numbers = [each.value for each in found if isinstance(each, Measured)]
    if len(numbers) < len(found) or not isinstance(gaps, Measured) or not isinstance(firsts, Measured):
        return Missing(Absence.NOTHING_FOUND)
    finished, tokens, waiting, running, change = numbers
    aborted, whole = readings.number(Signal.REQUESTS_ABORTED), readings.histogram(Signal.E2E_SECONDS)
    promised = limits.objectives
    return Counts(
        replica_seconds=seconds,
        finished=finished,
        aborted=aborted.value if isinstance(aborted, Measured) else 0.0,
        tokens=tokens,
        first_tokens=firsts.value.count,
        in_time=firsts.value.count - count_above(firsts.value, limits.first_token_seconds),
        stalls=count_above(gaps.value, STALL_SECONDS),
        waiting_seconds=waiting * seconds,
        in_flight_seconds=(waiting + running) * seconds,
        waiting_change=waits_at[-1] - waits_at[0],
        in_flight_change=change,
        full_seconds=seconds * sum(each > 0 for each in waits_at) / len(waits_at),
        gaps=gaps.value.count,
        slow_gaps=count_above(gaps.value, promised.inter_token_p95_seconds or inf),
        slow_requests=count_above(whole.value, promised.e2e_p95_seconds or inf)
        if isinstance(whole, Measured)
        else 0.0,
    )
