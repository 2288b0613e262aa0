"""The past of one target's replicas by a source: who was there when, and looks at them moment after moment.

Thousands of looks cost a few hundred range queries: as an operating system reads a file ahead, who asks about
one moment gets those that follow with it, and the more, the further he has read on. Queries are narrowed to
the target, since the moments are many.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from math import isfinite

from kvmedic.engines.signal_sources import SignalTable
from kvmedic.metrics.fleet import FleetMetrics
from kvmedic.metrics.page import names_of
from kvmedic.metrics.prometheus import PrometheusClient, Spent
from kvmedic.metrics.promql import Narrow, duration_text, make_narrow
from kvmedic.metrics.readings import PREFIX_LENGTH, RANDOM_LENGTH
from kvmedic.metrics.scrape import Scraper
from kvmedic.metrics.series import Answer, PodKey, Reply, Unanswered
from kvmedic.metrics.source import PrometheusSource
from kvmedic.model.engine import Version
from kvmedic.model.evidence import Reading
from kvmedic.settings import ScrapeOptions, SourceOptions

FIRST, MOST = 12, 720
"""Moments that one query covers: at first, and at most. A replica's series of 720 values takes 20 kB; of a
histogram, which trouble alone asks for, 12 moments of 10 replicas take some 100 kB."""
SHRINK = 4
"""By which a stretch is cut that a source refuses as too much."""
APART = timedelta(minutes=5)
"""Between two moments at which it is asked who was there; the lookback of an instant selector."""
DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Life:
    """From when to when a source had samples of a replica's engine; in between it may have been silent."""

    first: datetime
    last: datetime


@dataclass
class ReadAhead:
    """Asks a source about a moment and those that follow it, `step` apart and up to `last`."""

    client: PrometheusClient
    narrow: Narrow
    now: datetime
    last: datetime
    step: timedelta
    is_narrowed: bool = True
    _known: dict[str, dict[datetime, Reply]] = field(default_factory=dict)
    _apart: dict[tuple[str, datetime], Reply] = field(default_factory=dict)

    async def query(self, expression: str, at: datetime) -> Reply:
        """Return the answer at a moment, of others than `now` by itself.

        A stretch that is refused is asked for in ever smaller parts.
        """
        if at != self.now:
            if (expression, at) not in self._apart:
                [self._apart[expression, at]] = await self.query_range(expression, [at])
            return self._apart[expression, at]
        known = self._known.get(expression, {})
        if at in known:
            return known[at]
        newest = max(known, default=None)
        goes_on = newest is not None and timedelta(0) < at - newest <= self.step
        length = min(MOST, 2 * len(known)) if goes_on else FIRST
        while True:
            moments = self._moments(at, max(1, length))
            replies = await self.query_range(expression, moments)
            if length <= 1 or not all(isinstance(each, Unanswered) for each in replies):
                break
            length //= SHRINK
        self._known[expression] = dict(zip(moments, replies, strict=True))
        return replies[0]

    async def query_range(self, expression: str, moments: Sequence[datetime]) -> Sequence[Reply]:
        """Return the answers at given moments."""
        return await self.client.query_range(self.narrow(expression), moments)

    def close(self) -> None:
        """End nothing: the client is another's."""

    def _moments(self, at: datetime, count: int) -> list[datetime]:
        ahead = [at + self.step * number for number in range(count)]
        return [each for each in ahead if each <= self.last] or [at]


class History:
    """What a source reports about the replicas of one Deployment up to a moment."""

    def __init__(
        self, name: str, options: SourceOptions, scrape: ScrapeOptions, table: SignalTable, target: PodKey
    ) -> None:
        """Prepare to ask.

        Args:
            name: of the source.
            options: of the source.
            scrape: how a replica is asked for its version.
            table: what its engines export.
            target: namespace and name of the Deployment.
        """
        self._name, self._options, self._table, self._target = name, options, table, target
        self._client = PrometheusClient(options)
        self._source = PrometheusSource(name, self._client, options, table)
        self._narrow = make_narrow(_matchers(options, target), names_of(table))
        now = datetime.now(UTC)
        self._ahead = ReadAhead(self._client, self._narrow, now, now, APART)
        self._scraper = Scraper(scrape, table)
        self._versions: dict[str, Reading[Version]] = {}
        self.silent = 0
        """Looks one after the other that the source left without an answer, the last one not counted."""

    @property
    def spent(self) -> Spent:
        """Return what the source was asked so far."""
        return self._client.spent

    @property
    def trouble(self) -> str:
        """Return what was wrong with the source at the last look."""
        return self._source.trouble

    async def lives(self, first: datetime, last: datetime) -> Mapping[str, Life] | Unanswered:
        """Return which pods of the target's name had engines, and when, by pod name.

        Unanswered: the source does not answer, so nothing can be said of the past.
        """
        seen = f"timestamp({self._table.presence})"
        grid = f"[{duration_text(APART)}:{duration_text(self._options.resolution)}]"
        found: dict[str, Life] = {}
        while first <= last:
            count = -(-min(DAY, last - first) // APART) + 1
            moments = [first + APART * number for number in range(count)]
            for fold in ("min", "max"):
                text = self._narrow(f"{fold}_over_time({seen}{grid})")
                for reply in await self._client.query_range(text, moments):
                    if isinstance(reply, Unanswered):
                        return reply
                    _add_lives(found, reply, self._target)
            first = moments[-1] + APART
        return found

    def at(self, moment: datetime, step: timedelta, last: datetime) -> FleetMetrics:
        """Return what the source reports about a moment; the next will be `step` later, up to `last`."""
        self.silent = self.silent + 1 if self._source.trouble else 0
        self._ahead.now, self._ahead.step, self._ahead.last = moment, step, last
        trouble = self._source.trouble
        self._source = self._source.as_of(moment, self._ahead)
        self._source.trouble = trouble
        return FleetMetrics({self._name: self._source}, self._scraper, self._versions)

    async def close(self) -> None:
        """End all that is under way."""
        self._client.close()
        await self._scraper.close()


def is_named_after(deployment: str, pod: str) -> bool:
    """Return whether a pod's name is one that a ReplicaSet of a Deployment of this name gives.

    A ReplicaSet is named after the Deployment and a hash without vowels (Kubernetes 1.36, SafeEncodeString).
    Where the API server cuts the name, what is left of the Deployment's has to do.
    """
    kept = f"{deployment}-"[:PREFIX_LENGTH]
    if len(kept) + HASH_LENGTH > PREFIX_LENGTH:
        return pod.startswith(kept)
    made = rf"{re.escape(kept)}[bcdfghjklmnpqrstvwxz2-9]{{1,{HASH_LENGTH}}}-[a-z0-9]{{{RANDOM_LENGTH}}}"
    return re.fullmatch(made, pod) is not None


HASH_LENGTH = 10
"""Characters of a pod template's hash, at most: those of a 32-bit number."""


def _matchers(options: SourceOptions, target: PodKey) -> tuple[str, str]:
    """Return what selects the target's series; names have nothing but letters, digits, - and dots."""
    prefix = f"{target.name}-"[:PREFIX_LENGTH].replace(".", "[.]")
    return f'{options.labels.namespace}="{target.namespace}"', f'{options.labels.pod}=~"{prefix}.*"'


def _add_lives(found: dict[str, Life], answer: Answer, target: PodKey) -> None:
    """Widen the lives of the target's pods by the times of samples in an answer."""
    for pod, series in answer.by_pod.items():
        times = [datetime.fromtimestamp(one.value, UTC) for one in series if isfinite(one.value)]
        if pod.namespace == target.namespace and is_named_after(target.name, pod.name) and times:
            known = found.get(pod.name, Life(min(times), max(times)))
            found[pod.name] = Life(min(known.first, *times), max(known.last, *times))
