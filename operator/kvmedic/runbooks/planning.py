"""From advice to a plan: which token of which container, and its exact inverse."""

from __future__ import annotations

from dataclasses import replace

from kvmedic.manifests.engine_file import Configuration, edit_file
from kvmedic.manifests.flags import AlreadySet, edit, setting_of
from kvmedic.manifests.flags import Setting as FlagSetting
from kvmedic.manifests.refusal import Refusal, RefusalReason
from kvmedic.model.edits import TokenEdit
from kvmedic.model.engine import Scalar
from kvmedic.model.evidence import Blocked
from kvmedic.model.fleet import template_hash
from kvmedic.model.plan import FlagStep, Plan
from kvmedic.model.reasons import Reason
from kvmedic.runbooks.branches import Adviser, Assignment, Beyond, Evidence, NoChange, Setting
from kvmedic.runbooks.workload import Workload, fault_of


def proposal(
    workload: Workload, advise: Adviser, evidence: Evidence, known: Setting, generation: int
) -> Plan | Beyond | NoChange:
    """Return the plan that advice leads to, or why there is none; advice that is no matter of one setting.

    A lever that this engine or its command line does not let be set is told to the adviser, which may
    know another one.
    """
    for _ in range(len(known.levers) + 1):
        advice = advise(evidence, known)
        if isinstance(advice, NoChange | Beyond):
            return advice
        plan = plan_of(workload, advice, generation)
        if isinstance(plan, Plan):
            return plan
        why = NoChange(plan.reason, f"{advice.knob} {advice.value} cannot be set: {plan.message}")
        known = replace(known, refused={**known.refused, advice.knob: why})
    return why


def plan_of(workload: Workload, advice: Assignment, generation: int) -> Plan | Blocked:
    """Return the plan that carries out one piece of advice, or why it cannot be carried out."""
    step = _step(workload, advice)
    if isinstance(step, Blocked):
        return step
    return Plan(
        steps=(step,),
        target_uid=workload.target_uid,
        template=step.before_template,
        spec_generation=generation,
        reason=advice.reason,
        message=advice.message,
    )


def _step(workload: Workload, advice: Assignment) -> FlagStep | Blocked:
    flag = workload.engine.profile.flag(advice.knob)
    if flag is None:
        return Blocked(Reason.FLAG_UNKNOWN_TO_ENGINE, f"{workload.engine.profile.name} has no {advice.knob}")
    wanted = setting_of(flag, advice.value, workload.engine)
    if isinstance(wanted, Refusal):
        return fault_of(wanted)
    file = workload.file
    if isinstance(file, Configuration):
        given = file.read.decides(flag, workload.line)
        if given is not None:
            same = given.value == wanted.value
            return _already(wanted) if same else _config_step(workload, file, wanted, advice)
    return _flag_step(workload, wanted, advice)


def _already(wanted: FlagSetting) -> Blocked:
    return Blocked(Reason.CAP_WITHOUT_EFFECT, f"{wanted.flag.name} is {wanted.text} already")


def _config_step(
    workload: Workload, file: Configuration, wanted: FlagSetting, advice: Assignment
) -> FlagStep | Blocked:
    change = edit_file(file, wanted, workload.engine, workload.container, workload.target_uid)
    if isinstance(change, Refusal):
        return fault_of(change)
    return FlagStep(
        target=workload.target,
        container=str(workload.container.get("name")),
        knob=advice.knob,
        edit=change.reference,
        file_of=change.file,
        before=as_written(workload.given(advice.knob)),
        after=wanted.text,
        before_template=template_hash(workload.template),
        after_template=template_hash(change.reference.apply(workload.template)),
        reason=advice.reason,
    )


def _flag_step(workload: Workload, wanted: FlagSetting, advice: Assignment) -> FlagStep | Blocked:
    file = workload.file
    index, read = workload.container_index, workload.in_file
    change = edit(workload.container, index, wanted, workload.engine, read, workload.line)
    match change:
        case Refusal(RefusalReason.IN_CONFIG_FILE) if isinstance(file, Refusal):
            return fault_of(Refusal(file.reason, f"{wanted.flag.dest} may be in a file: {file.message}"))
        case Refusal():
            return fault_of(change)
        case AlreadySet():
            return _already(wanted)
        case TokenEdit():
            before = workload.given(advice.knob)
            return FlagStep(
                target=workload.target,
                container=change.container,
                knob=advice.knob,
                edit=change,
                before=None if before is None else as_written(before),
                after=wanted.text,
                before_template=template_hash(workload.template),
                after_template=template_hash(change.apply(workload.template)),
                reason=advice.reason,
            )


def as_written(value: Scalar) -> str:
    """Return a value as it is written on a command line."""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value).lower() if isinstance(value, bool) else str(value)
