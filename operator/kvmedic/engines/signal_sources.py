"""Where an engine's signals come from: which series, and how a window of them becomes one value.

It is data: nothing but `kvmedic.metrics` needs to know how an engine names a metric.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from kvmedic.model.evidence import LogForms, Signal


class Over(Enum):
    """How a gauge's samples of one window become one value."""

    MEAN = "mean"
    MAX = "max"
    LAST = "last"
    """The newest one."""
    DEVIATION = "deviation"
    """Population standard deviation."""
    LOW = "low"
    """Reached or exceeded by four samples in five."""


LOW_QUANTILE = 0.2
"""Quantile of the samples that `Over.LOW` takes."""


class Across(Enum):
    """How the values of a replica's data-parallel engines become one value of the replica."""

    SUM = "sum"
    MEAN = "mean"
    LARGEST = "largest"
    ROOT_MEAN_SQUARE = "rootMeanSquare"
    """For deviations: that of a typical engine."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """How far two series of one replica may differ and still count as duplicates of one another.

    Duplicates come from several scrapers or scrape jobs that sample at different moments, so they
    never agree exactly. They agree where they differ by no more than `relative` of the larger one
    plus `absolute`.
    """

    relative: float
    absolute: float

    def agrees(self, a: float, b: float) -> bool:
        """Return whether two values agree."""
        return abs(a - b) <= self.relative * max(abs(a), abs(b)) + self.absolute


COUNTS_AGREE = Agreement(relative=0.1, absolute=2)
"""Two scrapers at 30 s see the two ends of a 5 m window at most 30 s apart in all: 10 %. One event at
each end may fall to either side."""
RATIOS_AGREE = Agreement(relative=0.1, absolute=0.05)
"""The same for what is averaged or divided; 0.05 is a tenth of the default trigger on
preemptions per request, and a twentieth of a full cache."""
MOMENTS_AGREE = Agreement(relative=0, absolute=2)
"""Unix seconds of one event: the same within rounding."""
NEVER_COMPARED = Agreement(relative=0, absolute=math.inf)
"""Instants and differences of them: scrapers at different moments see different ones by their nature.
A contradiction between the replicas' series shows in every other signal."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a family of series, by one label the engine sets. A family without such a series counts 0."""

    label: str
    values: frozenset[str]
    complement: bool = False
    """All values but these."""

    def includes(self, value: str) -> bool:
        """Return whether a series with this value of the label belongs to the part."""
        return (value in self.values) is not self.complement


@dataclass(frozen=True, slots=True)
class CounterSource:
    """The increase of a counter over the window."""

    names: tuple[str, ...]
    """The exposed names by generation, newest first; the first that a replica exports counts."""
    part: Part | None = None
    begins_unseen: bool = False
    """Engines of old export it only once it has counted something; before, it stood at 0."""


@dataclass(frozen=True, slots=True)
class GaugeSource:
    """A gauge over the window."""

    names: tuple[str, ...]
    """The exposed names by generation, newest first; the first that a replica exports counts."""
    over: Over
    across: Across
    agreement: Agreement = RATIOS_AGREE


@dataclass(frozen=True, slots=True)
class ChangeSource:
    """The sum of some gauges at the end of the window minus the same at its start."""

    names: tuple[str, ...]
    """All of them are added."""


@dataclass(frozen=True, slots=True)
class HistogramSource:
    """The observations that a histogram counted over the window; engines of old export it from the first."""

    names: tuple[str, ...]
    """The names by generation without `_bucket` and `_sum`, newest first."""


@dataclass(frozen=True, slots=True)
class HeldRatioSource:
    """The smallest ratio of two counters' increases that any moment of the hold duration saw.

    It is 0 where the numerator did not rise, also where nothing is known of the denominator.
    """

    numerator: CounterSource
    denominator: CounterSource
    floor: float
    """The denominator counts at least this much."""


@dataclass(frozen=True, slots=True)
class HeldTailSource:
    """The same of observations of a histogram beyond one of its bounds, over a counter's increase."""

    names: tuple[str, ...]
    """The histogram's names by generation without `_bucket` and `_count`, newest first."""
    beyond: str
    """The bound, as its label `le` has it."""
    denominator: CounterSource
    floor: float


@dataclass(frozen=True, slots=True)
class HeldWaitSource:
    """The same of a gauge's mean, over what arrives per second: what ended, and what is there in addition."""

    waiting: str
    ended: CounterSource
    in_flight: tuple[str, ...]
    """Gauges whose sum is the requests in the replica's hands."""
    floor: float
    """Arrivals count at least this much."""


HeldSource: TypeAlias = HeldRatioSource | HeldTailSource | HeldWaitSource


@dataclass(frozen=True, slots=True)
class StartSource:
    """A gauge that shows when the process started (Unix seconds)."""

    name: str


SignalSource: TypeAlias = (
    CounterSource | GaugeSource | ChangeSource | HistogramSource | HeldSource | StartSource
)


@dataclass(frozen=True, slots=True)
class PoolSource:
    """An information series whose labels describe the KV-cache pool. Labels are read by name."""

    name: str
    blocks: str
    """Label: blocks of all engines behind one frontend together, null blocks included."""
    block_tokens: tuple[str, ...]
    """Labels: tokens per block; the first that is a number counts."""
    engine_tokens: str
    """Label: tokens that the pool of one engine holds, null block included; absent on engines of old."""
    cache_dtype: str
    null_blocks: int
    """Blocks per engine that never hold a token."""
    caches_prefixes: str = ""
    """Label: `True` where the blocks of shared prefixes are reused; empty: no label says."""
    window: str = ""
    """Label: tokens of the model's sliding window, no number where it has none; empty: no label says."""
    logged: LogForms | None = None
    """How the engine's log says the same where no label does; None: it does not."""


@dataclass(frozen=True, slots=True)
class VersionPage:
    """Where an engine reports its own version: a JSON object, beside the page with its metrics."""

    path: str
    field: str


@dataclass(frozen=True, slots=True)
class SignalTable:
    """All signals of one engine."""

    signals: Mapping[Signal, SignalSource]
    presence: str
    """A gauge that every running engine exports: its newest sample shows how fresh a replica is."""
    in_flight: tuple[str, ...]
    """Gauges whose sum is the requests in the replica's hands."""
    in_flight_optional: tuple[str, ...]
    """Gauges that engines of old export beside them."""
    ended: CounterSource
    """Requests that ended, whatever their end: with those in the replica's hands all that it was given."""
    pool: PoolSource
    version: VersionPage
    steps: CounterSource
    """Steps of the engine, each of which gives every running sequence a token."""
    engine_label: str
    """Distinguishes the data-parallel engines of one replica; absent on engines of old."""
    process_label: str
    """Distinguishes what several API server processes of one replica export of the same engine: copies."""
    model_label: str
    own_labels: frozenset[str]
    """Every label that the engine itself sets on the series above, the pool's apart. What is left
    says who scraped the series, and from where."""


_AGREEMENTS: Mapping[type, Agreement] = {
    CounterSource: COUNTS_AGREE,
    HistogramSource: COUNTS_AGREE,
    HeldRatioSource: RATIOS_AGREE,
    HeldTailSource: RATIOS_AGREE,
    HeldWaitSource: COUNTS_AGREE,
    StartSource: MOMENTS_AGREE,
    ChangeSource: NEVER_COMPARED,
}
_ACROSS: Mapping[type, Across] = {
    CounterSource: Across.SUM,
    HistogramSource: Across.SUM,
    ChangeSource: Across.SUM,
    HeldRatioSource: Across.LARGEST,
    HeldTailSource: Across.LARGEST,
    HeldWaitSource: Across.LARGEST,
    StartSource: Across.LARGEST,
}


def agreement_of(source: SignalSource) -> Agreement:
    """Return how near duplicates of a signal must be."""
    return source.agreement if isinstance(source, GaugeSource) else _AGREEMENTS[type(source)]


def across_of(source: SignalSource) -> Across:
    """Return how a signal's values of several engines become one."""
    return source.across if isinstance(source, GaugeSource) else _ACROSS[type(source)]
