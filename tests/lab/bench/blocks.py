"""Blocks that an eviction frees on the lab engine's block tables, against arithmetic.

    python -m lab.bench.blocks --seeds 100

The example everywhere: 14,000 of 16,000 tokens evicted, in 1,000 blocks of 16 tokens. Compaction follows
every pass of 128 tokens, as a method does it; where nothing is moved passes and a single one free the same.
"""

import argparse
import sys
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, stdev

from kvmedic.model import compression as blocks
from lab.engine.blocks import BlockPool
from lab.engine.compression import (
    PASS_TOKENS,
    Compaction,
    Compression,
    Eviction,
    Survival,
    Survivors,
    compress,
)
from lab.engine.requests import BlockTable

TOKENS, EVICTED, BLOCK_TOKENS = 16_000, 14_000, 16
ERRORS = 3.0
"""Standard errors that the mean may be off."""
WHOLE = blocks.Eviction(TOKENS, BLOCK_TOKENS, EVICTED)


@dataclass(frozen=True, slots=True)
class Case:
    """One way to evict, and what arithmetic says of it."""

    name: str
    survival: Survival
    expected: blocks.Pattern | float
    """Where survivors are; or the blocks that come free, where `model/compression.py` has no such pattern."""
    compaction: Compaction | None = None
    step: int = TOKENS
    """Tokens from one pass to the next; by default there is a single one at the end."""
    window: int = 0
    """Newest tokens that are kept whatever their scores, as a part of all that are kept."""

    @property
    def mean(self) -> float:
        is_number = isinstance(self.expected, float)
        return self.expected if is_number else blocks.freed_blocks(WHOLE, self.expected).mean


def freed_though_rescored(window: int) -> float:
    """Return the blocks that come free where each pass draws survivors anew of all that are older.

    Of the older tokens, B of B + 128 survive a pass, so one that has been through n passes is still there
    with probability q^n, q = B / (B + 128), and its block with 1 - (1 - q^n)^16.
    """
    older = TOKENS - EVICTED - window
    share, passes = older / (older + PASS_TOKENS), (TOKENS - window) // PASS_TOKENS
    held = sum(1 - (1 - share**each) ** BLOCK_TOKENS for each in range(1, passes + 1))
    return (TOKENS - window - PASS_TOKENS * held) / BLOCK_TOKENS


CASES = (
    Case("per head (8)", Survival.PER_HEAD, blocks.PerHead(8)),
    Case("scattered", Survival.SCATTERED, blocks.Scattered()),
    Case("scattered, a pass every 128 tokens", Survival.SCATTERED, blocks.Scattered(), step=PASS_TOKENS),
    Case("runs of 8", Survival.RUNS, blocks.InRuns(8)),
    *(
        Case(name, Survival.RESCORED, freed_though_rescored(window), step=PASS_TOKENS, window=window)
        for name, window in (("drawn anew in each pass", 0), ("drawn anew, half of them the newest", 1024))
    ),
    Case("newest", Survival.RECENT, blocks.Compacted()),
    *(
        Case(f"scattered, {words}", Survival.SCATTERED, blocks.Compacted(), compaction, PASS_TOKENS)
        for compaction, words in (
            (Compaction.IN_ORDER, "compacted in order"),
            (Compaction.FILL_HOLES, "holes filled"),
        )
    ),
)


@dataclass(frozen=True, slots=True)
class Counted:
    """What the block tables of many seeds said."""

    case: Case
    freed: tuple[int, ...]
    """Blocks, by seed."""
    moved: float
    """Tokens that compaction moved, on average."""

    @property
    def error(self) -> float:
        """Standard error of the mean; blocks come whole, so one that never varies is known to a tenth."""
        return max(stdev(self.freed) / sqrt(len(self.freed)), 0.1)

    @property
    def off(self) -> float:
        """By how many standard errors the mean is off."""
        return (fmean(self.freed) - self.case.mean) / self.error


def counted(case: Case, seeds: int) -> Counted:
    """Evict once for each seed, and count what came back to the pool."""
    passes = [_evicted(case, seed) for seed in range(seeds)]
    return Counted(case, tuple(freed for freed, _ in passes), fmean(moved for _, moved in passes))


def _evicted(case: Case, seed: int) -> tuple[int, int]:
    """Return blocks freed and tokens moved for one request, pass by pass."""
    eviction = Eviction(case.survival, budget=TOKENS - EVICTED - case.window, window=case.window)
    method = Compression(eviction, compaction=case.compaction)
    survivors = Survivors(eviction, seed)
    pool = BlockPool(TOKENS // BLOCK_TOKENS + 1, caching=False)
    table, moved = BlockTable(BLOCK_TOKENS), 0
    for known in range(case.step, TOKENS + 1, case.step):
        table.positions.extend(range(known - min(case.step, known), known))
        table.blocks += pool.take(table.blocks_short_of(len(table.positions)))
        moved += compress(table, survivors.evict(known), method, pool).moved
    return pool.free_count, moved


def main() -> int:
    """Print the table; return 1 where a mean is off by more than three standard errors."""
    parser = argparse.ArgumentParser(prog="python -m lab.bench.blocks", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="evictions for each row, at least 2")
    seeds = parser.parse_args().seeds
    print(f"{EVICTED:,} of {TOKENS:,} tokens evicted, blocks of {BLOCK_TOKENS}, {seeds} seeds\n")
    print(f"{'survivors':36}{'blocks freed':>18}{'arithmetic':>12}{'off by':>9}{'tokens moved':>14}")
    rows = []
    for case in CASES:
        found = counted(case, seeds)
        rows.append(found)
        seen = f"{fmean(found.freed):.1f} +- {stdev(found.freed):.1f}"
        print(
            f"{case.name:36}{seen:>18}{case.mean:>12.1f}{found.off:>+6.1f} se{found.moved:>14.0f}", flush=True
        )
    worst = max(abs(each.off) for each in rows)
    print(f"\nworst: off by {worst:.1f} standard errors of the mean (at most {ERRORS:g})")
    return 0 if worst <= ERRORS else 1


if __name__ == "__main__":
    sys.exit(main())
