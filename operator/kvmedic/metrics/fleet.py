"""What is asked about replicas: of a metrics source by its name, and of a replica directly.

A look at any number of replicas costs a source a fixed number of queries.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from math import isfinite
from types import MappingProxyType
from typing import Any, Protocol

from kvmedic.engines.signal_sources import (
    SignalTable,
)
from kvmedic.metrics.devices import NO_NODES, device_queries, devices_of, nodes_that_do_not_count
from kvmedic.metrics.page import names_of
from kvmedic.metrics.prometheus import PrometheusClient
from kvmedic.metrics.promql import (
    CLOCKS,
    DEVICE_NAMES,
    Span,
    expression,
    narrowed_by,
    peak_query,
    pool_query,
    presence,
    sampled_query,
    sampled_stretch,
)
from kvmedic.metrics.readings import (
    Presence,
    Replica,
    absent,
    is_made_by,
    presence_of,
    readings_of,
    unavailable,
)
from kvmedic.metrics.scrape import Engine, PodAddress, Scraper, engines_of
from kvmedic.metrics.series import (
    NOWHERE,
    Answer,
    Place,
    PodKey,
    Reply,
    Unanswered,
    engines_own,
    foreign_instances,
    own_series,
    port_of_instance,
)
from kvmedic.model.devices import Device
from kvmedic.model.engine import Version
from kvmedic.model.evidence import (
    Absence,
    Look,
    LookSeries,
    Measured,
    Missing,
    Observation,
    PodReadings,
    Pool,
    Reading,
    Signal,
    Stale,
)
from kvmedic.model.fleet import Pod
from kvmedic.settings import ScrapeOptions, SourceOptions

POOL_WINDOW = timedelta(minutes=2)
"""Of a look that asks for nothing but pools, whose query has no window."""

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

    def trouble(self) -> Unanswered | None:
        """Return the worst that a query met: partial data before any other trouble."""
        replies = (self.presence, self.pool, *self.signals.values())
        troubles = [reply for reply in replies if isinstance(reply, Unanswered)]
        return max(troubles, key=lambda trouble: trouble.partial, default=None)

    def readings(self, pod: PodKey, place: Place) -> PodReadings:
        """Return one replica's readings; a replica that fell silent is stale in every one of them.

        Args:
            pod: the replica.
            place: where it is; where nobody knows its address, whoever names the pod is believed.
        """
        if isinstance(self.presence, Unanswered):
            return unavailable(self.signals)
        named = self.presence.series_of(pod)
        of_pod = own_series(named, place.address)
        if named and not of_pod:
            return absent(self.signals, Missing(Absence.OTHER_ADDRESS))
        seen = engines_own(of_pod, place)
        if isinstance(seen, Missing):
            return absent(self.signals, seen)
        is_declared = len(place.ports) > 1 and place.only_port is None
        presence = presence_of(seen, self.table, self.at, self.freshness, is_declared=is_declared)
        if isinstance(presence, Missing):
            return absent(self.signals, presence)
        if presence.at < self.at - self.freshness:
            return absent(self.signals, Stale(presence.at))
        pools, *found = (
            None if isinstance(reply, Unanswered) else reply.series_of(pod)
            for reply in (self.pool, *self.signals.values())
        )
        untold = Missing(Absence.SOURCE_UNAVAILABLE)
        series = dict(zip(self.signals, found, strict=True))
        return readings_of(Replica(presence, self.table), series, pools, untold)


@dataclass(slots=True)
class _Moment:
    """The answers of one moment, shared by all who ask within the reuse time."""

    at: datetime
    replies: dict[str, asyncio.Task[Reply]] = field(default_factory=dict)


class PrometheusSource:
    """A named source.

    Queries carry no filter by replica. All looks within the source's reuse time share one moment: a
    query is sent once for it, whoever asks and however many ask at the same time, so the number of
    queries does not grow with the number of resources. All signals of one look are of one moment.
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
        self._narrow_engines = narrowed_by(options.matchers, names_of(table))
        self._narrow_devices = narrowed_by((*options.matchers, *options.device_matchers), DEVICE_NAMES)
        self._moment: _Moment | None = None
        self._told_unlabelled = False
        self._told_once: set[tuple[PodKey, str]] = set()

    async def observe(
        self, pods: Sequence[PodKey], look: Look, places: Mapping[str, Place] = NO_PLACES
    ) -> Observation:
        """Return one look at some replicas; what is not known is a reading that says so."""
        moment = self._current()
        span = Span(look.window, look.hold, self._options.resolution, self._options.freshness)
        seen = await self._reply(moment, presence(span, self._table))
        # A source that does not answer the first query is not asked the others.
        pool, signals = seen, dict.fromkeys(look.signals, seen)
        if isinstance(seen, Answer):
            target = (self._options.labels.namespace, self._options.labels.pod)
            wanted = [signal for signal in Signal if signal in look.signals and signal in self._table.signals]
            texts = [expression(self._table.signals[signal], span, self._table, target) for signal in wanted]
            pool, *replies = await asyncio.gather(
                *(self._reply(moment, text) for text in (pool_query(span, self._table, target), *texts))
            )
            signals = dict(zip(wanted, replies, strict=True))
        answers = _Answers(self._table, moment.at, self._options.freshness, seen, pool, signals)
        trouble = answers.trouble()
        self._report_change(trouble, seen)
        if isinstance(seen, Answer):
            for pod in pods:
                # A page that speaks for a replica beside its own is believed nothing.
                address = places.get(pod.name, NOWHERE).address
                others = foreign_instances(seen.series_of(pod), address)
                self._warn_once(pod, "series of instance", others, f"which is {address}")
        if trouble is not None and trouble.partial:
            readings = {pod.name: unavailable(look.signals) for pod in pods}
        else:
            readings = {pod.name: answers.readings(pod, places.get(pod.name, NOWHERE)) for pod in pods}
        return Observation(moment.at, look.window.total_seconds(), look.hold.total_seconds(), readings)

    async def observe_series(
        self, pods: Sequence[PodKey], series: LookSeries, places: Mapping[str, Place] = NO_PLACES
    ) -> Sequence[Observation]:
        """Return looks one after the other, oldest first; they cost as many queries as one."""
        if series.count == 1:
            return [await self.observe(pods, series.look, places)]
        now = self._current().at
        moments = [now - series.apart * ago for ago in reversed(range(series.count))]
        asked = _Series(self._client, moments)
        sources = [self.as_of(at, asked) for at in moments]
        for source in sources:
            source.trouble = self.trouble
        found = await asyncio.gather(*(source.observe(pods, series.look, places) for source in sources))
        self.trouble = sources[-1].trouble
        return found

    async def devices(
        self, pods: Sequence[PodKey], window: timedelta, nodes: Mapping[str, str] = NO_NODES
    ) -> dict[str, Reading[tuple[Device, ...]]]:
        """Return the devices of some replicas by pod name; one without a series has a reading that says so.

        One query per vital, for all replicas of the source and of the same moment as its other looks.
        """
        moment = self._current()
        span = Span(window, timedelta(0), self._options.resolution, self._options.freshness)
        queries = device_queries(span, self._options.labels)
        replies = await asyncio.gather(*(self._reply(moment, text) for text in queries.values()))
        by_vital = dict(zip(queries, replies, strict=True))
        for pod in pods:
            others = nodes_that_do_not_count(pod, by_vital, nodes.get(pod.name, ""))
            self._warn_once(pod, "GPU series from node", others, "which runs elsewhere")
        return devices_of(pods, by_vital, moment.at, nodes)

    async def peaks(
        self, pods: Sequence[PodKey], places: Mapping[str, Place] = NO_PLACES
    ) -> dict[str, Reading[float]]:
        """Return the most tokens per second that replicas were asked for of late, by pod name.

        A day of history may be too much for a source, which says nothing about its other answers.
        """
        moment = self._current()
        reply = await self._reply(moment, peak_query(self._table))
        if isinstance(reply, Unanswered):
            return {pod.name: Missing(Absence.SOURCE_UNAVAILABLE) for pod in pods}
        found: dict[str, Reading[float]] = {}
        for pod in pods:
            place = places.get(pod.name, NOWHERE)
            own = engines_own(own_series(reply.series_of(pod), place.address), place)
            if isinstance(own, Missing):
                found[pod.name] = own
                continue
            known = [one for one in own if isfinite(one.value)]
            # Of several scrapers the one that saw most counts, so that no cap is thought to do.
            most: dict[int | None, float] = {}
            for one in known:
                port = port_of_instance(one) if len(place.ports) > 1 else None
                most[port] = max(one.value, most.get(port, one.value))
            why = Missing(Absence.NOT_A_NUMBER if own else Absence.NO_SERIES)
            found[pod.name] = Measured(sum(most.values()), moment.at) if known else why
        return found

    async def present(self, window: timedelta) -> tuple[PodKey, ...]:
        """Return every pod with a fresh sample of an engine, sorted; none where the source is down.

        Asks what `observe` asks first, so within a moment it costs nothing more.
        """
        moment, freshness = self._current(), self._options.freshness
        span = Span(window, timedelta(0), self._options.resolution, freshness)
        seen = await self._reply(moment, presence(span, self._table))
        if isinstance(seen, Unanswered):
            self.trouble = f"metrics source {self.name} {seen.trouble}"
            return ()
        found = {
            pod: presence_of(many, self._table, moment.at, freshness) for pod, many in seen.by_pod.items()
        }
        fresh = (
            p for p, one in found.items() if isinstance(one, Presence) and one.at >= moment.at - freshness
        )
        return tuple(sorted(fresh))

    async def engines(self, pod: PodKey, address: str = "") -> frozenset[Engine]:
        """Return the engines that the source has seen of a replica lately; none where it does not answer."""
        moment = self._current()
        span = Span(timedelta(0), timedelta(0), self._options.resolution, self._options.freshness)
        seen = await self._reply(moment, presence(span, self._table))
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
        stretch, untold = sampled_stretch(out), Missing(Absence.SOURCE_UNAVAILABLE)
        if stretch is None:
            return untold
        known, now = await self.engines(pod, address) | seen, self._now()
        later = await self._client.query(
            self._narrow_engines(f"timestamp({self._table.presence})"), now + CLOCKS
        )
        if isinstance(later, Unanswered) or not known:
            return untold
        newest = [one.value for one in own_series(later.series_of(pod), address)]
        if not newest or max(newest) > now.timestamp():
            return untold  # no sample of late, or the source's clock is ahead of ours
        largest = 0.0
        for name in (*self._table.in_flight, *self._table.in_flight_optional):
            reply = await self._client.query(self._narrow_engines(sampled_query(name, stretch)), now)
            series = () if isinstance(reply, Unanswered) else own_series(reply.series_of(pod), address)
            told = engines_of(series, self._table)
            is_needed = name in self._table.in_flight or isinstance(reply, Unanswered)
            if is_needed and not all(one.is_on(told) for one in known):
                return untold
            largest += sum(one.value for one in series)
        is_count = isfinite(largest) and largest >= 0
        return Measured(largest, datetime.fromtimestamp(max(newest), UTC)) if is_count else untold

    def as_of(self, at: datetime, client: Client | None = None) -> PrometheusSource:
        """Return the same source as it answers about a moment of the past; it is not to be closed."""
        steady = self._options.model_copy(update={"reuse": timedelta(days=1)})
        then = PrometheusSource(self.name, client or self._client, steady, self._table, now=lambda: at)
        # What is odd about series is told once, of the present.
        then._told_unlabelled = True
        then._told_once = self._told_once
        return then

    def close(self) -> None:
        """End all that is under way."""
        for task in self._moment.replies.values() if self._moment else ():
            task.cancel()
        self._client.close()

    def _current(self) -> _Moment:
        now = self._now()
        moment = self._moment
        if moment is None or not moment.at <= now < moment.at + self._options.reuse:
            moment = self._moment = _Moment(now)
        return moment

    async def _reply(self, moment: _Moment, text: str) -> Reply:
        """Return the answer of a moment to a query; the first to ask sends it, all others wait for it."""
        task = moment.replies.get(text)
        if task is None:
            asked: Coroutine[Any, Any, Reply] = self._client.query(
                self._narrow_devices(self._narrow_engines(text)), moment.at
            )
            task = moment.replies[text] = asyncio.create_task(asked)
        # One who stops waiting does not take the answer from the others.
        return await asyncio.shield(task)

    def _warn_once(self, pod: PodKey, what: str, others: Sequence[str], why: str) -> None:
        """Log once per replica that somebody else's series name it, and are believed nothing."""
        if not others or (pod, what) in self._told_once:
            return
        self._told_once.add((pod, what))
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

    def _report_change(self, trouble: Unanswered | None, seen: Reply) -> None:
        """Log what changed about the source since the last look."""
        text = f"metrics source {self.name} {trouble.trouble}" if trouble else ""
        if text and text != self.trouble:
            _LOG.warning("%s", text)
        elif self.trouble and not text:
            _LOG.info("metrics source %s answers again", self.name)
        self.trouble = text
        if isinstance(seen, Answer) and seen.unlabelled and not self._told_unlabelled:
            self._told_unlabelled = True
            _LOG.warning(
                "metrics source %s: %d series lack the label %s; set labels.pod or add it when scraping",
                self.name,
                seen.unlabelled,
                self._options.labels.pod,
            )


class FleetMetrics:
    """All sources of an installation, and the direct way to a replica."""

    def __init__(
        self,
        sources: Mapping[str, PrometheusSource],
        scraper: Scraper,
        versions: dict[str, Reading[Version]] | None = None,
    ) -> None:
        """Prepare to ask.

        Args:
            sources: by name.
            scraper: asks replicas directly.
            versions: what engines said by their pods' uids, so that each is asked once; None: each time anew.
        """
        self._sources, self._scraper, self._versions = dict(sources), scraper, versions

    @classmethod
    def from_options(
        cls,
        sources: Mapping[str, SourceOptions],
        scrape: ScrapeOptions,
        table: SignalTable,
        now: Callable[[], datetime] = utc_now,
    ) -> FleetMetrics:
        """Return the metrics that an installation's configuration describes; `now` tells the present."""
        built = {
            name: PrometheusSource(name, PrometheusClient(options), options, table, now)
            for name, options in sources.items()
        }
        return cls(built, Scraper(scrape, table))

    @property
    def names(self) -> tuple[str, ...]:
        """Return the sources that a resource may name, sorted."""
        return tuple(sorted(self._sources))

    def trouble(self, source: str) -> str:
        """Return what is wrong with a source, in words for a person; empty when nothing is known to be."""
        found = self._sources.get(source)
        if found is not None:
            return found.trouble
        known = ", ".join(self.names) or "none"
        return f"no metrics source is named {source}; the operator's configuration has {known}"

    async def observe(
        self, source: str, pods: Sequence[Pod], namespace: str, window: timedelta, hold: timedelta
    ) -> Observation:
        """Return one look at the named replicas; what is not known is a reading that says so."""
        return await self.look(source, pods, namespace, Look(window, hold))

    async def look(self, source: str, pods: Sequence[Pod], namespace: str, look: Look) -> Observation:
        """Return one look at some signals alone: histograms make up most of what a source computes."""
        found = self._sources.get(source)
        if found is not None:
            return await found.observe([PodKey(namespace, pod.name) for pod in pods], look, _places(pods))
        readings = {pod.name: unavailable(look.signals) for pod in pods}
        window, hold = look.window.total_seconds(), look.hold.total_seconds()
        return Observation(datetime.now(UTC), window, hold, readings)

    async def look_series(
        self, source: str, pods: Sequence[Pod], namespace: str, series: LookSeries
    ) -> Sequence[Observation]:
        """Return looks one after the other, oldest first; they cost a source as many queries as one."""
        found = self._sources.get(source)
        if found is None:
            return [await self.look(source, pods, namespace, series.look)] * series.count
        keys = [PodKey(namespace, pod.name) for pod in pods]
        return await found.observe_series(keys, series, _places(pods))

    async def past(
        self, source: str, namespace: str, replica_set: str, at: datetime, look: Look
    ) -> Reading[Observation]:
        """Return a look at the replicas that a ReplicaSet had at a moment of the past.

        The source says which they were: of every engine that it scraped then, those whose names are of
        the ReplicaSet's making. One that knows none is not one whose replicas were calm.
        """
        found = self._sources.get(source)
        if found is None:
            return Missing(Absence.SOURCE_UNAVAILABLE)
        then = found.as_of(at)
        known = await then.present(look.window)
        if then.trouble:
            return Missing(Absence.SOURCE_UNAVAILABLE)
        pods = [pod for pod in known if pod.namespace == namespace and is_made_by(replica_set, pod.name)]
        return Measured(await then.observe(pods, look), at) if pods else Missing(Absence.NO_SERIES)

    async def devices(
        self, source: str, pods: Sequence[Pod], namespace: str, window: timedelta
    ) -> Mapping[str, Reading[tuple[Device, ...]]]:
        """Return the devices of the named replicas; one without a series has a reading that says so."""
        found = self._sources.get(source)
        if found is not None:
            keys = [PodKey(namespace, pod.name) for pod in pods]
            return await found.devices(keys, window, {pod.name: pod.node for pod in pods if pod.node})
        return {pod.name: Missing(Absence.SOURCE_UNAVAILABLE) for pod in pods}

    async def peaks(self, source: str, pods: Sequence[Pod], namespace: str) -> Mapping[str, Reading[float]]:
        """Return the most tokens per second that the named replicas were asked for over the last day."""
        found = self._sources.get(source)
        if found is not None:
            return await found.peaks([PodKey(namespace, pod.name) for pod in pods], _places(pods))
        return {pod.name: Missing(Absence.SOURCE_UNAVAILABLE) for pod in pods}

    async def in_flight(
        self, source: str, namespace: str, pod: Pod, out: timedelta = timedelta(0)
    ) -> Reading[float]:
        """Return running plus waiting requests, asked of the replica itself.

        All engines that the source knows of the replica must answer. Where the source does not answer, those
        count that the replica's own ports tell of. Where the replica is out of reach, as behind a mesh or a
        policy, the source's samples count of the time in which it surely got no request, `out`.
        """
        found, key = self._sources.get(source), PodKey(namespace, pod.name)
        if found is None:
            return await self._scraper.in_flight(_where(namespace, pod))
        known = await found.engines(key, pod.address)
        otherwise = partial(found.samples, key, pod.address, out)
        return await self._scraper.in_flight(_where(namespace, pod), known, otherwise)

    async def received(self, source: str, namespace: str, pod: Pod) -> Reading[float]:
        """Return how many requests a replica was given since it was started, asked of the replica itself."""
        found = self._sources.get(source)
        known = await found.engines(PodKey(namespace, pod.name), pod.address) if found else frozenset()
        return await self._scraper.received(_where(namespace, pod), known)

    async def pool(self, source: str, namespace: str, pod: Pod) -> Reading[Pool]:
        """Return the KV-cache pool, asked of the replica itself, or of the source if out of reach."""
        told = await self._scraper.pool(_where(namespace, pod), pod.engine_ports)
        found = self._sources.get(source)
        if told != Missing(Absence.SOURCE_UNAVAILABLE) or found is None:
            return told
        look = Look(POOL_WINDOW, signals=frozenset())
        seen = await found.observe([PodKey(namespace, pod.name)], look, _places([pod]))
        sampled = seen.pods[pod.name].pool
        return sampled if isinstance(sampled, Measured) else told

    async def version(self, namespace: str, pod: Pod) -> Reading[Version]:
        """Return the version of the engine, asked of the replica itself."""
        if self._versions is None:
            return await self._scraper.version(_where(namespace, pod))
        if pod.uid not in self._versions:
            self._versions[pod.uid] = await self._scraper.version(_where(namespace, pod))
        return self._versions[pod.uid]

    async def close(self) -> None:
        """End all that is under way."""
        for source in self._sources.values():
            source.close()
        await self._scraper.close()


def _places(pods: Iterable[Pod]) -> dict[str, Place]:
    return {pod.name: Place(pod.address, pod.only_port, frozenset(pod.engine_ports)) for pod in pods}


def _where(namespace: str, pod: Pod) -> PodAddress:
    return PodAddress(PodKey(namespace, pod.name), pod.address, pod.ports, pod.port)
