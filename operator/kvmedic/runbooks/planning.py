"""From advice to a plan: which token of which container, or which replica, revision or number of replicas.

What becomes of requests that are in flight when a replica is ended is part of a plan's message. Source: vLLM
0.32 (measured). At SIGTERM it aborts what is in flight within two seconds, whatever the grace period, unless
it runs with `--shutdown-timeout` (0.18 and newer). The kubelet runs preStop first, and kills the container
when the grace period is over, which began with preStop.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import assert_never

from kvmedic.manifests.engine_file import Configuration, edit_file
from kvmedic.manifests.errors import ErrorReason, ManifestError
from kvmedic.manifests.flags import AlreadySet, edit, remove_flag, setting_of
from kvmedic.manifests.flags import Setting as FlagSetting
from kvmedic.model.config_edits import FileEdit
from kvmedic.model.edits import ReferenceEdit, TokenEdit
from kvmedic.model.engine import Flag, Knob, Presence, Scalar
from kvmedic.model.evidence import Blocked
from kvmedic.model.fleet import Fleet, ObjectRef, template_hash
from kvmedic.model.plan import (
    BundleStep,
    EvaluationStep,
    FlagStep,
    Plan,
    ReplaceStep,
    ReplicasStep,
    RevisionStep,
    Step,
    TrialStep,
)
from kvmedic.model.reasons import Reason
from kvmedic.model.spec import OnDrainTimeout, RolloutPolicy, TargetRef
from kvmedic.runbooks.branches import (
    Adviser,
    Assignment,
    Beyond,
    Evaluate,
    Evidence,
    NoChange,
    Relief,
    Resize,
    RollBack,
    Setting,
    Try,
)
from kvmedic.runbooks.workload import Workload, explain_manifest_error

GRACE_SECONDS = 30
"""`terminationGracePeriodSeconds` where the pod template does not say (Kubernetes API)."""


def proposal(
    workload: Workload, advise: Adviser, evidence: Evidence, known: Setting, generation: int
) -> Plan | Beyond | NoChange:
    """Return the plan that advice leads to, or why there is none; advice that is no matter of one setting.

    A lever that this engine or its command line does not let be set is reported to the adviser, which may
    know another one.
    """
    for _ in range(len(known.levers) + 1):
        advice = advise(evidence, known)
        if isinstance(advice, NoChange | Beyond):
            return advice
        plan = plan_of(workload, advice, generation)
        if isinstance(plan, Plan):
            return plan
        what = "(engine default)" if advice.value is None else advice.value
        why = NoChange(plan.reason, f"{advice.knob} {what} cannot be set: {plan.message}")
        known = replace(known, refused={**known.refused, advice.knob: why})
    return why


def plan_of(workload: Workload, advice: Assignment, generation: int) -> Plan | Blocked:
    """Return the plan that sets one knob, or takes its flag away, or why it cannot be carried out."""
    step = _set_flag(workload, advice)
    if isinstance(step, Blocked):
        return step
    made_for = workload.target_uid, step.before_template
    return Plan((step,), *made_for, generation, step.reason, advice.message)


def _set_flag(workload: Workload, advice: Assignment) -> FlagStep | Blocked:
    if advice.value is None:
        return _unset_flag(workload, advice.knob, advice.reason)
    flag = _flag(workload, advice.knob)
    if isinstance(flag, Blocked):
        return flag
    desired = setting_of(flag, advice.value, workload.engine)
    if isinstance(desired, ManifestError):
        return explain_manifest_error(desired)
    already = Blocked(Reason.CAP_WITHOUT_EFFECT, f"{desired.flag.name} is {desired.text} already")
    file = workload.file
    given = file.read.decides(flag, workload.line) if isinstance(file, Configuration) else None
    if isinstance(file, Configuration) and given is not None:
        return already if given.value == desired.value else _edit_file(workload, file, desired, advice)
    index, read = workload.container_index, workload.in_file
    change = edit(workload.container, index, desired, workload.engine, read, workload.line)
    if isinstance(change, ManifestError):
        if change.reason is ErrorReason.IN_CONFIG_FILE and isinstance(file, ManifestError):
            change = ManifestError(file.reason, f"{desired.flag.dest} may be in a file: {file.message}")
        return explain_manifest_error(change)
    if isinstance(change, AlreadySet):
        return already
    return _flag_step(workload, advice.knob, change, desired.text, advice.reason)


def _edit_file(
    workload: Workload, file: Configuration, desired: FlagSetting, advice: Assignment
) -> FlagStep | Blocked:
    change = edit_file(file, desired, workload.engine, workload.container, workload.target_uid)
    if isinstance(change, ManifestError):
        return explain_manifest_error(change)
    return _flag_step(workload, advice.knob, change.reference, desired.text, advice.reason, change.file)


def _unset_flag(workload: Workload, knob: Knob, reason: Reason) -> FlagStep | Blocked:
    """Return the step that takes a flag off the command line, or why it cannot be carried out."""
    flag = _flag(workload, knob)
    if isinstance(flag, Blocked):
        return flag
    index = workload.container_index
    change = remove_flag(workload.container, index, flag, workload.engine, workload.line)
    return (
        explain_manifest_error(change)
        if isinstance(change, ManifestError)
        else _flag_step(workload, knob, change, None, reason)
    )


def _flag(workload: Workload, knob: Knob) -> Flag | Blocked:
    profile = workload.engine.profile
    return profile.flag(knob) or Blocked(Reason.FLAG_UNKNOWN_TO_ENGINE, f"{profile.name} has no {knob}")


def _flag_step(
    workload: Workload,
    knob: Knob,
    change: TokenEdit | ReferenceEdit,
    after: str | None,
    reason: Reason,
    file_of: FileEdit | None = None,
) -> FlagStep:
    before = workload.value_of(knob)
    return FlagStep(
        target=workload.target,
        container=str(workload.container.get("name")),
        knob=knob,
        edit=change,
        file_of=file_of,
        before=None if before is None else as_written(before),
        after=after,
        before_template=template_hash(workload.template),
        after_template=template_hash(change.apply(workload.template)),
        reason=reason,
    )


def as_written(value: Scalar) -> str:
    """Return a value as it is written on a command line."""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def fleet_plan(
    target: TargetRef, fleet: Fleet, advice: Relief | Resize | RollBack, generation: int
) -> Plan | Blocked:
    """Return the plan for another replica, number of replicas or revision, or why there is none."""
    ref = ObjectRef(target.kind, target.name)
    step: Step
    match advice:
        case Relief(name, reason):
            pod = next((pod for pod in fleet.live if pod.name == name), None)
            if pod is None:
                return Blocked(Reason.TARGET_NOT_SETTLED, f"{name} is gone: there is nothing to replace")
            step = ReplaceStep(ref, target.container, name, pod.uid, fleet.replicas, fleet.revision, reason)
        case Resize(replicas, reason):
            step = ReplicasStep(ref, target.container, fleet.replicas, replicas, fleet.revision, reason)
        case RollBack(before, after, reason):
            step = RevisionStep(ref, target.container, before, after, reason)
    return plan_for(fleet, step, advice, generation)


def plan_for(
    fleet: Fleet, step: Step, advice: Relief | RollBack | Resize | Try | Evaluate, generation: int
) -> Plan:
    """Return the plan of one step that changes no setting of its own."""
    return Plan((step,), fleet.uid, fleet.revision, generation, advice.reason, advice.message)


def drain_remark(workload: Workload, rollout: RolloutPolicy, step: Step) -> str:
    """Return what a step does to requests whose drain times out; empty where it drains nobody for good."""
    match step:
        case FlagStep() | BundleStep() | RevisionStep() | ReplaceStep() | ReplicasStep():
            end = end_of_requests(workload)
            if rollout.on_drain_timeout is OnDrainTimeout.HOLD:
                return f"a replica whose drain times out is not ended (onDrainTimeout: Hold); {end}"
            return f"a replica whose drain times out is ended all the same (onDrainTimeout: Proceed); {end}"
        case TrialStep() | EvaluationStep():
            return ""
        case _:
            assert_never(step)


def end_of_requests(workload: Workload) -> str:
    """Return what becomes of requests that a replica still has when it is ended, in one clause."""
    known = workload.engine.profile.flag(Knob.SHUTDOWN_TIMEOUT)
    if known is None or workload.engine.presence(known) is Presence.ABSENT:
        return "this engine aborts requests in flight when a replica is ended (it has no --shutdown-timeout)"
    if Knob.SHUTDOWN_TIMEOUT in workload.unknown_knobs():
        return f"nobody knows for how long requests are finished ({known.name} comes from a variable)"
    timeout = workload.value_of(Knob.SHUTDOWN_TIMEOUT)
    if not isinstance(timeout, int | float) or timeout <= 0:
        return (
            "the engine aborts requests in flight when a replica is ended (--shutdown-timeout is not given)"
        )
    grace = _part(workload.template, "spec").get("terminationGracePeriodSeconds")
    grace = grace if isinstance(grace, int) else GRACE_SECONDS
    hook = _part(_part(workload.container, "lifecycle"), "preStop")
    sleep = _part(hook, "sleep").get("seconds") if hook else 0
    if not isinstance(sleep, int):
        return (
            f"the engine finishes requests for {timeout:g} s when a replica is ended, if preStop leaves them"
        )
    if sleep + timeout >= grace:
        text = f"preStop {sleep} s + --shutdown-timeout {timeout:g} s do not fit into"
        return f"requests in flight may be cut off when a replica is ended: {text} {grace} s of grace period"
    return f"the engine finishes requests in flight for {timeout:g} s when a replica is ended"


def _part(whole: Mapping[str, object], name: str) -> Mapping[str, object]:
    found = whole.get(name)
    return found if isinstance(found, Mapping) else {}
