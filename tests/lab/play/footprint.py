"""What the operator itself costs, read from /proc of the machine that runs its container."""

import os
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

COMMAND = b"/opt/kvmedic/bin/kvmedic"
"""Program of the operator's container (Containerfile)."""
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(slots=True)
class Footprint:
    """Memory and CPU of the operator since `start`; nothing where its process can't be seen."""

    _at: float = 0.0
    _cpu: dict[int, float] = field(default_factory=dict)

    def start(self) -> None:
        """Note what it has used so far."""
        self._at = time.monotonic()
        self._cpu = {pid: _cpu_seconds(pid) for pid in _processes()}

    def measured(self) -> dict[str, float]:
        """Return `rss_mib`, the most there ever was, and `cpu_share` of one core since `start`."""
        found = _processes()
        if not found:
            return {}
        used = sum(_cpu_seconds(pid) - self._cpu.get(pid, 0.0) for pid in found)
        memory = sum(_peak_mib(pid) for pid in found)
        return {"rss_mib": round(memory, 1), "cpu_share": round(used / (time.monotonic() - self._at), 4)}


def _processes() -> list[int]:
    found = []
    for directory in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if COMMAND in (directory / "cmdline").read_bytes().split(b"\0"):
                found.append(int(directory.name))
    return found


def _cpu_seconds(pid: int) -> float:
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS
    return 0.0


def _peak_mib(pid: int) -> float:
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    return 0.0
