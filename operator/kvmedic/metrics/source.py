"""One named source of metrics: the questions about replicas, and the readings that its answers come to.

A round of quick looks at calm fleets costs the same few queries however many there are (`calm.py`). A closer
look names its replicas, and shares its queries with those who look closely at the same time (`batches.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from math import isfinite
from types import MappingProxyType
from typing import Any, Protocol

from kvmedic.engines.signal_sources import SignalTable
from kvmedic.metrics.batches import (
    GATHERED_SECONDS,
    Batch,
    Closeness,
    Moment,
    Outliers,
    make_pod_narrow,
    parts_of,
    pattern,
)
from kvmedic.metrics.calm import CalmRounds, is_quick_look
from kvmedic.metrics.devices import NO_NODES, device_queries, devices_of, nodes_that_do_not_count
from kvmedic.metrics.lengths import LengthHistory
from kvmedic.metrics.page import names_of
from kvmedic.metrics.promql import (
    CLOCKS,
    CROWDED,
    DEVICE_NAMES,
    LOOKBACK,
    MARK,
    SCRAPED,
    Span,
    crowded_query,
    expression,
    make_narrow,
    peak_query,
    pool_query,
    presence,
    replicas_query,
    sampled_query,
    sampled_stretch,
    several_pages_query,
)
from kvmedic.metrics.readings import Presence, Replica, mark_absent, mark_silent, presence_of, readings_of
from kvmedic.metrics.scrape import Engine, engines_of
from kvmedic.metrics.series import (
    NOTHING,
    NOWHERE,
    Answer,
    Excess,
    Place,
    PodKey,
    Reply,
    Unanswered,
    engines_own,
    foreign_instances,
    own_series,
    totals_of,
)
from kvmedic.model.devices import Device
from kvmedic.model.evidence import (
    AT_REST,
    EVERY_SIGNAL,
    HISTOGRAMS,
    Absence,
    Look,
    LookSeries,
    Measured,
    Missing,
    Observation,
    PastLengths,
    PodReadings,
    Reading,
    Signal,
    Stale,
)
from kvmedic.settings import SourceOptions

_LOG = logging.getLogger(__name__)
NO_PLACES: Mapping[str, Place] = MappingProxyType({})


def utc_now() -> datetime:
    """Return the machine's time."""
    return datetime.now(UTC)


class Client(Protocol):
    """Asks one source."""

    async def query(self, expression: str, at: datetime) -> Reply:
        """Return what the source answers to one query, evaluated at a moment."""

    async def query_range(self, expression: str, moments: Sequence[datetime]) -> Sequence[Reply]:
        """Return the same at several moments that are equally far apart."""

    def close(self) -> None:
        """End all that is under way."""

    @property
    def is_narrowed(self) -> bool:
        """Return whether it asks about one target alone, whatever a query selects."""


@dataclass
class _Series:
    """Asks a source about several moments at once: the first to ask for one of them asks for all."""

    client: Client
    moments: Sequence[datetime]
    _replies: dict[str, asyncio.Task[Sequence[Reply]]] = field(default_factory=dict)

    async def query(self, expression: str, at: datetime) -> Reply:
        """Return the answer of one of the moments."""
        if expression not in self._replies:
            asked: Coroutine[Any, Any, Sequence[Reply]] = self.query_range(expression, self.moments)
            self._replies[expression] = asyncio.create_task(asked)
        replies = await asyncio.shield(self._replies[expression])
        return replies[self.moments.index(at)]

    async def query_range(self, expression: str, moments: Sequence[datetime]) -> Sequence[Reply]:
        """Return the answers of other moments."""
        return await self.client.query_range(expression, moments)

    def close(self) -> None:
        """End nothing: the client is another's."""

    @property
    def is_narrowed(self) -> bool:
        """Return whether the client asks about one target alone."""
        return self.client.is_narrowed


@dataclass(frozen=True, slots=True)
class _Answers:
    """What a source answered about one moment."""

    table: SignalTable
    at: datetime
    freshness: timedelta
    """Oldest that a replica's newest sample may be."""
    presence: Reply
    pool: Reply
    signals: Mapping[Signal, Reply]
    shared: Reply = NOTHING
    """Targets whose series several pages write."""
    crowded: Set[PodKey] = frozenset()
    """Replicas that have more series than are looked at."""

    def trouble(self) -> Unanswered | None:
        """Return the worst that a query met: partial data first, then what is the source's own."""
        replies = (self.presence, self.pool, self.shared, *self.signals.values())
        troubles = [reply for reply in replies if isinstance(reply, Unanswered)]
        return max(troubles, key=lambda trouble: (trouble.partial, not trouble.is_apart), default=None)

    def readings(self, pod: PodKey, place: Place) -> PodReadings:
        """Return one replica's readings; a replica that fell silent is stale in every one of them.

        Args:
            pod: the replica.
            place: where it is; where nobody knows its address, any source that names the pod is believed.
        """
        trouble = self.trouble()
        is_own = trouble is not None and trouble.is_apart
        unavailable = Missing(Absence.TOO_MUCH if is_own else Absence.SOURCE_UNAVAILABLE)
        if isinstance(self.presence, Unanswered):
            return mark_absent(self.signals, unavailable)
        if pod in self.crowded:
            return mark_absent(self.signals, Missing(Absence.TOO_MUCH))
        named = self.presence.series_of(pod)
        of_pod = own_series(named, place.address)
        if named and not of_pod:
            return mark_absent(self.signals, Missing(Absence.OTHER_ADDRESS))
        seen = engines_own(of_pod, place)
        if isinstance(seen, Missing):
            return mark_absent(self.signals, seen)
        is_declared = len(place.ports) > 1 and place.only_port is None
        presence = presence_of(seen, self.table, self.at, self.freshness, is_declared=is_declared)
        if isinstance(presence, Missing):
            return mark_absent(self.signals, presence)
        if presence.at < self.at - self.freshness:
            return mark_absent(self.signals, Stale(presence.at))
        if isinstance(self.shared, Answer) and not _is_own(self.shared, pod, place.address):
            return mark_absent(self.signals, Missing(Absence.SEVERAL_PAGES))
        pools, *found = (
            None if isinstance(reply, Unanswered) else reply.series_of(pod)
            for reply in (self.pool, *self.signals.values())
        )
        series = dict(zip(self.signals, found, strict=True))
        return readings_of(Replica(presence, self.table), series, pools, unavailable)


class PrometheusSource:
    """A named source.

    All looks within the source's reuse time share one moment, of which all signals of one look are.
    """

    def __init__(
        self,
        name: str,
        client: Client,
        options: SourceOptions,
        table: SignalTable,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        self.name = name
        self.trouble = ""
        """What is wrong with the source as of its last answer, for a person; empty when nothing is."""
        self._client, self._options, self._table, self._now = client, options, table, now
        self._engine_names = names_of(table) | {SCRAPED}
        self._narrow_engines = make_narrow(options.matchers, self._engine_names)
        self._narrow_devices = make_narrow((*options.matchers, *options.device_matchers), DEVICE_NAMES)
        self._moment: Moment | None = None
        self._rounds: CalmRounds | None = CalmRounds(table, options.labels)
        """None: of the past, where no other fleet is looked at."""
        self._calm: Moment | None = None
        self._outliers = Outliers()
        self._past = LengthHistory(self._look_back)
        self._reported_unlabelled = False
        self._reported_once: set[tuple[PodKey, str]] = set()

    async def observe(
        self, pods: Sequence[PodKey], look: Look, places: Mapping[str, Place] = NO_PLACES
    ) -> Observation:
        """Return one look at some replicas; what is not known is a reading that says so."""
        moment, readings = self._get_moment(), dict[str, PodReadings]()
        if self._rounds is not None and is_quick_look(look, self._table):
            calm = self._calm_moment_of(self._rounds)
            readings = await self._quick_look(self._rounds, calm, pods, look, places)
            moment = calm if len(readings) == len(pods) and look.signals <= AT_REST else moment
        rest = replace(look, signals=look.signals - AT_REST)
        if readings and rest.signals:
            plain = [pod for pod in pods if pod.name in readings]
            more = await self._observe_closely(moment, plain, rest, places, NOTHING)
            readings = {name: _join_readings(each, more[name]) for name, each in readings.items()}
        left = [pod for pod in pods if pod.name not in readings]
        readings |= await self._observe_closely(moment, left, look, places) if left else {}
        return Observation(moment.at, look.window.total_seconds(), look.hold.total_seconds(), readings)

    async def _quick_look(
        self,
        rounds: CalmRounds,
        moment: Moment,
        pods: Sequence[PodKey],
        look: Look,
        places: Mapping[str, Place],
    ) -> dict[str, PodReadings]:
        """Return the readings of those replicas of which the round of all replicas reports all."""
        found = await rounds.answers_at(moment, self._span(look.window))
        if isinstance(found, Unanswered):
            self._calm = None
            return {}
        signals = {signal: found.signals[signal] for signal in Signal if signal in found.signals}
        answers = _Answers(
            self._table, moment.at, self._options.freshness, found.presence, found.pools, signals
        )
        self._report_change(None)
        plain = (pod for pod in pods if found.presence.series_of(pod))
        return {pod.name: answers.readings(pod, places.get(pod.name, NOWHERE)) for pod in plain}

    async def _observe_closely(
        self,
        moment: Moment,
        pods: Sequence[PodKey],
        look: Look,
        places: Mapping[str, Place],
        pools: Answer | None = None,
    ) -> dict[str, PodReadings]:
        """Return the readings of replicas by queries that name them; `pools`: not to be asked for."""
        found: dict[str, PodReadings] = {}
        for part in parts_of(pods):
            answers = await self._ask_closely(moment, part, look, pools)
            trouble, seen = answers.trouble(), answers.presence
            if trouble is None or not trouble.is_apart:
                self._report_change(trouble)
            elif (part[0], trouble.trouble) not in self._reported_once:
                self._reported_once.add((part[0], trouble.trouble))
                text = "metrics source %s, asked about nothing but the replicas of %s/%s and its like: %s"
                _LOG.warning(text, self.name, *part[0], trouble.trouble)
            if isinstance(seen, Answer):
                others = [pod for pod in part if pod not in answers.crowded]
                await self._log_oddities(moment, others, seen, places)
            if trouble is not None and trouble.partial:
                found |= {pod.name: mark_silent(look.signals) for pod in part}
            else:
                found |= {pod.name: answers.readings(pod, places.get(pod.name, NOWHERE)) for pod in part}
        return found

    async def _ask_closely(
        self, moment: Moment, pods: Sequence[PodKey], look: Look, pools: Answer | None
    ) -> _Answers:
        closeness = Closeness.WHOLE if look.signals == EVERY_SIGNAL else Closeness.QUICK
        batch, span = await moment.batch_of(pods, closeness), self._span(look.window, look.hold)
        seen = await self._ask_who_is_there(batch, pods, span)
        # A source that does not answer the first query is not asked the others.
        pool, shared, signals = seen, seen, dict.fromkeys(look.signals, seen)
        if isinstance(seen, Answer):
            target = (self._options.labels.namespace, self._options.labels.pod)
            desired = [
                signal for signal in Signal if signal in look.signals and signal in self._table.signals
            ]
            texts = [expression(self._table.signals[signal], span, self._table, target) for signal in desired]
            texts += [pool_query(span, self._table, target)] if pools is None else []
            counted = not HISTOGRAMS.isdisjoint(desired)
            # Of pools alone no page can say anything that another one's would not contradict.
            texts += [self._several_pages(span, counts_requests=counted)] if desired else []
            replies = list(await asyncio.gather(*(batch.reply(text, pods) for text in texts)))
            shared = replies.pop() if desired else NOTHING
            signals = dict(zip(desired, replies, strict=False))
            pool = replies[-1] if pools is None else pools
        at, crowded = moment.at, frozenset(batch.crowded)
        return _Answers(self._table, at, self._options.freshness, seen, pool, signals, shared, crowded)

    async def _ask_who_is_there(self, batch: Batch, pods: Sequence[PodKey], span: Span) -> Reply:
        """Return the presence of some replicas; about those with too many series nothing more is asked."""
        target = (self._options.labels.namespace, self._options.labels.pod)
        there, crowded = replicas_query(span, self._table, target), crowded_query(target, self._engine_names)
        seen = await batch.reply(f"{there} or {crowded}", pods)
        if isinstance(seen, Unanswered) and not seen.partial and seen.excess is not Excess.TIME:
            seen = await batch.reply(there, pods)  # what one metric is refused for says nothing about others
        batch.leave_out(_find_crowded_replicas(seen))
        return seen

    async def _log_oddities(
        self, moment: Moment, pods: Sequence[PodKey], seen: Answer, places: Mapping[str, Place]
    ) -> None:
        """Log what is odd about the series of some replicas."""
        for pod in pods:
            # A page that speaks for a replica beside its own is believed nothing.
            address = places.get(pod.name, NOWHERE).address
            others = foreign_instances(seen.series_of(pod), address)
            self._warn_once(pod, "series of instance", others, f"which is {address}")
        if self._reported_unlabelled or all(seen.series_of(pod) for pod in pods):
            return
        label = self._options.labels.pod
        nameless = await moment.reply(f'{self._table.presence}{{{label}=""}}')
        if isinstance(nameless, Answer) and nameless.unlabelled and not self._reported_unlabelled:
            self._reported_unlabelled = True
            text = "metrics source %s: %d series lack the label %s; set labels.pod or add it when scraping"
            _LOG.warning(text, self.name, nameless.unlabelled, label)

    async def observe_series(
        self, pods: Sequence[PodKey], series: LookSeries, places: Mapping[str, Place] = NO_PLACES
    ) -> Sequence[Observation]:
        """Return looks one after the other, oldest first; they cost as many queries as one."""
        if series.count == 1:
            return [await self.observe(pods, series.look, places)]
        now = self._get_moment().at
        moments = [now - series.apart * ago for ago in reversed(range(series.count))]
        sources = self._as_of_each(moments)
        found = await asyncio.gather(*(source.observe(pods, series.look, places) for source in sources))
        self.trouble = sources[-1].trouble
        return found

    async def _look_back(
        self, moments: Sequence[datetime], pods: Sequence[PodKey], look: Look, places: Mapping[str, Place]
    ) -> Sequence[Observation]:
        """Return looks of the past, which say nothing of the source's answers about the present."""
        return await asyncio.gather(
            *(source.observe(pods, look, places) for source in self._as_of_each(moments))
        )

    def _as_of_each(self, moments: Sequence[datetime]) -> list[PrometheusSource]:
        """Return the source as it answers about several moments, which are asked about at once."""
        asked = _Series(self._client, moments)
        sources = [self.as_of(at, asked) for at in moments]
        for source in sources:
            source.trouble = self.trouble
        return sources

    async def devices(
        self, pods: Sequence[PodKey], window: timedelta, nodes: Mapping[str, str] = NO_NODES
    ) -> dict[str, Reading[tuple[Device, ...]]]:
        """Return the devices of some replicas by pod name; one without a series has a reading that says so.

        One query per vital, of the same moment as the source's other looks.
        """
        moment, found = self._get_moment(), dict[str, Reading[tuple[Device, ...]]]()
        queries = device_queries(self._span(window), self._options.labels)
        for part in parts_of(pods):
            batch = await moment.batch_of(part, Closeness.WHOLE)
            replies = await asyncio.gather(*(batch.reply_on_devices(text, part) for text in queries.values()))
            by_vital = dict(zip(queries, replies, strict=True))
            for pod in part:
                others = nodes_that_do_not_count(pod, by_vital, nodes.get(pod.name, ""))
                self._warn_once(pod, "GPU series from node", others, "which runs elsewhere")
            found |= devices_of(part, by_vital, moment.at, nodes)
        return found

    async def peaks(
        self, pods: Sequence[PodKey], places: Mapping[str, Place] = NO_PLACES
    ) -> dict[str, Reading[float]]:
        """Return the most tokens per second that replicas were asked for of late, by pod name.

        A day of history may be too much for a source, which says nothing about its other answers. Whose
        series several pages write of late has none; what they wrote before is not distinguished from its own.
        """
        moment, found = self._get_moment(), dict[str, Reading[float]]()
        asked = peak_query(self._table), self._several_pages(self._span(LOOKBACK), counts_requests=True)
        for part in parts_of(pods):
            batch = await moment.batch_of(part, Closeness.WHOLE)
            reply, shared = await asyncio.gather(*(batch.reply(text, part) for text in asked))
            totals = totals_of(part, reply, moment.at, places)
            for pod in part:
                is_own = _is_own(shared, pod, places.get(pod.name, NOWHERE).address)
                found[pod.name] = totals[pod.name] if is_own else _missing_of(shared)
            found |= {pod.name: Missing(Absence.TOO_MUCH) for pod in part if pod in batch.crowded}
        return found

    async def past_lengths(
        self, pods: Sequence[PodKey], places: Mapping[str, Place] = NO_PLACES
    ) -> tuple[PastLengths, ...]:
        """Return the lengths of some replicas' requests, by half hours of the last day, oldest first."""
        return await self._past.lengths(pods, places, self._now())

    async def find_pods(self, window: timedelta, namespace: str = "", prefix: str = "") -> tuple[PodKey, ...]:
        """Return every pod with a fresh sample of an engine, sorted; none where the source is down.

        Args:
            window: of the looks that follow.
            namespace: of the pods; empty: any.
            prefix: with which their names begin.
        """
        moment, freshness, labels = self._get_moment(), self._options.freshness, self._options.labels
        text = replicas_query(self._span(window), self._table, (labels.namespace, labels.pod))
        begins = pattern([prefix])
        if namespace and not self._client.is_narrowed:
            matchers = f'{labels.namespace}="{namespace}"', f'{labels.pod}=~"{begins}.*"'
            text = make_narrow(matchers, self._engine_names)(text)
        seen = await moment.reply(text)
        if isinstance(seen, Unanswered):
            self.trouble = f"metrics source {self.name} {seen.trouble}"
            return ()
        found = {
            pod: presence_of(many, self._table, moment.at, freshness) for pod, many in seen.by_pod.items()
        }
        fresh = (
            p for p, one in found.items() if isinstance(one, Presence) and one.at >= moment.at - freshness
        )
        return tuple(sorted({*fresh, *_find_crowded_replicas(seen)}))

    async def engines(self, pod: PodKey, address: str = "") -> frozenset[Engine]:
        """Return the engines that the source has seen of a replica lately; none where it does not answer."""
        batch = await self._get_moment().batch_of([pod], Closeness.WHOLE)
        seen = await batch.reply(presence(self._span(timedelta(0)), self._table), [pod])
        if isinstance(seen, Unanswered):
            return frozenset()
        return engines_of(own_series(seen.series_of(pod), address), self._table)

    async def samples(
        self, pod: PodKey, address: str, out: timedelta, seen: frozenset[Engine]
    ) -> Reading[float]:
        """Return the most requests on a replica that the source's samples show since it was left alone.

        Args:
            pod: whose pages cannot be read.
            address: of the pod.
            out: for how long it has surely got no request; what was sampled before says nothing.
            seen: engines that were seen on it otherwise; each of them, and of those the source knows, counts.
        """
        stretch, unavailable = sampled_stretch(out), Missing(Absence.SOURCE_UNAVAILABLE)
        if stretch is None:
            return unavailable
        known, now = await self.engines(pod, address) | seen, self._now()
        narrow = make_pod_narrow([pod], self._options.labels, self._engine_names)
        later = await self._query(narrow(f"timestamp({self._table.presence})"), now + CLOCKS)
        if isinstance(later, Unanswered) or not known:
            return unavailable
        newest = [one.value for one in own_series(later.series_of(pod), address)]
        if not newest or max(newest) > now.timestamp():
            return unavailable  # no sample of late, or the source's clock is ahead of ours
        shared = await self._query(
            narrow(self._several_pages(self._span(stretch), counts_requests=False)), now
        )
        if not _is_own(shared, pod, address):
            return _missing_of(shared)
        largest = 0.0
        for name in (*self._table.in_flight, *self._table.in_flight_optional):
            reply = await self._query(narrow(sampled_query(name, stretch)), now)
            series = () if isinstance(reply, Unanswered) else own_series(reply.series_of(pod), address)
            sampled = engines_of(series, self._table)
            is_needed = name in self._table.in_flight or isinstance(reply, Unanswered)
            if is_needed and not all(one.is_on(sampled) for one in known):
                return unavailable
            largest += sum(one.value for one in series)
        is_count = isfinite(largest) and largest >= 0
        return Measured(largest, datetime.fromtimestamp(max(newest), UTC)) if is_count else unavailable

    def as_of(self, at: datetime, client: Client | None = None) -> PrometheusSource:
        """Return the same source as it answers about a moment of the past; it is not to be closed."""
        steady = self._options.model_copy(update={"reuse": timedelta(days=1)})
        then = PrometheusSource(self.name, client or self._client, steady, self._table, now=lambda: at)
        # What is odd about series is reported once, of the present.
        then._rounds, then._reported_unlabelled = None, True
        then._reported_once = self._reported_once
        return then

    def close(self) -> None:
        """End all that is under way."""
        for moment in (self._moment, self._calm):
            if moment is not None:
                moment.cancel()
        self._client.close()

    def _span(self, window: timedelta, hold: timedelta = timedelta(0)) -> Span:
        return Span(window, hold, self._options.resolution, self._options.freshness)

    def _several_pages(self, span: Span, *, counts_requests: bool) -> str:
        target = (self._options.labels.namespace, self._options.labels.pod)
        return several_pages_query(span, self._table, target, counts_requests=counts_requests)

    def _get_moment(self) -> Moment:
        now, moment = self._now(), self._moment
        if moment is None or not moment.at <= now < moment.at + self._options.reuse:
            moment = Moment(
                *(now, self._query, self._options.labels, self._engine_names),
                gathered_seconds=GATHERED_SECONDS if self._rounds else 0.0,
                is_narrowed=self._client.is_narrowed,
                outliers=self._outliers,
                at_once=self._options.concurrency,
            )
            self._moment = moment
        return moment

    def _calm_moment_of(self, rounds: CalmRounds) -> Moment:
        """Return the moment at which all calm replicas were asked about, longer ago where they are many."""
        now, moment = self._now(), self._calm
        lasts = max(self._options.reuse, rounds.lasts)
        if moment is None or not moment.at <= now < moment.at + lasts:
            self._moment = None  # one that begins now: an older one would be asked anew the sooner
            moment = self._calm = self._get_moment()
        return moment

    async def _query(self, text: str, at: datetime) -> Reply:
        return await self._client.query(self._narrow_devices(self._narrow_engines(text)), at)

    def _warn_once(self, pod: PodKey, what: str, others: Sequence[str], why: str) -> None:
        """Log once per replica that somebody else's series name it, and are believed nothing."""
        if not others or (pod, what) in self._reported_once:
            return
        self._reported_once.add((pod, what))
        named = ", ".join(others[:5])
        _LOG.warning(
            "metrics source %s: %s %s name pod %s/%s, %s: they do not count",
            self.name,
            what,
            named,
            pod.namespace,
            pod.name,
            why,
        )

    def _report_change(self, trouble: Unanswered | None) -> None:
        """Log what changed about the source since the last look."""
        text = f"metrics source {self.name} {trouble.trouble}" if trouble else ""
        if text and text != self.trouble:
            _LOG.warning("%s", text)
        elif self.trouble and not text:
            _LOG.info("metrics source %s answers again", self.name)
        self.trouble = text


def _is_own(shared: Reply, pod: PodKey, address: str) -> bool:
    """Return whether one page alone writes a replica's series; no where the source does not answer."""
    return isinstance(shared, Answer) and not own_series(shared.series_of(pod), address)


def _missing_of(shared: Reply) -> Missing:
    is_answered = isinstance(shared, Answer)
    return Missing(Absence.SEVERAL_PAGES if is_answered else Absence.SOURCE_UNAVAILABLE)


def _find_crowded_replicas(seen: Reply) -> frozenset[PodKey]:
    """Return the replicas that are marked for having more series than are looked at."""
    by_pod = {} if isinstance(seen, Unanswered) else seen.by_pod
    return frozenset(
        pod for pod, many in by_pod.items() if any(one.labels.get(MARK) == CROWDED for one in many)
    )


def _join_readings(one: PodReadings, more: PodReadings) -> PodReadings:
    """Return the readings of two looks at a replica; what is no signal is that of the first."""
    numbers, histograms = {**one.numbers, **more.numbers}, {**one.histograms, **more.histograms}
    return replace(one, numbers=numbers, histograms=histograms)
