"""The most that replicas were asked for over ten minutes of the last day: one query for a whole source."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from math import isfinite

from kvmedic.core.evidence import Absence, Measured, Missing, Reading, Signal
from kvmedic.core.signals import CounterSource, HistogramSource, SignalTable
from kvmedic.metrics.promql import duration_text
from kvmedic.metrics.series import PodKey, Reply, Unanswered, own_series

DAY = timedelta(hours=24)
"""How far back: load that comes each day is in it once. A source that keeps less tells what it has."""
WINDOW = timedelta(minutes=10)
"""Over how long load counts: a shorter peak is over before a queue that it left keeps many waiting."""


def peak_query(table: SignalTable) -> str:
    """Return the query for the most tokens per second that each replica was asked for.

    Requests that arrived (ended, or joined who runs and waits) times the mean output of those that
    were answered.
    """
    window, seconds = duration_text(WINDOW), WINDOW.total_seconds()
    ended = _total(table, _newest(f"increase({name}[{window}])" for name in _finished(table).names))
    joined = " + ".join(_total(table, f"delta({name}[{window}])") for name in table.in_flight)
    outputs = _outputs(table).names
    tokens = _total(table, _newest(f"increase({name}_sum[{window}])" for name in outputs))
    answers = _total(table, _newest(f"increase({name}_count[{window}])" for name in outputs))
    offered = f"({ended} + {joined}) * {tokens} / ({answers} > 0) / {seconds:g}"
    return f"max_over_time(({offered})[{duration_text(DAY)}:{window}])"


def peaks_of(
    pods: Iterable[PodKey], reply: Reply, at: datetime, addresses: Mapping[str, str]
) -> dict[str, Reading[float]]:
    """Return the peak of each pod that was asked for, by its name: tokens per second.

    Of several scrapers of one replica the one that saw most counts, so that no cap is thought to do.
    """
    return {pod.name: _peak(pod, reply, at, addresses.get(pod.name, "")) for pod in pods}


def _peak(pod: PodKey, reply: Reply, at: datetime, address: str) -> Reading[float]:
    if isinstance(reply, Unanswered):
        return Missing(Absence.SOURCE_UNAVAILABLE)
    values = [one.value for one in own_series(reply.of(pod), address)]
    if not values:
        return Missing(Absence.NO_SERIES)
    known = [value for value in values if isfinite(value)]
    return Measured(max(known), at) if known else Missing(Absence.NOT_A_NUMBER)


def _finished(table: SignalTable) -> CounterSource:
    source = table.signals[Signal.REQUESTS_FINISHED]
    if not isinstance(source, CounterSource):
        raise TypeError("finished requests are counted")
    return source


def _outputs(table: SignalTable) -> HistogramSource:
    source = table.signals[Signal.OUTPUT_LENGTH]
    if not isinstance(source, HistogramSource):
        raise TypeError("lengths of outputs are a histogram")
    return source


def _newest(alternatives: Iterable[str]) -> str:
    return " or ".join(alternatives)


def _total(table: SignalTable, text: str) -> str:
    return f"sum without ({', '.join(sorted(table.own_labels))}) ({text})"
