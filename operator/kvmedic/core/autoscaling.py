"""More replicas for a while through an autoscaler's own minimum: an observed fleet in, the next move out.

Where a HorizontalPodAutoscaler or a ScaledObject decides the number, it is not fought: its minimum is
raised, it makes the replicas, and later its recorded minimum is put back. Whom it then takes away, and
when, is its own decision, as it would be without us. A minimum that is neither the recorded one nor the
one that was set is somebody else's and stays.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from kvmedic.core.draining import stray_move
from kvmedic.core.fleet import Fleet, Minimum
from kvmedic.core.moves import Claim, Failed, Move, SetMinimum, Settled, Wait
from kvmedic.core.plan import AutoscalerStep
from kvmedic.core.preconditions import begun, purpose_of, step_refusal
from kvmedic.core.reasons import Reason
from kvmedic.core.scaling import awaited_of, start_of_added
from kvmedic.core.starting import StartLimits


@dataclass(frozen=True, slots=True)
class Autoscaling:
    """Which minimum is wanted, and what is known beside the fleet itself."""

    step: AutoscalerStep
    """Its `after` is the minimum that is wanted; on the way back it is the step's inverse."""
    replicas: int
    """Of the target before the run."""
    limits: StartLimits
    """An autoscaler may take as long to follow as a replica to start. The controller looks every 15 s
    (kube-controller-manager, --horizontal-pod-autoscaler-sync-period), KEDA passes a change on at once."""
    begins: bool = False
    """The way forward, and the target is not claimed yet."""
    is_ours: bool = True
    """The minimum is the one that was set, or the recorded one."""
    assigned_at: datetime | None = None
    """When the claim on the target was intended; None before."""
    down_before: int = 0
    """Replicas that took no requests before the run."""


def autoscaling_move(fleet: Fleet, order: Autoscaling, now: datetime) -> Move:
    """Return the single next move toward the wanted minimum.

    It must be as the record explains it: anything else is somebody's edit, and the caller leaves
    instead (`leaving_move`).
    """
    step, holder = order.step, fleet.minimum
    if order.begins:
        refused = step_refusal(fleet, step, purpose_of(step))
        return begun(refused, order.assigned_at) or Claim()
    if holder is None:
        return Settled()
    if not _is_set(holder, step):
        return _assign(holder, step)
    if step.gives_back:
        return stray_move(fleet, fleet.pods) or Settled()
    return _arrived(fleet, order, now)


def leaving_move(fleet: Fleet, order: Autoscaling) -> Move:
    """Return the next move toward an autoscaler without anything of ours.

    A minimum that somebody else set stays, and what had begun to be given back stays as it is.
    """
    step, holder = order.step, fleet.minimum
    raised = holder is not None and order.is_ours and not step.gives_back and _is_set(holder, step)
    if holder is not None and raised:
        return _assign(holder, step.inverse())
    return stray_move(fleet, fleet.pods) or Settled()


def _is_set(holder: Minimum, step: AutoscalerStep) -> bool:
    given = step.is_given or not step.gives_back
    return holder.number == step.after and holder.is_given == given


def _assign(holder: Minimum, step: AutoscalerStep) -> SetMinimum:
    return SetMinimum(holder, step.after, step.is_given or not step.gives_back)


def _arrived(fleet: Fleet, order: Autoscaling, now: datetime) -> Move:
    """Return whether as many replicas as the new minimum take requests, or what is waited for."""
    step = order.step
    numbers = order.replicas, step.after
    awaited = awaited_of(fleet, numbers, order.down_before)
    if not awaited:
        return Settled()
    waited = now - order.assigned_at if order.assigned_at else timedelta(0)
    if fleet.replicas < step.after:
        text = f"{step.holder.kind} {step.holder.name} keeps {step.after}, and {fleet.replicas} are asked for"
        if waited > order.limits.start:
            return Failed(Reason.AUTOSCALER_IDLE, f"{text} after {int(waited.total_seconds())} s")
        return Wait(Reason.AWAITING_CONTROLLER, text)
    failed = start_of_added(fleet, numbers, order.limits, waited, now)
    return failed or Wait(Reason.AWAITING_REPLICA, awaited)
