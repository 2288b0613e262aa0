"""What becomes of requests that are in flight when a replica is ended: known before its first step.

Source: vLLM 0.32 (FACTS of the project, measured). At SIGTERM it aborts what is in flight within two seconds,
whatever the grace period, unless it runs with `--shutdown-timeout` (0.18 and newer). The kubelet runs preStop
first, and kills the container when the grace period is over, which began with preStop.
"""

from __future__ import annotations

from collections.abc import Mapping

from kvmedic.core.engine import Knob, Presence
from kvmedic.core.gating import GateStep
from kvmedic.core.plan import Step
from kvmedic.core.policy import OnDrainTimeout, RolloutPolicy
from kvmedic.core.trialling import TrialStep
from kvmedic.runbooks.planning import Workload

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
