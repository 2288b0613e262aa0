"""What evaluations showed of configurations; each score stands beside the one that produced it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from kvmedic.core.accuracy import Score
from kvmedic.core.compressed import AGAIN


@dataclass(frozen=True, slots=True)
class Scored:
    """The outcome of one evaluation."""

    configuration: str
    """Hash of the pod template that was evaluated."""
    evaluation: str
    """Digest of the CronJob's Job template: scores of another evaluation compare with nothing."""
    message: str
    """With the numbers."""
    at: datetime
    generation: int
    """Of the spec; where nothing was shown, another spec is tried anew."""
    score: Score | None = None
    """None: it showed nothing."""
    refused: bool = False
    """The engine said at start-up that the configuration is not supported where it ran."""

    @property
    def is_conclusive(self) -> bool:
        """Return whether it showed what was asked, or that the configuration is none."""
        return self.score is not None or self.refused


def scored_of(
    scores: Sequence[Scored], configuration: str, evaluation: str, generation: int, now: datetime
) -> Scored | None:
    """Return the newest outcome of an evaluation of a configuration that counts; None where there is none.

    Args:
        scores: on record.
        configuration: hash of the pod template.
        evaluation: digest of the Job template.
        generation: of the spec as it is now.
        now: the time.
    """
    found = [
        each
        for each in scores
        if (each.configuration, each.evaluation) == (configuration, evaluation)
        and (each.score is not None or (each.generation == generation and now - each.at < AGAIN))
    ]
    return max(found, key=lambda each: each.at, default=None)


def refusal_of(scores: Sequence[Scored], configuration: str, generation: int, now: datetime) -> Scored | None:
    """Return that an engine refuses a configuration, whatever evaluated it; None where that is not known.

    Args:
        scores: on record.
        configuration: hash of the pod template.
        generation: of the spec as it is now.
        now: the time.
    """
    found = [
        each
        for each in scores
        if each.refused
        and (each.configuration, each.generation) == (configuration, generation)
        and now - each.at < AGAIN
    ]
    return max(found, key=lambda each: each.at, default=None)
