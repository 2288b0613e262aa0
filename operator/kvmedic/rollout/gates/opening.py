"""Whether a run may move forward at all, and whether a new one may be opened on a fleet.

The first is the operator-wide stop and what the resource says itself; the second is the limits of its spec:
how many replicas must be healthy, the windows, the time between runs and how many a day may have. An
unanswerable gate blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum

from kvmedic.model.evidence import Blocked
from kvmedic.model.reasons import Reason
from kvmedic.model.spec import Limits, MaintenanceWindow, Mode, Policy
from kvmedic.model.status import ClosedRun


class Stop(Enum):
    """The operator-wide stop, as it was read."""

    OFF = "off"
    ON = "on"
    UNREADABLE = "unreadable"


def forward_gate(policy: Policy, stop: Stop) -> Blocked | None:
    """Return why a run may not move forward, or None. Asked before every effect."""
    if stop is Stop.UNREADABLE:
        return Blocked(
            Reason.STOP_UNREADABLE, "the stop ConfigMap could not be read; forward moves wait for it"
        )
    if stop is Stop.ON:
        return Blocked(Reason.STOPPED, "the operator-wide stop is on; delete the stop ConfigMap to go on")
    if policy.suspended:
        return Blocked(Reason.SUSPENDED, "spec.suspend is true; set it to false to go on")
    if policy.mode is Mode.OBSERVE:
        return Blocked(
            Reason.OBSERVE_ONLY,
            "spec.mode is Observe; set it to Approve or Auto to have the plan carried out",
        )
    return None


@dataclass(frozen=True, slots=True)
class Health:
    """The replicas of a fleet, by whether they serve and what a planned step is to them."""

    ready: int
    mendable: int = 0
    """Not Ready, for the very cause that the step mends."""
    others: int = 0
    """Not Ready for another cause, or nobody knows for which."""

    def allows(self, least: int) -> bool:
        """Return whether a run leaves as many replicas healthy as are demanded.

        The demand protects replicas that serve. What is down for the cause that the step mends cannot be made
        worse by it; anything else that is down may be.
        """
        return self.ready >= least or (self.others == 0 and self.ready + self.mendable >= least)

    def line(self) -> str:
        """Return it in one clause for a person."""
        if not self.mendable:
            return f"{self.ready} replicas are Ready"
        down = self.mendable + self.others
        return (
            f"{self.ready} replicas are Ready, {down} are not, {self.mendable} of these for the cause that "
            "the plan mends: see why the others are down"
        )


def opening_gate(
    limits: Limits, history: Sequence[ClosedRun], health: Health, now: datetime
) -> Blocked | None:
    """Return why no new run may be opened, or None.

    A trial pod changes nothing of the fleet: nothing need cool down after it, and no budget pays for it. What
    showed nothing is remembered, so that it is not asked over and over.
    """
    if not health.allows(limits.min_healthy_replicas):
        return Blocked(
            Reason.TOO_FEW_HEALTHY,
            f"{health.line()}; spec.limits.minHealthyReplicas is {limits.min_healthy_replicas}",
        )
    if not is_window_open(limits.windows, now):
        opens = next_opening(limits.windows, now)
        return Blocked(
            Reason.OUTSIDE_WINDOWS,
            f"spec.limits.windows opens next at {opens:%Y-%m-%d %H:%MZ} (a {opens:%A})",
        )
    changes = [run for run in history if not run.costs_nothing]
    ended = max((run.ended_at for run in changes), default=None)
    if ended is not None and now - ended < limits.cooldown:
        until = ended + limits.cooldown
        message = f"the last run ended {_day_and_time(ended)}; the next may start {_day_and_time(until)}"
        return Blocked(Reason.IN_COOLDOWN, message)
    today = sum(now - run.started_at < timedelta(days=1) for run in changes)
    if today >= limits.max_runs_per_day:
        return Blocked(
            Reason.BUDGET_EXHAUSTED,
            f"{today} runs in the last 24 hours, spec.limits.maxRunsPerDay is {limits.max_runs_per_day}",
        )
    return None


def is_window_open(windows: Sequence[MaintenanceWindow], now: datetime) -> bool:
    """Return whether a time lies in one of the windows; without windows every time does."""
    return not windows or any(begins <= now < ends for w in windows for begins, ends in w.around(now))


def next_opening(windows: Sequence[MaintenanceWindow], now: datetime) -> datetime:
    """Return when the first window opens after a time that lies in none (UTC)."""
    return min(begins for w in windows for begins, _ in w.around(now) if begins > now)


def _day_and_time(moment: datetime) -> str:
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}"
