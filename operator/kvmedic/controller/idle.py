"""One tick for a resource without an open run: look, judge, plan; open a run where every gate is open."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from kvmedic.controller.evidence import Survey
from kvmedic.controller.obstacles import (
    absent,
    check_ownership,
    claimed_by_another,
    consent,
    gate,
    no_place_for,
    report_unrecognised,
    unfit,
)
from kvmedic.controller.orphans import adopt_fleet
from kvmedic.controller.plans import proved_good
from kvmedic.controller.ports import Ports, Senses, save
from kvmedic.controller.survey import survey, switch_where_untriable
from kvmedic.controller.temporary import (
    note_temporary,
    remove_finalizer,
    swept,
    why_not_restored,
    with_holder,
    with_known_limit,
)
from kvmedic.controller.trial import triable
from kvmedic.controller.verify import pressed_baseline
from kvmedic.model.evidence import Blocked, Inconclusive
from kvmedic.model.reasons import Reason
from kvmedic.model.run import Run, terms_of
from kvmedic.model.spec import Policy
from kvmedic.model.status import Record, Resource
from kvmedic.record.runs import open_run
from kvmedic.record.surveys import (
    record_diagnosis,
    record_plan,
    with_baseline,
    with_failed_fixes,
    with_runbook_switch,
)
from kvmedic.runbooks.severity import urgency_of
from kvmedic.verdict.summary import Measure, run_of

AT_ONCE = timedelta(0)


@dataclass(frozen=True, slots=True)
class _Look:
    """What a tick without an open run has seen, and what it works with."""

    resource: Resource
    policy: Policy
    record: Record
    found: Survey
    ports: Ports
    now: datetime


async def watch(
    resource: Resource, policy: Policy, record: Record, ports: Ports, now: datetime
) -> timedelta | Blocked:
    """Look, judge and plan; open a run when there is a plan and every gate is open.

    Returns when to look again, or why the target is not one that this resource can look after.
    """
    view = await ports.target.look(resource.namespace, policy)
    if view is None:
        return absent(resource, policy)
    if problem := unfit(resource, policy, view, ports):
        lost = problem.reason is Reason.CLAIMED_BY_ANOTHER
        again = await adopt_fleet(resource, record, view, ports, now) if lost else None
        return problem if again is None else again
    view = await with_holder(view, record.added_replicas, ports.target)
    await ports.crowd.heed(now)
    record = await swept(record, None, view.fleet, ports)
    found = await survey(resource, policy, view, _senses(ports, now))
    found = switch_where_untriable(await triable(found, resource, ports), resource, policy, now)
    found = await check_ownership(found, resource, policy, ports.target)
    look = _Look(resource, policy, record, found, ports, now)
    seen = await _record_findings(look)
    why = await _begin_run(look, seen)
    if found.plan is not None and why is None:
        return AT_ONCE
    why = why or why_not_restored(seen, policy)
    await save(resource, record_plan(seen, found.plan, why, resource.generation, now), ports)
    await remove_finalizer(resource, ports, seen)
    return ports.pace.idle


def _senses(ports: Ports, now: datetime) -> Senses:
    return Senses(ports.metrics, ports.target, now, ports.drivers, ports.evaluations)


async def _record_findings(look: _Look) -> Record:
    """Return the record with what a look found: the diagnosis, its urgency, what is held or was too much."""
    found, policy, generation = look.found, look.policy, look.resource.generation
    seen = record_diagnosis(look.record, found.diagnosis, found.runbook, generation, look.now)
    urgent = urgency_of(found.diagnosis, found.burn, policy.objectives, look.record.urgency)
    seen = note_temporary(replace(seen, urgency=urgent), found, policy, look.now)
    seen = with_failed_fixes(with_baseline(seen, found.evidence.compression), found.evidence.failed_fixes)
    seen = with_known_limit(with_runbook_switch(seen, found.switch), found, policy, look.now)
    good = await proved_good(found, look.resource, policy, look.ports.metrics, look.now)
    return replace(seen, last_good=good) if good else seen


async def _begin_run(look: _Look, seen: Record) -> Blocked | None:
    """Open a run for the plan, where there is one and every gate is open; return what speaks against it."""
    resource, policy, found, ports, now = look.resource, look.policy, look.found, look.ports, look.now
    held = (
        found.obstacle
        or report_unrecognised(policy, found.view)
        or await claimed_by_another(resource, found, ports)
    )
    why = held or await gate(policy, look.record, found, ports, now)
    why = why or await no_place_for(resource, found, ports, now)
    if found.plan is None or why is not None:
        return why
    baseline = await pressed_baseline(found, policy, resource.namespace, ports.metrics)
    if isinstance(baseline, Inconclusive):
        return Blocked(baseline.reason, baseline.message)
    granted = await consent(resource, policy, found.plan, ports, now)
    if isinstance(granted, Blocked):
        return granted
    measure = Measure(found.goal, baseline, found.blocks())
    run = run_of(found.plan, found.view.fleet, found.view.template, measure, now)
    run = replace(run, reason=found.diagnosis.reason, terms=terms_of(policy), approval=granted)
    return await _open_planned_run(resource, seen, run, ports, now)


async def _open_planned_run(
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
            await save(resource, open_run(record, run, resource.generation, now), ports)
        return blocked
