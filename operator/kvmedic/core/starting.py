"""Will a new replica come up? What its pod says, and how long it may take."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from kvmedic.core.fleet import Pod
from kvmedic.core.moves import Failed, Wait
from kvmedic.core.reasons import Reason

FATAL_WAITING = frozenset(
    {
        "CrashLoopBackOff",
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "CreateContainerConfigError",
        "CreateContainerError",
        "RunContainerError",
    }
)
"""Reasons of a waiting container that do not pass by themselves (kubelet 1.36)."""

FATAL_RESTARTS = 2
"""A new pod that restarted twice has failed: one restart may be a device not yet released."""

PEER_GRACE = timedelta(seconds=20)
"""How long a peer may be NotReady while a replica is out of rotation: two periods of a usual readiness
probe (10 s, the API's default). After that a rollout deletes the drained pod by name instead of by
order, and a replacement puts the replica back into rotation."""

STARTS = 2
"""Starts for which replicas are waited for, beside one drain, before they are called off: their own,
and that of a peer which somebody deleted or which died meanwhile."""

MAKING_LIMIT = timedelta(seconds=10)
"""How long the controllers may take to make a replica before it counts as not made (a quota). Measured:
they need 0.2-0.4 s. Taken back earlier, the number could meet one that is made and Ready unseen."""


@dataclass(frozen=True, slots=True)
class StartLimits:
    """How long a new replica may take."""

    start: timedelta
    """To become Ready."""
    spare: timedelta
    """To find a node."""


def start_failure(pod: Pod, leaving: bool, limits: StartLimits, now: datetime) -> Failed | None:  # noqa: FBT001
    """Return why a new replica will not come up; None while it may.

    Args:
        pod: the new replica.
        leaving: another one's device may yet become free.
        limits: how long it may take.
        now: the time of asking.
    """
    if pod.waiting_reason in FATAL_WAITING or pod.restarts >= FATAL_RESTARTS:
        why = pod.waiting_reason or f"{pod.restarts} restarts"
        return Failed(Reason.CANARY_FAILED, f"new replica {pod.name} does not start: {why}")
    waited = now - unready_since(pod)
    if pod.unschedulable and not leaving and waited > limits.spare:
        limit = int(limits.spare.total_seconds())
        return Failed(
            Reason.SPARE_UNSCHEDULABLE,
            f"no node took {pod.name} within {limit} s: free one device or raise the quota",
        )
    if not pod.ready and waited > limits.start:
        limit = int(limits.start.total_seconds())
        return Failed(Reason.CANARY_FAILED, f"new replica {pod.name} was not Ready within {limit} s")
    return None


def making_wait(assigned_at: datetime | None, now: datetime) -> Wait | None:
    """Return the wait for a replica that is told but not there yet: it could become Ready unseen."""
    if assigned_at is None or now - assigned_at > MAKING_LIMIT:
        return None
    return Wait(Reason.AWAITING_CONTROLLER, "a replica that is to go has not been made yet")


def unready_since(pod: Pod) -> datetime:
    """Return since when a pod that is not Ready has not been, as far as anybody said."""
    return pod.unready_at or pod.created_at
