"""Builders of evidence for tests; they refuse impossible states.

A `Replica` is one engine as it really behaves: its counters, gauges and histograms agree with each
other. `readings` turns it into what a source would answer; `without` takes single answers away again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from math import exp, log, sqrt
from statistics import NormalDist

from kvmedic.model.evidence import (
    HISTOGRAMS,
    Absence,
    Histogram,
    Measured,
    Missing,
    Observation,
    PodReadings,
    Pool,
    Signal,
    Stale,
    Unsupported,
)
from kvmedic.model.spec import Trigger
from kvmedic.runbooks.branches import Evidence

NOW = datetime(2026, 3, 1, 3, 0, tzinfo=UTC)
LENGTH_BOUNDS = tuple(float(base * 10**power) for power in range(4) for base in (1, 2, 5))
GAP_BOUNDS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
SECONDS_BOUNDS = (
    0.3,
    0.5,
    0.8,
    1,
    1.5,
    2,
    2.5,
    5,
    10,
    15,
    20,
    30,
    40,
    50,
    60,
    120,
    240,
    480,
    960,
    1920,
    7680,
)
TRIGGER = Trigger(preemptions_per_request=0.5, kv_cache_usage_ratio=0.85)

Nothing = Missing | Stale | Unsupported
NO_SERIES = Missing(Absence.NO_SERIES)
NOT_A_NUMBER = Missing(Absence.NOT_A_NUMBER)
SOURCE_UNAVAILABLE = Missing(Absence.SOURCE_UNAVAILABLE)
AMBIGUOUS = Missing(Absence.AMBIGUOUS)
STALE = Stale(NOW - timedelta(minutes=5))
UNSUPPORTED = Unsupported()


def a_histogram(bounds: Sequence[float], values: Mapping[float, float]) -> Histogram:
    """Return the histogram of some values, each with its number of observations."""
    counts = [0.0] * (len(bounds) + 1)
    for value, count in values.items():
        counts[bisect_left(bounds, value)] += count
    return Histogram(tuple(bounds), tuple(counts), sum(v * n for v, n in values.items()))


def spread(mean: float, variation: float = 0.7, steps: int = 200) -> dict[float, float]:
    """Return lengths of a lognormal shape: `steps` of them, each as likely as the other."""
    sigma = sqrt(log(1 + variation**2))
    shares = [(step + 0.5) / steps for step in range(steps)]
    drawn = [max(1, round(exp(sigma * NormalDist().inv_cdf(share)) * mean)) for share in shares]
    scale = mean * steps / sum(drawn)
    lengths: dict[float, float] = {}
    for length in drawn:
        lengths[max(1, round(length * scale))] = lengths.get(max(1, round(length * scale)), 0) + 1
    return lengths


def _mean(values: Mapping[float, float]) -> float:
    return sum(v * n for v, n in values.items()) / sum(values.values())


def _times(shape: Mapping[float, float], count: float) -> dict[float, float]:
    scale = count / sum(shape.values())
    return {value: share * scale for value, share in shape.items()}


POOL = Pool(149, 32)


@dataclass(frozen=True, slots=True)
class Replica:
    """One replica over one window. The defaults thrash: 32 clients, a pool for about 19 sequences."""

    finished: float = 960
    preemptions: float = 1680
    running_mean: float = 22.8
    running_max: float = 32
    waiting_mean: float = 9.2
    in_flight_change: float = 0
    usage_mean: float = 0.99
    prompts: Mapping[float, float] = field(default_factory=lambda: spread(60))
    outputs: Mapping[float, float] = field(default_factory=lambda: spread(190))
    step_seconds: float = 0.028
    prefill_seconds: float = 0.15
    stalls: float = 192
    stall_seconds: float = 2.4
    hiccups: float = 0
    """Gaps of 0.6 s: no stalls yet, but not smooth either."""
    e2e_seconds: float = 11
    first_token_seconds: float = 1.2
    prefix_hit_share: float = 0.0
    pool: Pool = POOL
    started_at: datetime = NOW - timedelta(hours=5)
    models: tuple[str, ...] = ("llm",)
    engines: int = 1

    def __post_init__(self) -> None:
        """Refuse what no engine does.

        Raises:
            ValueError: naming the fields that contradict each other.
        """
        if not 0 <= self.usage_mean <= 1 or not 0 <= self.prefix_hit_share <= 1:
            raise ValueError("usage_mean and prefix_hit_share are ratios")
        if self.running_mean > self.running_max:
            raise ValueError("running_mean is over running_max")
        if min(self.finished, self.preemptions, self.stalls, self.hiccups, self.running_mean) < 0:
            raise ValueError("counts are not negative")
        if self.stalls > self.generated:
            raise ValueError("stalls are gaps between tokens: there are fewer than tokens")
        if self.preemptions and not self.running_max:
            raise ValueError("preemptions without a running sequence")

    @property
    def is_full(self) -> bool:
        """Return whether as many as ever run at four of five moments."""
        return self.running_mean >= self.running_max - 0.5

    @property
    def generated(self) -> float:
        """Return the tokens generated by the finished requests."""
        return self.finished * _mean(self.outputs)

    def numbers(self) -> dict[Signal, float]:
        """Return every number that a source would answer."""
        prompt_tokens = self.finished * _mean(self.prompts)
        return {
            Signal.PREEMPTIONS: self.preemptions,
            Signal.PREEMPTIONS_PER_REQUEST_HELD: self.preemptions / max(1.0, self.finished),
            Signal.SILENT_SECONDS_HELD: 300
            * self.waiting_mean
            / max(1.0, self.finished + self.in_flight_change),
            Signal.STALLS_PER_REQUEST_HELD: self.stalls / max(1.0, self.finished),
            Signal.REQUESTS_FINISHED: self.finished,
            Signal.REQUESTS_ABORTED: 0.0,
            Signal.REQUESTS_IN_FLIGHT_CHANGE: self.in_flight_change,
            Signal.RUNNING_MEAN: self.running_mean,
            Signal.RUNNING_MAX: self.running_max,
            Signal.RUNNING_LOW: self.running_max
            if self.is_full
            else min(self.running_mean, self.running_max - 1),
            Signal.WAITING_MEAN: self.waiting_mean,
            Signal.WAITING_AT_END: self.waiting_mean,
            Signal.KV_CACHE_USAGE_MEAN: self.usage_mean,
            Signal.KV_CACHE_USAGE_MAX: max(self.usage_mean, 1.0 if self.preemptions else 0.0),
            Signal.KV_CACHE_USAGE_DEVIATION: 0.02,
            Signal.PROMPT_TOKENS: prompt_tokens,
            Signal.GENERATED_TOKENS: self.generated,
            Signal.PREFIX_CACHE_QUERIES: prompt_tokens,
            Signal.PREFIX_CACHE_HITS: prompt_tokens * self.prefix_hit_share,
            Signal.STARTED_SECONDS: self.started_at.timestamp(),
        }

    def histograms(self) -> dict[Signal, Histogram]:
        """Return every histogram that a source would answer."""
        smooth = max(0.0, self.generated - self.finished - self.stalls - self.hiccups)
        gaps = {self.step_seconds: smooth, 0.6: self.hiccups, self.stall_seconds: self.stalls}
        return {
            Signal.PROMPT_LENGTH: a_histogram(LENGTH_BOUNDS, _times(self.prompts, self.finished)),
            Signal.OUTPUT_LENGTH: a_histogram(LENGTH_BOUNDS, _times(self.outputs, self.finished)),
            Signal.OUTPUT_LIMIT: a_histogram(LENGTH_BOUNDS, {2000.0: self.finished}),
            Signal.INTER_TOKEN_SECONDS: a_histogram(GAP_BOUNDS, gaps),
            Signal.TIME_TO_FIRST_TOKEN_SECONDS: a_histogram(
                SECONDS_BOUNDS, {self.first_token_seconds: self.finished}
            ),
            Signal.PREFILL_SECONDS: a_histogram(SECONDS_BOUNDS, {self.prefill_seconds: self.finished}),
            Signal.E2E_SECONDS: a_histogram(SECONDS_BOUNDS, {self.e2e_seconds: self.finished}),
        }

    def readings(self) -> PodReadings:
        """Return all answers as readings."""
        return PodReadings(
            {signal: Measured(value, NOW) for signal, value in self.numbers().items()},
            {signal: Measured(value, NOW) for signal, value in self.histograms().items()},
            Measured(self.pool, NOW),
            self.models,
            self.engines,
        )


THRASHING = Replica()
CALM = Replica(preemptions=48, running_mean=14, running_max=18, usage_mean=0.7, waiting_mean=0, stalls=0)
IDLE = Replica(
    finished=0, preemptions=0, running_mean=0, running_max=0, waiting_mean=0, usage_mean=0, stalls=0
)


def without(readings: PodReadings, signal: Signal, why: Nothing) -> PodReadings:
    """Return readings with one answer taken away."""
    if signal in HISTOGRAMS:
        return replace(readings, histograms={**readings.histograms, signal: why})
    return replace(readings, numbers={**readings.numbers, signal: why})


def with_number(readings: PodReadings, signal: Signal, value: float) -> PodReadings:
    """Return readings with one number replaced."""
    return replace(readings, numbers={**readings.numbers, signal: Measured(value, NOW)})


def with_histogram(readings: PodReadings, signal: Signal, value: Histogram) -> PodReadings:
    """Return readings with one histogram replaced."""
    return replace(readings, histograms={**readings.histograms, signal: Measured(value, NOW)})


def an_observation(
    *replicas: Replica | PodReadings, window_seconds: float = 300, hold_seconds: float = 0
) -> Observation:
    """Return one look at pods llm-0, llm-1 and so on."""
    pods = {
        f"llm-{index}": one.readings() if isinstance(one, Replica) else one
        for index, one in enumerate(replicas)
    }
    return Observation(NOW, window_seconds, hold_seconds, pods)


def an_evidence(
    *replicas: Replica | PodReadings, sizing: Sequence[Replica | PodReadings] = (), trigger: Trigger = TRIGGER
) -> Evidence:
    """Return both looks at the same replicas; over the sizing window they did the same by default.

    Raises:
        ValueError: the two looks have different numbers of replicas.
    """
    if sizing and len(sizing) != len(replicas):
        raise ValueError("both looks cover the same replicas")
    burn = an_observation(*replicas, window_seconds=300, hold_seconds=120)
    return Evidence(burn, an_observation(*(sizing or replicas), window_seconds=1800), trigger)
