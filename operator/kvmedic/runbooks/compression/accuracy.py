"""The accuracy gate: the score that the team's own Job left, and whether it shows that accuracy is kept.

The Job evaluates the trial pod and leaves a score with its number of samples. It passes only where all is
there and the loss is clearly below what the owner accepts; what is not known is neither.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import ceil, sqrt
from typing import TypeAlias

from kvmedic.model.trial import JobEnd, Score

POWER = 0.8416
"""A change that costs nothing passes in four cases of five: quantile of the normal distribution for 80 %."""
SURE = 1.645
"""Standard errors by which a loss must lie beyond what is accepted before it is called one (95 %)."""
MESSAGE_LENGTH = 12 << 10
"""Characters of a termination message that are read, at most: a kubelet keeps as many of a pod's containers
together (4 KiB of one), but anyone who may write a pod's status may write more."""
ROUNDED = 0.0051
"""A score of two digits is off by half a hundredth."""
MOST_SAMPLES = 1_000_000
"""No evaluation has more: a loss that is nearer to what is accepted cannot be set apart by samples."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What is known of an evaluation after its end."""

    end: JobEnd
    message: str
    """The container's termination message."""
    requests: int | None
    """Requests that the trial pod itself finished meanwhile; None where its counter could not be read."""
    mean_tokens: float | None
    """Prompt and output together, of those requests."""


@dataclass(frozen=True, slots=True)
class Passed:
    """Accuracy is kept."""

    loss: float
    error: float
    """Standard error of the loss."""
    message: str
    """With the numbers."""


@dataclass(frozen=True, slots=True)
class NotPassed:
    """Accuracy is lost, or the evaluation shows nothing."""

    why: str


@dataclass(frozen=True, slots=True)
class NotYetKnown:
    """Too few samples to say whether accuracy is kept or lost."""

    why: str
    samples: int
    """That the evaluation needs in all; 0: no number of them would do."""


ScoreComparison: TypeAlias = Passed | NotPassed | NotYetKnown


def score_of(seen: Evaluation, budget: int | None) -> Score | NotPassed:
    """Return the score of an evaluation that says something of the trial pod's setting, or why it does not.

    Args:
        budget: tokens of a request beyond which the setting makes a difference; None: with the first.
    """
    if seen.end is not JobEnd.SUCCEEDED:
        words = "failed" if seen.end is JobEnd.FAILED else "was not done in time"
        return NotPassed(f"the evaluation {words}")
    score = parse_score(seen.message)
    if isinstance(score, NotPassed):
        return score
    doubt = _doubt_score(budget, seen, score)
    return NotPassed(doubt) if doubt else score


def compare_scores(reference: Score, score: Score, max_loss: float) -> ScoreComparison:
    """Return whether a score passes.

    Args:
        reference: of the same evaluation, with the setting off.
        score: with the setting.
        max_loss: loss of accuracy that the model's owner accepts, 0 to 1.
    """
    loss = reference.accuracy - score.accuracy
    error, paired = _error(reference, score)
    text = (
        f"accuracy is {score.accuracy:.3f} where it was {reference.accuracy:.3f}: a loss of {loss:.3f} "
        f"give or take {error:.3f} over {score.samples}{paired} samples, and {max_loss:.3f} is accepted"
    )
    if loss + error <= max_loss and error <= max_loss:
        return Passed(loss, error, text)
    if loss - SURE * error > max_loss:
        return NotPassed(text)
    needed = _needed_samples(loss, error, score.samples, max_loss)
    more = (
        f"it needs about {needed} samples, {needed - score.samples} more"
        if 0 < needed <= MOST_SAMPLES
        else "no number of samples shows a loss that is as large as what is accepted: accept more, or none"
    )
    return NotYetKnown(f"not yet known: {text}; {more}", needed if needed <= MOST_SAMPLES else 0)


def samples_needed(reference: Score, max_loss: float) -> int:
    """Return how many samples show with a power of 80 % that a change which costs nothing costs no more.

    Two evaluations of as many samples each, with the gate's one standard error: the usual size for a
    difference of two proportions (Fleiss, Levin and Paik, Statistical Methods for Rates and Proportions, 4).
    """
    return _size(2 * reference.variance * (reference.samples + 2), max_loss)


def can_show(reference: Score, max_loss: float) -> bool:
    """Return whether an evaluation of as many samples could pass if nothing at all were lost."""
    error, _ = _error(reference, reference)
    return error <= max_loss


def _error(reference: Score, score: Score) -> tuple[float, str]:
    """Return the standard error of the loss, and the word for samples that are paired.

    Of pairs only those count that differ: half a pair more of each kind, and two in all, as Agresti and Min
    (Statistics in Medicine 24, 2005, 729) add to McNemar's table, so that none that differs is no certainty.
    """
    if not reference.right or len(reference.right) != len(score.right):
        return sqrt(score.variance + reference.variance), ""
    pairs = list(zip(reference.right, score.right, strict=True))
    lost, won = pairs.count(("1", "0")) + 0.5, pairs.count(("0", "1")) + 0.5
    total = len(pairs) + 2
    return sqrt(lost + won - (lost - won) ** 2 / total) / total, " paired"


def _needed_samples(loss: float, error: float, samples: int, max_loss: float) -> int:
    """Return how many samples would do: of a change that costs nothing, or of the loss that is seen."""
    planned = _size(error**2 * samples, max_loss)
    if samples < planned:
        return planned
    margin, errors = abs(max_loss - loss), 1.0 if loss < max_loss else SURE
    return _size(error**2 * samples, margin, errors)


def _size(variance: float, margin: float, errors: float = 1 + POWER) -> int:
    """Return at how many samples a margin is some standard errors; beyond the most where it is nothing.

    `variance` is of one sample's difference.
    """
    if margin * sqrt(MOST_SAMPLES) <= errors * sqrt(variance):
        return MOST_SAMPLES + 1
    return ceil(variance * (errors / margin) ** 2)


def parse_score(message: str) -> Score | NotPassed:
    """Return the score of a termination message such as `{"score": 0.57, "samples": 200}`."""
    advice = 'write {"score": 0.57, "samples": 200} to the termination message'
    try:
        body = json.loads(message[:MESSAGE_LENGTH])
    except (ValueError, RecursionError):
        return NotPassed(f"the evaluation left no score: {advice}")
    found: dict[str, object] = body if isinstance(body, dict) else {}
    score, samples = found.get("score"), found.get("samples")
    if not isinstance(score, int | float) or isinstance(score, bool) or not 0 <= score <= 1:
        return NotPassed(f"the evaluation's score is no number from 0 to 1: {advice}")
    if not isinstance(samples, int) or isinstance(samples, bool) or not 0 < samples <= MOST_SAMPLES:
        text = f"no whole number from 1 to {MOST_SAMPLES}"
        return NotPassed(f"the evaluation's number of samples is {text}: {advice}")
    right = found.get("right", "")
    # Single answers are those of a score, which may be rounded to two digits.
    is_whole = isinstance(right, str) and len(right) == samples and set(right) <= {"0", "1"}
    if not (right == "" or (is_whole and abs(str(right).count("1") / samples - score) <= ROUNDED)):
        return NotPassed(
            "the evaluation's \"right\" is not one 1 or 0 for each sample with the score's share of 1: leave "
            "it out, or write one character for each sample, in the same order each time"
        )
    return Score(float(score), samples, str(right))


def _doubt_score(budget: int | None, seen: Evaluation, score: Score) -> str:
    """Return why a score says nothing of the trial pod's setting; empty where it does."""
    if seen.requests is None:
        return "the trial pod's own count of requests could not be read"
    if seen.requests != score.samples:
        return (
            f"the evaluation has {score.samples} samples and the trial pod finished {seen.requests} requests"
            ": let it send each sample there, once, and nothing elsewhere"
        )
    if budget is not None and (seen.mean_tokens is None or not seen.mean_tokens > budget):
        tokens = "unknown" if seen.mean_tokens is None else f"{seen.mean_tokens:.0f}"
        return (
            f"the evaluation's requests are too short (mean of {tokens} tokens) to go beyond the "
            f"{budget} tokens that the method keeps"
        )
    return ""
