"""`make bench-verdict`: is a change kept or taken back rightly, in fleets whose arrivals do not wait?

    make bench-verdict                          # 300 drawn fleets
    make bench-verdict FLEETS="--fleets 40"      # fewer; --first 1000: other seeds; --starving 100: deep cuts

Each fleet gets a change: a lower cap, a higher one, or none. The truth is a fleet that has it everywhere
against one that has it nowhere, on the same arrivals, by tokens per second of requests that are served in
time: harm is under 0.95 of before, better over 1.05. Beside each other stand the whole fleet before and after
by goodput alone (which knows of no wait for the first token), the same with the floors of today, and some
replicas beside the others (`verdict/side_by_side.py`), with the floor after the walk and the one at planning.
A fleet of one replica has nobody to stand beside: before and after decides. Seeds 1000 to 1119 are those on
which the rule was looked at.
"""

import argparse
import math
import random
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from statistics import median
from time import process_time

from kvmedic.model.evidence import Inconclusive, Measured
from kvmedic.model.run import Baseline, Judged, Verdict
from kvmedic.model.spec import Objectives, Trigger
from kvmedic.runbooks.branches import Evidence
from kvmedic.runbooks.preemption.cap import carries
from kvmedic.runbooks.preemption.cap_size import cap_at
from kvmedic.runbooks.preemption.pressure import case_of, seen_of
from kvmedic.verdict.baseline import baseline_of
from kvmedic.verdict.comparison import GAIN_PER_LOSS, GIVEN_UP, THROUGHPUT_HELD, Comparison
from kvmedic.verdict.counts import Arm, CapChange, Counts, Limits, Routing, count_replica
from kvmedic.verdict.goals import compare_for_relief
from kvmedic.verdict.served_in_time import first_token_limit
from kvmedic.verdict.side_by_side import DECIDE_SECONDS, GO_ON_SECONDS, CanaryVerdict, compare_arms
from lab.bench.workloads import WORKLOADS, Workload, drawn
from lab.world.fleet import EPOCH, UNCAPPED, Served, Swap, Traffic, serve
from lab.world.kernel import FINISHES, LEAST_LOADED, LEAVES, RANDOM, RUNS, STICKY, TWO_CHOICES, WAITS
from lab.world.traffic import Load, capacities, closed_traffic, engine_of, mean_of, open_traffic

START, TRUTH = 900.0, 2100.0
"""Seconds until the change comes, and that the truth is measured over."""
LOOK, WINDOW, STEP, SETTLE = 60.0, 600.0, 240.0, 120.0
"""Seconds between two looks, of a window before or after, from one replica's change to the next, and after
the last one until the window begins."""
WATCH = WINDOW + DECIDE_SECONDS
"""Seconds that both sides are watched for, at most: a new replica is left out for a window at most."""
WINDOWS = 3
"""Windows that today's rule waits for a verdict, at most."""
HARM, BETTER = 0.95, 1.05
DEEP, SOON = 0.7, 10.0
"""What deep harm leaves of what is served in time, at most; and minutes within which it should be stopped."""
ENOUGH = 300
"""Fleets from which the goals are judged: of fewer, a share of 5 % is one or two."""
PATIENCE, LIMIT = 120.0, 30.0
LEAST_GROWTH, LONGEST_ANSWER, MOST_RUNNING = 0.2, 90.0, 60
"""Workloads are drawn until a cap means something there, and a run is soon over."""
ROUTINGS = {"random": RANDOM, "least loaded": LEAST_LOADED, "two choices": TWO_CHOICES, "sticky": STICKY}
CAP_CHANGES = {"lower": CapChange.LOWERED, "raise": CapChange.RAISED}
TRIGGER = Trigger(0.5, 0.85)
LOADS = ("constant", "closed", "ramp", "day", "bursts", "drift")
LOAD_WEIGHTS, ROUTING_WEIGHTS = (50, 17, 9, 9, 7, 9), (38, 22, 20, 19)
MOST_REPLICAS = 20
"""Of a fleet; as many have one to four replicas as five to twenty."""
STARVES_SECONDS, STARVES_TIMES = 30.0, 5.0


@dataclass(frozen=True, slots=True)
class Fleet:
    """One drawn fleet and the change that comes to it."""

    seed: int
    workload: Workload
    change: str
    old: int
    new: int
    replicas: int
    changed: int
    """Replicas that get it first."""
    routing: str
    load: str
    share: float
    """Of the best setting's capacity that is offered; in a closed loop clients over what fits."""
    traffic: Traffic
    limit: float | None
    """Promised seconds to the first token; None: nothing is promised, and clients leave."""
    peak: float
    """Tokens per second of a replica that are offered at the peak."""
    capacity_old: float
    capacity_new: float
    """Tokens per second of a saturated replica."""

    def serve(self, caps: Sequence[int], until: float, swaps: Sequence[Swap] = ()) -> Served:
        """Run it."""
        engine, routing = engine_of(self.workload), ROUTINGS[self.routing]
        return serve(engine, caps, self.traffic, routing, until, places=self.replicas, swaps=swaps)


def draw_fleet(seed: int, *, cuts: bool = False, load: str | None = None) -> Fleet:
    """Return a fleet; `cuts`: with a deep cut under a load that it may starve; `load`: not drawn."""
    chance = random.Random(seed)
    workload, mean, fits, running = _draw_workload(chance)
    replicas = round(math.exp(chance.uniform(math.log(0.75), math.log(MOST_REPLICAS + 0.49))))
    change = "lower" if cuts else chance.choices(("lower", "raise", "same"), (70, 16, 14))[0]
    old, new = _draw_caps(chance, change, fits, deep=cuts)
    caps = {max(1, round(fits * share)) for share in (0.6, 0.8, 1.0, 1.3)} | {UNCAPPED, old, new}
    able = capacities(workload, caps, running)
    best = max(good for good, _ in able.values())
    name = load or (chance.choices(LOADS, LOAD_WEIGHTS)[0] if not cuts else "constant")
    share = chance.uniform(0.5, 1.3) if not cuts else chance.uniform(0.5, 1.05)
    course = _draw_load(chance, name)
    leaves = chance.random() < 0.8
    patience, length = PATIENCE if leaves else math.inf, START + WATCH + max(8, replicas) * STEP + 4 * WINDOW
    if name == "closed":
        share = chance.uniform(0.8, 3.0)
        clients = max(replicas, round(share * fits * replicas))
        most = round(1.3 * length * replicas * max(every for _, every in able.values()) / mean)
        traffic = closed_traffic(workload, clients, most, seed, patience=patience)
        peak = 0.0
    else:
        per_second = share * best / mean * replicas
        traffic = open_traffic(workload, per_second, length, course, seed, patience)
        peak = share * best * (1 + course.swing)
    routing = chance.choices(list(ROUTINGS), ROUTING_WEIGHTS)[0]
    changed = min(chance.randint(1, 3), replicas - 1)
    limit = None if leaves else 0.0
    drawn_as = workload, change, old, new, replicas, changed, routing, name, share, traffic, limit, peak
    return Fleet(seed, *drawn_as, able[old][1], able[new][1])


def _draw_workload(chance: random.Random) -> tuple[Workload, float, int, float]:
    """Return a workload, its mean output, the cap that fits nine times of ten, and how many fit."""
    known = [each for each in WORKLOADS if not each.shared and each.method is None and each.windows is None]
    while True:
        is_known = chance.random() < 0.4
        workload = chance.choice(known) if is_known else replace(drawn(chance.randrange(10**6)), shared=0)
        mean, sequence = mean_of(workload)
        running = workload.blocks / sequence.mean_blocks
        fits = cap_at(workload.blocks, sequence, 1.28)
        seconds = mean * (workload.cost.step_seconds + workload.cost.token_seconds * running)
        is_usual = running <= MOST_RUNNING and seconds <= LONGEST_ANSWER
        if is_usual and fits >= 2 and sequence.growth_share >= LEAST_GROWTH:
            return workload, mean, fits, running


def _draw_caps(chance: random.Random, change: str, fits: int, *, deep: bool) -> tuple[int, int]:
    if change == "raise":
        old = max(1, round(fits * chance.uniform(0.3, 0.9)))
        return old, max(old + 1, round(old * chance.uniform(1.3, 3.0)))
    if change == "same":
        cap = chance.choice((UNCAPPED, fits))
        return cap, cap
    most = 0.7 if deep else 2.0
    return UNCAPPED, max(1, round(fits * math.exp(chance.uniform(math.log(0.2), math.log(most)))))


def _draw_load(chance: random.Random, name: str) -> Load:
    if name == "ramp":
        return Load(name, ramp=chance.choice((-0.5, 0.5)))
    if name == "day":
        return Load(name, swing=0.35, phase=chance.random())
    if name == "bursts":
        return Load(name, burst=chance.uniform(0.5, 2.0))
    if name == "lone burst":
        return Load(name, burst=chance.uniform(1.0, 4.0), burst_every=3600.0, burst_lasts=(LOOK, WINDOW))
    if name == "drift":
        return Load(name, drift=chance.choice((-0.4, 0.4)))
    return Load(name)


@dataclass(frozen=True, slots=True)
class Said:
    """What a rule came to: the change is kept, taken back, or neither; after how many minutes; and why."""

    outcome: str
    minutes: float
    why: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """One fleet, what the change did to it, and what each rule said."""

    seed: int
    change: str
    load: str
    routing: str
    replicas: int
    changed: int
    share: float
    ratio: float
    """Tokens per second served in time: of the fleet that has it everywhere, over the other one."""
    starves: bool
    """First tokens (p95) come after 30 s and five times as late with it."""
    refused: bool
    """By the floor at planning: by true capacities, as VERDICT has it."""
    refused_by_prediction: bool
    """By the operator's own prediction of what the cap serves."""
    goodput: Said
    """Before and after, by preemptions, gaps and tokens of requests that do not stall."""
    today: Said
    """Before and after, with the floors."""
    beside: Said
    """Side by side, without a floor."""
    whole: Said
    """The same and the floor after the walk."""
    hours: float
    """Replica-hours that were simulated."""
    simulated: float
    """Seconds of computing that took."""

    @property
    def kind(self) -> str:
        """Return harm, better or neutral."""
        return "harm" if self.ratio < HARM else "better" if self.ratio > BETTER else "neutral"

    @property
    def final(self) -> Said:
        """Return what all floors together say, that at planning by the operator's own prediction."""
        return Said("back", 0.0, "floor at planning") if self.refused_by_prediction else self.whole

    def __str__(self) -> str:
        return (
            f"{self.seed:6d} {self.change:6} {self.load:9} {self.routing:13} {self.replicas}/{self.changed} "
            f"{self.share:5.2f} x{self.ratio:<6.2f} {self.kind:8}{'starves' if self.starves else '':8} "
            f"P {'no' if self.refused else 'ok'}/{'no' if self.refused_by_prediction else 'ok'} "
            f"goodput {self.goodput.outcome:5} today {self.today.outcome:5} {self.today.minutes:4.0f}  "
            f"beside {self.beside.outcome:5} "
            f"{self.beside.minutes:4.0f} {self.beside.why:22} whole {self.whole.outcome:5} {self.whole.why}"
        )


def try_fleet(fleet: Fleet) -> Row:
    """Return what a change does to a fleet, and what is said of it."""
    began = process_time()
    hours, count = 0.0, fleet.replicas
    before_all = fleet.serve([fleet.old] * count, START + TRUTH)
    after_all = fleet.serve([fleet.new] * count, START + TRUTH)
    first_old, first_new = (
        each.first_token_p95(START, START + TRUTH - LOOK) for each in (before_all, after_all)
    )
    if fleet.limit is not None:
        fleet = replace(fleet, limit=max(10.0, 2 * before_all.first_token_p95(300.0, START)))
    limit = LIMIT if fleet.limit is None else fleet.limit
    served = [each.in_time(START, START + TRUTH, limit) for each in (before_all, after_all)]
    least = 0.005 * fleet.capacity_old * count
    before = _figures(before_all, range(count), (START - WINDOW, START), limit)
    goodput, today, spent = _say_before_and_after(fleet, before)
    hours += 2 * count * (START + TRUTH) / 3600 + spent
    beside, whole, spent = _say_beside(fleet, before) if fleet.changed else (today, today, 0.0)
    return Row(
        fleet.seed,
        fleet.change,
        fleet.load,
        fleet.routing,
        count,
        fleet.changed,
        fleet.share,
        (served[1] + least) / (served[0] + least),
        first_new > max(STARVES_SECONDS, STARVES_TIMES * first_old),
        _is_refused(fleet),
        _is_refused_by_prediction(fleet, before_all),
        goodput,
        today,
        beside,
        whole,
        hours + spent,
        process_time() - began,
    )


def _is_refused(fleet: Fleet) -> bool:
    """Return whether the floor at planning refuses a cap: it serves less than the peak, unlike today's."""
    return fleet.change == "lower" and fleet.capacity_new < fleet.peak <= fleet.capacity_old


def _is_refused_by_prediction(fleet: Fleet, before: Served) -> bool:
    if fleet.change != "lower" or fleet.load == "closed":
        return False
    looked = before.observe(range(fleet.replicas), START - WINDOW, START)
    seen = seen_of(Evidence(looked, looked, TRIGGER), tuple(looked.pods))
    if isinstance(seen, Inconclusive):
        return False
    case = case_of(seen, peaks={name: Measured(fleet.peak, EPOCH) for name in looked.pods})
    return not carries(case, fleet.new)


def _figures(
    served: Served, engines: Sequence[int], window: tuple[float, float], limit: float
) -> Baseline | None:
    found = baseline_of(served.observe(engines, *window), 0, limit)
    return None if isinstance(found, Inconclusive) else found


def _compare(fleet: Fleet, before: Baseline | None, served: Served, end: float) -> Comparison | None:
    """Return the window that ends then, of replicas with the change, against the one before it."""
    limit = first_token_limit(_objectives(fleet))
    after = _figures(served, range(fleet.replicas, 2 * fleet.replicas), (end - WINDOW, end), limit)
    if before is None or after is None:
        return None
    return Comparison(before, after, _objectives(fleet), TRIGGER)


def _objectives(fleet: Fleet) -> Objectives:
    return Objectives() if fleet.limit is None else Objectives(time_to_first_token_p95_seconds=fleet.limit)


def _say_before_and_after(fleet: Fleet, before: Baseline | None) -> tuple[Said, Said, float]:
    """Return what is said once every replica has the change, by goodput and with the floors."""
    count = fleet.replicas
    swaps = [Swap(START + STEP * place, place, count + place) for place in range(count)]
    settled = START + STEP * (count - 1) + SETTLE
    ends = [settled + window * WINDOW for window in range(1, WINDOWS + 1)]
    served = fleet.serve([fleet.old] * count + [fleet.new] * count, ends[-1], swaps)
    changes = [(end, _compare(fleet, before, served, end)) for end in ends]
    goodput, today = (_say_first(changes, rule) for rule in (judge_goodput, compare_for_relief))
    return goodput, today, count * ends[-1] / 3600


def _say_first(
    changes: Sequence[tuple[float, Comparison | None]], rule: Callable[[Comparison], Judged]
) -> Said:
    """Return the first verdict that a rule comes to."""
    for end, change in changes:
        verdict = Verdict.INCONCLUSIVE if change is None else rule(change).verdict
        if verdict is not Verdict.INCONCLUSIVE:
            kept = verdict is not Verdict.NOT_RECOVERED
            return Said("kept" if kept else "back", (end - START) / 60, str(verdict))
    return Said("held", (changes[-1][0] - START) / 60)


def judge_goodput(change: Comparison) -> Judged:
    """Return the verdict of a rule that knows of no wait for the first token, and has no floor.

    Throughput holds, or half of what it lost is won in tokens of requests without a stall; and preemptions
    and gaps between tokens are gone, or clearly fewer.
    """
    lost = 1 - change.throughput
    worth = lost <= 1 - THROUGHPUT_HELD or change.unstalled - 1 >= GAIN_PER_LOSS * lost
    if not worth or change.measure_abort_rise() > GIVEN_UP:
        return change.conclude(Verdict.NOT_RECOVERED)
    if change.is_calm() and change.is_smooth():
        return change.conclude(Verdict.RECOVERED)
    return change.conclude(Verdict.IMPROVED if change.is_better() else Verdict.NOT_RECOVERED)


def _say_beside(fleet: Fleet, before: Baseline | None) -> tuple[Said, Said, float]:
    """Return what both sides say, the same with the floor after the walk, and replica-hours."""
    count, until = fleet.replicas, START + WATCH
    swaps = [Swap(START, place, count + place) for place in range(fleet.changed)]
    caps = [fleet.old] * count + [fleet.new] * count
    served = fleet.serve(caps, until, swaps)
    said = watch(fleet, served)
    hours = count * until / 3600
    if said.outcome in {"back", "held"}:
        return said, said, hours
    begins = START + said.minutes * 60
    rest = range(fleet.changed, count)
    swaps += [Swap(begins + STEP * turn, place, count + place) for turn, place in enumerate(rest)]
    end = swaps[-1].at + SETTLE + WINDOW
    walked = fleet.serve(caps, end, swaps)
    change = _compare(fleet, before, walked, end)
    hours += count * end / 3600
    if said.outcome == "kept":
        return said, _after_walk(said, change, end), hours
    verdict = Verdict.INCONCLUSIVE if change is None else compare_for_relief(change).verdict
    if verdict is Verdict.INCONCLUSIVE:
        held = Said("held", (end - START) / 60, "sticky")
        return held, _after_walk(held, change, end), hours
    kept = Said(
        "back" if verdict is Verdict.NOT_RECOVERED else "kept", (end - START) / 60, f"sticky, {verdict}"
    )
    return kept, kept, hours


def _after_walk(said: Said, change: Comparison | None, end: float) -> Said:
    """Return what the floor after the walk makes of it."""
    if change is None or not (worse := change.sinks_after_walk()):
        return said
    return Said("back", (end - START) / 60, f"floor after the walk: {worse}")


def watch(fleet: Fleet, served: Served) -> Said:
    """Return what looks at both sides come to; neither where keys lead requests to replicas."""
    limits = Limits(_objectives(fleet), cap=CAP_CHANGES.get(fleet.change), must_gain=True)
    count = fleet.replicas
    olds, news = range(fleet.changed, count), range(count, count + fleet.changed)
    skip = _skip(served, olds)
    minutes = round(DECIDE_SECONDS / LOOK)
    old, new = (_arm(served, each, (START + skip, minutes), limits) for each in (olds, news))
    for number in range(1, minutes + 1):
        found = compare_arms(_until(old, number), _until(new, number), limits)
        at = (skip + number * LOOK) / 60
        if found.verdict is CanaryVerdict.ROLL_BACK:
            return Said("back", at, found.decided_by)
        if found.verdict is CanaryVerdict.GO_ON:
            return Said("kept", at, found.decided_by)
        if found.routing is Routing.STICKY and number * LOOK >= GO_ON_SECONDS:
            return Said("walk", at, "sticky")
    return Said("held", (skip + DECIDE_SECONDS) / 60, found.decided_by)


def _skip(served: Served, olds: Sequence[int]) -> float:
    """Return how long a new replica is not looked at: until the requests that it began with are gone."""
    pages = [served.window(each, START - WINDOW, START) for each in olds]
    in_flight = sum(float(page[:, [RUNS, WAITS]].sum(axis=1).mean()) for page in pages)
    finished = sum(float((page[-1] - page[0])[[FINISHES, LEAVES]].sum()) for page in pages)
    stay = in_flight / max(finished / WINDOW, 1e-9)
    return LOOK * math.ceil(max(SETTLE, min(1.5 * stay, WINDOW)) / LOOK)


def _arm(served: Served, engines: Sequence[int], since_minutes: tuple[float, int], limits: Limits) -> Arm:
    since, minutes = since_minutes
    blocks, waiting = [], []
    for number in range(minutes):
        begin = since + number * LOOK
        counts, waits = Counts(), 0.0
        for engine in engines:
            seen = served.window(engine, begin, begin + LOOK)[:, WAITS].tolist()
            counted = count_replica(served.readings(engine, begin, begin + LOOK), LOOK, limits, seen)
            if isinstance(counted, Counts):
                counts += counted
            waits += seen[-1]
        blocks.append(counts)
        waiting.append(waits)
    return Arm(len(engines), tuple(blocks), tuple(waiting))


def _until(arm: Arm, number: int) -> Arm:
    return Arm(arm.replicas, arm.blocks[:number], arm.waiting[:number])


def try_seed(seed: int) -> Row:
    """Return the row of one seed; seeds from `CUTS` on are deep cuts."""
    return try_fleet(draw_fleet(seed, cuts=seed >= CUTS))


CUTS = 1_000_000
"""Seeds from here on draw cuts that may starve users."""


Rule = Callable[[Row], Said]


RULES: tuple[tuple[str, Rule], ...] = (
    ("before and after, by goodput", lambda row: row.goodput),
    ("before and after", lambda row: row.today),
    ("new beside old", lambda row: row.beside),
    ("+ floor after the walk", lambda row: row.whole),
    ("+ floor at planning", lambda row: row.final),
)
"""Each with a line of its own in every table."""


def table(rows: Sequence[Row], title: str) -> str:
    """Return what every rule made of some fleets."""
    kinds = {kind: [row for row in rows if row.kind == kind] for kind in ("harm", "better", "neutral")}
    counts = ", ".join(f"{len(many)} {kind}" for kind, many in kinds.items())
    lines = [f"{title}: {len(rows)} fleets, {counts}"]
    head = "harm kept", "better taken back (held)", "neutral kept/back/held", "minutes to back/keep"
    lines.append(f"  {'':34}" + "".join(f"{each:>26}" for each in head))
    for name, said in RULES:
        lines.append(f"  {name:34}" + _cells(kinds, said, rows))
    return "\n".join(lines)


def _cells(kinds: Mapping[str, Sequence[Row]], said: Rule, rows: Sequence[Row]) -> str:
    harm, better, neutral = ([said(row) for row in kinds[kind]] for kind in ("harm", "better", "neutral"))
    kept = sum(each.outcome == "kept" for each in harm)
    back = sum(each.outcome == "back" for each in better)
    held = sum(each.outcome == "held" for each in better)
    of_neutral = (sum(each.outcome == one for each in neutral) for one in ("kept", "back", "held"))
    minutes = []
    for one in ("back", "kept"):
        found = [said(row).minutes for row in rows if said(row).outcome == one]
        minutes.append(f"{median(found):.0f}" if found else "-")
    cells = (
        f"{kept}/{len(harm)} = {kept / max(1, len(harm)):.0%}",
        f"{back}/{len(better)} = {back / max(1, len(better)):.0%} ({held})",
        " / ".join(map(str, of_neutral)),
        " / ".join(minutes),
    )
    return "".join(f"{each:>26}" for each in cells)


def _stops_soon(said: Said) -> bool:
    return said.outcome == "back" and said.minutes <= SOON


def summary(rows: Sequence[Row]) -> str:
    """Return what the goals are about."""
    deep = [row for row in rows if row.ratio < DEEP]
    several = [row for row in deep if row.changed]
    soon, planned = sum(_stops_soon(row.beside) for row in deep), sum(_stops_soon(row.final) for row in deep)
    lines = [
        f"harm over 30 %: {soon} of {len(deep)} stopped within 10 minutes side by side (of several replicas "
        f"{sum(_stops_soon(row.beside) for row in several)} of {len(several)}), "
        f"{planned} with the floor at planning"
    ]
    cut = [row for row in rows if row.change == "lower" and row.load != "closed"]
    for name, refused in (
        ("true capacities", lambda row: row.refused),
        ("the operator's prediction", lambda row: row.refused_by_prediction),
    ):
        parts = []
        for kind in ("harm", "better", "neutral"):
            many = [row for row in cut if row.kind == kind]
            parts.append(f"{sum(map(refused, many))} of {len(many)} {kind}")
        lines.append(f"floor at planning by {name}, lower caps in open worlds: refused {', '.join(parts)}")
    starving = [row for row in rows if row.starves and row.kind == "harm"]
    lines.append(
        f"starving: {len(starving)}, kept by goodput "
        f"{sum(row.goodput.outcome == 'kept' for row in starving)}, before and after "
        f"{sum(row.today.outcome == 'kept' for row in starving)}, "
        f"side by side {sum(row.beside.outcome == 'kept' for row in starving)}, with both floors "
        f"{sum(row.final.outcome == 'kept' for row in starving)}"
    )
    hours, seconds = sum(row.hours for row in rows), sum(row.simulated for row in rows)
    lines.append(
        f"{hours:.0f} replica-hours in {seconds:.0f} s of computing, {hours / max(1e-9, seconds):.0f}/s"
    )
    return "\n".join(lines)


def missed_goals(rows: Sequence[Row]) -> list[str]:
    """Return the goals that the operator's rule, with all floors, misses.

    A lone replica has none beside it: before and after needs its window, and is over after that.
    """
    harm, better = ([row for row in rows if row.kind == kind] for kind in ("harm", "better"))
    deep = [row for row in rows if row.ratio < DEEP and row.changed]
    cut = [row for row in rows if row.change == "lower" and row.load != "closed"]
    goals = (
        ("harm kept", [row.final.outcome == "kept" for row in harm], (0.0, 0.05)),
        ("better taken back", [row.final.outcome == "back" for row in better], (0.0, 0.3)),
        ("deep harm stopped within 10 minutes", [_stops_soon(row.beside) for row in deep], (0.7, 1.0)),
        (
            "harmful plans refused",
            [row.refused_by_prediction for row in cut if row.kind == "harm"],
            (0.6, 1.0),
        ),
        (
            "helpful plans refused",
            [row.refused_by_prediction for row in cut if row.kind == "better"],
            (0.0, 0.2),
        ),
    )
    return [
        f"{name}: {sum(found)} of {len(found)}, not {least:.0%} to {most:.0%}"
        for name, found, (least, most) in goals
        if found and not least <= sum(found) / len(found) <= most
    ]


GROUPS: Mapping[str, Callable[[Row], bool]] = {
    "all": lambda row: True,
    "even seeds": lambda row: row.seed % 2 == 0,
    "odd seeds": lambda row: row.seed % 2 == 1,
    "one replica": lambda row: row.replicas == 1,
    "2 to 8 replicas": lambda row: 2 <= row.replicas <= 8,
    "9 to 20 replicas": lambda row: row.replicas > 8,
    **{name: lambda row, name=name: row.load == name for name in LOADS},
    **{name: lambda row, name=name: row.routing == name and row.replicas > 1 for name in ROUTINGS},
}
"""Each with a table of its own."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables; return 1 where a goal is missed by as many fleets as goals are about."""
    parser = argparse.ArgumentParser(prog="python -m lab.bench.verdict", description=__doc__)
    parser.add_argument("--fleets", type=int, default=300, help="how many are drawn")
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--starving", type=int, default=0, help="how many deep cuts are drawn in addition")
    parser.add_argument("--workers", type=int, default=2, help="processes")
    parser.add_argument("--rows", action="store_true", help="print each fleet")
    given = parser.parse_args(arguments)
    seeds = [*range(given.first, given.first + given.fleets), *range(CUTS, CUTS + given.starving)]
    rows: list[Row] = []
    with ProcessPoolExecutor(given.workers) as workers:
        for row in workers.map(try_seed, seeds):
            rows.append(row)
            if given.rows:
                print(row, flush=True)
    usual = [row for row in rows if row.seed < CUTS]
    for name, belongs in GROUPS.items():
        print(table([row for row in usual if belongs(row)], name))
    print(summary(rows))
    missed = missed_goals(usual) if len(usual) >= ENOUGH else []
    print("goals: " + ("; ".join(missed) or ("met" if len(usual) >= ENOUGH else f"need {ENOUGH} fleets")))
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
