"""What a look at a fleet is judged to be, and the plan that it leads to or what stands in the way; pure.

The last revision that proved healthy: what proves it, and what is not as it was then.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import datetime

from kvmedic.controller.evidence import Survey, engine_of, expected_pods, refuse_version_mix, version_remark
from kvmedic.controller.ports import Metrics
from kvmedic.model.devices import Vitals
from kvmedic.model.evidence import Blocked, Inconclusive, Look, Measured, Observation, Signal
from kvmedic.model.fleet import Fleet
from kvmedic.model.plan import Goal, Plan, Step
from kvmedic.model.reasons import Reason
from kvmedic.model.spec import Mode, Policy, Runbook
from kvmedic.model.status import Attempt, LastGood, Record, Resource, TemporaryChange, find_failure
from kvmedic.rollout import row_of
from kvmedic.rollout.gates.approval import is_plan_current
from kvmedic.rollout.preconditions import Purpose
from kvmedic.runbooks.branches import (
    Beyond,
    Diagnosed,
    Diagnosis,
    Evaluate,
    Evidence,
    Finding,
    NoChange,
    Relief,
    Resize,
    RollBack,
    Setting,
    Try,
    TurnOff,
    TurnOn,
)
from kvmedic.runbooks.compression.bundle import bundle_plan, turning_plan, unrecorded_setting
from kvmedic.runbooks.compression.savings import ASKED, figures_over, is_young
from kvmedic.runbooks.compression.trial_plans import confirm_before_turning_off, evaluation_plan, trial_plan
from kvmedic.runbooks.node_health import driver_health
from kvmedic.runbooks.order import judge_runbooks, with_unanswered
from kvmedic.runbooks.planning import drain_remark, fleet_plan, proposal
from kvmedic.runbooks.preemption.levers import present_setting
from kvmedic.runbooks.preemption.queueing import queue_behind
from kvmedic.runbooks.preemption.restore import due_change, plan_restore, restore_advice
from kvmedic.runbooks.preemption.scale_out import report_spent_levers
from kvmedic.runbooks.workload import View, Workload
from kvmedic.verdict.baseline import TRAFFIC, moves, traffic_of


def healthy_revision(found: Survey, policy: Policy, now: datetime) -> LastGood | None:
    """Return the fleet's revision as a good one, when it is settled and proved healthy under traffic."""
    fleet = found.view.fleet
    healthy = isinstance(found.diagnosis, Diagnosed) and found.diagnosis.reason is Reason.HEALTHY
    one_revision = all(pod.revision == fleet.revision for pod in fleet.pods)
    if (
        found.evidence.left_out
        or not healthy
        or not one_revision
        or not fleet.observed
        or fleet.ready != fleet.replicas
    ):
        return None
    finished = [pod.number(Signal.REQUESTS_FINISHED) for pod in found.evidence.burn.pods.values()]
    if not finished or not all(isinstance(count, Measured) and count.value >= 1 for count in finished):
        return None
    workload = engine_of(found.view, policy)
    flags = {} if isinstance(workload, Blocked) else workload.given_flags()
    return LastGood(fleet.revision, flags, fleet.replicas, found.blocks(), now)


async def prove_good_revision(
    found: Survey, resource: Resource, policy: Policy, metrics: Metrics, now: datetime
) -> LastGood | None:
    """Return the fleet as it is, healthy and loaded, where that is not on record or outdated.

    That is one more look for each new revision and each day: traffic, figures and devices.
    """
    good = healthy_revision(found, policy, now)
    if good is None or _is_on_record(resource, policy, found.view, now):
        return None
    pods, window = expected_pods(found.view), policy.windows.trigger
    asked, place = Look(window, signals=TRAFFIC | ASKED), (policy.source, pods, resource.namespace)
    # Side by side: each waits for others to share its queries with.
    seen, devices = await asyncio.gather(metrics.look(*place, asked), metrics.devices(*place, window))
    vitals = {name: Vitals(devices=reading) for name, reading in devices.items()}
    method = found.evidence.compression
    return replace(
        good,
        traffic=traffic_of(seen),
        method=method.name if method else "",
        figures=None if is_young(seen) else figures_over(seen, vitals),
    )


def _is_on_record(resource: Resource, policy: Policy, view: View, now: datetime | None) -> bool:
    good = resource.record.last_good if resource.record else None
    if good is None or good.revision != view.fleet.revision:
        return False
    return now is None or not good.is_outdated(policy.windows.trigger, now)


def find_missing_proof(
    resource: Resource, policy: Policy, view: View, now: datetime | None
) -> frozenset[Signal]:
    """Return what proves a revision good, where that is not on record or outdated."""
    known = _is_on_record(resource, policy, view, now)
    return frozenset() if known else frozenset({Signal.REQUESTS_FINISHED})


def with_context(diagnosis: Diagnosis, resource: Resource, view: View, evidence: Evidence) -> Diagnosis:
    """Return a trouble's diagnosis with what moved since it was healthy, and who reported on its GPUs."""
    moved, health = _with_moves(diagnosis, resource, view, evidence.burn), driver_health(evidence)
    if health is None or isinstance(moved, Inconclusive) or moved.branch.then is None:
        return moved
    return Diagnosed(moved.branch, (*moved.findings, health))


def _with_moves(diagnosis: Diagnosis, resource: Resource, view: View, burn: Observation) -> Diagnosis:
    """Return the diagnosis of a trouble with what is not as it was when the fleet was last healthy."""
    good = resource.record.last_good if resource.record else None
    if good is None or isinstance(diagnosis, Inconclusive) or diagnosis.branch.then is None:
        return diagnosis
    changes = list(moves(good.traffic, traffic_of(burn)) if good.traffic else ())
    if good.revision != view.fleet.revision:
        changes.append(f"pod template {good.revision} -> {view.fleet.revision}")
    if good.traffic is None and not changes:
        return diagnosis
    moved = ", ".join(changes) or "nothing that is recorded"
    text = f"moved since it was healthy ({good.recorded_at:%Y-%m-%dT%H:%M:%SZ}): {moved}"
    return Diagnosed(diagnosis.branch, (Finding("fleet", None, None, None, text), *diagnosis.findings))


_PASSING = frozenset({Reason.TARGET_NOT_SETTLED, Reason.RUNBOOK_SWITCHED_TWICE})
"""What passes by itself, or is itself about a switch of the runbooks."""


def add_remarks(found: Survey, resource: Resource, policy: Policy) -> Survey:
    """Return the survey of a trouble with what moved since it was healthy, and doubts of its version."""
    diagnosis = with_context(found.diagnosis, resource, found.view, found.evidence)
    if isinstance(diagnosis, Inconclusive) or diagnosis.branch.then is None:
        return found
    doubt = version_remark(found.engine(policy), found.evidence.versions)
    sized = resource.record.sized if resource.record else None
    own_cap = queue_behind(found.evidence, sized, found.view.fleet.revision)
    findings = tuple(Finding("fleet", None, None, None, each) for each in (own_cap, doubt) if each)
    diagnosis = Diagnosed(diagnosis.branch, (*findings, *diagnosis.findings))
    return replace(found, diagnosis=diagnosis, own_cap=own_cap)


def with_plan(found: Survey, resource: Resource, policy: Policy) -> Survey:
    """Return the survey with the plan that its diagnosis leads to, or with what stands in the way.

    What stands in the way of the runbook on compression keeps the next one from nothing.
    """
    return switch_where_stuck(_with_plan(found, resource, policy), resource, policy)


def switch_where_stuck(found: Survey, resource: Resource, policy: Policy) -> Survey:
    """Return the survey with the next runbook's plan, where that on compression cannot go on.

    As it is where the next one has no plan either, or where what stands in the way passes by itself.
    """
    why = found.blocked
    if why is None or found.runbook != Runbook.COMPRESSION_WITHOUT_SAVINGS:
        return found
    if why.reason in _PASSING or (found.plan is not None and why.reason is not Reason.TRIAL_IMPOSSIBLE):
        return found
    evidence = with_unanswered(found.evidence, found.diagnosis, why)
    runbook, diagnosis = judge_runbooks(policy, evidence)
    if runbook == Runbook.COMPRESSION_WITHOUT_SAVINGS:
        return found
    other = add_remarks(Survey(found.view, evidence, diagnosis, runbook, None, None), resource, policy)
    other = _with_plan(other, resource, policy)
    return found if other.plan is None else other


def _with_plan(found: Survey, resource: Resource, policy: Policy) -> Survey:
    diagnosis, fleet = found.diagnosis, found.view.fleet
    if isinstance(diagnosis, Inconclusive) or diagnosis.branch.then is None:
        return found
    workload = refuse_version_mix(found.engine(policy), found.evidence.versions)
    known = _present_setting(workload, found, policy, resource.record or Record())
    plan = _plan(found, workload, known, resource, policy)
    if isinstance(plan, NoChange) and plan.passes_on and found.evidence.spent is None:
        return _with_plan(_judge_survey(found, plan, known, resource, policy), resource, policy)
    if not isinstance(plan, Plan):
        return _without_plan(found, plan.reason, plan.message)
    blocked = find_step_blocker(plan.steps[0], fleet, found.goal)
    return replace(found, plan=_with_remark(plan, workload, policy), blocked=blocked)


def _with_remark(plan: Plan, workload: Workload | Blocked, policy: Policy) -> Plan:
    """Return a plan that says what becomes of requests whose drain times out."""
    remark = "" if isinstance(workload, Blocked) else drain_remark(workload, policy.rollout, plan.steps[0])
    return replace(plan, message=f"{plan.message}; {remark}") if remark else plan


def _judge_survey(found: Survey, why: NoChange, known: Setting, resource: Resource, policy: Policy) -> Survey:
    """Return the survey judged anew, once it is known that no lever is left."""
    spent = report_spent_levers(why, known, found.view.fleet.replicas)
    evidence = replace(found.evidence, spent=spent)
    runbook, diagnosis = judge_runbooks(policy, evidence)
    return add_remarks(
        replace(found, evidence=evidence, diagnosis=diagnosis, runbook=runbook), resource, policy
    )


def find_due_return(
    found: Survey, resource: Resource, policy: Policy, now: datetime
) -> TemporaryChange | None:
    """Return what to ask of a calm fleet whether it would do without; None: nothing yet."""
    record, diagnosis = resource.record, found.diagnosis
    calm = isinstance(diagnosis, Diagnosed) and diagnosis.reason is Reason.HEALTHY
    if record is None or not calm or not record.temporary:
        return None
    workload = found.engine(policy)
    return (
        None if isinstance(workload, Blocked) else due_change(record, found.view.fleet, policy, workload, now)
    )


def with_return(found: Survey, resource: Resource, policy: Policy, held: TemporaryChange) -> Survey:
    """Return the survey with the plan that gives back what is due, where the fleet should do without."""
    workload = found.engine(policy)
    if isinstance(workload, Blocked):
        return found
    record, fleet = resource.record or Record(), found.view.fleet
    known = _present_setting(workload, found, policy, record)
    advice = restore_advice(record, held, found.evidence, known, fleet.revision)
    found = replace(found, outlook=advice.message)
    if isinstance(advice, NoChange):
        return found
    plan = plan_restore(held, advice, fleet, workload, resource.generation)
    if isinstance(plan, Blocked):
        return replace(found, blocked=plan)
    return replace(found, plan=plan, blocked=find_step_blocker(plan.steps[0], fleet, Goal.CALM))


def _present_setting(workload: Workload | Blocked, found: Survey, policy: Policy, record: Record) -> Setting:
    """Return what advice needs to know; of an engine that is not recognised, only what was tried."""
    fleet, known = found.view.fleet, Setting(None, policy.levers)
    if isinstance(workload, Workload):
        known = present_setting(workload, policy.levers, record, found.evidence)
    return replace(
        known,
        replacing_failed=_has_failed(Attempt.REPLACE_REPLICA, found, record, fleet.replicas),
        rollback_allowed=policy.rollback.is_allowed,
        rollback_failed=_has_failed(Attempt.ROLL_BACK_REVISION, found, record, ""),
        scale_out=policy.scale_out,
        scaling_failed=_has_failed(Attempt.ADD_REPLICAS, found, record, fleet.replicas),
        before_scaling=record.added_replicas.fewest if record.added_replicas else None,
        is_our_cap=record.sized is not None and record.sized.is_open_on(fleet.revision),
    )


def _has_failed(attempt: Attempt, found: Survey, record: Record, key: object) -> bool:
    """Return whether an attempt on this very pod template is on record as no help."""
    return find_failure(record.failed_attempts, attempt, key, found.view.fleet.revision) is not None


def _plan(
    found: Survey, workload: Workload | Blocked, known: Setting, resource: Resource, policy: Policy
) -> Plan | Blocked | NoChange:
    """Return the plan that the diagnosis leads to, or why there is none.

    A replica can be replaced whatever runs in it, and a revision rolled back; a setting needs an engine that
    is known.
    """
    advice = _advice(found, workload, known, resource.generation)
    if isinstance(advice, TurnOff) and policy.mode is Mode.AUTO:
        advice = confirm_before_turning_off(found.evidence, advice)
    if isinstance(advice, RollBack | Relief | Resize):
        return fleet_plan(policy.target, found.view.fleet, advice, resource.generation)
    if isinstance(advice, Try | Evaluate):
        return _plan_trial(workload, found, advice, resource, policy)
    if isinstance(advice, TurnOff | TurnOn):
        return _plan_switch(workload, found, advice, resource)
    return advice


def _advice(
    found: Survey, workload: Workload | Blocked, known: Setting, generation: int
) -> Plan | Blocked | Beyond | NoChange:
    """Return what the diagnosed branch asks for; of a setting the plan itself."""
    if isinstance(found.diagnosis, Inconclusive) or found.diagnosis.branch.then is None:
        return NoChange(found.diagnosis.reason, "")
    advise = found.diagnosis.branch.then
    if isinstance(workload, Workload):
        return proposal(workload, advise, found.evidence, known, generation)
    advice = advise(found.evidence, known)
    return advice if isinstance(advice, Relief | RollBack) else NoChange(workload.reason, workload.message)


def _plan_trial(
    workload: Workload | Blocked, found: Survey, advice: Try | Evaluate, resource: Resource, policy: Policy
) -> Plan | Blocked:
    """Return the plan that asks a trial pod, or lets a Job evaluate one."""
    fleet = found.view.fleet
    if isinstance(advice, Evaluate):
        return evaluation_plan(workload, fleet, advice, resource.generation)
    return trial_plan(workload, fleet, policy.source, advice, resource.generation)


def _plan_switch(
    workload: Workload | Blocked, found: Survey, advice: TurnOff | TurnOn, resource: Resource
) -> Plan | Blocked | NoChange:
    """Return the plan that turns a method off or on, unless that failed on this pod template before."""
    if isinstance(workload, Blocked):
        return workload
    if isinstance(advice, TurnOn):
        return turning_plan(workload, advice, resource.generation)
    if _has_failed(Attempt.SWITCH_METHOD, found, resource.record or Record(), advice.method):
        text = f"{advice.method} was turned off on this pod template, and had to be turned on again"
        return NoChange(Reason.LEVER_EXHAUSTED, text)
    if doubt := unrecorded_setting(workload, advice.settings, found.view.templates.values()):
        return Blocked(Reason.FLAG_NOT_EDITABLE, f"{advice.method} is not turned off: {doubt}")
    return bundle_plan(workload, advice, resource.generation)


def with_shown_plan(found: Survey, resource: Resource, policy: Policy) -> Survey:
    """Return the survey with the plan that a person may be about to approve, while it stands.

    Evidence that says nothing for a moment does not take it away; it is not carried out then either.
    """
    shown = resource.record.plan if resource.record else None
    plan = shown.bound if shown else None
    if policy.mode is not Mode.APPROVE or plan is None:
        return found
    if found.plan is not None:
        return replace(found, plan=plan) if is_plan_current(plan, found.plan) else found
    if not isinstance(found.diagnosis, Inconclusive) or not _is_bound(plan, found.view, resource):
        return found
    return replace(found, plan=plan, blocked=Blocked(found.diagnosis.reason, found.diagnosis.message))


def _is_bound(plan: Plan, view: View, resource: Resource) -> bool:
    """Return whether a plan was made for the target, its template and the spec as they are now."""
    made_for = (plan.target_uid, plan.template, plan.spec_generation)
    return made_for == (view.fleet.uid, view.fleet.revision, resource.generation)


def find_step_blocker(step: Step, fleet: Fleet, goal: Goal) -> Blocked | None:
    """Return why a plan's first step cannot begin on the fleet as it is, or None.

    Only a change that is to keep replicas up does not need the fleet whole. Giving something back is a change
    like any other, which an owner who came meanwhile would revert.
    """
    purpose = Purpose.MENDING if goal is Goal.STAYS_UP else Purpose.RELIEF
    return row_of(step).find_blocker(fleet, purpose)


def _without_plan(found: Survey, reason: Reason, message: str) -> Survey:
    return Survey(found.view, found.evidence, found.diagnosis, found.runbook, None, Blocked(reason, message))
