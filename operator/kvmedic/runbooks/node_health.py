"""Is a GPU ill, or did memory run out? Then another runbook comes first, and no setting hides the trouble.

A throttled or broken GPU slows its replica down, which looks like demand. What is absent is unknown, never
healthy; `spec.nodeHealth` says what unknown means.

The kubelet says which container was killed at its memory limit. A GPU that runs out of memory is an exception
inside the engine: the container ends with code 1 and reason `Error`, and only its log says why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

from kvmedic.model.devices import (
    APPLICATION_XIDS,
    CLOCK_FAULTS,
    DRIVER_FAULTS,
    NEEDED,
    NVIDIA_SMI_ERRORS,
    PROGRAM,
    SERIES,
    XIDS,
    Cause,
    Device,
    EngineEnd,
    NodeHealth,
    Vital,
    Vitals,
)
from kvmedic.model.evidence import Absence, Inconclusive, Measured, Missing
from kvmedic.model.reasons import Reason
from kvmedic.runbooks.branches import Advice, Evidence, Finding, NoChange, Setting

GPU_SIGNS = frozenset(
    {Vital.LAST_XID, Vital.UNCORRECTABLE_ERRORS, Vital.ROW_REMAP_FAILED, Vital.DRIVER_FAULT}
)
"""Vitals that show a broken GPU."""
THERMAL_SIGNS = frozenset({Vital.CLOCK_REASONS})
"""Vitals that show a GPU that is slowed down."""
NAMED_FAULTS = 3
"""Faults, or replicas, that a message names; the rest is counted, so that a large fleet fits in one line."""

Sign: TypeAlias = tuple[Vital, int, str]
"""What was seen of one device: the vital, its value, and the fact in words."""


def gpu_fault(evidence: Evidence) -> tuple[Finding, ...] | None:
    """A GPU of a replica is broken: a fatal driver error, broken memory, no rows left to replace it."""
    return _findings(evidence, _find_device_faults)


def thermal_emergency(evidence: Evidence) -> tuple[Finding, ...] | Inconclusive | None:
    """A GPU of a replica was slowed down by heat or its hardware's protection inside the window.

    The last look at node health: where it is required and not known, it says what would provide it.
    """
    found = _findings(evidence, _slowed_devices)
    if found or evidence.node_health is not NodeHealth.REQUIRED:
        return found
    return _doubt_health(evidence)


def divert_to_gpu_fault(evidence: Evidence, _setting: Setting) -> Advice:
    """Return that nothing is changed, and which runbook a person opens."""
    return _report_other_cause(Reason.GPU_FAULT, "GPU fault", gpu_fault(evidence))


def divert_to_thermal_emergency(evidence: Evidence, _setting: Setting) -> Advice:
    """Return that nothing is changed, and which runbook a person opens."""
    return _report_other_cause(
        Reason.THERMAL_EMERGENCY, "thermal emergency", _findings(evidence, _slowed_devices)
    )


def _report_other_cause(reason: Reason, runbook: str, findings: tuple[Finding, ...] | None) -> NoChange:
    facts = [f"{finding.subject} {finding.text}" for finding in findings or ()]
    rest = f"; and {len(facts) - NAMED_FAULTS} more" if len(facts) > NAMED_FAULTS else ""
    listed = "; ".join(facts[:NAMED_FAULTS]) + rest
    return NoChange(reason, f"open the runbook '{runbook}': {listed}; no setting of the workload is changed")


def _findings(evidence: Evidence, signs: Callable[[Device], Iterator[Sign]]) -> tuple[Finding, ...] | None:
    found = []
    for name, vitals in sorted(evidence.vitals.items()):
        place = f"on node {vitals.node}, " if vitals.node else ""
        for device in vitals.devices.value if isinstance(vitals.devices, Measured) else ():
            for vital, value, text in signs(device):
                line = f"{place}{device.name}: {text}{_name_origin(device, vital)}"
                found.append(Finding(name, vital, value, 0, line))
    return tuple(found) or None


def _name_origin(device: Device, vital: Vital) -> str:
    """Return who reported a fact, where it was not the metrics source."""
    return f" (reported by {PROGRAM})" if vital in device.asked else ""


def _find_device_faults(device: Device) -> Iterator[Sign]:
    xid = device.value(Vital.LAST_XID)
    if xid and xid not in APPLICATION_XIDS:
        yield Vital.LAST_XID, xid, f"XID {xid} ({XIDS.get(xid, 'an error of the device or its node')})"
    errors = device.value(Vital.UNCORRECTABLE_ERRORS)
    if errors:
        yield Vital.UNCORRECTABLE_ERRORS, errors, f"{errors} uncorrectable memory errors since it was reset"
    if device.value(Vital.ROW_REMAP_FAILED):
        yield Vital.ROW_REMAP_FAILED, 1, "no memory row is left to replace a broken one"
    fault = device.value(Vital.DRIVER_FAULT)
    if fault:
        yield Vital.DRIVER_FAULT, fault, f"{DRIVER_FAULTS.get(fault, 'it cannot be used')} (code {fault})"


def _slowed_devices(device: Device) -> Iterator[Sign]:
    reasons = device.value(Vital.CLOCK_REASONS) or 0
    held = [f"{text} (0x{bit:02x})" for bit, text in CLOCK_FAULTS.items() if reasons & bit]
    if held:
        yield Vital.CLOCK_REASONS, reasons, ", ".join(held)


def driver_health(evidence: Evidence) -> Finding | None:
    """Return whose health rests on what its driver reported; None where all is from the metrics source."""
    names = [name for name, vitals in sorted(evidence.vitals.items()) if vitals.was_asked()]
    if not names:
        return None
    replicas = _name_replicas(names)
    text = f"no series reports all of the GPUs of {replicas}: {PROGRAM} in the container reported the rest"
    return Finding("fleet", None, None, None, text)


def _doubt_health(evidence: Evidence) -> Inconclusive | None:
    """Return whose health is not known, and what would provide it; None where all is known."""
    known = {name: evidence.vitals.get(name, Vitals()) for name in sorted(evidence.burn.pods)}
    blind = {name: vitals for name, vitals in known.items() if vitals.list_unknown()}
    if not blind:
        return None
    missing = [vital for vital in NEEDED if any(vital in vitals.list_unknown() for vitals in blind.values())]
    places = (f"{name} on node {one.node}" if one.node else name for name, one in blind.items())
    down = any(vitals.devices == Missing(Absence.SOURCE_UNAVAILABLE) for vitals in blind.values())
    why = ", as the metrics source did not answer completely" if down else ""
    # Why the drivers that were asked made nothing known: each reason with one replica that has it.
    silent = {
        vitals.nvidia_smi_error: name for name, vitals in reversed(blind.items()) if vitals.nvidia_smi_error
    }
    why += "".join(
        f"; {PROGRAM} in {silent[e]}: {NVIDIA_SMI_ERRORS[e]}" for e in NVIDIA_SMI_ERRORS if e in silent
    )
    return Inconclusive(
        Reason.NODE_HEALTH_UNKNOWN,
        f"node health of {_name_replicas(list(places))} is unknown{why}: have the DCGM exporter export "
        f"{', '.join(SERIES[vital][-1] for vital in missing)} with the label of the pod that uses "
        "the GPU (its default set has XIDs), in a job that the source's deviceMatchers let in; or "
        "set spec.nodeHealth: IfAvailable",
    )


def _name_replicas(names: list[str]) -> str:
    rest = f" and {len(names) - NAMED_FAULTS} more" if len(names) > NAMED_FAULTS else ""
    return ", ".join(names[:NAMED_FAULTS]) + rest


ENDS = frozenset({Vital.ENGINE_END})
"""What these branches look at."""
OF_INTEREST = frozenset({Cause.HOST_MEMORY, Cause.DEVICE_MEMORY, Cause.UNKNOWN})
"""Ends that a fleet does not count as healthy with, whatever its metrics say."""


def is_of_interest(evidence: Evidence) -> bool:
    """Return whether a replica ended for want of memory inside the window, or nobody knows why it did."""
    return bool(ended_engines(evidence, OF_INTEREST))


def host_memory(evidence: Evidence) -> tuple[Finding, ...] | None:
    """A replica was ended at its container's memory limit inside the window."""
    return _ends_found(evidence, Cause.HOST_MEMORY, "killed at the container's memory limit (OOMKilled)")


def device_memory(evidence: Evidence) -> tuple[Finding, ...] | Inconclusive | None:
    """A replica ended because its GPU's memory ran out inside the window: at its start or while serving."""
    found = _ends_found(evidence, Cause.DEVICE_MEMORY, "its GPU's memory ran out")
    unknown = ended_engines(evidence, frozenset({Cause.UNKNOWN}))
    if found or not unknown:
        return found
    name, end = next(iter(unknown.items()))
    return Inconclusive(
        Reason.LOG_UNREADABLE,
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


def ended_engines(evidence: Evidence, causes: frozenset[Cause]) -> dict[str, EngineEnd]:
    """Return the newest ends of replicas that ended for one of some causes, by pod."""
    ends = {name: vitals.end for name, vitals in sorted(evidence.vitals.items())}
    return {name: end for name, end in ends.items() if end is not None and end.cause in causes}


def _ends_found(evidence: Evidence, cause: Cause, text: str) -> tuple[Finding, ...] | None:
    found = []
    for name, end in ended_engines(evidence, frozenset({cause})).items():
        line = (
            f"{text} at {end.ended_at:%H:%M:%SZ}, exit code {end.exit_code}, {end.restarts} restarts so far"
        )
        found.append(Finding(name, Vital.ENGINE_END, end.exit_code, None, line))
    return tuple(found) or None
