"""The open half of `make bench-sizing`: caps under arrivals that do not wait, against doing nothing.

    make bench-sizing WORKLOADS=open          # ten drawn workloads; open=20-29: others
    make bench-sizing WORKLOADS=starving      # 100 drawn caps that starve users; starving=200: so many

Each workload gets Poisson arrivals at shares of what its best setting serves. The operator looks at the run
without a cap, by all scrapes and by two pages, and each cap that it plans is run on the same arrivals. Scored
are tokens of requests whose first token came within 30 s and that had no gap over 2 s. A plan that loses over
5 % to doing nothing fails the bench, as do more than two starving caps in a hundred that the verdict keeps.
"""

import random
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import cache

from kvmedic.model.evidence import Inconclusive
from kvmedic.model.run import Baseline, Verdict
from kvmedic.model.spec import Objectives, Trigger
from kvmedic.verdict.comparison import Comparison
from kvmedic.verdict.goals import compare_for_relief
from kvmedic.verdict.served_in_time import FIRST_TOKEN_SECONDS
from lab.bench.drive import UNCAPPED, Drive, OpenDrive, Outcome, chosen_cap, figures_of, saved_pages_cap
from lab.bench.workloads import Workload, drawn

LOADS = (0.8, 0.9, 0.95, 1.05, 1.1)
"""Tokens that are offered, over what the best setting serves without a stall."""
WORST_LOSS = 0.05
SEEDS = range(10)
SWEEP = (0.6, 0.75, 0.9, 1.05)
"""Caps among which the best setting is sought, as shares of the mean running set without one."""
SWEEP_TOKENS, SECONDS, WARM_SHARE = 80_000, 400.0, 0.25
ARRIVALS = 101
"""Seed of the arrivals."""
STARVING, MOST_KEPT = 100, 0.02
LATER = 5.0
"""First token (p95) over that of before, beyond which users starve, if it is over the limit too."""
STARVING_LOADS, STARVING_CAPS = (0.5, 1.0), (0.2, 0.9)
STARVING_SECONDS, STARVING_TOKENS = (150.0, 300.0), 150_000
"""How long such a run lasts, at least and at most, and how many tokens it offers in between."""
DRAWS = 5
"""Caps that are drawn for each one that is to starve users."""


@dataclass(frozen=True, slots=True)
class Planned:
    """What one look led to: a cap, or none, and what it did to tokens served in time."""

    cap: int | None
    reason: str
    gain: float
    """Tokens served in time, over those of doing nothing; 1 without a cap."""

    def __str__(self) -> str:
        return f"{self.reason:>16}" if self.cap is None else f"{self.cap:>8} x{self.gain:<7.2f}"


@dataclass(frozen=True, slots=True)
class Row:
    """One workload at one load."""

    name: str
    load: float
    in_time: float
    """Share of the tokens that are served in time without a cap."""
    looks: tuple[Planned, ...]
    """By all scrapes, and by two pages."""
    most: float = 1.0
    """Tokens served in time by the best cap of a sweep, over those of doing nothing."""

    @property
    def regret(self) -> float:
        """Return what the plan by all scrapes loses to the best of all that was run."""
        return 1 - self.looks[0].gain / self._best

    @property
    def idle_regret(self) -> float:
        """Return what doing nothing loses to it."""
        return 1 - 1 / self._best

    @property
    def _best(self) -> float:
        return max(1.0, self.most, *(look.gain for look in self.looks))

    @property
    def loss(self) -> float:
        """Return what the worst plan loses to doing nothing."""
        return max(0.0, *(1 - look.gain for look in self.looks))

    def __str__(self) -> str:
        looks = " ".join(str(look) for look in self.looks)
        return f"{self.name:14s} {self.load:5.2f} {self.in_time:8.1%} {looks} {self.loss:6.1%}"


HEADER = f"{'workload':14} {'load':>5} {'in time':>8} {'scrapes':>16} {'2 pages':>17} {'loss':>6}"


def rows_of(
    workload: Workload, loads: Sequence[float] = LOADS, sweep: Sequence[float] = ()
) -> tuple[Row, ...]:
    """Return a workload's rows; `sweep`: caps that are run beside the plan, over what runs without one."""
    mean = workload.mean_output
    best, running = _most_goodput(workload, round(SWEEP_TOKENS / mean))
    caps = [max(1, round(running * share)) for share in sweep]
    return tuple(_row(workload, load, load * best / mean, caps) for load in loads)


def _most_goodput(workload: Workload, requests: int) -> tuple[float, float]:
    """Return the tokens per second without a stall that the best setting serves, and who runs without one."""
    warm = max(2 * workload.clients, requests // 4)
    idle = Drive(workload, UNCAPPED).run(warm, requests)
    running = _running(idle)
    caps = {max(1, round(running * share)) for share in SWEEP}
    goodput = max(idle.goodput, *(Drive(workload, cap).run(warm, requests).goodput for cap in caps))
    return goodput, running


def _running(outcome: Outcome) -> float:
    figures = figures_of(outcome)
    found = None if isinstance(figures, Inconclusive) else figures.running_mean
    return found or 1.0


def _row(workload: Workload, load: float, per_second: float, caps: Sequence[int]) -> Row:
    idle = _open(workload, UNCAPPED, per_second)

    @cache
    def gain(cap: int) -> float:
        return _open(workload, cap, per_second).timely_tokens() / max(1, idle.timely_tokens())

    looks = tuple(
        Planned(cap, reason, 1.0 if cap is None else gain(cap))
        for cap, reason in (chosen_cap(idle), saved_pages_cap(idle))
    )
    most = max((gain(cap) for cap in caps), default=1.0)
    return Row(workload.name, load, idle.timely_tokens() / max(1, idle.tokens), looks, most)


def _open(workload: Workload, cap: int, per_second: float, seconds: float = SECONDS) -> Outcome:
    drive = OpenDrive(workload, cap, per_second, random.Random(ARRIVALS), workload.lengths(ARRIVALS))
    return drive.run_for(WARM_SHARE * seconds, seconds)


def open_half(seeds: Sequence[int]) -> int:
    """Print the table of drawn workloads; return 0 if no plan loses too much, 1 if one does."""
    print(HEADER)
    rows: list[Row] = []
    with ProcessPoolExecutor(2) as workers:
        for job in as_completed([workers.submit(rows_of, drawn(seed)) for seed in seeds]):
            rows += job.result()
            print("\n".join(str(row) for row in job.result()), flush=True)
    return judged(rows)


def judged(rows: Sequence[Row]) -> int:
    """Print what the rows come to; return 0 if no plan loses too much, 1 if one does."""
    lost = [row for row in rows if row.loss > WORST_LOSS]
    plans = sum(any(look.cap is not None for look in row.looks) for row in rows)
    worst = max((row.loss for row in rows), default=0.0)
    losses = "; ".join(f"{row.name} at {row.load:g} loses {row.loss:.1%}" for row in lost) or "all within"
    print(f"\n{plans} of {len(rows)} planned, worst loss {worst:.1%}: {losses}")
    return 1 if lost else 0


@dataclass(frozen=True, slots=True)
class Starved:
    """One cap that starves users, and what the verdict says of it."""

    seed: int
    before: Baseline
    after: Baseline
    verdict: Verdict

    @property
    def is_kept(self) -> bool:
        return self.verdict in (Verdict.RECOVERED, Verdict.IMPROVED)

    def __str__(self) -> str:
        first = f"{self.before.time_to_first_token_p95_seconds:.1f} -> "
        first += f"{self.after.time_to_first_token_p95_seconds:.1f} s"
        return f"drawn {self.seed}: first token p95 {first}: {self.verdict}"


def starved_by(seed: int) -> Starved | None:
    """Return what a cap that is drawn does under a load that is drawn; None where nobody starves."""
    workload, chance = drawn(seed), random.Random(seed)
    mean = workload.mean_output
    idle = Drive(workload, UNCAPPED).run(2 * workload.clients, round(SWEEP_TOKENS / 2 / mean))
    offered = chance.uniform(*STARVING_LOADS) * idle.throughput
    shortest, most = STARVING_SECONDS
    seconds = max(shortest, min(most, STARVING_TOKENS / offered))
    cap = max(1, round(chance.uniform(*STARVING_CAPS) * _running(idle)))
    runs = (_open(workload, one, offered / mean, seconds) for one in (UNCAPPED, cap))
    before, after = map(figures_of, runs)
    if isinstance(before, Inconclusive) or isinstance(after, Inconclusive):
        return None
    limit = max(FIRST_TOKEN_SECONDS, LATER * before.time_to_first_token_p95_seconds)
    if after.time_to_first_token_p95_seconds <= limit:
        return None
    said = compare_for_relief(Comparison(before, after, Objectives(), Trigger(0.5, 0.85)))
    return Starved(seed, before, after, said.verdict)


def starving_half(count: int, first: int = 1000) -> int:
    """Print what the verdict says of drawn caps that starve users; return 1 if it keeps too many."""
    found: list[Starved] = []
    with ProcessPoolExecutor(2) as workers:
        jobs = [workers.submit(starved_by, seed) for seed in range(first, first + DRAWS * count)]
        for one in (job.result() for job in as_completed(jobs)):
            found += [one] if one is not None else []
            if one is not None:
                print(f"{len(found):3d} {one}", flush=True)
            if len(found) >= count:
                break
        workers.shutdown(cancel_futures=True)
    kept = [one for one in found if one.is_kept]
    held = sum(one.verdict is Verdict.INCONCLUSIVE for one in found)
    print(f"\n{len(found)} starve, {len(kept)} kept, {held} held: {'; '.join(map(str, kept)) or 'none kept'}")
    return 1 if len(found) < count or len(kept) > MOST_KEPT * count else 0
