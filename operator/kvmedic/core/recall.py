"""Back to another revision's pod template: the frozen rollout, with a template that is kept elsewhere.

The moves are those of `kvmedic.core.rollout`. What is added: the template that is to be put is kept by a
ReplicaSet, which others may delete (`revisionHistoryLimit`, a person), and its pods may carry labels of
their own. Where it is gone nothing can be put, and nothing is begun. And somebody's rollout away from it may
still be under way: its Ready replicas are then kept, and only the missing ones are started.
"""

from __future__ import annotations

from datetime import datetime

from kvmedic.core.fleet import ADDING, STILL, Fleet
from kvmedic.core.moves import Freeze, Hold, Move, Pulse, Retarget
from kvmedic.core.preconditions import begun, halfway_refusal, is_halfway, recall_refusal
from kvmedic.core.revisions import Revision
from kvmedic.core.rollout import Order, next_move


def recalling_move(fleet: Fleet, order: Order, wanted: Revision, now: datetime) -> Move:
    """Return the single next move that brings the fleet to the wanted revision, forward or back.

    Forward nothing was begun yet where the answer is `Refused`; `Failed` says that it cannot go on.
    """
    doubt = None if fleet.revision == wanted.template else recall_refusal(fleet, wanted)
    if ended := begun(doubt, order.pulsed_at):
        return ended
    if is_halfway(fleet, wanted) and not order.repairs:
        return halfway_refusal(fleet, wanted.template) or _halted(fleet, order)
    if _is_held(fleet, order) and not fleet.is_saturated(order.toward):
        return Retarget(order.edit, STILL)
    if _lacks_spare(fleet, wanted):
        return Pulse("", ADDING)
    return next_move(fleet, order, now)


def _halted(fleet: Fleet, order: Order) -> Freeze | Hold:
    """Return the move that stops somebody's rollout.

    With the template turned at once, the controller takes what is not of it, undrained, where the wanted
    revision has all its replicas (Kubernetes 1.36, deployment sync.go, scale: saturated; seen on it). The one
    replica beside these is drained first then.
    """
    return (Hold if fleet.is_saturated(order.toward) else Freeze)(order.edit, STILL)


def _is_held(fleet: Fleet, order: Order) -> bool:
    """Return whether somebody's rollout was stopped where it stood, with its own template."""
    stopped = fleet.fields.is_frozen and fleet.fields.paused and fleet.observed
    return stopped and fleet.revision == order.away and not order.repairs


def _lacks_spare(fleet: Fleet, wanted: Revision) -> bool:
    """Return whether replicas of both revisions are there, and no spare beside them.

    That of a rollout which was under way may have gone in the very moment. One more of the wanted revision
    is made before any of the other is drained; nothing goes meanwhile, as all of the wanted revision count
    as unavailable.
    """
    there = fleet.desired(wanted.template)
    held = fleet.revision == wanted.template and fleet.fields.is_frozen and fleet.fields.paused
    return held and fleet.observed and 0 < there < fleet.replicas and fleet.told <= fleet.replicas
