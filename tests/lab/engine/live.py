"""The scheduler in real time: one timer per step, results to listeners.

The wall clock decides when a step ends; what a step contains is the scheduler's business alone, so the server
schedules exactly as the simulation does.
"""

import asyncio
import itertools
from collections import deque
from typing import Protocol

from lab.engine.blocks import BlockPool, HostTier
from lab.engine.config import DeviceMemory, EngineConfig
from lab.engine.metrics import EngineMetrics, Times
from lab.engine.requests import BlockTable, Request
from lab.engine.scheduler import Output, Scheduler, Step
from lab.engine.settings import StepCost

CATCH_UP_SECONDS = 0.05
"""A step starts where the one before should have ended if the timer was at most this late: on a busy machine
late wake-ups must not slow the engine down; a longer hang is not made up for."""


class Listener(Protocol):
    """Receives one request's tokens."""

    def on_token(self, token: int, finish_reason: str | None) -> None:
        """Take one token; with `finish_reason` it is the last."""

    def on_dead(self) -> None:
        """The engine stopped with this request unfinished."""


class LiveEngine:
    """One engine that runs as long as it has requests; `idle` is set while it has none."""

    def __init__(self, config: EngineConfig, cost: StepCost, metrics: EngineMetrics) -> None:
        pool = BlockPool(config.pool.total_blocks, caching=config.prefix_caching)
        host = HostTier(config.host_blocks) if config.host_blocks else None
        compression = config.method and config.method.compression
        self.scheduler = Scheduler(config.limits, pool, config.pool.block_size, host, compression)
        self.scheduler.recall = config.recall
        self.metrics = metrics
        self.memory = DeviceMemory(config.device_bytes, int(config.device_bytes * config.utilization))
        self._attention = config.attention
        self._cost = cost.scaled(config.attention.slowdown)
        self._depth = 2 if config.limits.async_scheduling else 1
        self._in_flight: deque[tuple[Step, float]] = deque()
        self._timer: asyncio.Handle | None = None
        self._last_end = 0.0
        self._listeners: dict[Request, tuple[Listener, Times]] = {}
        self._numbers = itertools.count(1)
        self._loop = asyncio.get_running_loop()
        self.idle = asyncio.Event()
        self.idle.set()

    def slow_down(self, factor: float) -> None:
        """From now on each step takes that many times as long as it takes now."""
        self._cost = self._cost.scaled(factor)

    @property
    def unfinished(self) -> int:
        return len(self._listeners)

    @property
    def queued_tokens(self) -> int:
        return sum(request.prompt_length for request in self._listeners if not request.output_length)

    def submit(self, tokens: list[int], max_tokens: int, listener: Listener) -> Request:
        """Queue a request; its tokens go to the listener."""
        number = next(self._numbers)
        table = BlockTable(self.scheduler.block_size)
        request = Request(str(number), list(tokens), max_tokens, table, seed=number)
        self._listeners[request] = (listener, Times(self._loop.time()))
        self.scheduler.add(request)
        self.idle.clear()
        if self._timer is None:
            self._timer = self._loop.call_soon(self._pump)
        return request

    def abort(self, request: Request) -> None:
        """End a request whose client has gone; does nothing if it has finished."""
        if self._listeners.pop(request, None) is not None:
            self.scheduler.abort([request])
            self._settle()

    def stop(self) -> None:
        """End all requests now and call their listeners."""
        if self._timer is not None:
            self._timer.cancel()
        requests = list(self._listeners)
        listeners = [listener for listener, _ in self._listeners.values()]
        self._listeners.clear()
        self.scheduler.abort(requests)
        self._settle()
        for listener in listeners:
            listener.on_dead()

    def _settle(self) -> None:
        """Export the scheduler's state and note whether anything is left to do."""
        self.metrics.record_scheduler(self.scheduler)
        if not self._listeners:
            self.idle.set()

    def _pump(self) -> None:
        """Fill the pipeline and set the timer for the end of its oldest step."""
        self._timer = None
        now = self._loop.time()
        while len(self._in_flight) < self._depth and self.scheduler.has_requests:
            step = self.scheduler.schedule()
            if not step.scheduled:
                break
            self._note_admissions(step, now)
            self.memory.note(self._attention.scores_bytes(step))
            start = self._last_end if now - self._last_end < CATCH_UP_SECONDS else now
            self._last_end = start + self._cost.of(step.tokens, step.loaded, step.moved)
            self._in_flight.append((step, self._last_end))
        if self._in_flight:
            self._timer = self._loop.call_at(self._in_flight[0][1], self._end_step)

    def _note_admissions(self, step: Step, now: float) -> None:
        for request in step.admitted:
            times = self._listeners[request][1]
            times.scheduled_at = times.scheduled_at or now

    def _end_step(self) -> None:
        step, _ = self._in_flight.popleft()
        outputs = self.scheduler.finish(step)
        listened = [(output, *self._listeners[output.request]) for output in outputs]
        self.metrics.record_step([(output, times) for output, _, times in listened], self._loop.time())
        for output, listener, _ in listened:
            self._hand_over(output, listener)
        self._settle()
        self._pump()

    def _hand_over(self, output: Output, listener: Listener) -> None:
        if output.finish_reason is None:
            listener.on_token(output.token, None)
        else:
            del self._listeners[output.request]
            listener.on_token(output.token, output.finish_reason.value)
