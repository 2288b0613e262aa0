"""Will a new replica come up? What its pod says, what its KV-cache pool says, and how long it may take."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import assert_never

from kvmedic.model.evidence import Absence, Measured, Missing, Pool, Reading, Stale, Unsupported
from kvmedic.model.fleet import Pod
from kvmedic.model.reasons import Reason
from kvmedic.rollout.moves import Failed, Wait

FATAL_WAITING = frozenset({"CrashLoopBackOff", "InvalidImageName"})
"""Reasons of a waiting container that speak against a change at once (kubelet 1.36). The others pass, as a
registry answers again, a device is given back or a Secret is made, and count when the start took too long."""

IMAGE_WAITING = frozenset({"ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "RegistryUnavailable"})
"""Reasons of a container whose image is not on the node yet (kubelet 1.36, pkg/kubelet/images/types.go). No
setting of an engine decides that: a registry that was away speaks against no change."""

FATAL_RESTARTS = 2
"""A new pod that restarted twice has failed: one restart may be a device not yet released."""


STARTS = 2
"""Starts for which replicas are waited for, beside one drain, before they are called off: their own,
and that of a peer which somebody deleted or which died meanwhile."""

DEFAULT_START_LIMIT = timedelta(seconds=600)
"""How long a replica may take to become Ready where the Deployment does not say
(`progressDeadlineSeconds`, the API's default)."""

SLOWEST_STARTS = 2
"""A new replica may take twice as long as the slowest that is seen: another node reads its weights cold."""

BELIEVED_START = timedelta(hours=1)
"""A replica that became Ready later than that after it was made was not starting all that time: its probe
failed meanwhile, and the kubelet keeps the last change only. 700 GB at 0.4 GB/s take half of it."""

MAKING_LIMIT = timedelta(seconds=10)
"""How long the controllers may take to make a replica before it counts as not made (a quota). Measured:
they need 0.2-0.4 s. Taken back earlier, the number could meet one that is made and Ready unseen."""

CANARY_BLOCKS_RATIO = 0.9
"""Share of the recorded KV-cache blocks that a new replica must have: fewer sequences never need more
device memory, so a smaller pool means that something else went wrong."""


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
    if has_crashed(pod):
        why = pod.waiting_reason or f"{pod.restarts} restarts"
        return Failed(Reason.CANARY_FAILED, f"new replica {pod.name} does not start: {why}")
    waited = now - unready_since(pod, now)
    if pod.unschedulable and not leaving and waited > limits.spare:
        limit = int(limits.spare.total_seconds())
        return Failed(
            Reason.SPARE_UNSCHEDULABLE,
            f"no node took {pod.name} within {limit} s: free one device or raise the quota",
        )
    if not pod.ready and waited > limits.start:
        limit = int(limits.start.total_seconds())
        why = f": {pod.waiting_reason}" if pod.waiting_reason else ""
        reason = Reason.IMAGE_UNAVAILABLE if pod.waiting_reason in IMAGE_WAITING else Reason.CANARY_FAILED
        return Failed(reason, f"new replica {pod.name} was not Ready within {limit} s{why}")
    return None


def canary_pool_move(
    pod: Pod, pool: Reading[Pool], least_blocks: int, limits: StartLimits, now: datetime
) -> Failed | Wait | None:
    """Return what the KV-cache pool of a Ready canary says against touching the first old replica, or None.

    Where there is nothing to compare, as engines without a figure of their pool have it (vLLM 0.8), a replica
    that answers is enough.
    """
    match pool:
        case Measured(value=found) if found.blocks < CANARY_BLOCKS_RATIO * least_blocks:
            text = f"{pod.name} has {found.blocks} KV-cache blocks, the others {least_blocks}"
            return Failed(Reason.CANARY_FAILED, text)
        case Measured() | Unsupported():
            return None
        case Missing(Absence.NOTHING_FOUND) if least_blocks == 0:
            return None
        case Missing() if now - pod.created_at > limits.start:
            return Failed(Reason.CANARY_FAILED, f"{pod.name} is Ready and does not answer on /metrics")
        case Missing() | Stale():
            return Wait(Reason.AWAITING_CANARY, f"{pod.name} is Ready; its metrics are not there yet")
        case _:
            assert_never(pool)


def has_crashed(pod: Pod) -> bool:
    """Return whether the engine of a new replica does not stay up, or cannot be started at all."""
    return pod.waiting_reason in FATAL_WAITING or pod.restarts >= FATAL_RESTARTS


def start_limit(deadline_seconds: int | None, timeout: timedelta | None, pods: Iterable[Pod]) -> timedelta:
    """Return how long a new replica may take to become Ready: the longest that anything speaks for.

    Args:
        deadline_seconds: the Deployment's own `progressDeadlineSeconds`; None or 0: it does not say.
        timeout: of the spec; None: it does not say.
        pods: the fleet's, whose own starts are a measure.
    """
    deadline = timedelta(seconds=deadline_seconds) if deadline_seconds else DEFAULT_START_LIMIT
    took = (pod.ready_at - pod.created_at for pod in pods if pod.ready_at and not pod.restarts)
    slowest = max((each for each in took if each <= BELIEVED_START), default=timedelta(0))
    return max(deadline, timeout or deadline, SLOWEST_STARTS * slowest)


def making_wait(assigned_at: datetime | None, now: datetime) -> Wait | None:
    """Return the wait for a replica that is asked for but not there yet: it could become Ready unseen."""
    if assigned_at is None or now - assigned_at > MAKING_LIMIT:
        return None
    return Wait(Reason.AWAITING_CONTROLLER, "a replica that is to go has not been made yet")


def unready_since(pod: Pod, now: datetime) -> datetime:
    """Return since when a pod that is not Ready has not been: by who watches it, else by what the API says.

    The clock of the machine that wrote it there is not the one by which `now` was read.
    """
    if pod.unready_for is not None:
        return now - pod.unready_for
    return pod.unready_at or pod.created_at
