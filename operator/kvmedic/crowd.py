"""Whether one run more may be open, beside those of all other resources.

Only the leader opens runs, and it opens one at a time: under one lock it lists every resource as it is
stored, judges, and saves the run. So of two that want the last place one gets it, and the next process
finds the same by the same list. The roster, fed by the watch, only spares the list where there is no
place anyway.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from kvmedic.core.crowd import Breaker, Budgets, Peer, Trip, any_trip, crowding, stormy, trip
from kvmedic.core.gates import Blocked
from kvmedic.roster import Roster


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
        return await self._judged(self.roster.peers(), uid, now)

    @asynccontextmanager
    async def place(self, uid: str, now: datetime) -> AsyncIterator[Blocked | None]:
        """Give the turn to open a run; nobody else has it until the context ends.

        Yields what speaks against it after all, by every resource as it is stored.
        """
        async with self._turn:
            told = await self.hint(uid, now)
            yield told or await self._judged(await self.census(), uid, now)

    async def confirmed(self, uid: str, now: datetime) -> Blocked | None:
        """Return what speaks against beginning a run that was opened, by every resource as it is stored.

        Two processes may open runs within one breath, when what one of them sent before it lost the
        leadership arrives late: then one of the two has no place.
        """
        return await self._judged(await self.census(), uid, now)

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

    async def _judged(self, peers: Sequence[Peer], uid: str, now: datetime) -> Blocked | None:
        namespace = next((peer.namespace for peer in peers if peer.uid == uid), "")
        found = await self._trip(peers, namespace, now)
        if found is not None:
            return stormy(found, self.bounds.over)
        return crowding(self.bounds.budgets, peers, uid)

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
