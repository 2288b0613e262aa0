"""Scripted history for Prometheus: series as functions of time, written as blocks in one go.

Windows of an hour are tested in seconds this way (`promtool tsdb create-blocks-from openmetrics`).
"""

from __future__ import annotations

import math
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import TypeAlias

from kvmedic.metrics.page import Page

Curve: TypeAlias = Callable[[float], float | None]
"""Value at a time before the tape's end (seconds, negative); None where there is no sample."""


def constant(value: float) -> Curve:
    return lambda _: value


def rising(per_second: float, *, born: float = -math.inf, offset: float = 0.0) -> Curve:
    """A counter with a constant rate; `born` is when its process started (seconds before the end)."""

    def value(t: float) -> float | None:
        if t < born:
            return None
        return offset + per_second * (t - (born if math.isfinite(born) else -36_000.0))

    return value


def restarted(per_second: float, at: float) -> Curve:
    """The same with a restart: the counter begins again from 0."""
    return lambda t: per_second * (t + 36_000.0 if t < at else t - at)


def until(curve: Curve, last: float) -> Curve:
    """The same without samples after a time."""
    return lambda t: curve(t) if t <= last else None


@dataclass
class Tape:
    """Series of one stretch of time."""

    end: datetime
    length: timedelta = timedelta(minutes=90)
    step: timedelta = timedelta(seconds=15)
    lines: dict[str, list[str]] = field(default_factory=dict)
    known: set[tuple[str, str]] = field(default_factory=set)

    def add(self, name: str, labels: Mapping[str, str], curve: Curve) -> None:
        text = ",".join(f'{key}="{value}"' for key, value in sorted(labels.items()))
        if (name, text) in self.known:
            # promtool takes the second for samples out of order, or not, as its batches fall.
            raise ValueError(f"{name}{{{text}}} is on the tape already")
        self.known.add((name, text))
        for t in self._times():
            value = curve(t)
            if value is not None:
                stamp = self.end.timestamp() + t
                self.lines.setdefault(name, []).append(f"{name}{{{text}}} {value!r} {stamp:.3f}")

    def replay(self, first: Page, last: Page, labels: Mapping[str, str], since: float) -> None:
        """Let a recorded page turn into another in a straight line, from `since` to the end."""
        before = {
            (name, frozenset(one.labels.items()), one.bound): one.value
            for name, many in first.series.items()
            for one in many
        }
        for name, many in last.series.items():
            for one in many:
                start = before.get((name, frozenset(one.labels.items()), one.bound), 0.0)
                bound = {} if one.bound is None else {"le": f"{one.bound:g}".replace("inf", "+Inf")}
                self.add(name, {**one.labels, **bound, **labels}, _line(start, one.value, since))

    def write(self, directory: Path) -> None:
        """Write the tape as blocks of a Prometheus data directory."""
        source = directory / "tape.openmetrics"
        with source.open("w", encoding="utf-8") as file:
            for name in sorted(self.lines):
                file.writelines(line + "\n" for line in self.lines[name])
            file.write("# EOF\n")
        argv = ["promtool", "tsdb", "create-blocks-from", "openmetrics", "-q", str(source), str(directory)]
        subprocess.run(argv, check=True, capture_output=True, timeout=300)
        source.unlink()

    def _times(self) -> Iterator[float]:
        count = int(self.length / self.step)
        for i in range(-count, 1):
            yield i * self.step.total_seconds()


def _line(start: float, end: float, since: float) -> Curve:
    return lambda t: None if t < since else end + (end - start) * t / -since
