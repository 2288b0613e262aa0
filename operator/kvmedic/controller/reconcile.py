"""One tick for one resource, top to bottom: load, look, judge, then one write or one effect.

Order is fixed: intent durable in the status, then the effect, then the outcome in the status, then
Event and metric.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from kvmedic.controller.execute import pursue
from kvmedic.controller.idle import watch
from kvmedic.controller.next_move import Tick
from kvmedic.controller.orphans import adopted_by_note, free_all
from kvmedic.controller.ports import Ports, save
from kvmedic.controller.temporary import abandon_command, remove_finalizer, restore_changes
from kvmedic.model.evidence import Blocked
from kvmedic.model.reasons import Reason
from kvmedic.model.run import Run, policy_during
from kvmedic.model.status import Key, Record, Resource, Wish
from kvmedic.record.surveys import complaint

AT_ONCE = timedelta(0)


async def reconcile(key: Key, ports: Ports, now: datetime) -> timedelta | None:
    """Look at one resource once; return when to look again, or None when it is gone.

    Raises:
        Unavailable: an API did not answer; nothing is lost, try again.
        Conflict: the world moved between look and write; try again at once.
        Refused: a write was not allowed; a person must look.
    """
    resource = await ports.store.load(key)
    if resource is None:
        return None
    ports.reporter.seen(resource)
    if await _is_let_go(resource, ports):
        return None
    record, policy = resource.record, resource.policy
    if record is None:
        return await _unreadable(resource, ports, now)
    if record.run is not None:
        return await _pursue(resource, record, record.run, ports, now)
    if resource.wish in (Wish.DELETE, Wish.ABANDON):
        return await _release_resource(resource, record, ports, now)
    if policy is None:
        return await _complain(resource, record, ports, now)
    again = await watch(resource, policy, record, ports, now)
    if isinstance(again, Blocked):
        return await _complain(replace(resource, problem=again), record, ports, now)
    return again


async def let_go(key: Key, ports: Ports) -> timedelta | None:
    """Let a resource go where nobody can lead any more, as its namespace is being deleted; nothing else."""
    resource = await ports.store.load(key)
    if resource is None or await _is_let_go(resource, ports):
        return None
    return ports.pace.replica


async def _is_let_go(resource: Resource, ports: Ports) -> bool:
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


async def _release_resource(
    resource: Resource, record: Record, ports: Ports, now: datetime
) -> timedelta | None:
    """Let a resource go, once nothing of ours is left on its target, unless its owner abandons that."""
    if resource.wish is Wish.DELETE:
        found = await adopted_by_note(resource, record, ports, now)
        if isinstance(found, Blocked):
            text = f"{found.message}; then let this resource go: {abandon_command(resource)}"
            text = found.message if resource.is_stand_in else text
            told = complaint(record, Blocked(found.reason, text), resource.generation, now)
            await save(resource, told, ports)
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


async def _unreadable(resource: Resource, ports: Ports, now: datetime) -> timedelta | None:
    """Say that the record cannot be read: nothing is done then, not even from the start.

    A resource that is being deleted may go where its target is gone, or where its owner says so. A fleet that
    stands frozen by a run which somebody damaged is given back by its note.
    """
    if resource.salvage is not None and resource.wish is not Wish.ABANDON:
        again = await adopted_by_note(resource, resource.salvage, ports, now)
        if isinstance(again, timedelta):
            return again
    gone = resource.wish is Wish.DELETE and await _is_without_target(resource, ports)
    if gone or resource.wish is Wish.ABANDON:
        await remove_finalizer(resource, ports)
        return None
    told = await ports.store.complain(resource, _problem(resource))
    if told is not None:
        await ports.reporter.saved(resource, *told)
    return ports.pace.idle


async def _is_without_target(resource: Resource, ports: Ports) -> bool:
    policy = resource.policy
    return policy is not None and await ports.target.look(resource.namespace, policy) is None


async def _pursue(resource: Resource, record: Record, run: Run, ports: Ports, now: datetime) -> timedelta:
    """Go on with the open run; by its own record where the spec cannot be followed."""
    policy = policy_during(run, resource.policy)
    if policy is None:
        return await _complain(resource, record, ports, now)
    problem = None if resource.policy else _problem(resource)
    return await pursue(Tick(resource, policy, record, run, ports, now, problem))


async def _complain(resource: Resource, record: Record, ports: Ports, now: datetime) -> timedelta:
    """Say what is wrong with the spec."""
    await save(resource, complaint(record, _problem(resource), resource.generation, now), ports)
    if record.run is None:
        await remove_finalizer(resource, ports, record)
    return ports.pace.idle


def _problem(resource: Resource) -> Blocked:
    return resource.problem or Blocked(Reason.SPEC_INVALID, Reason.SPEC_INVALID.sentence)
