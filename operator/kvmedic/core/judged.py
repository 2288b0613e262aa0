"""What a verdict is: one of four words, its reason, and the numbers that it rests on."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from kvmedic.core.baseline import Baseline, baseline_of
from kvmedic.core.diagnosis import Inconclusive
from kvmedic.core.evidence import Observation
from kvmedic.core.reasons import Reason


class Verdict(StrEnum):
    """The judgement of one step over its sustained window."""

    RECOVERED = "Recovered"
    IMPROVED = "Improved"
    NOT_RECOVERED = "NotRecovered"
    INCONCLUSIVE = "Inconclusive"


@dataclass(frozen=True, slots=True)
class Judged:
    """A verdict with its reason and the numbers in one sentence."""

    verdict: Verdict
    reason: Reason
    message: str
    after: Baseline | None = None
    """The figures that it rests on; None where there are none."""


def undecided(why: Inconclusive) -> Judged:
    """Return the verdict where something that it needs is missing."""
    return Judged(Verdict.INCONCLUSIVE, why.reason, why.message)


def not_recovered(text: str, after: Baseline | None = None) -> Judged:
    """Return the verdict that a change did not help."""
    return Judged(Verdict.NOT_RECOVERED, Reason.NOT_RECOVERED, text, after)


def restarted(restarts: int, since: str = "of replicas that run the change") -> Judged | None:
    """Return the verdict on a change after which engines restarted; None where none did.

    Args:
        restarts: restarts since the change, each of which is new.
        since: which ones these are.
    """
    return not_recovered(f"{restarts} restarts {since}") if restarts > 0 else None


def figures_after(
    observation: Observation, restarts: int, since: str = "of replicas that run the change"
) -> Baseline | Judged:
    """Return a fleet's figures over the sustained window, or the verdict that needs none.

    Args:
        observation: the look over the window.
        restarts: restarts since the change, each of which is new.
        since: which ones these are.
    """
    if down := restarted(restarts, since):
        return down
    after = baseline_of(observation, restarts)
    return undecided(after) if isinstance(after, Inconclusive) else after
