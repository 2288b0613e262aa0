"""A history that thrashes at night and is calm by day, from recorded pages, for a real Prometheus."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from kvmedic.engines.vllm_signals import VLLM_SIGNALS
from kvmedic.metrics.page import Page, names_of, parse_page
from worlds.metric_tape import Curve, Tape

DATA = Path(__file__).parents[1] / "data" / "vllm"
RECORDED_SECONDS = 300.0
"""Between the pages `idle` and `thrash`, as they are replayed: the recording's own load is as dense."""
BY_DAY = 0.2
"""Share of the night's requests that come by day."""
GAUGES = {
    "vllm:num_requests_running": (3.0, 13.0),
    "vllm:num_requests_waiting": (0.0, 10.0),
    "vllm:kv_cache_usage_perc": (0.2, 0.96),
}
"""By day and at night: at night about what the recording's clients kept, each sending again once answered."""
HURTS = re.compile("preemption|inter_token")
"""By day nothing is preempted, and of gaps between tokens there are only the recorded night's."""
STEADY = re.compile("process_|python_|.*_info$|.*_created$")


@dataclass(frozen=True)
class Replica:
    """One replica; times are seconds before the tape's end (negative)."""

    name: str
    born: float
    gone: float = 0.0
    restarted: float | None = None
    """When its counters began anew."""


@dataclass(frozen=True)
class Nights:
    """When the fleet thrashes, and when nobody scraped it; stretches of seconds before the end."""

    nights: Sequence[tuple[float, float]]
    gaps: Sequence[tuple[float, float]] = ()

    def tape(self, end: datetime, length: timedelta, step: timedelta, replicas: Sequence[Replica]) -> Tape:
        """Return the history of some replicas."""
        tape = Tape(end, length, step)
        idle, thrash = (
            parse_page((DATA / f"metrics-{name}.txt").read_text(), end) for name in ("idle", "thrash")
        )
        for each in replicas:
            self._record(tape, each, idle, thrash)
        return tape

    def _record(self, tape: Tape, replica: Replica, idle: Page, thrash: Page) -> None:
        target = {
            "namespace": "default",
            "pod": replica.name,
            "instance": f"{replica.name}:8000",
            "job": "vllm",
        }
        before = {
            (name, frozenset(one.labels.items()), one.bound): one.value
            for name, many in idle.series.items()
            for one in many
        }
        asked = names_of(VLLM_SIGNALS)
        for name, many in thrash.series.items():
            for one in many if name in asked else ():
                risen = one.value - before.get((name, frozenset(one.labels.items()), one.bound), 0.0)
                bound = {} if one.bound is None else {"le": f"{one.bound:g}".replace("inf", "+Inf")}
                curve = self._curve(name, one.value, risen / RECORDED_SECONDS, replica)
                tape.add(name, {**one.labels, **bound, **target}, self._seen(curve, replica))

    def _curve(self, name: str, value: float, per_second: float, replica: Replica) -> Curve:
        if name in GAUGES:
            by_day, at_night = GAUGES[name]
            return lambda t: at_night if self.is_night(t) else by_day
        if STEADY.match(name):
            return lambda _: value
        by_day = 0.0 if HURTS.search(name) else BY_DAY
        since = replica.restarted

        def risen(t: float) -> float:
            began = replica.born if since is None or t < since else since
            night = sum(max(0.0, min(t, last) - max(began, first)) for first, last in self.nights)
            return per_second * (night + by_day * (t - began - night))

        return risen

    def is_night(self, t: float) -> bool:
        """Return whether the fleet thrashes."""
        return any(first <= t < last for first, last in self.nights)

    def _seen(self, curve: Curve, replica: Replica) -> Curve:
        def seen(t: float) -> float | None:
            is_lost = any(first <= t < last for first, last in self.gaps)
            return None if is_lost or not replica.born <= t <= replica.gone else curve(t)

        return seen
