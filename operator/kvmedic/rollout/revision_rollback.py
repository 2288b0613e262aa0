"""Back to another revision's pod template: the frozen rollout, with a template that is kept elsewhere.

What is added: the template that is to be put is kept by a ReplicaSet, which others may delete
(`revisionHistoryLimit`, a person), and its pods may carry labels of their own. Where it is gone nothing can
be put, and nothing is begun. And somebody's rollout away from it may still be under way: its Ready replicas
are then kept, and only the missing ones are started.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from kvmedic.model.config_edits import Revision
from kvmedic.model.fleet import STILL, Fleet
from kvmedic.model.plan import RevisionStep
from kvmedic.rollout.frozen_rollout import (
    Order,
    next_template_move,
    order_of,
    template_row,
)
from kvmedic.rollout.moves import Freeze, Hold, Move, Retarget, adding_pulse, still_fields
from kvmedic.rollout.preconditions import (
    end_as_begun,
    find_halfway_blocker,
    find_rollback_blocker,
    find_start_blocker,
    is_halfway,
)
from kvmedic.rollout.steps import StepRow


def next_rollback_move(fleet: Fleet, order: Order, desired: Revision, now: datetime) -> Move:
    """Return the single next move that brings the fleet to the desired revision, forward or back.

    Forward nothing was begun yet where the answer is `Refused`; `Failed` says that it cannot go on.
    """
    doubt = None if fleet.revision == desired.template else find_rollback_blocker(fleet, desired)
    if ended := end_as_begun(doubt, order.pulsed_at):
        return ended
    if is_halfway(fleet, desired) and not order.repairs:
        return find_halfway_blocker(fleet, desired.template) or _halt_rollout(fleet, order)
    stopped = fleet.fields.is_frozen and fleet.fields.paused and fleet.observed and not order.repairs
    if stopped and fleet.revision == order.away and not fleet.is_saturated(order.toward):
        return Retarget(order.edit, still_fields(fleet, order.may_lack))
    if not order.may_lack and _lacks_spare_of_both(fleet, desired):
        return adding_pulse(fleet)
    return next_template_move(fleet, order, now)


def _halt_rollout(fleet: Fleet, order: Order) -> Freeze | Hold:
    """Return the move that stops somebody's rollout.

    With the template turned at once, the controller takes what is not of it, undrained, where the desired
    revision has all its replicas (Kubernetes 1.36, deployment sync.go, scale: saturated; seen on it). The one
    replica beside these is drained first then.
    """
    return (Hold if fleet.is_saturated(order.toward) else Freeze)(order.edit, STILL)


def _lacks_spare_of_both(fleet: Fleet, desired: Revision) -> bool:
    """Return whether replicas of both revisions are there, and no spare beside them.

    That of a rollout which was under way may have gone in the very moment. One more of the desired revision
    is made before any of the other is drained; nothing goes meanwhile, as all of the desired revision count
    as unavailable.
    """
    there = fleet.count_desired(desired.template)
    held = fleet.revision == desired.template and fleet.fields.is_frozen and fleet.fields.paused
    return held and fleet.observed and 0 < there < fleet.replicas and fleet.total_desired <= fleet.replicas


def revision_row(step: RevisionStep) -> StepRow:
    """Return what the template of another revision does: the same rollout, also out of somebody's own."""
    return replace(
        template_row(step),
        find_blocker=lambda fleet, purpose: find_start_blocker(fleet, step.after, purpose),
        next_move=lambda fleet, known: next_rollback_move(
            fleet, order_of(step, fleet, known), step.after, known.now
        ),
    )
