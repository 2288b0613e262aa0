"""What comes to a fleet: requests that do not wait for each other, drawn beforehand."""

import math
from collections.abc import Collection
from dataclasses import dataclass
from itertools import islice

import numpy as np

from kvmedic.model.readings import Moments
from kvmedic.verdict.occupancy import Occupancy, occupancy
from lab.bench.workloads import Workload
from lab.world.fleet import Engine, Traffic, serve
from lab.world.kernel import TOKENS, Floats

GRID_SECONDS = 5.0
"""The rate of arrivals is constant for so long."""
KEYS, SKEW = 60, 0.7
"""Keys that a sticky router knows, and by how much the next one has fewer requests (a power of its rank)."""


@dataclass(frozen=True, slots=True)
class Load:
    """How the load goes over time. Rates are relative to the mean; hours count from the start."""

    name: str = "constant"
    ramp: float = 0.0
    """By how much the rate has changed after an hour."""
    swing: float = 0.0
    """How far it swings to either side."""
    period: float = 7200.0
    phase: float = 0.0
    burst: float = 0.0
    """By how much it is higher in a burst."""
    burst_every: float = 600.0
    """Seconds from one burst to the next, on average."""
    burst_lasts: tuple[float, float] = (60.0, 240.0)
    """Seconds that a burst lasts, at least and at most."""
    drift: float = 0.0
    """By how much longer outputs are after an hour."""


def engine_of(workload: Workload) -> Engine:
    """Return the engine of a workload."""
    return Engine(workload.blocks, workload.block_tokens, workload.cost, workload.max_model_len)


def mean_of(workload: Workload, number: int = 4000) -> tuple[float, Occupancy]:
    """Return a workload's mean output, and what a running sequence takes."""
    drawn = list(islice(workload.lengths(1), number))
    outputs = np.array([each.output for each in drawn], dtype=np.float64)
    prompts = np.array([each.prompt for each in drawn], dtype=np.float64)
    moments = (Moments(*(float((each**power).mean()) for power in (1, 2, 3))) for each in (prompts, outputs))
    return float(outputs.mean()), occupancy(*moments, workload.block_tokens)


def rates(load: Load, seconds: float, chance: np.random.Generator) -> Floats:
    """Return the rate of arrivals over time, relative to its mean, in steps of the grid."""
    at = np.arange(0.0, seconds, GRID_SECONDS)
    found = 1 + load.ramp * at / 3600
    found *= 1 + load.swing * np.sin(2 * math.pi * (at / load.period + load.phase))
    begins = chance.exponential(load.burst_every)
    while load.burst and begins < seconds:
        lasts = chance.uniform(*load.burst_lasts)
        found[(at >= begins) & (at < begins + lasts)] *= 1 + load.burst
        begins += lasts + chance.exponential(load.burst_every)
    return np.maximum(found, 0.05)


def open_traffic(
    workload: Workload, per_second: float, seconds: float, load: Load, seed: int, patience: float = math.inf
) -> Traffic:
    """Return Poisson arrivals whose rate follows a load."""
    chance = np.random.default_rng(seed)
    arrived = _arrivals(rates(load, seconds, chance) * per_second, chance)
    return _with_lengths(workload, arrived, load, seed, patience)


def mixed_traffic(
    kinds: tuple[Workload, Workload], rate: Floats, share: Floats, seed: int, patience: float = math.inf
) -> Traffic:
    """Return Poisson arrivals of two kinds, for one engine.

    Args:
        kinds: of requests.
        rate: arrivals per second, in steps of the grid.
        share: of the second kind, over the same steps.
        seed: of all chance.
        patience: seconds without a token after which a client leaves.
    """
    chance = np.random.default_rng(seed)
    arrived = _arrivals(rate, chance)
    is_second = chance.random(arrived.size) < share[(arrived / GRID_SECONDS).astype(int)]
    parts = [
        _with_lengths(kind, arrived[place], Load(), seed, patience)
        for kind, place in zip(kinds, (~is_second, is_second), strict=True)
    ]
    prompt, output = (np.zeros(arrived.size, np.int32) for _ in range(2))
    for place, part in zip((~is_second, is_second), parts, strict=True):
        prompt[place], output[place] = part.prompt, part.output
    return Traffic(arrived, prompt, output, chance.random((arrived.size, 3)), patience)


def _arrivals(rate: Floats, chance: np.random.Generator) -> Floats:
    counts = chance.poisson(rate * GRID_SECONDS)
    begins = np.repeat(np.arange(rate.size) * GRID_SECONDS, counts)
    return np.sort(begins + chance.uniform(0, GRID_SECONDS, begins.size))


def closed_traffic(
    workload: Workload,
    clients: int,
    requests: int,
    seed: int,
    *,
    think: float = 1.0,
    patience: float = math.inf,
) -> Traffic:
    """Return what clients send, each one request at a time."""
    found = _with_lengths(workload, np.zeros(requests), Load(), seed, patience)
    return Traffic(
        found.arrived, found.prompt, found.output, found.chances, patience, clients, think, think / clients
    )


def _with_lengths(workload: Workload, arrived: Floats, load: Load, seed: int, patience: float) -> Traffic:
    chance = np.random.default_rng([seed, 1])
    drawn = list(islice(workload.lengths(seed), arrived.size))
    longest = engine_of(workload).longest
    prompt = np.minimum([each.prompt for each in drawn], longest - 2).astype(np.int32)
    output = np.array([each.output for each in drawn]) * (1 + load.drift * arrived / 3600)
    output = np.clip(output, 1, longest - prompt).astype(np.int32)
    chances = chance.random((arrived.size, 3))
    popular = np.arange(1, KEYS + 1) ** -SKEW
    keys = chance.choice(KEYS, arrived.size, p=popular / popular.sum())
    chances[:, 2] = chance.random(KEYS)[keys]
    return Traffic(arrived, prompt, output, chances, patience)


def capacities(
    workload: Workload, caps: Collection[int], running: float, seconds: float = 400.0
) -> dict[int, tuple[float, float]]:
    """Return tokens per second of a saturated engine by its cap: of requests without a stall, and all.

    Args:
        workload: what comes; the same requests under each cap.
        caps: of the engine.
        running: sequences that it runs without a cap, about.
        seconds: that are measured, after a quarter of it.
    """
    mean, _ = mean_of(workload, 500)
    clients = max(4, round(2.5 * running))
    most = round(seconds * 1.25 * (running + 1) / workload.cost.step_seconds / mean) + 2 * clients
    traffic = closed_traffic(workload, clients, most, 3)
    since, until = 0.25 * seconds, 1.25 * seconds
    found = {}
    for cap in caps:
        served = serve(engine_of(workload), [cap], traffic, 0, until)
        pages = served.window(0, since, until)
        tokens = pages[-1] - pages[0]
        found[cap] = served.in_time(since, until, math.inf), float(tokens[TOKENS]) / seconds
    return found
