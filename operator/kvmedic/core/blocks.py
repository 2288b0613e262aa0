"""How many blocks of a paged KV cache become free when a method evicts tokens of one sequence.

A block is free once none of its tokens is left. So what counts is where the survivors are, not how many
they are: evicting seven eighths of the tokens may free seven eighths of the blocks, an eighth, or none.

Formulae, for T tokens of which E are evicted, in blocks of b:

* **scattered**: which tokens survive is the same for all heads and has no order. Of k given tokens all are
  evicted with probability P(k) = E/T x (E-1)/(T-1) x ... (k factors), near (E/T)^k.
* **per head**: each of H heads chooses its own survivors, and a block holds the tokens of all heads: P(k)^H.
* **runs**: survivors stand in runs of L that begin anywhere and may overlap. A token is evicted if no run
  begins at one of L places, k neighbours are if none begins at one of k + L - 1: with many runs
  (E/T)^((k + L - 1)/L).
* **compacted**: survivors are moved together, so that they fill as few blocks as they can.
* **layers**: each of N layers that share a block table chooses its own survivors, so a block is free once all
  of them have evicted its tokens: the probability of one layer to the power N. Compacted survivors fill as
  few blocks in every layer.

Source: counting, checked against drawn evictions in `tests/core/test_blocks.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod, sqrt
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
    """Survivors stand in runs that begin anywhere and may overlap, the same for all heads."""

    length: int
    """Tokens of a run."""


@dataclass(frozen=True, slots=True)
class Compacted:
    """Survivors are moved together after the eviction."""


Pattern: TypeAlias = Scattered | PerHead | InRuns | Compacted

KV_HEADS = 8
"""KV heads of the models of 7 to 72 billion parameters that are served most: Llama 3.1 8B and 70B, Qwen3 8B
to 32B (`num_key_value_heads` in their `config.json`)."""
PASS_TOKENS = 128
"""Generated tokens between two evictions of a sequence (TriAttention's default)."""


@dataclass(frozen=True, slots=True)
class Keep:
    """What a method keeps of one sequence, per head: a number of tokens, or a share of all."""

    budget: int | None = None
    share: float | None = None
    """Above 0, up to 1."""

    def of(self, tokens: int) -> int:
        """Return how many of so many tokens are kept."""
        kept = self.budget if self.budget is not None else round((self.share or 0.0) * tokens)
        return min(tokens, kept)


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


def freed(eviction: Eviction, pattern: Pattern, layers: int = 1) -> Freed:
    """Return how many blocks an eviction frees on average.

    Args:
        eviction: of every layer.
        pattern: where the survivors of a layer are.
        layers: how many choose their own survivors and share a block table; 1: one choice counts for all.

    Raises:
        NoEvictionError: the survivors cannot be as the pattern says, or there is no layer.
    """
    if layers < 1:
        raise NoEvictionError(f"layers is {layers}: 1 or more are needed")
    match pattern:
        case Scattered():
            return _scattered(eviction, layers)
        case PerHead(heads):
            if heads < 1:
                raise NoEvictionError(f"heads is {heads}: 1 or more are needed")
            return _scattered(eviction, heads * layers)
        case InRuns(length):
            if length < 1:
                raise NoEvictionError(f"runs is {length}: 1 or more are needed")
            return Freed(_in_runs(eviction, length, layers), None)
        case Compacted():
            return Freed(float(_most(eviction)), 0.0)
        case _:
            assert_never(pattern)


def used(tokens: int, block_tokens: int, keep: Keep, pattern: Pattern) -> float:
    """Return how many blocks a sequence of so many tokens takes on average, right after an eviction."""
    eviction = Eviction(tokens, block_tokens, tokens - keep.of(tokens))
    return eviction.blocks - freed(eviction, pattern).mean


def _scattered(eviction: Eviction, choices: int) -> Freed:
    """Return what is freed where so many choices, of heads and layers, must agree on a block."""
    empty = {size: _all_evicted(eviction, size) ** choices for _, size in eviction.sizes}
    mean = sum(count * empty[size] for count, size in eviction.sizes)
    square = 0.0
    for count, size in eviction.sizes:
        for others, other in eviction.sizes:
            both = _all_evicted(eviction, size + other) ** choices
            pairs = count * (others - 1) if size == other else count * others
            square += pairs * (both - empty[size] * empty[other])
        square += count * empty[size] * (1 - empty[size])
    return Freed(mean, sqrt(max(0.0, square)))


def _all_evicted(eviction: Eviction, tokens: int) -> float:
    """Return how likely all of some given tokens are evicted."""
    if tokens > eviction.evicted:
        return 0.0
    return prod((eviction.evicted - i) / (eviction.tokens - i) for i in range(tokens))


def _in_runs(eviction: Eviction, length: int, layers: int) -> float:
    share = (eviction.evicted / eviction.tokens) ** layers
    mean: float = sum(count * share ** ((size + length - 1) / length) for count, size in eviction.sizes)
    return min(mean, _most(eviction))


def _most(eviction: Eviction) -> int:
    """Return how many blocks become free where the survivors fill as few as they can."""
    return eviction.blocks - -(-eviction.kept // eviction.block_tokens)
