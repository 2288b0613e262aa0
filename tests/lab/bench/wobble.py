"""How far the computed cap wanders between looks at traffic that does not change, and what that costs.

    python -m lab.bench.wobble [WORKLOAD ...]

Each workload runs without a cap over windows of 400 finished requests that have nothing in common but
their distribution: two looks that share no request, the most that chance can move the cap. Printed are
the caps, the share of pairs of them that lie within 5, 10 and 20 % (or one) of each other, and the
goodput of caps that are 10 and 20 % off the median one, against the median's.
"""

import sys
from collections.abc import Sequence
from itertools import combinations
from statistics import mean, median

from lab.bench.drive import UNCAPPED, Drive, chosen_cap
from lab.bench.workloads import WORKLOADS, Workload

NAMES = ("chat", "shared chats", "reasoning, small pool", "even 201 to 500", "bimodal")
"""Workloads that the operator cuts, with pools small enough for many runs."""
WINDOWS = 8
REQUESTS = 400
NEAR = (0.05, 0.1, 0.2)
OFF = (0.8, 0.9, 1.1, 1.2)
JUDGED = 4
"""Windows over which goodput is measured, the same ones for each cap."""


def caps_of(workload: Workload) -> list[int]:
    """Return the caps that windows of a workload lead to; those that lead to none are left out."""
    found = []
    for seed in range(WINDOWS):
        run = Drive(workload, UNCAPPED, workload.lengths(seed)).run(2 * workload.clients, REQUESTS)
        cap, _ = chosen_cap(run)
        found += [] if cap is None else [cap]
    return sorted(found)


def near(caps: Sequence[int], share: float) -> float:
    """Return the share of pairs that lie within a share of the greater one, or within one."""
    pairs = list(combinations(caps, 2))
    return mean(abs(a - b) <= max(1, share * max(a, b)) for a, b in pairs) if pairs else 1.0


def goodput(workload: Workload, cap: int) -> float:
    runs = (
        Drive(workload, cap, workload.lengths(100 + seed)).run(2 * workload.clients, REQUESTS)
        for seed in range(JUDGED)
    )
    return mean(run.goodput for run in runs)


def main(arguments: Sequence[str]) -> None:
    heads = [f"{share:.0%}" for share in NEAR] + [f"x{off:g}" for off in OFF]
    print(f"{'workload':26} {'caps':>22} {' '.join(f'{head:>6}' for head in heads)}")
    for workload in WORKLOADS:
        if workload.name not in (arguments or NAMES):
            continue
        caps = caps_of(workload)
        if not caps:
            print(f"{workload.name:26} {'no cap':>22}", flush=True)
            continue
        middle = round(median(caps))
        best = goodput(workload, middle)
        shares = [near(caps, share) for share in NEAR]
        costs = [goodput(workload, max(1, round(middle * off))) / best for off in OFF]
        shown = " ".join(f"{value:6.1%}" for value in (*shares, *costs))
        print(f"{workload.name:26} {','.join(map(str, caps)):>22} {shown}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
