"""`make bench-day`: a cap that is raised and lowered, over a day of chats and a night of reasoning.

Requests do not wait for each other, and their mix turns within two hours, twice in 30: what fits by night is
far less than by day. Beside each other stand no cap, a cap that is only ever lowered (the ratchet), and one
that goes both ways (`move_cap`): what lowers it is the operator's own plan, with all that speaks against a
cut, and what raises it are its rules and limits. Each looks every ten minutes at what a fleet exports, and
changes one replica in four minutes. It comes to a fleet that has served for some hours, which its source
knows. The measure is tokens per second of requests that are served in time, against the best of some settings
in each hour, which need no restart. A second mix turns every 90 minutes.
"""

import argparse
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from kvmedic.engines.signal_sources import LOW_QUANTILE
from kvmedic.metrics.lengths import APART, DAY, lengths_of
from kvmedic.model.engine import Knob
from kvmedic.model.evidence import Inconclusive, Measured, Observation, PastLengths
from kvmedic.model.spec import LeverBound, Trigger
from kvmedic.runbooks.branches import Assignment, Evidence, Setting
from kvmedic.runbooks.preemption.cap import (
    DAY_SECONDS,
    RAISE_FROM,
    CapUse,
    cap_of,
    cut_cap,
    lasting_room,
    rooms_of,
)
from kvmedic.runbooks.preemption.cap_size import BOLDEST_FIT, SAFEST_FIT, cap_at
from kvmedic.runbooks.preemption.pressure import Case, size_fleet
from lab.bench.workloads import GPU, REASON_OUTPUT, REASON_PROMPT, SHARE_OUTPUT, SHARE_PROMPT, Workload
from lab.world.fleet import MOST_TABLES, Going, Served, Swap, Traffic
from lab.world.kernel import FINISHED, LEFT, RANDOM, RUNS, Floats
from lab.world.traffic import GRID_SECONDS, capacities, engine_of, mean_of, mixed_traffic

HOUR, LOOK, STEP = 3600.0, 600.0, 240.0
"""Seconds of an hour, between two looks, and from one replica's change to the next."""
PLACES, GENERATIONS = 2, 3
"""Replicas, and engines of each that may exist: one that was replaced serves what it has."""
LIMIT, PATIENCE = 30.0, 120.0
LOWER_TO = 0.9
"""What the pool holds over the present cap, at most, for a cut by the ratchet."""
PAUSE_SECONDS, MOST_CHANGES = 1800.0, 4
"""Seconds from one change to the next, and changes within a day, at most: the defaults of
`spec.limits.cooldown` and `maxRunsPerDay`."""
STALLS_PER_REQUEST = 0.05
"""Beyond it, or beyond the trigger, a fleet is pressed."""
TRIGGER = Trigger(0.5, 0.85)
LEVERS = (LeverBound(Knob.MAX_NUM_SEQS),)
POOL = 3072
CHATS = Workload("chats", SHARE_PROMPT, SHARE_OUTPUT, POOL, 16, 0, GPU)
REASONING = Workload("reasoning", REASON_PROMPT, REASON_OUTPUT, POOL, 16, 0, GPU)
KINDS = CHATS, REASONING
TURNS = ((0, 0), (11, 0), (13, 1), (23, 1), (25, 0), (30, 0))
"""Hours since eight in the morning, and the share of reasoning."""
QUARTER_TURN, HALF_TURN = 1.5, 3.0
MIDDLE, SWING, WAVE = 0.82, 0.16, 6.0
"""Load over capacity: its middle, how far it swings to either side, and hours of a wave."""
BEFORE = 4
"""Hours that a fleet has served when a controller comes. Its source reports them; they are not counted."""


def move_cap(use: CapUse, room: int, cut: int | None, changes: Sequence[float]) -> int:
    """Return the cap that an engine should have; the present one where nothing speaks for another.

    Args:
        use: how it fares under the present one.
        room: how many sequences the pool holds, half of the time; the day's most where the mix turns.
        cut: the cap that the operator plans where it lowers it; None where it plans none.
        changes: how many seconds ago the cap was changed.
    """
    recent = [ago for ago in changes if ago < DAY_SECONDS]
    if len(recent) >= MOST_CHANGES or min(recent, default=math.inf) < PAUSE_SECONDS:
        return use.cap
    if room >= RAISE_FROM * use.cap and use.binds_beside_room:
        return room
    return use.cap if cut is None else cut


def day_of(hours: Floats) -> Floats:
    """Return the share of reasoning over a day and a night."""
    return np.interp(hours % TURNS[-1][0], *zip(*TURNS, strict=True))


def turning(hours: Floats) -> Floats:
    """Return the share of reasoning where the mix turns every 90 minutes."""
    return (hours % HALF_TURN >= QUARTER_TURN).astype(float)


MIXES: dict[str, Callable[[Floats], Floats]] = {"day and night": day_of, "turning every 90 min": turning}


@dataclass(frozen=True, slots=True)
class Kind:
    """What an engine makes of one kind of requests."""

    mean_output: float
    bold: int
    """Sequences that the pool holds half of the time."""
    safe: int
    """The same, nine times of ten."""
    most: float
    """Tokens per second without a stall, at the best of both caps or without one."""


def kind_of(workload: Workload) -> Kind:
    """Return how an engine serves nothing but this kind of requests."""
    mean, sequence = mean_of(workload)
    bold, safe = (cap_at(workload.blocks, sequence, fit) for fit in (BOLDEST_FIT, SAFEST_FIT))
    running = workload.blocks / sequence.mean_blocks
    most = max(good for good, _ in capacities(workload, (bold, safe, MOST_TABLES), running).values())
    return Kind(mean, bold, safe, most)


@dataclass(frozen=True, slots=True)
class World:
    """Requests of many hours, and who serves them."""

    hours: int
    """That count."""
    before: int
    """Hours of it that pass until anybody looks."""
    traffic: Traffic

    def start(self, cap: int) -> Going:
        """Return the fleet at its start, every engine under a cap."""
        return Going(engine_of(CHATS), [cap] * PLACES * GENERATIONS, self.traffic, RANDOM, PLACES)


def world_of(mix: str, lasts: tuple[int, int], kinds: tuple[Kind, Kind], seed: int) -> World:
    """Return a world whose load is a share of what the best setting serves of the mix."""
    before, hours = lasts
    at = np.arange(0, (before + hours) * HOUR, GRID_SECONDS) / HOUR
    share = MIXES[mix](at)
    seconds = [kind.mean_output / kind.most for kind in kinds]
    load = MIDDLE + SWING * np.sin(2 * np.pi * at / WAVE)
    rate = PLACES * load / ((1 - share) * seconds[0] + share * seconds[1])
    return World(hours, before, mixed_traffic(KINDS, rate, share, seed, PATIENCE))


@dataclass(slots=True)
class Controller:
    """What sets the cap of a fleet; this one never does."""

    name: str
    cap: int = MOST_TABLES
    changes: list[tuple[float, int, int]] = field(default_factory=list)
    """When the cap was changed, what it was and what it became; as in `status.sized.changes`."""
    asked: list[tuple[float, float]] = field(default_factory=list)
    """Moments of looks, and tokens per second that an engine was asked for then."""
    looks: list[Observation] = field(default_factory=list)
    """At the present engines, of the half hour that is not over yet."""
    lengths: list[PastLengths] = field(default_factory=list)
    """Of the requests that these finished in each half hour."""

    def remember(self, seen: Observation, end: float) -> None:
        """Keep the lengths of a look with those of its half hour, as a source has them at its end."""
        self.looks.append(seen)
        if end % APART.total_seconds() == 0:
            pods = {f"{name}, {look.at}": pod for look in self.looks for name, pod in look.pods.items()}
            lengths = lengths_of(Observation(seen.at, APART.total_seconds(), 0.0, pods))
            self.lengths += [] if lengths is None else [lengths]
            self.looks = []

    def choose(self, _use: CapUse, _case: Case, _now: float, *, is_pressed: bool) -> int:
        """Return the cap that the fleet should have."""
        return self.cap


class Ratchet(Controller):
    """Lowers the cap where the fleet is pressed, and never raises it."""

    def choose(self, use: CapUse, case: Case, now: float, *, is_pressed: bool) -> int:
        """Return the cap that the fleet should have."""
        is_late = not self.changes or now - self.changes[-1][0] >= PAUSE_SECONDS
        cap = cap_of(case)
        return cap if is_pressed and is_late and cap <= LOWER_TO * self.cap else self.cap


class TwoWay(Controller):
    """Follows what the pool holds."""

    def choose(self, use: CapUse, case: Case, now: float, *, is_pressed: bool) -> int:
        """Return the cap that the fleet should have."""
        caps = tuple((now - at, cap) for at, *both in self.changes for cap in both if cap < MOST_TABLES)
        setting = Setting(self.cap, LEVERS, cap_rooms=caps)
        room = cap_at(case.blocks, case.sequence, BOLDEST_FIT)
        plan = cut_cap(case, setting) if is_pressed else None
        cut = int(plan.value) if isinstance(plan, Assignment) else None
        target = lasting_room(room, rooms_of(case, setting, room))
        return move_cap(use, target, cut, [now - at for at, *_ in self.changes])


@dataclass(frozen=True, slots=True)
class DayResult:
    """How a day went."""

    name: str
    hourly: Floats
    """Tokens per second that are served in time, by hour."""
    changes: int
    given_up: float
    """Share of the requests whose clients left."""
    caps: str = ""


def run(world: World, controller: Controller, *, looks: bool = True) -> DayResult:
    """Return how a day goes with a controller."""
    going, engines, generation = world.start(controller.cap), list(range(PLACES)), 0
    caps, swaps, served = [f"{controller.cap}"], list[Swap](), None
    last = world.before + world.hours
    for end in np.arange(LOOK, last * HOUR + 1, LOOK) if looks else [last * HOUR]:
        was_moving = bool(swaps)
        served, swaps = going.serve(float(end), swaps), []
        if not looks or was_moving:
            continue
        cap = _look(served, engines, controller, float(end))
        if cap != controller.cap and end >= world.before * HOUR:
            generation += 1
            fresh = [place + PLACES * (generation % GENERATIONS) for place in range(PLACES)]
            for engine in fresh:
                going.set_cap(engine, cap)
            swaps = [Swap(float(end) + 1 + STEP * place, place, engine) for place, engine in enumerate(fresh)]
            controller.changes.append((float(end), controller.cap, cap))
            # A source reports the past by replica, and these are new.
            controller.cap, engines, controller.looks, controller.lengths = cap, fresh, [], []
            caps.append(f"{cap} ({end / HOUR:.1f} h)")
    if served is None:
        raise ValueError("a day has at least one look")
    counted = range(world.before, last)
    hourly = [served.in_time(hour * HOUR, (hour + 1) * HOUR, LIMIT) for hour in counted]
    status = served.requests["status"]
    ended = np.count_nonzero(status == LEFT) + np.count_nonzero(status == FINISHED)
    given_up = np.count_nonzero(status == LEFT) / ended
    return DayResult(controller.name, np.array(hourly), len(controller.changes), given_up, " -> ".join(caps))


def _look(served: Served, engines: Sequence[int], controller: Controller, end: float) -> int:
    """Return the cap that a controller wants after one look; the present one where nothing can be said."""
    seen = served.observe(engines, end - LOOK, end)
    asked = [most for at, most in controller.asked if end - at <= DAY_SECONDS]
    peaks = {pod: Measured(max(asked), seen.at) for pod in seen.pods} if asked else {}
    controller.remember(seen, end)
    lengths = tuple(each for each in controller.lengths if seen.at - each.at < DAY)
    evidence = Evidence(seen, seen, TRIGGER, peaks=peaks, past_lengths=lengths)
    case = size_fleet(evidence, tuple(seen.pods))
    if isinstance(case, Inconclusive):
        return controller.cap
    controller.asked.append((end, case.offered.now * (case.offered.served_per_second or 0)))
    gauges = np.concatenate([served.window(each, end - LOOK, end)[:, RUNS : RUNS + 3] for each in engines])
    strain = case.strain
    pressed = strain.preemptions_per_request > TRIGGER.preemptions_per_request
    use = CapUse(
        cap=controller.cap,
        seconds=LOOK,
        running_low=float(np.quantile(gauges[:, 0], LOW_QUANTILE)),
        waiting_mean=float(gauges[:, 1].mean()),
        preemptions_per_request=strain.preemptions_per_request,
        kv_cache_usage_ratio=float(gauges[:, 2].mean()),
    )
    pressed = pressed or strain.stalls_per_request > STALLS_PER_REQUEST
    return controller.choose(use, case, end, is_pressed=pressed)


def play(world: World, settings: Sequence[int], night: int) -> list[DayResult]:
    """Return how one path of requests goes: with the best of each hour, with each setting, and controlled.

    `night`: the cap of one who sized the fleet by night and left it so, from which the last row begins.
    """
    fixed = [run(world, Controller(f"always {cap}", cap), looks=False) for cap in settings]
    best = DayResult("best setting of each hour", np.max([day.hourly for day in fixed], axis=0), 0, 0.0)
    both = TwoWay("both ways"), TwoWay(f"both ways, from {night}", night)
    return [best, *fixed, *(run(world, each) for each in (Ratchet("only lowered"), *both))]


def losses_of(paths: Sequence[Sequence[DayResult]], row: int) -> Floats:
    """Return what a row loses to the best setting of each hour, by path."""
    return np.array([1 - path[row].hourly.mean() / path[0].hourly.mean() for path in paths])


def compare(mix: str, lasts: tuple[int, int], seeds: Sequence[int]) -> str:
    """Return the table of one mix: means over the paths, and how far a path's loss deviates."""
    chats, reasoning = kind_of(CHATS), kind_of(REASONING)
    before, hours = lasts
    middle = round((chats.bold * reasoning.bold) ** 0.5)
    settings = sorted({chats.bold, chats.safe, middle, reasoning.bold, reasoning.safe, MOST_TABLES})
    paths = [play(world_of(mix, lasts, (chats, reasoning), seed), settings, reasoning.bold) for seed in seeds]
    lines = [
        f"{mix}, {hours} h after {before}, paths {', '.join(map(str, seeds))}: "
        f"the pool holds {chats.bold} chats or {reasoning.bold} of reasoning",
        f"{'':28}{'in time':>10}{'loss':>8}{'+-':>7}{'a day':>8}{'left':>8}",
    ]
    for row, first in enumerate(paths[0]):
        same = [path[row] for path in paths]
        name = "no cap" if first.name == f"always {MOST_TABLES}" else first.name
        loss = losses_of(paths, row)
        in_time, changes, left = (
            float(np.mean(each))
            for each in (
                [day.hourly for day in same],
                [day.changes * 24 / hours for day in same],
                [day.given_up for day in same],
            )
        )
        lines.append(
            f"{name:28}{in_time:10.0f}{loss.mean():8.1%}{loss.std():7.1%}{changes:8.1f}"
            f"{left:8.1%}  {first.caps if first.changes else ''}"
        )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables; return 0."""
    parser = argparse.ArgumentParser(prog="python -m lab.bench.day", description=__doc__)
    parser.add_argument("--hours", type=int, default=30, help="how long it lasts")
    parser.add_argument("--before", type=int, default=BEFORE, help="hours before, which a source reports")
    parser.add_argument("--mix", choices=MIXES, action="append", help="one mix alone")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1], help="a path of requests for each")
    given = parser.parse_args(arguments)
    table_of = partial(compare, lasts=(given.before, given.hours), seeds=given.seeds)
    with ProcessPoolExecutor(2) as workers:
        for table in workers.map(table_of, given.mix or MIXES):
            print(table, flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
