"""Evidence that somebody collected, judged without a cluster: the same stages as a survey, no fleet.

What a cluster would add is missing on purpose: whether the fleet can be changed safely right now.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvmedic.controller.plans import judge_runbooks, with_unanswered
from kvmedic.engines.engine_log import phrases
from kvmedic.model.evidence import Inconclusive
from kvmedic.model.plan import Plan
from kvmedic.model.run import Outcome
from kvmedic.model.spec import Policy, Runbook
from kvmedic.runbooks.branches import Assignment, Beyond, Diagnosis, Evidence, NoChange, Setting, TurnOff
from kvmedic.runbooks.compression.bundle import bundle_plan
from kvmedic.runbooks.compression.methods import compressed_of, eviction_of
from kvmedic.runbooks.planning import Fault, Workload, proposal
from kvmedic.runbooks.preemption.capacity import spent_by
from kvmedic.runbooks.preemption.present import Known, present_setting

_FIRST_GENERATION = 1
"""A manifest has no generation; nobody approves an offline plan by its digest."""


@dataclass(frozen=True, slots=True)
class Consultation:
    """What the evidence says, and what would be set."""

    evidence: Evidence
    runbook: str
    diagnosis: Diagnosis
    advice: Assignment | Beyond | None
    """What the branch asks for; None where it asks for nothing."""
    plan: Plan | None
    """The advice on the workload's own command line; None without a workload."""
    obstacle: Outcome | None
    """Why nothing would be set although a branch applies."""


def consult(evidence: Evidence, policy: Policy, workload: Workload | Fault | None) -> Consultation:
    """Return the diagnosis of the evidence and the plan that would follow.

    Args:
        evidence: both looks.
        policy: the spec.
        workload: the engine's command line; None where nobody gave it, a fault where it cannot be read.
    """
    found = _consult_runbook(evidence, policy, workload)
    why = found.obstacle
    if why is None or found.runbook != Runbook.COMPRESSION_WITHOUT_SAVINGS:
        return found
    other = _consult_runbook(with_unanswered(found.evidence, found.diagnosis, why), policy, workload)
    return found if other.plan is None and other.advice is None else other


def _consult_runbook(evidence: Evidence, policy: Policy, workload: Workload | Fault | None) -> Consultation:
    evidence = with_method(evidence, policy, workload)
    runbook, diagnosis = judge_runbooks(policy, evidence)
    found = Consultation(evidence, runbook, diagnosis, None, None, None)
    if isinstance(diagnosis, Inconclusive) or diagnosis.branch.then is None:
        return found
    known = _known_setting(evidence, policy, workload)
    if isinstance(workload, Workload):
        plan = proposal(workload, diagnosis.branch.then, evidence, known, _FIRST_GENERATION)
        if isinstance(plan, TurnOff):
            return _turned_off(replace(found, advice=plan), workload, plan)
        if isinstance(plan, NoChange):
            return _without_lever(found, plan, known, policy, workload)
        return replace(found, plan=plan) if isinstance(plan, Plan) else replace(found, advice=plan)
    advice = diagnosis.branch.then(evidence, known)
    if isinstance(advice, NoChange):
        return _without_lever(found, advice, known, policy, workload)
    if workload is None or not isinstance(advice, Assignment | TurnOff):
        return replace(found, advice=advice)
    why = f"{_wish(advice)}: {workload.message}"
    return replace(_find_hindrance(found, NoChange(workload.reason, why)), advice=advice)


def _wish(advice: Assignment | TurnOff) -> str:
    """Return what cannot be done where an engine's command line cannot be read."""
    if isinstance(advice, TurnOff):
        return f"{advice.method} cannot be turned off"
    return f"{advice.knob} {advice.value} cannot be set"


def _turned_off(found: Consultation, workload: Workload, advice: TurnOff) -> Consultation:
    """Return what comes of the advice to turn a method off."""
    plan = bundle_plan(workload, advice, _FIRST_GENERATION)
    if isinstance(plan, Plan):
        return replace(found, plan=plan)
    return _find_hindrance(found, NoChange(plan.reason, plan.message))


def with_method(evidence: Evidence, policy: Policy, workload: Workload | Fault | None) -> Evidence:
    """Return evidence with the method that compresses the KV cache, as far as anything tells of one.

    Where nobody gave the workload, or it cannot be read, labels and start-up logs alone tell.
    """
    told, log = workload if isinstance(workload, Workload) else None, phrases(evidence.started)
    method = compressed_of(told, policy.compression, (), evidence.burn, log)
    return replace(evidence, evicts=eviction_of(told, log) if told else None, compression=method)


def _known_setting(evidence: Evidence, policy: Policy, workload: Workload | Fault | None) -> Setting:
    """Return what advice needs to know of the present setting."""
    known = Setting(None, policy.levers)
    if isinstance(workload, Workload):
        known = present_setting(workload, policy.levers, Known(), evidence)
    return replace(known, scale_out=policy.scale_out)


def _without_lever(
    found: Consultation, why: NoChange, known: Setting, policy: Policy, workload: Workload | Fault | None
) -> Consultation:
    """Return what follows where no lever applies: the branches for that, once each was asked."""
    if not why.passes_on or found.evidence.spent is not None:
        return _find_hindrance(found, why)
    spent = spent_by(why, known, len(found.evidence.burn.pods))
    return _consult_runbook(replace(found.evidence, spent=spent), policy, workload)


def _find_hindrance(found: Consultation, why: NoChange) -> Consultation:
    return replace(found, obstacle=Outcome(why.reason, why.message))
