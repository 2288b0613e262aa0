"""What is seen of a serving fleet, as typed readings, and where an engine's signals come from.

A reading is measured, missing, stale or unsupported; it is never a bare float that may be NaN and never
`None` for "unknown". Nothing here fetches anything: `kvmedic.metrics` and `kvmedic.cluster` fill these
values, and `kvmedic.runbooks` judge them.

An engine's table of signals says which series, and how a window of them becomes one value. It is data
(`kvmedic.engines`): nothing but `kvmedic.metrics` needs to know how an engine names a metric. Some versions
name their KV-cache pool nowhere but in their log; that may hold prompts, so it is searched for numbers in the
engine's own lines before the first request.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum, StrEnum
from itertools import takewhile
from math import inf, isfinite
from typing import Generic, TypeAlias, TypeVar

from kvmedic.model.reasons import Reason


@dataclass(frozen=True, slots=True)
class Blocked:
    """Something is not done, and why."""

    reason: Reason
    message: str
    """What was seen against what is needed, and what to do."""


@dataclass(frozen=True, slots=True)
class Inconclusive:
    """Something cannot be told: what is missing, and what would provide it."""

    reason: Reason
    message: str

    def line(self) -> str:
        """Return the diagnosis as one line for a person."""
        return f"inconclusive: {self.reason}: {self.message}"


V = TypeVar("V")


class Signal(StrEnum):
    """A quantity about one replica, independent of the engine that exports it.

    "over the window" means: counted or averaged over the observation's window, which ends at the
    observation's time.
    """

    PREEMPTIONS = "preemptions"
    """Sequences preempted over the window (count)."""
    PREEMPTIONS_PER_REQUEST_HELD = "preemptionsPerRequestHeld"
    """The smallest preemptions per finished request that any moment of the hold duration saw, each
    moment looking back one window; at least one finished request is assumed, so that a replica on
    which nothing finishes still counts. This is what a trigger compares."""
    REQUESTS_FINISHED = "requestsFinished"
    """Requests that ended with an answer over the window (count; aborted ones are not counted)."""
    REQUESTS_ABORTED = "requestsAborted"
    """Requests that ended aborted or in error over the window (count)."""
    REQUESTS_IN_FLIGHT_CHANGE = "requestsInFlightChange"
    """Running plus waiting at the end of the window, minus the same at its start."""
    RUNNING_MEAN = "runningMean"
    """Running sequences, averaged over the window."""
    RUNNING_MAX = "runningMax"
    """Most sequences seen running over the window."""
    WAITING_MEAN = "waitingMean"
    """Waiting requests, averaged over the window."""
    WAITING_AT_END = "waitingAtEnd"
    """Waiting requests as the window ends."""
    KV_CACHE_USAGE_MEAN = "kvCacheUsageMean"
    """KV-cache usage, averaged over the window (ratio 0-1)."""
    KV_CACHE_USAGE_MAX = "kvCacheUsageMax"
    """Highest KV-cache usage seen over the window (ratio 0-1)."""
    KV_CACHE_USAGE_DEVIATION = "kvCacheUsageDeviation"
    """Standard deviation of KV-cache usage over the window (ratio)."""
    PROMPT_TOKENS = "promptTokens"
    """Prompt tokens processed over the window (count; recomputation is not visible here)."""
    GENERATED_TOKENS = "generatedTokens"
    """Tokens generated over the window (count)."""
    PREFIX_CACHE_QUERIES = "prefixCacheQueries"
    """Tokens looked up in the prefix cache over the window (count)."""
    PREFIX_CACHE_HITS = "prefixCacheHits"
    """Tokens found in the prefix cache over the window (count)."""
    STARTED_SECONDS = "startedSeconds"
    """When the engine's process started (Unix time)."""
    PROMPT_LENGTH = "promptLength"
    """Histogram: prompt tokens of the requests that finished over the window."""
    OUTPUT_LENGTH = "outputLength"
    """Histogram: generated tokens of the requests that finished over the window."""
    OUTPUT_LIMIT = "outputLimit"
    """Histogram: `max_tokens` that the requests which finished over the window asked for."""
    INTER_TOKEN_SECONDS = "interTokenSeconds"
    """Histogram: seconds between two tokens of one request, over the window."""
    TIME_TO_FIRST_TOKEN_SECONDS = "timeToFirstTokenSeconds"
    """Histogram: seconds to the first token, over the window."""
    PREFILL_SECONDS = "prefillSeconds"
    """Histogram: seconds from a request's admission to its first token, over the window."""
    E2E_SECONDS = "e2eSeconds"
    """Histogram: seconds a request took as a whole (its residence time), over the window."""


HISTOGRAMS = frozenset(
    {
        Signal.PROMPT_LENGTH,
        Signal.OUTPUT_LENGTH,
        Signal.OUTPUT_LIMIT,
        Signal.INTER_TOKEN_SECONDS,
        Signal.TIME_TO_FIRST_TOKEN_SECONDS,
        Signal.PREFILL_SECONDS,
        Signal.E2E_SECONDS,
    }
)
"""The signals whose reading is a histogram; every other signal's is a number."""


EVERY_SIGNAL = frozenset(Signal)
"""All that can be asked for."""


@dataclass(frozen=True, slots=True)
class Look:
    """What is asked about some replicas."""

    window: timedelta
    hold: timedelta = timedelta(0)
    signals: frozenset[Signal] = EVERY_SIGNAL
    ago: timedelta = timedelta(0)
    """How long ago the window ended."""


@dataclass(frozen=True, slots=True)
class Histogram:
    """Observations of one window by bucket.

    `bounds` are the finite upper bounds, ascending; `counts` has one entry more than `bounds`: the
    observations in each bucket (not cumulative), the last one those above every bound. Counts may
    be fractions, because a rate over scraped counters interpolates. `total` is the exact sum of
    the observed values over the window.
    """

    bounds: tuple[float, ...]
    counts: tuple[float, ...]
    total: float

    def __post_init__(self) -> None:
        """Raise ValueError for shapes that no exporter produces."""
        if len(self.counts) != len(self.bounds) + 1:
            raise ValueError(f"{len(self.bounds)} bounds need {len(self.bounds) + 1} counts")
        if any(b <= a for a, b in zip(self.bounds, self.bounds[1:], strict=False)):
            raise ValueError("bucket bounds must ascend")
        if not all(isfinite(c) and c >= 0 for c in self.counts) or not isfinite(self.total):
            raise ValueError("bucket counts must be finite and not negative")

    @property
    def count(self) -> float:
        """Return the number of observations."""
        return sum(self.counts)

    @property
    def mean(self) -> float:
        """Return the exact mean of the observed values; callers ask `count` first."""
        return self.total / self.count


@dataclass(frozen=True, slots=True)
class Pool:
    """The KV-cache pool of one replica, as the running engine reports it."""

    blocks: int
    """Usable blocks: the engine's own null block is not among them."""
    block_tokens: int
    """Tokens per block."""
    cache_dtype: str = "auto"
    """Type in which keys and values are stored, in the engine's words."""
    caches_prefixes: bool | None = None
    """Whether it reuses the blocks of shared prefixes; None: it does not tell."""

    @property
    def tokens(self) -> int:
        """Return the tokens that the pool holds."""
        return self.blocks * self.block_tokens


class Absence(StrEnum):
    """Why a reading is missing."""

    NO_SERIES = "NoSeries"
    """The source answered, without any series of this replica."""
    NOTHING_FOUND = "NothingFound"
    """The replica is scraped, and the source has nothing of this signal for it."""
    NOT_A_NUMBER = "NotANumber"
    """The source answered NaN or an infinity."""
    SOURCE_UNAVAILABLE = "SourceUnavailable"
    """The source did not answer, answered with an error or with partial data."""
    AMBIGUOUS = "Ambiguous"
    """The source answered with several series that contradict each other."""
    OTHER_ADDRESS = "OtherAddress"
    """All series under the name of the replica come from targets at other addresses than its pod's."""
    UNREADABLE = "Unreadable"
    """The source answered with something else than what was asked for."""


@dataclass(frozen=True, slots=True)
class Measured(Generic[V]):
    """A value, and when its newest sample was taken."""

    value: V
    at: datetime


@dataclass(frozen=True, slots=True)
class Missing:
    """No value, for a reason."""

    reason: Absence


@dataclass(frozen=True, slots=True)
class Stale:
    """The newest sample is older than the source's freshness bound."""

    at: datetime


@dataclass(frozen=True, slots=True)
class Unsupported:
    """This engine, in this version, does not export the signal."""


Reading: TypeAlias = Measured[V] | Missing | Stale | Unsupported


_IMPOSSIBLE = Missing(Absence.AMBIGUOUS)
"""The reading of a number that no engine has: its series contradict what they are series of."""
_RATIOS = frozenset({Signal.KV_CACHE_USAGE_MEAN, Signal.KV_CACHE_USAGE_MAX, Signal.KV_CACHE_USAGE_DEVIATION})
_MOST_RATIO = 1.001
"""Means of ones, added up and divided, come out above 1 by rounding alone."""
_MOST_SECONDS = 253_402_300_799
"""The end of the year 9999 (Unix time); today's time in milliseconds is beyond it."""
EDGE = 0.05
"""Preemptions per request up to which their counter may say none: a window that ends some seconds later may
have left the only ones behind. A tenth of the default trigger."""


def _is_possible(signal: Signal, value: float) -> bool:
    """Return whether any engine can have a number: all but a difference are counts, ratios or times."""
    if signal is Signal.REQUESTS_IN_FLIGHT_CHANGE:
        return True
    if signal in _RATIOS:
        return 0 <= value <= _MOST_RATIO
    return 0 <= value <= (_MOST_SECONDS if signal is Signal.STARTED_SECONDS else inf)


@dataclass(frozen=True, slots=True)
class PodReadings:
    """All readings of one replica over one window. A signal that was not asked for is `Unsupported`."""

    numbers: Mapping[Signal, Reading[float]]
    histograms: Mapping[Signal, Reading[Histogram]]
    pool: Reading[Pool]
    model_names: tuple[str, ...] = ()
    """Names under which the replica serves (label `model_name`), sorted."""
    engines: int = 1
    """Data-parallel engines of the replica. Its pool is that of all of them; a cap on running sequences
    holds for each."""
    block_tokens: int | None = None
    """Tokens per block as the engine declares them, also where it does not tell its number of blocks."""
    gauge_samples: int | None = None
    """Moments that the means of gauges rest on, where these are few enough to count; None: many."""

    def number(self, signal: Signal) -> Reading[float]:
        """Return the reading of a signal that is a number; ambiguous where no engine can be so."""
        found = self.numbers.get(signal, Unsupported())
        if signal is Signal.PREEMPTIONS_PER_REQUEST_HELD and self._preempted_nothing(found):
            return Missing(Absence.AMBIGUOUS)
        return found if not isinstance(found, Measured) or _is_possible(signal, found.value) else _IMPOSSIBLE

    def histogram(self, signal: Signal) -> Reading[Histogram]:
        """Return the reading of a signal that is a histogram; ambiguous where no engine can be so."""
        found = self.histograms.get(signal, Unsupported())
        return found if not isinstance(found, Measured) or found.value.total >= 0 else _IMPOSSIBLE

    def _preempted_nothing(self, held: Reading[float]) -> bool:
        """Return whether a ratio of preemptions speaks of some, and their counter of none."""
        counted = self.numbers.get(Signal.PREEMPTIONS, Unsupported())
        some = isinstance(held, Measured) and held.value > EDGE
        return isinstance(counted, Measured) and (counted.value < 0 or (some and counted.value == 0))


@dataclass(frozen=True, slots=True)
class Observation:
    """One look at a fleet: the readings of each expected replica over one window.

    `pods` is keyed by pod name and has an entry for **every** pod that was asked for, also for one
    without a single series.
    """

    at: datetime
    window_seconds: float
    """How far the look goes back; infinite where nobody knows."""
    hold_seconds: float
    pods: Mapping[str, PodReadings]

    def only(self, names: Iterable[str]) -> Observation:
        """Return the same look at some of its replicas; KeyError for a name that was not asked for."""
        return Observation(self.at, self.window_seconds, self.hold_seconds, {n: self.pods[n] for n in names})


def as_reading(value: float, at: datetime) -> Reading[float]:
    """Return a number as a reading: NaN and the infinities are missing, not values."""
    return Measured(value, at) if isfinite(value) else Missing(Absence.NOT_A_NUMBER)


class SizeUnit(StrEnum):
    """What a log counts a pool in."""

    TOKENS = "tokens"
    BLOCKS = "blocks"


@dataclass(frozen=True, slots=True)
class LogForms:
    """How the log of one engine tells the pool."""

    sizes: tuple[tuple[re.Pattern[str], SizeUnit], ...]
    """Lines that tell the size of one engine's pool, the first group, with commas between thousands."""
    serving: re.Pattern[str]
    """A line after which requests are taken."""


@dataclass(frozen=True, slots=True)
class LoggedSize:
    """The pool of one engine of a replica."""

    amount: int
    unit: SizeUnit

    def as_pool(self, block_tokens: int, engines: int, null_blocks: int) -> Pool | None:
        """Return the pool of all engines of the replica, or None where none can be that small.

        `null_blocks` is how many blocks of each engine never hold a token.
        """
        blocks = self.amount // block_tokens if self.unit is SizeUnit.TOKENS else self.amount
        usable = engines * (blocks - null_blocks)
        return Pool(usable, block_tokens) if usable > 0 else None


def logged_size(lines: Iterable[str], forms: LogForms) -> LoggedSize | None:
    """Return the smallest pool that a log tells of, or None where it tells of none.

    Each rank of a tensor-parallel engine, and each data-parallel engine, has a line of its own; the engine
    goes by the smallest. A log whose beginning was rotated away tells nothing.
    """
    found = [
        LoggedSize(int(match.group(1).replace(",", "")), unit)
        for line in takewhile(lambda line: not forms.serving.search(line), lines)
        for pattern, unit in forms.sizes
        if (match := pattern.search(line))
    ]
    units = {size.unit for size in found}
    return min(found, key=lambda size: size.amount) if len(units) == 1 else None


class Over(Enum):
    """How a gauge's samples of one window become one value."""

    MEAN = "mean"
    MAX = "max"
    LAST = "last"
    """The newest one."""
    DEVIATION = "deviation"
    """Population standard deviation."""


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
class StartSource:
    """A gauge that tells when the process started (Unix seconds)."""

    name: str


SignalSource: TypeAlias = (
    CounterSource | GaugeSource | ChangeSource | HistogramSource | HeldRatioSource | StartSource
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
    """Label: `True` where the blocks of shared prefixes are reused; empty: no label tells."""
    window: str = ""
    """Label: tokens of the model's sliding window, no number where it has none; empty: no label tells."""
    logged: LogForms | None = None
    """How the engine's log tells the same where no label does; None: it does not."""


@dataclass(frozen=True, slots=True)
class VersionPage:
    """Where an engine tells its own version: a JSON object, beside the page with its metrics."""

    path: str
    field: str


@dataclass(frozen=True, slots=True)
class SignalTable:
    """All signals of one engine."""

    signals: Mapping[Signal, SignalSource]
    presence: str
    """A gauge that every running engine exports: its newest sample tells how fresh a replica is."""
    in_flight: tuple[str, ...]
    """Gauges whose sum is the requests in the replica's hands."""
    in_flight_optional: tuple[str, ...]
    """Gauges that engines of old export beside them."""
    pool: PoolSource
    version: VersionPage
    steps: CounterSource
    """Steps of the engine, each of which gives every running sequence a token."""
    engine_label: str
    """Tells the data-parallel engines of one replica apart; absent on engines of old."""
    process_label: str
    """Tells apart what several API server processes of one replica export of the same engine: copies."""
    model_label: str
    own_labels: frozenset[str]
    """Every label that the engine itself sets on the series above, the pool's apart. What is left
    says who scraped the series, and from where."""


_AGREEMENTS: Mapping[type, Agreement] = {
    CounterSource: COUNTS_AGREE,
    HistogramSource: COUNTS_AGREE,
    HeldRatioSource: RATIOS_AGREE,
    StartSource: MOMENTS_AGREE,
    ChangeSource: NEVER_COMPARED,
}
_ACROSS: Mapping[type, Across] = {
    CounterSource: Across.SUM,
    HistogramSource: Across.SUM,
    ChangeSource: Across.SUM,
    HeldRatioSource: Across.LARGEST,
    StartSource: Across.LARGEST,
}


def agreement_of(source: SignalSource) -> Agreement:
    """Return how near duplicates of a signal must be."""
    return source.agreement if isinstance(source, GaugeSource) else _AGREEMENTS[type(source)]


def across_of(source: SignalSource) -> Across:
    """Return how a signal's values of several engines become one."""
    return source.across if isinstance(source, GaugeSource) else _ACROSS[type(source)]
