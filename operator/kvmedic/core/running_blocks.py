"""How many blocks a running sequence takes, and how many it would: by the gauges, and by what a method keeps.

Gauges see what runs and nothing of why; what a method keeps follows from the lengths of finished requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kvmedic.core.blocks import PASS_TOKENS, Keep, Pattern, used
from kvmedic.core.complete import Complete, total, total_of_told
from kvmedic.core.evidence import Histogram, Observation, Pool, Signal
from kvmedic.core.sizing import Evicted, Occupancy, occupancy_under

SHARED_PREFIXES = 0.05
"""Share of the looked-up tokens found in the prefix cache from which shared blocks matter: at 5 % of the
prompts the mean sequence is at most 5 % smaller."""
RESIDENCE_QUANTILE = 0.99
"""The residence time that a window must cover, so that the lengths of its finished requests count: of 99 in
100. A shorter window counts the short requests and misses the long ones that fill the pool."""


@dataclass(frozen=True, slots=True)
class Passes:
    """What a method does to a sequence while it runs."""

    keep: Keep
    """What each pass leaves of it."""
    pattern: Pattern
    """Where survivors are."""
    every: int = PASS_TOKENS
    """Generated tokens from one pass to the next."""

    def taken(self, tokens: int, block_tokens: int) -> float:
        """Return the blocks of a sequence of so many tokens, half way from one pass to the next."""
        kept = Keep(budget=self.keep.of(tokens) + self.every // 2)
        return used(tokens, block_tokens, kept, self.pattern)


def occupancy_between(prompt: Histogram, output: Histogram, block_tokens: int, passes: Passes) -> Occupancy:
    """Return what a running sequence takes by the tokens that a method keeps.

    Args:
        prompt: lengths of finished requests' prompts.
        output: lengths of their outputs.
        block_tokens: tokens per block.
        passes: what the method does.
    """
    evicted = Evicted(block_tokens, passes.every, lambda tokens: passes.taken(tokens, block_tokens))
    return occupancy_under(prompt, output, evicted)


def blocks_per_running(found: Mapping[str, Complete], pools: Mapping[str, Pool]) -> float:
    """Return blocks in use per running sequence, by the gauges.

    Args:
        found: usage and running sequences of replicas, by pod name.
        pools: pools of at least these.
    """
    in_use = sum(pools[name].blocks * one.numbers[Signal.KV_CACHE_USAGE_MEAN] for name, one in found.items())
    return in_use / max(1.0, total(found, Signal.RUNNING_MEAN))


def hit_share(observation: Observation) -> float:
    """Return the share of prompt tokens found in the prefix cache; 0 where the engine does not tell."""
    queries = total_of_told(observation, Signal.PREFIX_CACHE_QUERIES)
    hits = total_of_told(observation, Signal.PREFIX_CACHE_HITS)
    return min(1.0, hits / queries) if queries > 0 else 0.0
