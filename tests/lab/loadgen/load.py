"""Whole loads: closed loops and Poisson arrivals, bounded in requests and time."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random

from lab.loadgen.client import Ask, Client
from lab.loadgen.lengths import Sampler
from lab.loadgen.record import ConnectionMode, Outcome, Record

BACK_OFF_SECONDS = 0.25
"""Pause of a closed-loop client after a request that got no answer: a server that refuses must not be
flooded."""

TOKEN_IDS = 30_000
"""Prompt token ids are below this: fewer than the 32,000 of a small Llama's vocabulary."""

SHARED_IDS = 2_000
"""Further ones, of which a common beginning is made."""


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """Clients that each send their next request when the last has ended; `kept` of them keep their
    connection."""

    clients: int
    kept: int = 0


@dataclass(frozen=True, slots=True)
class OpenLoop:
    """Poisson arrivals, whatever the server does; `at_once` bounds the requests under way.

    Where connections are kept, all requests share them, as those of a gateway do. A request that would
    exceed `at_once` is not sent and not counted: the bound protects the machine, and a run that reaches it
    is overloaded anyway.
    """

    requests_per_second: float
    at_once: int = 512
    mode: ConnectionMode = ConnectionMode.FRESH


@dataclass(frozen=True, slots=True)
class Keys:
    """A router that knows the targets: by keys, or without a key each request to any of them.

    `file` has the targets that there are now, one a line. All requests of a key go to the same target, and
    popular keys have more of them; the keys are dealt out among the targets in turn.
    """

    file: Path
    number: int = 60
    """Keys; 0: none, so that each request's target is drawn."""
    skew: float = 0.7
    """By how much the next key has fewer requests: a power of its rank, as in `lab.world.traffic`."""

    def draw(self, random: Random) -> str:
        """Return the target of the next request.

        Raises:
            ValueError: there is none.
        """
        targets = self.file.read_text(encoding="utf-8").split()
        if not targets:
            raise ValueError(f"{self.file} names no target: write at least one base URL into it")
        if not self.number:
            return random.choice(targets)
        weights = [rank**-self.skew for rank in range(1, self.number + 1)]
        return targets[random.choices(range(self.number), weights)[0] % len(targets)]


@dataclass(frozen=True, slots=True)
class Plan:
    """A load and its bounds.

    `targets`: each request goes to one of them, drawn by the seed; the first one of each client of a closed
    loop goes to `first`, where there is one. `seconds` and `requests` end the sending; what is under way then
    gets `grace_seconds` to end and is cancelled after that.
    """

    targets: tuple[str, ...]
    model: str
    lengths: Sampler
    arrivals: ClosedLoop | OpenLoop
    seconds: float
    requests: int
    seed: int = 1
    timeout_seconds: float = 120.0
    grace_seconds: float = 0.0
    first: str | None = None
    shared: int = 0
    """Tokens with which a prompt begins as others do, before those of `lengths`."""
    groups: int = 1
    """Ways in which they begin, in turn."""
    keys: Keys | None = None
    """Leads each request to a target of its own; None: one of `targets` is drawn."""
    patience_seconds: float | None = None
    """After so long without a token a client leaves; None: never."""


class Load:
    """One run of a plan."""

    def __init__(self, plan: Plan, on_record: Callable[[Record], None]) -> None:
        self.plan = plan
        self._on_record = on_record
        self._random = Random(plan.seed)
        self._sent = 0
        self._stop = asyncio.Event()
        self._until = 0.0

    def stop(self) -> None:
        self._stop.set()

    async def run(self) -> None:
        self._until = time.monotonic() + self.plan.seconds
        arrivals = self.plan.arrivals
        await (self._closed(arrivals) if isinstance(arrivals, ClosedLoop) else self._open(arrivals))

    async def _closed(self, arrivals: ClosedLoop) -> None:
        modes = [ConnectionMode.FRESH] * (arrivals.clients - arrivals.kept)
        modes += [ConnectionMode.KEEP_ALIVE] * arrivals.kept
        await self._let_end([asyncio.create_task(self._loop(self._client(mode))) for mode in modes])

    async def _loop(self, client: Client) -> None:
        first = self.plan.first
        async with client:
            while (ask := self._next_ask(first)) is not None:
                first = None
                record = await client.ask(ask)
                self._on_record(record)
                if record.outcome is Outcome.CANCELLED:
                    return
                if not record.tokens:
                    await asyncio.sleep(BACK_OFF_SECONDS)

    async def _open(self, arrivals: OpenLoop) -> None:
        under_way: set[asyncio.Task[None]] = set()
        async with self._client(ConnectionMode.KEEP_ALIVE) as shared:
            async for ask in self._arriving(arrivals):
                if len(under_way) < arrivals.at_once:
                    is_shared = arrivals.mode is ConnectionMode.KEEP_ALIVE
                    task = asyncio.create_task(self._send(shared, ask) if is_shared else self._once(ask))
                    under_way.add(task)
                    task.add_done_callback(under_way.discard)
            await self._let_end(list(under_way))

    async def _arriving(self, arrivals: OpenLoop) -> AsyncIterator[Ask]:
        """Yield requests at exponential intervals; late ones are caught up, so that the rate is what it
        says."""
        due = time.monotonic()
        while True:
            due += self._random.expovariate(arrivals.requests_per_second)
            if due >= self._until:
                return
            await self._pause(due - time.monotonic())
            ask = self._next_ask()
            if ask is None:
                return
            yield ask

    async def _once(self, ask: Ask) -> None:
        async with self._client(ConnectionMode.FRESH) as client:
            await self._send(client, ask)

    async def _send(self, client: Client, ask: Ask) -> None:
        self._on_record(await client.ask(ask))

    async def _let_end(self, tasks: "list[asyncio.Task[None]]") -> None:
        """Wait for the tasks until the time is up and the grace is over, then cancel what is left."""
        if not tasks:
            return
        ended = asyncio.create_task(_all_ended(tasks))
        stopped = asyncio.create_task(self._stop.wait())
        left = max(0.0, self._until - time.monotonic())
        await asyncio.wait((ended, stopped), timeout=left, return_when=asyncio.FIRST_COMPLETED)
        self._stop.set()
        await asyncio.wait((ended,), timeout=self.plan.grace_seconds)
        for task in tasks:
            task.cancel()
        await asyncio.gather(ended, stopped)

    async def _pause(self, seconds: float) -> None:
        """Wait until the time has passed or the load is stopped."""
        if seconds > 0:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), seconds)

    def _next_ask(self, target: str | None = None) -> Ask | None:
        """Return the next request, to a target or one that is drawn; None when the plan is at its end."""
        if self._stop.is_set() or self._sent >= self.plan.requests or time.monotonic() >= self._until:
            return None
        self._sent += 1
        own, output = self.plan.lengths.draw(self._random)
        plan, shared = self.plan, self.plan.shared
        drawn = self._random.choice(plan.targets) if plan.keys is None else plan.keys.draw(self._random)
        parts = (
            shared_ids(self._sent % self.plan.groups, shared),
            prompt_ids(self.plan.seed, self._sent, own),
        )
        ids = b",".join(filter(None, parts))
        return Ask(target or drawn, self._sent, shared + own, output, ids)

    def _client(self, mode: ConnectionMode) -> Client:
        plan = self.plan
        return Client(plan.model, mode, plan.timeout_seconds, plan.patience_seconds)


@cache
def shared_ids(group: int, length: int) -> bytes:
    """Return token ids that prompts of a group begin with, and no others, whatever their number and seed."""
    return b",".join(b"%d" % (TOKEN_IDS + (group + place) % SHARED_IDS) for place in range(length))


async def _all_ended(tasks: "list[asyncio.Task[None]]") -> None:
    await asyncio.wait(tasks)


def prompt_ids(seed: int, number: int, length: int) -> bytes:
    """Return token ids of a prompt that shares no prefix with that of any other number or seed."""
    ids = (number % TOKEN_IDS, number // TOKEN_IDS + 7 * seed, *range(1, length - 1))
    return b",".join(b"%d" % token for token in ids[:length])
