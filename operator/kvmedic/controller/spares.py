"""Whether a plan's spare has a place, before anything of the target is changed.

No room is said with its figures, and nothing is frozen for it. Where nodes may be added, or where nobody can
see them, the spare is tried: it waits up to `rollout.spareLimit`, and is taken back.
"""

from __future__ import annotations

from dataclasses import replace

from kvmedic.controller.evidence import Survey
from kvmedic.controller.ports import Target
from kvmedic.model.evidence import Blocked
from kvmedic.model.fleet import Fleet
from kvmedic.model.plan import ReplaceStep, ReplicasStep, Step
from kvmedic.model.reasons import Reason
from kvmedic.model.spec import Policy
from kvmedic.rollout.spares.room import Finding, NoRoom, Room, RoomUnknown

WAYS_OUT = (
    "free that much, or raise the quota; where nodes are added on demand set spec.rollout.spareLimit, and "
    "the spare waits so long for one"
)


async def check_spare(found: Survey, policy: Policy, target: Target) -> Survey:
    """Return a survey that knows whether its plan's spare finds a place.

    It is asked only where nothing else stands in the way: the answer costs a look at the nodes.
    """
    step = found.plan.steps[0] if found.plan else None
    if found.plan is None or step is None or found.obstacle is not None:
        return found
    if not needs_spare(step, found.view.fleet):
        return found
    seen = await target.room_for(found.view)
    obstacle, remark = weigh_room(seen, policy)
    plan = replace(found.plan, message=f"{found.plan.message}; {remark}") if remark else found.plan
    return replace(found, plan=plan, obstacle=obstacle)


def needs_spare(step: Step, fleet: Fleet) -> bool:
    """Return whether a step makes a pod more than there are now.

    Somebody's rollout that is turned back has its own one already.
    """
    if isinstance(step, ReplicasStep):
        return not step.gives_back
    makes = step.template_change is not None or isinstance(step, ReplaceStep)
    return makes and fleet.told <= fleet.replicas


def weigh_room(seen: Finding, policy: Policy) -> tuple[Blocked | None, str]:
    """Return why a spare is not even tried, or None; and what the plan says of its place."""
    limit = policy.rollout.spare_limit
    match seen:
        case Room():
            return None, ""
        case RoomUnknown(message):
            return None, f"whether a spare finds a place is not known ({message}); it is tried"
        case NoRoom(message, adds_nodes) if adds_nodes or limit:
            who = f"{adds_nodes} may add a node" if adds_nodes else "spec.rollout.spareLimit is set"
            return None, f"{message}; {who}, so the spare waits for one"
        case NoRoom(message):
            return Blocked(Reason.NO_ROOM_FOR_SPARE, f"{message}: {WAYS_OUT}"), ""
