"""What looks at N fleets cost a source of metrics, and the operator's own processor time, without a cluster.

    python -m lab.bench.scale_looks 1000 [--replicas 2] [--sick 1 50]

The operator's own adapter asks the source of `scale_source.py`, which is another process, as a round of
looks does: each calm fleet gets a quick look, spread over the round; a sick one a whole look at each moment.
Time is simulated, so that nothing waits; CPU seconds are those of this process alone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Awaitable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from kvmedic.controller.survey import quick_look_signals
from kvmedic.engines.vllm_signals import VLLM_SIGNALS
from kvmedic.metrics.fleet import FleetMetrics
from kvmedic.model.evidence import Absence, Look, Missing, Observation, PodReadings
from kvmedic.model.fleet import Pod
from kvmedic.model.spec import Runbook
from kvmedic.settings import ScrapeOptions, SourceOptions
from lab.bench.scale_fleets import SPARSE, ScaleFleet, fleets
from lab.cluster.machine import free_ports
from run_builder import a_pod

ROUND, WINDOW, HOLD, SIZING = (
    timedelta(seconds=30),
    timedelta(minutes=5),
    timedelta(minutes=2),
    timedelta(minutes=30),
)
"""The pace of calm fleets, and the windows of a spec that names none."""
QUICK_LOOK = Look(WINDOW, signals=quick_look_signals(tuple(Runbook)))
HELD = replace(QUICK_LOOK, hold=HOLD)
SOURCE = "default"


@dataclass(frozen=True, slots=True)
class Cost:
    """What one round cost."""

    queries: int
    received: int
    cpu: float

    @property
    def line(self) -> str:
        return f"{self.queries:4d} queries {self.received / 1e6:8.2f} MB {self.cpu:7.2f} CPU s"


@dataclass
class Looker:
    """Makes rounds of looks."""

    url: str
    at: datetime = field(default_factory=lambda: datetime.now(UTC))
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)
    metrics: FleetMetrics = field(init=False)

    def __post_init__(self) -> None:
        options = SourceOptions(url=self.url, timeout="2m")
        self.moments = round(ROUND / options.reuse)
        self.metrics = FleetMetrics.from_options(
            {SOURCE: options}, ScrapeOptions(), VLLM_SIGNALS, lambda: self.at
        )

    async def quick_look(self, fleet: ScaleFleet) -> Observation:
        return await self.metrics.look(SOURCE, pods_of(fleet), fleet.namespace, QUICK_LOOK)

    async def whole(self, fleet: ScaleFleet) -> Observation:
        """What a tick asks that did not find its fleet calm."""
        pods, place = pods_of(fleet), fleet.namespace
        await self.metrics.look(SOURCE, pods, place, HELD)
        burn, *_ = await asyncio.gather(
            self.metrics.observe(SOURCE, pods, place, WINDOW, HOLD),
            self.metrics.observe(SOURCE, pods, place, SIZING, timedelta(0)),
            self.metrics.devices(SOURCE, pods, place, WINDOW),
            self.metrics.peaks(SOURCE, pods, place),
            self.metrics.past_lengths(SOURCE, pods, place),
        )
        return burn

    async def round(self, calm: Sequence[ScaleFleet], sick: Sequence[ScaleFleet]) -> list[Observation]:
        """Look at each calm fleet once, and at each sick one at every moment."""
        found: list[Observation] = []
        for part in range(self.moments):
            looks: list[Awaitable[Observation]] = [
                self.quick_look(each) for each in (*calm[part :: self.moments], *sick)
            ]
            found += await asyncio.gather(*looks)
            found += await asyncio.gather(*(self.whole(each) for each in sick))
            self.at += ROUND / self.moments
        return found

    def cost(self, work: Coroutine[Any, Any, list[Observation]]) -> Cost:
        """Return what a round costs, all of whose replicas must have been measured."""
        before, cpu = self.spent(), time.process_time()
        found = self.loop.run_until_complete(work)
        cpu, after = time.process_time() - cpu, self.spent()
        silent = [name for seen in found for name, each in seen.pods.items() if not _is_measured(each)]
        if silent:
            raise RuntimeError(
                f"{len(silent)} replicas were not measured: {self.metrics.trouble(SOURCE) or silent[:3]}"
            )
        return Cost(after["queries"] - before["queries"], after["bytes"] - before["bytes"], cpu)

    def close(self) -> None:
        """End all that is under way."""
        self.loop.run_until_complete(self.metrics.close())
        self.loop.close()

    def spent(self) -> dict[str, int]:
        with urllib.request.urlopen(f"{self.url}/spent", timeout=600) as answer:
            return dict(json.load(answer))

    def make_sick(self, count: int) -> None:
        urllib.request.urlopen(
            urllib.request.Request(f"{self.url}/sick?count={count}", data=b"", method="POST"), timeout=600
        ).close()


def _is_measured(readings: PodReadings) -> bool:
    return not any(one == Missing(Absence.SOURCE_UNAVAILABLE) for one in readings.numbers.values())


def pods_of(fleet: ScaleFleet) -> list[Pod]:
    return [a_pod(name, "r", uid=name, address=fleet.address(i)) for i, name in enumerate(fleet.pods())]


@contextmanager
def source_of(count: int, replicas: int) -> Iterator[str]:
    """Yield the URL of a source, which is a process of its own."""
    [port] = free_ports(1)
    numbers = {"fleets": count, "replicas": replicas, "port": port}
    argv = [word for name, number in numbers.items() for word in (f"--{name}", str(number))]
    process = subprocess.Popen([sys.executable, "-m", "lab.bench.scale_source", *argv])
    url = f"http://127.0.0.1:{port}"
    try:
        _await(url)
        yield url
    finally:
        process.kill()
        process.wait()


def _await(url: str) -> None:
    for _ in range(3000):
        try:
            return urllib.request.urlopen(f"{url}/spent", timeout=60).close()
        except OSError:
            time.sleep(0.1)
    raise TimeoutError("the source of metrics does not answer")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("fleets", type=int)
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--sick", type=int, nargs="*", default=[1, 50])
    chosen = parser.parse_args()
    with source_of(chosen.fleets, chosen.replicas) as url:
        everybody = sorted(fleets(chosen.fleets, chosen.replicas), key=SPARSE)
        looker = Looker(url)
        print(
            f"{chosen.fleets} fleets of {chosen.replicas} replicas, a round of {ROUND.total_seconds():.0f} s"
        )
        print(f"first round    {looker.cost(looker.round(everybody, ())).line}", flush=True)
        print(f"calm           {looker.cost(looker.round(everybody, ())).line}", flush=True)
        for sick in chosen.sick:
            looker.make_sick(sick)
            spent = looker.cost(looker.round(everybody[sick:], everybody[:sick]))
            print(f"{sick:3d} sick       {spent.line}", flush=True)
        looker.close()


if __name__ == "__main__":
    main()
