"""`make bench-sizing`: the operator's cap, from scraped text alone, against the best static cap.

Each workload runs without a cap and at a sweep of caps. What the operator makes of the scrapes of the
uncapped run is compared with the sweep (regret of goodput: output tokens of requests whose longest gap
is 2 s or less), and its verdict on every cap of the sweep with what that cap really did.

Bounds: median regret 3 %, worst 8 %, and no cut where doing nothing is within 1 % of the best.
"""

import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from statistics import median

from kvmedic.core.diagnosis import Assignment, Evidence, Inconclusive, LeverBound, Setting, Trigger, diagnose
from kvmedic.core.engine import Knob
from kvmedic.core.evidence import Observation
from kvmedic.core.verdict import Baseline, Objectives, baseline_of, judge
from kvmedic.engines.vllm_signals import VLLM_SIGNALS
from kvmedic.metrics.exposition import observe_pages, parse_page
from kvmedic.runbooks import RUNBOOKS
from lab.bench.drive import UNCAPPED, Drive, Outcome
from lab.bench.workloads import WORKLOADS, Workload

SWEEP = (0.45, 0.6, 0.7, 0.8, 0.9, 1.0, 1.2)
"""Caps of the sweep, as shares of the mean running set without a cap."""
TRIGGER = Trigger(preemptions_per_request=0.1, kv_cache_usage_ratio=0.85)
"""Lower than the default, so that sizing is asked where a cut must not come, too."""
MEDIAN_REGRET, WORST_REGRET, IDLE_MARGIN = 0.03, 0.08, 0.01
HARM, GAIN = 0.95, 1.05
"""Goodput over that without a cap, under which a cap counts as harmful, and from which as right."""


@dataclass(frozen=True, slots=True)
class Row:
    """One workload: what was best, what the operator chose, and its verdicts."""

    name: str
    running: float
    best_cap: int | None
    idle_share: float
    chosen: int | None
    reason: str
    regret: float
    verdicts: tuple[tuple[str, str], ...]
    """What each cap of the sweep did, and what the operator said."""

    @property
    def is_needless(self) -> bool:
        """Whether the operator cut although doing nothing was as good."""
        return self.chosen is not None and self.idle_share >= 1 - IDLE_MARGIN

    def __str__(self) -> str:
        best = "none" if self.best_cap is None else str(self.best_cap)
        chosen = self.reason if self.chosen is None else str(self.chosen)
        return (
            f"{self.name:34s} {self.running:7.1f} {best:>6} {self.idle_share:7.1%} "
            f"{chosen:>18} {self.regret:7.1%}"
        )


def observed(outcome: Outcome, pages: int) -> Observation:
    """Return what the last pages of a run say."""
    parsed = [parse_page(text, at) for at, text in outcome.pages[-pages:]]
    return observe_pages({"bench-0": parsed}, VLLM_SIGNALS)


def chosen_cap(idle: Outcome) -> tuple[int | None, str]:
    """Return the cap that the operator reads off the scrapes, or None, with its reason."""
    evidence = Evidence(observed(idle, len(idle.pages) // 2), observed(idle, len(idle.pages)), TRIGGER)
    found = diagnose(RUNBOOKS["PreemptionThrash"], evidence)
    if isinstance(found, Inconclusive) or found.branch.then is None:
        return None, str(found.reason)
    advice = found.branch.then(evidence, Setting(None, (LeverBound(Knob.MAX_NUM_SEQS),)))
    return (
        (int(advice.value), str(advice.reason))
        if isinstance(advice, Assignment)
        else (None, str(advice.reason))
    )


def row_of(workload: Workload) -> Row:
    """Return one workload's row of the table."""
    lengths = workload.lengths()
    mean = sum(next(lengths).output for _ in range(2000)) / 2000
    count = round(workload.tokens / mean)
    warm = max(2 * workload.clients, count // 4)
    idle = Drive(workload, UNCAPPED).run(warm, count)
    running = _running(idle)
    cap, reason = chosen_cap(idle)
    caps = sorted({max(1, round(running * share)) for share in SWEEP} | ({cap} if cap else set()))
    swept = {one: Drive(workload, one).run(warm, count) for one in caps}
    best = max(swept.values(), key=lambda outcome: outcome.goodput)
    top = max(best.goodput, idle.goodput)
    used = swept[cap] if cap else idle
    return Row(
        workload.name,
        running,
        best.cap if best.goodput > idle.goodput else None,
        idle.goodput / top,
        cap,
        reason,
        1 - used.goodput / top,
        _verdicts(idle, swept.values()),
    )


def _row_at(index: int) -> Row:
    """Return a row by its workload's place; a workload itself does not travel between processes."""
    return row_of(WORKLOADS[index])


def _running(idle: Outcome) -> float:
    found = [parse_page(text, at).of("vllm:num_requests_running")[0].value for at, text in idle.pages]
    return sum(found) / len(found)


def _did(idle: Outcome, capped: Outcome) -> str:
    gain = capped.goodput / idle.goodput if idle.goodput else 2.0
    return "harm" if gain < HARM else "gain" if gain >= GAIN else "as before"


def _verdicts(idle: Outcome, swept: Iterable[Outcome]) -> tuple[tuple[str, str], ...]:
    """Return what each cap did, and what the operator said of it."""
    before = baseline_of(observed(idle, len(idle.pages)), 0)
    if isinstance(before, Inconclusive):
        return ()
    return tuple((_did(idle, capped), _said(before, capped)) for capped in swept)


def _said(before: Baseline, capped: Outcome) -> str:
    return str(judge(before, observed(capped, len(capped.pages)), Objectives(), TRIGGER, 0).verdict)


def main(names: Sequence[str] = ()) -> int:
    """Print the tables; return 0 if the bounds hold, 1 if not."""
    wanted = [
        index
        for index, workload in enumerate(WORKLOADS)
        if not names or any(name in workload.name for name in names)
    ]
    print(f"{'workload':34} {'running':>7} {'best':>6} {'idle':>7} {'chosen':>18} {'regret':>7}")
    rows = []
    with ProcessPoolExecutor(2) as workers:
        for row in workers.map(_row_at, wanted):
            rows.append(row)
            print(row, flush=True)
    said = Counter(pair for row in rows for pair in row.verdicts)
    print("\nwhat a cap of the sweep did, and the verdict on it")
    for (did, verdict), count in sorted(said.items()):
        print(f"{did:10} {verdict:14} {count:5d}")
    return _judged(rows)


def _judged(rows: Sequence[Row]) -> int:
    regrets = [row.regret for row in rows]
    faults = [f"worst regret {max(regrets):.1%}"] if max(regrets) > WORST_REGRET else []
    faults += [f"median regret {median(regrets):.1%}"] if median(regrets) > MEDIAN_REGRET else []
    faults += [f"needless cut: {row.name}" for row in rows if row.is_needless]
    verdict = "; ".join(faults) or "all within"
    print(f"\nmedian regret {median(regrets):.1%}, worst {max(regrets):.1%}: {verdict}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
