"""What a quick look at a calm fleet costs Prometheus, against a whole look.

    python -m lab.bench.looks [PODS]

A real Prometheus with half an hour of history of a fleet (default 200 pods, each with the pages recorded
from vLLM 0.32.0, a sample every 30 s) is asked as one tick asks it: the quick look that settles a calm fleet,
and the whole look that any other needs. Each round is a moment of its own, so that nothing is answered
from memory. Printed are queries, series in their answers, and the median seconds of a round.
"""

import asyncio
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from statistics import median

from kvmedic.engines.vllm_signals import VLLM_SIGNALS
from kvmedic.metrics.page import Page
from kvmedic.metrics.prometheus import PrometheusClient
from kvmedic.metrics.series import Answer, PodKey, Reply
from kvmedic.metrics.source import PrometheusSource
from kvmedic.model.evidence import AT_REST, Look
from kvmedic.settings import SourceOptions
from worlds.metric_tape import Tape
from worlds.prometheus_server import PrometheusServer
from worlds.scripted_fleet import END, FIVE, NAMESPACE, THIRTY, page

PODS, ROUNDS = 200, 7
HISTORY, STEP = timedelta(minutes=36), timedelta(seconds=30)
HOLD = timedelta(minutes=2)
"""The spec's defaults: trigger over five minutes, held for two; sizing over thirty."""
LOOKS = {"quick look": (Look(FIVE, signals=AT_REST),), "whole look": (Look(FIVE, HOLD), Look(THIRTY))}


@dataclass(slots=True)
class Counting:
    """A client that counts what it is answered."""

    client: PrometheusClient
    queries: int = 0
    series: int = 0
    is_narrowed: bool = False

    async def query(self, expression: str, at: datetime) -> Reply:
        reply = await self.client.query(expression, at)
        self.queries += 1
        if isinstance(reply, Answer):
            self.series += sum(len(each) for each in reply.by_pod.values())
        return reply

    def close(self) -> None:
        self.client.close()


@dataclass(frozen=True, slots=True)
class Cost:
    """What the rounds of one kind of look cost."""

    queries: int
    series: int
    seconds: list[float] = field(default_factory=list)


def history(directory: Path, pods: Sequence[str]) -> None:
    """Write a fleet's history: each replica goes from the recorded idle page to the thrashing one."""
    tape = Tape(END, HISTORY, STEP)
    first, last = page("idle"), page("thrash")
    engine = Page(
        first.at, {n: s for n, s in last.series.items() if n.startswith(("vllm:", "process_start"))}
    )
    for pod in pods:
        target = {"namespace": NAMESPACE, "pod": pod, "instance": f"{pod}:8000", "job": "vllm"}
        tape.replay(first, engine, target, since=-HISTORY.total_seconds())
    tape.write(directory)


async def cost(url: str, pods: Sequence[str], looks: tuple[Look, ...]) -> Cost:
    options = SourceOptions(url=url, timeout="30s", reuse="1s")
    counting, moment = Counting(PrometheusClient(options)), [END]
    source = PrometheusSource("default", counting, options, VLLM_SIGNALS, now=lambda: moment[0])
    keys = [PodKey(NAMESPACE, pod) for pod in pods]
    seconds = []
    for i in range(ROUNDS):
        moment[0] = END - timedelta(seconds=5 * i)
        begun = time.perf_counter()
        await asyncio.gather(*(source.observe(keys, look) for look in looks))
        seconds.append(time.perf_counter() - begun)
    source.close()
    return Cost(counting.queries // ROUNDS, counting.series // ROUNDS, seconds)


def main() -> None:
    pods = [f"llm-{i}" for i in range(int(sys.argv[1]) if len(sys.argv) > 1 else PODS)]
    with tempfile.TemporaryDirectory() as directory:
        history(Path(directory), pods)
        with PrometheusServer(Path(directory)) as server:
            print(f"{len(pods)} pods, median of {ROUNDS} rounds")
            for name, looks in LOOKS.items():
                found = asyncio.run(cost(server.url, pods, looks))
                figures = f"{found.queries:>3} queries {found.series:>7} series"
                print(f"{name:<12} {figures} {median(found.seconds):7.3f} s")


if __name__ == "__main__":
    main()
