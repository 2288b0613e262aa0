"""What no change may do to users, whatever stalls it removed: keep them waiting, or serve them less.

A cap moves waiting in front of the first token, where no preemption shows it. Pure arithmetic on figures
from before and after; `docs/explanation/verdict-thresholds.md` says how the thresholds were tried.

How much an engine is asked for, against how much it gives: what a lower cap must still serve.

Arrivals that do not wait pile up in front of a cap that serves fewer tokens than are offered, and no
preemption shows it. Pure arithmetic on measured numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import exp, inf, isfinite, sqrt

from kvmedic.model.evidence import Measured, Reading
from kvmedic.model.run import Baseline

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


MARGIN = 0.05
"""By how much the tokens per second that a cap is predicted to serve must exceed what it has to serve. From
gauges of thrashing engines that was 4 % too high to 13 % too low on simulated workloads whose cuts bring
something, and up to 12 % too high on those with cheap prefills, whose cuts bring nothing."""
KEEPING_UP = 0.1
"""What is added where the engine keeps up: what a full one gives is then extrapolated, up to 15 %
too high (simulated), and nothing is lost by leaving it alone."""
WAVES_MARGIN = 0.2
"""What is added where outputs are of one length: their admissions come in waves, which makes prefills
look dear and the cut better than it is. Simulated: 22 % too high at worst."""
FULL = 0.25
"""Waiting requests per running one, from which an engine gives all that it can as it is set. Simulated:
engines that keep up have 0 to 0.27, those that do not 1 to 21."""
STEADY, STEADY_REQUESTS = 0.1, 2.0
"""By how much of the requests in the fleet's hands, and by how many at least, their number may have changed
over each look for the same clients to be sending, each once it is answered. Replicas are scraped at different
moments, hence not 0. With arrivals that do not wait the number wanders by its own size."""
STEADY_PAGES = 1.0
"""The same where only two moments are known, in requests: two may be alike by chance."""
ENOUGH = 0.85
"""What a cap must serve, over what is given now, where the same clients send again and again: they adapt to
it. Predicted tokens per second of such fleets were up to 13 % too low (simulated)."""
MANY_STALLS = 0.7
"""Stalls per request from which half of the requests hang: what is given then is not served."""


@dataclass(frozen=True, slots=True)
class Offered:
    """What an engine is asked for over one look, as multiples of the tokens that it gives."""

    now: float
    """Requests that arrive times the mean output, over what is given."""
    served_per_second: float | None = None
    """Tokens that one engine gives; None: nobody knows how long the look was."""
    peak_per_second: float | None = None
    """The most that one engine was asked for over ten minutes of the last day; None: no history tells."""
    is_full: bool = False
    """It gives all that it can as it is set: requests wait, or their number grows."""
    is_steady: bool = False
    """The same clients seem to send, each once it is answered: what is offered is what is given."""

    @property
    def peak(self) -> float:
        """Return the most that was asked for of late, over what is given now."""
        if self.peak_per_second is None or not self.served_per_second:
            return self.now
        return max(self.now, self.peak_per_second / self.served_per_second)

    def least(self, stalls: float, spread: float) -> float:
        """Return what a cap must serve at most, over what is given now, to keep nobody waiting for it.

        As much as is offered at the peak, or as much as is given now where that is all that the present
        setting can. Where the same clients send again and again they adapt to what is served, and where most
        of their answers hang nothing is lost with the tokens.

        Args:
            stalls: per request, now.
            spread: how far outputs are from ending in waves (0-1).
        """
        if self.is_full and self.is_steady:
            return 0.0 if stalls >= MANY_STALLS else ENOUGH
        margin = 1 + MARGIN + WAVES_MARGIN * (1 - spread)
        return margin if self.is_full else max(1.0, self.peak) * (margin + KEEPING_UP)


@dataclass(frozen=True, slots=True)
class Queue:
    """Requests in a fleet's hands over one look."""

    running: float
    waiting: float
    change: float
    """Running and waiting at its end, less the same at its start."""
    is_glimpsed: bool = False
    """Only a few moments are known."""

    @property
    def is_steady(self) -> bool:
        """Return whether as many were there at the end as at the start."""
        wandering = max(STEADY_REQUESTS, STEADY * (self.running + self.waiting))
        return abs(self.change) <= (STEADY_PAGES if self.is_glimpsed else wandering)

    @property
    def is_full(self) -> bool:
        """Return whether more are there than the engines can take on."""
        return self.waiting >= FULL * self.running

    @property
    def grows(self) -> bool:
        """Return whether more were there at the end than at the start."""
        return self.change > 0 and not self.is_steady


def peak_of(peaks: Mapping[str, Reading[float]]) -> float | None:
    """Return the most that a replica was asked for, on average over the replicas of which that is known."""
    told = [one.value for one in peaks.values() if isinstance(one, Measured)]
    known = [value for value in told if isfinite(value) and value > 0]
    return sum(known) / len(known) if known else None
