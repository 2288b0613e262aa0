"""What clients would have got from the fleet as it was: a second fleet, simulated on the same arrivals.

Every recorded request comes once more, at its moment, with its lengths and its client's patience, to
replicas of the same pool, cap and cost of a step, which are never changed. kube-proxy picks a replica by
chance and does not say which, so several such fleets are simulated, and their mean counts. Only arrivals
that do not wait can be replayed: a client of a closed loop would send its next request at another moment.
"""

import math
from collections.abc import Sequence
from statistics import fmean

import numpy as np

from lab.engine.arguments import parse_serve
from lab.engine.config import resolve
from lab.engine.settings import LabSettings
from lab.loadgen.record import Record
from lab.play.manifests import arguments
from lab.play.schema import Engine, Fleet, Route, Scenario
from lab.world import fleet as world
from lab.world.kernel import FINISHED, RANDOM

ROUTINGS = 5
"""Fleets that are simulated, each with other picks of the router."""
SECONDS_TO_END = 90.0
"""For what is under way at the end of the last window: a few times the longest answer."""

Window = tuple[float, float]


def can_be_replayed(scenario: Scenario) -> bool:
    """Return whether its requests come whatever the fleet does, and the world has all of them."""
    alike = {each.patience for each in scenario.load}
    is_open = all(each.rate and not each.shared and each.to is Route.SERVICE for each in scenario.load)
    return scenario.fleet.engine is Engine.LAB and is_open and len(alike) == 1


def tokens_in_time(scenario: Scenario, records: Sequence[Record], windows: Sequence[Window]) -> list[float]:
    """Return tokens per second served in time in each window of Unix seconds.

    Args:
        scenario: the fleet as it was, and what its clients were promised.
        records: every request of the play.
        windows: seconds since and until which it counts.
    """
    engine, cap = _engine(scenario.fleet)
    began = min(each.started_at for each in records)
    ends = max(until for _, until in windows) - began + SECONDS_TO_END
    caps = [cap] * scenario.fleet.replicas
    runs = [
        world.serve(engine, caps, _traffic(scenario, records, began, chance), RANDOM, ends)
        for chance in range(ROUTINGS)
    ]
    return [
        fmean(_in_time(each, since - began, until - began, scenario.first_token_limit) for each in runs)
        for since, until in windows
    ]


def _engine(fleet: Fleet) -> tuple[world.Engine, int]:
    """Return what the fleet's replicas are in the simulated world, and their cap."""
    config = resolve(parse_serve(arguments(fleet)), fleet.environment)
    cost = LabSettings.from_environ(fleet.environment).cost.scaled(config.attention.slowdown)
    usable = config.pool.total_blocks - 1  # the null block is never given to a request
    engine = world.Engine(usable, config.pool.block_size, cost, config.limits.max_model_len)
    return engine, config.limits.max_num_seqs


def _traffic(scenario: Scenario, records: Sequence[Record], began: float, chance: int) -> world.Traffic:
    """Return what came, in its order."""
    came = sorted((each for each in records if each.asked_tokens), key=lambda each: each.started_at)
    patience = scenario.load[0].patience
    return world.Traffic(
        np.array([each.started_at - began for each in came], dtype=np.float64),
        np.array([each.prompt_tokens for each in came], dtype=np.int32),
        np.array([each.asked_tokens for each in came], dtype=np.int32),
        np.random.default_rng(chance).random((len(came), 3)),
        math.inf if patience is None else patience,
    )


def _in_time(served: world.Served, since: float, until: float, limit: float) -> float:
    """Return the tokens per second of a window, those of an answer spread evenly over its time."""
    seen = served.requests
    good = (seen["status"] == FINISHED) & (seen["first"] - seen["arrived"] <= limit)
    kept = seen[good & (seen["gap"] <= world.STALL_SECONDS)]
    inside = np.minimum(kept["last"], until) - np.maximum(kept["first"], since)
    share = np.clip(inside, 0.0, None) / np.maximum(kept["last"] - kept["first"], 1e-3)
    return float((kept["made"] * share).sum()) / (until - since)
