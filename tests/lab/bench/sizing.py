"""`make bench-sizing`: the operator's cap, from scraped text alone, against the best static cap.

Each workload runs without a cap and at a sweep of caps. What the operator makes of the scrapes of the
uncapped run is compared with the sweep: regret of what is served in time (output tokens of requests whose
longest gap is 2 s or less and whose first token comes soon enough), and of goodput, which leaves the first
token out; and its verdict on every cap of the sweep with what that cap really did. Beside it: what
two pages alone give, halving until preemptions are few, and the pool over the greatest length.

Soon enough is 30 s. Clients of a closed loop never leave: where they wait for longer, twice what 95 % of them
wait without a cap, as the operator has it. Beside the closed loop stand arrivals that do not wait, at two
loads, with 30 s.

Bounds, all by what is served in time: median regret 3 %, worst 8 %, one restart, and no cut where doing
nothing is within 1 % of the best. Traffic that turns in the middle: 10 % in two restarts. Where arrivals
do not wait no plan loses 5 % to doing nothing.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from statistics import median

from kvmedic.model.evidence import Inconclusive
from kvmedic.model.run import Baseline
from kvmedic.verdict.served_in_time import FIRST_TOKEN_SECONDS
from lab.bench import open_loop
from lab.bench.drive import (
    UNCAPPED,
    Outcome,
    Run,
    chosen_cap,
    figures_of,
    parse_once,
    runs_of,
    saved_pages_cap,
    verdict_on,
)
from lab.bench.open_loop import SEEDS, STARVING, WORST_LOSS, open_half, starving_half
from lab.bench.shift import SHIFTS, Turned, turned_by
from lab.bench.workloads import WORKLOADS, Workload, chosen, range_of

SWEEP = (0.45, 0.6, 0.7, 0.8, 0.9, 1.0, 1.2)
"""Caps of the sweep, as shares of the mean running set without a cap."""
MEDIAN_REGRET, WORST_REGRET, IDLE_MARGIN = 0.03, 0.08, 0.01
SHIFT_REGRET, SHIFT_RESTARTS = 0.10, 2
HARM, GAIN = 0.95, 1.05
"""Served in time over that without a cap, under which a cap counts as harmful, and from which as right."""
DEFAULT_CAP = 256
"""Where halving begins: vLLM's default on most accelerators."""
OPEN = ("open", "starving")
"""What begins the names of the open half's parts."""
OPEN_LOADS = (0.9, 1.05)
"""Offered tokens over what the best setting serves: what it carries, and a little more than that."""
OPEN_SWEEP = (0.75, 0.9)
"""Caps that are run beside the plan there, as shares of the mean running set of the crowd."""
FEW_PREEMPTIONS = 0.5
"""Preemptions per request at which halving stops: the default trigger."""


@dataclass(frozen=True, slots=True)
class Row:
    """One workload: what was best, what the operator chose, and its verdicts."""

    name: str
    running: float
    best_cap: int | None
    idle_share: float
    chosen: int | None
    reason: str
    limit: float
    """Seconds up to which a first token is in time."""
    regret: float
    """Served in time, lost to the cap of the sweep that serves most so."""
    regret_soon: float
    """The same with 30 s for everybody."""
    regret_goodput: float
    """Goodput, lost to the cap of the sweep that has most of it."""
    from_pages: float
    """Regret of the cap by two pages, of what is served in time."""
    halving: float
    halvings: int
    """Restarts until halving stops."""
    by_length: float
    """Regret of the pool over the greatest length."""
    verdict: str
    """On the operator's own cap."""
    verdicts: tuple[tuple[str, str], ...]
    """What each cap of the sweep did, and what the operator said."""
    opened: tuple[open_loop.Row, ...] = ()
    """How it fares where arrivals do not wait."""

    @property
    def restarts(self) -> int:
        """Restarts that the operator's choice takes."""
        return int(self.chosen is not None)

    @property
    def is_needless(self) -> bool:
        """Whether the operator cut although doing nothing was as good."""
        return self.chosen is not None and self.idle_share >= 1 - IDLE_MARGIN

    def __str__(self) -> str:
        best = "none" if self.best_cap is None else str(self.best_cap)
        chosen = self.reason if self.chosen is None else str(self.chosen)
        return (
            f"{self.name:31s} {self.limit:4.0f} {best:>5} {self.idle_share:7.1%} {chosen:>16} "
            f"{self.regret:7.1%} {self.regret_soon:7.1%} {self.regret_goodput:7.1%}"
            + "".join(_open_cells(one) for one in self.opened)
        )

    @property
    def others(self) -> str:
        """Return what other rules lose, in one line."""
        return (
            f"{self.name:31s} {self.running:7.1f} {self.verdict:>14} {self.from_pages:8.1%} "
            f"{self.halving:8.1%} ({self.halvings}) {self.by_length:8.1%}"
        )


def _open_cells(one: open_loop.Row) -> str:
    cap = one.looks[0].cap
    return f"  {'-' if cap is None else cap:>4} {one.idle_regret:6.1%} {one.regret:6.1%}"


HEADER = (
    f"{'':64} {'chosen, lost of':>23}"
    + "".join(f"  {'open, load ' + str(load):>18}" for load in OPEN_LOADS)
    + f"\n{'workload':31} {'in':>4} {'best':>5} {'idle':>7} {'chosen':>16} {'in time':>7} {'30 s':>7} "
    + f"{'goodput':>7}"
    + f"  {'cap':>4} {'idle':>6} {'cap':>6}" * len(OPEN_LOADS)
)
OTHERS = f"{'workload':31} {'running':>7} {'verdict':>14} {'2 pages':>8} {'halving':>12} {'pool/len':>8}"


def row_of(workload: Workload) -> Row:
    run = runs_of(workload)
    idle = run(UNCAPPED)
    running = _running(idle)
    (cap, reason), (from_pages, _) = chosen_cap(idle), saved_pages_cap(idle)
    at_caps = [run(max(1, round(running * share))) for share in SWEEP]
    at_caps += [run(one) for one in (cap, from_pages) if one is not None]
    halved, halvings = _halved(run, idle)
    before = figures_of(idle)
    limit = FIRST_TOKEN_SECONDS if isinstance(before, Inconclusive) else before.first_token_limit_seconds
    best = max((*at_caps, halved), key=lambda outcome: outcome.served_in_time(limit))
    pool = workload.blocks * workload.block_tokens

    def regret(chosen: Outcome, measure: Callable[[Outcome], float]) -> float:
        top = max(measure(one) for one in (*at_caps, halved, idle))
        return 1 - measure(chosen) / top if top else 0.0

    def in_time(outcome: Outcome) -> float:
        return outcome.served_in_time(limit)

    ours = run(cap or UNCAPPED)
    return Row(
        name=workload.name,
        running=running,
        best_cap=best.cap if in_time(best) > in_time(idle) else None,
        idle_share=1 - regret(idle, in_time),
        chosen=cap,
        reason=reason,
        limit=limit,
        regret=regret(ours, in_time),
        regret_soon=regret(ours, Outcome.served_in_time),
        regret_goodput=regret(ours, lambda outcome: outcome.goodput),
        from_pages=regret(run(from_pages or UNCAPPED), in_time),
        halving=regret(halved, in_time),
        halvings=halvings,
        by_length=regret(run(max(1, pool // workload.max_model_len)), in_time),
        verdict="" if cap is None or isinstance(before, Inconclusive) else verdict_on(before, ours),
        verdicts=() if isinstance(before, Inconclusive) else _verdicts(before, idle, at_caps),
        opened=open_loop.rows_of(workload, OPEN_LOADS, OPEN_SWEEP),
    )


def _halved(run: Run, idle: Outcome) -> tuple[Outcome, int]:
    """Return where halving the cap ends, and after how many restarts."""
    cap, restarts, outcome = DEFAULT_CAP, 0, idle
    while cap > 1 and _preemptions(outcome) > FEW_PREEMPTIONS:
        cap, restarts = cap // 2, restarts + 1
        # A cap over what ever runs at once changes nothing.
        outcome = run(cap) if cap < _most_running(idle) else idle
    return outcome, restarts


def _series(outcome: Outcome, name: str) -> list[float]:
    return [parse_once(text, at).find(name)[0].value for at, text in outcome.pages]


def _running(idle: Outcome) -> float:
    found = _series(idle, "vllm:num_requests_running")
    return sum(found) / len(found)


def _most_running(idle: Outcome) -> float:
    return max(_series(idle, "vllm:num_requests_running"))


def _preemptions(outcome: Outcome) -> float:
    found = _series(outcome, "vllm:num_preemptions_total")
    return (found[-1] - found[0]) / outcome.finished


def _did(idle: Outcome, capped: Outcome, limit: float) -> str:
    served = idle.served_in_time(limit)
    gain = capped.served_in_time(limit) / served if served else 2.0
    return "harm" if gain < HARM else "gain" if gain >= GAIN else "as before"


def _verdicts(before: Baseline, idle: Outcome, at_caps: Iterable[Outcome]) -> tuple[tuple[str, str], ...]:
    once, limit = {outcome.cap: outcome for outcome in at_caps}, before.first_token_limit_seconds
    return tuple((_did(idle, capped, limit), verdict_on(before, capped)) for capped in once.values())


def main(arguments: Sequence[str] = ()) -> int:
    """Print the tables; return 0 if the bounds hold, 1 if not.

    Args:
        arguments: parts of workloads' names (all by default), or `drawn=0-98` for some drawn at random; or
            `open` and `starving` for the open half (`lab.bench.open_loop`).
    """
    halves = [_open_half(*text.partition("=")[::2]) for text in arguments if text.startswith(OPEN)]
    if halves:
        return max(halves)
    turning = [s for s in SHIFTS if not arguments or any(text in s.name for text in arguments)]
    rows, turned = [], []
    with ProcessPoolExecutor(2) as workers:
        print(HEADER)
        for row in workers.map(row_of, chosen(arguments, WORKLOADS)):
            rows.append(row)
            print(row, flush=True)
        print("\n" + "\n".join([OTHERS, *(row.others for row in rows)]))
        print(f"\n{'traffic that turns':34} {'caps':>18} {'best':>6} {'regret':>7} {'restarts':>8}")
        for one in workers.map(turned_by, turning):
            turned.append(one)
            print(one, flush=True)
    said = Counter(pair for row in rows for pair in row.verdicts)
    print("\nwhat a cap of the sweep did, and the verdict on it")
    for (did, verdict), count in sorted(said.items()):
        print(f"{did:10} {verdict:14} {count:5d}")
    return _judged(rows, turned)


def _open_half(name: str, which: str) -> int:
    """Run a part of the open half; it names drawn workloads, or how many starving caps there should be."""
    if name == "open":
        return open_half(range_of(which) if which else SEEDS)
    return starving_half(int(which or STARVING))


def _judged(rows: Sequence[Row], turned: Sequence[Turned]) -> int:
    regrets = [row.regret for row in rows] or [0.0]
    faults = [f"worst regret {max(regrets):.1%}"] if max(regrets) > WORST_REGRET else []
    faults += [f"median regret {median(regrets):.1%}"] if median(regrets) > MEDIAN_REGRET else []
    faults += [f"needless cut: {row.name}" for row in rows if row.is_needless]
    faults += [f"taken back: {row.name}" for row in rows if row.verdict == "NotRecovered"]
    faults += [f"{one.name}: regret {one.regret:.1%}" for one in turned if one.regret > SHIFT_REGRET]
    faults += [f"{one.name}: {one.restarts} restarts" for one in turned if one.restarts > SHIFT_RESTARTS]
    opened = [one for row in rows for one in row.opened]
    faults += [f"{one.name} loses {one.loss:.1%} at {one.load}" for one in opened if one.loss > WORST_LOSS]
    summary = "; ".join(faults) or "all within"
    for name, values in (
        ("within 30 s", [row.regret_soon for row in rows]),
        ("goodput", [row.regret_goodput for row in rows]),
        *((f"open, load {load}", [one.regret for one in opened if one.load == load]) for load in OPEN_LOADS),
    ):
        print(f"{name}: median regret {median(values or [0.0]):.1%}, worst {max(values, default=0.0):.1%}")
    print(f"served in time: median regret {median(regrets):.1%}, worst {max(regrets):.1%}: {summary}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
