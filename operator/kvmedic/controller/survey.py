"""A look at a fleet without an open run: evidence, diagnosis, plan. Nothing is changed here.

Which of the two runbooks goes on is decided here too: when one leaves the fleet to the other, and how often.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TypeAlias

from kvmedic.controller.evidence import (
    Survey,
    ask_versions,
    drop_unjudged_pods,
    engine_of,
    expected_pods,
    find_pods_silent_on_method,
    find_pods_silent_on_pool,
    gather,
    vitals_of,
    with_drivers,
    with_logged_pools,
    with_starts,
)
from kvmedic.controller.plans import (
    add_remarks,
    find_due_return,
    find_missing_proof,
    switch_where_stuck,
    with_plan,
    with_return,
    with_shown_plan,
)
from kvmedic.controller.ports import SurveyInput
from kvmedic.engines.engine_log import phrases
from kvmedic.kube.cpu import in_thread
from kvmedic.kube.errors import Call, Conflict
from kvmedic.kube.objects import WORKLOADS, Ref
from kvmedic.model.evidence import Blocked, Inconclusive, Look, Observation, Signal
from kvmedic.model.plan import Goal, OnTrial, Plan
from kvmedic.model.reasons import Reason, Trait
from kvmedic.model.spec import CompressionPolicy, Mode, Policy, Runbook
from kvmedic.model.status import ClosedRun, Record, Resource, RunbookSwitch
from kvmedic.runbooks import RUNBOOKS
from kvmedic.runbooks.branches import Compressed, Diagnosed, Diagnosis, Evidence, Probation, diagnose
from kvmedic.runbooks.compression.methods import compressed_of, eviction_by, eviction_of, standing_answers
from kvmedic.runbooks.compression.next_fix import Case, Next, fixes_behind_gate, next_fix
from kvmedic.runbooks.compression.savings import with_baseline_on_record
from kvmedic.runbooks.order import first_branches, judge_first_branches, judge_runbooks
from kvmedic.runbooks.preemption.probation import PROBATION_LOOK, is_on_probation
from kvmedic.runbooks.severity import signals_of
from kvmedic.runbooks.workload import View, Workload
from kvmedic.verdict.baseline import judged_part, pressured_replicas


def with_switch(found: Survey, resource: Resource, policy: Policy, now: datetime) -> Survey:
    """Return the survey with the switch of runbooks that it amounts to; the second one has no plan.

    Where both runbooks changed a pod template and it did not help, each would take it from the other for
    ever. A trial is never in the way, as it changes nothing.
    """
    if Runbook.COMPRESSION_WITHOUT_SAVINGS not in policy.runbooks:
        return found
    record = resource.record or Record()
    is_compression = found.runbook == Runbook.COMPRESSION_WITHOUT_SAVINGS
    way = _way_back(found, record) if is_compression else _way_over(found)
    if way is None:
        return found
    switch = RunbookSwitch(*way, template=found.view.fleet.revision, generation=resource.generation, at=now)
    back = _find_switch_taken_back(switch, record)
    if back is None or found.plan is None or isinstance(found.plan.steps[0], OnTrial):
        return replace(found, switch=switch)
    return replace(found, plan=None, blocked=_refuse_second_switch(switch, back, found.plan), switch=switch)


_Way: TypeAlias = tuple[str, str, Reason, str]
"""From which runbook to which, the reason, and a sentence for people."""


def _way_over(found: Survey) -> _Way | None:
    """Return that the other runbook goes on: it wants a change, or cannot judge a pressure that it found."""
    table = RUNBOOKS[Runbook.COMPRESSION_WITHOUT_SAVINGS]
    first, then = found.evidence.unanswered or diagnose(table, found.evidence), found.diagnosis
    if first.reason is Reason.NO_COMPRESSION or _asks_for_a_change(first):
        return None
    is_unjudged = isinstance(then, Inconclusive) and pressured_replicas(found.burn, found.evidence.trigger)
    if not is_unjudged and not _asks_for_a_change(then):
        return None
    message = f"{first.line()}; {found.runbook} goes on: {then.reason}"
    return Runbook.COMPRESSION_WITHOUT_SAVINGS, found.runbook, first.reason, message


def _way_back(found: Survey, record: Record) -> _Way | None:
    """Return that the compression runbook goes on again.

    With a plan only: a fix that waits is shown while the fleet is calm, and that takes nothing back.
    """
    newest = next(iter(record.runbook_switches), None)
    if newest is None or newest.from_runbook != found.runbook or found.plan is None:
        return None
    message = f"{found.runbook} has a plan again: {found.diagnosis.line()}"
    return newest.to_runbook, found.runbook, found.diagnosis.reason, message


def _find_switch_taken_back(switch: RunbookSwitch, record: Record) -> RunbookSwitch | None:
    """Return the way back since a switch was made first, so that it is the second now; None: it is not.

    A way back after which that runbook changed nothing took nothing back: load that comes and goes during a
    cooldown blocks nobody.
    """
    known = record.runbook_switches
    first = next((at for at, each in enumerate(known) if switch.is_like(each)), 0)
    ways_back = (each for each in known[:first] if switch.takes_back(each))
    return next((each for each in ways_back if _is_used(each, record.history)), None)


def _is_used(switch: RunbookSwitch, history: tuple[ClosedRun, ...]) -> bool:
    """Return whether the runbook that goes on since a switch has changed something of the fleet."""
    branches = RUNBOOKS.get(switch.to_runbook, ())
    changing = {each.reason for each in branches if each.then is not None and each.goal is not Goal.ANSWER}
    return any(
        run.started_at >= switch.at
        and run.reason in changing
        and not run.on_trial_pod
        and Trait.UNTRIED not in run.outcome.traits
        for run in history
    )


def _refuse_second_switch(switch: RunbookSwitch, back: RunbookSwitch, plan: Plan) -> Blocked:
    """Return why a plan is not carried out: what both runbooks want, and what is the same."""
    steps = "; ".join(step.line() for step in plan.steps)
    text = (
        f"{switch.to_runbook} wants {steps} and had its turn before; {back.to_runbook} had its turn since "
        f"{back.at:%Y-%m-%dT%H:%MZ} ({back.reason}), and pod template {switch.template} and spec generation "
        f"{switch.generation} are the same. An edit of the spec or of the pod template starts anew"
    )
    return Blocked(Reason.RUNBOOK_SWITCHED_TWICE, text)


async def survey(resource: Resource, policy: Policy, view: View, inputs: SurveyInput) -> Survey:
    """Return what a look at the target finds; the plan is made, never carried out.

    A quick look at the triggers comes first: most of what a source computes for a whole look is
    histograms, and a calm fleet needs none of them. What is decided on more is read from the API server.

    Raises:
        Conflict: the target went while it was looked at.
    """
    quick_survey = await _quick_look(resource, policy, view, inputs)
    if (
        quick_survey is not None
        and find_due_return(quick_survey, resource, policy, inputs.now or quick_survey.burn.at) is None
    ):
        return with_shown_plan(quick_survey, resource, policy)
    if inputs.target is not None:
        seen = await inputs.target.look(resource.namespace, policy)
        if seen is None:
            target = Ref(WORKLOADS[policy.target.kind], resource.namespace, policy.target.name)
            raise Conflict(Call("get", target.path), 404, "it is gone")
        view = seen
    return await examine(resource, policy, view, inputs)


async def examine(resource: Resource, policy: Policy, view: View, inputs: SurveyInput) -> Survey:
    """Return what a whole look at the target finds, however calm it is."""
    history = resource.record.history if resource.record else ()
    evidence = await gather(policy, resource.namespace, view, inputs, history)
    evidence = await _with_probation(evidence, resource, policy, view, inputs)
    evidence = await _with_engine_reports(evidence, resource, policy, view, inputs)
    runbook, diagnosis = judge_runbooks(policy, evidence)
    found = Survey(view, evidence, diagnosis, runbook, None, None)
    now = inputs.now or found.burn.at
    held = find_due_return(found, resource, policy, now)
    if _asks_for_a_change(diagnosis) or held is not None:
        versions = await ask_versions(resource.namespace, view, inputs.metrics)
        await in_thread(engine_of, view, policy, versions)  # the view keeps what it read
        found = replace(found, evidence=replace(evidence, versions=versions))
    if held is not None:
        planned = with_return(found, resource, policy, held)
    else:
        planned = with_plan(add_remarks(found, resource, policy), resource, policy)
        planned = with_switch(planned, resource, policy, now)
    return with_shown_plan(planned, resource, policy)


def switch_where_untriable(found: Survey, resource: Resource, policy: Policy, now: datetime) -> Survey:
    """Return the survey with the next runbook's plan, where a trial turned out to be impossible."""
    other = switch_where_stuck(found, resource, policy)
    if other is found:
        return found
    return with_shown_plan(with_switch(other, resource, policy, now), resource, policy)


async def _with_probation(
    evidence: Evidence, resource: Resource, policy: Policy, view: View, inputs: SurveyInput
) -> Evidence:
    """Return evidence with how the fleet fares under a cap of ours that is on probation, if one is."""
    cap = resource.record.sized if resource.record else None
    now = inputs.now or evidence.burn.at
    if cap is None or not is_on_probation(cap, view.fleet.revision, evidence.peaks, now):
        return evidence
    pods = expected_pods(view)
    hour = await inputs.metrics.look(policy.source, pods, resource.namespace, PROBATION_LOOK)
    judged, _ = judged_part(pods, hour, 0)
    return replace(evidence, probation=Probation(cap, judged, policy.objectives))


async def _with_engine_reports(
    evidence: Evidence, resource: Resource, policy: Policy, view: View, inputs: SurveyInput
) -> Evidence:
    """Return evidence in which settings, logs and drivers report what no series does, as far as they may."""
    workload = engine_of(view, policy)
    if not isinstance(workload, Workload):
        return evidence
    if silent := find_pods_silent_on_pool(evidence, view):
        evidence = await with_logged_pools(evidence, resource.namespace, silent, workload, inputs.logs)
    method = _compression(workload, resource, policy, evidence.burn)
    if asked := find_pods_silent_on_method(method, policy, evidence, view):
        evidence = await with_starts(evidence, resource.namespace, asked, workload, inputs.logs)
        method = _compression(workload, resource, policy, evidence.burn, phrases(evidence.started))
    evicts = eviction_of(workload, phrases(evidence.started)) or (eviction_by(method) if method else None)
    method = _with_baseline(method, resource, policy, view)
    evidence = replace(evidence, evicts=evicts, compression=method)
    after = await _after_the_method(workload, evidence, resource, policy, inputs)
    evidence = replace(evidence, fix=after.move, failed_fixes=after.failed)
    if judge_first_branches(policy, evidence) is not None:
        return evidence
    vitals = await with_drivers(
        evidence.vitals, resource.namespace, expected_pods(view), workload, inputs.drivers
    )
    return replace(evidence, vitals=vitals)


def _with_evidence_of_ours(policy: Policy) -> CompressionPolicy:
    """Return what is asked of a method; in mode Auto without a score that only the spec declares.

    What a person declared may be looked at by the person who approves. Alone it changes no fleet.
    """
    compression = policy.compression
    if policy.mode is not Mode.AUTO or compression.gate is None:
        return compression
    return replace(compression, gate=replace(compression.gate, reference=None))


async def _after_the_method(
    workload: Workload, evidence: Evidence, resource: Resource, policy: Policy, inputs: SurveyInput
) -> Next:
    """Return what comes after a method that saved nothing; the team's evaluation is looked at only then."""
    record, method = resource.record or Record(), evidence.compression
    is_asked = Runbook.COMPRESSION_WITHOUT_SAVINGS in policy.runbooks
    if not is_asked or not fixes_behind_gate(policy.compression, record.turned_off, method):
        return Next(None, ())
    gate = policy.compression.gate
    found = await inputs.evaluations.evaluation_digest(resource.namespace, gate.cron_job) if gate else None
    return next_fix(
        Case(
            workload=workload,
            policy=_with_evidence_of_ours(policy),
            turned_off=record.turned_off,
            method=method,
            answers=standing_answers(record.answers, resource.generation, evidence.burn.at),
            scores=record.scores,
            failed=record.failed_attempts,
            evaluation=found,
            generation=resource.generation,
            now=evidence.burn.at,
        )
    )


def _asks_for_a_change(diagnosis: Diagnosis) -> bool:
    return isinstance(diagnosis, Diagnosed) and diagnosis.branch.then is not None


async def _quick_look(resource: Resource, policy: Policy, view: View, inputs: SurveyInput) -> Survey | None:
    """Return the survey where the first branches of each runbook decide, or None where more is needed.

    Those distinguish a calm fleet from any other, or say what they cannot see; either way no
    later branch is asked, so that a whole look would find the same. A fleet that is calm now has not been in
    trouble for long: what is held is the least of a while, so that only others are asked about that while.
    """
    now = await _quick_look_over(timedelta(0), resource, policy, view, inputs)
    is_calm = now is not None and isinstance(now.diagnosis, Diagnosed)
    if is_calm or not policy.windows.hold:
        return now
    return await _quick_look_over(policy.windows.hold, resource, policy, view, inputs)


async def _quick_look_over(
    hold: timedelta, resource: Resource, policy: Policy, view: View, inputs: SurveyInput
) -> Survey | None:
    """Return the same for trouble that lasts for some time."""
    desired = find_missing_proof(resource, policy, view, inputs.now) | signals_of(policy.objectives)
    look = Look(policy.windows.trigger, hold, quick_look_signals(policy.runbooks) | desired)
    pods, namespace = expected_pods(view), resource.namespace
    seen = await inputs.metrics.look(policy.source, pods, namespace, look)
    workload = engine_of(view, policy)
    method = _compression(workload, resource, policy, seen) if isinstance(workload, Workload) else None
    if method is not None and Runbook.COMPRESSION_WITHOUT_SAVINGS in policy.runbooks:
        desired |= quick_look_signals(policy.runbooks, compresses=True)
        seen = await inputs.metrics.look(policy.source, pods, namespace, replace(look, signals=desired))
    turned_off = resource.record.turned_off if resource.record else None
    if fixes_behind_gate(policy.compression, turned_off, method):
        return None
    vitals = await vitals_of(seen, resource.namespace, view, inputs.logs, {})
    method = _with_baseline(method, resource, policy, view)
    evidence = Evidence(seen, seen, policy.trigger, vitals, policy.node_health, compression=method)
    evidence = drop_unjudged_pods(evidence, pods, inputs.now)
    found = judge_first_branches(policy, evidence)
    if found is None:
        return None
    runbook, diagnosis = found
    return Survey(view, evidence, diagnosis, runbook, None, None)


def quick_look_signals(runbooks: Sequence[Runbook], *, compresses: bool = False) -> frozenset[Signal]:
    """Return what the first branches of some runbooks look at.

    Of a fleet on which nothing compresses the KV cache, the runbook about that asks no figure.
    """
    asked = (each for each in runbooks if compresses or each is not Runbook.COMPRESSION_WITHOUT_SAVINGS)
    firsts = (branch for runbook in asked for branch in first_branches(runbook))
    return frozenset[Signal]().union(*(branch.signals for branch in firsts))


def _with_baseline(
    method: Compressed | None, resource: Resource, policy: Policy, view: View
) -> Compressed | None:
    return with_baseline_on_record(method, resource.record or Record(), policy, view)


def _compression(
    workload: Workload, resource: Resource, policy: Policy, seen: Observation, log: Sequence[str] = ()
) -> Compressed | None:
    answers = resource.record.answers if resource.record else ()
    counting = standing_answers(answers, resource.generation, seen.at)
    return compressed_of(workload, policy.compression, counting, seen, log)
