"""From advice that is no matter of one setting to a plan: another replica, revision or number of replicas.

How many of a fleet's replicas must be pressured for which change, and a change for some of them alone.

All replicas have one pod template, so what a change costs the calm ones decides how many must be pressured.

What becomes of requests that are in flight when a replica is ended: known before its first step.

Source: vLLM 0.32 (FACTS of the project, measured). At SIGTERM it aborts what is in flight within two seconds,
whatever the grace period, unless it runs with `--shutdown-timeout` (0.18 and newer). The kubelet runs preStop
first, and kills the container when the grace period is over, which began with preStop.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import ceil
from typing import TypeAlias

from kvmedic.model.engine import Knob, Presence
from kvmedic.model.evidence import Blocked, PodReadings, Signal
from kvmedic.model.fleet import Fleet, ObjectRef
from kvmedic.model.plan import Plan, ReplaceStep, ReplicasStep, RevisionStep, Step
from kvmedic.model.readings import number_or_none
from kvmedic.model.reasons import Reason
from kvmedic.model.spec import OnDrainTimeout, RolloutPolicy, TargetRef
from kvmedic.model.trial import GateStep, TrialStep
from kvmedic.runbooks.branches import (
    Assignment,
    Evaluate,
    NoChange,
    Relief,
    Resize,
    RollBack,
    Setting,
    SettingAdvice,
    Try,
)
from kvmedic.runbooks.preemption.levers import first_that_applies
from kvmedic.runbooks.preemption.pressure import Case
from kvmedic.runbooks.workload import Workload


def replacement_of(target: TargetRef, fleet: Fleet, advice: Relief, generation: int) -> Plan | Blocked:
    """Return the plan that replaces one replica of a fleet, or why it cannot be carried out."""
    pod = next((pod for pod in fleet.live if pod.name == advice.pod), None)
    if pod is None:
        return Blocked(Reason.TARGET_NOT_SETTLED, f"{advice.pod} is gone: there is nothing to replace")
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
    step = ReplicasStep(
        target=ObjectRef(target.kind, target.name),
        container=target.container,
        before=fleet.replicas,
        after=advice.replicas,
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


FLEET_SHARE = 2 / 3
"""Share of the replicas that must be pressured before any setting of the fleet is changed: with one or two
replicas all of them, of three two. Replicas behind one Service see the same requests; under demand the
last one is near the trigger too, and where a third or more are calm the cause is not what they share."""
CAP_SHARE, CAP_LEAST = 1 / 4, 2
"""Share and number of the replicas that must be pressured for a cap on sequences: a cap over what the calm
ones run costs them nothing. One alone is another branch's; of fewer than a quarter the cause is their own."""


def most_of(replicas: int) -> int:
    """Return how many of some replicas are most of them."""
    return ceil(FLEET_SHARE * replicas)


def enough_for_a_cap(replicas: int) -> int:
    """Return how many of some replicas must be pressured for a cap on sequences."""
    return min(replicas, max(CAP_LEAST, ceil(CAP_SHARE * replicas)))


def cap_over_calm(case: Case, setting: Setting, calm: Mapping[str, PodReadings]) -> SettingAdvice:
    """Return a cap for the pressured replicas that the calm ones stay under, or why there is none.

    Args:
        case: of the pressured replicas.
        setting: the present setting.
        calm: readings of the others, by name.
    """
    caps = tuple(bound for bound in setting.levers if bound.knob is Knob.MAX_NUM_SEQS)
    advice = first_that_applies(case, replace(setting, levers=caps))
    if not isinstance(advice, Assignment):
        return advice
    for name, readings in sorted(calm.items()):
        running = number_or_none(readings, Signal.RUNNING_MEAN)
        each = None if running is None else running / readings.engines
        if each is None or each > float(advice.value):
            told = "nobody knows how many sequences it runs" if each is None else f"it runs {each:.0f}"
            text = f"a cap of {advice.value} would hold up {name}, which is calm: {told} on average"
            return NoChange(Reason.PARTIAL_PRESSURE, text)
    return advice


GRACE_SECONDS = 30
"""`terminationGracePeriodSeconds` where the pod template does not say (Kubernetes API)."""


def end_of_requests(workload: Workload) -> str:
    """Return what becomes of requests that a replica still has when it is ended, in one clause."""
    timeout = _timeout(workload)
    if timeout is None:
        return "this engine aborts requests in flight when a replica is ended (it has no --shutdown-timeout)"
    if timeout <= 0:
        return (
            "the engine aborts requests in flight when a replica is ended (--shutdown-timeout is not given)"
        )
    grace, sleep = _grace_seconds(workload.template), _sleep_seconds(workload.container)
    if sleep is None:
        return (
            f"the engine finishes requests for {timeout:g} s when a replica is ended, if preStop leaves them"
        )
    if sleep + timeout >= grace:
        text = f"preStop {sleep} s + --shutdown-timeout {timeout:g} s do not fit into"
        return f"requests in flight may be cut off when a replica is ended: {text} {grace} s of grace period"
    return f"the engine finishes requests in flight for {timeout:g} s when a replica is ended"


def drain_remark(workload: Workload, rollout: RolloutPolicy, step: Step) -> str:
    """Return what a step does to requests whose drain times out; empty where it drains nobody for good."""
    if isinstance(step, TrialStep | GateStep):
        return ""
    end = end_of_requests(workload)
    if rollout.on_drain_timeout is OnDrainTimeout.HOLD:
        return f"a replica whose drain times out is not ended (onDrainTimeout: Hold); {end}"
    return f"a replica whose drain times out is ended all the same (onDrainTimeout: Proceed); {end}"


def _timeout(workload: Workload) -> float | None:
    """Return the seconds that the engine is given to finish; None where it knows no such option."""
    known = workload.engine.profile.flag(Knob.SHUTDOWN_TIMEOUT)
    if known is None or workload.engine.presence(known) is not Presence.PRESENT:
        return None
    given = workload.given(Knob.SHUTDOWN_TIMEOUT) or 0
    return float(given) if isinstance(given, int | float) else 0.0


def _grace_seconds(template: Mapping[str, object]) -> int:
    spec = template.get("spec")
    given = spec.get("terminationGracePeriodSeconds") if isinstance(spec, Mapping) else None
    return given if isinstance(given, int) else GRACE_SECONDS


def _sleep_seconds(container: Mapping[str, object]) -> int | None:
    """Return how long preStop sleeps; 0 without one, None where it runs something that takes its own time."""
    lifecycle = container.get("lifecycle")
    hook = lifecycle.get("preStop") if isinstance(lifecycle, Mapping) else None
    if not isinstance(hook, Mapping) or not hook:
        return 0
    sleep = hook.get("sleep")
    seconds = sleep.get("seconds") if isinstance(sleep, Mapping) else None
    return seconds if isinstance(seconds, int) else None
