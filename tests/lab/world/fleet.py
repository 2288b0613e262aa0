"""A fleet and its traffic: run it, read what its engines export, and count what its clients got."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import accumulate

import numpy as np

from kvmedic.model.evidence import Histogram, Measured, Observation, PodReadings, Pool, Reading, Signal
from lab.engine.metrics import family_rows, one_two_five
from lab.engine.settings import StepCost
from lab.world import kernel
from lab.world.kernel import (
    FINISHED,
    HISTOGRAMS,
    NEVER,
    RUNS,
    WAITS,
    Course,
    Floats,
    Records,
    Rules,
    Small,
    State,
    run_fleet,
)

STALL_SECONDS = 2.0
SCRAPE_SECONDS = 15.0
MOST_TABLES = 512
"""Requests of one engine that have begun and not ended, at most."""
EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
UNCAPPED = 1000
TTFT, GAPS = "vllm:time_to_first_token_seconds", "vllm:inter_token_latency_seconds"
E2E = "vllm:e2e_request_latency_seconds"
EXPORTED = (
    (Signal.TIME_TO_FIRST_TOKEN_SECONDS, kernel.TTFT_SUM),
    (Signal.INTER_TOKEN_SECONDS, kernel.GAP_SUM),
    (Signal.E2E_SECONDS, kernel.E2E_SUM),
    (Signal.PREFILL_SECONDS, kernel.PREFILL_SUM),
    (Signal.PROMPT_LENGTH, kernel.PROMPTS),
    (Signal.OUTPUT_LENGTH, kernel.OUTPUTS),
)
"""Histograms in the order in which they are exported, each with the counter of its sum."""


@dataclass(frozen=True, slots=True)
class Engine:
    """What the replicas of a fleet have in common."""

    blocks: int
    block_tokens: int
    cost: StepCost
    max_model_len: int = 16_384

    @property
    def longest(self) -> int:
        """The most tokens of a request: a pool that holds fewer does not start."""
        return min(self.max_model_len, self.blocks * self.block_tokens)


@dataclass(frozen=True, slots=True)
class Traffic:
    """Requests in the order in which they come, the same ones whatever the fleet does with them.

    In a closed loop `arrived` means nothing: each of `clients` sends the next one `think` seconds after an
    answer.
    """

    arrived: Floats
    prompt: Small
    output: Small
    chances: Floats
    """Of each request: two for the router, and one of its key."""
    patience: float = math.inf
    clients: int = 0
    think: float = 0.0
    stagger: float = 0.001


@dataclass(frozen=True, slots=True)
class Swap:
    """At a moment another engine takes a place behind the router; the old one serves what it has."""

    at: float
    place: int
    engine: int


@dataclass(frozen=True, slots=True)
class Served:
    """What clients got and engines exported, over one run."""

    requests: Records
    """Those that came."""
    exported: Floats
    """By engine and column, at the end."""
    pages: Floats
    """The same by moment."""
    scrapes: Floats
    rules: Rules
    engine: Engine

    def in_time(self, since: float, until: float, limit: float) -> float:
        """Return tokens per second of requests that ended then, in time: the truth."""
        q = self.requests
        ended = (q["status"] == FINISHED) & (q["last"] > since) & (q["last"] <= until)
        good = ended & (q["first"] - q["arrived"] <= limit) & (q["gap"] <= STALL_SECONDS)
        return float(q["made"][good].sum()) / (until - since)

    def first_token_p95(self, since: float, until: float) -> float:
        """Return the 95th percentile of the wait for a first token, of those that came then."""
        q = self.requests[(self.requests["arrived"] > since) & (self.requests["arrived"] <= until)]
        waits = np.where(q["made"] > 0, q["first"] - q["arrived"], NEVER)
        return float(np.quantile(waits, 0.95)) if waits.size else 0.0

    def moment(self, at: float) -> int:
        """Return the place of the newest scrape until then."""
        return int(np.searchsorted(self.scrapes, at + 1e-6)) - 1

    def window(self, engine: int, since: float, until: float) -> Floats:
        """Return what an engine exported at each scrape of a window."""
        return self.pages[self.moment(since) : self.moment(until) + 1, engine]

    def readings(self, engine: int, since: float, until: float) -> PodReadings:
        """Return what one engine says of a window, as the operator reads it off the scrapes."""
        pages = self.window(engine, since, until)
        grown, gauges = pages[-1] - pages[0], pages[:, RUNS:HISTOGRAMS]
        running, waiting, usage = gauges.mean(axis=0)
        at = EPOCH + timedelta(seconds=until)
        pool = Pool(self.engine.blocks, self.engine.block_tokens)
        numbers = {
            Signal.PREEMPTIONS: grown[kernel.PREEMPTIONS],
            Signal.REQUESTS_FINISHED: grown[kernel.FINISHES],
            Signal.REQUESTS_ABORTED: grown[kernel.LEAVES],
            Signal.REQUESTS_IN_FLIGHT_CHANGE: grown[RUNS] + grown[WAITS],
            Signal.RUNNING_MEAN: running,
            Signal.RUNNING_MAX: gauges[:, 0].max(),
            Signal.WAITING_MEAN: waiting,
            Signal.WAITING_AT_END: gauges[-1, 1],
            Signal.KV_CACHE_USAGE_MEAN: usage,
            Signal.KV_CACHE_USAGE_MAX: gauges[:, 2].max(),
            Signal.KV_CACHE_USAGE_DEVIATION: gauges[:, 2].std(),
            Signal.GENERATED_TOKENS: grown[kernel.TOKENS],
            Signal.STARTED_SECONDS: EPOCH.timestamp() - 1e6,
        }
        by_signal: dict[Signal, Reading[float]] = {
            name: Measured(float(value), at) for name, value in numbers.items()
        }
        counted: dict[Signal, Reading[Histogram]] = {}
        for (signal, total), bounds, place in zip(
            EXPORTED, self.rules.bounds, self.rules.places, strict=False
        ):
            finite = bounds[np.isfinite(bounds)]
            counts = grown[place : place + finite.size + 1]
            value = Histogram(tuple(finite.tolist()), tuple(counts.tolist()), float(grown[total]))
            counted[signal] = Measured(value, at)
        return PodReadings(by_signal, counted, Measured(pool, at), ("lab",), block_tokens=pool.block_tokens)

    def observe(self, engines: Sequence[int], since: float, until: float) -> Observation:
        """Return one look at some engines."""
        at = EPOCH + timedelta(seconds=until)
        pods = {f"lab-{each}": self.readings(each, since, until) for each in engines}
        return Observation(at, until - since, 0.0, pods)


def serve(
    engine: Engine,
    caps: Sequence[int],
    traffic: Traffic,
    routing: int,
    until: float,
    *,
    places: int | None = None,
    swaps: Sequence[Swap] = (),
    scrape_seconds: float = SCRAPE_SECONDS,
) -> Served:
    """Run a fleet.

    Args:
        engine: what its replicas have in common.
        caps: of each engine; the first `places` of them are there from the start.
        traffic: what comes.
        routing: how the router finds a replica.
        until: seconds that it lasts.
        places: of the router.
        swaps: engines that take a place later.
        scrape_seconds: between two scrapes.
    """
    going = Going(engine, caps, traffic, routing, len(caps) if places is None else places)
    return going.serve(until, swaps, scrape_seconds)


class Going:
    """A fleet of an open world that is served for a while, and goes on from there: it may be changed between.

    Engines are scraped at the end of a while once more at the start of the next one.
    """

    def __init__(
        self, engine: Engine, caps: Sequence[int], traffic: Traffic, routing: int, places: int
    ) -> None:
        self.engine, self.traffic, self.routing = engine, traffic, routing
        self.rules = _rules(engine, traffic)
        self.state = _fresh(engine, caps, traffic, self.rules)
        self.slots = np.arange(places, dtype=np.int32)
        self.came, self.now = 0, 0.0

    def serve(
        self, until: float, swaps: Sequence[Swap] = (), scrape_seconds: float = SCRAPE_SECONDS
    ) -> Served:
        """Return what happens until then."""
        scrapes = np.arange(self.now, until + 1e-9, scrape_seconds)
        pages = np.zeros((scrapes.size, *self.state.exported.shape))
        rows = [(each.at, each.place, each.engine) for each in swaps]
        moves = np.array(rows, dtype=np.float64).reshape(-1, 3)
        course = Course(self.routing, self.traffic.chances, moves, scrapes)
        self.came = run_fleet(self.state, self.rules, course, self.slots, pages, self.came)
        self.now = until
        requests = self.state.requests[: self.came]
        return Served(requests, self.state.exported, pages, scrapes, self.rules, self.engine)

    def set_cap(self, engine: int, cap: int) -> None:
        """Set the cap of an engine, as it starts."""
        self.state.engines[engine]["cap"] = min(cap, self.state.seats.shape[1])


@cache
def _bounds(name: str) -> Floats:
    text = next(row[3] for row in family_rows() if row[0] == name)
    return np.array([float(each) for each in text.split(",")])


def _rules(engine: Engine, traffic: Traffic) -> Rules:
    lengths = np.array(one_two_five(engine.max_model_len), dtype=np.float64)
    bounds = (_bounds(TTFT), _bounds(GAPS), _bounds(E2E), _bounds(E2E), lengths, lengths)
    places = tuple(accumulate((each.size + 1 for each in bounds), initial=HISTOGRAMS))
    padded = np.full((len(bounds), max(each.size for each in bounds) + 1), np.inf)
    for which, each in enumerate(bounds):
        padded[which, : each.size] = each
    cost = engine.cost
    return Rules(
        engine.block_tokens,
        cost.step_seconds,
        cost.token_seconds,
        traffic.patience,
        traffic.think,
        padded,
        np.array(places, np.int32),
    )


def _fresh(engine: Engine, caps: Sequence[int], traffic: Traffic, rules: Rules) -> State:
    engines, pool = len(caps), engine.blocks
    most = min(pool, MOST_TABLES)
    requests = np.zeros(traffic.prompt.size, kernel.REQUEST)
    requests["arrived"], requests["prompt"], requests["output"] = (
        traffic.arrived,
        traffic.prompt,
        traffic.output,
    )
    requests["row"] = -1
    fleet = np.zeros(engines, kernel.ENGINE)
    fleet["cap"], fleet["free"], fleet["rows"] = np.minimum(caps, most), pool, most
    seats = np.zeros((engines, most), kernel.SEAT)
    seats["row"] = np.arange(most)
    blocks = np.zeros((engines, pool + 1), kernel.BLOCK)
    blocks["digest"], ring = -1, np.arange(pool + 1)
    blocks["before"], blocks["after"] = np.roll(ring, 1), np.roll(ring, -1)
    return State(
        requests,
        fleet,
        seats,
        blocks,
        np.zeros((engines, most, -(-engine.longest // engine.block_tokens) + 1), np.int32),
        np.zeros((engines, 2, most), kernel.SHARE),
        np.zeros((engines, 2), kernel.STEP),
        np.zeros((engines, rules.places[-1])),
        np.arange(traffic.clients) * traffic.stagger if traffic.clients else np.full(1, NEVER),
    )
