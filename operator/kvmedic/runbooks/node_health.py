"""Is a GPU ill? Then no setting is to be changed: somebody else's runbook comes first.

A throttled or broken GPU slows its replica down, which looks like demand. What is absent is unknown,
never healthy; `spec.nodeHealth` says what unknown means.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

from kvmedic.core.diagnosis import Advice, Evidence, Finding, Inconclusive, NoChange, Setting
from kvmedic.core.evidence import Absence, Measured, Missing
from kvmedic.core.reasons import Reason
from kvmedic.core.vitals import (
    APPLICATION_XIDS,
    CLOCK_FAULTS,
    NEEDED,
    SERIES,
    XIDS,
    Device,
    NodeHealth,
    Vital,
    Vitals,
)

GPU_SIGNS = frozenset({Vital.LAST_XID, Vital.UNCORRECTABLE_ERRORS, Vital.ROW_REMAP_FAILED})
"""Vitals that tell a broken GPU."""
THERMAL_SIGNS = frozenset({Vital.CLOCK_REASONS})
"""Vitals that tell a GPU that is slowed down."""
NAMED_FAULTS = 3
"""Faults, or replicas, that a message names; the rest is counted, so that a large fleet fits in one line."""

Sign: TypeAlias = tuple[Vital, int, str]
"""What was seen of one device: the vital, its value, and the fact in words."""


def gpu_fault(evidence: Evidence) -> tuple[Finding, ...] | None:
    """A GPU of a replica is broken: a fatal driver error, broken memory, no rows left to replace it."""
    return _findings(evidence, _broken)


def thermal_emergency(evidence: Evidence) -> tuple[Finding, ...] | Inconclusive | None:
    """A GPU of a replica was slowed down by heat or its hardware's protection inside the window.

    The last look at node health: where it is required and not known, it says what would provide it.
    """
    found = _findings(evidence, _slowed)
    if found or evidence.node_health is not NodeHealth.REQUIRED:
        return found
    return _unknown(evidence)


def divert_to_gpu_fault(evidence: Evidence, _setting: Setting) -> Advice:
    """Return that nothing is changed, and which runbook a person opens."""
    return _diverted(Reason.GPU_FAULT, "GPU fault", gpu_fault(evidence))


def divert_to_thermal_emergency(evidence: Evidence, _setting: Setting) -> Advice:
    """Return that nothing is changed, and which runbook a person opens."""
    return _diverted(Reason.THERMAL_EMERGENCY, "thermal emergency", _findings(evidence, _slowed))


def faults_of(devices: Iterable[Device]) -> tuple[str, ...]:
    """Return what is known to be wrong with some GPUs, each fact with its GPU; nothing: none is known ill."""
    return tuple(
        f"{device.name}: {text}"
        for device in devices
        for signs in (_broken, _slowed)
        for _, _, text in signs(device)
    )


def place(name: str, vitals: Vitals) -> str:
    """Return a replica with its node, for a message."""
    return f"{name} on node {vitals.node}" if vitals.node else name


def _diverted(reason: Reason, runbook: str, findings: tuple[Finding, ...] | None) -> NoChange:
    facts = [f"{finding.subject} {finding.text}" for finding in findings or ()]
    return NoChange(
        reason, f"open the runbook '{runbook}': {_listed(facts)}; no setting of the workload is changed"
    )


def _listed(facts: list[str]) -> str:
    rest = f"; and {len(facts) - NAMED_FAULTS} more" if len(facts) > NAMED_FAULTS else ""
    return "; ".join(facts[:NAMED_FAULTS]) + rest


def _findings(evidence: Evidence, signs: Callable[[Device], Iterator[Sign]]) -> tuple[Finding, ...] | None:
    found = tuple(
        Finding(name, vital, value, 0, f"{_on(vitals)}{device.name}: {text}")
        for name, vitals in sorted(evidence.vitals.items())
        for device in _devices(vitals)
        for vital, value, text in signs(device)
    )
    return found or None


def _on(vitals: Vitals) -> str:
    return f"on node {vitals.node}, " if vitals.node else ""


def _devices(vitals: Vitals) -> tuple[Device, ...]:
    return vitals.devices.value if isinstance(vitals.devices, Measured) else ()


def _broken(device: Device) -> Iterator[Sign]:
    xid = device.value(Vital.LAST_XID)
    if xid and xid not in APPLICATION_XIDS:
        yield Vital.LAST_XID, xid, f"XID {xid} ({XIDS.get(xid, 'an error of the device or its node')})"
    errors = device.value(Vital.UNCORRECTABLE_ERRORS)
    if errors:
        yield Vital.UNCORRECTABLE_ERRORS, errors, f"{errors} uncorrectable memory errors since it was reset"
    if device.value(Vital.ROW_REMAP_FAILED):
        yield Vital.ROW_REMAP_FAILED, 1, "no memory row is left to replace a broken one"


def _slowed(device: Device) -> Iterator[Sign]:
    reasons = device.value(Vital.CLOCK_REASONS) or 0
    held = [f"{text} (0x{bit:02x})" for bit, text in CLOCK_FAULTS.items() if reasons & bit]
    if held:
        yield Vital.CLOCK_REASONS, reasons, ", ".join(held)


def _unknown(evidence: Evidence) -> Inconclusive | None:
    """Return whose health is not known, and what would provide it; None where all is known."""
    gaps = {name: _missing(evidence.vitals.get(name, Vitals())) for name in sorted(evidence.burn.pods)}
    blind = [name for name, missing in gaps.items() if missing]
    if not blind:
        return None
    vitals = [vital for vital in NEEDED if any(vital in gaps[name] for name in blind)]
    named = ", ".join(place(name, evidence.vitals.get(name, Vitals())) for name in blind[:NAMED_FAULTS])
    rest = f" and {len(blind) - NAMED_FAULTS} more" if len(blind) > NAMED_FAULTS else ""
    return Inconclusive(
        Reason.NODE_HEALTH_UNKNOWN,
        f"node health of {named}{rest} is unknown{_because(evidence, blind)}: have the DCGM exporter "
        f"export {', '.join(SERIES[vital][-1] for vital in vitals)} with the label of the pod that uses the "
        "GPU (its default set has XIDs only), or set spec.nodeHealth: IfAvailable",
    )


def _because(evidence: Evidence, blind: list[str]) -> str:
    down = Missing(Absence.SOURCE_UNAVAILABLE)
    silent = any(evidence.vitals.get(name, Vitals()).devices == down for name in blind)
    return ", as the metrics source did not answer completely" if silent else ""


def _missing(vitals: Vitals) -> tuple[Vital, ...]:
    """Return what is not known of a replica's devices; everything where no device is known."""
    devices = _devices(vitals)
    if not devices:
        return NEEDED
    return tuple(vital for vital in NEEDED if any(vital in device.unknown() for device in devices))
