"""`make bench-supply`: what reusing prefixes and host memory bring, and what the operator makes of them.

First table: shapes of requests on an engine that reuses no prefixes, and on the same one when it does. It
fails where a shape that the operator tries gains less than 10 % of goodput although it shares prefixes, or is
kept although it shares none. Second table: workloads with and without room for twenty pools in the host's
memory. It fails where host memory stays although fewer tokens of requests without a stall come out.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from kvmedic.model.engine import Knob
from kvmedic.model.evidence import Inconclusive
from kvmedic.model.run import Baseline, Verdict
from kvmedic.runbooks.branches import Assignment, Setting, Supply
from kvmedic.runbooks.preemption.levers import confirmation_of, reuse_prefixes, saved_at_most
from kvmedic.runbooks.preemption.pressure import case_of, seen_of
from lab.bench.drive import UNCAPPED, Drive, Outcome, figures_of, seen, verdict_on
from lab.bench.workloads import (
    AZURE_OUTPUT,
    AZURE_PROMPT,
    CHAT_OUTPUT,
    CHAT_PROMPT,
    CPU,
    GPU,
    REASON_OUTPUT,
    REASON_PROMPT,
    SHARE_OUTPUT,
    SHARE_PROMPT,
    Lengths,
    Workload,
    table,
    varied,
)

T = TypeVar("T")

LEAST_GAIN = 1.1
POOLS_IN_HOST = 20
BEGINNINGS = (0, 64, 128, 256, 512, 1024)
"""Tokens that the prompts of one group have in common."""
SHAPES = (
    Workload("chat", varied(120, 0.6, 8, 400), varied(200, 0.7, 10, 900), 600, 16, 48, GPU, tokens=36_000),
    Workload(
        "agents", varied(600, 0.5, 60, 3000), varied(140, 0.8, 10, 700), 1200, 16, 48, GPU, tokens=36_000
    ),
)
HOSTED = (
    Workload("reasoning, slow prefills", REASON_PROMPT, REASON_OUTPUT, 800, 16, 32, tokens=80_000),
    Workload("shared chats, slow prefills", SHARE_PROMPT, SHARE_OUTPUT, 600, 16, 80, tokens=40_000),
    Workload("chat, slow prefills", CHAT_PROMPT, CHAT_OUTPUT, 149, 32, 32, tokens=30_000),
    Workload("chat, accelerator", CHAT_PROMPT, CHAT_OUTPUT, 149, 32, 64, GPU, tokens=40_000),
    Workload("reasoning, accelerator", REASON_PROMPT, REASON_OUTPUT, 1600, 16, 64, GPU, tokens=80_000),
    Workload(
        "Azure, slow prefills", table(AZURE_PROMPT), table(AZURE_OUTPUT), 1500, 16, 64, CPU, tokens=30_000
    ),
)


@dataclass(frozen=True, slots=True)
class PrefixRow:
    """One shape with one common beginning."""

    name: str
    groups: int
    common: int
    saved: float
    goodput: float
    is_tried: bool
    verdict: Verdict

    def __str__(self) -> str:
        tried = "tried" if self.is_tried else "left alone"
        return (
            f"{self.name:8s} {self.groups:6d} {self.common:7d} {self.saved:6.2f} {self.goodput:8.2f}  "
            f"{tried:10s} {self.verdict}"
        )


@dataclass(frozen=True, slots=True)
class HostRow:
    """One workload with and without host memory."""

    name: str
    tail: tuple[float, float]
    stalls: tuple[float, float]
    goodput: float
    verdict: Verdict

    def __str__(self) -> str:
        return (
            f"{self.name:28s} {self.tail[0]:7.2f} {self.tail[1]:7.2f} {self.stalls[0]:7.2f} "
            f"{self.stalls[1]:7.2f} {self.goodput:8.2f}  {self.verdict}"
        )


def prefix_row(shape: Workload, common: int, groups: int) -> PrefixRow:
    """Return what a shape gains if its prompts begin alike in so many ways.

    Raises:
        ValueError: the run is too short to be judged.
    """
    workload = replace(shape, blocks=shape.blocks + common // shape.block_tokens * 4, shared=common)
    off, on = (_run(workload, groups=groups, caching=caching) for caching in (False, True))
    case = case_of(_require_conclusive(seen_of(seen(off), ["bench-0"])))
    advice = reuse_prefixes(case, Setting(None, (), supply=Supply(caches_prefixes=False)))
    return PrefixRow(
        name=shape.name,
        groups=groups,
        common=common,
        saved=saved_at_most(case),
        goodput=on.goodput / off.goodput,
        is_tried=isinstance(advice, Assignment),
        verdict=_verdict(Knob.PREFIX_CACHING, off, on),
    )


def host_row(workload: Workload) -> HostRow:
    off, on = (_run(workload, host_blocks=blocks) for blocks in (0, POOLS_IN_HOST * workload.blocks))
    before, after = _figures(off), _figures(on)
    return HostRow(
        name=workload.name,
        tail=(before.inter_token_tail_seconds, after.inter_token_tail_seconds),
        stalls=(before.stalls_per_request, after.stalls_per_request),
        goodput=on.goodput / off.goodput if off.goodput else 1.0,
        verdict=_verdict(Knob.KV_OFFLOADING_SIZE, off, on),
    )


def _run(workload: Workload, groups: int = 4, *, caching: bool = True, host_blocks: int = 0) -> Outcome:
    drive = Drive(workload, UNCAPPED, _grouped(workload, groups), caching=caching, host_blocks=host_blocks)
    return drive.run(*workload.requests)


def _grouped(workload: Workload, groups: int) -> Iterator[Lengths]:
    for lengths in workload.lengths():
        yield replace(lengths, group=lengths.group % groups)


def _figures(outcome: Outcome) -> Baseline:
    return _require_conclusive(figures_of(outcome))


def _require_conclusive(found: T | Inconclusive) -> T:
    match found:
        case Inconclusive():
            raise ValueError(found.message)
        case _:
            return found


def _verdict(knob: Knob, before: Outcome, after: Outcome) -> Verdict:
    return verdict_on(_figures(before), after, confirmation_of(knob))


def main(arguments: Sequence[str] = ()) -> int:
    """Print both tables; return 0 if the bounds hold, 1 if not. Takes no arguments."""
    print(f"{'shape':8} {'groups':>6} {'common':>7} {'freed':>6} {'goodput':>8}  {'':10} verdict")
    prefixes, hosted = [], []
    for shape in SHAPES:
        for groups in (1, 4):
            for common in BEGINNINGS:
                prefixes.append(prefix_row(shape, common, groups))
                print(prefixes[-1], flush=True)
    print(f"\n{'workload':28} {'tail':>7} {'after':>7} {'stalls':>7} {'after':>7} {'goodput':>8}  verdict")
    for workload in HOSTED:
        hosted.append(host_row(workload))
        print(hosted[-1], flush=True)
    faults = faults_of(prefixes, hosted)
    print(f"\n{'; '.join(faults) or 'all within'}")
    return 1 if faults else 0


def faults_of(prefixes: Sequence[PrefixRow], hosted: Sequence[HostRow]) -> list[str]:
    kept = (Verdict.RECOVERED, Verdict.IMPROVED)
    tried = [row for row in prefixes if row.is_tried]
    faults = [
        f"tried for little: {row.name} +{row.common} x{row.goodput:.2f}"
        for row in tried
        if row.common and row.goodput < LEAST_GAIN
    ]
    faults += [f"kept for nothing: {row.name}" for row in tried if not row.common and row.verdict in kept]
    return faults + [
        f"harm: {row.name} x{row.goodput:.2f}" for row in hosted if row.verdict in kept and row.goodput < 1
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
