"""Which replica serves for a test where no node takes a trial pod, and the spec allows a dip; pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from kvmedic.core.compressed import AGAIN
from kvmedic.core.fleet import Fleet, Pod
from kvmedic.core.plan import Plan, Step
from kvmedic.core.policy import Policy
from kvmedic.core.reasons import Reason
from kvmedic.core.record import ClosedRun
from kvmedic.core.trialling import Question, TrialStep
from kvmedic.runbooks.planning import Fault

FEWEST = 2
"""Replicas that a fleet must have in rotation before one is drained: the only one never is."""


@dataclass(frozen=True, slots=True)
class Past:
    """What went before a plan."""

    history: Sequence[ClosedRun]
    """The resource's closed runs."""
    branch: Reason
    """The branch that leads to the plan."""
    now: datetime


def may_ask_replica(step: Step, policy: Policy) -> bool:
    """Return whether a replica may answer what a trial pod is asked, where no node takes that."""
    if not isinstance(step, TrialStep) or step.change is not None or step.replica:
        return False
    return step.question is Question.RECLAMATION and policy.compression.probe.drains_replica


def on_a_replica(plan: Plan, fleet: Fleet, policy: Policy, past: Past) -> Plan | Fault:
    """Return a plan of a trial, on a replica where a pod of its own found no room; or why it cannot be asked.

    Only a long generation with the present setting: device memory of an engine that served requests tells
    nothing of prompts.

    Args:
        plan: as it is with a pod of its own.
        fleet: as it is.
        policy: what the spec allows.
        past: what went before.
    """
    step = plan.steps[0]
    if not isinstance(step, TrialStep) or not may_ask_replica(step, policy) or not _found_no_room(plan, past):
        return plan
    pod = _spared(fleet, policy.limits.min_healthy_replicas)
    if pod is None:
        text = "no node took a trial pod within a day, and no replica can be spared to serve for one"
        return Fault(Reason.SPARE_UNSCHEDULABLE, text)
    on_replica = replace(step, replica=pod.name, replica_uid=pod.uid)
    message = f"no node took a trial pod, so {pod.name} is drained and serves for it; {plan.message}"
    return replace(plan, steps=(on_replica,), message=message)


def _found_no_room(plan: Plan, past: Past) -> bool:
    """Return whether this very trial was given up for want of room, not long ago: room may come."""
    return any(
        run.outcome is Reason.SPARE_UNSCHEDULABLE
        and (run.reason, run.template) == (past.branch, plan.template)
        and past.now - run.ended_at < AGAIN
        for run in past.history
    )


def _spared(fleet: Fleet, least: int) -> Pod | None:
    """Return the replica that can be spared; None where none can."""
    serving = [pod for pod in fleet.live if pod.ready and pod.in_rotation]
    return serving[0] if len(serving) >= max(FEWEST, least + 1) else None
