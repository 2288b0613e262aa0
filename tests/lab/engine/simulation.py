"""The engine's own scheduler in virtual time, under a closed loop of clients.

Nothing here decides anything that the server would decide differently: it only replaces the clock and the
clients. A step's results come out when it ends; a client sends its next request `think_seconds` after its
last token; the engine reads its input queue before it schedules.
"""

import heapq
import itertools
import math
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from lab.engine.requests import BlockTable, Request
from lab.engine.scheduler import Output, Scheduler, Step
from lab.engine.settings import StepCost


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens of one request: of its prompt, and how many it generates."""

    prompt: int
    output: int


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """Clients that each have one request under way.

    Client i sends its first request at `i * stagger_seconds`: a client program opens its connections one
    after the other. The run ends with the last of `requests`, or after `seconds` with what is then finished.
    """

    clients: int
    requests: int
    seconds: float = math.inf
    stagger_seconds: float = 0.001
    think_seconds: float = 0.005


@dataclass(slots=True)
class Experience:
    """What the client of one request saw, in seconds of virtual time."""

    sent_at: float
    tokens: int = 0
    first_token_at: float = 0.0
    last_token_at: float = 0.0
    longest_gap: float = 0.0
    preemptions: int = 0
    is_finished: bool = False

    def see_token(self, now: float) -> None:
        if self.tokens:
            self.longest_gap = max(self.longest_gap, now - self.last_token_at)
        else:
            self.first_token_at = now
        self.last_token_at = now
        self.tokens += 1


@dataclass(slots=True)
class Result:
    """One finished simulation; `steps` are steps with output, as `vllm:iteration_tokens_total_count`."""

    preemptions: int = 0
    steps: int = 0
    seconds: float = 0.0
    experiences: list[Experience] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        return sum(experience.tokens for experience in self.experiences)

    @property
    def finished(self) -> list[Experience]:
        """The requests that got their last token."""
        return [experience for experience in self.experiences if experience.is_finished]

    def longest_gaps(self) -> list[float]:
        """Return each finished request's longest gap between two tokens, in ascending order."""
        return sorted(experience.longest_gap for experience in self.finished)

    def tokens_of_requests_within(self, longest_gap: float) -> int:
        """Return the tokens of requests that never waited longer than `longest_gap` seconds for one."""
        return sum(each.tokens for each in self.experiences if each.longest_gap <= longest_gap)


class Simulation:
    """One engine and its clients."""

    def __init__(self, scheduler: Scheduler, cost: StepCost, lengths: Iterable[Lengths]) -> None:
        self.scheduler = scheduler
        self.cost = cost
        self.now = 0.0
        self.result = Result()
        self._lengths: Iterator[Lengths] = iter(lengths)
        self._in_flight: deque[tuple[Step, float]] = deque()
        self._depth = 2 if scheduler.limits.async_scheduling else 1
        self._arrivals: list[tuple[float, int]] = []
        self._numbers = itertools.count()
        self._last_end = 0.0

    def run(self, load: ClosedLoop) -> Result:
        for client in range(min(load.clients, load.requests)):
            heapq.heappush(self._arrivals, (client * load.stagger_seconds, next(self._numbers)))
        finished = 0
        while finished < load.requests and self.now < load.seconds:
            self._accept()
            if self._start_step():
                continue
            for output in self._end_step():
                if output.finish_reason is None:
                    continue
                finished += 1
                self._experience(output).is_finished = True
                number = next(self._numbers)
                if number < load.requests:
                    heapq.heappush(self._arrivals, (self.now + load.think_seconds, number))
        self.result.preemptions = self.scheduler.preemptions
        self.result.seconds = self.now
        return self.result

    def _accept(self) -> None:
        """Queue what has arrived by now."""
        while self._arrivals and self._arrivals[0][0] <= self.now:
            sent_at, number = heapq.heappop(self._arrivals)
            lengths = next(self._lengths)
            self.result.experiences.append(Experience(sent_at))
            table = BlockTable(self.scheduler.block_size)
            prompt = unique_prompt(number, lengths.prompt)
            index = str(len(self.result.experiences) - 1)
            self.scheduler.add(Request(index, prompt, lengths.output, table, seed=number + 1))

    def _start_step(self) -> bool:
        """Schedule one more step if the pipeline has room; return whether there was anything to compute."""
        if len(self._in_flight) >= self._depth or not self.scheduler.has_requests:
            return False
        step = self.scheduler.schedule()
        if not step.scheduled:
            return False
        self._last_end = max(self.now, self._last_end) + self.cost.of(step.tokens, step.loaded, step.moved)
        self._in_flight.append((step, self._last_end))
        return True

    def _end_step(self) -> list[Output]:
        """Advance to the end of the oldest step in flight, or to the next arrival if there is none."""
        if not self._in_flight:
            self.now = self._arrivals[0][0]
            return []
        step, end = self._in_flight.popleft()
        self.now = max(self.now, end)
        outputs = self.scheduler.finish(step)
        self.result.steps += bool(outputs)
        for output in outputs:
            experience = self._experience(output)
            experience.see_token(self.now)
            experience.preemptions += output.preemptions
        return outputs

    def _experience(self, output: Output) -> Experience:
        return self.result.experiences[int(output.request.request_id)]


def unique_prompt(number: int, length: int) -> list[int]:
    """Return a prompt that shares no block with that of any other number."""
    return [number, *range(length - 1)] if length else []


def percentile(ordered: list[float], share: float) -> float:
    """Return the value below which `share` (0-1) of the ordered values lie (nearest rank)."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
