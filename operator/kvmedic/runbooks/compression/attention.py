"""Wall 1: a method makes attention fall back to a kernel that is not fused, which holds scores in memory.

The other half of a comparison: what a trial pod shows with the method off.

It is asked for where no record tells and the answer decides something: how many blocks there are without a
type of fewer bits, and whether attention is fused without a method with which it is not.

What prompts of rising length on a trial pod show: whether attention holds its scores in memory.

A fused kernel holds none, and all other memory was taken when the engine started: device memory stays as it
is. An eager one holds queries times keys for the largest prompt so far: memory grows with its square. Memory
that grows in proportion to the prompt is something else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite, log, sqrt
from statistics import NormalDist, fmean
from typing import TypeAlias

from kvmedic.model.compression import MethodClass
from kvmedic.model.evidence import Inconclusive
from kvmedic.model.reasons import Reason
from kvmedic.model.spec import Fix
from kvmedic.model.trial import Growth, Prompt
from kvmedic.runbooks.branches import GIVEN, Compressed, Evidence, Finding
from kvmedic.runbooks.compression.reclamation import CONFIDENT, Unjudged
from kvmedic.runbooks.compression.savings import (
    EVICTING,
    Brought,
    Worth,
    brought_by,
    fact,
    figures_of,
    silent,
    where_nodes_are_known,
)

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


def attention_uncompared(evidence: Evidence) -> tuple[Finding, ...] | Inconclusive | None:
    """A trial showed that device memory grows with the square of the prompt, and none yet how it is without.

    Where it grows so without the method too, turning that off would not help. A comparison that showed
    nothing keeps nobody from it: the first half is proof that attention is not fused.
    """
    method = evidence.compression
    if method is None or not method.is_unfused or method.grown is None or not method.settings:
        return None
    if method.grown_without is not None or Fix.REVERT_BUNDLE not in method.policy.fixes:
        return None
    return where_nodes_are_known(evidence, fact(f"{method.name}: {method.grown.message}"))


def told_without(method: Compressed) -> str:
    """Return what is known of attention without the method, for a person; empty: nothing."""
    given = method.policy.attention_backend
    told = f"attention without {method.name} by {given} ({GIVEN}.attentionBackend)" if given else ""
    return "; ".join(filter(None, (method.grown_without.message if method.grown_without else "", told)))


def is_start_due(method: Compressed) -> bool:
    """Return whether a start without a type of fewer bits is to show how many blocks there are then.

    Where the command line sizes the pool they tell nothing.
    """
    is_known = method.blocks_without is not None or method.start_without is not None
    is_type = method.method_class is MethodClass.QUANTIZATION
    return is_type and bool(method.settings) and not (is_known or method.pool_is_fixed)


def report_unexplained(method: Compressed, worth: Brought) -> Inconclusive:
    """Return that figures speak against a method and no trial would tell more, with what would."""
    start, grown = method.start_without, method.grown
    if start is not None and start.blocks is None:
        return silent(start)
    compared = f"; {start.message}" if start is not None else ""
    if grown is not None and grown.growth is Growth.SQUARE:
        told = (
            f"attention is not fused, and without {method.name} it is not either, so that turning it off "
            f"would not help: {grown.message}; {told_without(method)}"
        )
    elif grown is not None and grown.growth is not None:
        told = (
            f"attention did not fall back: {grown.message}; what else differs from the fleet of before is "
            "for a person"
        )
    else:
        told = (
            "whether attention fell back to a kernel that is not fused shows in device memory: give that of "
            "the fleet without the method in spec.compression.baseline.deviceMemory, and let the source have "
            "the DCGM exporter's series"
        )
    return Inconclusive(Reason.BASELINE_MISSING, f"{method.name}: {worth.message}{compared}; {told}")


def eager_fallback(evidence: Evidence) -> tuple[Finding, ...] | Inconclusive | None:
    """Throughput fell and device memory rose against the fleet without the method, at like load.

    Or a trial showed that device memory grows with the square of the prompt, which no fused kernel does. The
    name of the attention backend decides nothing: one fused kernel may take the place of another, and an
    unchanged line acquits nobody.
    """
    method = evidence.compression
    if method is None:
        return None
    if method.is_unfused and method.grown is not None:
        shown = f"{method.name}, {method.grown.growth}: {method.grown.message}"
        return where_nodes_are_known(
            evidence, *(fact(each) for each in (shown, told_without(method)) if each)
        )
    worth = brought_by(method, evidence)
    if worth.worth is not Worth.COSTS_MEMORY:
        return None
    return where_nodes_are_known(evidence, fact(f"{method.name}: {worth.message}"))


def attention_unproven(evidence: Evidence) -> tuple[Finding, ...] | Inconclusive | None:
    """Throughput fell or answers take longer, and nobody knows the device memory of before.

    Blocks are asked about first where they are in doubt. Where the source has no device memory of now, a
    trial could not be read either.
    """
    method = evidence.compression
    if method is None or (method.method_class in EVICTING and method.answer is None):
        return None
    worth = brought_by(method, evidence)
    is_compared = method.without.device_memory is not None or figures_of(evidence).device_memory is None
    if worth.worth is not Worth.COSTS_TIME or is_compared:
        return None
    if method.grown is None:
        return (fact(f"{method.name} ({method.told_by}): {worth.message}"),)
    return silent(method.grown) if method.grown.growth is None else None
