"""How a replica fares beside its engine's own metrics: its devices, and how its engine last ended.

A device's series come from NVIDIA's DCGM exporter; its driver reports more where an administrator lets the
operator ask it. The end of an engine comes from Kubernetes. Absent is unknown, never healthy. Nothing here
fetches anything.

What a replica's own GPU driver says through `nvidia-smi`: one line per device, as readings.

It fills what no series reports and replaces none. What it prints comes out of a container, so only numbers
and a few known words are read of it, and nothing else is kept. Absent is unknown here too: a device that
cannot be read stands in the list without readings.

Why a replica's own GPU driver reported nothing, and what a person can do about it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType
from typing import TypeAlias

from kvmedic.model.evidence import Absence, Measured, Missing, Reading, Unsupported


class NvidiaSmiError(StrEnum):
    """Why `nvidia-smi` in a replica's container did not make its health known."""

    FORBIDDEN = "Forbidden"
    """The API server does not let the operator run commands in pods."""
    NOT_STARTED = "NotStarted"
    """The container's runtime could not start it."""
    TIMED_OUT = "TimedOut"
    """It did not end in time; it may hang in the driver."""
    TOO_LONG = "TooLong"
    """It printed more than any number of devices needs."""
    UNREACHABLE = "Unreachable"
    """The connection to the container did not come about, or broke."""
    NO_TURN = "NoTurn"
    """Others were asked first, and the look was over."""
    UNKNOWN_FIELD = "UnknownField"
    """It does not know what it was asked for, by any name."""
    FAILED = "Failed"
    """It ended with an error that says nothing of a device."""
    NO_DEVICE = "NoDevice"
    """It listed no device."""
    INCOMPLETE = "Incomplete"
    """It answered, and a value of a device is not known, or a device is not listed."""


NVIDIA_SMI_ERRORS: Mapping[NvidiaSmiError, str] = MappingProxyType(
    {
        NvidiaSmiError.FORBIDDEN: (
            "the operator may not run it: grant get and create on pods/exec (the chart does so with "
            "nodeHealth.nvidiaSmi), and see that no admission policy refuses it"
        ),
        NvidiaSmiError.NOT_STARTED: (
            "it could not be started: the NVIDIA container runtime adds it to a container whose "
            "NVIDIA_DRIVER_CAPABILITIES has utility"
        ),
        NvidiaSmiError.TIMED_OUT: (
            "it did not end in time: see whether the driver hangs, in the node's kernel log"
        ),
        NvidiaSmiError.TOO_LONG: "it printed far more than it should: see what that program is in the image",
        NvidiaSmiError.UNREACHABLE: (
            "the container was not reached: see whether it runs, and its node's kubelet"
        ),
        NvidiaSmiError.NO_TURN: "its turn has not come yet: nothing is to be done",
        NvidiaSmiError.UNKNOWN_FIELD: "it does not know the fields that it was asked for: use a newer driver",
        NvidiaSmiError.FAILED: "it ended with an error: run it in the container and read what it says",
        NvidiaSmiError.NO_DEVICE: "it lists no GPU: see whether the container has one",
        NvidiaSmiError.INCOMPLETE: (
            "it does not report all of every GPU: run it in the container, as GPUs without ECC count no "
            "memory errors, and one that is missing or shows ERR! is to be looked at"
        ),
    }
)
"""What each means for a person, and what to do."""


class NodeHealth(StrEnum):
    """What is done where the health of a replica's node is unknown."""

    REQUIRED = "Required"
    """Nothing is changed."""
    IF_AVAILABLE = "IfAvailable"
    """Unknown health does not stop a change; known bad health does."""


class Vital(StrEnum):
    """A sign of one replica's health that its engine does not export."""

    CLOCK_REASONS = "clockReasons"
    """Why a device's clocks were held down at any moment of the window: those bits that are faults."""
    LAST_XID = "lastXid"
    """The last error that the driver reported of a device (XID); 0: none, or none since its user started."""
    UNCORRECTABLE_ERRORS = "uncorrectableErrors"
    """Uncorrectable memory errors of a device since its driver was loaded (count)."""
    ROW_REMAP_FAILED = "rowRemapFailed"
    """1 where a device has no spare memory rows left to replace a broken one."""
    DRIVER_FAULT = "driverFault"
    """The driver's own code for a device that cannot be used; 0: none. Only `nvidia-smi` reports it."""
    MEMORY_FREE = "memoryFreeMiB"
    """The least memory of a device that was free at any moment of the window (MiB)."""
    MEMORY_IN_USE = "memoryInUse"
    """Largest share of a device's memory that was in use at any moment of the window (ratio 0-1)."""
    ENGINE_END = "engineEnd"
    """How the engine's container last ended: exit code, reason, the mark in the log of it."""


SERIES: Mapping[Vital, tuple[str, ...]] = MappingProxyType(
    {
        Vital.CLOCK_REASONS: ("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS"),
        Vital.LAST_XID: ("DCGM_FI_DEV_XID_ERROR", "DCGM_FI_DEV_XID_ERRORS"),
        Vital.UNCORRECTABLE_ERRORS: ("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",),
        Vital.ROW_REMAP_FAILED: ("DCGM_FI_DEV_ROW_REMAP_FAILED", "DCGM_FI_DEV_ROW_REMAP_FAILURE"),
    }
)
"""Names of the series by generation, newest first; those of memory: `MEMORY_SERIES`. DCGM 3.3 renamed the
clock reasons; dcgm-exporter 4.9.0 exports XID and row remapping under names of DCGM 4.7 (dcgm_fields.h)."""

NO_NUMBER = 0x7FFFFFF0
"""From here on a number of DCGM says that there is none (DCGM_INT32_BLANK, dcgm_structs.h); old exporters
pass it on."""
MIB = 1 << 20
NO_LARGE_NUMBER = 1 << 60
"""The same for series in bytes (DCGM_INT64_BLANK is near 2^63, and no device has that much memory)."""


@dataclass(frozen=True, slots=True)
class MemorySeries:
    """The names under which an exporter shows a device's memory in one unit."""

    used: str
    free: str
    no_number: int
    """From here on a number says that there is none."""
    per_mib: int
    """How many of its units are a MiB."""


MEMORY_SERIES = (
    MemorySeries("DCGM_FI_DEV_FB_USED_BYTES", "DCGM_FI_DEV_FB_FREE_BYTES", NO_LARGE_NUMBER, 1 << 20),
    MemorySeries("DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_FREE", NO_NUMBER, 1),
)
"""By generation, newest first. dcgm-exporter 4.9.0 went from MiB to bytes and renamed what changed its unit
(release notes); its names are spelt here as that release spells the one of the whole,
`DCGM_FI_DEV_FB_CAPACITY_BYTES`. Used over used and free is the same share in every unit; memory that the
driver keeps for itself is in neither."""

SHOWN = (*SERIES, Vital.MEMORY_FREE)
"""What people are shown of a device."""

NEEDED = (Vital.CLOCK_REASONS, Vital.LAST_XID, Vital.UNCORRECTABLE_ERRORS)
"""What shows whether a node is healthy. Row remapping exists from Ampere on only. One that the
device's source can never report (`Unsupported`) is not waited for."""
BY_DEFAULT = (Vital.LAST_XID,)
"""Those of them that a default installation of the DCGM exporter exports (dcgm-exporter,
etc/default-counters.csv: clock reasons are not in it, ECC is commented out). A series of the others may be
absent; where one is there, its value must be known."""

CLOCK_FAULTS: Mapping[int, str] = MappingProxyType(
    {
        0x08: "hardware slowdown",
        0x20: "software thermal slowdown",
        0x40: "hardware thermal slowdown",
        0x80: "hardware power brake",
    }
)
"""Clock event reasons that are faults (NVML, nvmlClocksEventReasons). All others are ordinary: 0x1 idle,
0x2 application clocks, 0x4 power cap at full load, 0x10 sync boost, 0x100 display clocks."""

APPLICATION_XIDS: Mapping[int, str] = MappingProxyType(
    {
        13: "graphics engine exception",
        31: "memory page fault",
        43: "stopped processing",
        45: "preemptive clean-up",
        68: "video processor exception",
        109: "context switch time-out",
    }
)
"""Errors of what ran on a device, after which the device is as good as before. Every other one is the
device's or its node's. Source: NVIDIA's k8s-device-plugin, whose health check keeps a device in service
after these six alone (its list of application errors)."""

XIDS: Mapping[int, str] = MappingProxyType(
    {
        48: "double-bit memory error",
        62: "internal micro-controller halt",
        63: "memory row remapped, reset pending",
        64: "row remapping failed",
        74: "NVLink error",
        79: "fallen off the bus",
        92: "many single-bit memory errors",
        94: "contained memory error",
        95: "uncontained memory error",
        119: "GSP time-out",
        120: "GSP error",
    }
)
"""What the usual ones mean, for messages (NVIDIA, XID errors)."""


DRIVER_FAULTS: Mapping[int, str] = MappingProxyType(
    {
        8: "its power cables are not properly attached",
        15: "it has fallen off the bus or cannot be reached",
        16: "it needs a reset before it can be used again",
    }
)
"""Codes of the driver that say that a device cannot be used (NVML, nvmlReturn_t: insufficient power, GPU is
lost, reset required). `nvidia-smi` ends with the same codes. A corrupted infoROM (14) is a warning, and 10
and 11 mean other things in `nvidia-smi` than in NVML: with these nothing is known."""


@dataclass(frozen=True, slots=True)
class Device:
    """One device of a replica."""

    name: str
    """As the exporter numbers the devices of its node: `GPU 3`."""
    readings: Mapping[Vital, Reading[float]]
    uuid: str = ""
    """The device's own identity; empty where it is not reported."""
    asked: frozenset[Vital] = frozenset()
    """What no series reports of it, so that its driver was asked (`nvidia-smi`)."""
    is_partitioned: bool = False
    """Its driver says that it is shared out in parts (MIG)."""

    def reading(self, vital: Vital) -> Reading[float]:
        """Return one reading; a vital that no series reported is missing."""
        return self.readings.get(vital, Missing(Absence.NO_SERIES))

    def value(self, vital: Vital) -> int | None:
        """Return a reading's whole number, or None where it is not measured."""
        reading = self.reading(vital)
        return int(reading.value) if isinstance(reading, Measured) else None

    def ratio(self, vital: Vital) -> float | None:
        """Return a reading that is a share, or None where it is not measured."""
        reading = self.reading(vital)
        return reading.value if isinstance(reading, Measured) else None

    def memory_used(self) -> float | None:
        """Return the memory that was in use at most, in bytes: from what was free then, and its share."""
        free, share = self.value(Vital.MEMORY_FREE), self.ratio(Vital.MEMORY_IN_USE)
        if free is None or share is None or not 0 <= share < 1:
            return None
        return free * share / (1 - share) * MIB

    def list_unknown(self) -> tuple[Vital, ...]:
        """Return what would have to be known of it before it counts as healthy."""
        return tuple(vital for vital in NEEDED if self._is_unknown(vital))

    def _is_unknown(self, vital: Vital) -> bool:
        reading = self.reading(vital)
        if vital not in BY_DEFAULT and reading == Missing(Absence.NO_SERIES):
            return False
        return not isinstance(reading, Measured | Unsupported)


class Cause(StrEnum):
    """Why an engine's container ended, as far as it matters here."""

    HOST_MEMORY = "HostMemory"
    """The kernel ended it at the container's memory limit (`OOMKilled`)."""
    DEVICE_MEMORY = "DeviceMemory"
    """Its log says that the device's memory ran out."""
    ANOTHER = "Another"
    """Its log says no such thing."""
    UNKNOWN = "Unknown"
    """Its log could not be read."""


class Instance(StrEnum):
    """Which of the instances of a container that the kubelet knows: it knows two."""

    PRESENT = "Present"
    """The newest one. It runs, or it ended and nobody has started another yet."""
    PREVIOUS = "Previous"
    """The one before."""


OOM_KILLED = "OOMKilled"
"""The kubelet's word for a container that the kernel ended at its memory limit."""


@dataclass(frozen=True, slots=True)
class ContainerEnd:
    """The end of one instance of a container."""

    container: str
    exit_code: int
    reason: str
    """In the kubelet's words: `Error`, `OOMKilled`, `Completed`."""
    started_at: datetime
    ended_at: datetime
    """Both in whole seconds, as Kubernetes writes times; what is under a second is cut off."""
    instance: Instance
    """Whose end it is, and whose log it is."""

    @property
    def at_memory_limit(self) -> bool:
        """Return whether the kernel ended it at the container's memory limit."""
        return self.reason == OOM_KILLED


@dataclass(frozen=True, slots=True)
class EngineEnd:
    """The newest end of an engine's container: inside the trigger's window, or one since which it is down."""

    cause: Cause
    exit_code: int
    ended_at: datetime
    restarts: int
    """Of this container so far."""
    trouble: str = ""
    """Why its log could not be read; empty where it was. Never a part of the log."""


@dataclass(frozen=True, slots=True)
class Vitals:
    """One replica."""

    node: str = ""
    devices: Reading[tuple[Device, ...]] = field(default_factory=Unsupported)
    """Unsupported: nobody asked."""
    end: EngineEnd | None = None
    """None: it did not end inside the window, and is not down since an earlier end."""
    nvidia_smi_error: NvidiaSmiError | None = None
    """Why its driver, asked, did not make its health known; None: nobody asked, or it did."""

    def list_unknown(self) -> tuple[Vital, ...]:
        """Return what would have to be known of its devices; the default set where no device is known."""
        devices = self.devices.value if isinstance(self.devices, Measured) else ()
        if not devices:
            return BY_DEFAULT
        return tuple(vital for vital in NEEDED if any(vital in device.list_unknown() for device in devices))

    def was_asked(self) -> bool:
        """Return whether its driver reported something of its devices."""
        devices = self.devices.value if isinstance(self.devices, Measured) else ()
        return any(device.asked for device in devices)


PROGRAM = "nvidia-smi"
CLOCK_FIELDS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")
"""The mask of clock reasons by generation, newest first: driver 535 renamed it, and one that does not know a
field ends with exit code 2 (`nvidia-smi --help-query-gpu`)."""
OTHER_FIELDS = ("index", "uuid", "mig.mode.current", "ecc.errors.uncorrected.volatile.total")
FILLED = (Vital.CLOCK_REASONS, Vital.UNCORRECTABLE_ERRORS, Vital.DRIVER_FAULT)
"""What it may fill of a device that some series report. XIDs are in no field of it."""
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
MOST_LINES = 64
"""Of an answer that are read: a node has 16 GPUs at most, and each may have warnings of its own beside it."""
SUCCESS, INVALID_ARGUMENT = 0, 2
_IDENTITY = re.compile(r"GPU-[0-9a-fA-F-]{8,40}")
_FAULTS = sum(CLOCK_FAULTS)
_UNNAMED = "a GPU without a number"

Answer: TypeAlias = Measured[tuple[Device, ...]] | NvidiaSmiError
"""What came of asking."""


def nvidia_smi_query(clock_field: str) -> tuple[str, ...]:
    """Return the command; it takes no input and changes nothing."""
    fields = ",".join((*OTHER_FIELDS, clock_field))
    return (PROGRAM, f"--query-gpu={fields}", "--format=csv,noheader,nounits")


def parse_devices(exit_code: int, text: str, at: datetime) -> Answer:
    """Return the devices that a finished command listed, or why it listed none.

    Args:
        exit_code: the command's; for faults it is the driver's own code (NVML, nvmlReturn_t).
        text: what it printed.
        at: when it was asked.
    """
    if exit_code == INVALID_ARGUMENT:
        return NvidiaSmiError.UNKNOWN_FIELD
    lines = [line for line in text.splitlines() if line.strip()]
    if len(lines) > MOST_LINES:
        return NvidiaSmiError.TOO_LONG
    devices = tuple(_device(line, at) for line in lines)
    if exit_code in DRIVER_FAULTS and not any(_is_faulty(device) for device in devices):
        devices = (*devices, _make_faulty_device(exit_code, at))
    if any(_is_faulty(device) for device in devices):
        return Measured(devices, at)
    if exit_code != SUCCESS:
        return NvidiaSmiError.FAILED
    return Measured(devices, at) if devices else NvidiaSmiError.NO_DEVICE


def may_fill(vitals: Vitals) -> bool:
    """Return whether its driver could report of a replica what no series does.

    A source that did not answer may know better: it is asked again, not replaced.
    """
    if not isinstance(vitals.devices, Measured):
        return vitals.devices == Missing(Absence.NO_SERIES)
    gaps = [device.reading(vital) for device in vitals.devices.value for vital in _gaps(device)]
    return not vitals.devices.value or Missing(Absence.NO_SERIES) in gaps


def fill_vitals(vitals: Vitals, answer: Answer, expected: int) -> Vitals:
    """Return a replica's vitals with what its driver reported, where no series does.

    Args:
        vitals: as the series report.
        answer: of its driver.
        expected: GPUs that its container was given; 0 where nobody knows.
    """
    if isinstance(answer, NvidiaSmiError):
        return replace(vitals, nvidia_smi_error=answer)
    listed, known = answer.value, vitals.devices
    if isinstance(known, Measured) and known.value:
        devices = (
            *(_merge_device(device, listed) for device in known.value),
            *(one for one in listed if not one.uuid),
        )
    else:
        devices = (*listed, *_unlisted_devices(listed, expected))
    done = replace(vitals, devices=Measured(devices, answer.at))
    return replace(done, nvidia_smi_error=NvidiaSmiError.INCOMPLETE) if done.list_unknown() else done


def _gaps(device: Device) -> Iterator[Vital]:
    readings = ((vital, device.reading(vital)) for vital in NEEDED if vital in FILLED)
    return (vital for vital, reading in readings if not isinstance(reading, Measured | Unsupported))


def _device(line: str, at: datetime) -> Device:
    """Return the device of one line; one of which nothing is known where the line cannot be read."""
    said = line.lower()
    fault = next((code for word, code in WORDS.items() if word in said), 0)
    cells = [cell.strip() for cell in line.split(",")]
    if len(cells) != len(OTHER_FIELDS) + 1:
        return _make_faulty_device(fault, at) if fault else Device(_UNNAMED, {})
    index, uuid, mig, errors, clocks = cells
    readings = {
        Vital.CLOCK_REASONS: _driver_device(_mask(clocks), at),
        Vital.UNCORRECTABLE_ERRORS: _driver_device(_parse_cell(errors), at),
        Vital.DRIVER_FAULT: Measured(float(fault), at),
        Vital.LAST_XID: Unsupported(),
    }
    name = f"GPU {index}" if index.isdecimal() and len(index) < 4 else _UNNAMED
    known = uuid if _IDENTITY.fullmatch(uuid) else ""
    return Device(name, readings, known, frozenset(FILLED), mig == "Enabled")


def _make_faulty_device(code: int, at: datetime) -> Device:
    return Device(_UNNAMED, {Vital.DRIVER_FAULT: Measured(float(code), at)}, asked=frozenset(FILLED))


def _is_faulty(device: Device) -> bool:
    return bool(device.value(Vital.DRIVER_FAULT))


def _mask(cell: str) -> int | None:
    """Return those bits of a mask of 64 that are faults."""
    return int(cell, 16) & _FAULTS if re.fullmatch(r"0x[0-9a-fA-F]{1,16}", cell) else None


def _parse_cell(cell: str) -> int | None:
    return int(cell) if re.fullmatch(r"[0-9]{1,18}", cell) else None


def _driver_device(value: int | None, at: datetime) -> Reading[float]:
    return Missing(Absence.NOT_A_NUMBER) if value is None else Measured(float(value), at)


def _merge_device(device: Device, listed: Iterable[Device]) -> Device:
    """Return a device that series report, with what its driver adds."""
    own = next((one for one in listed if one.uuid and one.uuid == device.uuid), None)
    if own is None:
        return device
    missing = [vital for vital in FILLED if device.reading(vital) == Missing(Absence.NO_SERIES)]
    added = {vital: own.reading(vital) for vital in missing}
    return replace(device, readings={**device.readings, **added}, asked=frozenset(missing))


def _unlisted_devices(listed: tuple[Device, ...], expected: int) -> tuple[Device, ...]:
    """Return the GPUs that a container was given and its driver does not list; parts of one do not count."""
    if any(device.is_partitioned for device in listed):
        return ()
    return tuple(Device("a GPU that is not listed", {}) for _ in range(expected - len(listed)))
