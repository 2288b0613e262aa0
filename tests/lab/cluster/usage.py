"""What a process uses, as the kernel counts it. One that is gone used nothing."""

import os
import re
from contextlib import suppress
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_KIBI = 1024


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds of a process since its start, its own and the kernel's for it."""
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS
    return 0.0


def resident_bytes(pid: int) -> int:
    """Return the memory that a process holds now."""
    return _status(pid, "VmRSS")


def peak_bytes(pid: int) -> int:
    """Return the most memory that a process ever held."""
    return _status(pid, "VmHWM")


def _status(pid: int, name: str) -> int:
    with suppress(OSError):
        found = re.search(rf"^{name}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
        return int(found[1]) * _KIBI if found else 0
    return 0
