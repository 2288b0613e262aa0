"""What a trial pod shows: whether blocks come back, and whether attention holds its scores in memory.

A long generation: one request runs alone, its tokens are counted as they come, and used blocks are read every
second. Of each class of methods arithmetic (`model/compression.py`) says how many blocks are in use at each
of those counts. What was seen and what each class predicts become a straight line over the second half of the
generation: its slope is the share of each further token's memory that stays taken. The class whose slope is
nearest is the verdict, as long as it is far enough from the others and used blocks at the end stand where it
has them.

A slope of nothing is not enough: a method that scores anew in each pass also comes to rest, at several times
the blocks. So `Reclaims` rests on a ratio: blocks in use over those that compaction would need. For blocks of
b it is 1 + 1/2 + ... + 1/b (3.4 for 16) where survivors of each pass are drawn anew, and near 2.3 where half
of the budget is a window of the newest tokens (both counted in `tests/runbooks/compression/test_probes.py`).

Prompts of rising length: a fused kernel holds no scores, and all other memory was taken when the engine
started, so device memory stays as it is. An eager one holds queries times keys for the largest prompt so far:
memory grows with its square. Memory that grows in proportion to the prompt is something else.

The picture of a generation is plain characters: a block came back if the tokens so far would fill it and it
is not in use. A method that works climbs, and one that only evicts tokens stays near the ground.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from math import isfinite, log, sqrt
from statistics import NormalDist, fmean
from typing import TypeAlias

from kvmedic.model.compression import (
    KV_HEADS,
    PASS_TOKENS,
    Compacted,
    Keep,
    Pattern,
    PerHead,
    Scattered,
    used_blocks,
)
from kvmedic.model.trial import Answer, Growth, Prompt, Reclaim, Sample

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
"""Slopes nearer than this are not distinguished."""
RATIO_LIMIT = 1.25
"""Blocks in use over those that compaction would need, at most, of a method that reclaims. Compaction reads
0.8 to 1.0 (`Generation.needed` counts a whole pass); the rest is room for tokens kept on top of the budget.
The least of those that only score anew, half of their budget a window, reads over 1.8."""
MOST_CERTAIN = 0.99
"""Confidence of `InPart`, at most: it rests on the budget that settings give, which a method may exceed."""


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
    """What of the model frees blocks without any method; empty: nothing that the engine reports."""

    def count_needed(self, tokens: int) -> int:
        """Return the blocks that compaction needs at most between two passes, and one held in advance."""
        return -(-min(tokens, self.keep.tokens_of(tokens) + PASS_TOKENS) // self.block_tokens) + 1


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
    doubt = _doubt_generation(seen)
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

    Readings that resemble the one before show less: n of them count as n (1 - r) / (1 + r), where r is their
    correlation with the next (the effective size of a first-order autoregressive sample).
    """
    ratios = [each.used / seen.count_needed(each.tokens) for each in samples]
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


def least_tokens(keep: Keep) -> int:
    """Return how many tokens must be generated for a verdict on a method that keeps so much."""
    return max(LEAST_TOKENS, BUDGETS * (keep.budget or 0))


def _doubt_generation(seen: Generation) -> str:
    """Return why a generation shows nothing; empty where it does."""
    needed = least_tokens(seen.keep)
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
    if seen.keep.tokens_of(counts[-1]) > counts[-1] * (1 - DISTINCT):
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
        reclaim: partial(used_blocks, block_tokens=block_tokens, keep=keep, pattern=pattern)
        for reclaim, pattern in patterns.items()
    }
    return {**evicting, Reclaim.NONE: lambda tokens: tokens / block_tokens}


def _line(tokens: Sequence[int], used: Sequence[float]) -> tuple[float, float]:
    """Return the slope of least squares and its standard error, in blocks per token."""
    middle, mean = fmean(tokens), fmean(used)
    spread = sum((each - middle) ** 2 for each in tokens)
    slope = sum((x - middle) * (y - mean) for x, y in zip(tokens, used, strict=True)) / spread
    left = sum((y - mean - slope * (x - middle)) ** 2 for x, y in zip(tokens, used, strict=True))
    # Used blocks rise between two passes and fall with a pass: samples closer than that show the same.
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


LEAST_PROMPTS = 3
LEAST_SPAN = 4.0
"""The longest prompt is at least so many times the shortest: then growth with the square is sixteenfold, in
proportion fourfold."""
LEAST_LONGEST = 2048
"""Tokens of the longest prompt, at least: with less, the scores of the shortest stay within what a reading
resolves."""
RESOLUTION = float(1 << 20)
"""Of a reading of device memory, in bytes: DCGM reports MiB."""
EXPONENT_ERROR = 0.1
"""Standard error of an exponent beyond that of the readings: allocators round up, kernels pad."""
BETWEEN = 1.5
"""Exponent halfway between both."""


@dataclass(frozen=True, slots=True)
class Grown:
    """The verdict."""

    growth: Growth
    exponent: float
    """Of the power of the length that growth follows; 0 where there is none."""
    confidence: float
    """0 to 1."""


GrowthJudged: TypeAlias = Grown | Unjudged


def judge_prompts(before: float, prompts: Sequence[Prompt], *, in_chunks: bool) -> GrowthJudged:
    """Return how device memory follows the prompt.

    Args:
        before: device memory in use before the first prompt, in bytes.
        prompts: in rising order of length: memory of a longer one is not given back.
        in_chunks: the engine computes prompts in chunks, so that a square would look like a line.
    """
    doubt = _doubt_prompts(before, prompts, in_chunks=in_chunks)
    if doubt:
        return Unjudged(doubt)
    grown = [max(0.0, each.used - before) for each in prompts]
    if max(grown) < 2 * RESOLUTION:
        return Grown(Growth.NONE, 0.0, 1.0)
    seen = [
        (log(each.tokens), log(more), more) for each, more in zip(prompts, grown, strict=True) if more > 0
    ]
    if len(seen) < LEAST_PROMPTS:
        return Unjudged("memory grew with the longest prompts alone: try longer ones")
    exponent, error = _power(seen)
    confidence = NormalDist().cdf(abs(exponent - BETWEEN) / sqrt(error**2 + EXPONENT_ERROR**2))
    if confidence < CONFIDENT:
        return Unjudged(
            f"memory grows with the power {exponent:.2f} of the prompt, between a line and a square"
        )
    return Grown(Growth.SQUARE if exponent > BETWEEN else Growth.LINEAR, exponent, confidence)


def _doubt_prompts(before: float, prompts: Sequence[Prompt], *, in_chunks: bool) -> str:
    """Return why the prompts show nothing; empty where they do."""
    lengths = [each.tokens for each in prompts]
    if in_chunks:
        return "prompts are computed in chunks (chunked prefill is on), so that a square looks like a line"
    if len(lengths) < LEAST_PROMPTS:
        return f"{len(lengths)} prompts were sent, {LEAST_PROMPTS} are needed"
    if lengths != sorted(set(lengths)) or lengths[0] < 1:
        return "the prompts do not rise in length"
    if lengths[-1] < LEAST_SPAN * lengths[0]:
        return f"the longest prompt is less than {LEAST_SPAN:g} times the shortest"
    if not all(isfinite(each) and each >= 0 for each in (before, *(prompt.used for prompt in prompts))):
        return "a reading of device memory is no number"
    return ""


def _power(seen: Sequence[tuple[float, float, float]]) -> tuple[float, float]:
    """Return the exponent that growth follows, and its standard error.

    Least squares on logarithms, each reading weighted by how well its resolution lets its logarithm be known.
    """
    points = [(1.0 / (EXPONENT_ERROR**2 + (RESOLUTION / more) ** 2), x, y) for x, y, more in seen]
    total = sum(weight for weight, _, _ in points)
    middle = sum(weight * x for weight, x, _ in points) / total
    mean = sum(weight * y for weight, _, y in points) / total
    spread = sum(weight * (x - middle) ** 2 for weight, x, _ in points)
    slope = sum(weight * (x - middle) * (y - mean) for weight, x, y in points) / spread
    left = fmean((y - mean - slope * (x - middle)) ** 2 for _, x, y in points)
    return slope, sqrt(1.0 / spread + left)


SEEN, PREDICTED = "o", "."
KEY = f"blocks that came back ({SEEN} seen on the trial pod, {PREDICTED} predicted by class)"
CLASSES = (Reclaim.NONE, Reclaim.PER_HEAD, Reclaim.SCATTERED, Reclaim.RECLAIMS)
"""By blocks that come back, fewest first."""
VISIBLE = 0.05
"""Share of the highest prediction below which a curve passes for the ground: `TERMINAL` has 14 rows."""


@dataclass(frozen=True, slots=True)
class Size:
    """Characters of the plot itself: 8 columns of scale, 24 of names and 4 further rows come to it.

    The foot needs 29 columns, the names 4 rows.
    """

    columns: int
    rows: int


TERMINAL = Size(48, 14)
"""Within 80 columns and 24 rows, the smallest terminal that people have."""


@dataclass(frozen=True, slots=True)
class Trace:
    """The course of a trial's request as it is drawn."""

    seen: tuple[Sample, ...]
    """In order of time; at least one."""
    block_tokens: int
    keep: Keep

    @property
    def tokens(self) -> int:
        """Return the tokens of the request at its end."""
        return max(1, self.seen[-1].tokens)

    @property
    def blocks(self) -> int:
        """Return how many blocks the tokens would fill at the end."""
        return -(-self.tokens // self.block_tokens)

    def count_freed(self, sample: Sample) -> float:
        """Return the blocks that came back until a reading; an engine may hold one in advance."""
        return max(0.0, sample.tokens / self.block_tokens - sample.used)

    def predict_freed(self, tokens: int) -> dict[Reclaim, float]:
        """Return the blocks that come back with a method of each class."""
        curves = curves_of(self.block_tokens, self.keep, KV_HEADS)
        whole = tokens / self.block_tokens
        return {reclaim: max(0.0, whole - curves[reclaim](tokens)) for reclaim in CLASSES}

    def ends(self) -> dict[Reclaim, float]:
        """Return the same at the end; one per head only where it can be seen that it is not none."""
        found = self.predict_freed(self.tokens)
        if found[Reclaim.PER_HEAD] < max(VISIBLE * max(found.values()), 1.0):
            del found[Reclaim.PER_HEAD]
        return found


def trace_of(answer: Answer) -> Trace | None:
    """Return what there is to draw of a trial; None where no reading is on record."""
    seen = tuple(each for each in answer.seen if isfinite(each.used))
    if not seen or answer.block_tokens is None or answer.keep is None:
        return None
    return Trace(seen, answer.block_tokens, answer.keep)


def picture_of(trace: Trace, size: Size = TERMINAL) -> tuple[str, ...]:
    """Return the picture line by line, the numbers at its end last."""
    top = max(1.0, *trace.ends().values(), *(trace.count_freed(each) for each in trace.seen))
    canvas = _Canvas(trace, size, top)
    rows = [
        f"{canvas.scale(row):>6} |{cells}{name}".rstrip()
        for row, (cells, name) in enumerate(zip(canvas.cells(), canvas.names(), strict=True))
    ]
    foot = f"{trace.tokens} tokens of the request"
    return (
        KEY,
        *reversed(rows),
        f"{'':6} +{'-' * size.columns}",
        f"{'':7}0{foot:>{size.columns}}",
        numbers(trace),
    )


def numbers(trace: Trace) -> str:
    """Return the end of the request in one line: blocks that came back, as seen and as predicted."""
    predicted = ", ".join(f"{reclaim} {blocks:.0f}" for reclaim, blocks in reversed(trace.ends().items()))
    came = trace.count_freed(trace.seen[-1])
    return f"{trace.tokens} tokens fill {trace.blocks} blocks: {came:.0f} came back; predicted: {predicted}"


@dataclass(frozen=True, slots=True)
class _Canvas:
    """The plot; its rows are counted from the ground up."""

    trace: Trace
    size: Size
    top: float
    """Blocks at the highest row."""

    def cells(self) -> list[str]:
        """Return the rows; readings stand above predictions."""
        columns, tokens, classes = self.size.columns, self.trace.tokens, self.trace.ends().keys()
        cells = [[" "] * columns for _ in range(self.size.rows)]
        for column in range(columns):
            predicted = self.trace.predict_freed(max(1, round(tokens * (column + 1) / columns)))
            for reclaim in classes:
                cells[self._row(predicted[reclaim])][column] = PREDICTED
        for each in self.trace.seen:
            column = -(-each.tokens * columns // tokens) - 1
            cells[self._row(self.trace.count_freed(each))][min(max(0, column), columns - 1)] = SEEN
        return ["".join(row) for row in cells]

    def names(self) -> list[str]:
        """Return each class with its number at the end; where its row is taken, in the nearest free."""
        ends = self.trace.ends()
        rows: list[int] = []
        for blocks in ends.values():
            rows.append(max(self._row(blocks), rows[-1] + 1 if rows else 0))
        highest = self.size.rows - len(rows)
        rows = [min(row, highest + place) for place, row in enumerate(rows)]
        found = {row: f" {reclaim} {ends[reclaim]:.0f}" for row, reclaim in zip(rows, ends, strict=True)}
        return [found.get(row, "") for row in range(self.size.rows)]

    def scale(self, row: int) -> str:
        """Return the number before a row: only the ground and the highest have one."""
        return {0: "0", self.size.rows - 1: f"{self.top:.0f}"}.get(row, "")

    def _row(self, blocks: float) -> int:
        return round(min(1.0, blocks / self.top) * (self.size.rows - 1))
