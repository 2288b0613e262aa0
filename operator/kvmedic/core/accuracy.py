"""Whether an evaluation shows that a changed cache policy keeps a model's accuracy.

The team's own Job evaluates the trial pod and leaves a score with its number of samples. It passes only where
all is there and the loss is clearly below what the owner accepts: what is not known is not passed.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from math import sqrt
from typing import TypeAlias


class JobEnd(StrEnum):
    """What became of the evaluation's Job."""

    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    LATE = "Late"
    """Its time was over."""


@dataclass(frozen=True, slots=True)
class Score:
    """Result of an evaluation."""

    accuracy: float
    """Share of the samples that were answered rightly, 0 to 1."""
    samples: int

    @property
    def variance(self) -> float:
        """Return the variance of the share, that of so many right-or-wrong answers.

        Counted with one right and one wrong answer more (Laplace): a few answers that are all right are no
        proof that all are.
        """
        shrunk = (self.accuracy * self.samples + 1) / (self.samples + 2)
        return shrunk * (1 - shrunk) / (self.samples + 2)


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
    """Accuracy is lost, or not known to be kept."""

    why: str


Gated: TypeAlias = Passed | NotPassed


def score_of(seen: Evaluation, budget: int | None) -> Score | NotPassed:
    """Return the score of an evaluation that says something of the trial pod's setting, or why it does not.

    Args:
        seen: the evaluation after its end.
        budget: tokens of a request beyond which the setting makes a difference; None: with the first.
    """
    if seen.end is not JobEnd.SUCCEEDED:
        words = "failed" if seen.end is JobEnd.FAILED else "was not done in time"
        return NotPassed(f"the evaluation {words}")
    score = parse_score(seen.message)
    if isinstance(score, NotPassed):
        return score
    doubt = _doubt(budget, seen, score)
    return NotPassed(doubt) if doubt else score


def compare_scores(reference: Score, score: Score, max_loss: float) -> Gated:
    """Return whether a score passes.

    Args:
        reference: of the same evaluation, with the setting off.
        score: with the setting.
        max_loss: loss of accuracy that the model's owner accepts, 0 to 1.
    """
    loss = reference.accuracy - score.accuracy
    error = sqrt(score.variance + reference.variance)
    text = (
        f"accuracy is {score.accuracy:.3f} where it was {reference.accuracy:.3f}: a loss of {loss:.3f} "
        f"give or take {error:.3f} over {score.samples} samples, and {max_loss:.3f} is accepted"
    )
    return NotPassed(text) if loss + error > max_loss else Passed(loss, error, text)


def parse_score(message: str) -> Score | NotPassed:
    """Return the score of a termination message such as `{"score": 0.57, "samples": 200}`."""
    wanted = 'write {"score": 0.57, "samples": 200} to the termination message'
    try:
        body = json.loads(message)
    except (ValueError, RecursionError):
        return NotPassed(f"the evaluation left no score: {wanted}")
    found: dict[str, object] = body if isinstance(body, dict) else {}
    score, samples = found.get("score"), found.get("samples")
    if not isinstance(score, int | float) or isinstance(score, bool) or not 0 <= score <= 1:
        return NotPassed(f"the evaluation's score is no number from 0 to 1: {wanted}")
    if not isinstance(samples, int) or isinstance(samples, bool) or samples < 1:
        return NotPassed(f"the evaluation's number of samples is no whole number above 0: {wanted}")
    return Score(float(score), samples)


def _doubt(budget: int | None, seen: Evaluation, score: Score) -> str:
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
