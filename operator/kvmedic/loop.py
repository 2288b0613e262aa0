"""The one reconcile loop: which resource is looked at next, and when; the back-off; what is listed anew.

Resources are keyed by uid, so one that was deleted and made again is another. A key is never worked on
twice at once; a wake-up during its tick makes one more tick follow. The loop holds nothing that matters:
after a restart every known key is simply due.

Every resource is listed now and then, whatever the watches told, and lost pods are looked for. A watch that
goes on from a version which an etcd restored from a snapshot has not reached yet is answered with 200 and
silence (Kubernetes 1.36). kopf goes on from its last version after each time-out, and lists anew after 410
alone (1.45.2). A resource that was made meanwhile would never be seen, and one that is gone never
forgotten.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Sequence, Set
from dataclasses import dataclass, field
from datetime import timedelta

from kvmedic.controller.obstacles import Roster
from kvmedic.controller.orphans import StandIns, free_unclaimed
from kvmedic.controller.ports import Ports
from kvmedic.kube.errors import ApiError
from kvmedic.model.status import Key
from kvmedic.rollout.gates import Peer

JITTER_RATIO = 0.1
"""Share by which a delay is stretched at random, so that resources woken together drift apart."""


Tick = Callable[[Key], Awaitable[float | None]]
"""Look at one resource once. Returns seconds until the next look, or None when it is gone."""


@dataclass(slots=True)
class Backoff:
    """How long a resource waits after a look that failed: twice as long with every failure in a row."""

    first: timedelta
    most: timedelta
    _failures: dict[Key, int] = field(default_factory=dict)

    def delay_after_failure(self, key: Key, *, at_once: bool = False) -> timedelta:
        """Return how long to wait after one more failure; `at_once`: not at all after the first one."""
        count = self._failures[key] = self._failures.get(key, 0) + 1
        if at_once and count == 1:
            return timedelta(0)
        return min(self.most, self.first * (1 << min(count - 1, 16)))

    def forget(self, key: Key) -> None:
        """Begin anew, after a look that succeeded."""
        self._failures.pop(key, None)


@dataclass(slots=True)
class _Entry:
    due: float
    working: bool = False
    woken: bool = False


@dataclass(slots=True)
class Loop:
    """The queue of resources with its pace.

    `workers` bounds how many resources are worked on at once.
    """

    tick: Tick
    workers: int
    _entries: dict[Key, _Entry] = field(default_factory=dict)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def wake(self, key: Key, delay_seconds: float = 0.0) -> None:
        """Make a resource due, at the latest after the delay."""
        due = _now() + delay_seconds
        entry = self._entries.setdefault(key, _Entry(due))
        entry.due = min(entry.due, due)
        entry.woken = entry.woken or entry.working
        self._changed.set()

    def forget(self, key: Key) -> None:
        """Drop a resource that no longer exists; a tick under way ends by itself."""
        self._entries.pop(key, None)

    def keys(self) -> tuple[Key, ...]:
        """Return every known resource."""
        return tuple(self._entries)

    async def run(self) -> None:
        """Work until cancelled; ticks under way are then cancelled too and awaited."""
        try:
            while True:
                self._changed.clear()
                self._start_due()
                await self._sleep_until_due()
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _start_due(self) -> None:
        now = _now()
        waiting = sorted((e.due, i, k) for i, (k, e) in enumerate(self._entries.items()) if not e.working)
        for due, _, key in waiting:
            if due > now or len(self._tasks) >= self.workers:
                return
            self._entries[key].working = True
            task = asyncio.create_task(self._work(key), name=f"tick {key.namespace}/{key.name}")
            self._tasks.add(task)
            task.add_done_callback(self._drop_task)

    def _drop_task(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._changed.set()

    async def _work(self, key: Key) -> None:
        delay = await self.tick(key)
        entry = self._entries.get(key)
        if entry is None:
            return
        if delay is None:
            self.forget(key)
            return
        entry.working = False
        stretched = delay * (1 + random.uniform(0, JITTER_RATIO))  # noqa: S311 - spreads load, hides nothing
        entry.due = _now() if entry.woken else _now() + stretched
        entry.woken = False

    async def _sleep_until_due(self) -> None:
        dues = [e.due for e in self._entries.values() if not e.working]
        busy = len(self._tasks) >= self.workers
        timeout = None if busy or not dues else max(0.0, min(dues) - _now())
        try:
            await asyncio.wait_for(self._changed.wait(), timeout)
        except TimeoutError:
            return


def _now() -> float:
    return asyncio.get_running_loop().time()


LOG = logging.getLogger("kvmedic")


@dataclass(frozen=True, slots=True)
class Rounds:
    """The rounds of one process."""

    ports: Ports
    loop: Loop
    roster: Roster
    forget: Callable[[str], None]
    census: Callable[[], Awaitable[Sequence[Peer]]]
    """Lists every resource as it is stored."""
    namespaces: tuple[str, ...]
    """Namespaces that are watched; empty: all."""
    stand_ins: StandIns

    async def run(self) -> None:
        """Make a round at the pace of resources without a run, until cancelled."""
        while True:
            try:
                await self.once()
            except ApiError as error:
                LOG.warning("reason=RoundFailed error=%s", error)
            await asyncio.sleep(self.ports.pace.idle.total_seconds())

    async def once(self) -> None:
        """Look once at every resource, at the pods that are out of rotation, and at fleets that stand frozen.

        Pods first: the resource whose run cordoned one of them is then among those that are listed.
        """
        # The loop forgets a resource whose look finds nothing; the roster still has it then.
        known = {*self.loop.keys(), *self.roster.keys()} - {*self.stand_ins.keys()}
        frozen = self.stand_ins.frozen()
        leads = self.ports.leader.is_held()
        places = self.namespaces or ("",)
        pods = (
            [pod for each in places for pod in await self.ports.target.left_cordoned(each)] if leads else []
        )
        peers = await self.census()
        self._know(known, peers)
        if self.ports.leader.is_held():
            for key in self.stand_ins.appoint(frozen, peers):
                self.loop.wake(key)
            await free_unclaimed(self.ports.target, pods, (*peers, *self.stand_ins.peers()))

    def _know(self, known: Set[Key], peers: Sequence[Peer]) -> None:
        """Have the loop and the roster know the resources that there are.

        Only one that was known before the list was asked for, and is not in it, is gone.
        """
        found = {Key(peer.namespace, peer.name, peer.uid): peer for peer in peers}
        for key in known:
            if key not in found:
                self.loop.forget(key)
                self.roster.forget(key)
                self.forget(key.uid)
        looked_at = self.loop.keys()
        for key, peer in found.items():
            self.roster.note(key, peer)
            if key not in looked_at:
                self.loop.wake(key)
