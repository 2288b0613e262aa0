"""Did a replica end because memory ran out: its host's, or its GPU's?

The kubelet says which container was killed at its memory limit. A GPU that runs out of memory is an
exception inside the engine: the container ends with code 1 and reason `Error`, and only its log says
why.
"""

from __future__ import annotations

from kvmedic.core.diagnosis import Advice, Evidence, Finding, Inconclusive, NoChange, Setting
from kvmedic.core.reasons import Reason
from kvmedic.core.vitals import Cause, EngineEnd, Vital
from kvmedic.runbooks.memory_share import step_down

ENDS = frozenset({Vital.ENGINE_END})
"""What these branches look at."""
OF_INTEREST = frozenset({Cause.HOST_MEMORY, Cause.DEVICE_MEMORY, Cause.UNKNOWN})
"""Ends that a fleet does not count as healthy with, whatever its metrics say."""


def is_of_interest(evidence: Evidence) -> bool:
    """Return whether a replica ended for want of memory inside the window, or nobody knows why it did."""
    return bool(ended(evidence, OF_INTEREST))


def host_memory(evidence: Evidence) -> tuple[Finding, ...] | None:
    """A replica was ended at its container's memory limit inside the window."""
    return _findings(evidence, Cause.HOST_MEMORY, "killed at the container's memory limit (OOMKilled)")


def device_memory(evidence: Evidence) -> tuple[Finding, ...] | Inconclusive | None:
    """A replica ended because its GPU's memory ran out inside the window: at its start or while serving."""
    found = _findings(evidence, Cause.DEVICE_MEMORY, "its GPU's memory ran out")
    unknown = ended(evidence, frozenset({Cause.UNKNOWN}))
    if found or not unknown:
        return found
    name, end = next(iter(unknown.items()))
    return Inconclusive(
        Reason.PREVIOUS_LOG_UNREADABLE,
        f"{name} ended {end.ended_at:%H:%M:%SZ} with exit code {end.exit_code} and the log of it cannot "
        f"be read ({end.trouble}): allow the operator get on pods/log, or look with kubectl logs --previous",
    )


def divert_to_host_memory(evidence: Evidence, _setting: Setting) -> Advice:
    """Return that nothing is changed, and what a person looks at."""
    facts = "; ".join(f"{each.subject} {each.text}" for each in host_memory(evidence) or ())
    return NoChange(
        Reason.HOST_OUT_OF_MEMORY,
        f"open the runbook 'host memory': {facts}; raise the container's memory limit, or find what grows "
        "in it; no setting of the engine is changed",
    )


def lower_share(_evidence: Evidence, setting: Setting) -> Advice:
    """Return the share of the GPU's memory one bounded step down, or why there is none."""
    return step_down(setting)


def ended(evidence: Evidence, causes: frozenset[Cause]) -> dict[str, EngineEnd]:
    """Return the newest ends of replicas that ended for one of some causes, by pod."""
    ends = {name: vitals.end for name, vitals in sorted(evidence.vitals.items())}
    return {name: end for name, end in ends.items() if end is not None and end.cause in causes}


def _findings(evidence: Evidence, cause: Cause, text: str) -> tuple[Finding, ...] | None:
    found = (
        Finding(name, Vital.ENGINE_END, end.exit_code, None, f"{text} at {_told(end)}")
        for name, end in ended(evidence, frozenset({cause})).items()
    )
    return tuple(found) or None


def _told(end: EngineEnd) -> str:
    return f"{end.ended_at:%H:%M:%SZ}, exit code {end.exit_code}, {end.restarts} restarts so far"
