"""Series as a source returned them become readings: numbers, histograms and a replica's KV-cache pool.

Always in this order: series of one engine and one scraper are added up, and copies that several processes
export must agree; scrapers of one engine are duplicates and must agree; engines are combined as the signal
says.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from math import inf, isfinite
from operator import itemgetter
from statistics import fmean
from typing import TypeVar

from kvmedic.engines.signal_sources import (
    COUNTS_AGREE,
    Across,
    CounterSource,
    PoolSource,
    SignalSource,
    SignalTable,
    across_of,
    agreement_of,
)
from kvmedic.metrics.series import Scraper, Series, port_of_instance
from kvmedic.model.evidence import (
    HISTOGRAMS,
    Absence,
    Histogram,
    Measured,
    Missing,
    PodReadings,
    Pool,
    Reading,
    Signal,
    Stale,
    Unsupported,
)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Presence:
    """One replica as its presence series show it."""

    at: datetime
    """Newest sample of the engine that was silent longest."""
    engines: frozenset[str]
    scrapers: Mapping[Scraper, datetime]
    """Those whose newest sample is fresh, with its time."""
    models: tuple[str, ...]
    by_port: bool = False
    """Each port has engines of its own, which are named by label and port."""

    def engine_of(self, series: Series, table: SignalTable) -> str:
        """Return which engine a series is of; of one without the engine's label its port, or nothing."""
        label = series.labels.get(table.engine_label, "")
        return f"{label}@{port_of_instance(series)}" if self.by_port else label

    def is_whole(self, engines: Iterable[str]) -> bool:
        """Return whether series of some engines are of the whole replica."""
        found = set(engines)
        ports = {f"@{name.rpartition('@')[2]}" for name in self.engines} if self.by_port else {""}
        return found in (ports, set(self.engines))

    def scraper_of(self, series: Series) -> Scraper | None:
        """Return the fresh scraper that a series comes from, or None when it comes from none."""
        items = series.labels.items()
        return max((s for s in self.scrapers if items >= s), key=len, default=None)


def presence_of(
    series: Iterable[Series],
    table: SignalTable,
    at: datetime,
    freshness: timedelta,
    *,
    is_declared: bool = False,
) -> Presence | Missing:
    """Return a replica's presence by the times of its newest samples, or why there is none.

    Series that were last sampled longer ago than `freshness` do not count among the scrapers: a scrape job
    that was removed a minute ago still answers, with less and less of the window. A sample that is not of
    this time at all (milliseconds for seconds, times to come) makes the replica ambiguous.

    Args:
        series: whose values are the times (Unix seconds).
        table: what engines export.
        at: the moment.
        freshness: oldest that a sample may be.
        is_declared: each port is declared to be an engine.
    """
    newest: dict[tuple[str, Scraper], datetime] = {}
    models, set_by_engine, series = set(), {*table.own_labels, "__name__"}, tuple(series)
    named = Presence(at, frozenset(), {}, (), is_declared or _have_own_engines(series, table))
    for one in series:
        if isfinite(one.value):
            if not 0 <= one.value <= (at + freshness).timestamp():
                return Missing(Absence.AMBIGUOUS)
            set_by_source = (item for item in one.labels.items() if item[0] not in set_by_engine)
            newest[named.engine_of(one, table), frozenset(set_by_source)] = _EPOCH + timedelta(
                seconds=one.value
            )
            models.add(one.labels.get(table.model_label, ""))
    if not newest:
        return Missing(Absence.NO_SERIES)
    engines = {engine for engine, _ in newest}
    seen = [max(time for (name, _), time in newest.items() if name == engine) for engine in engines]
    oldest = at - freshness
    fresh = {
        scraper: time for (_, scraper), time in sorted(newest.items(), key=itemgetter(1)) if time >= oldest
    }
    return replace(
        named, at=min(seen), engines=frozenset(engines), scrapers=fresh, models=tuple(sorted(models - {""}))
    )


def _have_own_engines(series: Sequence[Series], table: SignalTable) -> bool:
    """Return whether a replica's ports have engines of their own: ranks of one model, none of them on two.

    Two ports that report one engine may be two ways to one page, such as a mesh's own port; one of another
    model is another container's.
    """
    ranks: dict[int | None, set[str]] = {}
    for one in series:
        ranks.setdefault(port_of_instance(one), set()).add(one.labels.get(table.engine_label, ""))
    models = {one.labels.get(table.model_label, "") for one in series}
    is_reported_once = sum(map(len, ranks.values())) == len(set[str]().union(*ranks.values()))
    return None not in ranks and len(ranks) > 1 and len(models) == 1 and is_reported_once


RANDOM_LENGTH = 5
"""Characters that the API server puts behind the name that a ReplicaSet gives its pods."""

PREFIX_LENGTH = 58
"""What it keeps of that name (apiserver, storage/names/generate.go: 63 less the random ones)."""


def is_made_by(replica_set: str, pod: str) -> bool:
    """Return whether a pod's name is one that a ReplicaSet of this name gives.

    A ReplicaSet's age says when its template was first made, not when it was rolled out again; only a source
    knows which pods there were when, and a pod's name says whose it was.
    """
    prefix = re.escape(f"{replica_set}-"[:PREFIX_LENGTH])
    return re.fullmatch(rf"{prefix}[a-z0-9]{{{RANDOM_LENGTH}}}", pod) is not None


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
    return Measured(_combine(across_of(source), values), replica.presence.at)


def histogram(replica: Replica, series: Iterable[Series]) -> Reading[Histogram]:
    """Return a signal that is a histogram."""
    values = _per_engine(replica, series, histogram_of, _is_duplicate)
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
    if inf not in buckets or not sums:
        return Missing(Absence.NOTHING_FOUND)
    if not all(map(isfinite, (*sums, *buckets.values()))) or -inf in buckets:
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
    """Return the value of one engine as one scraper saw it; what several processes say of it must agree."""
    by_process: dict[str, list[Series]] = {"": []}
    for one in series:
        by_process.setdefault(one.labels.get(process_label, ""), []).append(one)
    whole = by_process.pop("")
    # Only those of the engine as a whole, where there are any.
    copies = [whole] if whole or not by_process else list(by_process.values())
    said = [_fold_values(source, many) for many in copies]
    if len(said) == 1:
        return said[0]
    values = [one for one in said if not isinstance(one, Missing)]
    if len(values) < len(said):
        return Missing(Absence.NOT_A_NUMBER)
    if not all(agreement_of(source).agrees(values[0], one) for one in values):
        return Missing(Absence.AMBIGUOUS)
    return fmean(values)


def _fold_values(source: SignalSource, series: Sequence[Series]) -> float | Missing:
    if isinstance(source, CounterSource) and source.part is not None:
        part = source.part
        series = [one for one in series if part.includes(one.labels.get(part.label, ""))]
    values = [one.value for one in series]
    if not all(map(isfinite, values)):
        return Missing(Absence.NOT_A_NUMBER)
    return _combine(across_of(source), values)


def _per_engine(
    replica: Replica,
    series: Iterable[Series],
    fold: Callable[[Sequence[Series]], V | Missing],
    agree: Callable[[V, V], bool],
) -> list[V] | Missing:
    """Return one value per engine of the replica; a value that one engine lacks is missing for all.

    The value is that of the most recent scraper, if all others agree with it.
    """
    presence = replica.presence
    found: dict[str, dict[Scraper, list[Series]]] = {}
    for scraper, many in _by_scraper(replica, series).items():
        for one in many:
            engine = presence.engine_of(one, replica.table)
            found.setdefault(engine, {}).setdefault(scraper, []).append(one)
    # Series without the engine's label are already of the whole replica, or of the whole port.
    if not found or not presence.is_whole(found):
        return Missing(Absence.NOTHING_FOUND)
    values = []
    for _, scraped in sorted(found.items()):
        order = list(scraped)
        if len(order) > 1:
            order.sort(key=lambda s: (-presence.scrapers[s].timestamp(), sorted(s)))
        chosen, *others = (fold(scraped[scraper]) for scraper in order)
        if isinstance(chosen, Missing):
            return chosen
        if any(isinstance(other, Missing) or not agree(chosen, other) for other in others):
            return Missing(Absence.AMBIGUOUS)
        values.append(chosen)
    return values


def _by_scraper(replica: Replica, series: Iterable[Series]) -> dict[Scraper, list[Series]]:
    """Return the series by scraper; those of scrapers that fell silent are left out."""
    # The buckets of one histogram share their labels as one object.
    known: dict[int, Scraper | None] = {}
    found: dict[Scraper, list[Series]] = {}
    for one in series:
        if id(one.labels) not in known:
            known[id(one.labels)] = replica.presence.scraper_of(one)
        scraper = known[id(one.labels)]
        if scraper is not None:
            found.setdefault(scraper, []).append(one)
    return found


def _is_duplicate(a: Histogram, b: Histogram) -> bool:
    """Return whether two histograms are duplicates: same bounds, like counts, like mean."""
    if a.bounds != b.bounds or not COUNTS_AGREE.agrees(a.count, b.count):
        return False
    means = [one.mean for one in (a, b) if one.count]
    if len(means) < 2:
        return True
    return abs(means[0] - means[1]) <= COUNTS_AGREE.relative * max(means)


def _combine(across: Across, values: Sequence[float]) -> float:
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
    unavailable: Missing | Unsupported,
) -> PodReadings:
    """Return a replica's readings; `unavailable` is that of what has no series as nobody could be asked."""
    numbers = {
        signal: unavailable if many is None else read_number(replica, replica.table.signals[signal], many)
        for signal, many in series.items()
        if signal not in HISTOGRAMS
    }
    return PodReadings(
        numbers=numbers,
        histograms={
            signal: unavailable if many is None else histogram(replica, many)
            for signal, many in series.items()
            if signal in HISTOGRAMS
        },
        pool=unavailable if pools is None else read_pool(replica, pools),
        block_tokens=block_tokens(replica, pools or ()),
        model_names=replica.presence.models,
        engines=len(replica.presence.engines),
    )


def mark_silent(signals: Iterable[Signal]) -> PodReadings:
    """Return the readings of a replica whose source did not answer."""
    return mark_absent(signals, Missing(Absence.SOURCE_UNAVAILABLE))


def mark_absent(signals: Iterable[Signal], why: Missing | Stale) -> PodReadings:
    """Return the readings of a replica of which nothing is known, for one reason."""
    desired = tuple(signals)
    return PodReadings(
        numbers={signal: why for signal in desired if signal not in HISTOGRAMS},
        histograms={signal: why for signal in desired if signal in HISTOGRAMS},
        pool=why,
    )


_NO_VALUE = "None"
"""Text of a value that the engine does not export."""

_DIGITS = 15
"""A number of more is no count of blocks or tokens; Python refuses to read one of thousands of digits."""

_HYBRID = 0.05
"""Where the engine's own count of tokens differs from blocks times block size by more than this, a
block does not hold its size in tokens (models that mix kinds of attention). Rounding to whole blocks
per request stays under it for any request length over 20 blocks."""


def read_pool(replica: Replica, series: Iterable[Series]) -> Reading[Pool]:
    """Return the pool of all engines of a replica together.

    Frontends with the same engines are duplicates and must say the same; frontends with different
    engines are parts of one replica.
    """
    frontends: set[tuple[frozenset[str], Pool]] = set()
    for many in _by_scraper(replica, series).values():
        names = frozenset(replica.presence.engine_of(one, replica.table) for one in many)
        said = {_pool_of_series(replica.table.pool, one, len(names)) for one in many}
        if len(said) > 1:
            return Missing(Absence.AMBIGUOUS)
        only = said.pop()
        if not isinstance(only, Pool):
            return only
        frontends.add((names, only))
    engines = [engine for names, _ in frontends for engine in names]
    kinds = {replace(pool, blocks=0) for _, pool in frontends}
    if len(engines) > len(set(engines)) or len(kinds) > 1:
        return Missing(Absence.AMBIGUOUS)
    if not frontends or set(engines) < replica.presence.engines:
        return Missing(Absence.NOTHING_FOUND)
    blocks = sum(pool.blocks for _, pool in frontends)
    return Measured(replace(kinds.pop(), blocks=blocks), replica.presence.at)


def join_pools(readings: Iterable[Reading[Pool]]) -> Reading[Pool]:
    """Return the pools of several engines as one: all of them must be known, and of one kind."""
    found = list(readings)
    pools = [each.value for each in found if isinstance(each, Measured)]
    if len(pools) < len(found):
        return next(each for each in found if not isinstance(each, Measured))
    kinds = {replace(pool, blocks=0) for pool in pools}
    if len(kinds) != 1:
        return Missing(Absence.AMBIGUOUS)
    at = min(each.at for each in found if isinstance(each, Measured))
    return Measured(replace(kinds.pop(), blocks=sum(pool.blocks for pool in pools)), at)


def block_tokens(replica: Replica, series: Iterable[Series]) -> int | None:
    """Return tokens per block as the labels declare them; None where they do not, or not with one voice."""
    labels = [one.labels for many in _by_scraper(replica, series).values() for one in many]
    said = {_declared_block_tokens(replica.table.pool, each) for each in labels}
    return said.pop() or None if len(said) == 1 else None


def window(replica: Replica, series: Sequence[Series]) -> str:
    """Return what of the model frees blocks without any method, for a person; empty where no label says."""
    source = replica.table.pool
    for one in series:
        if tokens := _whole(one.labels.get(source.window, "")):
            return f"{source.window} is {tokens} in {source.name}"
    found, declared = read_pool(replica, series), block_tokens(replica, series)
    if declared and isinstance(found, Measured) and found.value.block_tokens != declared:
        return (
            f"{source.name} reports {found.value.block_tokens} tokens per block of {declared}, as models "
            "do that mix kinds of attention"
        )
    return ""


def _pool_of_series(source: PoolSource, series: Series, engines: int) -> Pool | Missing | Unsupported:
    """Return the pool that one series describes, or why its labels describe none."""
    sizes = [series.labels.get(name, _NO_VALUE) for name in source.block_tokens]
    if series.labels.get(source.blocks, _NO_VALUE) == _NO_VALUE or all(size == _NO_VALUE for size in sizes):
        return Unsupported()
    total = _whole(series.labels[source.blocks])
    declared = _declared_block_tokens(source, series.labels)
    usable = total - engines * source.null_blocks
    if usable < 1 or not declared:
        return Missing(Absence.NOT_A_NUMBER)
    held, blocks = _whole(series.labels.get(source.engine_tokens, "")), total / engines
    is_hybrid = held > 0 and abs(held - blocks * declared) > _HYBRID * blocks * declared
    return Pool(
        usable,
        max(1, round(held / blocks)) if is_hybrid else declared,
        series.labels.get(source.cache_dtype, "auto"),
        {"True": True, "False": False}.get(series.labels.get(source.caches_prefixes, _NO_VALUE)),
        has_window=is_hybrid or _whole(series.labels.get(source.window, "")) > 0,
    )


def _declared_block_tokens(source: PoolSource, labels: Mapping[str, str]) -> int:
    """Return tokens per block by the labels; 0 where none of them is a number."""
    return next(filter(None, (_whole(labels.get(name, _NO_VALUE)) for name in source.block_tokens)), 0)


def _whole(text: str) -> int:
    """Return a label as a number; 0 for `None`, an empty text and anything else that is none."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _DIGITS else 0
