"""The query of each signal: one for all replicas of a source, whatever the number of resources and replicas.

The administrator's label matchers go into every selector: a source may hold several clusters, and another
cluster may have the same namespaces and pods.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import TypeAlias

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
)
from kvmedic.model.devices import MEMORY_SERIES, SERIES
from kvmedic.model.evidence import Signal
from kvmedic.settings import Labels

_FUNCTIONS = {
    Over.MEAN: "avg_over_time(",
    Over.MAX: "max_over_time(",
    Over.LAST: "last_over_time(",
    Over.DEVIATION: "stddev_over_time(",
    Over.LOW: f"quantile_over_time({LOW_QUANTILE:g}, ",
}

LOOKBACK = timedelta(minutes=5)
"""Prometheus' own default of how far back an instant selector looks; a presence query looks at least
as far, so that a replica that fell silent is reported as stale for a while, not as unknown."""

_LEAST_MOMENTS = 4
"""Moments at which a hold is sampled, at least."""


@dataclass(frozen=True, slots=True)
class Span:
    """What a look covers."""

    window: timedelta
    hold: timedelta = timedelta(0)
    resolution: timedelta = timedelta(seconds=15)
    """Largest step at which a hold or a replica's presence is sampled; at most the scrape interval."""
    freshness: timedelta = timedelta(minutes=2)
    """How far back a last value may lie: one failed scrape ends a series for instant selectors."""


@dataclass(frozen=True, slots=True)
class Moments:
    """The grid on which a hold is sampled."""

    step: timedelta
    count: int
    """Moments that lie on the grid within the hold, at least."""


def duration_text(duration: timedelta) -> str:
    """Return a duration as PromQL reads it, exact to the millisecond."""
    milliseconds = round(duration / timedelta(milliseconds=1))
    seconds, rest = divmod(milliseconds, 1000)
    return f"{milliseconds}ms" if rest else f"{seconds}s"


def moments_of(span: Span) -> Moments:
    """Return the grid of a hold.

    Subqueries are evaluated at multiples of the step. The range of a hold contains `count` of them
    whether its start is part of it (Prometheus 2) or not (Prometheus 3).
    """
    count = max(_LEAST_MOMENTS, math.ceil(span.hold / span.resolution))
    step = timedelta(milliseconds=math.floor(span.hold / timedelta(milliseconds=1) / count))
    return Moments(step, count)


def expression(source: SignalSource, span: Span, table: SignalTable, target_labels: tuple[str, str]) -> str:
    """Return the query for one signal; `target_labels` name the labels of namespace and pod."""
    window = duration_text(span.window)
    match source:
        case CounterSource(names=names):
            return " or ".join(f"increase({name}[{window}])" for name in names)
        case GaugeSource(names=names, over=over):
            return " or ".join(f"{_FUNCTIONS[over]}{name}[{window}])" for name in names)
        case ChangeSource(names=names):
            # End minus start; for a replica that is younger than the window, the change since its start.
            now = " + ".join(names)
            then = " + ".join(f"{name} offset {window}" for name in names)
            young = " + ".join(f"delta({name}[{window}])" for name in names)
            return f"(({now}) - ({then})) or ({young})"
        case HistogramSource(names=names):
            return _histogram(names, window)
        case HeldRatioSource() | HeldTailSource() | HeldWaitSource():
            return _least_over_hold(source, span, table)
        case StartSource(name=name):
            recent = f"[{duration_text(span.freshness)}]"
            on = _target(target_labels)
            return f"last_over_time({name}{recent}) and {on} last_over_time({table.presence}{recent})"


CLOCKS = timedelta(minutes=1)
"""By how much a source's clock may be ahead of the operator's without a sample of the future showing it: the
longest interval between scrapes at which samples stand for a replica at all."""
SAMPLED = (timedelta(minutes=2), timedelta(minutes=1))
"""Stretches over which a source's samples stand for a replica that is out of reach: the longest that fits."""


def sampled_stretch(out: timedelta) -> timedelta | None:
    """Return over which stretch samples count of a replica that got no request for so long; None: over none.

    The stretch lies behind the moment at which it left rotation even where the source's clock is ahead.
    """
    return next((each for each in SAMPLED if out >= each + CLOCKS), None)


def sampled_query(name: str, stretch: timedelta) -> str:
    """Return the query for the largest sample of a gauge, where there were enough and one is of late."""
    window, recent = duration_text(stretch), duration_text(SAMPLED[-1])
    least = stretch // CLOCKS + 1  # two counts at least, and no interval beyond what the clocks may differ by
    enough = f"count_over_time({name}[{window}]) >= {least}"
    return f"max_over_time({name}[{window}]) and ({enough}) and count_over_time({name}[{recent}])"


def pool_query(span: Span, table: SignalTable, target_labels: tuple[str, str]) -> str:
    """Return the query for the pools.

    A replica that restarted with another pool has another series, and the old one does not count.
    """
    name = table.pool.name
    last = f"last_over_time({name}[{duration_text(span.freshness)}])"
    return f"{name} or ({last} unless {_target(target_labels)} {name})"


def presence(span: Span, table: SignalTable) -> str:
    """Return the query for the time of each replica's newest sample.

    Rates and averages answer from old samples long after a replica fell silent, because they ignore
    staleness markers. `timestamp()` answers exactly, but nothing once such a marker is there, which one
    failed scrape is enough for; then the largest timestamp that was seen at the steps of the window
    shows how old the newest sample is.
    """
    window, step = duration_text(max(span.window, LOOKBACK)), duration_text(span.resolution)
    return f"timestamp({table.presence}) or max_over_time(timestamp({table.presence})[{window}:{step}])"


MARK = "kvmedic_signal"
"""Label by which the series of several parts of one answer are distinguished."""


def mark_series(text: str, mark: str) -> str:
    """Return a query whose series say which part of an answer they are."""
    return f'label_replace({text}, "{MARK}", "{mark}", "", "")'


MOST_SERIES = 5000
"""Of one replica, of all metrics that are asked for, that are looked at; of a replica with more not one is.
vLLM 0.32 has 153 for each engine (tests/data/vllm): those of 16 ranks fit in twice, as of two scrapers."""
CROWDED = "crowded"
"""Marks a replica of which there are more."""


def replicas_query(span: Span, table: SignalTable, target_labels: tuple[str, str]) -> str:
    """Return the query for the presence of replicas, and for a mark of those with too many series of it.

    Anybody's page may have any number of series, and one query is about many fleets.
    """
    replica, window = ", ".join(target_labels), duration_text(max(span.window, LOOKBACK))
    counted = f"count by ({replica}) (last_over_time({table.presence}[{window}]))"
    few = f"({presence(span, table)}) and on ({replica}) ({counted} <= {MOST_SERIES})"
    return f"{few} or {mark_series(f'{counted} > {MOST_SERIES}', CROWDED)}"


def crowded_query(target_labels: tuple[str, str], names: Iterable[str]) -> str:
    """Return the query for replicas that have had too many series of some metrics of late: a mark of each."""
    replica, window = ", ".join(target_labels), duration_text(LOOKBACK)
    each = (f"count by ({replica}) (last_over_time({name}[{window}]))" for name in sorted(names))
    counted = " or ".join(mark_series(text, str(place)) for place, text in enumerate(each))
    return mark_series(f"sum by ({replica}) ({counted}) > {MOST_SERIES}", CROWDED)


def _target(target_labels: tuple[str, str]) -> str:
    """Return the matching of series by the endpoint they were scraped from."""
    return f"on ({', '.join((*target_labels, 'instance', 'job'))})"


def _histogram(names: tuple[str, ...], window: str) -> str:
    """Return the increases of the buckets (with `le`) and of the sum (without).

    A replica that exports two generations counts with the newest alone, also where their bounds differ.
    """
    text = f"increase({names[0]}_bucket[{window}])"
    for name in names[1:]:
        text = f"({text}) or (increase({name}_bucket[{window}]) unless ignoring (le) ({text}))"
    return " or ".join((f"({text})", *(f"increase({name}_sum[{window}])" for name in names)))


def _least_over_hold(source: HeldSource, span: Span, table: SignalTable) -> str:
    """Return the ratio at each moment of the hold, the smallest; nothing for a replica not seen at each.

    Where the numerator did not rise the ratio is 0, also before an engine of old finished its first request.
    """
    numerator, denominator = _held_parts(source, span, table)
    ratio = f"({numerator} / clamp_min({denominator}, {source.floor:g}) or {numerator} == 0)"
    if not span.hold:
        return ratio
    moments = moments_of(span)
    grid = f"[{duration_text(span.hold)}:{duration_text(moments.step)}]"
    return f"min_over_time({ratio}{grid}) and (count_over_time(({ratio} >= 0){grid}) >= {moments.count})"


def _held_parts(source: HeldSource, span: Span, table: SignalTable) -> tuple[str, str]:
    """Return numerator and denominator at one moment, of a whole replica."""
    window = duration_text(span.window)
    match source:
        case HeldRatioSource(numerator=numerator, denominator=denominator):
            return _total(numerator, window, table), _total(denominator, window, table)
        case HeldTailSource(names=names, beyond=beyond, denominator=denominator):
            every = sum_of_replica([f"increase({name}_count[{window}])" for name in names], table)
            within = [f'increase({name}_bucket{{le="{beyond}"}}[{window}])' for name in names]
            # Counts of one scrape are extrapolated alike; what is left of rounding is no gap.
            tail = f"clamp_min({every} - {sum_of_replica(within, table)}, 0)"
            return tail, _total(denominator, window, table)
        case HeldWaitSource(waiting=waiting, ended=ended, in_flight=in_flight):
            waits = sum_of_replica([f"avg_over_time({waiting}[{window}])"], table)
            joined = " + ".join(sum_of_replica([f"delta({name}[{window}])"], table) for name in in_flight)
            left = f"({_total(ended, window, table)} or 0 * {sum_of_replica(in_flight[:1], table)})"
            return f"{waits} * {span.window.total_seconds():g}", f"({left} + {joined})"


def _total(source: CounterSource, window: str, table: SignalTable) -> str:
    """Return the increase of a whole replica; a part of which there is no series counts 0 beside the rest."""
    matcher, part = "", source.part
    if part is not None:
        matcher = f'{{{part.label}{"!~" if part.complement else "=~"}"{"|".join(sorted(part.values))}"}}'
    risen = sum_of_replica(tuple(f"increase({name}{matcher}[{window}])" for name in source.names), table)
    return risen if part is None else f"({risen} or 0 * {sum_of_replica(source.names, table)})"


def sum_of_replica(generations: Sequence[str], table: SignalTable) -> str:
    """Return the sum over a replica: of the first generation's series, and of others where that has none."""
    return f"sum without ({', '.join(sorted(table.own_labels))}) ({' or '.join(generations)})"


MOST_RESTARTS = 4
"""Of a process that exports no start time, within `LOOKBACK`: the kubelet waits 10, 20, 40 and 80 s."""
LAGS = 2
"""Scrapes of which not all series may have come yet: what is written from afar may come in parts."""
SCRAPED = "scrape_duration_seconds"
"""What is written beside each page that is scraped, at the page's own time, by Prometheus, vmagent, Alloy and
the OpenTelemetry collector: it shows a page of which nothing else was taken."""
_AT = "kvmedic_at"
"""Label of a series that shows when others were sampled."""


def several_pages_query(
    span: Span, table: SignalTable, target_labels: tuple[str, str], *, counts_requests: bool
) -> str:
    """Return the query for targets whose series several pages wrote; it answers with nothing where none did.

    A source that honors labels takes namespace, pod, `instance` and `job` from the page that it
    scrapes, so that any tenant's page can write into another's series. Nothing in a label distinguishes them
    then, but what is written does, since one page is scraped as a whole, and written by one process, whose
    counters never fall:

    * a counter fell more often than its process began anew;
    * a process began before it had begun: the start times of two alternate;
    * some gauges have more samples than others of the same page, be it by one, which can make a mean;
    * some series have other times than what was scraped with them: a sample that comes after a later one is
      refused, so that another page's may stand in place of the replica's own; in place of all of them, where
      that page is scraped while the replica's own is still being read.

    What cannot be found so is a page that repeats all of the replica's own but its gauges, or that repeats
    `SCRAPED`, too, and is scraped in each of those moments, or within the same millisecond.

    Args:
        span: of the look.
        table: what engines export.
        target_labels: names of the labels of namespace and pod.
        counts_requests: also by the histograms of requests, which make up most of a page.
    """
    window = duration_text(max(span.window, LOOKBACK))
    target = ", ".join((*target_labels, "instance", "job"))
    counters = tuple(_counters(table, counts_requests=counts_requests))
    beside = (*_gauges(table), *_starts(table), SCRAPED)
    late, step = f" offset {duration_text(LAGS * span.resolution)}", duration_text(span.resolution)
    found = (
        *_falls(table, counters, f"[{window}]", target),
        *_surplus(table, f"[{window}]{late}", target),
        # Who wrote into a counter, and does no more, made it fall when the replica's own samples came back.
        _last_strays(counters, late, table, target),
        f"max by ({target}) (max_over_time(({_strays(beside, table, target)})[{window}:{step}]{late}))",
    )
    return " or ".join(found)


def _falls(table: SignalTable, counters: Iterable[str], selected: str, target: str) -> Iterator[str]:
    """Yield what finds counters that fell although no process began anew."""
    starts, fold = _starts(table), f"max by ({target}) ("
    begun = [f"{fold}changes({start}{selected}))" for start in starts]
    unknown = f"0 * max by ({target}) (count_over_time({table.presence}{selected})) + {MOST_RESTARTS}"
    if starts:
        yield f"({_of_each(starts, 'resets', selected, fold)}) > 0"
    fell = _of_each(counters, "resets", selected, fold)
    yield f"({fell}) > on ({target}) group_left () ({' or '.join((*begun, unknown))})"


def _surplus(table: SignalTable, selected: str, target: str) -> Iterator[str]:
    """Yield what finds gauges with more samples than the one that every engine exports, or fewer.

    Thanos and VictoriaMetrics drop doubles by the times of samples, which all series of a page share.
    """
    fold = f"max by ({target}) ("
    seen = f"{fold}count_over_time({table.presence}{selected}))"
    counts = _of_each(_gauges(table), "count_over_time", selected, fold)
    yield f"({counts}) > on ({target}) group_left () {seen}"
    # Of others each process may export a copy of its own, with the samples of its own time.
    shared = [name for name in table.in_flight if name != table.presence]
    counts = _of_each(shared, "count_over_time", selected, fold)
    if shared:
        yield f"({counts}) < on ({target}) group_left () {seen}"


def _strays(names: Iterable[str], table: SignalTable, target: str) -> str:
    """Return what finds series that were sampled at other times than the one that every engine exports."""
    seen = f"on ({target}) group_left () max by ({target}) (timestamp({table.presence}))"
    return " or ".join(f"timestamp({name}) != {seen}" for name in (table.presence, *names))


def _last_strays(names: Iterable[str], selected: str, table: SignalTable, target: str) -> str:
    """Return what finds them at one moment, of many metrics, in a query half as long."""
    fold = f'count_values by ({target}) ("{_AT}", '
    seen, *others = (f"{fold}timestamp({name}{selected}))" for name in (table.presence, *names))
    return f"({' or '.join(others)}) unless on ({target}, {_AT}) {seen} and on ({target}) {seen}"


def _of_each(names: Iterable[str], function: str, selected: str, fold: str) -> str:
    """Return what some metrics come to at each target by a function and a fold that lacks its last bracket.

    Metrics are distinguished by number: matchers are put wherever a metric's name stands in a query.
    """
    found = (f"{fold}{function}({name}{selected}))" for name in names)
    return " or ".join(mark_series(text, str(place)) for place, text in enumerate(found))


def _starts(table: SignalTable) -> Sequence[str]:
    return [one.name for one in table.signals.values() if isinstance(one, StartSource)]


def _gauges(table: SignalTable) -> Sequence[str]:
    """Return the gauges beside the one that every engine exports."""
    names = [one.names for one in table.signals.values() if isinstance(one, GaugeSource)]
    found = dict.fromkeys((*table.in_flight, *(name for each in names for name in each)))
    return [name for name in found if name != table.presence]


def _counters(table: SignalTable, *, counts_requests: bool) -> Iterable[str]:
    sources = [table.ended, *table.signals.values()]
    counted = [name for one in sources if isinstance(one, CounterSource) for name in one.names]
    buckets = [f"{name}_bucket" for one in sources if isinstance(one, HistogramSource) for name in one.names]
    return dict.fromkeys((*counted, *(buckets if counts_requests else ())))


DEVICE_NAMES = frozenset(
    {
        *(name for names in SERIES.values() for name in names),
        *(name for one in MEMORY_SERIES for name in (one.used, one.free)),
    }
)
"""Every series of a device that is asked for."""

Narrow: TypeAlias = Callable[[str], str]
"""Returns a query with some matchers in each of its selectors."""


@lru_cache(maxsize=16)
def _selector_of(names: frozenset[str]) -> re.Pattern[str]:
    """Return what finds the selectors of some metrics in a query."""
    alternatives = "|".join(sorted(map(re.escape, names), key=len, reverse=True))
    return re.compile(rf"(?<![\w:])({alternatives})(?![\w:])(\{{)?")


def make_narrow(matchers: Sequence[str], names: Iterable[str]) -> Narrow:
    """Return what puts matchers into each selector of a query.

    Args:
        names: of all metrics that queries select. None of them can be part of a label's value, as names of
            pods and namespaces have neither underscores nor colons.
    """
    if not matchers:
        return str
    selector, joined = _selector_of(frozenset(names)), ", ".join(matchers)

    def narrow(text: str) -> str:
        return selector.sub(lambda found: f"{found[1]}{{{joined}{', ' if found[2] else '}'}", text)

    return narrow


PEAK_DAY = timedelta(hours=24)
"""How far back: load that comes each day is in it once. A source that keeps less answers with what it has."""
PEAK_WINDOW = timedelta(minutes=10)
"""Over how long load counts: a shorter peak is over before a queue that it left keeps many waiting."""


def peak_query(table: SignalTable) -> str:
    """Return the query for the most tokens per second that each replica was asked for.

    Requests that arrived (ended, or joined who runs and waits) times the mean output of those that
    were answered.
    """
    window, seconds = duration_text(PEAK_WINDOW), PEAK_WINDOW.total_seconds()
    finished = table.signals[Signal.REQUESTS_FINISHED]
    if not isinstance(finished, CounterSource):
        raise TypeError("finished requests are counted")
    ended = sum_of_replica([f"increase({name}[{window}])" for name in finished.names], table)
    joined = " + ".join(sum_of_replica([f"delta({name}[{window}])"], table) for name in table.in_flight)
    tokens = _risen_part(Signal.OUTPUT_LENGTH, "sum", window, table)
    answers = _risen_part(Signal.OUTPUT_LENGTH, "count", window, table)
    offered = f"({ended} + {joined}) * {tokens} / ({answers} > 0) / {seconds:g}"
    return f"max_over_time(({offered})[{duration_text(PEAK_DAY)}:{window}])"


def _risen_part(signal: Signal, part: str, window: str, table: SignalTable) -> str:
    """Return the increase of a whole replica's `sum` or `count` of a histogram."""
    source = table.signals[signal]
    if not isinstance(source, HistogramSource):
        raise TypeError(f"{signal} is a histogram")
    return sum_of_replica([f"increase({name}_{part}[{window}])" for name in source.names], table)


def devices_among(text: str, labels: Labels, namespaces: str, pods: str) -> str:
    """Return a query about devices that answers for the devices of some pods alone.

    Which label names the pod differs by installation and is settled by the query, so that no selector can:
    what it comes to is filtered.

    Args:
        text: the query, whose series name the pods by the configured labels.
        labels: names of these labels.
        namespaces: a regular expression.
        pods: a regular expression.
    """
    here, both = "kvmedic_namespace_asked", "kvmedic_pod_asked"
    named = f'label_replace({text}, "{here}", "1", "{labels.namespace}", "{namespaces}")'
    named = f'label_replace({named}, "{both}", "1", "{labels.pod}", "{pods}")'
    desired = f'label_replace(label_replace(vector(1), "{here}", "1", "", ""), "{both}", "1", "", "")'
    return f"{named} and on ({here}, {both}) {desired}"
