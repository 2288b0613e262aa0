"""The one reconcile loop: which resource is looked at next, and when; what is listed anew.

Resources are keyed by uid, so one that was deleted and made again is another. A key is never worked on
twice at once; a wake-up during its tick makes one more tick follow. The loop holds nothing that matters:
after a restart every known key is simply due.

Every resource is listed now and then, whatever watches reported, and lost pods are looked for. A watch that
goes on from a version which an etcd restored from a snapshot has not reached yet is answered with 200 and
silence (Kubernetes 1.36). kopf goes on from its last version after each time-out, and lists anew after 410
alone (1.45.2). A resource that was made meanwhile would never be seen, and one that is gone never
forgotten.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import math
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count

from kvmedic.controller.orphans import StandIns, free_unclaimed
from kvmedic.controller.ports import Ports
from kvmedic.kube.backoff import CHEAP_SECONDS, DEAR_SECONDS, RecentCpuCost, rest_after
from kvmedic.kube.clock import loop_seconds
from kvmedic.kube.cpu import Metered
from kvmedic.kube.errors import ApiError
from kvmedic.kube.objects import is_every_namespace_ours
from kvmedic.model.status import Key
from kvmedic.rollout.gates.one_resource_per_target import Roster
from kvmedic.rollout.gates.runs_at_once import Peer

LOG = logging.getLogger("kvmedic")
JITTER_RATIO = 0.05
"""Share by which a delay differs at random, so that resources woken together drift apart. With an open run it
is longer: nothing is over before its time. Without one it is shorter: none waits longer than the pace."""


Tick = Callable[[Key], Awaitable[float | None]]
"""Look at one resource once. Returns seconds until the next look, or None when it is gone."""


@dataclass(slots=True)
class _Entry:
    due: float
    looked_at: float
    """When the last look ended; at first, since when it waits for one."""
    working: bool = False
    woken: bool = False
    waiting: bool = False
    """It is due, and waits for a worker."""
    is_dear: bool = False
    """Its last look took much CPU."""
    rests_until: float = 0.0
    """Its last look was costly: before that nobody wakes it."""


PARKED_SECONDS = 0.5
"""Between two questions whether there is anything to do, while nothing is looked at."""


def _is_never(key: Key | None = None) -> bool:
    del key
    return False


@dataclass(slots=True)
class Loop:
    """The queue of resources with its pace.

    Of what is due, resources with an open run come first, then one of each namespace in turn: the owner of a
    thousand resources delays nobody else. A namespace whose looks take much CPU comes after all others, its
    dear looks come one after another, and a costly resource rests before its next look, unless it has an open
    run. `workers` bounds how many are worked on at once.
    """

    tick: Tick
    workers: int
    is_urgent: Callable[[Key], bool] = _is_never
    """Whether a resource has an open run."""
    is_parked: Callable[[], bool] = _is_never
    """Whether nothing is looked at now."""
    _entries: dict[Key, _Entry] = field(default_factory=dict)
    _timers: list[tuple[float, int, Key]] = field(default_factory=list)
    """A heap; what an entry no longer says is left in it until its time."""
    _urgent: deque[Key] = field(default_factory=deque)
    _waiting: dict[str, deque[Key]] = field(default_factory=dict)
    """What is due, by namespace, the next one's first."""
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _numbers: Iterator[int] = field(default_factory=count)
    _with_dear_look: set[str] = field(default_factory=set)
    """Namespaces of which a dear look is under way."""
    _cpu_cost: RecentCpuCost = field(default_factory=RecentCpuCost)
    _costly: RecentCpuCost = field(default_factory=RecentCpuCost)
    """Of single resources, beyond what is cheap."""
    cpu_clock: Callable[[], float] = time.thread_time

    def wake(self, key: Key, delay_seconds: float = 0.0) -> None:
        """Make a resource due, at the latest after the delay."""
        now = loop_seconds()
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = _Entry(math.inf, now)
        entry.woken = entry.woken or entry.working
        due = max(now + delay_seconds, 0.0 if self.is_urgent(key) else entry.rests_until)
        if due < entry.due:
            self._set_due(key, entry, due)
        self._changed.set()

    def forget(self, key: Key) -> None:
        """Drop a resource that no longer exists; a tick under way ends by itself."""
        self._entries.pop(key, None)
        self._costly.forget(key)

    def keys(self) -> tuple[Key, ...]:
        """Return every known resource."""
        return tuple(self._entries)

    def count_waiting(self) -> int:
        """Return how many resources are due and wait for a worker."""
        return sum(entry.waiting for entry in tuple(self._entries.values()))

    def oldest_look_seconds(self, now: float) -> float:
        """Return for how long the resource that waits longest was not looked at; `now`: the loop's clock."""
        return max((now - entry.looked_at for entry in tuple(self._entries.values())), default=0.0)

    async def run(self) -> None:
        """Work until cancelled; ticks under way are then cancelled too and awaited."""
        try:
            while True:
                self._changed.clear()
                parked = self.is_parked()
                if not parked:
                    self._start_due()
                await self._sleep_until_due(parked=parked)
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _set_due(self, key: Key, entry: _Entry, due: float) -> None:
        entry.due = due
        heapq.heappush(self._timers, (due, next(self._numbers), key))

    def _start_due(self) -> None:
        now = loop_seconds()
        while self._timers and self._timers[0][0] <= now:
            due, _, key = heapq.heappop(self._timers)
            entry = self._entries.get(key)
            if entry is not None and entry.due == due and not entry.working and not entry.waiting:
                entry.waiting = True
                if self.is_urgent(key):
                    self._urgent.append(key)
                else:
                    self._waiting.setdefault(key.namespace, deque()).append(key)
        while len(self._tasks) < self.workers and (next_one := self._next_waiting()) is not None:
            key, entry = next_one, self._entries[next_one]
            entry.waiting, entry.working, entry.due = False, True, math.inf
            task = asyncio.create_task(self._work(key), name=f"tick {key.namespace}/{key.name}")
            self._tasks.add(task)
            dear = key.namespace if entry.is_dear and not self.is_urgent(key) else None
            if dear is not None:
                self._with_dear_look.add(dear)
            task.add_done_callback(partial(self._drop_task, dear))

    def _next_waiting(self) -> Key | None:
        """Take the next one that is due out of the queues; None: nothing is that may begin now."""
        while self._urgent:
            key = self._urgent.popleft()
            if self._is_waiting(key):
                return key
        while (namespace := self._next_namespace()) is not None:
            keys = self._waiting.pop(namespace)
            key = keys.popleft()
            if keys:
                self._waiting[namespace] = keys
            if self._is_waiting(key):
                return key
        return None

    def _next_namespace(self) -> str | None:
        """Return whose turn it is. Of thousands the first is mostly as cheap as usual: none is cheaper."""
        now = loop_seconds()
        rank = partial(self._cpu_cost.rank, now=now)
        cheap = next((each for each in self._waiting if rank(each) == 0 and self._may_begin(each)), None)
        return cheap or min(filter(self._may_begin, self._waiting), key=rank, default=None)

    def _may_begin(self, namespace: str) -> bool:
        """Return whether a namespace's next look is cheap, or no dear one of it is under way."""
        entry = self._entries.get(self._waiting[namespace][0])
        return namespace not in self._with_dear_look or entry is None or not entry.is_dear

    def _is_waiting(self, key: Key) -> bool:
        entry = self._entries.get(key)
        return entry is not None and entry.waiting

    def _drop_task(self, dear: str | None, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if dear is not None:
            self._with_dear_look.discard(dear)
        self._changed.set()

    async def _work(self, key: Key) -> None:
        look = Metered(self.tick(key), self.cpu_clock)
        delay = await look
        now = loop_seconds()
        self._cpu_cost.add(key.namespace, look.seconds, now)
        entry = self._entries.get(key)
        if entry is None:
            return
        if delay is None:
            self.forget(key)
            return
        costly = self._costly.add(key, max(0.0, look.seconds - CHEAP_SECONDS), now)
        entry.working, entry.looked_at, entry.is_dear = False, now, look.seconds > DEAR_SECONDS
        most = JITTER_RATIO if self.is_urgent(key) else -JITTER_RATIO
        delay *= 1 + random.uniform(0, most)  # noqa: S311 - spreads load, hides nothing
        entry.rests_until = now + rest_after(costly)
        if entry.rests_until > now and not self.is_urgent(key):
            text = "resource=%s/%s reason=CostlyLook cpu_seconds=%.2f rests_seconds=%.0f"
            LOG.warning(text, key.namespace, key.name, look.seconds, entry.rests_until - now)
        rested = 0.0 if self.is_urgent(key) else entry.rests_until
        self._set_due(key, entry, max(rested, now if entry.woken else now + delay))
        entry.woken = False

    async def _sleep_until_due(self, *, parked: bool) -> None:
        busy = len(self._tasks) >= self.workers
        if parked:
            timeout: float | None = PARKED_SECONDS
        else:
            timeout = None if busy or not self._timers else max(0.0, self._timers[0][0] - loop_seconds())
        # `wait_for` loses a cancellation that comes with a wake-up (Python 3.11): the process would not end.
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._changed.wait()


RECOUNT = 10
"""Rounds after which all resources are listed in any case: 5 minutes at the usual pace, as long as the watch
may go on in silence before the server ends it."""


@dataclass(slots=True)
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
    holds: Callable[[str], bool] = is_every_namespace_ours
    """Whether the pods of a namespace are ours."""
    number: int = 0
    """Rounds that were begun."""

    async def run(self) -> None:
        """Make a round at the pace of resources without a run, until cancelled."""
        while True:
            try:
                await self.make_round()
            except ApiError as error:
                LOG.warning("reason=RoundFailed error=%s", error)
            await asyncio.sleep(self.ports.pace.idle.total_seconds())

    async def make_round(self) -> None:
        """Look once at the pods that are out of rotation, at fleets that stand frozen, and at every resource.

        Pods first: the resource whose run cordoned one of them is then among those that are listed. The
        resources are listed where a pod or a fleet asks whose it is, and every `RECOUNT` rounds in any case.
        """
        # The loop forgets a resource whose look finds nothing; the roster still has it then.
        known = {*self.loop.keys(), *self.roster.keys()} - {*self.stand_ins.keys()}
        frozen = self.stand_ins.list_frozen_fleets()
        leads = self.ports.leader.is_held()
        places = self.namespaces or ("",)
        found = [await self.ports.target.find_cordoned_pods(each) for each in places] if leads else []
        # Another shard's pods are led back by it alone: nobody here knows whose they are.
        pods = [pod for each in found for pod in each if self.holds(pod.namespace)]
        self.number += 1
        if not pods and not frozen and self.number % RECOUNT != 1:
            return
        peers = await self.census()
        self._sync_resources(known, peers)
        if self.ports.leader.is_held():
            for key in self.stand_ins.appoint(frozen, peers):
                self.loop.wake(key)
            await free_unclaimed(self.ports.target, pods, (*peers, *self.stand_ins.peers()))

    def _sync_resources(self, known: Set[Key], peers: Sequence[Peer]) -> None:
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
