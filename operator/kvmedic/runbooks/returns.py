"""What is there for a while, given back: whose turn it is, whether the fleet does without, and the plan."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from kvmedic.core.diagnosis import RESTORE_AFTER, Assignment, Evidence, NoChange, Setting
from kvmedic.core.fleet import Fleet
from kvmedic.core.footprint import Footprint, is_held
from kvmedic.core.loan import Borrowed, Tenure, tenure_of
from kvmedic.core.plan import FlagStep, Plan
from kvmedic.core.policy import Policy
from kvmedic.core.reasons import Reason
from kvmedic.core.record import Record
from kvmedic.core.template import template_hash
from kvmedic.manifests.refusal import Refusal
from kvmedic.manifests.removal import removed
from kvmedic.runbooks.fleet_plans import returning_of
from kvmedic.runbooks.offload import KNOBS
from kvmedic.runbooks.outlook import fewer_replicas, without_host_memory
from kvmedic.runbooks.planning import Fault, Workload, fault_of, plan_of, shown


@dataclass(frozen=True, slots=True)
class Calm:
    """A calm fleet that is asked whether it would do with less."""

    evidence: Evidence
    """Both looks at it."""
    fleet: Fleet
    workload: Workload
    """The engine in its pod template."""
    setting: Setting


@dataclass(frozen=True, slots=True)
class Returning:
    """What becomes of something that is there for a while."""

    outlook: str
    """Whether the fleet does without it, for people."""
    plan: Plan | Fault | None = None
    """What gives it back, or why that cannot be carried out; None: it stays."""


def due(
    record: Record, fleet: Fleet, policy: Policy, workload: Workload | Fault, now: datetime
) -> Footprint | Borrowed | None:
    """Return what may be given back now, if the fleet does without it; None: nothing.

    Replicas go first: they cost the most, and another pod template would hide what they are measured by.
    """
    replicas = record.footprint
    if replicas is not None and is_held(replicas, fleet):
        after = policy.scale_out.restore_after if policy.scale_out else RESTORE_AFTER
        return replicas if replicas.is_due(after, now) else None
    for lent in record.borrowed:
        ours = tenure(lent, fleet.uid, workload) is Tenure.OURS
        if ours and lent.is_due(restore_after(policy), now):
            return lent
    return None


def restore_after(policy: Policy) -> timedelta:
    """Return how long it must have been calm before host memory is given back, whichever flag has it."""
    return next((one.restore_after for one in policy.levers if one.knob in KNOBS), RESTORE_AFTER)


def tenure(lent: Borrowed, target_uid: str, workload: Workload | Fault) -> Tenure:
    """Return whose a flag is that was lent."""
    if target_uid != lent.target_uid:
        return Tenure.THEIRS
    if isinstance(workload, Fault):
        return Tenure.UNKNOWN
    given = workload.given(lent.knob)
    if given is None and workload.flags.config is not None:
        return Tenure.UNKNOWN
    return tenure_of(lent, target_uid, given)


def returning(held: Footprint | Borrowed, asked: Calm, generation: int) -> Returning:
    """Return what becomes of something that is due; `generation`: of the spec."""
    evidence, fleet, setting = asked.evidence, asked.fleet, asked.setting
    match held:
        case Footprint():
            advice = fewer_replicas(evidence, held, setting, fleet.revision)
            if isinstance(advice, NoChange):
                return Returning(advice.message)
            return Returning(advice.message, returning_of(fleet, held, advice, generation))
        case Borrowed():
            found = without_host_memory(evidence, held, setting, fleet.revision)
            if isinstance(found, NoChange):
                return Returning(found.message)
            plan = loan_return(asked.workload, held, found.message, generation)
            return Returning(found.message, plan)


def loan_return(workload: Workload, lent: Borrowed, message: str, generation: int) -> Plan | Fault:
    """Return the plan that puts a flag's recorded value back, or why it cannot be carried out."""
    reason = Reason.HOST_MEMORY_GIVEN_BACK
    if lent.before is not None:
        return plan_of(workload, Assignment(lent.knob, lent.before, reason, message), generation)
    step = _removal(workload, lent)
    if isinstance(step, Fault):
        return step
    return Plan((step,), workload.target_uid, step.before_template, generation, reason, message)


def _removal(workload: Workload, lent: Borrowed) -> FlagStep | Fault:
    flag = workload.engine.profile.flag(lent.knob)
    if flag is None:
        return Fault(Reason.FLAG_UNKNOWN_TO_ENGINE, f"{workload.engine.profile.name} has no {lent.knob}")
    change = removed(workload.container, workload.container_index, flag, workload.engine)
    if isinstance(change, Refusal):
        return fault_of(change)
    return FlagStep(
        target=workload.target,
        knob=lent.knob,
        edit=change,
        before=shown(workload.given(lent.knob)),
        after=None,
        before_template=template_hash(workload.template),
        after_template=template_hash(change.apply(workload.template)),
        reason=Reason.HOST_MEMORY_GIVEN_BACK,
    )
