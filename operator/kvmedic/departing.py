"""A resource that is deleted while something is there for a while: it is given back first.

No gate blocks that. A setting is put back by the same rollout as ever, and tried once.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from kvmedic.api.resource import GROUP, PLURAL
from kvmedic.core.diagnosis import Goal
from kvmedic.core.footprint import Footprint, is_held, returning_step
from kvmedic.core.loan import Borrowed, Tenure
from kvmedic.core.opening import Measure, run_of
from kvmedic.core.plan import Plan
from kvmedic.core.policy import Policy, TargetRef
from kvmedic.core.reasons import Reason
from kvmedic.core.record import Record
from kvmedic.core.resource import Resource
from kvmedic.core.run import Outcome
from kvmedic.core.sentences import SENTENCES
from kvmedic.core.terms import without_spec
from kvmedic.footprints import with_holder
from kvmedic.plans import obstacle_to
from kvmedic.ports import Ports, View
from kvmedic.record.runs import opened
from kvmedic.record.surveys import complaint
from kvmedic.runbooks.planning import Fault
from kvmedic.runbooks.returns import loan_return, tenure
from kvmedic.saving import save
from kvmedic.versions import engine_of


async def give_back(resource: Resource, record: Record, ports: Ports, now: datetime) -> timedelta | None:
    """Open the run that gives back what is there for a while.

    Returns when to look again, or None where nothing is left to give back.
    """
    for held in (record.footprint, *record.borrowed):
        again = None if held is None else await _given_back(resource, record, held, ports, now)
        if again is not None:
            return again
    return None


async def _given_back(
    resource: Resource, record: Record, held: Footprint | Borrowed, ports: Ports, now: datetime
) -> timedelta | None:
    policy = _policy(resource, held)
    view = await ports.target.look(resource.namespace, policy) if policy is not None else None
    if policy is None or view is None:
        return None
    if isinstance(held, Footprint):
        view = await with_holder(view, held, ports.target)
    plan = _planned(resource, held, view, policy)
    if plan is None:
        return None
    if isinstance(plan, Outcome):
        why = Outcome(plan.reason, f"{plan.message}; it is deleted once {held.line()} is given back")
        await save(resource, complaint(record, why, resource.generation, now), ports)
        return ports.pace.idle
    run = replace(run_of(plan, view.fleet, view.template, Measure(Goal.CALM), now), terms=held.terms)
    await save(resource, opened(record, run, resource.generation, now), ports)
    return timedelta(0)


def _policy(resource: Resource, held: Footprint | Borrowed) -> Policy | None:
    """Return what giving back goes by, also where the spec cannot be followed; None: nothing says enough."""
    if resource.policy is not None or held.terms is None:
        return resource.policy
    return without_spec(TargetRef(held.target.kind, held.target.name, held.container), held.terms)


def _planned(
    resource: Resource, held: Footprint | Borrowed, view: View, policy: Policy
) -> Plan | Outcome | None:
    """Return the plan that gives something back, or why it cannot begin; None: it is somebody else's now."""
    match held:
        case Footprint():
            plan: Plan | Fault | None = _fewer(resource, held, view)
        case Borrowed():
            plan = _without(resource, held, view, policy)
    match plan:
        case None:
            return None
        case Fault(reason, message):
            return Outcome(reason, message)
        case Plan(steps=steps, reason=reason):
            message = f"the resource is deleted: {SENTENCES[reason]}"
            deleting = replace(plan, reason=Reason.RESOURCE_DELETED, message=message)
            return obstacle_to(steps[0], view.fleet, Goal.CALM) or deleting


def _fewer(resource: Resource, held: Footprint, view: View) -> Plan | None:
    """Return the plan that takes added replicas away; None where the number is somebody else's now."""
    fleet = view.fleet
    if not is_held(held, fleet):
        return None
    step = returning_step(held, held.fewest, fleet.revision)
    return Plan((step,), fleet.uid, fleet.revision, resource.generation, step.reason)


def _without(resource: Resource, lent: Borrowed, view: View, policy: Policy) -> Plan | Fault | None:
    """Return the plan that puts a lent flag's value back, or why there is none; None: it is not ours now."""
    workload = engine_of(view, policy)
    whose = tenure(lent, view.fleet.uid, workload)
    if whose is Tenure.THEIRS:
        return None
    if isinstance(workload, Fault):
        return workload
    if whose is Tenure.UNKNOWN:
        return Fault(Reason.FLAG_NOT_EDITABLE, "the file with the engine's flags cannot be read")
    return loan_return(workload, lent, "", resource.generation)


def abandoning(resource: Resource) -> str:
    """Return what lets a resource go as it is, as it is typed."""
    kind = f"{PLURAL}.{GROUP}"
    return f"kubectl -n {resource.namespace} annotate {kind} {resource.name} {GROUP}/abandon=true"


async def unfinalized(resource: Resource, ports: Ports, record: Record | None = None) -> None:
    """Take the finalizer off; not while something of a record has to be put or given back before the end."""
    if resource.finalized and (record is None or not _is_owing(record)):
        await ports.store.finalize(resource, present=False)


def _is_owing(record: Record) -> bool:
    """Return whether something of ours is on the target although no run is open."""
    spared = record.aside is not None and record.aside.is_active
    return record.footprint is not None or bool(record.borrowed) or spared
