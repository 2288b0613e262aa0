"""What no change may do to users, whatever stalls it removed: keep them waiting, or serve them less.

A cap moves waiting in front of the first token, where no preemption shows it. Pure arithmetic on figures
from before and after; `docs/explanation/verdict-thresholds.md` says how the thresholds were tried.
"""

from __future__ import annotations

from math import exp, inf, sqrt

from kvmedic.core.baseline import Baseline

FIRST_TOKEN_SECONDS = 30.0
"""The longest wait for a first token that most clients sit through, where `objectives.ttftP95` names none.
403 of the 504 simulated fleets, on which this floor was tried, had it."""
LATER = 2.0
"""First token (p95) after over before, beyond which it comes clearly later, if beyond the limit too."""
SILENT_LONGER, SILENT_SECONDS = 2.0, 2.0
"""Silent seconds per request after over before, and what is added to that: beyond it users wait clearly
longer. The seconds added are those of one stall, so that a fleet in which nobody waited may lose as much."""
LEAST_SERVED = 0.9
"""Tokens of requests without a stall after over before, at least, while as many requests come. Without any
change two windows of 10 minutes differ by up to 4 %, of 5 minutes by 6 % (simulated, 3 replicas)."""
BY_CHANCE = 1.645
"""Standard errors by which a count must differ: chance alone has it differ so in one of twenty cases."""
AS_MANY = 0.95
"""Arrivals after over before, from which as many requests come."""
WORSE = 1.25
"""A figure after over before, beyond which an objective that was missed already counts as broken: a quarter
is beyond what two windows of 5 minutes differ by without any change."""


def silent_seconds(figures: Baseline) -> float:
    """Return how long a request waits in all, on average: before its first token, and while preempted.

    By Little's law, requests that wait over those that arrive: nothing is left out, also not whoever still
    waits, whom no histogram has counted yet. Infinite where some wait and none arrives.
    """
    if figures.waiting_mean <= 0:
        return 0.0
    arrive = figures.requests_per_second
    return figures.waiting_mean / arrive if arrive > 0 else inf


def is_late(before: Baseline, after: Baseline, objective_seconds: float | None) -> bool:
    """Return whether first tokens come clearly later than before, and later than most sit through.

    Args:
        before: the fleet before the change.
        after: the fleet with it.
        objective_seconds: `objectives.ttftP95`; None: the spec names none.
    """
    limit = FIRST_TOKEN_SECONDS if objective_seconds is None else objective_seconds
    late = max(limit, LATER * before.time_to_first_token_p95_seconds)
    return after.time_to_first_token_p95_seconds > late


def is_silent_for_longer(before: Baseline, after: Baseline) -> bool:
    """Return whether requests wait clearly longer in all, before their first token and while preempted."""
    return silent_seconds(after) > SILENT_LONGER * silent_seconds(before) + SILENT_SECONDS


def is_served_less(tokens: float, arrivals: float) -> bool:
    """Return whether clearly fewer tokens come while as many requests do.

    Args:
        tokens: tokens per second, after over before.
        arrivals: requests per second, after over before.
    """
    return arrivals >= AS_MANY and tokens < LEAST_SERVED


def stalls_by_chance(before: Baseline, after: Baseline) -> float:
    """Return how many times the tokens without a stall there may really be, of which chance hides a part.

    Stalls are counted: of x per request and n requests the standard error is sqrt(x / n) at least, and tokens
    without a stall fall with exp(-x). Short windows of few requests tell little of it.
    """
    variance = sum(each.stalls_per_request / max(1.0, each.requests) for each in (before, after))
    return exp(BY_CHANCE * sqrt(variance))


def is_broken(objective: float | None, before: float, after: float) -> bool:
    """Return whether an objective is missed that was met, or that was missed before and is missed by more."""
    if objective is None or after <= objective:
        return False
    return before <= objective or after > WORSE * before
