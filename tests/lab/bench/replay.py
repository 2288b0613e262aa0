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
import math
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path

from lab.bench.drive import Client, VirtualEngine, prompt_of
from lab.bench.workloads import Lengths
from lab.engine.arguments import parse_serve
from lab.engine.blocks import BlockPool
from lab.engine.config import resolve
from lab.engine.requests import Request, Status
from lab.engine.scheduler import Scheduler
from lab.engine.settings import StepCost
from lab.loadgen.record import percentile


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


@dataclass(frozen=True, slots=True)
class Result:
    """One finished simulation."""

    preemptions: int
    steps: int
    seconds: float
    clients: Mapping[Request, Client]

    @property
    def tokens(self) -> int:
        return self.tokens_of_requests_within(math.inf)

    @property
    def finished(self) -> int:
        """Requests that got their last token."""
        return len(self.longest_gaps())

    def longest_gaps(self) -> list[float]:
        """Return each finished request's longest gap between two tokens, in ascending order."""
        ended = (client for request, client in self.clients.items() if request.status is Status.FINISHED)
        return sorted(client.longest_gap for client in ended)

    def tokens_of_requests_within(self, longest_gap: float) -> int:
        """Return the tokens of requests that never waited longer than `longest_gap` seconds for one."""
        return sum(r.output_length for r, client in self.clients.items() if client.longest_gap <= longest_gap)


def simulate(scheduler: Scheduler, cost: StepCost, lengths: Iterable[Lengths], load: ClosedLoop) -> Result:
    """Run a scheduler in virtual time under a closed loop of clients."""
    engine, drawn = VirtualEngine(scheduler, cost), iter(lengths)
    issued, finished = min(load.clients, load.requests), 0
    arrivals = [client * load.stagger_seconds for client in range(issued)]
    while finished < load.requests and engine.now < load.seconds:
        while arrivals and arrivals[0] <= engine.now:
            at, request = heapq.heappop(arrivals), next(drawn)
            engine.send(prompt_of(len(engine.clients), request), request.output, at)
        if not engine.start_steps():
            engine.now = arrivals[0]
            continue
        ended = len(engine.end_step())
        finished += ended
        for _ in range(min(ended, load.requests - issued)):
            issued += 1
            heapq.heappush(arrivals, engine.now + load.think_seconds)
    return Result(scheduler.preemptions, engine.steps, engine.now, engine.clients)


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
    return simulate(scheduler, StepCost(), repeat(LENGTHS), load)


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
