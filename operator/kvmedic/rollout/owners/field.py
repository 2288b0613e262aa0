"""A flag that is changed in the object from which a controller renders the Deployment.

What is rendered is the controller's: it takes back what somebody sets on the Deployment, and most of them the
fields that would hold a rollout, too. So its own field is written, and it renders the pod template that the
plan expects. Its rollout is then looked on, or, where it carries nothing over and takes nothing back, made by
kvmedic, drained as anywhere (`Roller`).

The object carries no mark: annotations of some are handed down into pod templates, and that would be another
rollout. The generation of its spec, written down before each write, says what happened to it since: by one
more it is our write, by two or more somebody else's as well.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from kvmedic.model.config_edits import OwnerField, Roller
from kvmedic.model.edits import EditState
from kvmedic.model.evidence import Blocked
from kvmedic.model.fleet import Fleet
from kvmedic.model.plan import FlagStep, Goal
from kvmedic.model.reasons import Reason
from kvmedic.model.run import Intent, Run, StepState
from kvmedic.rollout.draining import holding_move
from kvmedic.rollout.drift import Standing, committed_sequence, target_standing
from kvmedic.rollout.frozen_rollout import template_row
from kvmedic.rollout.moves import Claim, Failed, Move, SetOwnerField, Settled, Wait
from kvmedic.rollout.preconditions import (
    Purpose,
    end_as_begun,
    find_owner_rollout_blocker,
    find_rollout_blocker,
)
from kvmedic.rollout.start_failure import StartLimits, start_failure
from kvmedic.rollout.steps import StepInput, StepRow

RENDERING_LIMIT = timedelta(minutes=5)
"""Longest time in which a controller shows its object's new value in the Deployment. Those that were read
act on the change itself, within a second; five minutes cover one that restarts, or waits for its lease."""
RENDERING_GRACE = timedelta(seconds=10)
"""How long a controller that is known to carry nothing over may do it all the same."""


def field_standing(run: Run, resource_uid: str, fleet: Fleet | None, *, rivalled: bool = False) -> Standing:
    """Return how the target and its owner's object stand to the record of a run that goes through a field.

    The claim on the Deployment is no evidence while its owner renders it: some write all annotations anew.
    """
    field = run.current.step.through
    if field is None or fleet is None or fleet.uid != run.target_uid or fleet.kept_by or rivalled:
        return target_standing(run, resource_uid, fleet, rivalled=rivalled)
    forward = run.current.state is not StepState.ROLLING_BACK
    if _is_ours_to_roll(field, run.intent):
        stands = target_standing(run, resource_uid, fleet)
        moved = forward and stands is Standing.AS_RECORDED and _state(fleet, field) is not EditState.AFTER
        return Standing.TURNED if moved else stands
    return _rendered_standing(run, fleet, field) if forward else _standing_on_the_way_back(run, fleet, field)


def _rendered_standing(run: Run, fleet: Fleet, field: OwnerField) -> Standing:
    step, state, since = run.current.step, _state(fleet, field), _generations_since(run, fleet)
    if state is EditState.OTHER:
        return Standing.DRIFTED
    if state is EditState.BEFORE and since is not None and since > 1:
        return Standing.REVERTED
    if state is EditState.AFTER and since is None:
        return Standing.DRIFTED  # somebody else set the very value
    rendered = {step.before_template, *([step.after_template] if state is EditState.AFTER else [])}
    if fleet.revision not in rendered:
        # With nobody's hand on the object but ours, its controller renders the value otherwise than planned.
        return Standing.REVERTED if since == 1 else Standing.DRIFTED
    return Standing.SCALED_TO_ZERO if fleet.replicas == 0 else Standing.AS_RECORDED


def _standing_on_the_way_back(run: Run, fleet: Fleet, field: OwnerField) -> Standing:
    known = {run.current.step.before_template, run.current.step.after_template}
    other = _state(fleet, field) is EditState.OTHER
    return Standing.DRIFTED if other or fleet.revision not in known else Standing.AS_RECORDED


def _state(fleet: Fleet, field: OwnerField) -> EditState:
    seen = fleet.rendered_from
    return seen.state if seen is not None and seen.uid == field.uid else EditState.OTHER


def _generations_since(run: Run, fleet: Fleet) -> int | None:
    """Return by how much the object's generation grew since before our last write; None: we wrote nothing."""
    written, seen = run.intent.owner_generation if run.intent else None, fleet.rendered_from
    return None if written is None or seen is None else seen.generation - written


def _is_ours_to_roll(field: OwnerField, intent: Intent | None) -> bool:
    """Return whether kvmedic has begun to replace the replicas itself."""
    return field.rolled_by is Roller.KVMEDIC and intent is not None and intent.move != Claim.__name__


def owner_field_row(step: FlagStep, field: OwnerField) -> StepRow:
    """Return what a change through a field of the owner's object does."""
    rolls = template_row(replace(step, through=None))
    ours = field.rolled_by is Roller.KVMEDIC
    return StepRow(
        find_blocker=_find_blocker_of_ours if ours else find_owner_rollout_blocker,
        next_move=lambda fleet, known: _next_move(fleet, step, known, rolls),
        rest=lambda fleet, known: rolls.rest(fleet, known) if ours else holding_move(fleet),
        leave=lambda fleet, known: (
            _leave(fleet, known) or (rolls.leave(fleet, known) if ours else _leave_alone(fleet))
        ),
        canaries=rolls.canaries if ours else lambda _fleet: (),
        attempt=rolls.attempt,
    )


def _find_blocker_of_ours(fleet: Fleet, purpose: Purpose) -> Blocked | None:
    """Return why a rollout cannot begin; the owner wants the change once its own field says so."""
    return find_rollout_blocker(replace(fleet, owner=None), purpose)


def _next_move(fleet: Fleet, step: FlagStep, known: StepInput, rolls: StepRow) -> Move:
    field, intent = step.through, known.run.intent
    if field is None:
        return rolls.next_move(fleet, known)
    purpose = Purpose.MENDING if known.run.goal is Goal.STAYS_UP else Purpose.RELIEF
    ours = field.rolled_by is Roller.KVMEDIC
    claimed = committed_sequence(known.run, known.resource_uid, fleet.fence)
    if not known.is_back and not claimed and not _has_written(known.run):
        refused = (
            _find_blocker_of_ours(fleet, purpose) if ours else find_owner_rollout_blocker(fleet, purpose)
        )
        return end_as_begun(refused, known.assigned_at) or Claim()
    seen = fleet.rendered_from
    left = EditState.AFTER if known.is_back else EditState.BEFORE
    ours_to_write = not known.is_back or _has_written(known.run)
    if seen is not None and ours_to_write and _state(fleet, field) is left:
        return SetOwnerField(field, seen)
    waited = known.now - known.assigned_at if known.assigned_at else timedelta(0)
    if ours and (_is_ours_to_roll(field, intent) or waited > RENDERING_GRACE):
        return rolls.next_move(replace(fleet, owner=None), known)
    return _await_owner(fleet, step, known, waited)


def _has_written(run: Run) -> bool:
    """Return whether the owner's field was written, or was about to be."""
    return run.intent is not None and run.intent.owner_generation is not None


def _await_owner(fleet: Fleet, step: FlagStep, known: StepInput, waited: timedelta) -> Move:
    """Return whether the owner's rollout is complete, what it waits for, or why it will not be."""
    field, who = step.through, f"the controller of {step.through}"
    if fleet.revision != step.after_template:
        text = f"{who.partition(',')[0]} has not rendered {field} into the Deployment"
        if waited <= RENDERING_LIMIT:
            return Wait(Reason.AWAITING_CONTROLLER, text)
        idle = f"{text} after {int(waited.total_seconds())} s"
        return Wait(Reason.OWNER_IDLE, idle) if known.is_back else Failed(Reason.OWNER_IDLE, idle)
    new = fleet.list_pods(step.after_template)
    failed = None if known.is_back else _failure(fleet, step, known.limits, waited, known.now)
    if failed is not None:
        return failed
    others = [pod for pod in fleet.live if pod.revision != step.after_template]
    serving = sum(pod.ready and pod.in_rotation for pod in new)
    if fleet.observed and not others and serving >= fleet.replicas - known.down_before:
        return Settled()
    text = f"{serving} of {fleet.replicas} replicas serve with the desired setting; its owner replaces them"
    return Wait(Reason.AWAITING_REPLICA, text)


def _failure(
    fleet: Fleet, step: FlagStep, limits: StartLimits, waited: timedelta, now: datetime
) -> Failed | None:
    """Return why a new replica will not come up. The owner's rollout waits for it, and the old ones serve."""
    leaving = any(pod.terminating for pod in fleet.pods)
    for pod in fleet.list_pods(step.after_template):
        if not pod.ready and (failed := start_failure(pod, leaving, limits, now)):
            return failed
    refused = [rs for rs in fleet.replica_sets if rs.revision == step.after_template and rs.failure]
    if refused and waited > limits.spare:
        text = f"no new replica was made within {int(limits.spare.total_seconds())} s: {refused[0].failure}"
        return Failed(Reason.SPARE_UNSCHEDULABLE, text)
    return None


def _leave(fleet: Fleet, known: StepInput) -> Move | None:
    """Return the write that puts the old value back where ours is there; None: there is none to make."""
    run, seen = known.run, fleet.rendered_from
    field = run.current.step.through
    abandoned = run.ending is not None and run.ending.reason is Reason.ABANDONED
    if field is None or seen is None or abandoned or not _has_written(run):
        return None
    return SetOwnerField(field.inverse(), seen) if _state(fleet, field) is EditState.AFTER else None


def _leave_alone(fleet: Fleet) -> Move:
    """Return that nothing of the Deployment is ours to put back, but a replica that carries our mark."""
    held = holding_move(fleet)
    return Settled() if isinstance(held, Wait) else held


def what_became_of(fleet: Fleet, field: OwnerField) -> str:
    """Return what is said of a run that leaves its target to others, as they left the owner's field."""
    if fleet.rendered_from is None:
        return f"{field} cannot be read, or its object is gone: it is left as it is"
    match _state(fleet, field):
        case EditState.BEFORE:
            return f"someone else put {field} back to {field.before} in the middle of the run"
        case EditState.AFTER:
            return (
                "someone else changed the pod template in the middle of the run, or its owner renders "
                f"{field} otherwise than planned: it is put back to {field.before}"
            )
        case _:
            return f"someone else changed {field}, or made its object anew: it is left as it is"
