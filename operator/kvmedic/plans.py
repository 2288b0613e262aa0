"""What a look at a fleet is judged to be, and the plan that it leads to or what stands in the way; pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import takewhile

from kvmedic.core.approval import stands
from kvmedic.core.diagnosis import (
    Beyond,
    Branch,
    Diagnosed,
    Diagnosis,
    Evidence,
    Finding,
    Goal,
    Inconclusive,
    NoChange,
    Relief,
    Resize,
    RollBack,
    Setting,
    diagnose,
    first_match,
    is_content,
)
from kvmedic.core.fixing import Evaluate, Try, TurnOff, TurnOn
from kvmedic.core.fleet import Fleet
from kvmedic.core.footprint import Footprint
from kvmedic.core.loan import Borrowed
from kvmedic.core.plan import Plan, Step
from kvmedic.core.policy import Mode, Policy, Runbook
from kvmedic.core.preconditions import Purpose, step_refusal
from kvmedic.core.quorum import quorum_line
from kvmedic.core.reasons import Reason
from kvmedic.core.record import Record
from kvmedic.core.resource import Resource
from kvmedic.core.run import Outcome
from kvmedic.findings import Survey
from kvmedic.last_good import in_context
from kvmedic.ports import View
from kvmedic.runbooks import RUNBOOKS
from kvmedic.runbooks.bundle import bundle_plan, turning_plan, unrecorded
from kvmedic.runbooks.capacity import spent_by
from kvmedic.runbooks.compression_fixes import confirmed_first
from kvmedic.runbooks.drained_replica import Past, on_a_replica
from kvmedic.runbooks.fleet_plans import (
    gate_plan,
    replaced_in_vain,
    replacement_of,
    resizing_of,
    rollback_of,
    rolled_back_in_vain,
    scaled_in_vain,
    trial_plan,
    turned_off_in_vain,
)
from kvmedic.runbooks.planning import Fault, Known, Workload, proposal, setting
from kvmedic.runbooks.replica_end import drain_remark
from kvmedic.runbooks.returns import Calm, due, returning
from kvmedic.versions import settable, version_remark

_PASSING = frozenset({Reason.TARGET_NOT_SETTLED, Reason.HANDED_OVER_TWICE})
"""What passes by itself, or is itself about a hand-over."""


def judged(policy: Policy, evidence: Evidence) -> tuple[str, Diagnosis]:
    """Return the first runbook that has something to say, and what it says.

    Where all are content it is the last; what an earlier one noticed is told with it, as is what made it hand
    over. One that cannot tell hands over too: trouble that another one finds does not wait for its answer.

    Raises:
        ValueError: the spec names no runbook.
    """
    found = _first_word(policy, lambda runbook: _said_by(runbook, evidence))
    if found is None:
        raise ValueError("a spec names at least one runbook")
    return found[0], _named(found[1], evidence)


def calm(policy: Policy, evidence: Evidence) -> tuple[str, Diagnosis] | None:
    """Return the same where each runbook's first branches decide; None where a later one has to be asked."""
    found = _first_word(policy, lambda runbook: first_match(first_branches(runbook), evidence))
    return None if found is None else (found[0], _named(found[1], evidence))


def _named(diagnosis: Diagnosis, evidence: Evidence) -> Diagnosis:
    """Return a diagnosis that names the replicas it does not rest on."""
    if not evidence.left_out:
        return diagnosis
    line = quorum_line(len(evidence.burn.pods), evidence.left_out)
    if isinstance(diagnosis, Inconclusive):
        return Inconclusive(diagnosis.reason, f"{diagnosis.message}; {line}")
    return replace(diagnosis, findings=(*diagnosis.findings, Finding("fleet", None, None, None, line)))


def _said_by(runbook: Runbook, evidence: Evidence) -> Diagnosis:
    if runbook is Runbook.COMPRESSION_WITHOUT_SAVINGS and evidence.unanswered is not None:
        return evidence.unanswered
    return diagnose(RUNBOOKS[runbook], evidence)


def _first_word(policy: Policy, ask: Callable[[Runbook], Diagnosis | None]) -> tuple[str, Diagnosis] | None:
    """Return the first runbook that has something to say, else the last; None where one does not answer.

    A runbook that cannot tell has the word only where no later one finds trouble.
    """
    noticed: tuple[Finding, ...] = ()
    found: tuple[str, Diagnosis] | None = None
    unknown: tuple[str, Diagnosis] | None = None
    for runbook in in_order(policy.runbooks):
        said = ask(runbook)
        if said is None:
            return None
        if isinstance(said, Inconclusive):
            unknown = unknown or (str(runbook), said)
            noticed = (*noticed, _left_open(runbook, said))
            continue
        noticed = (*noticed, *said.findings)
        found = str(runbook), replace(said, findings=noticed)
        if said.branch.then is not None:
            return found
    return found if found and unknown and not is_content(found[1]) else unknown or found


def _left_open(runbook: Runbook, said: Inconclusive) -> Finding:
    return Finding("fleet", None, None, None, f"{runbook} cannot go on, {said.reason}: {said.message}")


def first_branches(runbook: Runbook) -> tuple[Branch, ...]:
    """Return a runbook's branches that ask for no change and stand before all that do."""
    return tuple(takewhile(lambda branch: branch.then is None, RUNBOOKS[runbook]))


def in_order(asked: Sequence[Runbook]) -> tuple[Runbook, ...]:
    """Return runbooks as they are asked: that on compression first, before the other one changes anything."""
    return tuple(sorted(asked, key=lambda runbook: runbook is not Runbook.COMPRESSION_WITHOUT_SAVINGS))


def remarked(found: Survey, resource: Resource, policy: Policy) -> Survey:
    """Return the survey of a trouble with what moved since it was healthy, and doubts of its version."""
    diagnosis = in_context(found.diagnosis, resource, found.view, found.evidence)
    if isinstance(diagnosis, Inconclusive) or diagnosis.branch.then is None:
        return found
    doubt = version_remark(found.engine(policy), found.evidence.versions)
    told = (Finding("fleet", None, None, None, doubt),) if doubt else ()
    return replace(found, diagnosis=Diagnosed(diagnosis.branch, (*told, *diagnosis.findings)))


def with_plan(found: Survey, resource: Resource, policy: Policy) -> Survey:
    """Return the survey with the plan that its diagnosis leads to, or with what stands in the way.

    What stands in the way of the runbook on compression keeps the next one from nothing.
    """
    return hand_over_stuck(_with_plan(found, resource, policy), resource, policy)


def hand_over_stuck(found: Survey, resource: Resource, policy: Policy) -> Survey:
    """Return the survey with the next runbook's plan, where that on compression cannot go on.

    As it is where the next one has no plan either, or where what stands in the way passes by itself.
    """
    why = found.obstacle
    if why is None or found.runbook != Runbook.COMPRESSION_WITHOUT_SAVINGS:
        return found
    if why.reason in _PASSING or (found.plan is not None and why.reason is not Reason.TRIAL_IMPOSSIBLE):
        return found
    evidence = with_unanswered(found.evidence, found.diagnosis, why)
    runbook, diagnosis = judged(policy, evidence)
    if runbook == Runbook.COMPRESSION_WITHOUT_SAVINGS:
        return found
    other = remarked(Survey(found.view, evidence, diagnosis, runbook, None, None), resource, policy)
    other = _with_plan(other, resource, policy)
    return found if other.plan is None else other


def with_unanswered(evidence: Evidence, diagnosis: Diagnosis, why: Outcome) -> Evidence:
    """Return evidence that says why the runbook on compression cannot go on, with what it had found."""
    facts = diagnosis.findings if isinstance(diagnosis, Diagnosed) else ()
    told = dict.fromkeys((*(fact.text for fact in facts), why.message))
    return replace(evidence, unanswered=Inconclusive(why.reason, "; ".join(told)))


def _with_plan(found: Survey, resource: Resource, policy: Policy) -> Survey:
    diagnosis, fleet = found.diagnosis, found.view.fleet
    if isinstance(diagnosis, Inconclusive) or diagnosis.branch.then is None:
        return found
    workload = settable(found.engine(policy), found.evidence.versions)
    known = _setting(workload, found, policy, resource.record or Record())
    plan = _plan(found, workload, known, resource, policy)
    if isinstance(plan, NoChange) and plan.passes_on and found.evidence.spent is None:
        return _with_plan(_passed_on(found, plan, known, resource, policy), resource, policy)
    if not isinstance(plan, Plan):
        return _hindered(found, plan.reason, plan.message)
    obstacle = obstacle_to(plan.steps[0], fleet, found.goal)
    return replace(found, plan=_with_remark(plan, workload, policy), obstacle=obstacle)


def _with_remark(plan: Plan, workload: Workload | Fault, policy: Policy) -> Plan:
    """Return a plan that says what becomes of requests whose drain times out."""
    remark = "" if isinstance(workload, Fault) else drain_remark(workload, policy.rollout, plan.steps[0])
    return replace(plan, message=f"{plan.message}; {remark}") if remark else plan


def _passed_on(found: Survey, why: NoChange, known: Setting, resource: Resource, policy: Policy) -> Survey:
    """Return the survey judged anew, once it is known that no lever is left."""
    spent = spent_by(why, known, found.view.fleet.replicas)
    evidence = replace(found.evidence, spent=spent)
    runbook, diagnosis = judged(policy, evidence)
    return remarked(replace(found, evidence=evidence, diagnosis=diagnosis, runbook=runbook), resource, policy)


def due_in(found: Survey, resource: Resource, policy: Policy, now: datetime) -> Footprint | Borrowed | None:
    """Return what to ask of a calm fleet whether it would do without; None: nothing yet."""
    record, diagnosis = resource.record, found.diagnosis
    calm = isinstance(diagnosis, Diagnosed) and diagnosis.reason is Reason.HEALTHY
    if record is None or not calm or (record.footprint is None and not record.borrowed):
        return None
    workload = found.engine(policy)
    return None if isinstance(workload, Fault) else due(record, found.view.fleet, policy, workload, now)


def with_return(found: Survey, resource: Resource, policy: Policy, held: Footprint | Borrowed) -> Survey:
    """Return the survey with the plan that gives back what is due, where the fleet should do without."""
    workload = found.engine(policy)
    if isinstance(workload, Fault):
        return found
    known = _setting(workload, found, policy, resource.record or Record())
    asked = Calm(found.evidence, found.view.fleet, workload, known)
    back = returning(held, asked, resource.generation)
    told = replace(found, outlook=back.outlook)
    match back.plan:
        case Plan(steps=(step, *_)) as plan:
            return replace(told, plan=plan, obstacle=obstacle_to(step, found.view.fleet, Goal.CALM))
        case Fault(reason, message):
            return replace(told, obstacle=Outcome(reason, message))
        case _:
            return told


def _setting(workload: Workload | Fault, found: Survey, policy: Policy, record: Record) -> Setting:
    """Return what advice needs to know; of an engine that cannot be told, only what was tried."""
    fleet, known = found.view.fleet, Setting(None, policy.levers)
    if isinstance(workload, Workload):
        known = setting(workload, policy.levers, Known(record.levers, record.outgrown), found.evidence)
    return replace(
        known,
        replacing_failed=replaced_in_vain(record.replacements, fleet),
        rollback_allowed=policy.rollback.is_allowed,
        rollback_failed=rolled_back_in_vain(record.rollbacks, fleet),
        kept_on=turned_off_in_vain(record.bundles, fleet),
        scale_out=policy.scale_out,
        scaling_failed=scaled_in_vain(record.scalings, fleet),
        before_scaling=record.footprint.fewest if record.footprint else None,
        is_our_cap=record.sized is not None and record.sized.is_open_on(fleet.revision),
    )


def _plan(
    found: Survey, workload: Workload | Fault, known: Setting, resource: Resource, policy: Policy
) -> Plan | Fault | NoChange:
    """Return the plan that the diagnosis leads to, or why there is none.

    A replica can be replaced whatever runs in it, and a revision rolled back; a setting needs an engine that
    is known.
    """
    advice = _advice(found, workload, known, resource.generation)
    if isinstance(advice, TurnOff) and policy.mode is Mode.AUTO:
        advice = confirmed_first(found.evidence, advice)
    if isinstance(advice, RollBack):
        return rollback_of(policy.target, found.view.fleet, advice, resource.generation)
    if isinstance(advice, Relief):
        return replacement_of(policy.target, found.view.fleet, advice, resource.generation)
    if isinstance(advice, Resize):
        return resizing_of(policy.target, found.view.fleet, advice, resource.generation)
    if isinstance(advice, Try | Evaluate):
        return _tried(workload, found, advice, resource, policy)
    if isinstance(advice, TurnOff | TurnOn):
        return _turned(workload, found, advice, known, resource.generation)
    return advice


def _advice(
    found: Survey, workload: Workload | Fault, known: Setting, generation: int
) -> Plan | Fault | Beyond | NoChange:
    """Return what the diagnosed branch asks for; of a setting the plan itself."""
    if isinstance(found.diagnosis, Inconclusive) or found.diagnosis.branch.then is None:
        return NoChange(found.diagnosis.reason, "")
    advise = found.diagnosis.branch.then
    if isinstance(workload, Workload):
        return proposal(workload, advise, found.evidence, known, generation)
    told = advise(found.evidence, known)
    return told if isinstance(told, Relief | RollBack) else NoChange(workload.reason, workload.message)


def _tried(
    workload: Workload | Fault, found: Survey, advice: Try | Evaluate, resource: Resource, policy: Policy
) -> Plan | Fault:
    """Return the plan that asks a trial pod or a replica in its place, or lets a Job evaluate one."""
    fleet, record = found.view.fleet, resource.record or Record()
    if isinstance(advice, Evaluate):
        return gate_plan(workload, fleet, advice, resource.generation)
    plan = trial_plan(workload, fleet, policy.source, advice, resource.generation)
    if isinstance(plan, Fault):
        return plan
    past = Past(record.history, found.diagnosis.reason, found.evidence.burn.at)
    return on_a_replica(plan, fleet, policy, past)


def _turned(
    workload: Workload | Fault, found: Survey, advice: TurnOff | TurnOn, known: Setting, generation: int
) -> Plan | Fault | NoChange:
    """Return the plan that turns a method off or on, unless that was tried on this pod template in vain."""
    if isinstance(workload, Fault):
        return workload
    if isinstance(advice, TurnOn):
        return turning_plan(workload, advice, generation)
    if advice.method in known.kept_on:
        text = f"{advice.method} was turned off on this pod template, and had to be turned on again"
        return NoChange(Reason.LEVER_EXHAUSTED, text)
    if doubt := unrecorded(workload, advice.settings, found.view.templates.values()):
        return Fault(Reason.FLAG_NOT_EDITABLE, f"{advice.method} is not turned off: {doubt}")
    return bundle_plan(workload, advice, generation)


def with_shown_plan(found: Survey, resource: Resource, policy: Policy) -> Survey:
    """Return the survey with the plan that a person may be about to approve, while it stands.

    Evidence that says nothing for a moment does not take it away; it is not carried out then either.
    """
    shown = resource.record.plan if resource.record else None
    plan = shown.bound if shown else None
    if policy.mode is not Mode.APPROVE or plan is None:
        return found
    if found.plan is not None:
        return replace(found, plan=plan) if stands(plan, found.plan) else found
    if not isinstance(found.diagnosis, Inconclusive) or not _is_bound(plan, found.view, resource):
        return found
    return replace(found, plan=plan, obstacle=Outcome(found.diagnosis.reason, found.diagnosis.message))


def _is_bound(plan: Plan, view: View, resource: Resource) -> bool:
    """Return whether a plan was made for the target, its template and the spec as they are now."""
    made_for = (plan.target_uid, plan.template, plan.spec_generation)
    return made_for == (view.fleet.uid, view.fleet.revision, resource.generation)


def obstacle_to(step: Step, fleet: Fleet, goal: Goal) -> Outcome | None:
    """Return why a plan's first step cannot begin on the fleet as it is, or None.

    Only a change that is to keep replicas up does not need the fleet whole. Giving something back is a change
    like any other, which an owner who came meanwhile would revert.
    """
    purpose = Purpose.MENDING if goal is Goal.STEADINESS else Purpose.RELIEF
    refused = step_refusal(fleet, step, purpose)
    return Outcome(refused.reason, refused.message) if refused else None


def _hindered(found: Survey, reason: Reason, message: str) -> Survey:
    return Survey(found.view, found.evidence, found.diagnosis, found.runbook, None, Outcome(reason, message))
