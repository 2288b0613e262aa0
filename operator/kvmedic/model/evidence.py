"""What is seen of a serving fleet, as typed readings.

A reading is measured, missing, stale or unsupported; it is never a bare float that may be NaN and never
`None` for "unknown". Nothing here fetches anything: `kvmedic.metrics` and `kvmedic.cluster` fill these
values, and `kvmedic.runbooks` judge them.

Some versions of an engine name their KV-cache pool nowhere but in their log; that may hold prompts, so it is
searched for numbers in the engine's own lines before the first request.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
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
    """Something is not known: what is missing, and what would provide it."""

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
    SILENT_SECONDS_HELD = "silentSecondsHeld"
    """The smallest silence per request that any moment of the hold duration saw, each moment looking back one
    window: waiting requests on average, over those that arrive per second (Little's law). It counts requests
    that still wait or were preempted. At least one arrival is assumed."""
    STALLS_PER_REQUEST_HELD = "stallsPerRequestHeld"
    """The same of long gaps between two tokens, per finished request. Long is beyond the first bound of the
    engine's buckets that is not under 2 s."""
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
    RUNNING_LOW = "runningLow"
    """Running sequences that were reached or exceeded at four of five moments of the window. As many as a cap
    allows: the cap binds."""
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


AT_REST = frozenset(
    {
        Signal.PREEMPTIONS,
        Signal.PREEMPTIONS_PER_REQUEST_HELD,
        Signal.SILENT_SECONDS_HELD,
        Signal.STALLS_PER_REQUEST_HELD,
        Signal.WAITING_MEAN,
    }
)
"""What stands at 0 on a replica that serves without trouble."""

HELD = frozenset(
    {Signal.PREEMPTIONS_PER_REQUEST_HELD, Signal.SILENT_SECONDS_HELD, Signal.STALLS_PER_REQUEST_HELD}
)
"""What is known only of a replica that was seen for as long as the trigger has to hold."""

EVERY_SIGNAL = frozenset(Signal)
"""All that can be asked for."""


@dataclass(frozen=True, slots=True)
class Look:
    """What is asked about some replicas."""

    window: timedelta
    hold: timedelta = timedelta(0)
    signals: frozenset[Signal] = EVERY_SIGNAL


@dataclass(frozen=True, slots=True)
class LookSeries:
    """The same look at several moments; the last one is now."""

    look: Look
    apart: timedelta
    """From each moment to the next."""
    count: int


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
class PastLengths:
    """Lengths of the requests that a fleet finished over some time, in tokens."""

    at: datetime
    """The end of that time."""
    prompt: Histogram
    output: Histogram


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
    """Whether it reuses the blocks of shared prefixes; None: not reported."""
    has_window: bool = False
    """The model's layers see different tokens, some a sliding window only: how many tokens of a sequence a
    block holds depends on its length."""

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
    SEVERAL_PAGES = "SeveralPages"
    """Several pages wrote the replica's series, as labels are honored; which is its own is not known."""
    TOO_MUCH = "TooMuch"
    """What the source has of the replica, or of its fleet, is more than can be answered beside others."""
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
    """Tokens per block as the engine declares them, also where it does not report its number of blocks."""
    gauge_samples: int | None = None
    """Moments that the means of gauges rest on, where these are few enough to count; None: many."""

    @property
    def lone_block_tokens(self) -> int | None:
        """Return the tokens of a block where no metric ever reports the number of blocks; else None."""
        return self.block_tokens if isinstance(self.pool, Unsupported) else None

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

    def with_pools(self, logged: Mapping[str, LoggedSize], null_blocks: int) -> Observation:
        """Return the look with the pools that logs show, where no metric ever reports them.

        Args:
            logged: sizes in logs, by pod name.
            null_blocks: blocks of each engine that never hold a token.
        """
        pods = dict(self.pods)
        for name, readings in self.pods.items():
            tokens, size = readings.lone_block_tokens, logged.get(name)
            if tokens is None or size is None:
                continue
            pool = size.as_pool(tokens, readings.engines, null_blocks)
            if pool is not None:
                pods[name] = replace(readings, pool=Measured(pool, self.at))
        return replace(self, pods=pods)


def as_reading(value: float, at: datetime) -> Reading[float]:
    """Return a number as a reading: NaN and the infinities are missing, not values."""
    return Measured(value, at) if isfinite(value) else Missing(Absence.NOT_A_NUMBER)


class SizeUnit(StrEnum):
    """What a log counts a pool in."""

    TOKENS = "tokens"
    BLOCKS = "blocks"


@dataclass(frozen=True, slots=True)
class LogForms:
    """How the log of one engine shows the pool."""

    sizes: tuple[tuple[re.Pattern[str], SizeUnit], ...]
    """Lines that show the size of one engine's pool, the first group, with commas between thousands."""
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
    """Return the smallest pool that a log shows, or None where it shows none.

    Each rank of a tensor-parallel engine, and each data-parallel engine, has a line of its own; the engine
    goes by the smallest. A log whose beginning was rotated away shows nothing.
    """
    found = [
        LoggedSize(int(match.group(1).replace(",", "")), unit)
        for line in takewhile(lambda line: not forms.serving.search(line), lines)
        for pattern, unit in forms.sizes
        if (match := pattern.search(line))
    ]
    units = {size.unit for size in found}
    return min(found, key=lambda size: size.amount) if len(units) == 1 else None
