"""Back to another revision's pod template: the frozen rollout, with a template that is kept elsewhere.

The moves are those of `kvmedic.core.rollout`. What is added: the template that is to be put is kept by a
ReplicaSet, which others may delete (`revisionHistoryLimit`, a person), and its pods may carry labels of
their own. Where it is gone nothing can be put, and nothing is begun.
"""

from __future__ import annotations

from datetime import datetime

from kvmedic.core.fleet import Fleet, ReplicaSet
from kvmedic.core.moves import Failed, Move, Refused
from kvmedic.core.reasons import Reason
from kvmedic.core.rollout import Order, next_move


def recalling_move(fleet: Fleet, order: Order, now: datetime) -> Move:
    """Return the single next move that brings the fleet to the wanted revision, forward or back.

    Forward nothing was begun yet where the answer is `Refused`; `Failed` says that it cannot go on.
    """
    doubt = None if fleet.revision == order.toward else recall_refusal(fleet, order.toward)
    if doubt is None:
        return next_move(fleet, order, now)
    # An intent was written down before, so the run has to be ended as one that had begun.
    return doubt if order.pulsed_at is None else Failed(doubt.reason, doubt.message)


def recall_refusal(fleet: Fleet, template: str) -> Refused | None:
    """Return why a fleet cannot be brought to another of its revisions, or None.

    Args:
        fleet: the fleet.
        template: hash of the revision's pod template.
    """
    kept = keeper(fleet, template)
    if kept is None:
        return Refused(
            Reason.REVISION_GONE,
            f"no ReplicaSet of {fleet.name} keeps pod template {template} any more (revisionHistoryLimit, or "
            "somebody deleted or edited it): apply that revision's manifest by hand",
        )
    if not kept.reachable:
        services = ", ".join(fleet.rotation.services)
        return Refused(
            Reason.REVISION_UNREACHABLE,
            f"the pods of ReplicaSet {kept.name} carry other labels than today's, and {services} would not "
            "lead requests to them: take the change back by hand, with the labels of today",
        )
    return None


def keeper(fleet: Fleet, template: str) -> ReplicaSet | None:
    """Return the ReplicaSet that keeps a pod template, the newest of several; None where none does."""
    keeping = (rs for rs in fleet.replica_sets if rs.revision == template)
    return max(keeping, key=lambda rs: rs.number, default=None)
