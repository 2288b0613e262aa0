"""How many requests a replica has in its hands, by the pages of all its engines.

A replica may have several engines, behind one port or each behind its own. It is idle only where each engine
that anybody knows of says so now: what a page does not tell is never taken for zero.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from kvmedic.core.evidence import Absence, Measured, Missing, Reading, Stale
from kvmedic.core.signals import SignalTable
from kvmedic.metrics.page import Page
from kvmedic.metrics.series import Series

_PORT = re.compile(r":(\d{1,5})$")


@dataclass(frozen=True, slots=True)
class Engine:
    """One engine of a replica, as its series name it."""

    label: str
    """Tells the engines behind one frontend apart; empty where there is one."""
    model: str
    port: int | None = None
    """Where its page is; None: not known, so that any page of the replica will do."""

    def is_on(self, others: Iterable[Engine]) -> bool:
        """Return whether one of some engines is this one; what is not known of this one may be anything."""
        return any(
            self.label in ("", one.label)
            and self.model in ("", one.model)
            and (one.port == self.port or None in (one.port, self.port))
            for one in others
        )


def engines_of(series: Iterable[Series], table: SignalTable) -> frozenset[Engine]:
    """Return the engines that a source's series tell of, with the ports that they were scraped at."""
    return frozenset(_engine(one, table, _port(one.labels.get("instance", ""))) for one in series)


def engines_on(pages: Mapping[int | None, Page], table: SignalTable) -> frozenset[Engine]:
    """Return the engines that pages tell of, by the ports of the pages; none of a page of something else."""
    names = (*table.in_flight, *table.in_flight_optional)
    return frozenset(_engine(one, table, port) for port, page in pages.items() for one in page.of(*names))


def in_flight_on(
    pages: Mapping[int | None, Page], known: Iterable[Engine], table: SignalTable, oldest: timedelta
) -> Reading[float]:
    """Return running plus waiting requests of all engines of a replica.

    Args:
        pages: of the replica, by port; of one port that nobody names the key is None.
        known: engines that the replica was seen with, whether they are on these pages or not.
        table: how the engine names its metrics.
        oldest: how far the time that a sample itself carries may be from that of its page.
    """
    engines = engines_on(pages, table)
    if not engines:
        return Missing(Absence.NO_SERIES)
    if not all(one.is_on(engines) for one in known):
        return Missing(Absence.NO_SERIES)
    series: list[Series] = []
    for engine in engines:
        page = pages[engine.port]
        for name in (*table.in_flight, *table.in_flight_optional):
            found = [one for one in page.of(name) if _engine(one, table, engine.port) == engine]
            if not found and name in table.in_flight:
                return Missing(Absence.NO_SERIES)
            series += found
    if old := _stale(pages.values(), (*table.in_flight, *table.in_flight_optional), oldest):
        return Stale(old)
    total = sum(one.value for one in series)
    if not math.isfinite(total) or any(one.value < 0 for one in series):
        return Missing(Absence.NOT_A_NUMBER)
    return Measured(total, max(page.at for page in pages.values()))


def _stale(pages: Iterable[Page], names: Sequence[str], oldest: timedelta) -> datetime | None:
    """Return the time of a sample that is not of now; None where there is none.

    Engines write no times. Something between that keeps their page for a while may.
    """
    for page in pages:
        for stamp in (page.stamps[name] for name in names if name in page.stamps):
            if not math.isfinite(stamp) or abs(page.at.timestamp() - stamp) > oldest.total_seconds():
                return datetime.fromtimestamp(stamp, UTC) if 0 <= stamp < page.at.timestamp() else page.at
    return None


def _engine(series: Series, table: SignalTable, port: int | None) -> Engine:
    return Engine(series.labels.get(table.engine_label, ""), series.labels.get(table.model_label, ""), port)


def _port(instance: str) -> int | None:
    found = _PORT.search(instance)
    return int(found[1]) if found else None
