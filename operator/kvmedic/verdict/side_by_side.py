"""New replicas against old ones, at the same moment under the same arrivals: go on, roll back, or watch on.

What users feel is what is **served in time**: tokens of requests whose first token came soon enough and
that never hung. Neither arrivals nor the time of day differ between replicas that serve side by side, so a
difference is the change's. `docs/explanation/verdict.md` has the rule, its errors and how it was tried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from itertools import pairwise
from math import ceil, exp, log, nan, sqrt
from typing import TypeAlias

from kvmedic.model.run import Baseline
from kvmedic.verdict.comparison import WORSE
from kvmedic.verdict.counts import Arm, CapChange, Counts, Limits, Routing
from kvmedic.verdict.served_in_time import WORST_STALLS, FirstTokens, silent_seconds, stalls_per_request

STRETCH = timedelta(minutes=1)
"""Shortest time over which a replica's counts are read, and how often both sides are looked at: four scrapes
at the usual 15 s."""
SETTLED = timedelta(minutes=2)
"""How long a new replica serves, at least, before it is looked at: what it finishes first is short."""
STAYS = 1.5
"""Times that a request stays, on average, before a new replica has a mix of requests like the old ones."""
LONGEST_SETTLED = timedelta(minutes=10)
"""The same at most (as simulated): behind a queue a stay has no end."""
LOSS = 0.05
"""The share of what is served in time that a change may cost. Less looks like chance within an hour:
of 14 simulated changes that cost 5 to 20 %, 5 were found."""
SURE = 2.0
"""Standard errors on the safe side of a limit before a change is rolled back, on two looks in a row."""
SURER = 3.0
"""The same where there is one look alone."""
LIKELY = 1.0
"""Standard errors on the safe side before the change goes on."""
SCATTER_IN_TIME, SCATTER_SERVED = 0.15, 0.5
"""Scatter of the logarithm of what is served in time, per root of a first token, beyond what stretches of
time show: of the share, and of tokens per second (simulated, no change at all)."""
LEAST_TO_ROLL_BACK, LEAST_TO_GO_ON = 40, 150
"""Requests due on each side before a rollback: first tokens, and those that were aborted or wait for longer
than the limit, as a replica that starves everybody gives no first token. And first tokens on the new
replicas before the change goes on."""
GO_ON_SECONDS = 600.0
"""Watched for so long, at least, before the change goes on."""
QUEUED, QUEUED_LEAST = 0.05, 2.0
"""Share of the arrivals that may join the queue of the new replicas beyond that of the old ones, and requests
that wait there, at least, for that to count."""
QUEUE_SCATTER = 1.5
"""Variance of the share of arrivals that join the queue, per arrival (simulated)."""
QUEUED_TO_GO_ON = 0.10
"""The same share, below which the change may go on."""
FULL_SHARE, FULL_WAITING = 0.8, 1.0
"""Share of the moments at which requests wait, and how many on average, for an engine to give all it can."""
TESTED_SHARE = 0.2
"""Share of the moments at which requests wait where the cap is lower, from which the cap was tried at all."""
DECIDE_SECONDS = 2100.0
"""Compared for so long, a change that shows no gain is taken back (40 minutes with what is left out first).
Of the simulated harms of over 30 %, 94 % had been stopped by then."""
DEADLINE = "deadline"
"""What decides then."""
TIME = "time"
"""What decides while it was watched for too short a time."""
LESS_SILENT = 0.8
"""Silent seconds per request, new over old, under which users clearly wait less."""
UNEQUAL = 0.2
"""Difference of arrivals per replica (logarithm) beyond which routing, not chance, gave one side more."""
ALIKE_IN_FLIGHT = 0.1
"""Difference of requests in flight per replica (logarithm) up to which a router keeps them equal."""
MISSED_SHARE = 0.05
"""Share beyond an objective on a 95th percentile from which it is missed."""
FEWEST_BLOCKS, MOST_BLOCKS = 4, 8
"""Stretches of time from which their scatter is an error of its own (jackknife), and into how many the time
is divided at most: queues last for minutes, so that one minute resembles the next."""


Measure: TypeAlias = Callable[["Counts", "Arm"], float]
"""What is compared, by the counts of one side."""


class CanaryVerdict(StrEnum):
    """What to do with the change."""

    GO_ON = "go-on"
    ROLL_BACK = "roll-back"
    KEEP_WATCHING = "keep-watching"


@dataclass(frozen=True, slots=True)
class Figures:
    """One side in the terms of the rule."""

    arrivals_per_second: float
    """Of one replica."""
    tokens_per_second: float
    """Of one replica."""
    stalls_per_request: float
    in_time_share: float
    """Of those that are due, the share whose first token came in time and whose answer did not hang; NaN
    where none is."""
    served_in_time_per_second: float
    """Tokens per second of one replica, times that share; NaN likewise."""
    silent_seconds: float
    """Per request, before its first token and while preempted (Little's law); infinite where none arrives."""
    queued_share: float
    """Share of the arrivals that only joined the queue."""
    waiting: float
    """Waiting requests of one replica, on average."""
    in_flight: float
    """Running and waiting requests of one replica, on average."""
    full_share: float
    """Share of the time at which requests waited."""
    first_tokens: float
    due: float
    """Requests that were answered, or should have been: aborted, or waiting for longer than the limit."""


@dataclass(frozen=True, slots=True)
class Check:
    """One comparison: a figure, its standard error, and the limit that it must not pass."""

    name: str
    value: float
    error: float
    limit: float
    fails: bool
    message: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """What one look at both sides says."""

    verdict: CanaryVerdict
    decided_by: str
    """Name of the test, or of what is still missing."""
    message: str
    seconds: float
    routing: Routing
    old: Figures
    new: Figures
    old_replicas: int
    new_replicas: int
    checks: tuple[Check, ...]


@dataclass(frozen=True, slots=True)
class Change:
    """A logarithm, new over old, and its standard error."""

    value: float
    error: float


@dataclass(frozen=True, slots=True)
class Sides:
    """Both sides over the same time, with what is taken of both together."""

    old: Arm
    new: Arm
    output: float
    """Tokens of an answer, on average over both sides: what finishes early on a new replica is short."""
    limits: Limits
    sure: float = SURE

    @property
    def seconds(self) -> float:
        """Return how long both were watched."""
        return self.new.whole.replica_seconds / self.new.replicas

    @property
    def scatter(self) -> float:
        """Return the root of what one first token on each side adds to a variance."""
        return sqrt(sum(1 / max(1.0, arm.whole.first_tokens) for arm in (self.old, self.new)))

    def stalls(self, counts: Counts) -> float:
        """Return stalls per request, of requests as long as the average of both sides."""
        return min(WORST_STALLS, stalls_per_request(counts.stalls, counts.tokens, self.output))

    def log_in_time(self, counts: Counts, waiting_at_end: float, seconds: float) -> float:
        """Return the logarithm of the share that is served in time, of those that came."""
        firsts = _first_tokens(counts, waiting_at_end, seconds)
        return log(firsts.share_in_time(self.limits.first_token_seconds)) - self.stalls(counts)

    def figures(self, arm: Arm) -> Figures:
        """Return one side in the terms of the rule."""
        counts, time = arm.whole, max(arm.whole.replica_seconds, 1e-9)
        due = self._count_due(arm)
        share = exp(self.log_in_time(counts, arm.waiting[-1], self.seconds)) if due > 0 else nan
        waits = counts.waiting_seconds
        return Figures(
            arrivals_per_second=counts.arrivals / time,
            tokens_per_second=counts.tokens / time,
            stalls_per_request=self.stalls(counts),
            in_time_share=share,
            served_in_time_per_second=counts.tokens / time * share,
            silent_seconds=silent_seconds(waits, counts.arrivals),
            queued_share=counts.waiting_change / max(1.0, counts.arrivals),
            waiting=waits / time,
            in_flight=counts.in_flight_seconds / time,
            full_share=counts.full_seconds / time,
            first_tokens=counts.first_tokens,
            due=due,
        )

    def _count_due(self, arm: Arm) -> float:
        firsts = _first_tokens(arm.whole, arm.waiting[-1], self.seconds)
        return firsts.count_due(self.limits.first_token_seconds)

    def change_in_time(self) -> Change:
        """Return the logarithm of the share that is served in time, new over old."""
        return self._log_change(self._measure_in_time, SCATTER_IN_TIME)

    def change_served(self) -> Change:
        """Return the logarithm of tokens per second that are served in time, new over old."""
        return self._log_change(self._measure_served, SCATTER_SERVED)

    def _log_change(self, measure: Measure, scatter: float) -> Change:
        counted = sum(self.counting_variance(arm) for arm in (self.old, self.new))
        errors = max(counted, self._jackknife_variance(measure)) + (scatter * self.scatter) ** 2
        return Change(measure(self.new.whole, self.new) - measure(self.old.whole, self.old), sqrt(errors))

    def _measure_in_time(self, counts: Counts, arm: Arm) -> float:
        return self.log_in_time(counts, arm.waiting[-1], counts.replica_seconds / arm.replicas)

    def _measure_served(self, counts: Counts, arm: Arm) -> float:
        return log(max(1.0, counts.tokens) / counts.replica_seconds) + self._measure_in_time(counts, arm)

    def counting_variance(self, arm: Arm) -> float:
        """Return the variance of one side's logarithm by its counts alone: requests late, and stalls."""
        counts, due = arm.whole, self._count_due(arm)
        share = (counts.in_time + 0.5) / (due + 1.0)
        late = max(0.0, 1 - share) / (share * (due + 1.0))
        return late + self.stalls(counts) ** 2 / max(1.0, counts.stalls)

    def _jackknife_variance(self, measure: Measure) -> float:
        return jackknife_variance(
            len(self.new.blocks), lambda begin, end: self._difference_without(begin, end, measure)
        )

    def _difference_without(self, begin: int, end: int, measure: Measure) -> float:
        new, old = (
            measure(sum((*arm.blocks[:begin], *arm.blocks[end:]), Counts()), arm)
            for arm in (self.new, self.old)
        )
        return new - old


def settling_time(before: Baseline | None) -> timedelta:
    """Return how long a new replica is not looked at, in whole minutes, by how long requests stay."""
    if before is None or before.requests_per_second <= 0:
        return SETTLED
    stay = ((before.running_mean or 0.0) + before.waiting_mean) / before.requests_per_second
    longest = min(timedelta(seconds=STAYS * stay), LONGEST_SETTLED)
    return STRETCH * ceil(max(SETTLED, longest) / STRETCH)


def jackknife_variance(blocks: int, leave_out: Callable[[int, int], float]) -> float:
    """Return the variance of a figure by leaving out each stretch of time in turn; 0 of too few.

    Args:
        blocks: stretches that there are.
        leave_out: the figure without those from the first number up to the second.
    """
    number = min(blocks, MOST_BLOCKS)
    if number < FEWEST_BLOCKS:
        return 0.0
    bounds = [round(place * blocks / number) for place in range(number + 1)]
    left = [leave_out(begin, end) for begin, end in pairwise(bounds)]
    mean = sum(left) / number
    return (number - 1) / number * sum((each - mean) ** 2 for each in left)


def _first_tokens(counts: Counts, waiting_at_end: float, seconds: float) -> FirstTokens:
    return FirstTokens(
        counts.first_tokens, counts.in_time, counts.aborted, waiting_at_end, counts.arrivals / seconds
    )


def compare_arms(old: Arm, new: Arm, limits: Limits) -> Comparison:
    """Return what both sides say of the change.

    A rollback needs two looks in a row, the second over one stretch of time more. Of a single stretch there
    is one look, which must be the surer.

    Args:
        old: the replicas without it.
        new: those with it, over the same stretches of time.
        limits: what counts as in time, and how requests find a replica.
    """
    if len(new.blocks) == 1:
        return _compare_once(old, new, limits, SURER)
    found = _compare_once(old, new, limits, SURE)
    if found.verdict is not CanaryVerdict.ROLL_BACK or found.decided_by == DEADLINE:
        return found
    before = _compare_once(old.without_newest(), new.without_newest(), limits, SURE)
    if before.verdict is CanaryVerdict.ROLL_BACK:
        return found
    why = f"{found.message}; one look more must say so"
    return replace(found, verdict=CanaryVerdict.KEEP_WATCHING, message=why)


def sides_of(old: Arm, new: Arm, limits: Limits, sure: float = SURE) -> Sides:
    """Return both sides with what is taken of both together."""
    both = old.whole + new.whole
    return Sides(old, new, both.tokens / max(1.0, both.finished), limits, sure)


def _compare_once(old: Arm, new: Arm, limits: Limits, sure: float) -> Comparison:
    """Return what one look says; `sure` are the standard errors before a rollback."""
    sides = sides_of(old, new, limits, sure)
    before, after = sides.figures(old), sides.figures(new)
    routing = limits.routing or infer_routing(before, after, sides.scatter)
    checks = tuple(_list_checks(sides, before, after, routing))
    verdict, by, why = _decide(sides, before, after, routing, checks)
    return Comparison(
        verdict, by, why, sides.seconds, routing, before, after, old.replicas, new.replicas, checks
    )


def infer_routing(old: Figures, new: Figures, scatter: float) -> Routing:
    """Return how requests seem to find a replica.

    Arrivals that differ by more than chance are a router's. One that looks at the load keeps the requests in
    flight alike, or gives fewer to replicas that hold more; any other goes by keys.
    """
    more = _log_ratio(new.arrivals_per_second, old.arrivals_per_second)
    if abs(more) <= max(UNEQUAL, SURE * scatter):
        return Routing.EVEN
    held = _log_ratio(new.in_flight, old.in_flight)
    is_load_aware = abs(held) <= ALIKE_IN_FLIGHT or (more > 0) is not (held > 0)
    return Routing.LOAD_AWARE if is_load_aware else Routing.STICKY


def _log_ratio(new: float, old: float) -> float:
    return log(max(new, 1e-9) / max(old, 1e-9))


def _list_checks(sides: Sides, old: Figures, new: Figures, routing: Routing) -> Iterator[Check]:
    """Yield every check that is valid under this routing, whether the change fails it or not."""
    in_time, served = sides.change_in_time(), sides.change_served()
    is_full = new.full_share >= FULL_SHARE and new.waiting > FULL_WAITING
    loss = _check_loss("served-when-full", served, sides.sure, "tokens per second served in time")
    if _gets_more_by_keys(old, new, routing):
        if is_full:
            tokens = _log_ratio(new.tokens_per_second, old.tokens_per_second)
            yield replace(
                loss, fails=loss.fails and tokens + sides.sure * SCATTER_SERVED * sides.scatter < -LOSS
            )
        return
    yield _check_loss("served-in-time", in_time, sides.sure, "the share that is served in time")
    yield _check_queue(old, new, sides.new.whole.arrivals)
    if is_full:
        yield loss
    if routing is Routing.LOAD_AWARE and old.full_share < FULL_SHARE:
        yield _check_arrivals(old, new, sides.scatter, is_better=served.value > sides.sure * served.error)
    yield from _list_objectives(sides)


def _gets_more_by_keys(old: Figures, new: Figures, routing: Routing) -> bool:
    """Return whether keys lead more requests to the new replicas: they may then be worse off by that alone.

    With fewer requests they are better off by that alone, so that what they are worse off by is the change's.
    With more, a full replica serves at least as many tokens, unless the change costs them.
    """
    return routing is Routing.STICKY and new.arrivals_per_second > old.arrivals_per_second


def _check_loss(name: str, change: Change, sure: float, what: str) -> Check:
    holds = change.value + sure * change.error < -LOSS
    text = f"{what}: x {exp(change.value):.2f} of the old replicas"
    return Check(name, change.value, change.error, -LOSS, holds, text)


def _check_queue(old: Figures, new: Figures, arrivals: float) -> Check:
    """Return whether requests pile up on the new replicas, and not just until they hold as many."""
    error = sqrt(QUEUE_SCATTER / max(1.0, arrivals))
    more = new.queued_share - max(0.0, old.queued_share)
    holds = more > QUEUED + SURE * error and new.waiting > QUEUED_LEAST and new.in_flight > old.in_flight
    text = f"{more:+.0%} of the arrivals join a queue that the old replicas do not have"
    return Check("queue", more, error, QUEUED, holds, text)


def _check_arrivals(old: Figures, new: Figures, scatter: float, *, is_better: bool) -> Check:
    value = _log_ratio(new.arrivals_per_second, old.arrivals_per_second)
    text = f"the router sends new replicas x {exp(value):.2f} of the requests"
    return Check("arrivals", value, scatter, -LOSS, value < -LOSS - scatter and not is_better, text)


def _list_objectives(sides: Sides) -> Iterator[Check]:
    """Yield a test for each objective: missed on the new replicas alone, or missed there by clearly more."""
    promised, old, new = sides.limits.objectives, sides.old.whole, sides.new.whole
    for name, limit, beyond, of_all in (
        ("ttftP95", promised.time_to_first_token_p95_seconds, "late", "first_tokens"),
        ("interTokenP95", promised.inter_token_p95_seconds, "slow_gaps", "gaps"),
        ("e2eP95", promised.e2e_p95_seconds, "slow_requests", "finished"),
    ):
        if limit is not None:
            before, after = ((getattr(each, beyond), getattr(each, of_all)) for each in (old, new))
            yield _check_objective(f"{name} {limit:g} s", before, after, sides.sure)


def _check_objective(name: str, old: tuple[float, float], new: tuple[float, float], sure: float) -> Check:
    """Return whether more than a twentieth is beyond a limit; counts are (beyond, all)."""
    before, after = (beyond / max(1.0, many) for beyond, many in (old, new))
    error = sqrt(max(after * (1 - after), MISSED_SHARE * (1 - MISSED_SHARE)) / max(1.0, new[1]))
    most = MISSED_SHARE if before <= MISSED_SHARE else min(1.0, WORSE * before)
    text = f"{name}: {after:.0%} are beyond it, {before:.0%} on the old replicas"
    return Check("objective", after, error, most, after - sure * error > most, text)


def _decide(
    sides: Sides, old: Figures, new: Figures, routing: Routing, checks: Sequence[Check]
) -> tuple[CanaryVerdict, str, str]:
    """Return the verdict of one look, what decided it, and why."""
    if few := _find_too_few(old, new):
        return CanaryVerdict.KEEP_WATCHING, "first-tokens", few
    if failed := next((each for each in checks if each.fails), None):
        return CanaryVerdict.ROLL_BACK, failed.name, failed.message
    change = sides.change_in_time()
    lacks = _find_lack(sides, old, new, change)
    if routing is Routing.STICKY and (lacks or not _gets_more_by_keys(old, new, routing)):
        text = "requests find replicas by keys, so both sides do not get the same: judge by before and after"
        return CanaryVerdict.KEEP_WATCHING, "routing", text
    if lacks is None:
        text = f"x {exp(change.value):.2f} of the old replicas, and no test fails"
        return CanaryVerdict.GO_ON, "served-in-time", text
    if sides.seconds < DECIDE_SECONDS or new.first_tokens < LEAST_TO_GO_ON:
        return CanaryVerdict.KEEP_WATCHING, *lacks
    gain = f"x {exp(change.value):.2f} of the old replicas, {_say_silent(old, new)}"
    text = f"after {sides.seconds / 60:.0f} minutes {gain}"
    gains = change.value > LIKELY * change.error or _waits_less(sides, old, new)
    if gains or sides.limits.must_gain is False:
        return CanaryVerdict.GO_ON, DEADLINE, text
    if sides.limits.must_gain is None:
        return CanaryVerdict.KEEP_WATCHING, *lacks
    return CanaryVerdict.ROLL_BACK, DEADLINE, f"no gain {text}"


def _find_lack(sides: Sides, old: Figures, new: Figures, change: Change) -> tuple[str, str] | None:
    """Return what is missing before the change may go on, and the figures; None: nothing."""
    if new.first_tokens < LEAST_TO_GO_ON:
        return "first-tokens", _say_too_few("new", new, LEAST_TO_GO_ON)
    if sides.seconds < GO_ON_SECONDS:
        return TIME, f"watched for {sides.seconds:.0f} s of {GO_ON_SECONDS:.0f} s"
    low = change.value - LIKELY * change.error
    if low <= -LOSS:
        return "served-in-time", f"it may be as low as x {exp(low):.2f} of the old replicas"
    queue = _check_queue(old, new, sides.new.whole.arrivals)
    if queue.value + queue.error >= QUEUED_TO_GO_ON:
        return "queue", f"{queue.message}, give or take {queue.error:.0%}"
    capped = {None: 1.0, CapChange.LOWERED: new.full_share, CapChange.RAISED: old.full_share}[
        sides.limits.cap
    ]
    if capped <= TESTED_SHARE:
        return (
            "untested",
            f"the lower cap held requests up {capped:.0%} of the time, {TESTED_SHARE:.0%} test it",
        )
    if sides.limits.cap is CapChange.RAISED and not _waits_less(sides, old, new):
        return "silent-seconds", _say_silent(old, new)
    return None


def _waits_less(sides: Sides, old: Figures, new: Figures) -> bool:
    """Return whether users clearly wait less, or will: both sides are full and the new one serves more.

    A router that looks at the load keeps the queues alike, so that waits differ little.
    """
    if new.silent_seconds < LESS_SILENT * old.silent_seconds:
        return True
    more = _log_ratio(new.tokens_per_second, old.tokens_per_second)
    more -= max(0.0, new.stalls_per_request - old.stalls_per_request)
    is_full = min(old.full_share, new.full_share) >= FULL_SHARE
    return is_full and more - SURE * SCATTER_SERVED * sides.scatter > LOSS


def _say_silent(old: Figures, new: Figures) -> str:
    return f"silent seconds per request {old.silent_seconds:.1f} -> {new.silent_seconds:.1f}"


def _find_too_few(old: Figures, new: Figures) -> str:
    """Return which side has too few requests to say anything, the new one first; empty: neither."""
    few = ((name, side) for name, side in (("new", new), ("old", old)) if side.due < LEAST_TO_ROLL_BACK)
    return next((_say_too_few(name, side, LEAST_TO_ROLL_BACK) for name, side in few), "")


def _say_too_few(side: str, figures: Figures, least: int) -> str:
    unanswered = figures.due - figures.first_tokens
    more = f" and {unanswered:.0f} requests aborted or overdue" if unanswered >= 1 else ""
    return f"{figures.first_tokens:.0f} first tokens{more} on the {side} replicas of {least} that are needed"
