"""What a long generation on a trial pod shows: whether blocks come back as tokens are evicted.

One request runs alone, its tokens are counted as they come, and used blocks are read every second. Of each
class of methods arithmetic (`core/blocks.py`) says how many blocks are in use at each of those counts. Both,
what was seen and what each class predicts, become a straight line over the second half of the generation: its
slope is the share of each further token's memory that stays taken. The class whose slope is nearest is the
verdict, as long as it is far enough from the others and used blocks at the end stand where it has them.

A slope of nothing is not enough: a method that scores anew in each pass also comes to rest, at several times
the blocks. So `Reclaims` rests on a ratio: blocks in use over those that compaction would need. For blocks of
b it is 1 + 1/2 + ... + 1/b (3.4 for 16) where survivors of each pass are drawn anew, and near 2.3 where half
of the budget is a window of the newest tokens (both counted in `tests/core/test_reclamation_probe.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from itertools import pairwise
from math import isfinite, sqrt
from statistics import NormalDist, fmean
from typing import TypeAlias

from kvmedic.core.blocks import PASS_TOKENS, Compacted, Keep, Pattern, PerHead, Scattered, used

LEAST_TOKENS = 16_384
"""Generated tokens without which nothing is judged: there scattered eviction and compaction differ by a
factor of seven in blocks freed (118 against 875 of 1,000, keeping 2k of 16k)."""
BUDGETS = 4
"""Times the budget that must be generated: before that most tokens are kept by any method."""
LEAST_SAMPLES = 10
"""Readings of one generation. Of 600 simulated ones with 10 readings at random moments, a third of each
class, no verdict was wrong and 109 were none; with 20 readings 26 were none."""
MODEL_ERROR = 0.02
"""Standard error of a predicted slope: which tokens survive is a matter of chance (8.5 of 880 blocks in the
example above, 1 %), and the budget of a method is rarely exact to the token."""
CONFIDENT = 0.95
DISTINCT = 0.1
"""Slopes nearer than this are not told apart."""
RATIO_LIMIT = 1.25
"""Blocks in use over those that compaction would need, at most, of a method that reclaims. Compaction reads
0.8 to 1.0 (`Generation.needed` counts a whole pass); the rest is room for tokens kept on top of the budget.
The least of those that only score anew, half of their budget a window, reads over 1.8."""
MOST_CERTAIN = 0.99
"""Confidence of `InPart`, at most: it rests on the budget that settings tell, which a method may exceed."""


class Reclaim(StrEnum):
    """What becomes of the blocks of evicted tokens."""

    RECLAIMS = "Reclaims"
    """As much comes back as with compaction, or nearly."""
    IN_PART = "InPart"
    """Blocks come back, and clearly more stay in use than compaction would need."""
    SCATTERED = "Scattered"
    """Few blocks come back: survivors stand in nearly all of them."""
    PER_HEAD = "PerHead"
    """Each head keeps tokens of its own, so few that some blocks come back."""
    NONE = "None"
    """No block comes back: each head keeps tokens of its own, or nothing is evicted at all."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One reading."""

    tokens: int
    """Of the request so far: its prompt, and what came as a stream."""
    used: float
    """Blocks that are not free."""


@dataclass(frozen=True, slots=True)
class Generation:
    """A long generation as it was watched."""

    samples: tuple[Sample, ...]
    """In order of time."""
    generated: int
    """Tokens that came."""
    block_tokens: int
    """Tokens of one block."""
    keep: Keep
    heads: int
    """KV heads that share a block."""
    window: str = ""
    """What of the model frees blocks without any method; empty: nothing that the engine tells of."""

    def needed(self, tokens: int) -> int:
        """Return the blocks that compaction needs at most between two passes, and one held in advance."""
        return -(-min(tokens, self.keep.of(tokens) + PASS_TOKENS) // self.block_tokens) + 1


@dataclass(frozen=True, slots=True)
class Ratio:
    """Blocks in use over those that compaction would need, over the second half of a generation."""

    mean: float
    error: float
    """Standard error of the mean."""

    @property
    def low(self) -> float:
        """Return the lower end of the interval that holds it with `CONFIDENT` probability."""
        return self.mean - NormalDist().inv_cdf((1 + CONFIDENT) / 2) * self.error

    @property
    def high(self) -> float:
        """Return the upper end of that interval."""
        return 2 * self.mean - self.low

    def __str__(self) -> str:
        """Return it for a person."""
        return (
            f"{self.mean:.1f} times ({self.low:.2f} to {self.high:.2f}) the blocks that compaction would need"
        )


@dataclass(frozen=True, slots=True)
class Reclamation:
    """The verdict."""

    reclaim: Reclaim
    confidence: float
    """Probability that no other class's slope is the true one, 0 to 1."""
    slope: float
    """Share of each further token's memory that stayed taken."""
    predicted: dict[Reclaim, float]
    """The same, as arithmetic has it for each class."""
    freed: float
    """Share of all blocks that the tokens would fill without eviction, that were free at the end."""
    ratio: Ratio


@dataclass(frozen=True, slots=True)
class Unjudged:
    """Nothing can be said, and why."""

    why: str


Judged: TypeAlias = Reclamation | Unjudged
Curve: TypeAlias = Callable[[int], float]


def judge(seen: Generation) -> Judged:
    """Return what a generation shows about blocks."""
    doubt = _doubt(seen)
    if doubt:
        return Unjudged(doubt)
    half = [each for each in seen.samples if each.tokens >= seen.samples[-1].tokens / 2]
    curves = curves_of(seen.block_tokens, seen.keep, seen.heads)
    tokens = [each.tokens for each in half]
    slope, error = _line(tokens, [each.used for each in half])
    slope, error = slope * seen.block_tokens, error * seen.block_tokens
    predicted = {
        reclaim: _line(tokens, [curve(count) for count in tokens])[0] * seen.block_tokens
        for reclaim, curve in curves.items()
    }
    last = half[-1]
    ratio = ratio_of(seen, half)
    levels = {reclaim: curve(last.tokens) for reclaim, curve in curves.items()}
    found = _nearest(slope, predicted)
    if found is Reclaim.PER_HEAD and _same(found, Reclaim.NONE, predicted):
        found = Reclaim.NONE
    level = _nearest(fmean(each.used for each in half[-3:]), levels)
    if found is not Reclaim.RECLAIMS and not _same(level, found, predicted):
        return Unjudged(
            f"used blocks grow by {slope:.2f} of what tokens take, as with {found}, and stand at "
            f"{last.used:.0f}, as with {level}"
        )
    confidence = _confidence(slope, sqrt(error**2 + MODEL_ERROR**2), found, predicted)
    if confidence < CONFIDENT:
        return Unjudged(
            f"used blocks grow by {slope:.2f} of what tokens take, between what classes predict "
            f"({', '.join(f'{name} {value:.2f}' for name, value in predicted.items())})"
        )
    whole = -(-last.tokens // seen.block_tokens)
    shown = Reclamation(found, confidence, slope, predicted, 1 - last.used / whole, ratio)
    return _by_ratio(shown) if found is Reclaim.RECLAIMS else shown


def ratio_of(seen: Generation, samples: Sequence[Sample]) -> Ratio:
    """Return the ratio over readings; at least two.

    Readings that resemble the one before tell less: n of them count as n (1 - r) / (1 + r), where r is their
    correlation with the next (the effective size of a first-order autoregressive sample).
    """
    ratios = [each.used / seen.needed(each.tokens) for each in samples]
    mean = fmean(ratios)
    apart = [each - mean for each in ratios]
    square = sum(each**2 for each in apart)
    alike = sum(one * other for one, other in pairwise(apart)) / square if square else 0.0
    alike = min(max(alike, 0.0), 0.99)
    independent = max(2.0, len(ratios) * (1 - alike) / (1 + alike))
    variance = square / (len(ratios) - 1) / independent
    return Ratio(mean, sqrt(variance + (MODEL_ERROR * mean) ** 2))


def _by_ratio(shown: Reclamation) -> Judged:
    """Return whether blocks that come to rest do so where compaction has them."""
    ratio = shown.ratio
    below = NormalDist(ratio.mean, ratio.error).cdf(RATIO_LIMIT) if ratio.error else 0.0
    if ratio.high <= RATIO_LIMIT:
        return replace(shown, confidence=min(shown.confidence, below))
    if ratio.low > RATIO_LIMIT:
        confidence = min(shown.confidence, 1 - below, MOST_CERTAIN)
        return replace(shown, reclaim=Reclaim.IN_PART, confidence=confidence)
    return Unjudged(f"a sequence uses {ratio}, and {RATIO_LIMIT} is the limit of a method that reclaims")


def _doubt(seen: Generation) -> str:
    """Return why a generation tells nothing; empty where it does."""
    needed = max(LEAST_TOKENS, BUDGETS * (seen.keep.budget or 0))
    counts = [each.tokens for each in seen.samples]
    if seen.window:
        return (
            f"{seen.window}: the model frees blocks without any method, so they prove none; give the fleet "
            "without it in spec.compression.baseline"
        )
    if seen.generated < needed:
        return f"{seen.generated} tokens were generated, {needed} are needed"
    if len(counts) < LEAST_SAMPLES:
        return f"{len(counts)} readings of used blocks, {LEAST_SAMPLES} are needed"
    if any(not isfinite(each.used) or each.used < 0 for each in seen.samples):
        return "a reading of used blocks is no number"
    if counts != sorted(counts) or counts[0] * 2 > counts[-1]:
        return "the readings do not follow one request from its beginning to its end"
    if seen.keep.of(counts[-1]) > counts[-1] * (1 - DISTINCT):
        return "the method keeps nearly every token of a request of this length"
    return ""


def curves_of(block_tokens: int, keep: Keep, heads: int) -> dict[Reclaim, Curve]:
    """Return the blocks in use after so many tokens, under methods of each class.

    Args:
        block_tokens: of one block.
        keep: what the method keeps of a sequence.
        heads: KV heads that share a block.
    """
    patterns: dict[Reclaim, Pattern] = {
        Reclaim.RECLAIMS: Compacted(),
        Reclaim.SCATTERED: Scattered(),
        Reclaim.PER_HEAD: PerHead(heads),
    }

    evicting: dict[Reclaim, Curve] = {
        reclaim: partial(used, block_tokens=block_tokens, keep=keep, pattern=pattern)
        for reclaim, pattern in patterns.items()
    }
    return {**evicting, Reclaim.NONE: lambda tokens: tokens / block_tokens}


def _line(tokens: Sequence[int], used: Sequence[float]) -> tuple[float, float]:
    """Return the slope of least squares and its standard error, in blocks per token."""
    middle, mean = fmean(tokens), fmean(used)
    spread = sum((each - middle) ** 2 for each in tokens)
    slope = sum((x - middle) * (y - mean) for x, y in zip(tokens, used, strict=True)) / spread
    left = sum((y - mean - slope * (x - middle)) ** 2 for x, y in zip(tokens, used, strict=True))
    # Used blocks rise between two passes and fall with a pass: samples closer than that tell the same.
    independent = max(3.0, min(len(tokens), (tokens[-1] - tokens[0]) / PASS_TOKENS))
    return slope, sqrt(left / (independent - 2) / spread)


def _nearest(value: float, predicted: dict[Reclaim, float]) -> Reclaim:
    return min(predicted, key=lambda reclaim: abs(value - predicted[reclaim]))


def _same(one: Reclaim, other: Reclaim, predicted: dict[Reclaim, float]) -> bool:
    return one is other or abs(predicted[one] - predicted[other]) < DISTINCT


def _confidence(slope: float, error: float, found: Reclaim, predicted: dict[Reclaim, float]) -> float:
    """Return how likely the true slope is nearer to that of the class found than to any other's."""
    margins = [
        abs((predicted[other] + predicted[found]) / 2 - slope)
        for other in predicted
        if not _same(other, found, predicted)
    ]
    return NormalDist().cdf(min(margins) / error) if margins else 0.0
