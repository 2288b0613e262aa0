"""What one page of an engine's metrics says of its work since it started."""

from __future__ import annotations

from collections.abc import Iterable
from math import fsum, isfinite

from kvmedic.core.evidence import Absence, Measured, Missing, Pool, Reading, Signal
from kvmedic.core.gating import Counted, Served
from kvmedic.core.signals import CounterSource, HistogramSource, SignalTable
from kvmedic.metrics.exposition import replica_of
from kvmedic.metrics.page import Page
from kvmedic.metrics.pools import pool
from kvmedic.metrics.series import Series


def served_of(page: Page, table: SignalTable, url: str) -> Served | str:
    """Return what an engine serves and has done so far, or why its page does not tell.

    Args:
        page: as it is now.
        table: how the engine names its metrics.
        url: of its API.
    """
    model = model_of(page, table)
    if model is None:
        return "the engine's metrics do not tell its model"
    counted = counted_of(page, table)
    if counted is None:
        return "the engine's metrics do not tell its finished requests"
    found = pool_of(page, table)
    return Served(url, model, found.value.cache_dtype if isinstance(found, Measured) else "", counted)


def pool_of(page: Page, table: SignalTable) -> Reading[Pool]:
    """Return an engine's pool by its page."""
    replica = replica_of(page, table)
    return pool(replica, page.of(table.pool.name)) if replica else Missing(Absence.NO_SERIES)


def model_of(page: Page, table: SignalTable) -> str | None:
    """Return the name under which an engine serves; None where its page does not tell."""
    return next(filter(None, (one.labels.get(table.model_label) for one in page.of(table.presence))), None)


def counted_of(page: Page, table: SignalTable) -> Counted | None:
    """Return an engine's finished requests and their tokens; None where a number is none."""
    finished, lengths = table.signals[Signal.REQUESTS_FINISHED], (Signal.PROMPT_LENGTH, Signal.OUTPUT_LENGTH)
    if not isinstance(finished, CounterSource):
        return None
    part = finished.part
    answered = [
        one
        for one in _first(page, finished.names)
        if part is None or part.holds(one.labels.get(part.label, ""))
    ]
    requests = fsum(one.value for one in answered)
    tokens = fsum(_summed(page, table, signal) for signal in lengths)
    return Counted(round(requests), tokens) if isfinite(requests) and isfinite(tokens) else None


def _summed(page: Page, table: SignalTable, signal: Signal) -> float:
    source = table.signals[signal]
    names = source.names if isinstance(source, HistogramSource) else ()
    return fsum(one.value for one in _first(page, [f"{name}_sum" for name in names]))


def _first(page: Page, names: Iterable[str]) -> tuple[Series, ...]:
    """Return the series of the first name that the page has."""
    return next(filter(None, (page.of(name) for name in names)), ())
