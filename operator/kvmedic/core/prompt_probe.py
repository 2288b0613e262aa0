"""What prompts of rising length on a trial pod show: whether attention holds its scores in memory.

A fused kernel holds none, and all other memory was taken when the engine started: device memory stays as it
is. An eager one holds queries times keys for the largest prompt so far: memory grows with its square. Memory
that grows in proportion to the prompt is something else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import isfinite, log, sqrt
from statistics import NormalDist, fmean
from typing import TypeAlias

from kvmedic.core.reclamation_probe import CONFIDENT, Unjudged

LEAST_PROMPTS = 3
LEAST_SPAN = 4.0
"""The longest prompt is at least so many times the shortest: then growth with the square is sixteenfold, in
proportion fourfold."""
LEAST_LONGEST = 2048
"""Tokens of the longest prompt, at least: with less, the scores of the shortest stay within what a reading
resolves."""
RESOLUTION = float(1 << 20)
"""Of a reading of device memory, in bytes: DCGM tells MiB."""
EXPONENT_ERROR = 0.1
"""Standard error of an exponent beyond that of the readings: allocators round up, kernels pad."""
BETWEEN = 1.5
"""Exponent halfway between both."""


class Growth(StrEnum):
    """How device memory follows the length of the longest prompt."""

    NONE = "None"
    LINEAR = "Linear"
    SQUARE = "Square"


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt, computed in a single step."""

    tokens: int
    used: float
    """Device memory in use afterwards, in bytes."""


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
    doubt = _doubt(before, prompts, in_chunks=in_chunks)
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


def _doubt(before: float, prompts: Sequence[Prompt], *, in_chunks: bool) -> str:
    """Return why the prompts tell nothing; empty where they do."""
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
