"""Whether a plan's spare has a place, or the fleet goes one short, before anything of the target is changed.

No room is said with its figures, and nothing is frozen for it. Where nodes may be added, or where nobody can
see them, the spare is tried: it waits up to `rollout.spareLimit`, and is taken back.
"""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from kvmedic.controller.evidence import Survey
from kvmedic.controller.ports import Target
from kvmedic.model.config_edits import Roller
from kvmedic.model.evidence import Blocked
from kvmedic.model.fleet import Fleet
from kvmedic.model.plan import (
    BundleStep,
    EvaluationStep,
    FlagStep,
    ReplaceStep,
    ReplicasStep,
    RevisionStep,
    Step,
    TrialStep,
)
from kvmedic.model.reasons import Reason
from kvmedic.model.spec import Policy, Spare
from kvmedic.model.status import Record, Resource
from kvmedic.rollout.spares.room import NoRoom, Room, RoomUnknown
from kvmedic.rollout.spares.ways import (
    WAYS_OUT,
    Beside,
    Short,
    SpareUse,
    no_spare_of,
    refuse_without_spare,
    spare_use,
    way_without_spare,
    weigh_room,
)
from kvmedic.runbooks.branches import NoChange
from kvmedic.runbooks.preemption.levers import present_setting
from kvmedic.runbooks.preemption.restore import Fits, without_one_replica


async def check_spare(found: Survey, resource: Resource, policy: Policy, target: Target) -> Survey:
    """Return a survey that knows whether its plan's spare finds a place, or the fleet goes one short.

    It is asked only where nothing else stands in the way: the answer costs a look at nodes and pods.
    """
    step = found.plan.steps[0] if found.plan else None
    if found.plan is None or step is None or found.blocked is not None:
        return found
    if not needs_spare(step, found.view.fleet):
        return found
    by_owner = step.through is not None and step.through.rolled_by is Roller.OWNER
    is_desired = spare_use(step) is SpareUse.DESIRED
    wish = Spare.REQUIRED if is_desired or by_owner else policy.rollout.spare
    way: Beside | Short | Blocked
    if found.view.fleet.is_stateful and not is_desired:
        way = _way_of_ordinals(found, resource, policy)
    elif wish is Spare.NONE:
        way = way_without_spare(found.view.fleet, step, "spec.rollout.spare is None")
    else:
        seen = await target.room_for(found.view)
        way = weigh_room(seen, policy)
        tried = isinstance(way, Blocked) or (
            isinstance(seen, NoRoom | RoomUnknown) and _has_found_no_room(resource)
        )
        if wish is Spare.BEST_EFFORT and tried and not isinstance(seen, Room):
            way = go_short(found, resource, policy, seen.message)
    if isinstance(way, Blocked):
        return replace(found, blocked=way)
    plan = replace(found.plan, message=f"{found.plan.message}; {way.remark}") if way.remark else found.plan
    return replace(found, plan=plan, may_lack=int(isinstance(way, Short)))


def _way_of_ordinals(found: Survey, resource: Resource, policy: Policy) -> Short | Blocked:
    """Return how a StatefulSet, which never has a spare, goes one short: as the spec allows it."""
    step, why = found.plan.steps[0] if found.plan else None, no_spare_of(found.view.fleet)
    match policy.rollout.spare:
        case Spare.REQUIRED:
            return refuse_without_spare(found.view.fleet)
        case Spare.BEST_EFFORT:
            return go_short(found, resource, policy, why)
        case Spare.NONE:
            return way_without_spare(found.view.fleet, step, why)
        case _:
            assert_never(policy.rollout.spare)


def needs_spare(step: Step, fleet: Fleet) -> bool:
    """Return whether a step makes a pod more than there are now.

    Somebody's rollout that is turned back has its own one already.
    """
    match step:
        case ReplicasStep():
            return not step.gives_back
        case FlagStep() | BundleStep() | RevisionStep() | ReplaceStep():
            return fleet.total_desired <= fleet.replicas
        case TrialStep() | EvaluationStep():
            return False
        case _:
            assert_never(step)


def _has_found_no_room(resource: Resource) -> bool:
    """Return whether the last run was ended because its spare found no place."""
    history = resource.record.history if resource.record else ()
    return bool(history) and history[0].outcome is Reason.SPARE_UNSCHEDULABLE


def go_short(found: Survey, resource: Resource, policy: Policy, why: str) -> Short | Blocked:
    """Return that the fleet goes one short where the others carry the load, or why they do not."""
    step = found.plan.steps[0] if found.plan else None
    way, workload = way_without_spare(found.view.fleet, step, why), found.engine(policy)
    if isinstance(way, Blocked):
        return way
    if isinstance(workload, Blocked):
        return Blocked(
            Reason.NO_HEADROOM, f"{why}, and what the others carry is not known: {workload.message}"
        )
    setting = present_setting(workload, policy.levers, resource.record or Record(), found.evidence)
    match without_one_replica(found.evidence, setting):
        case Fits(message):
            return Short(f"{way.remark}; {message}")
        case NoChange(message=message):
            return Blocked(
                Reason.NO_HEADROOM, f"{why}, and the others would not carry the load ({message}): {WAYS_OUT}"
            )
