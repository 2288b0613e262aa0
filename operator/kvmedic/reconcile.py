"""One tick for one resource, top to bottom: load, look, judge, then one write or one effect.

Order is fixed: intent durable in the status, then the effect, then the outcome in the status, then
Event and metric.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from kvmedic.baselines import pressed_baseline
from kvmedic.copies import swept
from kvmedic.core.decide import Wish, outcome_of
from kvmedic.core.diagnosis import Inconclusive
from kvmedic.core.footprint import Footprint
from kvmedic.core.gates import Blocked
from kvmedic.core.plan import Plan
from kvmedic.core.policy import Policy
from kvmedic.core.reasons import Reason
from kvmedic.core.record import Record
from kvmedic.core.resource import Key, Resource
from kvmedic.core.run import Approved, Outcome, Run, StepRecord, Terms
from kvmedic.core.severity import urgency_of
from kvmedic.core.spending import devices_of
from kvmedic.core.terms import policy_during
from kvmedic.core.verdict import Baseline
from kvmedic.footprints import give_back, holding, noted, with_holder
from kvmedic.obstacles import accompanied, claimed, consent, crowded, gate, unfit, unrecognised
from kvmedic.outgrown import with_known_limit
from kvmedic.ports import Ports, Senses
from kvmedic.pursue import pursue
from kvmedic.record.runs import reported
from kvmedic.record.surveys import complaint, planned, surveyed, with_last_good
from kvmedic.survey import Survey, proved_good, survey
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
    """Let a resource go; what was added for a while is given back before, unless its owner abandons it."""
    held = record.footprint
    if held is not None and resource.wish is Wish.DELETE:
        again = await give_back(resource, record, held, ports, now)
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
    await _write(resource, ports, complaint(record, _problem(resource), resource.generation, now))
    if record.run is None:
        await _unfinalized(resource, ports, record.footprint)
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
    found = await survey(resource, policy, view, Senses(ports.metrics, ports.target, now))
    found = await accompanied(found, resource, policy, ports.target)
    seen = _seen(found, record, resource, policy, now)
    if good := await proved_good(found, resource, policy, ports.metrics, now):
        seen = with_last_good(seen, good)
    held = found.obstacle or unrecognised(policy, view) or await claimed(resource, found, ports)
    why = held or await gate(policy, record, found, ports, now)
    why = why or await crowded(resource, found, ports, now)
    opening = found.plan is not None and why is None
    baseline = await pressed_baseline(found, policy, resource.namespace, ports.metrics) if opening else None
    if isinstance(baseline, Inconclusive):
        why = Outcome(baseline.reason, baseline.message)
    granted = None if found.plan is None or why else await consent(resource, policy, found.plan, ports, now)
    if isinstance(granted, Outcome):
        why = granted
    if found.plan is not None and why is None and not isinstance(baseline, Inconclusive):
        approval = granted if isinstance(granted, Approved) else None
        run = replace(_run(found, found.plan, policy, baseline, now), approval=approval)
        why = await _opened(resource, seen, run, ports, now)
        if why is None:
            return AT_ONCE
    why = why or holding(seen.footprint, policy.scale_out)
    await _write(resource, ports, planned(seen, found.plan, why, resource.generation, now))
    await _unfinalized(resource, ports, seen.footprint)
    return ports.pace.idle


def _seen(found: Survey, record: Record, resource: Resource, policy: Policy, now: datetime) -> Record:
    """Return the record with what a look found: the diagnosis, how urgent it is, what is held or too much."""
    seen = surveyed(record, found.diagnosis, found.runbook, resource.generation, now)
    urgent = urgency_of(found.diagnosis, found.burn, policy.objectives, record.urgency)
    seen = noted(replace(seen, urgency=urgent), found, now)
    return with_known_limit(seen, found, policy, now)


def _run(found: Survey, plan: Plan, policy: Policy, baseline: Baseline | None, now: datetime) -> Run:
    fleet = found.view.fleet
    return Run(
        id=now.astimezone(UTC).strftime("%Y%m%d-%H%M%S"),
        target_uid=fleet.uid,
        digest=plan.digest,
        reason=found.diagnosis.reason,
        message=plan.message,
        spec_generation=plan.spec_generation,
        started_at=now,
        steps=tuple(StepRecord(step) for step in plan.steps),
        recorded=fleet.fields,
        replicas=fleet.replicas,
        in_rotation=fleet.in_rotation,
        blocks=found.blocks(),
        baseline=baseline,
        terms=Terms(policy.rollout.rotation_label, policy.rollout.drain_timeout),
        goal=found.goal,
        gpus=devices_of(found.view.template),
    )


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
            opened = replace(record, run=run)
            opened = reported(opened, Outcome(Reason.PLANNED, run.message), resource.generation, now)
            await _write(resource, ports, opened)
        return blocked


async def _unfinalized(resource: Resource, ports: Ports, held: Footprint | None = None) -> None:
    """Take the finalizer off; not while something is held that has to be given back before the end."""
    if resource.finalized and held is None:
        await ports.store.finalize(resource, present=False)


async def _write(resource: Resource, ports: Ports, after: Record) -> None:
    if after != resource.record:
        await ports.store.save(resource, after)
        await ports.reporter.saved(resource, resource.record, after)
