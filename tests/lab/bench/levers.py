"""`make bench-levers`: the levers beside the cap, chosen from scraped text alone, and what they really do.

For each workload the engine runs as it is, at some watermarks, and at what the operator chooses where it may
turn the cap and the watermark. Regret is the goodput that the choice loses against the best of all of these,
harm the goodput that it loses against leaving things alone. A watermark that the verdict does not keep costs
two restarts for nothing.

The second table has steps of 8192 tokens, and of what the operator lowers them to. The pool stays as it is:
the memory that a real engine frees comes on top, so what is shown is what a smaller step costs.

Bounds: a chosen watermark loses at most 2 % against doing nothing and 5 % against the best, and the verdict
keeps it; a smaller step loses at most 2 %. Runs of these lengths differ by 1 % by chance.
"""

import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

from kvmedic.model.engine import Knob
from kvmedic.model.evidence import Inconclusive
from kvmedic.model.spec import LeverBound
from kvmedic.runbooks.branches import Advice, Assignment, Setting
from kvmedic.runbooks.preemption.levers import limit_step
from kvmedic.runbooks.preemption.pressure import case_of, seen_of
from lab.bench.drive import UNCAPPED, Drive, Outcome, Run, advice_on, figures_of, runs_of, seen, verdict_on
from lab.bench.workloads import LONG_PROMPTS, WORKLOADS, Workload, chosen

WATERMARKS = (0.01, 0.02, 0.05)
LARGE_STEP = 8192
"""Tokens of a step of the second table: vLLM's default from 70 GiB on."""
WORST_HARM, WORST_REGRET, STEP_HARM = 0.02, 0.05, 0.02
UNCUT = ("chat", "chat, accelerator", "shared chats, accelerator", "Azure conversation", "summaries")
"""Workloads of the sizing benchmark: one that is cut, and those that are not."""
SEVERAL = (*LONG_PROMPTS, *(one for one in WORKLOADS if one.name in UNCUT))


@dataclass(frozen=True, slots=True)
class Row:
    """One workload: what watermarks do, and what the operator chose."""

    name: str
    growth: float
    """What of a running sequence is its own output; below 0 where the operator did not get that far."""
    stalls: float
    """Stalls per request as it is."""
    gains: tuple[float, ...]
    """Goodput at each watermark over that without."""
    choice: str
    is_watermark: bool
    ratio: float
    """Goodput of the choice over that of leaving things alone."""
    regret: float
    verdict: str

    def __str__(self) -> str:
        gains = " ".join(f"{gain:7.3f}" for gain in self.gains)
        return (
            f"{self.name:34s} {self.growth:6.2f} {self.stalls:6.2f} {gains}  {self.choice:>22} "
            f"{self.ratio:6.3f} {self.regret:6.1%} {self.verdict}"
        )


@dataclass(frozen=True, slots=True)
class StepRow:
    """One workload: what a smaller step costs."""

    name: str
    choice: str
    ratio: float
    """Goodput over that of large steps; 1 where nothing is changed."""

    def __str__(self) -> str:
        return f"{self.name:34s} {self.choice:>20} {self.ratio:6.3f}"


HEADER = (
    f"{'workload':34} {'growth':>6} {'stalls':>6} {' '.join(f'{mark:7.3f}' for mark in WATERMARKS)}  "
    f"{'chosen':>22} {'x':>6} {'regret':>6} verdict"
)


def row_of(workload: Workload) -> Row:
    run = runs_of(workload)
    idle = run(UNCAPPED)
    marked = [run(UNCAPPED, mark) for mark in WATERMARKS]
    setting = Setting(None, (LeverBound(Knob.MAX_NUM_SEQS), LeverBound(Knob.WATERMARK)), given={})
    advice = advice_on(seen(idle), setting)
    chosen = _at(run, advice)
    best = max(outcome.goodput for outcome in (idle, chosen, *marked))
    growth, stalls = _strained(idle)
    return Row(
        name=workload.name,
        growth=growth,
        stalls=stalls,
        gains=tuple(_ratio(outcome, idle) for outcome in marked),
        choice=_said(advice),
        is_watermark=isinstance(advice, Assignment) and advice.knob is Knob.WATERMARK,
        ratio=_ratio(chosen, idle),
        regret=1 - chosen.goodput / best if best else 0.0,
        verdict=_verdict(idle, chosen) if isinstance(advice, Assignment) else "",
    )


def step_row_of(workload: Workload) -> StepRow:
    warm, count = workload.requests
    large = Drive(workload, UNCAPPED, batched_tokens=LARGE_STEP).run(warm, count)
    found = seen_of(seen(large), ["bench-0"])
    if isinstance(found, Inconclusive):
        return StepRow(workload.name, str(found.reason), 1.0)
    setting = Setting(
        None,
        (LeverBound(Knob.MAX_NUM_BATCHED_TOKENS),),
        given={Knob.MAX_NUM_BATCHED_TOKENS: LARGE_STEP},
        most_sequences=256,
        chunks_prefill=True,
    )
    advice = limit_step(case_of(found), setting)
    if not isinstance(advice, Assignment):
        return StepRow(workload.name, str(advice.reason), 1.0)
    small = Drive(workload, UNCAPPED, batched_tokens=int(advice.value)).run(warm, count)
    return StepRow(workload.name, str(advice.value), _ratio(small, large))


def _at(run: Run, advice: Advice) -> Outcome:
    """Return what the engine does as advised."""
    if not isinstance(advice, Assignment):
        return run(UNCAPPED)
    if advice.knob is Knob.WATERMARK:
        return run(UNCAPPED, float(advice.value))
    return run(int(advice.value))


def _said(advice: Advice) -> str:
    return f"{advice.knob} {advice.value}" if isinstance(advice, Assignment) else str(advice.reason)


def _strained(idle: Outcome) -> tuple[float, float]:
    """Return growth share and stalls per request as the operator reads them."""
    found = seen_of(seen(idle), ["bench-0"])
    if isinstance(found, Inconclusive):
        return -1.0, -1.0
    case = case_of(found)
    return case.sequence.growth_share, case.strain.stalls_per_request


def _ratio(outcome: Outcome, idle: Outcome) -> float:
    return outcome.goodput / idle.goodput if idle.goodput else float(bool(outcome.goodput)) + 1


def _verdict(idle: Outcome, after: Outcome) -> str:
    before = figures_of(idle)
    return str(before.reason if isinstance(before, Inconclusive) else verdict_on(before, after))


def main(arguments: Sequence[str] = ()) -> int:
    """Print both tables; return 0 if the bounds hold, 1 if not.

    Args:
        arguments: parts of workloads' names (all by default), or `drawn=0-98` for some drawn at random.
    """
    rows, steps = [], []
    with ProcessPoolExecutor(2) as workers:
        print(HEADER)
        for row in workers.map(row_of, chosen(arguments, SEVERAL)):
            rows.append(row)
            print(row, flush=True)
        print(f"\n{f'steps of {LARGE_STEP} tokens':34} {'lowered to':>20} {'x':>6}")
        for one in workers.map(step_row_of, chosen([a for a in arguments if "=" not in a], SEVERAL)):
            steps.append(one)
            print(one, flush=True)
    return _judged(rows, steps)


def _judged(rows: Sequence[Row], steps: Sequence[StepRow]) -> int:
    chosen = [row for row in rows if row.is_watermark]
    faults = [f"harm: {row.name} x{row.ratio:.3f}" for row in chosen if row.ratio < 1 - WORST_HARM]
    faults += [f"regret: {row.name} {row.regret:.1%}" for row in chosen if row.regret > WORST_REGRET]
    faults += [f"taken back: {row.name}" for row in chosen if row.verdict == "NotRecovered"]
    faults += [f"small steps: {row.name} x{row.ratio:.3f}" for row in steps if row.ratio < 1 - STEP_HARM]
    print(f"\n{len(chosen)} watermarks chosen: {'; '.join(faults) or 'all within'}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
