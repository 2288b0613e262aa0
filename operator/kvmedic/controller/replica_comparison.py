"""New replicas beside old ones while the rollout waits: which, over what time, and what it comes to.

The rollout stands still with every replica in rotation, and harm is taken back with one or two replicas
changed. A crash in the middle loses time only: what is asked of the metrics source is of the past, and
the time itself is counted anew by the next process. That the rollout goes on is written down with its next
move, in one write; until then both sides are looked at again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from math import ceil

from kvmedic.controller.next_move import Tick, elapsed_time, takes_old_replica
from kvmedic.model.engine import Knob
from kvmedic.model.evidence import Inconclusive, Look, LookSeries, Observation, Signal
from kvmedic.model.fleet import Fleet, Pod
from kvmedic.model.plan import COMPARED, FlagStep, Goal
from kvmedic.model.readings import gather_values, number_or_none
from kvmedic.model.run import ComparedSide, ComparisonState, ReplicaComparison, StepState
from kvmedic.model.spec import OnInconclusive, SideBySide, answer_to_no_verdict
from kvmedic.model.status import Wish
from kvmedic.rollout.drift import Standing
from kvmedic.runbooks.workload import View
from kvmedic.verdict.counts import NEEDED, Arm, CapChange, Counts, Limits, Routing, count_replica, list_needs
from kvmedic.verdict.side_by_side import (
    DECIDE_SECONDS,
    GO_ON_SECONDS,
    STRETCH,
    CanaryVerdict,
    Comparison,
    Figures,
    compare_arms,
    settling_time,
)

LARGE, CHANGED_OF_LARGE = 4, 2
"""Replicas from which two are changed before both sides are compared; of a smaller fleet it is one.
Simulated: with one changed replica 16 % of harmful changes were kept, with two or more 11 %."""
MOST_STRETCHES = 8
"""Into how many equal stretches the time is divided, at most: as many as the errors are estimated from."""
ASKED = NEEDED | {Signal.REQUESTS_ABORTED, Signal.E2E_SECONDS}
WAITING = frozenset({Signal.WAITING_MEAN})


async def compare_replicas(
    tick: Tick, view: View | None, stands: Standing
) -> tuple[Tick, ReplicaComparison | None]:
    """Return the tick with what is known of both sides, and that; None where the walk goes on without it."""
    if view is None or stands is not Standing.AS_RECORDED or not _is_compared(tick):
        return tick, None
    fleet, record = view.fleet, tick.run.current
    new, old = (
        _list_serving(fleet, each) for each in (record.step.after_template, record.step.before_template)
    )
    changed = CHANGED_OF_LARGE if fleet.replicas >= LARGE else 1
    if fleet.replicas < 2 or not old or len(new) < changed or not takes_old_replica(tick, fleet):
        return tick, None
    names = tuple(sorted(pod.name for pod in new))
    known = record.comparison
    if known is None or known.pods != names:
        known = ReplicaComparison(tick.now, names, message=_say_settling(settling_time(tick.run.baseline)))
    found = await _look_again(tick, known, new, old)
    return replace(tick, run=tick.run.with_step(replace(record, comparison=found))), found


def _is_compared(tick: Tick) -> bool:
    """Return whether new replicas of the open run are to be compared with old ones, and were not yet."""
    record = tick.run.current
    if tick.problem is not None or tick.resource.wish is Wish.KEEP:
        return False
    over = record.comparison is not None and record.comparison.is_decided
    walks = record.state is StepState.ROLLING_OUT and record.step.template_change is not None
    return walks and not over and tick.run.goal in COMPARED and tick.policy.side_by_side is SideBySide.AUTO


def limits_of(tick: Tick) -> Limits:
    """Return what counts as in time, what the change does to the cap, and whether it has to help."""
    step, cap = tick.run.current.step, None
    if isinstance(step, FlagStep) and step.knob is Knob.MAX_NUM_SEQS:
        was, is_now = step.before or "", step.after or ""
        if was.isdigit() and is_now.isdigit():
            cap = CapChange.LOWERED if int(is_now) < int(was) else CapChange.RAISED
    before = tick.run.baseline
    return Limits(
        tick.policy.objectives,
        cap=cap,
        must_gain=tick.run.goal is Goal.RELIEF,
        patience_seconds=None if before is None else before.first_token_limit_seconds,
    )


def _list_serving(fleet: Fleet, template: str) -> tuple[Pod, ...]:
    return tuple(pod for pod in fleet.list_pods(template) if pod.ready and pod.in_rotation)


async def _look_again(
    tick: Tick, known: ReplicaComparison, new: Sequence[Pod], old: Sequence[Pod]
) -> ReplicaComparison:
    """Return what is known of both sides as of now; they are looked at once a minute.

    A new replica that was not Ready meanwhile begins anew; an old one that came meanwhile is left out.
    """
    began = ((pod.uid, pod.ready_at) for pod in new)
    watched = elapsed_time(tick, "comparing", known.since, *began) - settling_time(tick.run.baseline)
    minutes = watched // STRETCH
    there = {pod.name: elapsed_time(tick, "beside", known.since, pod.uid, pod.ready_at) for pod in old}
    if minutes < 1 or minutes == known.minutes:
        return known
    limits = limits_of(tick)
    compared = [pod for pod in old if there[pod.name] >= STRETCH * minutes]
    if not compared:
        text = f"no old replica has been Ready for {minutes} min, so that none is left to compare with"
        return _without_verdict(tick, replace(known, minutes=minutes), watched, text)
    arms = await _read_arms(tick, minutes, (new, compared), limits)
    if isinstance(arms, Inconclusive):
        return _without_verdict(tick, replace(known, minutes=minutes), watched, arms.message)
    return _conclude(tick, replace(known, minutes=minutes), watched, compare_arms(*arms, limits))


async def _read_arms(
    tick: Tick, minutes: int, sides: tuple[Sequence[Pod], Sequence[Pod]], limits: Limits
) -> tuple[Arm, Arm] | Inconclusive:
    """Return old and new replicas over the same stretches of the last minutes, or what is missing of them."""
    length = ceil(minutes / MOST_STRETCHES)
    number, stretch = minutes // length, STRETCH * length
    asked = (
        LookSeries(Look(stretch, signals=ASKED), stretch, number),
        LookSeries(Look(STRETCH, signals=WAITING), stretch, number + 1),
    )
    source, namespace, pods = tick.policy.source, tick.resource.namespace, [*sides[0], *sides[1]]
    look = tick.ports.metrics.look_series
    looks, ends = await asyncio.gather(*(look(source, pods, namespace, each) for each in asked))
    new, old = (arm_of(looks, ends, [pod.name for pod in side], limits) for side in sides)
    if isinstance(old, Inconclusive):
        return old
    return new if isinstance(new, Inconclusive) else (old, new)


def arm_of(
    stretches: Sequence[Observation], ends: Sequence[Observation], names: Sequence[str], limits: Limits
) -> Arm | Inconclusive:
    """Return what some replicas did, stretch by stretch, or what is missing of it.

    A queue is a mean over a minute: one of less than half a request counts as none.

    Args:
        stretches: looks at consecutive stretches of time, oldest first.
        ends: looks at the queues around the beginning of the first stretch and the end of each.
        names: of the replicas.
        limits: what is too late, and too slow.
    """
    needed = list_needs(limits.objectives)
    for seen, signals in (*((each, needed) for each in stretches), *((each, WAITING) for each in ends)):
        gap = gather_values(replace(seen, pods={name: seen.pods[name] for name in names}), signals)
        if isinstance(gap, Inconclusive):
            return gap
    queues = [
        {name: number_or_none(each.pods[name], Signal.WAITING_MEAN) or 0.0 for name in names} for each in ends
    ]
    blocks = []
    for seen, (before, after) in zip(stretches, pairwise(queues), strict=True):
        counted = (
            count_replica(
                seen.pods[name], seen.window_seconds, limits, (round(before[name]), round(after[name]))
            )
            for name in names
        )
        blocks.append(sum((each for each in counted if isinstance(each, Counts)), Counts()))
    return Arm(len(names), tuple(blocks), tuple(sum(each.values()) for each in queues[1:]))


def _conclude(
    tick: Tick, known: ReplicaComparison, watched: timedelta, found: Comparison
) -> ReplicaComparison:
    """Return what a comparison means for the rollout."""
    message = say_comparison(found)
    known = replace(
        known,
        message=message,
        routing=str(found.routing),
        old=_side(found.old, found.old_replicas),
        new=_side(found.new, found.new_replicas),
    )
    if found.verdict is CanaryVerdict.GO_ON:
        return replace(known, state=ComparisonState.GO_ON)
    if found.verdict is CanaryVerdict.ROLL_BACK:
        return replace(known, state=ComparisonState.ROLL_BACK)
    if found.routing is Routing.STICKY and found.seconds >= GO_ON_SECONDS:
        return replace(known, state=ComparisonState.NOT_COMPARABLE)
    if found.seconds < DECIDE_SECONDS:
        return known
    return _without_verdict(tick, known, watched, message)


def _without_verdict(tick: Tick, known: ReplicaComparison, watched: timedelta, why: str) -> ReplicaComparison:
    """Return the comparison where evidence is missing: held at first, then as the spec says."""
    held, policy = watched - timedelta(seconds=GO_ON_SECONDS), tick.policy
    if held < timedelta(0):
        return replace(known, message=why)
    states = {
        OnInconclusive.HOLD: ComparisonState.WATCHING,
        OnInconclusive.KEEP: ComparisonState.NOT_COMPARABLE,
        OnInconclusive.ROLL_BACK: ComparisonState.UNJUDGED,
    }
    answer = answer_to_no_verdict(policy.on_inconclusive, held, policy.hold_at_most)
    return replace(known, state=states[answer], message=why)


def _side(figures: Figures, replicas: int) -> ComparedSide | None:
    """Return what is recorded of a side; None where nobody asked it for anything."""
    if figures.due <= 0:
        return None
    return ComparedSide(
        replicas, figures.served_in_time_per_second, figures.in_time_share, figures.first_tokens
    )


def _say_settling(settling: timedelta) -> str:
    return (
        f"new and old replicas serve beside each other; they are compared after {settling // STRETCH} min, "
        "once the new ones have a usual mix of requests"
    )


def say_comparison(found: Comparison) -> str:
    """Return which test decided, or is waited for, and the figures of both sides."""
    sides = (("new", found.new_replicas, found.new), ("old", found.old_replicas, found.old))
    figures = "; ".join(f"{count} {name}: {_say_served(one)}" for name, count, one in sides)
    text = f"{found.decided_by}: {found.message}"
    return f"{text} ({figures}; over {found.seconds / 60:.0f} min, routing {found.routing})"


def _say_served(figures: Figures) -> str:
    if figures.due <= 0:
        return f"no requests, {figures.waiting:.1f} waiting"
    return (
        f"{figures.served_in_time_per_second:.1f} tokens/s each served in time "
        f"({figures.in_time_share:.0%}), {figures.waiting:.1f} waiting"
    )
