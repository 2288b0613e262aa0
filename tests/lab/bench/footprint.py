"""Do fewer replicas carry what the prediction says they do? `python -m lab.bench.footprint`.

Replicas behind a Service that picks at random see independent random arrivals, so one engine stands for
each. First it is crowded by a closed loop, as when replicas had to be added: R sequences run and T tokens
per second come out. Then requests arrive at random at shares of T, and what runs and is preempted is
compared with what was predicted: at most the share of R, and where that fits, no more than the trigger.
"""

import sys
from dataclasses import dataclass
from itertools import islice
from math import sqrt
from random import Random

from kvmedic.model.readings import Moments
from kvmedic.runbooks.preemption.cap_size import SAFEST_FIT, cap_at
from kvmedic.verdict.comparison import LIGHTER
from kvmedic.verdict.occupancy import occupancy
from lab.bench.drive import UNCAPPED, Drive, OpenDrive
from lab.bench.workloads import WORKLOADS, Lengths, Workload

SHARES = (0.2, 0.4, 0.6, 0.8)
TRIGGER = 0.5
"""Preemptions per request (the default of spec.trigger)."""
DRAWN = 20_000
"""Requests from which the moments of the lengths are taken."""
WARM = 0.3
"""Share of a run's requests before it is measured."""


@dataclass(slots=True)
class Seen:
    """What a run looked like once it was warm."""

    seconds: float = 0.0
    running_seconds: float = 0.0
    tokens: int = 0
    finished: int = 0
    preemptions: int = 0

    @property
    def running(self) -> float:
        """Sequences that ran at once, on average."""
        return self.running_seconds / self.seconds

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds


def crowded(workload: Workload, requests: int) -> Seen:
    """Return the engine under a closed loop that crowds it."""
    drive = Drive(workload, UNCAPPED)
    drive.warm_up(int(WARM * requests))
    return _seen(drive, requests)


def arriving(workload: Workload, rate: float, requests: int) -> Seen:
    """Return the engine to which requests come whether or not others were answered."""
    drive = OpenDrive(workload, UNCAPPED, rate, Random(11), next_at=0.0)
    while drive.finished < WARM * requests:
        drive.advance()
    return _seen(drive, requests)


def _seen(drive: Drive, requests: int) -> Seen:
    """Measure an engine that is warm, until as many more requests are finished."""
    seen, start, preempted = Seen(), drive.now, drive.scheduler.preemptions
    while seen.finished < requests:
        before = drive.now
        ended = drive.advance()
        seen.running_seconds += (drive.now - before) * len(drive.scheduler.running)
        seen.finished += len(ended)
        seen.tokens += sum(request.output_length for request in ended)
    seen.seconds = drive.now - start
    seen.preemptions = drive.scheduler.preemptions - preempted
    return seen


def moments_of(lengths: list[int]) -> Moments:
    return Moments(*(sum(length**power for length in lengths) / len(lengths) for power in (1, 2, 3)))


def room_of(workload: Workload) -> int:
    """Return how many sequences fit the pool nine times in ten."""
    drawn: list[Lengths] = list(islice(workload.lengths(), DRAWN))
    prompt, output = moments_of([d.prompt for d in drawn]), moments_of([d.output for d in drawn])
    return cap_at(workload.blocks, occupancy(prompt, output, workload.block_tokens), SAFEST_FIT)


def tried(workload: Workload, tokens: int) -> list[bool]:
    """Print one workload's rows; return for each share that was predicted to fit whether it did."""
    mean = sum(d.output for d in islice(workload.lengths(), DRAWN)) / DRAWN
    requests, room = max(100, round(tokens / mean)), room_of(workload)
    before = crowded(workload, requests)
    print(
        f"{workload.name}: crowded {before.running:.1f} running, {before.tokens_per_second:.0f} tokens/s, "
        f"{before.preemptions / before.finished:.2f} preemptions per request; room for {room}"
    )
    held = []
    for share in SHARES:
        now = arriving(workload, share * before.tokens_per_second / mean, requests)
        most = before.running * share
        fits = share <= LIGHTER and most + SAFEST_FIT * sqrt(most) <= room
        rate = now.preemptions / now.finished
        held += [rate <= TRIGGER] if fits else []
        print(
            f"  share {share:.1f}: at most {most:5.1f} predicted, {now.running:5.1f} ran; "
            f"{'fits' if fits else 'too much':8} {rate:.3f} preemptions per request",
            flush=True,
        )
    return held


def main() -> None:
    """Print every workload's rows and how often the prediction held."""
    tokens = int(sys.argv[1]) if len(sys.argv) > 1 else 120_000
    names = sys.argv[2:]
    held = [good for each in WORKLOADS if not names or each.name in names for good in tried(each, tokens)]
    print(f"{sum(held)} of {len(held)} shares that were predicted to fit stayed under the trigger")


if __name__ == "__main__":
    main()
