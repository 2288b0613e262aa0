"""How replicas fare beside their engines' metrics, as a report shows it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kvmedic.core.driver import PROGRAM, TELLS
from kvmedic.core.evidence import Measured, Missing, Reading, Stale, Unsupported
from kvmedic.core.silence import SILENCES
from kvmedic.core.vitals import SHOWN, Device, EngineEnd, Vital, Vitals


def vitals_as_json(vitals: Mapping[str, Vitals]) -> dict[str, Any]:
    """Return what was looked at, by replica; empty where nobody looked."""
    return {name: _replica(one) for name, one in sorted(vitals.items()) if _was_looked_at(one)}


def vitals_as_text(vitals: Mapping[str, Vitals]) -> Iterator[str]:
    """Yield one line per replica that was looked at."""
    for name, one in sorted(vitals.items()):
        if _was_looked_at(one):
            node = f" on {one.node}" if one.node else ""
            yield f"{name}{node}: {'; '.join(_facts(one))}"


def absence(reading: Reading[Any]) -> str:
    """Return why a reading has no value."""
    match reading:
        case Missing(reason):
            return f"missing ({reason})"
        case Stale(at):
            return f"stale since {at:%H:%M:%SZ}"
        case _:
            return "not known"


def _was_looked_at(vitals: Vitals) -> bool:
    return vitals.end is not None or not isinstance(vitals.devices, Unsupported)


def _replica(vitals: Vitals) -> dict[str, Any]:
    devices = vitals.devices
    told = (
        {device.name: _device(device) for device in devices.value}
        if isinstance(devices, Measured)
        else absence(devices)
    )
    silence = {"nvidiaSmi": str(vitals.silence)} if vitals.silence else {}
    return {"node": vitals.node or None, "devices": told, **silence, "ended": _end(vitals.end)}


def _device(device: Device) -> dict[str, float | str]:
    found: dict[str, float | str] = {"toldBy": _teller(device)} if device.asked else {}
    for vital in (*SHOWN, *(vital for vital in TELLS if vital in device.asked.difference(SHOWN))):
        value = device.value(vital)
        found[str(vital)] = absence(device.reading(vital)) if value is None else value
    used = device.ratio(Vital.MEMORY_IN_USE)
    return found if used is None else {**found, str(Vital.MEMORY_IN_USE): round(used, 3)}


def _teller(device: Device) -> str:
    """Return who told of a device that its driver was asked about."""
    known = isinstance(device.reading(Vital.LAST_XID), Measured)
    return f"DCGM exporter and {PROGRAM}" if known else PROGRAM


def _end(end: EngineEnd | None) -> dict[str, Any] | None:
    if end is None:
        return None
    return {
        "cause": str(end.cause),
        "exitCode": end.exit_code,
        "at": f"{end.ended_at:%Y-%m-%dT%H:%M:%SZ}",
        "restarts": end.restarts,
    }


def _facts(vitals: Vitals) -> Iterator[str]:
    devices, end = vitals.devices, vitals.end
    if isinstance(devices, Measured):
        for device in devices.value:
            yield f"{device.name} {' '.join(f'{key}={value}' for key, value in _device(device).items())}"
    else:
        yield f"GPUs {absence(devices)}"
    if vitals.silence is not None:
        yield f"{PROGRAM} {vitals.silence}: {SILENCES[vitals.silence]}"
    if end is not None:
        yield (
            f"ended {end.ended_at:%H:%M:%SZ} with exit code {end.exit_code}, cause {end.cause}, "
            f"{end.restarts} restarts so far"
        )
