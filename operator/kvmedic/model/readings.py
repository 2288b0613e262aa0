"""Readings that are all there, or the exact reason why not; and what a histogram says of what it counted.

A judgement asks for the signals it needs once, here; after that it works on plain numbers. What is missing is
named: which replica, which signal, and what would provide it.

Inside a bucket of a histogram values count as spread evenly, and the lowest bucket begins at 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import TypeAlias

from kvmedic.model.evidence import (
    HELD,
    HISTOGRAMS,
    Absence,
    Histogram,
    Inconclusive,
    Measured,
    Missing,
    Observation,
    PodReadings,
    Pool,
    Reading,
    Signal,
    Stale,
)
from kvmedic.model.reasons import Reason

NAMED_GAPS = 3
"""Gaps that a message names; the rest is counted, so that a fleet of hundreds fits in one line."""

_ABSENT = {
    Absence.NO_SERIES: (
        Reason.METRICS_MISSING,
        "the source has no series for it; check that the replica is scraped, and that its engine exports "
        "statistics",
    ),
    Absence.NOTHING_FOUND: (
        Reason.METRICS_MISSING,
        "the replica is scraped, without this: its engine's version does not export it, the scrape drops "
        "it, or the replica is younger than the look",
    ),
    Absence.NOT_A_NUMBER: (
        Reason.METRICS_MISSING,
        "the source answered NaN; see what the replica itself exports",
    ),
    Absence.SOURCE_UNAVAILABLE: (
        Reason.SOURCE_UNAVAILABLE,
        "the source did not answer completely; check the metrics source",
    ),
    Absence.AMBIGUOUS: (
        Reason.METRICS_AMBIGUOUS,
        "the source has series that contradict each other; check that the replica is scraped once",
    ),
    Absence.OTHER_ADDRESS: (
        Reason.METRICS_MISSING,
        "its series come from a target that is not at the pod's IP address, so they are not used; have the "
        "scrape leave the label instance at ADDRESS:PORT of the pod, and see who else exports the pod's name",
    ),
    Absence.SEVERAL_PAGES: (
        Reason.METRICS_AMBIGUOUS,
        "several pages write its series; set honorLabels (honor_labels) to false in each job that reads "
        "others' pages, and see whose page exports the replica's labels",
    ),
    Absence.TOO_MUCH: (
        Reason.METRICS_MISSING,
        "its series are more than one query can answer: too many, with labels too long, or too slow for the "
        "source; see what its page exports, and set sampleLimit (sample_limit) in its scrape",
    ),
    Absence.UNREADABLE: (
        Reason.METRICS_MISSING,
        "the source answered with something else; see what the replica itself exports",
    ),
}


_NOT_THROUGHOUT = (
    "the replica was not seen throughout the last {:.0f} s, for which the trigger has to hold "
    "(spec.trigger.for): it is younger, or was not scraped all the while; wait"
)


AnyReading: TypeAlias = Reading[float] | Reading[Histogram] | Reading[Pool]


@dataclass(frozen=True, slots=True)
class Complete:
    """One replica with a value for every signal that was asked for."""

    numbers: Mapping[Signal, float]
    histograms: Mapping[Signal, Histogram]

    @property
    def preemptions_per_request(self) -> float:
        """Return preemptions per finished request; where none finished, per one."""
        return self.numbers[Signal.PREEMPTIONS] / max(1.0, self.numbers[Signal.REQUESTS_FINISHED])


def gather_values(
    observation: Observation, signals: frozenset[Signal]
) -> Mapping[str, Complete] | Inconclusive:
    """Return every replica's values by pod name, or what is missing on which replica."""
    if not observation.pods:
        return Inconclusive(
            Reason.NO_REPLICAS,
            "no replica is expected to serve: scale the target out, or leave it; there is nothing to look at",
        )
    gaps = [
        (why[0], name, f"{signal}: {why[1]}")
        for name, pod in sorted(observation.pods.items())
        for signal in sorted(signals)
        if (why := _why_lacking(pod, signal, observation)) is not None
    ]
    if gaps:
        return _inconclusive(gaps)
    return {name: _read_values(pod, signals) for name, pod in sorted(observation.pods.items())}


def reported_values(observation: Observation, signals: frozenset[Signal]) -> dict[str, Complete]:
    """Return the values of those replicas that have one for every signal, by pod name."""
    return {
        name: _read_values(pod, signals)
        for name, pod in sorted(observation.pods.items())
        if all(_why_lacking(pod, each, observation) is None for each in signals)
    }


def _read_values(pod: PodReadings, signals: frozenset[Signal]) -> Complete:
    numbers = {each: number_or_none(pod, each) for each in signals - HISTOGRAMS}
    counted = {each: histogram(pod, each) for each in signals & HISTOGRAMS}
    return Complete(
        {each: value for each, value in numbers.items() if value is not None},
        {each: value for each, value in counted.items() if value is not None},
    )


def pools(observation: Observation) -> Mapping[str, Pool] | Inconclusive:
    """Return every replica's KV-cache pool by pod name, or which replica's is not known."""
    found = {name: readings.pool for name, readings in sorted(observation.pods.items())}
    whys = {name: _why_missing(reading, observation) for name, reading in found.items()}
    gaps = [(why[0], name, f"KV-cache pool: {why[1]}") for name, why in whys.items() if why is not None]
    if gaps:
        return _inconclusive(gaps)
    return {name: reading.value for name, reading in found.items() if isinstance(reading, Measured)}


def total(found: Mapping[str, Complete], signal: Signal) -> float:
    """Return a number, added up over replicas."""
    return sum(one.numbers[signal] for one in found.values())


def total_if_reported(observation: Observation, signal: Signal) -> float | None:
    """Return a number that a judgement can do without, added up; None where a replica does not report it."""
    reported = [number_or_none(readings, signal) for readings in observation.pods.values()]
    known = [each for each in reported if each is not None]
    return sum(known) if len(known) == len(reported) else None


def total_reported(observation: Observation, signal: Signal) -> float:
    """Return a number that a judgement can do without, added up over the replicas that report it."""
    return sum(number_or_none(readings, signal) or 0.0 for readings in observation.pods.values())


def number_or_none(readings: PodReadings, signal: Signal) -> float | None:
    """Return a number that a judgement can do without, or None where it is not measured."""
    reading = readings.number(signal)
    return reading.value if isinstance(reading, Measured) else None


def histogram(readings: PodReadings, signal: Signal) -> Histogram | None:
    """Return a histogram that a judgement can do without, or None where it is not measured."""
    reading = readings.histogram(signal)
    return reading.value if isinstance(reading, Measured) else None


def _why_missing(reading: AnyReading, observation: Observation) -> tuple[Reason, str] | None:
    """Return why a reading has no value, or None where it has one."""
    if isinstance(reading, Measured):
        return None
    if isinstance(reading, Missing):
        return _ABSENT[reading.reason]
    if isinstance(reading, Stale):
        age = (observation.at - reading.at).total_seconds()
        return Reason.METRICS_STALE, f"the newest sample is {age:.0f} s old; check the scrape"
    return Reason.SIGNAL_UNSUPPORTED, "this engine does not export it; a newer version may"


def _why_lacking(pod: PodReadings, signal: Signal, observation: Observation) -> tuple[Reason, str] | None:
    """Return why a replica has no value for a signal, or None where it has one."""
    reading = pod.histogram(signal) if signal in HISTOGRAMS else pod.number(signal)
    is_held = signal in HELD and observation.hold_seconds > 0
    is_seen = isinstance(pod.number(Signal.PREEMPTIONS), Measured)
    if is_held and is_seen and reading == Missing(Absence.NOTHING_FOUND):
        return Reason.METRICS_MISSING, _NOT_THROUGHOUT.format(observation.hold_seconds)
    return _why_missing(reading, observation)


def _inconclusive(gaps: Sequence[tuple[Reason, str, str]]) -> Inconclusive:
    """Return what is missing, replicas that lack the same in one clause; `gaps`: reason, replica and what."""
    lacking: dict[str, list[str]] = {}
    for _, name, what in gaps:
        lacking.setdefault(what, []).append(name)
    named = "; ".join(
        f"{list_first(names, NAMED_GAPS)}: {what}" for what, names in list(lacking.items())[:NAMED_GAPS]
    )
    rest = sum(len(names) for names in list(lacking.values())[NAMED_GAPS:])
    return Inconclusive(gaps[0][0], f"{named}; and {rest} more" if rest else named)


def list_first(names: Sequence[str], most: int) -> str:
    """Return names in a line, of which the first ones are listed and the rest is counted."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


WIDEST_STEP = 2.5
"""Ratio of a bucket's bounds, at most, in the series 1, 2, 5, 10 … in which lengths are counted.

Source: `build_1_2_5_buckets` (vLLM v1/metrics/loggers.py, 0.32) lists every bound up to the model's
greatest length. A length above the top bound is therefore below the bound that would come next, at
most 2.5 times the top one."""


@dataclass(frozen=True, slots=True)
class Moments:
    """E[X], E[X^2] and E[X^3] of one quantity."""

    first: float
    second: float
    third: float


def merge_histograms(histograms: Sequence[Histogram]) -> Histogram:
    """Return what the histograms counted together; ValueError: there is none, or their bounds differ."""
    if len({one.bounds for one in histograms}) != 1:
        raise ValueError("histograms are added up bucket by bucket, so they need the same bounds")
    columns = zip(*(one.counts for one in histograms), strict=True)
    return Histogram(
        histograms[0].bounds,
        tuple(sum(column) for column in columns),
        sum(one.total for one in histograms),
    )


def quantile(histogram: Histogram, share: float) -> float:
    """Return the value below which a share (0-1) of the observations lie; infinite above the top bound."""
    if histogram.count <= 0:
        raise ValueError("an empty histogram has no quantiles")
    desired = share * histogram.count
    *filled, last = [bucket for bucket in _buckets(histogram, inf) if bucket[2]]
    for lower, upper, count in filled:
        if count >= desired:
            return lower + (upper - lower) * desired / count
        desired -= count
    lower, upper, count = last
    return lower + (upper - lower) * min(1.0, desired / count) if upper < inf else inf


def count_above(histogram: Histogram, limit: float) -> float:
    """Return how many observations lie above a limit; all of the top bucket count as above it."""
    total = 0.0
    for lower, upper, count in _buckets(histogram, inf):
        if lower >= limit or upper == inf:
            total += count
        elif upper > limit:
            total += count * (upper - limit) / (upper - lower)
    return total


def find_longest(histogram: Histogram) -> float:
    """Return the bound that no observation exceeded; infinite where one lies above the top bound."""
    if histogram.count <= 0:
        raise ValueError("an empty histogram has no longest observation")
    used = [upper for upper, count in zip(histogram.bounds, histogram.counts, strict=False) if count > 0]
    return inf if histogram.counts[-1] > 0 else used[-1]


def lower_bound(histogram: Histogram, share: float) -> float:
    """Return the lower bound of the bucket in which a share (0-1) of the observations is reached.

    All but that share lie above it, or nearly: no value is taken for larger than it is.
    """
    if histogram.count <= 0:
        raise ValueError("an empty histogram has no quantiles")
    desired, found = share * histogram.count, 0.0
    for lower, _, count in _buckets(histogram, inf):
        found += count
        if count > 0 and found > desired:
            return lower
    return histogram.bounds[-1] if histogram.bounds else 0.0


def mean_below(histogram: Histogram, bound: float) -> float:
    """Return the mean of the observations in the buckets up to a bound; 0 when there is none.

    The exact total less the midpoints of the buckets above; the top bucket counts as reaching
    `WIDEST_STEP` times its lower bound.
    """
    count, total = histogram.count, histogram.total
    for lower, upper, found in _buckets(histogram, WIDEST_STEP):
        if lower >= bound:
            count -= found
            total -= found * (lower + upper) / 2
    return max(0.0, total / count) if count > 0 else 0.0


def moments(histogram: Histogram) -> Moments:
    """Return the moments, rescaled so that the first is the exact mean.

    The top bucket counts as reaching `WIDEST_STEP` times its lower bound. ValueError: it counted nothing, or
    nothing but zeros.
    """
    if histogram.count <= 0 or histogram.total <= 0:
        raise ValueError("an empty histogram has no moments")
    raw = [0.0, 0.0, 0.0]
    for lower, upper, count in _buckets(histogram, WIDEST_STEP):
        share = count / histogram.count
        for power in (1, 2, 3):
            # E[X^power] of values spread evenly between two bounds.
            evenly = (upper ** (power + 1) - lower ** (power + 1)) / ((power + 1) * (upper - lower))
            raw[power - 1] += share * evenly
    scale = histogram.mean / raw[0]
    return Moments(raw[0] * scale, raw[1] * scale**2, raw[2] * scale**3)


def representatives(histogram: Histogram, number: int) -> tuple[float, ...]:
    """Return values that stand for as many observations each, in rising order, with the exact mean.

    The top bucket counts as reaching `WIDEST_STEP` times its lower bound. ValueError: it counted nothing, or
    nothing but zeros.
    """
    if histogram.count <= 0 or histogram.total <= 0:
        raise ValueError("an empty histogram has no representatives")
    found: list[float] = []
    below = 0.0
    for lower, upper, count in _buckets(histogram, WIDEST_STEP):
        while (
            len(found) < number and (rank := (len(found) + 0.5) / number * histogram.count) <= below + count
        ):
            found.append(lower + (upper - lower) * (rank - below) / count)
        below += count
    scale = histogram.mean * number / sum(found)
    return tuple(each * scale for each in found)


def is_concentrated(histogram: Histogram, share: float, buckets: int) -> bool:
    """Return whether some adjacent buckets hold at least a share (0-1) of the observations."""
    counts = histogram.counts
    fullest = max(sum(counts[at : at + buckets]) for at in range(len(counts)))
    return fullest >= share * histogram.count


def _buckets(histogram: Histogram, top: float) -> Iterator[tuple[float, float, float]]:
    """Yield lower bound, upper bound and count; the top bucket reaches `top` times its lower bound."""
    lower = 0.0
    for upper, count in zip(histogram.bounds, histogram.counts, strict=False):
        yield lower, upper, count
        lower = upper
    yield lower, (lower or 1.0) * top, histogram.counts[-1]
