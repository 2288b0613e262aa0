"""Who is asked about at one moment: everybody by one query, or those alone who are looked at closely.

All looks within a source's reuse time share a moment. A close look names its replicas in the queries; those
who look closely at about the same time share a batch, and so their queries. However many fleets are in
trouble at once, a batch costs as many queries as one of them, and the source reads no other series.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Any, TypeAlias, TypeVar

from kvmedic.metrics.promql import Narrow, devices_among, narrowed_by
from kvmedic.metrics.series import PodKey, Reply
from kvmedic.settings import Labels

GATHERED_SECONDS = 0.1
"""How long a batch waits for others. A choice: a look takes about as long to read the API, so that those who
begin together meet here; nobody notices it in a look of every 10 seconds or more."""
MOST_CHARACTERS = 4000
"""Of the names in one selector: some 100 replicas. The longest query has 45 selectors: its text stays under
400 kB, which proxies take as a form (nginx: 1 MB), and the answer under the usual `responseLimitMib`."""

T = TypeVar("T")
Ask: TypeAlias = Callable[[str, datetime], Awaitable[Reply]]


class Closeness(Enum):
    """Why replicas are asked about by name. Those of one kind do not share the queries of the other: a glance
    asks for little of many, a whole look for much of few."""

    GLANCE = "glance"
    WHOLE = "whole"


@dataclass
class Moment:
    """What a source answered about one moment, shared by all who ask."""

    at: datetime
    ask: Ask
    labels: Labels
    engine_names: frozenset[str]
    gathered_seconds: float = GATHERED_SECONDS
    is_narrowed: bool = False
    """Whoever asks has narrowed the queries already: none names replicas."""
    _shared: dict[str, asyncio.Task[Any]] = field(default_factory=dict)
    _batches: dict[Closeness, list[Batch]] = field(default_factory=dict)

    async def reply(self, text: str) -> Reply:
        """Return the answer to a query about everybody; the first to ask sends it, all others wait for it."""
        return await self.once(text, lambda: self._send(text))

    async def once(self, key: str, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return what some work comes to, which is done once in this moment."""
        task: asyncio.Task[T] | None = self._shared.get(key)
        if task is None:
            task = self._shared[key] = asyncio.create_task(work())
        # One who stops waiting does not take the answer from the others.
        return await asyncio.shield(task)

    async def batch_of(self, pods: Sequence[PodKey], closeness: Closeness) -> Batch:
        """Return the batch in which some replicas are asked about, as soon as it is closed to others."""
        wanted, known = set(pods), self._batches.setdefault(closeness, [])
        found = next((each for each in known if wanted <= each.pods or each.takes(wanted)), None)
        if found is None:
            found = Batch(self)
            known.append(found)
        if not found.is_closed:
            found.pods |= wanted
            await self.once(f"batch {id(found)}", found.close_in_time)
        return found

    def cancel(self) -> None:
        """End all that is under way."""
        for task in self._shared.values():
            task.cancel()

    async def _send(self, text: str) -> Reply:
        return await self.ask(text, self.at)


@dataclass(eq=False)
class Batch:
    """Replicas that are asked about together."""

    moment: Moment
    pods: set[PodKey] = field(default_factory=set)
    is_closed: bool = False

    def takes(self, pods: Set[PodKey]) -> bool:
        """Return whether others may still join."""
        return not self.is_closed and characters(self.pods | pods) <= MOST_CHARACTERS

    async def close_in_time(self) -> None:
        """Wait for others, and let no one join any more."""
        await asyncio.sleep(0 if self.moment.is_narrowed else self.moment.gathered_seconds)
        self.is_closed = True

    async def reply(self, text: str) -> Reply:
        """Return the answer to a query about the engines of the batch."""
        if self.moment.is_narrowed:
            return await self.moment.reply(text)
        return await self.moment.reply(
            narrowed_to(self.pods, self.moment.labels, self.moment.engine_names)(text)
        )

    async def reply_on_devices(self, text: str) -> Reply:
        """Return the answer to a query about devices, as far as it is about the batch."""
        if self.moment.is_narrowed:
            return await self.moment.reply(text)
        namespaces, names = (pattern(names) for names in zip(*self.pods, strict=True))
        return await self.moment.reply(devices_among(text, self.moment.labels, namespaces, names))


def narrowed_to(pods: Iterable[PodKey], labels: Labels, engine_names: Iterable[str]) -> Narrow:
    """Return what makes queries select the series of some replicas alone.

    Of replicas in several namespaces those of the same names in each of these namespaces come too.
    """
    namespaces, names = zip(*pods, strict=True)
    matchers = f'{labels.namespace}=~"{pattern(namespaces)}"', f'{labels.pod}=~"{pattern(names)}"'
    return narrowed_by(matchers, engine_names)


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
