"""What is asked about replicas: of a metrics source by its name, and of a replica directly."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial

from kvmedic.engines.signal_sources import SignalTable
from kvmedic.metrics.prometheus import PrometheusClient, Spent
from kvmedic.metrics.readings import PREFIX_LENGTH, is_made_by, mark_silent
from kvmedic.metrics.scrape import PodAddress, Scraper
from kvmedic.metrics.series import Place, PodKey
from kvmedic.metrics.source import PrometheusSource, utc_now
from kvmedic.model.devices import Device
from kvmedic.model.engine import Version
from kvmedic.model.evidence import (
    Absence,
    Look,
    LookSeries,
    Measured,
    Missing,
    Observation,
    PastLengths,
    Pool,
    Reading,
)
from kvmedic.model.fleet import Pod
from kvmedic.settings import ScrapeOptions, SourceOptions

NOTHING_SPENT: Mapping[str, Spent] = {}
POOL_WINDOW = timedelta(minutes=2)
"""Of a look that asks for nothing but pools, whose query has no window."""


class FleetMetrics:
    """All sources of an installation, and the direct way to a replica."""

    def __init__(
        self,
        sources: Mapping[str, PrometheusSource],
        scraper: Scraper,
        versions: dict[str, Reading[Version]] | None = None,
        spent: Mapping[str, Spent] = NOTHING_SPENT,
    ) -> None:
        """Prepare to ask.

        Args:
            sources: by name.
            scraper: asks replicas directly.
            versions: what engines said by their pods' uids, so that each is asked once; None: each time anew.
            spent: what each source was asked so far, by its name.
        """
        self._sources, self._scraper, self._versions = dict(sources), scraper, versions
        self.spent = spent

    @classmethod
    def from_options(
        cls,
        sources: Mapping[str, SourceOptions],
        scrape: ScrapeOptions,
        table: SignalTable,
        now: Callable[[], datetime] = utc_now,
    ) -> FleetMetrics:
        """Return the metrics that an installation's configuration describes; `now` returns the present."""
        clients = {name: PrometheusClient(options) for name, options in sources.items()}
        built = {
            name: PrometheusSource(name, clients[name], options, table, now)
            for name, options in sources.items()
        }
        spent = {name: client.spent for name, client in clients.items()}
        return cls(built, Scraper(scrape, table), spent=spent)

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
        readings = {pod.name: mark_silent(look.signals) for pod in pods}
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

    async def observe_past(
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
        known = await then.find_pods(look.window, namespace, f"{replica_set}-"[:PREFIX_LENGTH])
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

    async def past_lengths(self, source: str, pods: Sequence[Pod], namespace: str) -> tuple[PastLengths, ...]:
        """Return the lengths of the named replicas' requests, by half hours of the last day, oldest first."""
        found = self._sources.get(source)
        keys = [PodKey(namespace, pod.name) for pod in pods]
        return () if found is None else await found.past_lengths(keys, _places(pods))

    async def count_in_flight(
        self, source: str, namespace: str, pod: Pod, out: timedelta = timedelta(0)
    ) -> Reading[float]:
        """Return running plus waiting requests, asked of the replica itself.

        All engines that the source knows of the replica must answer. Where the source does not answer, those
        count that the replica's own ports report. Where the replica is out of reach, as behind a mesh or a
        policy, the source's samples count of the time in which it surely got no request, `out`.
        """
        found, key = self._sources.get(source), PodKey(namespace, pod.name)
        if found is None:
            return await self._scraper.count_in_flight(_where(namespace, pod))
        known = await found.engines(key, pod.address)
        otherwise = partial(found.samples, key, pod.address, out)
        return await self._scraper.count_in_flight(_where(namespace, pod), known, otherwise)

    async def count_received(self, source: str, namespace: str, pod: Pod) -> Reading[float]:
        """Return how many requests a replica was given since it was started, asked of the replica itself."""
        found = self._sources.get(source)
        known = await found.engines(PodKey(namespace, pod.name), pod.address) if found else frozenset()
        return await self._scraper.count_received(_where(namespace, pod), known)

    async def pool(self, source: str, namespace: str, pod: Pod) -> Reading[Pool]:
        """Return the KV-cache pool, asked of the replica itself, or of the source if out of reach."""
        scraped = await self._scraper.pool(_where(namespace, pod), pod.engine_ports)
        found = self._sources.get(source)
        if scraped != Missing(Absence.SOURCE_UNAVAILABLE) or found is None:
            return scraped
        look = Look(POOL_WINDOW, signals=frozenset())
        seen = await found.observe([PodKey(namespace, pod.name)], look, _places([pod]))
        sampled = seen.pods[pod.name].pool
        return sampled if isinstance(sampled, Measured) else scraped

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
