"""The next move of a test on a replica that is drained for it; pure.

The one way in which replicas in rotation fall below what they were: by one, where the spec allows it, and
never below what it demands. Whoever dies in the middle: the run names the replica, and a run is not closed
before that is back.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeAlias

from kvmedic.core.draining import Drain, draining_move
from kvmedic.core.fleet import Fleet, Pod
from kvmedic.core.moves import Cordon, Failed, Uncordon, Wait
from kvmedic.core.preconditions import drained_refusal
from kvmedic.core.reasons import Reason
from kvmedic.core.run import Run
from kvmedic.core.trial_moves import Answered, BeginTest, answer_of, tested
from kvmedic.core.trialling import Interrupted, Progress, Shown, TrialStep, Underway


@dataclass(frozen=True, slots=True)
class DrainedSight:
    """A fleet with a replica that is tested, as it is seen."""

    fleet: Fleet
    drain: Drain
    """What is known of requests on the replica; of no meaning once the test has begun, which sends one."""
    progress: Progress | None
    """None: nobody has begun the test."""
    least: int
    """Replicas that must serve beside it, by the spec."""


DrainedMove: TypeAlias = Cordon | BeginTest | Answered | Wait | Failed


def drained_move(sight: DrainedSight, step: TrialStep, run: Run, now: datetime) -> DrainedMove:
    """Return the next move of a test on a replica.

    Args:
        sight: the fleet and the test as they are.
        step: what is asked, and of which replica.
        run: of the step.
        now: the time.
    """
    if now - run.started_at > timedelta(seconds=step.limit_seconds):
        return Failed(Reason.TRIAL_UNANSWERED, f"no answer within {step.limit_seconds} s")
    if isinstance(sight.progress, Shown):
        return Answered(answer_of(sight.progress, step, run.spec_generation, now))
    pod = replica_of(sight.fleet, step)
    if pod is None or not pod.ready:
        return Failed(Reason.TRIAL_UNANSWERED, f"{step.replica} is {'not Ready' if pod else 'gone'}")
    if why := _not_spared(sight, pod, _least(sight, run)):
        return Failed(Reason.TRIAL_UNANSWERED, why)
    if sight.progress is None:
        return _drained(sight, step, pod, run)
    return _going_on(sight.progress, step, pod)


def replica_of(fleet: Fleet, step: TrialStep) -> Pod | None:
    """Return the replica that a step names; None where it is gone or goes."""
    return next((pod for pod in fleet.live if pod.uid == step.replica_uid), None)


def _least(sight: DrainedSight, run: Run) -> int:
    """Return how many replicas must serve beside the one that is tested: all but one of those before."""
    return max(1, sight.least, run.in_rotation - 1)


def _not_spared(sight: DrainedSight, pod: Pod, least: int) -> str:
    """Return why its peers cannot spare a replica; empty where they can."""
    serving = sum(peer.ready and peer.in_rotation for peer in sight.fleet.live if peer.uid != pod.uid)
    return f"{serving} replicas serve beside {pod.name}, {least} must" if serving < least else ""


def _drained(sight: DrainedSight, step: TrialStep, pod: Pod, run: Run) -> DrainedMove:
    """Return the next move until nothing runs on the replica; then the test begins."""
    refused = drained_refusal(sight.fleet, step) if run.victim is None else None
    if refused is not None:
        return Failed(refused.reason, refused.message)
    waiting = draining_move(sight.fleet, pod, run.victim, sight.drain, _least(sight, run))
    if waiting is not None and not isinstance(waiting, Uncordon):
        return waiting
    if sight.drain is not Drain.IDLE:
        text = f"{pod.name} still has requests, or does not tell, when spec.rollout.drainTimeout is over"
        return Failed(Reason.TRIAL_UNANSWERED, text)
    return tested(None, pod, step)


def _going_on(progress: Underway | Interrupted, step: TrialStep, pod: Pod) -> DrainedMove:
    if not pod.cordoned:
        return Failed(Reason.TRIAL_UNANSWERED, f"somebody put {pod.name} back into rotation")
    return tested(progress, pod, step)
