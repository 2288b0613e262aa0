"""One tick for one resource, top to bottom: load, look, judge, then one write or one effect.

Order is fixed: intent durable in the status, then the effect, then the outcome in the status, then
Event and metric.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from kvmedic.aside import Cared, Ward, cared_for, put_back, told
from kvmedic.baselines import pressed_baseline
from kvmedic.copies import swept
from kvmedic.core.decide import Wish, outcome_of
from kvmedic.core.diagnosis import Inconclusive
from kvmedic.core.gates import Blocked
from kvmedic.core.opening import Measure, run_of
from kvmedic.core.policy import Policy
from kvmedic.core.reasons import Reason
from kvmedic.core.record import Record
from kvmedic.core.resource import Key, Resource
from kvmedic.core.run import Outcome, Run
from kvmedic.core.severity import urgency_of
from kvmedic.core.terms import policy_during, terms_of
from kvmedic.departing import give_back
from kvmedic.footprints import holding, noted, with_holder
from kvmedic.last_good import proved_good
from kvmedic.obstacles import accompanied, claimed, consent, crowded, gate, unfit, unrecognised
from kvmedic.outgrown import with_known_limit
from kvmedic.ports import Ports, Senses
from kvmedic.pursue import pursue
from kvmedic.record.runs import opened
from kvmedic.record.surveys import complaint, planned, surveyed, with_last_good
from kvmedic.saving import save
from kvmedic.survey import survey
from kvmedic.walks import Tick

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
    record, policy = resource.record, resource.policy
    if record is None:
        return await _unreadable(resource, ports)
    if record.run is not None:
        return await _pursue(resource, record, record.run, ports, now)
    if resource.wish in (Wish.DELETE, Wish.ABANDON):
        return await _deleted(resource, record, ports, now)
    if policy is None:
        return await _complain(resource, record, ports, now)
    return await _survey(resource, policy, record, ports, now)


async def _deleted(resource: Resource, record: Record, ports: Ports, now: datetime) -> timedelta | None:
    """Let a resource go, once nothing of ours is left on its target, unless its owner abandons that."""
    if resource.wish is Wish.DELETE:
        again = await put_back(resource, record, ports)
        if again is None:
            again = await give_back(resource, record, ports, now)
        if again is not None:
            return again
    await _unfinalized(resource, ports)
    return None


async def _unreadable(resource: Resource, ports: Ports) -> timedelta | None:
    """Say that the record cannot be read: nothing is done then, not even from the start.

    A resource that is being deleted may go where its target is gone, or where its owner says so.
    """
    gone = resource.wish is Wish.DELETE and await _is_without_target(resource, ports)
    if gone or resource.wish is Wish.ABANDON:
        await _unfinalized(resource, ports)
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
        await _unfinalized(resource, ports, record)
    return ports.pace.idle


def _problem(resource: Resource) -> Outcome:
    return resource.problem or outcome_of(Reason.SPEC_INVALID)


async def _survey(
    resource: Resource, policy: Policy, record: Record, ports: Ports, now: datetime
) -> timedelta:
    """Look, judge and plan; open a run when there is a plan and every gate is open."""
    view = await ports.target.look(resource.namespace, policy)
    problem = unfit(resource, policy, view, ports)
    if view is None or problem is not None:
        return await _complain(replace(resource, problem=problem), record, ports, now)
    view = await with_holder(view, record.footprint, ports.target)
    await ports.crowd.heed(now)
    record = await swept(record, None, view.fleet, ports)
    found = await survey(resource, policy, view, Senses(ports.metrics, ports.target, now, ports.drivers))
    found = await accompanied(found, resource, policy, ports.target)
    ward = Ward(resource, policy, record, found, ports, now)
    cared = await cared_for(ward)
    if isinstance(cared, timedelta):
        return cared
    seen = await _seen(ward, cared)
    why = await _begun(ward, seen)
    if found.plan is not None and why is None:
        return AT_ONCE
    why = why or holding(seen, policy)
    await save(resource, planned(seen, found.plan, told(cared, why), resource.generation, now), ports)
    if seen.aside != record.aside:
        return AT_ONCE
    await _unfinalized(resource, ports, seen)
    return ports.pace.idle


async def _seen(ward: Ward, cared: Cared) -> Record:
    """Return the record with what a look found: the diagnosis, its urgency, what is held or was too much."""
    found, policy, generation = ward.found, ward.policy, ward.resource.generation
    seen = surveyed(ward.record, found.diagnosis, found.runbook, generation, ward.now)
    urgent = urgency_of(found.diagnosis, found.burn, policy.objectives, ward.record.urgency)
    seen = noted(replace(seen, urgency=urgent, aside=cared.aside), found, policy, ward.now)
    seen = with_known_limit(seen, found, policy, ward.now)
    good = await proved_good(found, ward.resource, policy, ward.ports.metrics, ward.now)
    return with_last_good(seen, good) if good else seen


async def _begun(ward: Ward, seen: Record) -> Outcome | Blocked | None:
    """Open a run for the plan, where there is one and every gate is open; return what speaks against it."""
    resource, policy, found, ports, now = ward.resource, ward.policy, ward.found, ward.ports, ward.now
    held = found.obstacle or unrecognised(policy, found.view) or await claimed(resource, found, ports)
    why = held or await gate(policy, ward.record, found, ports, now)
    why = why or await crowded(resource, found, ports, now)
    if found.plan is None or why is not None:
        return why
    baseline = await pressed_baseline(found, policy, resource.namespace, ports.metrics)
    if isinstance(baseline, Inconclusive):
        return Outcome(baseline.reason, baseline.message)
    granted = await consent(resource, policy, found.plan, ports, now)
    if isinstance(granted, Outcome):
        return granted
    measure = Measure(found.goal, baseline, found.blocks())
    run = run_of(found.plan, found.view.fleet, found.view.template, measure, now)
    run = replace(run, reason=found.diagnosis.reason, terms=terms_of(policy), approval=granted)
    return await _opened(resource, seen, run, ports, now)


async def _opened(
    resource: Resource, record: Record, run: Run, ports: Ports, now: datetime
) -> Blocked | None:
    """Put the finalizer on first, then open the run on the next tick's fresh evidence.

    One resource at a time has the turn to do so; returns what speaks against it after all.
    """
    if not resource.finalized:
        await ports.store.finalize(resource, present=True)
        return None
    async with ports.crowd.place(resource.uid, now) as blocked:
        if blocked is None:
            await save(resource, opened(record, run, resource.generation, now), ports)
        return blocked


async def _unfinalized(resource: Resource, ports: Ports, record: Record | None = None) -> None:
    """Take the finalizer off; not while something of a record has to be put or given back before the end."""
    if resource.finalized and (record is None or not _is_owing(record)):
        await ports.store.finalize(resource, present=False)


def _is_owing(record: Record) -> bool:
    """Return whether something of ours is on the target although no run is open."""
    spared = record.aside is not None and record.aside.is_active
    return record.footprint is not None or bool(record.borrowed) or spared
