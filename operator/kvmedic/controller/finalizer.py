"""A resource that is deleted: what of ours is undone first, and then its finalizer is removed.

Temporary changes are restored, and no gate blocks that. A setting is put back by the same rollout as ever,
and tried once. Where nobody can lead any more, as the namespace is being deleted, the resource goes at once.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from kvmedic.api.resource import GROUP, PLURAL
from kvmedic.controller.evidence import engine_of
from kvmedic.controller.orphans import adopt_noted_fleet, free_all
from kvmedic.controller.plans import find_step_blocker
from kvmedic.controller.ports import Ports, save
from kvmedic.controller.temporary import with_holder
from kvmedic.model.evidence import Blocked
from kvmedic.model.plan import Goal, Plan, ReplicasStep
from kvmedic.model.reasons import Reason
from kvmedic.model.spec import Policy, TargetRef, without_spec
from kvmedic.model.status import Key, Record, Resource, TemporaryChange, Wish
from kvmedic.record.runs import open_run
from kvmedic.record.surveys import with_problem
from kvmedic.runbooks.preemption.restore import SetValue, restore_setting, state_of, step_back
from kvmedic.runbooks.workload import View
from kvmedic.verdict.summary import Measure, run_of


async def let_go(key: Key, ports: Ports) -> timedelta | None:
    """Let a resource go where nobody can lead any more, as its namespace is being deleted; nothing else."""
    resource = await ports.store.load(key)
    if resource is None or await leave_ending_namespace(resource, ports):
        return None
    return ports.pace.replica


async def leave_ending_namespace(resource: Resource, ports: Ports) -> bool:
    """Let a resource go whose namespace is being deleted; return whether it is.

    Nothing can be created there any more, no replica and no Lease, so no run can come to its end. What can be
    put back still is: replicas out of rotation serve until they are deleted. The rollout stays frozen, as its
    controller could only take replicas away.
    """
    if resource.wish not in (Wish.DELETE, Wish.ABANDON) or not resource.finalized:
        return False
    if not await ports.store.is_ending(resource.namespace):
        return False
    await free_all(ports.target, resource.namespace)
    await remove_finalizer(resource, ports)
    return True


async def remove_finalizer(resource: Resource, ports: Ports, record: Record | None = None) -> None:
    """Take the finalizer off; not while something of a record has to be put or given back before the end."""
    if resource.finalized and (record is None or not record.temporary):
        await ports.store.finalize(resource, present=False)


async def release_resource(
    resource: Resource, record: Record, ports: Ports, now: datetime
) -> timedelta | None:
    """Let a resource go, once nothing of ours is left on its target, unless its owner abandons that."""
    if resource.wish is Wish.DELETE:
        found = await adopt_noted_fleet(resource, record, ports, now)
        if isinstance(found, Blocked):
            text = f"{found.message}; then let this resource go: {abandon_command(resource)}"
            text = found.message if resource.is_stand_in else text
            after = with_problem(record, Blocked(found.reason, text), resource.generation, now)
            await save(resource, after, ports)
            return ports.pace.idle
        again = await restore_changes(resource, record, ports, now) if found is None else found
        if again is not None:
            return again
    if resource.is_stand_in and resource.policy is not None:
        view = await ports.target.look(resource.namespace, resource.policy)
        if view is not None and not view.fleet.fields.is_frozen:
            await ports.target.unclaim(view.fleet)
    await remove_finalizer(resource, ports)
    return None


async def restore_changes(
    resource: Resource, record: Record, ports: Ports, now: datetime
) -> timedelta | None:
    """Open the run that restores the next temporary change, as its resource is deleted.

    Returns when to look again, or None where nothing is left to restore.
    """
    for held in record.temporary:
        again = await _open_restoring_run(resource, record, held, ports, now)
        if again is not None:
            return again
    return None


async def _open_restoring_run(
    resource: Resource, record: Record, held: TemporaryChange, ports: Ports, now: datetime
) -> timedelta | None:
    policy = _policy(resource, held)
    view = await ports.target.look(resource.namespace, policy) if policy is not None else None
    if policy is None or view is None:
        return None
    view = await with_holder(view, held, ports.target)
    plan = _plan_restore(resource, held, view, policy)
    if plan is None:
        return None
    if isinstance(plan, Blocked):
        why = Blocked(plan.reason, f"{plan.message}; it is deleted once {held.line()} is restored")
        await save(resource, with_problem(record, why, resource.generation, now), ports)
        return ports.pace.idle
    run = replace(run_of(plan, view.fleet, view.template, Measure(Goal.CALM), now), run_spec=held.run_spec)
    await save(resource, open_run(record, run, resource.generation, now), ports)
    return timedelta(0)


def _policy(resource: Resource, held: TemporaryChange) -> Policy | None:
    """Return what restoring goes by, also where the spec cannot be followed; None: nothing says enough."""
    if resource.policy is not None or held.run_spec is None:
        return resource.policy
    target = held.step.target
    return without_spec(TargetRef(target.kind, target.name, held.step.container), held.run_spec)


def _plan_restore(
    resource: Resource, held: TemporaryChange, view: View, policy: Policy
) -> Plan | Blocked | None:
    """Return the plan that restores a change, or why it cannot begin; None: it is somebody else's now."""
    fleet, workload = view.fleet, engine_of(view, policy)
    state = state_of(held, fleet, workload)
    if state is SetValue.CHANGED:
        return None
    if isinstance(held.step, ReplicasStep):
        step = step_back(held.step, held.fewest, held.fewest, fleet.revision)
        plan: Plan | Blocked = Plan((step,), fleet.uid, fleet.revision, resource.generation, step.reason)
    elif isinstance(workload, Blocked):
        plan = workload
    elif state is SetValue.UNKNOWN:
        plan = Blocked(Reason.FLAG_NOT_EDITABLE, "the file with the engine's flags cannot be read")
    else:
        plan = restore_setting(workload, held.step, "", resource.generation)
    if isinstance(plan, Blocked):
        return Blocked(plan.reason, plan.message)
    message = f"the resource is deleted: {plan.reason.sentence}"
    deleting = replace(plan, reason=Reason.RESOURCE_DELETED, message=message)
    return find_step_blocker(plan.steps[0], fleet, Goal.CALM) or deleting


def abandon_command(resource: Resource) -> str:
    """Return what lets a resource go as it is, as it is typed."""
    kind = f"{PLURAL}.{GROUP}"
    return f"kubectl -n {resource.namespace} annotate {kind} {resource.name} {GROUP}/abandon=true"
