"""`make bench-lab`: the measured table of real vLLM replayed on the lab engine's scheduler in virtual time.

Nothing here decides anything that the server would decide differently: only clock and clients are replaced. A
step's results come out when it ends; a client sends its next request `think_seconds` after its last token;
the engine reads its input queue before it schedules.

Bounds: preemptions within 5 % (or 3, whichever is larger: a relative bound says nothing about 0 and little
about 55), steps within 1 %, and the same ranking of the caps by steps and by the p95 of the longest stall.
Stalls themselves are printed, not bounded: the measured ones contain the client's and the API server's own
delays.
"""

import csv
import heapq
import itertools
import math
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import repeat
from pathlib import Path

from lab.engine.arguments import parse_serve
from lab.engine.blocks import BlockPool
from lab.engine.config import resolve
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


TABLE = Path(__file__).parents[2] / "data" / "vllm" / "fixed-lengths-table.tsv"
LOAD = ClosedLoop(clients=64, requests=128)
LENGTHS = Lengths(prompt=64, output=512)
PREEMPTION_SHARE = 0.05
PREEMPTION_SLACK = 3
STEP_SHARE = 0.01


@dataclass(frozen=True, slots=True)
class Measured:
    """One row of the measured table; `cap` is `--max-num-seqs`."""

    cap: int
    arguments: tuple[str, ...]
    preemptions: int
    steps: int
    stall_p95: float

    @property
    def is_plain(self) -> bool:
        """Whether nothing but the cap differs from the other rows."""
        return not self.arguments


@dataclass(frozen=True, slots=True)
class Comparison:
    """A measured row beside the lab's."""

    real: Measured
    lab: Result

    @property
    def stall_p95(self) -> float:
        """The lab's p95 of the longest stall, seconds."""
        return percentile(self.lab.longest_gaps(), 0.95)

    @property
    def is_within_bounds(self) -> bool:
        """Whether preemptions and steps are close enough to the measured ones."""
        slack = max(PREEMPTION_SLACK, PREEMPTION_SHARE * self.real.preemptions)
        return (
            abs(self.lab.preemptions - self.real.preemptions) <= slack
            and abs(self.lab.steps - self.real.steps) <= STEP_SHARE * self.real.steps
        )

    def __str__(self) -> str:
        real, lab = self.real, self.lab
        return (
            f"{real.cap:4d} {' '.join(real.arguments):28s} {real.preemptions:6d} {lab.preemptions:6d}"
            f" {real.steps:8d} {lab.steps:8d} {lab.steps / real.steps - 1:+7.2%}"
            f" {real.stall_p95:9.2f} {self.stall_p95:8.2f}  {'ok' if self.is_within_bounds else 'OUT'}"
        )


def measured_rows(path: Path = TABLE) -> list[Measured]:
    lines = (line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("#"))
    return [
        Measured(
            cap=int(row["max_num_seqs"]),
            arguments=tuple(row["arguments"].split()),
            preemptions=int(row["preemptions"]),
            steps=int(row["steps"]),
            stall_p95=float(row["stall_p95"]),
        )
        for row in csv.DictReader(lines, delimiter="\t")
    ]


def replay(row: Measured, load: ClosedLoop = LOAD) -> Result:
    """Return what the lab engine makes of a measured row's arguments and load."""
    arguments = ["--block-size=32", "--num-gpu-blocks-override=150", "--max-model-len=2048"]
    parsed = parse_serve(["serve", "tiny", *arguments, f"--max-num-seqs={row.cap}", *row.arguments])
    config = resolve(parsed, {})
    pool = BlockPool(config.pool.total_blocks, caching=config.prefix_caching)
    scheduler = Scheduler(config.limits, pool, config.pool.block_size)
    return Simulation(scheduler, StepCost(), repeat(LENGTHS)).run(load)


def ranking_faults(rows: list[Comparison]) -> list[str]:
    """Return what is wrong with the order of the caps; rows that differ by more than the cap are left out."""
    plain = [row for row in rows if row.real.is_plain]
    faults = []
    if _caps_by(plain, lambda row: row.real.steps) != _caps_by(plain, lambda row: row.lab.steps):
        faults.append("the caps rank differently by steps")
    if _caps_by(plain, lambda row: row.real.stall_p95) != _caps_by(plain, lambda row: row.stall_p95):
        faults.append("the caps rank differently by stall p95")
    return faults


def _caps_by(rows: list[Comparison], key: Callable[[Comparison], float]) -> list[int]:
    return [row.real.cap for row in sorted(rows, key=key)]


def main() -> int:
    """Print the comparison; return 0 if the lab is within bounds, 1 if not."""
    print(f"{'cap':>4} {'':28} {'preemptions':>13} {'engine steps':>17} {'':7} {'stall p95 (s)':>18}")
    print(f"{'':4} {'':28} {'real':>6} {'lab':>6} {'real':>8} {'lab':>8} {'':7} {'real':>9} {'lab':>8}")
    rows = []
    for measured in measured_rows():
        rows.append(Comparison(measured, replay(measured)))
        print(rows[-1])
    faults = ranking_faults(rows)
    faults += [f"cap {row.real.cap} is out of bounds" for row in rows if not row.is_within_bounds]
    share = f"{PREEMPTION_SHARE:.0%} or {PREEMPTION_SLACK} preemptions, {STEP_SHARE:.0%} of the steps"
    print(f"{'; '.join(faults) or 'within bounds'} (bounds: {share}, same ranking)")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
