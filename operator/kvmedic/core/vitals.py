"""How a replica fares beside its engine's own metrics: its devices, and how its engine last ended.

A device's series come from NVIDIA's DCGM exporter; its driver tells more where an administrator lets the
operator ask it. The end of an engine comes from Kubernetes. Absent is unknown, never healthy. Nothing here
fetches anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType

from kvmedic.core.evidence import Absence, Measured, Missing, Reading, Unsupported
from kvmedic.core.silence import Silence


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
    """The driver's own code for a device that cannot be used; 0: none. Only `nvidia-smi` tells it."""
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
"""What tells whether a node is healthy. Row remapping exists from Ampere on only. One that whoever tells of
the device can never tell (`Unsupported`) is not waited for."""
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
    """The device's own identity; empty where it is not told."""
    asked: frozenset[Vital] = frozenset()
    """What no series tells of it, so that its driver was asked (`nvidia-smi`)."""
    is_partitioned: bool = False
    """Its driver says that it is shared out in parts (MIG)."""

    def reading(self, vital: Vital) -> Reading[float]:
        """Return one reading; a vital that no series told of is missing."""
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

    def unknown(self) -> tuple[Vital, ...]:
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
    silence: Silence | None = None
    """Why its driver, asked, did not make its health known; None: nobody asked, or it did."""

    def unknown(self) -> tuple[Vital, ...]:
        """Return what would have to be known of its devices; the default set where no device is known."""
        devices = self.devices.value if isinstance(self.devices, Measured) else ()
        if not devices:
            return BY_DEFAULT
        return tuple(vital for vital in NEEDED if any(vital in device.unknown() for device in devices))

    def was_asked(self) -> bool:
        """Return whether its driver told something of its devices."""
        devices = self.devices.value if isinstance(self.devices, Measured) else ()
        return any(device.asked for device in devices)
