"""One replica's series become readings: numbers, histograms and its KV-cache pool.

Always in this order: series of one engine and one scraper are added up, and copies that several processes
export must agree; scrapers of one engine are duplicates and must agree; engines are combined as the signal
says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TypeAlias, TypeVar

from kvmedic.metrics.series import Presence, Scraper, Series
from kvmedic.model.evidence import (
    COUNTS_AGREE,
    HISTOGRAMS,
    Absence,
    Across,
    CounterSource,
    Histogram,
    Measured,
    Missing,
    PodReadings,
    Pool,
    PoolSource,
    Reading,
    Signal,
    SignalSource,
    SignalTable,
    Stale,
    Unsupported,
    across_of,
    agreement_of,
)

V = TypeVar("V")

Sightings: TypeAlias = Mapping[str, Mapping[Scraper, Sequence[Series]]]
"""Series by engine, and by who scraped them."""


@dataclass(frozen=True, slots=True)
class Replica:
    """One replica, with what is needed to read its series."""

    presence: Presence
    table: SignalTable


def read_number(replica: Replica, source: SignalSource, series: Iterable[Series]) -> Reading[float]:
    """Return a signal that is a number."""
    agreement = agreement_of(source)
    process = replica.table.process_label
    values = _per_engine(replica, series, lambda many: _number_of(source, many, process), agreement.agrees)
    if isinstance(values, Missing):
        return values
    return Measured(_combine_engines(across_of(source), values), replica.presence.at)


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
    bounds = sorted(buckets)
    counts, below = [], 0.0
    for bound in bounds:
        upto = max(below, buckets[bound])
        counts.append(upto - below)
        below = upto
    return Histogram(tuple(bounds[:-1]), tuple(counts), math.fsum(sums))


def _number_of(source: SignalSource, series: Sequence[Series], process_label: str) -> float | Missing:
    """Return the value of one engine as one scraper saw it; what several processes tell of it must agree."""
    told = [_fold_values(source, many) for many in _copies(series, process_label)]
    values = [one for one in told if not isinstance(one, Missing)]
    if len(values) < len(told):
        return Missing(Absence.NOT_A_NUMBER)
    if not all(agreement_of(source).agrees(values[0], one) for one in values):
        return Missing(Absence.AMBIGUOUS)
    return fmean(values)


def _copies(series: Sequence[Series], process_label: str) -> Sequence[Sequence[Series]]:
    """Return the series by exporting process; only those of the engine as a whole where there are any."""
    by_process: dict[str, list[Series]] = {"": []}
    for one in series:
        by_process.setdefault(one.labels.get(process_label, ""), []).append(one)
    whole = by_process.pop("")
    return [whole] if whole or not by_process else list(by_process.values())


def _fold_values(source: SignalSource, series: Sequence[Series]) -> float | Missing:
    if isinstance(source, CounterSource) and source.part is not None:
        part = source.part
        series = [one for one in series if part.includes(one.labels.get(part.label, ""))]
    values = [one.value for one in series]
    if not all(math.isfinite(value) for value in values):
        return Missing(Absence.NOT_A_NUMBER)
    return _combine_engines(across_of(source), values)


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
        value = _value_of_scrapers(replica.presence, {s: fold(many) for s, many in scraped.items()}, agree)
        if isinstance(value, Missing):
            return value
        values.append(value)
    return values


def _sightings(replica: Replica, series: Iterable[Series]) -> Sightings:
    """Return the series by engine and scraper; those of scrapers that fell silent are left out."""
    # The buckets of one histogram share their labels as one object.
    by_labels: dict[int, list[Series]] = {}
    for one in series:
        by_labels.setdefault(id(one.labels), []).append(one)
    found: dict[str, dict[Scraper, list[Series]]] = {}
    for many in by_labels.values():
        labels = many[0].labels
        scraper = replica.presence.scraper_of(many[0])
        if scraper is not None:
            scraped = found.setdefault(labels.get(replica.table.engine_label, ""), {})
            scraped.setdefault(scraper, []).extend(many)
    return found


def _value_of_scrapers(
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
    if a.bounds != b.bounds or not COUNTS_AGREE.agrees(a.count, b.count):
        return False
    means = [one.mean for one in (a, b) if one.count]
    if len(means) < 2:
        return True
    return abs(means[0] - means[1]) <= COUNTS_AGREE.relative * max(means)


def _combine_engines(across: Across, values: Sequence[float]) -> float:
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


def readings_of(
    replica: Replica,
    series: Mapping[Signal, Iterable[Series] | None],
    pools: Sequence[Series] | None,
    untold: Missing | Unsupported,
) -> PodReadings:
    """Return a replica's readings; `untold` is that of what has no series because nobody could be asked."""
    numbers = {
        signal: untold if many is None else read_number(replica, replica.table.signals[signal], many)
        for signal, many in series.items()
        if signal not in HISTOGRAMS
    }
    return PodReadings(
        numbers=numbers,
        histograms={
            signal: untold if many is None else histogram(replica, many)
            for signal, many in series.items()
            if signal in HISTOGRAMS
        },
        pool=untold if pools is None else read_pool(replica, pools),
        block_tokens=block_tokens(replica, pools or ()),
        model_names=replica.presence.models,
        engines=len(replica.presence.engines),
    )


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


_UNTOLD = "None"
"""Text of a value that the engine does not tell."""

_DIGITS = 15
"""A number of more is no count of blocks or tokens; Python refuses to read one of thousands of digits."""

_Told: TypeAlias = Pool | Missing | Unsupported
"""What one series says: the pool, or why it says none."""

_HYBRID = 0.05
"""Where the engine's own count of tokens differs from blocks times block size by more than this, a
block does not hold its size in tokens (models that mix kinds of attention). Rounding to whole blocks
per request stays under it for any request length over 20 blocks."""


@dataclass(frozen=True, slots=True)
class _Frontend:
    """What one frontend says: the engines behind it, and their pool."""

    engines: frozenset[str]
    pool: Pool


def read_pool(replica: Replica, series: Iterable[Series]) -> Reading[Pool]:
    """Return the pool of all engines of a replica together.

    Frontends with the same engines are duplicates and must say the same; frontends with different
    engines are parts of one replica.
    """
    scraped = _by_scraper(replica, series)
    if not scraped:
        return Missing(Absence.NOTHING_FOUND)
    frontends = set()
    for many in scraped.values():
        frontend = _frontend(replica, many)
        if not isinstance(frontend, _Frontend):
            return frontend
        frontends.add(frontend)
    return _join_histograms(replica, sorted(frontends, key=lambda f: sorted(f.engines)))


def block_tokens(replica: Replica, series: Iterable[Series]) -> int | None:
    """Return tokens per block as the labels declare them; None where they do not, or not with one voice."""
    labels = [one.labels for many in _by_scraper(replica, series).values() for one in many]
    said = {_declared_block_tokens(replica.table.pool, each) for each in labels}
    return said.pop() or None if len(said) == 1 else None


def window(replica: Replica, series: Sequence[Series]) -> str:
    """Return what of the model frees blocks without any method, for a person; empty where no label tells."""
    source = replica.table.pool
    for one in series:
        if tokens := _whole(one.labels.get(source.window, "")):
            return f"{source.window} is {tokens} in {source.name}"
    found, declared = read_pool(replica, series), block_tokens(replica, series)
    if declared and isinstance(found, Measured) and found.value.block_tokens != declared:
        return (
            f"{source.name} tells {found.value.block_tokens} tokens per block of {declared}, as models "
            "do that mix kinds of attention"
        )
    return ""


def _by_scraper(replica: Replica, series: Iterable[Series]) -> dict[Scraper, list[Series]]:
    found: dict[Scraper, list[Series]] = {}
    for one in series:
        scraper = replica.presence.scraper_of(one)
        if scraper is not None:
            found.setdefault(scraper, []).append(one)
    return found


def _frontend(replica: Replica, series: Sequence[Series]) -> _Frontend | Missing | Unsupported:
    """Return what one frontend says; each of its engines has a series with the same text."""
    engines = frozenset(one.labels.get(replica.table.engine_label, "") for one in series)
    told = {_pool_of_series(replica.table.pool, one, len(engines)) for one in series}
    if len(told) > 1:
        return Missing(Absence.AMBIGUOUS)
    only = told.pop()
    return _Frontend(engines, only) if isinstance(only, Pool) else only


def _join_histograms(replica: Replica, frontends: Sequence[_Frontend]) -> Reading[Pool]:
    engines = [engine for frontend in frontends for engine in frontend.engines]
    kinds = {replace(frontend.pool, blocks=0) for frontend in frontends}
    if len(engines) > len(set(engines)) or len(kinds) > 1:
        return Missing(Absence.AMBIGUOUS)
    if set(engines) < replica.presence.engines:
        return Missing(Absence.NOTHING_FOUND)
    blocks = sum(frontend.pool.blocks for frontend in frontends)
    return Measured(replace(kinds.pop(), blocks=blocks), replica.presence.at)


def _pool_of_series(source: PoolSource, series: Series, engines: int) -> _Told:
    """Return the pool that one series describes, or why its labels describe none."""
    sizes = [series.labels.get(name, _UNTOLD) for name in source.block_tokens]
    if series.labels.get(source.blocks, _UNTOLD) == _UNTOLD or all(size == _UNTOLD for size in sizes):
        return Unsupported()
    total = _whole(series.labels[source.blocks])
    declared = _declared_block_tokens(source, series.labels)
    usable = total - engines * source.null_blocks
    if usable < 1 or not declared:
        return Missing(Absence.NOT_A_NUMBER)
    held = _whole(series.labels.get(source.engine_tokens, ""))
    return Pool(
        usable,
        _block_tokens(declared, held, total / engines),
        series.labels.get(source.cache_dtype, "auto"),
        {"True": True, "False": False}.get(series.labels.get(source.caches_prefixes, _UNTOLD)),
    )


def _declared_block_tokens(source: PoolSource, labels: Mapping[str, str]) -> int:
    """Return tokens per block by the labels; 0 where none of them is a number."""
    return next(filter(None, (_whole(labels.get(name, _UNTOLD)) for name in source.block_tokens)), 0)


def _block_tokens(declared: int, held: int, blocks: float) -> int:
    """Return tokens per block: as declared, or as one engine's own count of tokens says where it differs."""
    is_hybrid = held > 0 and abs(held - blocks * declared) > _HYBRID * blocks * declared
    return max(1, round(held / blocks)) if is_hybrid else declared


def _whole(text: str) -> int:
    """Return a label as a number; 0 for `None`, an empty text and anything else that is none."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _DIGITS else 0
