"""One tick for one resource, top to bottom: load, look, judge, then one write or one effect.

Order is fixed: intent durable in the status, then the effect, then the outcome in the status, then
Event and metric.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from kvmedic.controller.blockers import (
    check_ownership,
    consent,
    find_foreign_claim,
    find_target_blocker,
    gate,
    owner_patch_of,
    report_missing_target,
    report_unrecognised,
)
from kvmedic.controller.evidence import Survey
from kvmedic.controller.execute import execute_run
from kvmedic.controller.finalizer import leave_ending_namespace, release_resource, remove_finalizer
from kvmedic.controller.next_move import Tick
from kvmedic.controller.orphans import adopt_fleet, adopt_noted_fleet
from kvmedic.controller.plans import prove_good_revision
from kvmedic.controller.ports import Ports, SurveyInput, save
from kvmedic.controller.spares import check_spare
from kvmedic.controller.survey import survey, switch_where_untriable
from kvmedic.controller.temporary import (
    delete_unused_copies,
    note_temporary,
    why_not_restored,
    with_holder,
    with_known_limit,
)
from kvmedic.controller.trial import check_trial
from kvmedic.controller.verify import pressed_baseline
from kvmedic.model.evidence import Blocked, Inconclusive
from kvmedic.model.reasons import Reason
from kvmedic.model.run import policy_during
from kvmedic.model.spec import Policy, run_spec_of
from kvmedic.model.status import Key, Record, Resource, Wish
from kvmedic.record.runs import open_run
from kvmedic.record.surveys import (
    record_diagnosis,
    record_plan,
    with_baseline,
    with_failed_fixes,
    with_problem,
    with_runbook_switch,
)
from kvmedic.runbooks.severity import urgency_of
from kvmedic.verdict.summary import Measure, run_of

AT_ONCE = timedelta(0)


async def reconcile(key: Key, ports: Ports, now: datetime) -> timedelta | None:
    """Look at one resource once; return when to look again, or None when it is gone.

    Raises:
        Unavailable: an API did not answer; nothing is lost, try again.
        Conflict: the world moved between look and write; try again at once.
        Refused: a write was not allowed; a person must look.
    """
    resource = await _load(key, ports)
    if resource is None:
        return None
    ports.reporter.count_resource(resource)
    if await leave_ending_namespace(resource, ports):
        return None
    record, policy = resource.record, resource.policy
    if record is None:
        return await _report_unreadable(resource, ports, now)
    run = record.run
    if run is not None and (run_policy := policy_during(run, policy)) is not None:
        problem = None if policy else _problem(resource)
        return await execute_run(Tick(resource, run_policy, record, run, ports, now, problem))
    if run is None and resource.wish in (Wish.DELETE, Wish.ABANDON):
        return await release_resource(resource, record, ports, now)
    if run is not None or policy is None:
        return await _save_problem(resource, record, ports, now)
    again = await _look_without_run(resource, policy, record, ports, now)
    if isinstance(again, Blocked):
        return await _save_problem(replace(resource, problem=again), record, ports, now)
    return again


async def _load(key: Key, ports: Ports) -> Resource | None:
    """Return the resource: as it is stored now where anything is under way, else as it was seen last."""
    seen = await ports.store.load_last_seen(key)
    if seen is None or seen.problem or seen.wish is not Wish.NONE or seen.record is None or seen.record.run:
        return await ports.store.load(key)
    return seen


async def _look_without_run(
    resource: Resource, policy: Policy, record: Record, ports: Ports, now: datetime
) -> timedelta | Blocked:
    """Look, judge and plan; open a run when there is a plan and every gate is open.

    Returns when to look again, or why the target is not one that this resource can look after.
    """
    view = await ports.target.quick_look(resource.namespace, policy)
    is_owed = bool(record.temporary or record.copies)
    if is_whole := view is None or is_owed or find_target_blocker(resource, policy, view, ports) is not None:
        view = await ports.target.look(resource.namespace, policy)
    if view is None:
        return report_missing_target(resource, policy)
    if problem := find_target_blocker(resource, policy, view, ports):
        lost = problem.reason is Reason.CLAIMED_BY_ANOTHER
        again = await adopt_fleet(resource, record, view, ports, now) if lost else None
        return problem if again is None else again
    view = await with_holder(view, record.added_replicas, ports.target)
    await ports.run_limits.refresh(now)
    record = await delete_unused_copies(record, None, view.fleet, ports)
    target = None if is_whole else ports.target
    inputs = SurveyInput(ports.metrics, ports.target, now, ports.drivers, ports.evaluations, target)
    found = await survey(resource, policy, view, inputs)
    if problem := find_target_blocker(resource, policy, found.view, ports):
        return problem
    found = switch_where_untriable(await check_trial(found, resource, ports), resource, policy, now)
    found = await check_ownership(found, resource, policy, ports.target)
    seen = await _record_findings(resource, policy, record, found, ports, now)
    seen = await _note_eligibility(resource, seen, found, ports, now)
    why = await _begin_run(resource, policy, seen, found, ports, now)
    if found.plan is not None and why is None:
        return AT_ONCE
    why = why or why_not_restored(seen, policy)
    await save(resource, record_plan(seen, found.plan, why, resource.generation, now), ports)
    await remove_finalizer(resource, ports, seen)
    return ports.pace.idle


async def _record_findings(
    resource: Resource, policy: Policy, record: Record, found: Survey, ports: Ports, now: datetime
) -> Record:
    """Return the record with what a look found: the diagnosis, its urgency, what is held or was too much."""
    seen = record_diagnosis(record, found.diagnosis, found.runbook, resource.generation, now)
    urgent = urgency_of(found.diagnosis, found.evidence, policy.objectives, record.urgency, found.own_cap)
    seen = note_temporary(replace(seen, urgency=urgent), found, policy, now)
    seen = with_failed_fixes(with_baseline(seen, found.evidence.compression), found.evidence.failed_fixes)
    seen = with_known_limit(with_runbook_switch(seen, found.switch), found, policy, now)
    good = await prove_good_revision(found, resource, policy, ports.metrics, now)
    return replace(seen, last_good=good) if good else seen


async def _note_eligibility(
    resource: Resource, seen: Record, found: Survey, ports: Ports, now: datetime
) -> Record:
    """Return the record with whether a change could begin; where there is a plan, that one's gates say."""
    examiner, view = ports.examiner, found.view
    if found.plan is not None or not examiner.is_due(resource, view, now):
        return seen
    examined = await examiner.examine(resource, view, found.diagnosis, now)
    return seen if examined is None else examiner.note(seen, examined, resource, view, now)


async def _begin_run(
    resource: Resource, policy: Policy, seen: Record, found: Survey, ports: Ports, now: datetime
) -> Blocked | None:
    """Open a run for the plan, where there is one and every gate is open; return what speaks against it.

    The finalizer goes on first; the run is opened on the next tick's fresh evidence, by one resource at a
    time.
    """
    why = (
        found.blocked
        or report_unrecognised(policy, found.view)
        or await find_foreign_claim(resource, found, ports)
        or await gate(policy, seen, found, ports, now)
    )
    if found.plan is None or why is not None:
        return why
    if full := await ports.run_limits.hint(resource.uid, now):
        return full
    baseline = await pressed_baseline(found, policy, resource.namespace, ports.metrics)
    if isinstance(baseline, Inconclusive):
        return Blocked(baseline.reason, baseline.message)
    granted = await consent(resource, policy, found.plan, ports, now)
    if isinstance(granted, Blocked):
        return granted
    # The answer costs a look at nodes and pods, so it is asked where nothing else is waited for.
    found = await check_spare(found, resource, policy, ports.target)
    if found.plan is None or found.blocked is not None:
        return found.blocked
    if not resource.finalized:
        await ports.store.finalize(resource, present=True)
        return None
    measure = Measure(found.goal, baseline, found.blocks())
    run = run_of(found.plan, found.view.fleet, found.view.template, measure, now)
    run = replace(run, reason=found.diagnosis.reason, run_spec=run_spec_of(policy), approval=granted)
    run = replace(run, owner_patch=owner_patch_of(found), may_lack=found.may_lack)
    async with ports.run_limits.reserve(resource.uid, now) as blocked:
        if blocked is None:
            await save(resource, open_run(seen, run, resource.generation, now), ports)
        return blocked


async def _report_unreadable(resource: Resource, ports: Ports, now: datetime) -> timedelta | None:
    """Say that the record cannot be read: nothing is done then, not even from the start.

    A resource that is being deleted may go where its target is gone, or where its owner says so. A fleet that
    stands frozen by a run which somebody damaged is given back by its note.
    """
    policy, is_gone = resource.policy, resource.wish is Wish.ABANDON
    if resource.salvage is not None and not is_gone:
        again = await adopt_noted_fleet(resource, resource.salvage, ports, now)
        if isinstance(again, timedelta):
            return again
    if resource.wish is Wish.DELETE and policy is not None:
        is_gone = await ports.target.look(resource.namespace, policy) is None
    if is_gone:
        await remove_finalizer(resource, ports)
        return None
    records = await ports.store.report_problem(resource, _problem(resource))
    if records is not None:
        await ports.reporter.report_changes(resource, *records)
    return ports.pace.idle


async def _save_problem(resource: Resource, record: Record, ports: Ports, now: datetime) -> timedelta:
    """Say what is wrong with the spec."""
    await save(resource, with_problem(record, _problem(resource), resource.generation, now), ports)
    if record.run is None:
        await remove_finalizer(resource, ports, record)
    return ports.pace.idle


def _problem(resource: Resource) -> Blocked:
    return resource.problem or Blocked(Reason.SPEC_INVALID, Reason.SPEC_INVALID.sentence)
