"""How many blocks of a paged KV cache become free when a method evicts tokens of one sequence.

A block is free once none of its tokens is left. So what counts is where the survivors are, not how many
they are: evicting seven eighths of the tokens may free seven eighths of the blocks, an eighth, or none.

Formulae, for T tokens of which E are evicted, in blocks of b:

* **scattered**: which tokens survive is the same for all heads and has no order. Of k given tokens all are
  evicted with probability P(k) = E/T x (E-1)/(T-1) x ... (k factors), near (E/T)^k.
* **per head**: each of H heads chooses its own survivors, and a block holds the tokens of all heads: P(k)^H.
* **runs**: survivors stand in runs of L that lie anywhere. Of all ways to lay n runs among E evicted tokens,
  those are counted that leave a block empty.
* **compacted**: survivors are moved together, so that they fill as few blocks as they can.

Source of the first three: counting, checked against drawn evictions in `tests/core/test_reclaim.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, lgamma, prod, sqrt
from typing import TypeAlias, assert_never


@dataclass(frozen=True, slots=True)
class Scattered:
    """Survivors are anywhere, the same for all heads."""


@dataclass(frozen=True, slots=True)
class PerHead:
    """Each head keeps survivors of its own, anywhere."""

    heads: int
    """KV heads that share a block."""


@dataclass(frozen=True, slots=True)
class InRuns:
    """Survivors stand in runs that lie anywhere, the same for all heads."""

    length: int
    """Tokens of a run."""


@dataclass(frozen=True, slots=True)
class Compacted:
    """Survivors are moved together after the eviction."""


Pattern: TypeAlias = Scattered | PerHead | InRuns | Compacted


class NoEvictionError(ValueError):
    """The numbers name no eviction; the message says which number and what it may be."""


@dataclass(frozen=True, slots=True)
class Eviction:
    """Tokens of one sequence in a paged cache, and how many of them are evicted.

    Raises:
        NoEvictionError: there is no such eviction.
    """

    tokens: int
    block_tokens: int
    """Tokens of one block. The last block may be filled in part."""
    evicted: int

    def __post_init__(self) -> None:
        if self.tokens < 1:
            raise NoEvictionError(f"tokens is {self.tokens}: 1 or more are needed")
        if self.block_tokens < 1:
            raise NoEvictionError(f"block-size is {self.block_tokens}: 1 or more are needed")
        if not 0 <= self.evicted <= self.tokens:
            raise NoEvictionError(f"evict is {self.evicted}: 0 to {self.tokens}, which is tokens, may be")

    @property
    def blocks(self) -> int:
        """Return how many blocks the tokens take before the eviction."""
        return -(-self.tokens // self.block_tokens)

    @property
    def kept(self) -> int:
        """Return how many tokens survive."""
        return self.tokens - self.evicted

    @property
    def sizes(self) -> tuple[tuple[int, int], ...]:
        """Return how many blocks hold how many tokens: the full ones, and the last where it is not full."""
        full, rest = divmod(self.tokens, self.block_tokens)
        return tuple(pair for pair in ((full, self.block_tokens), (1, rest)) if pair[0] and pair[1])


@dataclass(frozen=True, slots=True)
class Freed:
    """Blocks that become free."""

    mean: float
    deviation: float | None
    """Standard deviation over evictions of the kind; None where it is not computed."""


def freed(eviction: Eviction, pattern: Pattern) -> Freed:
    """Return how many blocks an eviction frees on average.

    Raises:
        NoEvictionError: the survivors cannot be as the pattern says.
    """
    match pattern:
        case Scattered():
            return _scattered(eviction, 1)
        case PerHead(heads):
            if heads < 1:
                raise NoEvictionError(f"heads is {heads}: 1 or more are needed")
            return _scattered(eviction, heads)
        case InRuns(length):
            return Freed(_in_runs(eviction, length), None)
        case Compacted():
            return Freed(float(eviction.blocks - -(-eviction.kept // eviction.block_tokens)), 0.0)
        case _:
            assert_never(pattern)


def _scattered(eviction: Eviction, heads: int) -> Freed:
    empty = {size: _all_evicted(eviction, size) ** heads for _, size in eviction.sizes}
    mean = sum(count * empty[size] for count, size in eviction.sizes)
    square = 0.0
    for count, size in eviction.sizes:
        for others, other in eviction.sizes:
            both = _all_evicted(eviction, size + other) ** heads
            pairs = count * (others - 1) if size == other else count * others
            square += pairs * (both - empty[size] * empty[other])
        square += count * empty[size] * (1 - empty[size])
    return Freed(mean, sqrt(max(0.0, square)))


def _all_evicted(eviction: Eviction, tokens: int) -> float:
    """Return how likely all of some given tokens are evicted."""
    if tokens > eviction.evicted:
        return 0.0
    return prod((eviction.evicted - i) / (eviction.tokens - i) for i in range(tokens))


def _in_runs(eviction: Eviction, length: int) -> float:
    if length < 1 or eviction.kept % length:
        text = f"runs is {length}: a number that divides the {eviction.kept} tokens that are kept is needed"
        raise NoEvictionError(text)
    runs, starts, found = eviction.kept // length, 0, 0.0
    every = _ways(eviction.evicted, runs)
    for count, size in eviction.sizes:
        for _ in range(count):
            found += _left_empty(eviction, length, runs, (starts, starts + size), every)
            starts += size
    return found


def _left_empty(eviction: Eviction, length: int, runs: int, block: tuple[int, int], every: float) -> float:
    """Return how likely no run touches the tokens of a block.

    Args:
        eviction: the eviction.
        length: tokens of a run.
        runs: how many there are.
        block: its first token, and the first behind it.
        every: logarithm of the number of ways to lay all runs.
    """
    before, behind = block[0], eviction.tokens - block[1]
    fits = range(max(0, runs - behind // length), min(runs, before // length) + 1)
    return sum(
        exp(_ways(before - here * length, here) + _ways(behind - (runs - here) * length, runs - here) - every)
        for here in fits
    )


def _ways(evicted: int, runs: int) -> float:
    """Return the logarithm of the number of ways to lay runs among evicted tokens, in a row."""
    return lgamma(evicted + runs + 1) - lgamma(evicted + 1) - lgamma(runs + 1)
