"""Pages in Prometheus' text format, which anybody who runs a pod may have written, and what several say.

A page is bounded before it is parsed; text that the parser cannot read is no page. Functions over a window
are evaluated here on the pages, as Prometheus does, without extrapolation.

Of two or three pages, taken by hand and without a clock, counters give everything between exactly, wherever
these were taken. Gauges show two moments, so as much as possible is read off counters: the running set from
the tokens per step of the engine, the time between the pages from the number of steps and what one takes.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import chain, pairwise
from operator import itemgetter
from statistics import fmean, pstdev
from typing import TypeAlias
from urllib.parse import urlsplit, urlunsplit

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from kvmedic.engines.signal_sources import (
    LOW_QUANTILE,
    ChangeSource,
    CounterSource,
    GaugeSource,
    HeldRatioSource,
    HeldSource,
    HeldTailSource,
    HeldWaitSource,
    HistogramSource,
    Over,
    SignalSource,
    SignalTable,
    StartSource,
    VersionPage,
)
from kvmedic.metrics.readings import Replica, mark_absent, presence_of, read_number, readings_of
from kvmedic.metrics.series import Series, add_once, series_of
from kvmedic.model.engine import Version
from kvmedic.model.evidence import (
    Absence,
    Measured,
    Missing,
    Observation,
    PodReadings,
    Reading,
    Signal,
    Unsupported,
)
from kvmedic.model.readings import mean_below

LINE_CHARACTERS = 4096
"""Length of a line, at most. The longest of vLLM 0.32 is 1,055, its description of the cache."""
LINE_LABELS = 64
"""Labels of a series, at most. The most of vLLM 0.32 are 37, of its description of the cache."""

_SERIES = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*+)(?:[ \t]*+\{|[ \t]++[-+.0-9NnIi])")
"""How a line with a series begins. Names in quotes come to those alone who ask for them."""
_PARSER_ERRORS = (ArithmeticError, AssertionError, AttributeError, LookupError, RecursionError, TypeError)
"""What the parser raises beside ValueError where a text is odd; `{, =a 1` is an IndexError (0.26)."""


@dataclass(frozen=True, slots=True)
class Page:
    """One scraped page: its series by name."""

    at: datetime
    series: Mapping[str, tuple[Series, ...]]
    stamps: Mapping[str, float] = field(default_factory=dict)
    """The oldest time (Unix seconds) that samples of a name carry themselves; engines write none."""
    origin: str = ""
    """File or address that the page is from, as messages about it name it; empty where nobody saved it."""
    repeated_series: str = ""
    """A metric that the page has the same series of twice; empty: none, as of every page that one process
    wrote."""

    def find(self, *names: str) -> tuple[Series, ...]:
        """Return all series of some names."""
        return tuple(one for name in names for one in self.series.get(name, ()))


def parse_page(text: str, at: datetime, names: frozenset[str] | None = None, origin: str = "") -> Page:
    """Return a page of the Prometheus text format.

    Args:
        names: of the metrics that count; None: all.
        origin: file or address that it is from.

    Raises:
        ValueError: the text is not in that format, or a line of a metric that counts is too large.
    """
    try:
        families = text_string_to_metric_families("\n".join(_lines(text, names)))
        page = _collect_samples(at, (sample for family in families for sample in family.samples))
    except _PARSER_ERRORS as error:
        raise ValueError(f"the parser cannot read it ({type(error).__name__})") from None
    return replace(page, origin=origin)


def names_of(table: SignalTable) -> frozenset[str]:
    """Return the names of all metrics of a page that mean anything for an engine."""
    counts = (*table.in_flight, *table.in_flight_optional, *table.steps.names, *table.ended.names)
    own = {table.presence, table.pool.name, *counts}
    return frozenset(own.union(*map(_names, table.signals.values())))


def _names(source: SignalSource) -> Iterable[str]:
    match source:
        case CounterSource(names=names) | GaugeSource(names=names) | ChangeSource(names=names):
            return names
        case HistogramSource(names=names):
            return (f"{name}{part}" for name in names for part in ("_bucket", "_sum", "_count"))
        case HeldRatioSource(numerator=above, denominator=below):
            return (*above.names, *below.names)
        case HeldTailSource(names=names, denominator=below):
            return (*(f"{name}{part}" for name in names for part in ("_bucket", "_count")), *below.names)
        case HeldWaitSource(waiting=waiting, ended=ended, in_flight=in_flight):
            return (waiting, *ended.names, *in_flight)
        case StartSource(name=name):
            return (name,)


def _lines(text: str, names: frozenset[str] | None) -> Iterator[str]:
    """Yield the lines of the metrics that count; the rest only has to look like a page.

    Raises:
        ValueError: a line is none of a page, or too long.
    """
    for line_number, line in enumerate(map(str.strip, text.split("\n")), 1):
        if not line or line.startswith("#"):
            continue
        found = _SERIES.match(line)
        if found is None:
            raise ValueError(f"line {line_number} is no series")
        if names is not None and found.group(1) not in names:
            continue
        if len(line) > LINE_CHARACTERS:
            raise ValueError(f"line {line_number} has more than {LINE_CHARACTERS} characters")
        yield line


def _collect_samples(at: datetime, samples: Iterable[Sample]) -> Page:
    found: dict[str, dict[tuple[object, ...], Series]] = {}
    stamps: dict[str, float] = {}
    repeated_series = ""
    for sample in samples:
        if len(sample.labels) > LINE_LABELS:
            raise ValueError(f"a series of {sample.name} has more than {LINE_LABELS} labels")
        one = series_of(dict(sample.labels), float(sample.value))
        many, key = found.setdefault(sample.name, {}), (one.bound, *sorted(one.labels.items()))
        repeated_series = repeated_series or (sample.name if key in many else "")
        add_once(many, key, one)
        if sample.timestamp is not None:
            stamp = float(sample.timestamp)
            stamps[sample.name] = min(stamp, stamps.get(sample.name, stamp))
    series = {name: tuple(many.values()) for name, many in found.items()}
    return Page(at, series, stamps, repeated_series=repeated_series)


_Identity: TypeAlias = tuple[frozenset[tuple[str, str]], float | None]
"""Labels of a series, and the bound of a bucket."""

_LEAST_FOR_DEVIATION = 3
"""Two samples say nothing about how far samples lie from their mean."""


def evaluate_signal(source: SignalSource, pages: Sequence[Page]) -> tuple[Series, ...] | None:
    """Return a signal's series over all pages, oldest first; None where so few pages cannot show it."""
    match source:
        case CounterSource():
            return _rises_of_source(source, pages)
        case GaugeSource(names=names, over=over):
            if over is Over.DEVIATION and len(pages) < _LEAST_FOR_DEVIATION:
                return None
            return _newest(_over_pages(name, pages, _OVER[over]) for name in names)
        case ChangeSource(names=names):
            # End minus start; nothing where one of the gauges is absent.
            rises = [_over_pages(name, pages, lambda many: many[-1] - many[0]) for name in names]
            return tuple(chain.from_iterable(rises)) if all(rises) else ()
        case HistogramSource(names=names):
            name = next((name for name in names if pages[-1].find(f"{name}_bucket")), names[0])
            parts = (f"{name}_bucket", f"{name}_sum")
            return tuple(one for part in parts for one in _rises(part, pages, begins_unseen=True))
        case HeldRatioSource() | HeldTailSource() | HeldWaitSource():
            return _ratio(source, pages)
        case StartSource(name=name):
            return pages[-1].find(name)


def _increase(values: Sequence[float]) -> float:
    """Return how far a counter rose; after a fall it had started again from 0."""
    steps = pairwise(values)
    return math.fsum(later if later < earlier else later - earlier for earlier, later in steps)


def _low_quantile(values: Sequence[float]) -> float:
    """Return what four samples in five reach, in straight lines as Prometheus does it."""
    ordered, rank = sorted(values), LOW_QUANTILE * (len(values) - 1)
    low = ordered[math.floor(rank)]
    return low + (rank - math.floor(rank)) * (ordered[math.ceil(rank)] - low)


_OVER: Mapping[Over, Callable[[Sequence[float]], float]] = {
    Over.MEAN: fmean,
    Over.MAX: max,
    Over.LAST: itemgetter(-1),
    Over.DEVIATION: pstdev,
    Over.LOW: _low_quantile,
}


def _over_pages(
    name: str, pages: Sequence[Page], reduce: Callable[[Sequence[float]], float]
) -> tuple[Series, ...]:
    """Return one value per series that the newest page has; NaN anywhere makes it NaN."""
    histories = _histories(name, pages)
    return tuple(_reduce_series(one, histories[_identity_of(one)], reduce) for one in pages[-1].find(name))


def _rises(name: str, pages: Sequence[Page], *, begins_unseen: bool) -> tuple[Series, ...]:
    """Return how far each counter rose that the newest page has.

    One that the first page lacks began at 0 where that is how engines of old do, and is else unknown: the
    page may have been cut.
    """
    histories, before = _histories(name, pages), {_identity_of(one) for one in pages[0].find(name)}
    seen = [one for one in pages[-1].find(name) if begins_unseen or _identity_of(one) in before]
    born = {_identity_of(one): [] if _identity_of(one) in before else [0.0] for one in seen}
    return tuple(
        _reduce_series(one, born[_identity_of(one)] + histories[_identity_of(one)], _increase) for one in seen
    )


def find_unseen(source: SignalSource, first: Page, last: Page) -> str:
    """Return a metric of a source that the last page has and the first one lacks, so that it would count
    since the start; empty: none.
    """
    match source:
        case HistogramSource(names=names):
            name = next((name for name in names if last.find(f"{name}_bucket")), names[0])
            before = {_identity_of(one) for one in first.find(f"{name}_bucket")}
            return "" if before.issuperset(map(_identity_of, last.find(f"{name}_bucket"))) else name
        case CounterSource(names=names) if not first.find(*names):
            return next((name for name in names if last.find(name)), "")
    return ""


def _histories(name: str, pages: Sequence[Page]) -> Mapping[_Identity, list[float]]:
    found: dict[_Identity, list[float]] = {}
    for page in pages:
        for one in page.find(name):
            found.setdefault(_identity_of(one), []).append(one.value)
    return found


def _reduce_series(
    one: Series, values: Sequence[float], reduce: Callable[[Sequence[float]], float]
) -> Series:
    value = reduce(values) if all(map(math.isfinite, values)) else math.nan
    return Series(one.labels, value, one.bound)


def _identity_of(series: Series) -> _Identity:
    """Return what a series of one name has in common over all pages."""
    return frozenset(series.labels.items()), series.bound


def _newest(generations: Iterable[Iterable[Series]]) -> tuple[Series, ...]:
    """Return the first generation's series, and of others those whose labels it does not have."""
    found: dict[_Identity, Series] = {}
    for series in generations:
        for one in series:
            found.setdefault(_identity_of(one), one)
    return tuple(found.values())


def _rises_of_source(source: CounterSource, pages: Sequence[Page]) -> tuple[Series, ...]:
    return _newest(_rises(name, pages, begins_unseen=source.begins_unseen) for name in source.names)


def _ratio(source: HeldSource, pages: Sequence[Page]) -> tuple[Series, ...]:
    """Return the ratio over all pages, as it is for a hold of nothing."""
    risen = _numerator(source, pages)
    if risen is None:
        return ()
    counter = source.ended if isinstance(source, HeldWaitSource) else source.denominator
    denominator, part = _rises_of_source(counter, pages), counter.part
    if risen == 0:
        return (Series({}, 0.0),)
    if not denominator and not isinstance(source, HeldWaitSource):
        return ()
    counted = math.fsum(
        one.value for one in denominator if part is None or part.includes(one.labels.get(part.label, ""))
    )
    if isinstance(source, HeldWaitSource):
        changes = [_over_pages(name, pages, lambda many: many[-1] - many[0]) for name in source.in_flight]
        counted += math.fsum(one.value for change in changes for one in change)
    return (Series({}, risen / max(counted, source.floor)),)


def _numerator(source: HeldSource, pages: Sequence[Page]) -> float | None:
    """Return what a ratio is of, over all pages; None where the pages do not have it."""
    match source:
        case HeldRatioSource(numerator=counter):
            found = _rises_of_source(counter, pages)
            return math.fsum(one.value for one in found) if found else None
        case HeldTailSource(names=names, beyond=beyond):
            name = next((name for name in names if pages[-1].find(f"{name}_bucket")), names[0])
            buckets, bound = _rises(f"{name}_bucket", pages, begins_unseen=True), float(beyond)
            if bound not in {one.bound for one in buckets}:
                return None
            every = math.fsum(one.value for one in buckets if one.bound == math.inf)
            return max(0.0, every - math.fsum(one.value for one in buckets if one.bound == bound))
        case HeldWaitSource(waiting=waiting):
            seconds = (pages[-1].at - pages[0].at).total_seconds()
            waits = _over_pages(waiting, pages, fmean)
            return seconds * math.fsum(one.value for one in waits) if waits else None


def replica_of(page: Page, table: SignalTable) -> Replica | None:
    """Return the replica that a page is of, or None where it is no engine's page."""
    now = page.at.timestamp()
    series = [Series(one.labels, now) for one in page.find(table.presence)]
    presence = presence_of(series, table, page.at, timedelta(0))
    return None if isinstance(presence, Missing) else Replica(presence, table)


def gauge(replica: Replica, signal: Signal, pages: Sequence[Page]) -> Reading[float]:
    """Return a signal that is a gauge over some pages, oldest first; one page is enough."""
    source = replica.table.signals[signal]
    series = evaluate_signal(source, pages) if isinstance(source, GaugeSource) else None
    return Unsupported() if series is None else read_number(replica, source, series)


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
    readings = {}
    for name, many in pages.items():
        replica = replica_of(many[-1], table)
        if replica is None:
            readings[name] = mark_absent(table.signals, Missing(Absence.NO_SERIES))
            continue
        found = {signal: evaluate_signal(source, many) for signal, source in table.signals.items()}
        readings[name] = readings_of(replica, found, many[-1].find(table.pool.name), Unsupported())
    at = max(many[-1].at for many in pages.values())
    return Observation(at, window.total_seconds(), 0.0, readings)


MANY = 10
"""Pages from which gauges are read as from a monitoring system that samples every 30 s for 5 minutes."""
BUSIER = 1.5
"""Running set by gauges over that by counters, from which the engine was idle or lightly loaded for part of
the time and the moments show the trouble better. Tokens per step never read too high; single moments of
thrashing engines with few sequences lay at half to 1.3 times the mean (simulated)."""
LONGEST_STEP_SECONDS = 1.0
"""Gaps between tokens up to this are single steps of the engine; what is longer is a stall."""

_TIMED = (Signal.STARTED_SECONDS, Signal.SILENT_SECONDS_HELD)
"""What the time of a page decides, which is not known."""
_GAUGES = (Signal.RUNNING_MEAN, Signal.WAITING_MEAN, Signal.KV_CACHE_USAGE_MEAN, Signal.KV_CACHE_USAGE_MAX)
_FIRST_PAGE = datetime(2000, 1, 1, tzinfo=UTC)
"""Pages without a clock are a second apart here; only their order counts."""


@dataclass(frozen=True, slots=True)
class SavedPages:
    """Some pages of each replica as one look, and what about it is not as from a monitoring system."""

    observation: Observation
    """Its window is the time that was given, or that the busiest replica was busy for; infinite where
    neither is known."""
    resting: tuple[str, ...]
    """Replicas that ran requests between their pages, but none at the moment of any page."""


def moment(place: int) -> datetime:
    """Return the stand-in time of a page by its place."""
    return _FIRST_PAGE + timedelta(seconds=place)


def observe_saved_pages(
    pages: Mapping[str, Sequence[Page]], table: SignalTable, seconds: float | None
) -> SavedPages:
    """Return what pages of each replica say, by its name; two or more of each, oldest first.

    Args:
        pages: by replica; their times are stand-ins (`moment`).
        seconds: time between the first and the last page; None: it is read off the engine's steps.

    Raises:
        ValueError: fewer than two pages of a replica.
    """
    seen = observe_pages(pages, table)
    readings = {name: _limit_to_pages(one, pages[name], table) for name, one in seen.pods.items()}
    busy = max(_busy_seconds(readings[name], many, table) for name, many in pages.items())
    window = busy if seconds is None else seconds
    resting = tuple(
        name
        for name, many in sorted(pages.items())
        if not _loaded_pages(many, table) and _value_or_zero(readings[name].number(Signal.GENERATED_TOKENS))
    )
    return SavedPages(replace(seen, window_seconds=window, pods=readings), resting)


STARTED = "process_start_time_seconds"
"""When the process began (Unix time); absent with several API server processes."""


@dataclass(frozen=True, slots=True)
class Restart:
    """Two pages of one replica between which its counters began anew."""

    before: Page
    after: Page
    shown_by: str
    """The series that shows it, with both values."""
    is_other_process: bool
    """A time of creation changed; else a counter fell, as it does too where the older page comes last."""


def find_restart(pages: Sequence[Page], table: SignalTable) -> Restart | None:
    """Return the first two pages that are of different processes; None: nothing shows any."""
    return next((found for two in pairwise(pages) for found in _list_restarts(*two, table)), None)


def _list_restarts(before: Page, after: Page, table: SignalTable) -> Iterator[Restart]:
    """Yield what shows a restart: other times of creation first, then whatever never falls and fell."""
    starts = [_values_of(page, STARTED) for page in (before, after)]
    if bool(starts[0]) is not bool(starts[1]):
        yield Restart(before, after, f"{STARTED} is on one of them alone", True)
    for name in (STARTED, *sorted(name for name in after.series if name.endswith("_created"))):
        for old, new in _pairs_of(before, after, name):
            if old != new:
                yield Restart(before, after, f"{name} {old:.16g} -> {new:.16g}", True)
    sources = (*table.signals.values(), table.steps, table.ended)
    counters = {name for one in sources if isinstance(one, CounterSource) for name in one.names}
    histograms = {name.removesuffix("_bucket") for name in after.series if name.endswith("_bucket")}
    parts = {f"{name}{part}" for name in histograms for part in ("_bucket", "_count", "_sum")}
    for name in sorted(counters | parts):
        for old, new in _pairs_of(before, after, name):
            if new < old:
                yield Restart(before, after, f"{name} fell from {old:.16g} to {new:.16g}", False)


def _pairs_of(before: Page, after: Page, name: str) -> Iterator[tuple[float, float]]:
    """Yield both values of each series of a name that both pages have."""
    known = _values_of(before, name)
    for same, value in _values_of(after, name).items():
        if same in known:
            yield known[same], value


def _values_of(page: Page, name: str) -> Mapping[_Identity, float]:
    return {_identity_of(one): one.value for one in page.find(name)}


def _limit_to_pages(readings: PodReadings, pages: Sequence[Page], table: SignalTable) -> PodReadings:
    """Return readings without what few pages cannot show, the running set as counters give it."""
    replica = replica_of(pages[-1], table)
    if replica is None:
        return readings
    timeless: dict[Signal, Reading[float]] = {**readings.numbers, **dict.fromkeys(_TIMED, Unsupported())}
    if len(pages) >= MANY:
        return replace(readings, numbers=timeless)
    loaded = _loaded_pages(pages, table)
    gauges = {signal: gauge(replica, signal, loaded or pages) for signal in _GAUGES}
    if not loaded and _value_or_zero(readings.number(Signal.GENERATED_TOKENS)):
        gauges = dict.fromkeys(_GAUGES, Missing(Absence.NOTHING_FOUND))
    running = _running_set(gauges[Signal.RUNNING_MEAN], readings, pages, replica)
    extremes = dict.fromkeys((Signal.RUNNING_MAX, Signal.RUNNING_LOW), Unsupported())
    numbers = {**timeless, **gauges, Signal.RUNNING_MEAN: running, **extremes}
    return replace(readings, numbers=numbers, gauge_samples=len(loaded))


def _loaded_pages(pages: Sequence[Page], table: SignalTable) -> list[Page]:
    """Return the pages at whose moment something ran: an idle moment says nothing about a load."""
    return [page for page in pages if any(one.value > 0 for one in page.find(table.presence))]


def _running_set(
    gauge: Reading[float], readings: PodReadings, pages: Sequence[Page], replica: Replica
) -> Reading[float]:
    """Return the running set by tokens per step; the gauge where that was of a far higher load."""
    steps = _steps(pages, replica)
    tokens = _value_or_zero(readings.number(Signal.GENERATED_TOKENS))
    if not steps or not tokens:
        return gauge
    counted = Measured(tokens / steps * readings.engines, pages[-1].at)
    return gauge if isinstance(gauge, Measured) and gauge.value > BUSIER * counted.value else counted


def _steps(pages: Sequence[Page], replica: Replica) -> float:
    """Return the steps of all engines of a replica together; 0 where they are not exported."""
    series = evaluate_signal(replica.table.steps, pages)
    return _value_or_zero(read_number(replica, replica.table.steps, series)) if series else 0.0


def _busy_seconds(readings: PodReadings, pages: Sequence[Page], table: SignalTable) -> float:
    """Return how long a replica was busy: its steps times what one takes; infinite where it does not say.

    A request is in the engine's hands only while it steps, so a request's residence is never longer.
    """
    replica = replica_of(pages[-1], table)
    if replica is None or not pages[-1].find(*table.steps.names):
        return math.inf
    gaps = readings.histogram(Signal.INTER_TOKEN_SECONDS)
    if not isinstance(gaps, Measured) or gaps.value.count <= 0:
        return 0.0
    return _steps(pages, replica) / readings.engines * mean_below(gaps.value, LONGEST_STEP_SECONDS)


def _value_or_zero(reading: Reading[float]) -> float:
    """Return a number that is there, else 0."""
    return reading.value if isinstance(reading, Measured) else 0.0


METRICS = "/metrics"

LIMIT_BYTES = 4096
"""Size of the page, at most. That of vLLM 0.32.0 is 20 bytes; what a proxy has to say to people is larger,
and no answer."""


def version_url_of(metrics_url: str, page: VersionPage) -> str | None:
    """Return the URL of an engine's version beside that of its metrics, or None where it is not known.

    Host, port and whatever a proxy has before the path stay: nobody else is dialled than for the metrics.
    """
    try:
        parts = urlsplit(metrics_url)
    except ValueError:
        return None
    path = parts.path.rstrip("/")
    if not path.endswith(METRICS):
        return None
    return urlunsplit(parts._replace(path=path.removesuffix(METRICS) + page.path))


def version_on(text: str, page: VersionPage, at: datetime) -> Reading[Version]:
    """Return the version that a page reports."""
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        return Missing(Absence.UNREADABLE)
    version = body.get(page.field) if isinstance(body, dict) else None
    if not isinstance(version, str):
        return Missing(Absence.UNREADABLE)
    try:
        return Measured(Version.parse(version), at)
    except ValueError:
        return Missing(Absence.UNREADABLE)
