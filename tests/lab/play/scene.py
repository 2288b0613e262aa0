"""One moment of the play as a person should see it; made from what was witnessed, never from plans."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lab.loadgen.record import Record, percentile
from lab.play.engines import Sample, rate
from lab.play.figures import lost
from lab.play.witness import Replica, Witness

RECENT_SECONDS = 15.0
"""What counts as now for rates and percentiles: several scrapes, and over a hundred requests of the demo."""


@dataclass(frozen=True, slots=True)
class ReplicaLine:
    """One replica."""

    name: str
    cap: str
    state: str
    """In rotation, draining, starting …"""
    running: int
    waiting: int
    usage: float
    """KV-cache usage, ratio 0 to 1."""
    preemptions_per_second: float
    answers: bool
    """Its engine was heard of within the last seconds."""


@dataclass(frozen=True, slots=True)
class Scene:
    """What is on the screen."""

    elapsed: float
    phase: str
    replicas: tuple[ReplicaLine, ...]
    in_rotation: int
    longest_gap_p95: float
    """Of the requests that ended within the last 15 s; NaN when none did."""
    tokens_per_second: float
    answered: int
    lost: int
    device_mib: Mapping[str, float] = field(default_factory=dict)
    """Of each pod's GPU that is told of, in use: what a dashboard of the GPUs shows."""

    @property
    def preemptions_per_second(self) -> float:
        """Of the whole fleet."""
        return sum(each.preemptions_per_second for each in self.replicas)


def scene(phase: str, elapsed: float, witness: Witness, records: Sequence[Record]) -> Scene:
    now = time.time()
    samples = witness.scraper.samples()
    seen = witness.replicas()
    recent = [each for each in records if each.ended_at >= now - RECENT_SECONDS]
    gaps = sorted(each.longest_gap_seconds for each in recent if each.tokens)
    return Scene(
        elapsed=elapsed,
        phase=phase,
        replicas=tuple(_line(each, samples.get(each.name, []), now) for each in seen),
        in_rotation=sum(each.in_rotation for each in seen),
        longest_gap_p95=percentile(gaps, 0.95),
        tokens_per_second=_generated(samples, now),
        answered=len(records),
        lost=len(lost(records)),
    )


def state_of(replica: Replica) -> str:
    """Return where a replica stands in one or two words."""
    if replica.terminating:
        return "leaving"
    if replica.trouble:
        return replica.trouble
    if replica.in_rotation:
        return "in rotation"
    return "draining" if replica.cordoned else "starting"


def _line(replica: Replica, kept: list[Sample], now: float) -> ReplicaLine:
    last = kept[-1] if kept and now - kept[-1].at < RECENT_SECONDS else None
    return ReplicaLine(
        name=replica.name.rpartition("-")[2],
        cap=str(replica.cap or "-"),
        state=state_of(replica),
        running=int(last.running) if last else 0,
        waiting=int(last.waiting) if last else 0,
        usage=last.usage if last else 0.0,
        preemptions_per_second=rate(kept, RECENT_SECONDS) if last else 0.0,
        answers=last is not None,
    )


def _generated(samples: dict[str, list[Sample]], now: float) -> float:
    """Return tokens per second of all replicas over the last seconds."""
    total = 0.0
    for kept in samples.values():
        recent = [each for each in kept if each.at >= now - RECENT_SECONDS]
        if len(recent) > 1:
            total += (recent[-1].generated - recent[0].generated) / (recent[-1].at - recent[0].at)
    return total
