"""Whether one run more may be open, beside those of all other resources.

Only the leader opens runs, and it opens one at a time: under one lock it lists every resource as it is
stored, judges, and saves the run. So of two that want the last place one gets it, and the next process
finds the same by the same list. The roster, fed by the watch, only spares the list where there is no
place anyway.

Which resources there are, as the watch tells: a hint, never the lock.

Two resources on one target would take turns on it. The claim on the target keeps them from acting at
once; this keeps the younger one from acting at all, and lets it say why. It also tells how many runs
are open, so that most of those that have to wait for one another need not ask the API server.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from kvmedic.model.evidence import Blocked
from kvmedic.model.status import Key
from kvmedic.rollout.gates import Breaker, Budgets, Peer, Trip, any_trip, find_full_budget, stormy, trip


@dataclass(frozen=True, slots=True)
class Entry:
    """One resource."""

    peer: Peer
    created_at: str
    """`metadata.creationTimestamp`: RFC 3339 in UTC, so its text sorts by time."""

    @property
    def target(self) -> str:
        """Return the name of its target, in its own namespace."""
        return self.peer.target


@dataclass(slots=True)
class Roster:
    """The resources that are known."""

    _entries: dict[Key, Entry] = field(default_factory=dict)

    def note(self, key: Key, entry: Entry) -> None:
        """Remember a resource as it is now."""
        self._entries[key] = entry

    def forget(self, key: Key) -> None:
        """Drop a resource that no longer exists."""
        self._entries.pop(key, None)

    def keys(self) -> tuple[Key, ...]:
        """Return which resources are known."""
        return tuple(self._entries)

    def elder(self, key: Key) -> Key | None:
        """Return the oldest resource of the same target, if that is another one."""
        own = self._entries.get(key)
        if own is None:
            return None
        peers = [
            k for k, e in self._entries.items() if (k.namespace, e.target) == (key.namespace, own.target)
        ]
        eldest = min(peers, key=lambda k: (self._entries[k].created_at, k.uid))
        return None if eldest == key else eldest

    def peers(self) -> tuple[Peer, ...]:
        """Return every known resource as the others see it."""
        # A copy: the operator's own metrics are served by a thread of their own.
        return tuple(entry.peer for entry in list(self._entries.values()))


@dataclass(frozen=True, slots=True)
class Bounds:
    """What the operator's configuration says about all resources together."""

    budgets: Budgets
    breaker: Breaker
    over: str
    """What an administrator types when a storm is over."""
    reread: timedelta
    """How long the administrator's last word counts before it is read again."""


@dataclass(slots=True)
class Crowd:
    """All resources of this operator."""

    bounds: Bounds
    roster: Roster
    census: Callable[[], Awaitable[Sequence[Peer]]]
    """Lists every resource as it is stored."""
    storm_over_at: Callable[[], Awaitable[datetime | None]]
    """Reads when an administrator last said that a storm is over."""
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    _over_at: datetime | None = None
    _read_at: datetime | None = None
    _heeded_at: datetime | None = None

    async def hint(self, uid: str, now: datetime) -> Blocked | None:
        """Return what speaks against opening a run, as far as the watch has told."""
        return await self._judge_limits(self.roster.peers(), uid, now)

    @asynccontextmanager
    async def place(self, uid: str, now: datetime) -> AsyncIterator[Blocked | None]:
        """Give the turn to open a run; nobody else has it until the context ends.

        Yields what speaks against it after all, by every resource as it is stored.
        """
        async with self._turn:
            told = await self.hint(uid, now)
            yield told or await self._judge_limits(await self.census(), uid, now)

    async def confirmed(self, uid: str, now: datetime) -> Blocked | None:
        """Return what speaks against beginning a run that was opened, by every resource as it is stored.

        Two processes may open runs within one breath, when what one of them sent before it lost the
        leadership arrives late: then one of the two has no place.
        """
        return await self._judge_limits(await self.census(), uid, now)

    async def heed(self, now: datetime) -> None:
        """Read the administrator's word while the breaker has tripped, so that the metrics tell it.

        It is called on every look at any resource, and does something now and then.
        """
        if self._heeded_at is None or not timedelta(0) <= now - self._heeded_at < self.bounds.reread:
            self._heeded_at = now
            await self._read_word(any_trip(self.bounds.breaker, self.roster.peers(), None, now), now)

    def has_tripped(self, now: datetime) -> bool:
        """Return whether the breaker has tripped for some namespace, by the administrator's last word."""
        return any_trip(self.bounds.breaker, self.roster.peers(), self._over_at, now) is not None

    async def _judge_limits(self, peers: Sequence[Peer], uid: str, now: datetime) -> Blocked | None:
        namespace = next((peer.namespace for peer in peers if peer.uid == uid), "")
        found = await self._trip(peers, namespace, now)
        if found is not None:
            return stormy(found, self.bounds.over)
        return find_full_budget(self.bounds.budgets, peers, uid)

    async def _trip(self, peers: Sequence[Peer], namespace: str, now: datetime) -> Trip | None:
        """Return the trip that counts for a namespace; the administrator is only asked where there is one."""
        found = trip(self.bounds.breaker, peers, None, now, namespace)
        if found is None:
            return None
        await self._read_word(found, now)
        return trip(self.bounds.breaker, peers, self._over_at, now, namespace)

    async def _read_word(self, found: Trip | None, now: datetime) -> None:
        """Read when the administrator last said that a storm is over, where there is one, now and then."""
        if found is None:
            return
        if self._read_at is None or not timedelta(0) <= now - self._read_at < self.bounds.reread:
            self._over_at, self._read_at = await self.storm_over_at(), now
