"""From advice that is no matter of one setting to a plan: another replica, revision or number of replicas.

Which of them was tried on this very fleet and did not help is told here too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from kvmedic.core.bundle import BundleEdit
from kvmedic.core.diagnosis import Relief, Resize, RollBack
from kvmedic.core.fixing import Evaluate, Try
from kvmedic.core.fleet import Fleet
from kvmedic.core.footprint import Footprint, returning_step
from kvmedic.core.gating import GateStep
from kvmedic.core.plan import ObjectRef, Plan, ReplaceStep, RevisionStep, ScaleStep, Step
from kvmedic.core.policy import TargetRef
from kvmedic.core.reasons import Reason
from kvmedic.core.record import TriedBundle, TriedReplacement, TriedRollback, TriedScaling
from kvmedic.core.template import template_hash
from kvmedic.core.trialling import Question, TrialStep
from kvmedic.runbooks.bundle import edited
from kvmedic.runbooks.planning import Fault, Workload, with_template
from kvmedic.runbooks.whole_prompts import whole_prompts


def replaced_in_vain(tried: Sequence[TriedReplacement], fleet: Fleet) -> bool:
    """Return whether replacing a replica of this very fleet is on record as no help."""
    return any((one.revision, one.replicas) == (fleet.revision, fleet.replicas) for one in tried)


def replacement_of(target: TargetRef, fleet: Fleet, advice: Relief, generation: int) -> Plan | Fault:
    """Return the plan that replaces one replica of a fleet, or why it cannot be carried out."""
    pod = next((pod for pod in fleet.live if pod.name == advice.pod), None)
    if pod is None:
        return Fault(Reason.TARGET_NOT_SETTLED, f"{advice.pod} is gone: there is nothing to replace")
    step = ReplaceStep(
        target=ObjectRef(target.kind, target.name),
        container=target.container,
        pod=pod.name,
        uid=pod.uid,
        replicas=fleet.replicas,
        template=fleet.revision,
        reason=advice.reason,
    )
    return plan_for(fleet, step, advice, generation)


def resizing_of(target: TargetRef, fleet: Fleet, advice: Resize, generation: int) -> Plan:
    """Return the plan that gives a fleet another number of replicas."""
    step = ScaleStep(
        target=ObjectRef(target.kind, target.name),
        container=target.container,
        before=fleet.replicas,
        after=advice.replicas,
        template=fleet.revision,
        reason=advice.reason,
    )
    return plan_for(fleet, step, advice, generation)


def returning_of(fleet: Fleet, held: Footprint, advice: Resize, generation: int) -> Plan:
    """Return the plan that gives back what was added for a while, so far as advice says."""
    step = returning_step(held, advice.replicas, fleet.revision)
    return plan_for(fleet, step, advice, generation)


def trial_plan(
    workload: Workload | Fault, fleet: Fleet, source: str, advice: Try, generation: int
) -> Plan | Fault:
    """Return the plan that asks a trial pod of a setting, or why it cannot be carried out.

    Args:
        workload: the target's engine.
        fleet: as it is.
        source: the metrics source that tells of its devices.
        advice: what is asked.
        generation: of the spec.
    """
    if isinstance(workload, Fault):
        return workload
    of_prompts = advice.question is Question.PROMPTS
    change = _on_trial(workload, advice)
    if isinstance(change, Fault):
        return change
    step = TrialStep(
        target=workload.target,
        container=str(workload.container.get("name")),
        question=advice.question,
        method=advice.method,
        tokens=advice.tokens,
        keep=advice.keep,
        limit_seconds=int(advice.limit.total_seconds()),
        template=fleet.revision,
        reason=advice.reason,
        change=change,
        tried=template_hash(change.apply(workload.template)) if change else "",
        source=source if of_prompts else "",
        without=bool(advice.off),
    )
    return plan_for(fleet, step, advice, generation)


def _on_trial(workload: Workload, advice: Try) -> BundleEdit | Fault | None:
    """Return what differs on a trial pod; None: nothing."""
    change = advice.change
    if advice.off:
        off = edited(workload, advice.off[::-1])
        if isinstance(off, Fault):
            text = f"{advice.method} cannot be turned off as a whole, on a trial pod either: {off.message}"
            other = "; or give spec.compression.baseline.blocks" if advice.question is Question.START else ""
            return Fault(off.reason, text + other)
        if off is None:
            return Fault(Reason.TRIAL_IMPOSSIBLE, f"{advice.method} is off already, by all of its settings")
        change = off.change
    if advice.question is not Question.PROMPTS:
        return change
    subject = with_template(workload, change.apply(workload.template)) if change else workload
    whole = subject if isinstance(subject, Fault) else whole_prompts(subject, advice.tokens)
    if isinstance(whole, Fault) or whole is None:
        return whole or change
    return BundleEdit((*(change.parts if change else ()), *whole.parts))


def gate_plan(workload: Workload | Fault, fleet: Fleet, advice: Evaluate, generation: int) -> Plan | Fault:
    """Return the plan that lets a team's Job evaluate a trial pod, or why it cannot be carried out."""
    if isinstance(workload, Fault):
        return workload
    step = GateStep(
        target=workload.target,
        container=str(workload.container.get("name")),
        subject=advice.subject,
        change=advice.change,
        tried=advice.tried,
        cron_job=advice.cron_job,
        evaluation=advice.evaluation,
        budget=advice.budget,
        cache_types=advice.cache_types,
        limit_seconds=int(advice.limit.total_seconds()),
        template=fleet.revision,
        reason=advice.reason,
    )
    return plan_for(fleet, step, advice, generation)


_SameSetting: TypeAlias = Relief | RollBack | Resize | Try | Evaluate


def plan_for(fleet: Fleet, step: Step, advice: _SameSetting, generation: int) -> Plan:
    """Return the plan of one step that changes no setting of its own."""
    return Plan(
        steps=(step,),
        target_uid=fleet.uid,
        template=fleet.revision,
        spec_generation=generation,
        reason=advice.reason,
        message=advice.message,
    )


def rolled_back_in_vain(tried: Sequence[TriedRollback], fleet: Fleet) -> bool:
    """Return whether taking a fleet back from this very revision is on record as no help."""
    return any(one.revision == fleet.revision for one in tried)


def turned_off_in_vain(tried: Sequence[TriedBundle], fleet: Fleet) -> frozenset[str]:
    """Return the methods that were turned off on this very pod template, which is on record as no help."""
    return frozenset(one.method for one in tried if one.revision == fleet.revision)


def rollback_of(target: TargetRef, fleet: Fleet, advice: RollBack, generation: int) -> Plan:
    """Return the plan that takes a fleet back to another of its revisions."""
    step = RevisionStep(
        target=ObjectRef(target.kind, target.name),
        container=target.container,
        before=advice.before,
        after=advice.after,
        reason=advice.reason,
    )
    return plan_for(fleet, step, advice, generation)


def scaled_in_vain(tried: Sequence[TriedScaling], fleet: Fleet) -> bool:
    """Return whether more replicas than this very fleet has are on record as no help."""
    return any((one.revision, one.before) == (fleet.revision, fleet.replicas) for one in tried)
