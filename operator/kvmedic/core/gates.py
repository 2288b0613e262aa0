"""What must allow a forward move. An unanswerable gate blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum

from kvmedic.core.reasons import Reason


class Stop(Enum):
    """The operator-wide stop, as it was read."""

    OFF = "off"
    ON = "on"
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True)
class Blocked:
    """Why no forward move is made now, for a person."""

    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class Budget:
    """How often a resource may open a run, and on how healthy a fleet."""

    cooldown: timedelta
    runs_per_day: int
    healthy_replicas: int


def forward_gate(*, suspend: bool, observe: bool, stop: Stop) -> Blocked | None:
    """Return why a run under way may not move forward, or None. Asked before every effect."""
    if stop is Stop.UNREADABLE:
        return Blocked(
            Reason.STOP_UNREADABLE, "the stop ConfigMap could not be read; forward moves wait for it"
        )
    if stop is Stop.ON:
        return Blocked(
            Reason.STOPPED, "the operator-wide stop is on; remove the stop ConfigMap's key to go on"
        )
    if suspend:
        return Blocked(Reason.SUSPENDED, "spec.suspend is true; set it to false to go on")
    if observe:
        return Blocked(
            Reason.OBSERVE_ONLY, "spec.mode is Observe; set it to Auto to have the plan carried out"
        )
    return None


def opening_gate(
    budget: Budget, ended: Sequence[datetime], started: Sequence[datetime], ready: int, now: datetime
) -> Blocked | None:
    """Return why no new run may be opened, or None.

    Args:
        budget: the spec's limits.
        ended: when the resource's closed runs ended.
        started: when they started.
        ready: replicas that are Ready.
        now: the time of asking.
    """
    if ready < budget.healthy_replicas:
        return Blocked(
            Reason.TOO_FEW_HEALTHY,
            f"{ready} replicas are Ready, spec.limits.minHealthyReplicas is {budget.healthy_replicas}",
        )
    if ended and now - max(ended) < budget.cooldown:
        until = max(ended) + budget.cooldown
        return Blocked(
            Reason.IN_COOLDOWN, f"the last run ended {max(ended):%H:%M:%SZ}; next at {until:%H:%M:%SZ}"
        )
    today = sum(now - at < timedelta(days=1) for at in started)
    if today >= budget.runs_per_day:
        return Blocked(
            Reason.BUDGET_EXHAUSTED,
            f"{today} runs in the last 24 hours, spec.limits.maxRunsPerDay is {budget.runs_per_day}",
        )
    return None
