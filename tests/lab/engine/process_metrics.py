"""The `python_*` and `process_*` families that prometheus_client adds on Linux, about this process."""

import gc
import os
import platform
import resource
import sys
from pathlib import Path

from lab.engine.exposition import Family

_GC = (
    ("collected", "python_gc_objects_collected_total", "Objects collected during gc"),
    ("uncollectable", "python_gc_objects_uncollectable_total", "Uncollectable objects found during GC"),
    ("collections", "python_gc_collections_total", "Number of times this generation was collected"),
)


def process_families() -> list[Family]:
    return [*_gc_families(), _python_info(), *_process_families()]


def _gc_families() -> list[Family]:
    families = []
    for key, name, text in _GC:
        family = Family(name, "counter", text)
        for generation, numbers in enumerate(gc.get_stats()):
            family.number(generation=str(generation)).value = numbers[key]
        families.append(family)
    return families


def _python_info() -> Family:
    family = Family("python_info", "gauge", "Python platform information")
    major, minor, patch = (str(part) for part in sys.version_info[:3])
    family.number(
        version=platform.python_version(),
        implementation=platform.python_implementation(),
        major=major,
        minor=minor,
        patchlevel=patch,
    ).value = 1.0
    return family


def _process_families() -> list[Family]:
    stat = Path("/proc/self/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    ticks = os.sysconf("SC_CLK_TCK")
    # Fields of proc(5) counted from 3: utime 14, stime 15, starttime 22, vsize 23, rss 24.
    values = (
        ("virtual_memory_bytes", "gauge", "Virtual memory size in bytes.", float(stat[20])),
        (
            "resident_memory_bytes",
            "gauge",
            "Resident memory size in bytes.",
            int(stat[21]) * resource.getpagesize(),
        ),
        (
            "start_time_seconds",
            "gauge",
            "Start time of the process since unix epoch in seconds.",
            _boot_time() + int(stat[19]) / ticks,
        ),
        (
            "cpu_seconds_total",
            "counter",
            "Total user and system CPU time spent in seconds.",
            (int(stat[11]) + int(stat[12])) / ticks,
        ),
        ("open_fds", "gauge", "Number of open file descriptors.", len(os.listdir("/proc/self/fd"))),
        (
            "max_fds",
            "gauge",
            "Maximum number of open file descriptors.",
            resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        ),
    )
    families = []
    for name, kind, text, value in values:
        family = Family(f"process_{name}", kind, text)
        family.number().value = float(value)
        families.append(family)
    return families


def _boot_time() -> float:
    for line in Path("/proc/stat").read_text(encoding="ascii").splitlines():
        if line.startswith("btime "):
            return float(line.split()[1])
    return 0.0
