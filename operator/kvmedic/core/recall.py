"""Back to another revision's pod template: the frozen rollout, with a template that is kept elsewhere.

The moves are those of `kvmedic.core.rollout`. What is added: the template that is to be put is kept by a
ReplicaSet, which others may delete (`revisionHistoryLimit`, a person), and its pods may carry labels of
their own. Where it is gone nothing can be put, and nothing is begun.
"""

from __future__ import annotations

from datetime import datetime

from kvmedic.core.fleet import Fleet
from kvmedic.core.moves import Failed, Move
from kvmedic.core.preconditions import recall_refusal
from kvmedic.core.revisions import Revision
from kvmedic.core.rollout import Order, next_move


def recalling_move(fleet: Fleet, order: Order, wanted: Revision, now: datetime) -> Move:
    """Return the single next move that brings the fleet to the wanted revision, forward or back.

    Forward nothing was begun yet where the answer is `Refused`; `Failed` says that it cannot go on.
    """
    doubt = None if fleet.revision == wanted.template else recall_refusal(fleet, wanted)
    if doubt is None:
        return next_move(fleet, order, now)
    # An intent was written down before, so the run has to be ended as one that had begun.
    return doubt if order.pulsed_at is None else Failed(doubt.reason, doubt.message)
