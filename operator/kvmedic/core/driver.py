"""What a replica's own GPU driver says through `nvidia-smi`: one line per device, as readings.

It fills what no series tells and replaces none. What it prints comes out of a container, so only numbers
and a few known words are read of it, and nothing else is kept. Absent is unknown here too: a device that
cannot be read stands in the list without readings.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from types import MappingProxyType
from typing import TypeAlias

from kvmedic.core.evidence import Absence, Measured, Missing, Reading, Unsupported
from kvmedic.core.silence import Silence
from kvmedic.core.vitals import CLOCK_FAULTS, DRIVER_FAULTS, NEEDED, Device, Vital, Vitals

PROGRAM = "nvidia-smi"
CLOCK_FIELDS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")
"""The mask of clock reasons by generation, newest first: driver 535 renamed it, and one that does not know a
field ends with exit code 2 (`nvidia-smi --help-query-gpu`)."""
OTHER_FIELDS = ("index", "uuid", "mig.mode.current", "ecc.errors.uncorrected.volatile.total")
TELLS = (Vital.CLOCK_REASONS, Vital.UNCORRECTABLE_ERRORS, Vital.DRIVER_FAULT)
"""What it may fill of a device that some series tell of. XIDs are in no field of it."""
LOST, RESET_REQUIRED = 15, 16
WORDS: Mapping[str, int] = MappingProxyType(
    {
        "gpu is lost": LOST,
        "fallen off the bus": LOST,
        "gpu requires reset": RESET_REQUIRED,
    }
)
"""How it says, in place of a value or of the whole line, that a device cannot be used, by the driver's own
code. Every other word, such as `[N/A]`, `[Unknown Error]` and `ERR!`, says that a value is not known."""
SUCCESS, INVALID_ARGUMENT = 0, 2
_IDENTITY = re.compile(r"GPU-[0-9a-fA-F-]{8,40}")
_FAULTS = sum(CLOCK_FAULTS)
_UNNAMED = "a GPU without a number"

Answer: TypeAlias = Measured[tuple[Device, ...]] | Silence
"""What came of asking."""


def query(clock_field: str) -> tuple[str, ...]:
    """Return the command; it takes no input and changes nothing."""
    fields = ",".join((*OTHER_FIELDS, clock_field))
    return (PROGRAM, f"--query-gpu={fields}", "--format=csv,noheader,nounits")


def devices_told(exit_code: int, text: str, at: datetime) -> Answer:
    """Return the devices that a finished command told of, or why it told of none.

    Args:
        exit_code: the command's; for faults it is the driver's own code (NVML, nvmlReturn_t).
        text: what it printed.
        at: when it was asked.
    """
    if exit_code == INVALID_ARGUMENT:
        return Silence.UNKNOWN_FIELD
    devices = tuple(_device(line, at) for line in text.splitlines() if line.strip())
    if exit_code in DRIVER_FAULTS and not any(_is_faulty(device) for device in devices):
        devices = (*devices, _faulty(exit_code, at))
    if any(_is_faulty(device) for device in devices):
        return Measured(devices, at)
    if exit_code != SUCCESS:
        return Silence.FAILED
    return Measured(devices, at) if devices else Silence.NO_DEVICE


def may_fill(vitals: Vitals) -> bool:
    """Return whether its driver could tell of a replica what no series does.

    A source that did not answer may know better: it is asked again, not replaced.
    """
    if not isinstance(vitals.devices, Measured):
        return vitals.devices == Missing(Absence.NO_SERIES)
    gaps = [device.reading(vital) for device in vitals.devices.value for vital in _gaps(device)]
    return not vitals.devices.value or Missing(Absence.NO_SERIES) in gaps


def filled(vitals: Vitals, answer: Answer, expected: int) -> Vitals:
    """Return a replica's vitals with what its driver told, where no series does.

    Args:
        vitals: as the series tell.
        answer: of its driver.
        expected: GPUs that its container was given; 0 where nobody knows.
    """
    if isinstance(answer, Silence):
        return replace(vitals, silence=answer)
    told, known = answer.value, vitals.devices
    if isinstance(known, Measured) and known.value:
        devices = (*(_merged(device, told) for device in known.value), *(one for one in told if not one.uuid))
    else:
        devices = (*told, *_unlisted(told, expected))
    done = replace(vitals, devices=Measured(devices, answer.at))
    return replace(done, silence=Silence.INCOMPLETE) if done.unknown() else done


def _gaps(device: Device) -> Iterator[Vital]:
    told = ((vital, device.reading(vital)) for vital in NEEDED if vital in TELLS)
    return (vital for vital, reading in told if not isinstance(reading, Measured | Unsupported))


def _device(line: str, at: datetime) -> Device:
    """Return the device of one line; one of which nothing is known where the line cannot be read."""
    fault = next((code for word, code in WORDS.items() if word in line.lower()), 0)
    cells = [cell.strip() for cell in line.split(",")]
    if len(cells) != len(OTHER_FIELDS) + 1:
        return _faulty(fault, at) if fault else Device(_UNNAMED, {})
    index, uuid, mig, errors, clocks = cells
    readings = {
        Vital.CLOCK_REASONS: _read(_mask(clocks), at),
        Vital.UNCORRECTABLE_ERRORS: _read(_count(errors), at),
        Vital.DRIVER_FAULT: Measured(float(fault), at),
        Vital.LAST_XID: Unsupported(),
    }
    name = f"GPU {index}" if index.isdecimal() and len(index) < 4 else _UNNAMED
    known = uuid if _IDENTITY.fullmatch(uuid) else ""
    return Device(name, readings, known, frozenset(TELLS), mig == "Enabled")


def _faulty(code: int, at: datetime) -> Device:
    return Device(_UNNAMED, {Vital.DRIVER_FAULT: Measured(float(code), at)}, asked=frozenset(TELLS))


def _is_faulty(device: Device) -> bool:
    return bool(device.value(Vital.DRIVER_FAULT))


def _mask(cell: str) -> int | None:
    """Return those bits of a mask of 64 that are faults."""
    return int(cell, 16) & _FAULTS if re.fullmatch(r"0x[0-9a-fA-F]{1,16}", cell) else None


def _count(cell: str) -> int | None:
    return int(cell) if re.fullmatch(r"[0-9]{1,18}", cell) else None


def _read(value: int | None, at: datetime) -> Reading[float]:
    return Missing(Absence.NOT_A_NUMBER) if value is None else Measured(float(value), at)


def _merged(device: Device, told: Iterable[Device]) -> Device:
    """Return a device that series tell of, with what its driver adds."""
    own = next((one for one in told if one.uuid and one.uuid == device.uuid), None)
    if own is None:
        return device
    missing = [vital for vital in TELLS if device.reading(vital) == Missing(Absence.NO_SERIES)]
    added = {vital: own.reading(vital) for vital in missing}
    return replace(device, readings={**device.readings, **added}, asked=frozenset(missing))


def _unlisted(told: tuple[Device, ...], expected: int) -> tuple[Device, ...]:
    """Return the GPUs that a container was given and its driver does not list; parts of one do not count."""
    if any(device.is_partitioned for device in told):
        return ()
    return tuple(Device("a GPU that is not listed", {}) for _ in range(expected - len(told)))
