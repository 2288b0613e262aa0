"""One replica's series become readings: numbers and histograms; its KV-cache pool is in `pools`.

Three steps, always in this order: series of one engine and one scraper are added up (they differ in
what the engine sets: model, finish reason), copies that several processes of it export must agree;
scrapers of one engine are duplicates and must agree; engines of one replica are combined as the signal
says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TypeAlias, TypeVar

from kvmedic.core.evidence import (
    HISTOGRAMS,
    Absence,
    Histogram,
    Measured,
    Missing,
    PodReadings,
    Reading,
    Signal,
    Stale,
)
from kvmedic.core.signals import (
    COUNTS_AGREE,
    Across,
    CounterSource,
    SignalSource,
    SignalTable,
    across_of,
    agreement_of,
)
from kvmedic.metrics.series import Presence, Scraper, Series

V = TypeVar("V")

Sightings: TypeAlias = Mapping[str, Mapping[Scraper, Sequence[Series]]]
"""Series by engine, and by who scraped them."""


@dataclass(frozen=True, slots=True)
class Replica:
    """One replica, with what is needed to read its series."""

    presence: Presence
    table: SignalTable


def number(replica: Replica, source: SignalSource, series: Iterable[Series]) -> Reading[float]:
    """Return a signal that is a number."""
    agreement = agreement_of(source)
    process = replica.table.process_label
    values = _per_engine(replica, series, lambda many: _number_of(source, many, process), agreement.holds)
    if isinstance(values, Missing):
        return values
    return Measured(_combined(across_of(source), values), replica.presence.at)


def histogram(replica: Replica, series: Iterable[Series]) -> Reading[Histogram]:
    """Return a signal that is a histogram."""
    values = _per_engine(replica, series, histogram_of, _alike)
    if isinstance(values, Missing):
        return values
    if len({one.bounds for one in values}) > 1:
        return Missing(Absence.AMBIGUOUS)
    counts = tuple(sum(column) for column in zip(*(one.counts for one in values), strict=True))
    total = sum(one.total for one in values)
    return Measured(Histogram(values[0].bounds, counts, total), replica.presence.at)


def histogram_of(series: Sequence[Series]) -> Histogram | Missing:
    """Return the histogram of one engine from its cumulative buckets and its sum.

    Cumulative counts are made to ascend: increases over a window are extrapolated bucket by bucket,
    so a lower bucket may come out slightly above a higher one (Prometheus' `histogram_quantile` does
    the same).
    """
    buckets: dict[float, float] = {}
    sums = [one.value for one in series if one.bound is None]
    for one in series:
        if one.bound is not None:
            buckets[one.bound] = buckets.get(one.bound, 0.0) + one.value
    if math.inf not in buckets or not sums:
        return Missing(Absence.NOTHING_FOUND)
    if not all(math.isfinite(value) for value in (*sums, *buckets.values())) or -math.inf in buckets:
        return Missing(Absence.NOT_A_NUMBER)
    if min(buckets.values()) < 0:
        return Missing(Absence.AMBIGUOUS)
    return _uncumulated(buckets, math.fsum(sums))


def _uncumulated(buckets: Mapping[float, float], total: float) -> Histogram:
    bounds = sorted(buckets)
    counts, below = [], 0.0
    for bound in bounds:
        upto = max(below, buckets[bound])
        counts.append(upto - below)
        below = upto
    return Histogram(tuple(bounds[:-1]), tuple(counts), total)


def _number_of(source: SignalSource, series: Sequence[Series], process_label: str) -> float | Missing:
    """Return the value of one engine as one scraper saw it; what several processes tell of it must agree."""
    told = [_folded(source, many) for many in _copies(series, process_label)]
    values = [one for one in told if not isinstance(one, Missing)]
    if len(values) < len(told):
        return Missing(Absence.NOT_A_NUMBER)
    if not all(agreement_of(source).holds(values[0], one) for one in values):
        return Missing(Absence.AMBIGUOUS)
    return fmean(values)


def _copies(series: Sequence[Series], process_label: str) -> Sequence[Sequence[Series]]:
    """Return the series by exporting process; only those of the engine as a whole where there are any."""
    by_process: dict[str, list[Series]] = {"": []}
    for one in series:
        by_process.setdefault(one.labels.get(process_label, ""), []).append(one)
    whole = by_process.pop("")
    return [whole] if whole or not by_process else list(by_process.values())


def _folded(source: SignalSource, series: Sequence[Series]) -> float | Missing:
    if isinstance(source, CounterSource) and source.part is not None:
        part = source.part
        series = [one for one in series if part.holds(one.labels.get(part.label, ""))]
    values = [one.value for one in series]
    if not all(math.isfinite(value) for value in values):
        return Missing(Absence.NOT_A_NUMBER)
    return _combined(across_of(source), values)


def _per_engine(
    replica: Replica,
    series: Iterable[Series],
    fold: Callable[[Sequence[Series]], V | Missing],
    agree: Callable[[V, V], bool],
) -> list[V] | Missing:
    """Return one value per engine of the replica; a value that one engine lacks is missing for all."""
    sightings = _sightings(replica, series)
    # Series without the engine's label are already of the whole replica.
    if not sightings or not (set(sightings) == {""} or set(sightings) == replica.presence.engines):
        return Missing(Absence.NOTHING_FOUND)
    values = []
    for _, scraped in sorted(sightings.items()):
        value = _undoubled(replica.presence, {s: fold(many) for s, many in scraped.items()}, agree)
        if isinstance(value, Missing):
            return value
        values.append(value)
    return values


def _sightings(replica: Replica, series: Iterable[Series]) -> Sightings:
    """Return the series by engine and scraper; those of scrapers that fell silent are left out."""
    found: dict[str, dict[Scraper, list[Series]]] = {}
    for many in _by_labels(series):
        labels = many[0].labels
        scraper = replica.presence.scraper_of(many[0])
        if scraper is not None:
            scraped = found.setdefault(labels.get(replica.table.engine_label, ""), {})
            scraped.setdefault(scraper, []).extend(many)
    return found


def _by_labels(series: Iterable[Series]) -> Iterable[list[Series]]:
    """Return series by their set of labels, which the buckets of one histogram share as one object."""
    found: dict[int, list[Series]] = {}
    for one in series:
        found.setdefault(id(one.labels), []).append(one)
    return found.values()


def _undoubled(
    presence: Presence, values: Mapping[Scraper, V | Missing], agree: Callable[[V, V], bool]
) -> V | Missing:
    """Return the value that the most recent scraper has, if all others agree with it."""
    order = sorted(values, key=lambda s: (-presence.scrapers[s].timestamp(), sorted(s)))
    chosen = values[order[0]]
    if isinstance(chosen, Missing):
        return chosen
    for scraper in order[1:]:
        other = values[scraper]
        if isinstance(other, Missing) or not agree(chosen, other):
            return Missing(Absence.AMBIGUOUS)
    return chosen


def _alike(a: Histogram, b: Histogram) -> bool:
    """Return whether two histograms are duplicates: same bounds, like counts, like mean."""
    if a.bounds != b.bounds or not COUNTS_AGREE.holds(a.count, b.count):
        return False
    means = [one.mean for one in (a, b) if one.count]
    if len(means) < 2:
        return True
    return abs(means[0] - means[1]) <= COUNTS_AGREE.relative * max(means)


def _combined(across: Across, values: Sequence[float]) -> float:
    """Return several engines' values as one; no series of a part count 0."""
    if not values:
        return 0.0
    match across:
        case Across.SUM:
            return math.fsum(values)
        case Across.MEAN:
            return math.fsum(values) / len(values)
        case Across.LARGEST:
            return max(values)
        case Across.ROOT_MEAN_SQUARE:
            return math.sqrt(math.fsum(value * value for value in values) / len(values))


def unavailable(signals: Iterable[Signal]) -> PodReadings:
    """Return the readings of a replica whose source did not answer."""
    return absent(signals, Missing(Absence.SOURCE_UNAVAILABLE))


def absent(signals: Iterable[Signal], why: Missing | Stale) -> PodReadings:
    """Return the readings of a replica of which nothing is known, for one reason."""
    wanted = tuple(signals)
    return PodReadings(
        numbers={signal: why for signal in wanted if signal not in HISTOGRAMS},
        histograms={signal: why for signal in wanted if signal in HISTOGRAMS},
        pool=why,
    )
