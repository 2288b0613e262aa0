"""Who is asked about at one moment: everybody by one query, or those alone who are looked at closely.

All looks within a source's reuse time share a moment. A close look names its replicas in the queries; those
who look closely at about the same time share a batch, and so their queries. However many fleets are in
trouble at once, a batch costs as many queries as one of them, and the source reads no other series.

What one tenant's pages say may make an answer too large or too slow for all of a batch. Then its halves are
asked about, down to the replicas of one look; those that it was are asked about apart from then on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import Enum
from functools import cached_property
from itertools import count
from typing import Any, NamedTuple, TypeAlias, TypeVar
from weakref import WeakSet

from kvmedic.metrics.promql import Narrow, devices_among, make_narrow
from kvmedic.metrics.series import NOTHING, Answer, Excess, PodKey, Reply, Unanswered
from kvmedic.settings import Labels

GATHERED_SECONDS = 0.1
"""How long a batch waits for others. A choice: a look takes about as long to read the API, so that those who
begin together meet here; nobody notices it in a look of every 10 seconds or more."""
MOST_GATHERED_SECONDS = 0.5
"""How long a batch waits where the source has as many queries as it gets at a time: its own would wait for
them, so others may join it. A choice: so much later is an open run's look while many are in trouble."""
MOST_CHARACTERS = 4000
"""Of the names in one selector: some 100 replicas. The longest query has 45 selectors: its text stays under
400 kB, which proxies take as a form (nginx: 1 MB), and the answer under the usual `responseLimitMib`."""
QUICK_LOOK_SECONDS = 3.0
"""How long a moment keeps a batch of quick looks: so long that one look's questions find it again. Its
answers are hundreds of series, and a fleet's next look is another moment's: 1,000 fleets took 13 MB less."""

T = TypeVar("T")
Shared: TypeAlias = dict[object, asyncio.Task[Any]]
"""What some work comes to, or is about to, by what it is known by."""
Ask: TypeAlias = Callable[[str, datetime], Awaitable[Reply]]


class Closeness(Enum):
    """Why replicas are asked about by name. Those of one kind do not share the queries of the other: a quick
    look asks for little of many, a whole look for much of few."""

    QUICK = "quick"
    WHOLE = "whole"


KEPT_APART = timedelta(minutes=10)
"""How long replicas are asked about apart after an answer about them was too much. A choice: what they cost
others once in that time is a few queries."""
MOST_SLOW = 8
"""Parts that are kept apart because they are slow. Twice the queries that a source gets at the same time:
where there are more, the source is slow, and asking it more often helps nobody."""


@dataclass
class Outliers:
    """Replicas about which an answer was too large or too slow of late."""

    _known: dict[PodKey, tuple[int, Excess, datetime]] = field(default_factory=dict)
    """By which number they are asked about together, why, and until when."""
    _numbers: Iterator[int] = field(default_factory=lambda: count(1))

    def number_of(self, pods: Iterable[PodKey], at: datetime) -> int:
        """Return by which number replicas are kept apart from those of any other; 0: they are not."""
        known = (self._known[pod] for pod in pods if pod in self._known)
        return max((number for number, _, until in known if at < until), default=0)

    def keep_apart(self, pods: Set[PodKey], excess: Excess, at: datetime) -> None:
        """Have replicas asked about apart from all others for a while."""
        self._known = {pod: entry for pod, entry in self._known.items() if at < entry[-1]}
        others = (entry for pod, entry in self._known.items() if pod not in pods)
        slow = {number for number, why, _ in others if why is Excess.TIME}
        if excess is Excess.SIZE or len(slow) < MOST_SLOW:
            self._known |= dict.fromkeys(pods, (next(self._numbers), excess, at + KEPT_APART))


@dataclass
class Moment:
    """What a source answered about one moment, shared by all who ask."""

    at: datetime
    ask: Ask
    labels: Labels
    engine_names: frozenset[str]
    gathered_seconds: float = GATHERED_SECONDS
    is_narrowed: bool = False
    """The caller has narrowed the queries already: none names replicas."""
    outliers: Outliers = field(default_factory=Outliers)
    at_once: int = 4
    """Queries that the source gets at a time; more wait."""
    _under_way: int = 0
    _shared: Shared = field(default_factory=dict)
    _begun: WeakSet[asyncio.Task[Any]] = field(default_factory=WeakSet)
    _batches: dict[tuple[Closeness, int], list[Batch]] = field(default_factory=dict)

    async def reply(self, text: str) -> Reply:
        """Return the answer to a query about everybody; the first to ask sends it, all others wait for it."""
        return await self.once(text, lambda: self.send(text))

    async def once(
        self, key: object, work: Callable[[], Coroutine[Any, Any, T]], shared: Shared | None = None
    ) -> T:
        """Return what some work comes to, done once in this moment, or while what shares it is kept."""
        shared = self._shared if shared is None else shared
        task: asyncio.Task[T] | None = shared.get(key)
        if task is None:
            task = shared[key] = asyncio.create_task(work())
            self._begun.add(task)
        # One who stops waiting does not take the answer from the others.
        return await asyncio.shield(task)

    async def batch_of(self, pods: Sequence[PodKey], closeness: Closeness) -> Batch:
        """Return the batch in which some replicas are asked about, as soon as it is closed to others."""
        asked_for, number = frozenset(pods), self.outliers.number_of(pods, self.at)
        known = self._batches.setdefault((closeness, number), [])
        found = next((each for each in known if asked_for <= each.pods or each.takes(asked_for)), None)
        if found is None:
            found = Batch(self, is_apart=number > 0)
            known.append(found)
            if closeness is Closeness.QUICK:
                asyncio.get_running_loop().call_later(QUICK_LOOK_SECONDS, known.remove, found)
        if not found.is_closed:
            found.pods |= asked_for
            found.looks[asked_for] = None
            await self.once("closed", found.close_in_time, found.answers)
        return found

    def is_busy(self) -> bool:
        """Return whether one more query would wait for others to be answered."""
        return self._under_way >= self.at_once

    def cancel(self) -> None:
        """End all that is under way."""
        for task in self._begun:
            task.cancel()

    async def send(self, text: str) -> Reply:
        """Return the answer to a query, which is sent no matter who else asks for it."""
        self._under_way += 1
        try:
            return await self.ask(text, self.at)
        finally:
            self._under_way -= 1


@dataclass(eq=False)
class _Part:
    """Replicas of some looks, which one query is about; or two halves, once an answer was too much."""

    looks: Sequence[frozenset[PodKey]]
    may_wait: bool = True
    """False: others have waited for half of an answer that did not come; the rest is for the next moment."""
    halves: Sequence[_Part] = ()

    @cached_property
    def pods(self) -> frozenset[PodKey]:
        """All replicas."""
        return frozenset[PodKey]().union(*self.looks)

    def divide(self, excess: Excess) -> bool:
        """Divide it where nobody has, and return whether it is divided."""
        is_slow = excess is Excess.TIME
        if not self.halves and len(self.looks) > 1 and (self.may_wait or not is_slow):
            middle = len(self.looks) // 2
            halves = self.looks[:middle], self.looks[middle:]
            self.halves = [_Part(half, may_wait=self.may_wait and not is_slow) for half in halves]
        return bool(self.halves)


class _Query(NamedTuple):
    """A query about replicas of a batch."""

    text: str
    text_for: Callable[[Set[PodKey]], str]
    """Writes it for some of them."""
    about: str = "engines"


@dataclass(eq=False)
class Batch:
    """Replicas that are asked about together."""

    moment: Moment
    pods: set[PodKey] = field(default_factory=set)
    is_closed: bool = False
    is_apart: bool = False
    """An answer about them was too much of late."""
    looks: dict[frozenset[PodKey], None] = field(default_factory=dict)
    """The replicas of each who asks."""
    answers: Shared = field(default_factory=dict)
    """What was answered about it: kept as long as the batch is."""
    crowded: set[PodKey] = field(default_factory=set)
    """Those about whom nothing more is asked, so that what is not reported of them means nothing."""
    _whole: _Part | None = None
    _turns: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))
    _too_slow: Unanswered | None = None

    def takes(self, pods: Set[PodKey]) -> bool:
        """Return whether others may still join."""
        return not self.is_closed and characters(self.pods | pods) <= MOST_CHARACTERS

    async def close_in_time(self) -> None:
        """Wait for others, and let no one join any more."""
        pause = 0.0 if self.moment.is_narrowed else self.moment.gathered_seconds
        await asyncio.sleep(pause)
        waited = pause
        while pause and self.moment.is_busy() and waited < MOST_GATHERED_SECONDS:
            await asyncio.sleep(pause)
            waited += pause
        self.is_closed = True

    def leave_out(self, crowded: Set[PodKey]) -> None:
        """Ask nothing more about some replicas, and keep those whose looks they are in apart from now on."""
        for look in self.looks if crowded - self.crowded else ():
            if not look.isdisjoint(crowded):
                self.moment.outliers.keep_apart(look, Excess.SIZE, self.moment.at)
        self.crowded |= crowded

    async def reply(self, text: str, pods: Collection[PodKey] = ()) -> Reply:
        """Return the answer to a query about the engines of the batch.

        Args:
            text: the query.
            pods: those of the batch about whom the answer has to be complete; none: all of them.
        """
        labels, names = self.moment.labels, self.moment.engine_names
        query = _Query(text, lambda asked: make_pod_narrow(asked, labels, names)(text))
        return await self._reply(query, pods)

    async def reply_on_devices(self, text: str, pods: Collection[PodKey] = ()) -> Reply:
        """Return the answer to a query about devices, as far as it is about the batch."""

        def narrow(asked: Set[PodKey]) -> str:
            namespaces, names = (pattern(names) for names in zip(*asked, strict=True))
            return devices_among(text, self.moment.labels, namespaces, names)

        return await self._reply(_Query(text, narrow, "devices"), pods)

    async def _reply(self, query: _Query, pods: Collection[PodKey]) -> Reply:
        if self.moment.is_narrowed:
            return await self.moment.reply(query.text)
        self._whole = self._whole or _Part(tuple(self.looks))
        return await self._ask_part(self._whole, pods or self.pods, query)

    async def _ask_part(self, part: _Part, asked_for: Collection[PodKey], query: _Query) -> Reply:
        """Return the answer about the asked pods of a part, from its halves where it is divided."""
        if not part.halves:
            reply = await self._ask_undivided(part, query)
            if not isinstance(reply, Unanswered) or reply.excess is None:
                return reply
            if not part.divide(reply.excess):
                self.moment.outliers.keep_apart(part.pods, reply.excess, self.moment.at)
                return replace(reply, is_apart=self.is_apart or part is not self._whole)
        halves = [half for half in part.halves if not half.pods.isdisjoint(asked_for)]
        return join_replies(
            await asyncio.gather(*(self._ask_part(half, asked_for, query) for half in halves))
        )

    async def _ask_undivided(self, part: _Part, query: _Query) -> Reply:
        asked = part.pods - self.crowded if self.crowded else part.pods
        if not asked:
            return NOTHING
        if not self.is_apart:
            return await self._send_once(part, asked, query)
        # They take one of the source's turns, and no more of its time than one query's.
        async with self._turns:
            if self._too_slow is not None:
                return self._too_slow
            reply = await self._send_once(part, asked, query)
        if isinstance(reply, Unanswered) and reply.excess is Excess.TIME:
            self._too_slow = reply
        return reply

    async def _send_once(self, part: _Part, asked: Set[PodKey], query: _Query) -> Reply:
        # What is sent names a hundred replicas: it is neither written for each who asks nor kept.
        key = (id(part), len(asked), query.about, query.text)
        return await self.moment.once(key, lambda: self.moment.send(query.text_for(asked)), self.answers)


def join_replies(replies: Iterable[Reply]) -> Reply:
    """Return what parts of an answer come to; nothing where one of them is missing."""
    joined = Answer({})
    for reply in replies:
        if isinstance(reply, Unanswered):
            return reply
        joined = Answer({**joined.by_pod, **reply.by_pod}, joined.unlabelled + reply.unlabelled)
    return joined


def make_pod_narrow(pods: Iterable[PodKey], labels: Labels, engine_names: Iterable[str]) -> Narrow:
    """Return what makes queries select the series of some replicas alone.

    Of replicas in several namespaces those of the same names in each of these namespaces come too.
    """
    namespaces, names = zip(*pods, strict=True)
    matchers = f'{labels.namespace}=~"{pattern(namespaces)}"', f'{labels.pod}=~"{pattern(names)}"'
    return make_narrow(matchers, engine_names)


def pattern(names: Iterable[str]) -> str:
    """Return a regular expression that matches some names, of nothing but letters, digits, - and dots."""
    return "|".join(sorted({name.replace(".", "[.]") for name in names}))


def characters(pods: Iterable[PodKey]) -> int:
    """Return how many characters the names of some replicas take in a selector, at most."""
    return sum(len(pod.namespace) + len(pod.name) + 2 for pod in pods)


def parts_of(pods: Sequence[PodKey]) -> Iterator[Sequence[PodKey]]:
    """Yield replicas in parts each of which fits a batch."""
    begin, taken = 0, 0
    for at, pod in enumerate(pods):
        taken += characters([pod])
        if taken > MOST_CHARACTERS and at > begin:
            yield pods[begin:at]
            begin, taken = at, characters([pod])
    if pods[begin:]:
        yield pods[begin:]
