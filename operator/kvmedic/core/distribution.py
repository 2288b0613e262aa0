"""What a histogram says about the values it counted: quantiles, tails and moments.

Inside a bucket values count as spread evenly. The lowest bucket begins at 0. Nothing here knows what
is being measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf

from kvmedic.core.evidence import Histogram

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


def merged(histograms: Sequence[Histogram]) -> Histogram:
    """Return what the histograms counted together.

    Raises:
        ValueError: there is none, or they have different bounds.
    """
    if len({one.bounds for one in histograms}) != 1:
        raise ValueError("histograms are added up bucket by bucket, so they need the same bounds")
    columns = zip(*(one.counts for one in histograms), strict=True)
    return Histogram(
        histograms[0].bounds,
        tuple(sum(column) for column in columns),
        sum(one.total for one in histograms),
    )


def quantile(histogram: Histogram, share: float) -> float:
    """Return the value below which a share (0-1) of the observations lie; infinite above the top bound.

    Raises:
        ValueError: the histogram is empty.
    """
    if histogram.count <= 0:
        raise ValueError("an empty histogram has no quantiles")
    wanted = share * histogram.count
    *filled, last = [bucket for bucket in _buckets(histogram, inf) if bucket[2]]
    for lower, upper, count in filled:
        if count >= wanted:
            return lower + (upper - lower) * wanted / count
        wanted -= count
    lower, upper, count = last
    return lower + (upper - lower) * min(1.0, wanted / count) if upper < inf else inf


def above(histogram: Histogram, limit: float) -> float:
    """Return how many observations lie above a limit; all of the top bucket count as above it."""
    total = 0.0
    for lower, upper, count in _buckets(histogram, inf):
        if lower >= limit or upper == inf:
            total += count
        elif upper > limit:
            total += count * (upper - limit) / (upper - lower)
    return total


def longest(histogram: Histogram) -> float:
    """Return the bound that no observation exceeded; infinite where one lies above the top bound.

    Raises:
        ValueError: the histogram is empty.
    """
    if histogram.count <= 0:
        raise ValueError("an empty histogram has no longest observation")
    used = [upper for upper, count in zip(histogram.bounds, histogram.counts, strict=False) if count > 0]
    return inf if histogram.counts[-1] > 0 else used[-1]


def lower_bound(histogram: Histogram, share: float) -> float:
    """Return the lower bound of the bucket in which a share (0-1) of the observations is reached.

    All but that share lie above it, or nearly: no value is taken for larger than it is.

    Raises:
        ValueError: the histogram is empty.
    """
    if histogram.count <= 0:
        raise ValueError("an empty histogram has no quantiles")
    wanted, found = share * histogram.count, 0.0
    for lower, _, count in _buckets(histogram, inf):
        found += count
        if count > 0 and found > wanted:
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

    The top bucket counts as reaching `WIDEST_STEP` times its lower bound.

    Raises:
        ValueError: the histogram counted nothing, or nothing but zeros.
    """
    if histogram.count <= 0 or histogram.total <= 0:
        raise ValueError("an empty histogram has no moments")
    raw = [0.0, 0.0, 0.0]
    for lower, upper, count in _buckets(histogram, WIDEST_STEP):
        share = count / histogram.count
        for power in (1, 2, 3):
            raw[power - 1] += share * _power_mean(lower, upper, power)
    scale = histogram.mean / raw[0]
    return Moments(raw[0] * scale, raw[1] * scale**2, raw[2] * scale**3)


def representatives(histogram: Histogram, number: int) -> tuple[float, ...]:
    """Return values that stand for as many observations each, in rising order, with the exact mean.

    The top bucket counts as reaching `WIDEST_STEP` times its lower bound.

    Raises:
        ValueError: the histogram counted nothing, or nothing but zeros.
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


def _power_mean(lower: float, upper: float, power: int) -> float:
    """Return E[X^power] of values spread evenly between two bounds."""
    return (upper ** (power + 1) - lower ** (power + 1)) / ((power + 1) * (upper - lower))
