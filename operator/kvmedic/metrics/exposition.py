"""Metrics as an engine itself exposes them: a page of text, and what several pages of a replica say.

No Prometheus is needed. The tables of signals are the same; the functions over a window are evaluated
here on the pages, as Prometheus does, without extrapolation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from itertools import pairwise
from statistics import fmean, pstdev
from typing import TypeAlias

from kvmedic.core.evidence import (
    HISTOGRAMS,
    Absence,
    Histogram,
    Missing,
    Observation,
    PodReadings,
    Reading,
    Signal,
    Unsupported,
)
from kvmedic.core.signals import (
    ChangeSource,
    CounterSource,
    GaugeSource,
    HeldRatioSource,
    HistogramSource,
    Over,
    SignalSource,
    SignalTable,
    StartSource,
)
from kvmedic.metrics.page import Page
from kvmedic.metrics.pools import block_tokens, pool
from kvmedic.metrics.readings import Replica, absent, histogram, number
from kvmedic.metrics.series import Series, presence_of

_Identity: TypeAlias = tuple[frozenset[tuple[str, str]], float | None]
"""Labels of a series, and the bound of a bucket."""

_LEAST_FOR_DEVIATION = 3
"""Two samples say nothing about how far samples lie from their mean."""


def evaluated(source: SignalSource, pages: Sequence[Page]) -> tuple[Series, ...] | None:
    """Return a signal's series over all pages, oldest first; None where so few pages cannot tell it."""
    match source:
        case CounterSource():
            return _risen(source, pages)
        case GaugeSource(names=names, over=over):
            if over is Over.DEVIATION and len(pages) < _LEAST_FOR_DEVIATION:
                return None
            return _newest(_over_pages(name, pages, _OVER[over]) for name in names)
        case ChangeSource(names=names):
            return _change(names, pages)
        case HistogramSource(names=names):
            return _histogram_series(names, pages)
        case HeldRatioSource():
            return _ratio(source, pages)
        case StartSource(name=name):
            return pages[-1].of(name)


def _increase(values: Sequence[float]) -> float:
    """Return how far a counter rose; after a fall it had started again from 0."""
    steps = pairwise(values)
    return math.fsum(later if later < earlier else later - earlier for earlier, later in steps)


_OVER: Mapping[Over, Callable[[Sequence[float]], float]] = {
    Over.MEAN: fmean,
    Over.MAX: max,
    Over.DEVIATION: pstdev,
}


def _over_pages(
    name: str, pages: Sequence[Page], reduce: Callable[[Sequence[float]], float]
) -> tuple[Series, ...]:
    """Return one value per series that the newest page has; NaN anywhere makes it NaN."""
    histories = _histories(name, pages)
    return tuple(_reduced(one, histories[_same(one)], reduce) for one in pages[-1].of(name))


def _rises(name: str, pages: Sequence[Page], *, begins_unseen: bool) -> tuple[Series, ...]:
    """Return how far each counter rose that the newest page has.

    One that the first page lacks began at 0 where that is how engines of old do, and is else unknown: the
    page may have been cut.
    """
    histories, before = _histories(name, pages), {_same(one) for one in pages[0].of(name)}
    seen = [one for one in pages[-1].of(name) if begins_unseen or _same(one) in before]
    born = {_same(one): [] if _same(one) in before else [0.0] for one in seen}
    return tuple(_reduced(one, born[_same(one)] + histories[_same(one)], _increase) for one in seen)


def _histories(name: str, pages: Sequence[Page]) -> Mapping[_Identity, list[float]]:
    found: dict[_Identity, list[float]] = {}
    for page in pages:
        for one in page.of(name):
            found.setdefault(_same(one), []).append(one.value)
    return found


def _reduced(one: Series, values: Sequence[float], reduce: Callable[[Sequence[float]], float]) -> Series:
    value = reduce(values) if all(map(math.isfinite, values)) else math.nan
    return Series(one.labels, value, one.bound)


def _same(series: Series) -> _Identity:
    """Return what a series of one name has in common over all pages."""
    return frozenset(series.labels.items()), series.bound


def _newest(generations: Iterable[Iterable[Series]]) -> tuple[Series, ...]:
    """Return the first generation's series, and of others those whose labels it does not have."""
    found: dict[_Identity, Series] = {}
    for series in generations:
        for one in series:
            found.setdefault(_same(one), one)
    return tuple(found.values())


def _risen(source: CounterSource, pages: Sequence[Page]) -> tuple[Series, ...]:
    return _newest(_rises(name, pages, begins_unseen=source.begins_unseen) for name in source.names)


def _change(names: Sequence[str], pages: Sequence[Page]) -> tuple[Series, ...]:
    """Return end minus start; nothing where one of the gauges is absent."""
    if not all(pages[-1].of(name) for name in names):
        return ()
    return tuple(one for name in names for one in _over_pages(name, pages, lambda many: many[-1] - many[0]))


def _histogram_series(names: Sequence[str], pages: Sequence[Page]) -> tuple[Series, ...]:
    name = next((name for name in names if pages[-1].of(f"{name}_bucket")), names[0])
    return (
        *_rises(f"{name}_bucket", pages, begins_unseen=True),
        *_rises(f"{name}_sum", pages, begins_unseen=True),
    )


def _ratio(source: HeldRatioSource, pages: Sequence[Page]) -> tuple[Series, ...]:
    """Return the ratio over all pages, as it is for a hold of nothing."""
    numerator, denominator = _risen(source.numerator, pages), _risen(source.denominator, pages)
    if not numerator:
        return ()
    risen = _total(numerator)
    if not denominator:
        return (Series({}, 0.0),) if risen == 0 else ()
    part = source.denominator.part
    counted = [one for one in denominator if part is None or part.holds(one.labels.get(part.label, ""))]
    return (Series({}, risen / max(_total(counted), source.floor)),)


def _total(series: Iterable[Series]) -> float:
    return math.fsum(one.value for one in series)


def replica_of(page: Page, table: SignalTable) -> Replica | None:
    """Return the replica that a page is of, or None where it is no engine's page."""
    now = page.at.timestamp()
    series = [Series(one.labels, now) for one in page.of(table.presence)]
    presence = presence_of(series, table, page.at, timedelta(0))
    return None if isinstance(presence, Missing) else Replica(presence, table)


def gauge(replica: Replica, signal: Signal, pages: Sequence[Page]) -> Reading[float]:
    """Return a signal that is a gauge over some pages, oldest first; one page is enough."""
    source = replica.table.signals[signal]
    series = evaluated(source, pages) if isinstance(source, GaugeSource) else None
    return Unsupported() if series is None else number(replica, source, series)


def observe_pages(pages: Mapping[str, Sequence[Page]], table: SignalTable) -> Observation:
    """Return what pages of each replica say, by pod name; two or more of each, oldest first.

    The window is the longest time between the first and the last page of a replica. Gauges are
    averaged over the pages, so two of them say little; a deviation needs three.

    Raises:
        ValueError: fewer than two pages of a replica, or out of order.
    """
    for name, many in pages.items():
        if len(many) < 2 or any(b.at <= a.at for a, b in pairwise(many)):
            raise ValueError(f"{name}: give at least two pages, the oldest first")
    if not pages:
        raise ValueError("give the pages of at least one replica")
    window = max(many[-1].at - many[0].at for many in pages.values())
    readings = {name: _readings(many, table) for name, many in pages.items()}
    at = max(many[-1].at for many in pages.values())
    return Observation(at, window.total_seconds(), 0.0, readings)


def _readings(pages: Sequence[Page], table: SignalTable) -> PodReadings:
    replica = replica_of(pages[-1], table)
    if replica is None:
        return absent(table.signals, Missing(Absence.NO_SERIES))
    found = {signal: evaluated(source, pages) for signal, source in table.signals.items()}
    return PodReadings(
        numbers={s: _number(replica, s, series) for s, series in found.items() if s not in HISTOGRAMS},
        histograms={s: _histogram(replica, series) for s, series in found.items() if s in HISTOGRAMS},
        pool=pool(replica, pages[-1].of(table.pool.name)),
        block_tokens=block_tokens(replica, pages[-1].of(table.pool.name)),
        model_names=replica.presence.models,
        engines=len(replica.presence.engines),
    )


def _number(replica: Replica, signal: Signal, series: Iterable[Series] | None) -> Reading[float]:
    return Unsupported() if series is None else number(replica, replica.table.signals[signal], series)


def _histogram(replica: Replica, series: Iterable[Series] | None) -> Reading[Histogram]:
    return Unsupported() if series is None else histogram(replica, series)
