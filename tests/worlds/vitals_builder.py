"""Builders of replicas' vitals for tests."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from builders import NO_SERIES, NOW, THRASHING
from kvmedic.model.devices import Cause, Device, EngineEnd, NodeHealth, Vital, Vitals
from kvmedic.model.evidence import Measured, Missing, PodReadings, Reading
from kvmedic.runbooks.branches import Evidence

NODE = "gpu-7"


def a_device(
    name: str = "GPU 0",
    *,
    clock_reasons: float | Missing = 0,
    last_xid: float | Missing = 0,
    uncorrectable_errors: float | Missing = 0,
    row_remap_failed: float | Missing = 0,
    memory_free: float | Missing = NO_SERIES,
    memory_in_use: float | Missing = NO_SERIES,
) -> Device:
    """Return a GPU that is well but for what is given."""
    values = {
        Vital.CLOCK_REASONS: clock_reasons,
        Vital.LAST_XID: last_xid,
        Vital.UNCORRECTABLE_ERRORS: uncorrectable_errors,
        Vital.ROW_REMAP_FAILED: row_remap_failed,
        Vital.MEMORY_FREE: memory_free,
        Vital.MEMORY_IN_USE: memory_in_use,
    }
    readings: dict[Vital, Reading[float]] = {
        vital: value if isinstance(value, Missing) else Measured(float(value), NOW)
        for vital, value in values.items()
    }
    return Device(name, readings)


def an_end(cause: Cause, at: datetime = NOW - timedelta(minutes=2), trouble: str = "") -> EngineEnd:
    """Return an end of an engine with the exit code that goes with its cause."""
    code = 137 if cause is Cause.HOST_MEMORY else 1
    return EngineEnd(cause, code, at, 3, trouble or ("403 Forbidden" if cause is Cause.UNKNOWN else ""))


def with_vitals(evidence: Evidence, name: str, **changes: object) -> Evidence:
    """Return evidence with some vitals of one replica changed."""
    known = evidence.vitals.get(name, Vitals(NODE))
    return replace(evidence, vitals={**evidence.vitals, name: replace(known, **changes)})


def ill(evidence: Evidence, *devices: Device) -> Evidence:
    """Return evidence in which these are the devices of the second replica."""
    return with_vitals(evidence, "llm-1", devices=Measured(devices, NOW))


def restarted(evidence: Evidence, end: EngineEnd) -> Evidence:
    """Return evidence in which the first replica's engine ended."""
    return with_vitals(evidence, "llm-0", end=end)


def required(evidence: Evidence) -> Evidence:
    """Return evidence under `nodeHealth: Required` in which every replica's only GPU is known to be well."""
    for name in evidence.burn.pods:
        evidence = with_vitals(evidence, name, devices=Measured((a_device(),), NOW))
    return replace(evidence, node_health=NodeHealth.REQUIRED)


def without_metrics() -> PodReadings:
    """Return the readings of a replica that never came up."""
    thrashing = THRASHING.readings()
    return replace(
        thrashing,
        numbers=dict.fromkeys(thrashing.numbers, NO_SERIES),
        histograms=dict.fromkeys(thrashing.histograms, NO_SERIES),
        pool=NO_SERIES,
    )
