"""One page in Prometheus' text format, which anybody who runs a pod may have written.

A page is bounded before it is parsed: lines of other metrics are left out, so that what they hold costs
nothing. Whatever the parser meets that it cannot read makes the text no page.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from kvmedic.core.signals import (
    ChangeSource,
    CounterSource,
    GaugeSource,
    HeldRatioSource,
    HistogramSource,
    SignalSource,
    SignalTable,
    StartSource,
)
from kvmedic.metrics.series import Series, add_once, series_of

LINE_CHARACTERS = 4096
"""Length of a line, at most. The longest of vLLM 0.32 is 1,055, its description of the cache."""
LINE_LABELS = 64
"""Labels of a series, at most. The most of vLLM 0.32 are 37, of its description of the cache."""

_SERIES = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*+)(?:[ \t]*+\{|[ \t]++[-+.0-9NnIi])")
"""How a line with a series begins. Names in quotes come to those alone who ask for them."""
_PARSER_ERRORS = (ArithmeticError, AssertionError, AttributeError, LookupError, RecursionError, TypeError)
"""What the parser raises beside ValueError where a text is odd; `{, =a 1` is an IndexError (0.26)."""


@dataclass(frozen=True, slots=True)
class Page:
    """One scraped page: its series by name."""

    at: datetime
    series: Mapping[str, tuple[Series, ...]]
    stamps: Mapping[str, float] = field(default_factory=dict)
    """The oldest time (Unix seconds) that samples of a name carry themselves; engines write none."""

    def of(self, *names: str) -> tuple[Series, ...]:
        """Return all series of some names."""
        return tuple(one for name in names for one in self.series.get(name, ()))


def parse_page(text: str, at: datetime, names: frozenset[str] | None = None) -> Page:
    """Return a page of the Prometheus text format.

    Args:
        text: the page.
        at: when it was read.
        names: of the metrics that count; None: all.

    Raises:
        ValueError: the text is not in that format, or a line of a metric that counts is too large.
    """
    try:
        families = tuple(text_string_to_metric_families("\n".join(_lines(text, names))))
        return Page(at, _series_by_name(families), _stamps_by_name(families))
    except _PARSER_ERRORS as error:
        raise ValueError(f"the parser cannot read it ({type(error).__name__})") from None


def names_of(table: SignalTable) -> frozenset[str]:
    """Return the names of all metrics of a page that mean anything for an engine."""
    own = {table.presence, table.pool.name, *table.in_flight, *table.in_flight_optional, *table.steps.names}
    return frozenset(own.union(*map(_names, table.signals.values())))


def _names(source: SignalSource) -> Iterable[str]:
    match source:
        case CounterSource(names=names) | GaugeSource(names=names) | ChangeSource(names=names):
            return names
        case HistogramSource(names=names):
            return (f"{name}{part}" for name in names for part in ("_bucket", "_sum", "_count"))
        case HeldRatioSource(numerator=above, denominator=below):
            return (*above.names, *below.names)
        case StartSource(name=name):
            return (name,)


def _lines(text: str, names: frozenset[str] | None) -> Iterator[str]:
    """Yield the lines of the metrics that count; the rest only has to look like a page.

    Raises:
        ValueError: a line is none of a page, or too long.
    """
    for number, line in enumerate(map(str.strip, text.split("\n")), 1):
        if not line or line.startswith("#"):
            continue
        found = _SERIES.match(line)
        if found is None:
            raise ValueError(f"line {number} is no series")
        if names is not None and found.group(1) not in names:
            continue
        if len(line) > LINE_CHARACTERS:
            raise ValueError(f"line {number} has more than {LINE_CHARACTERS} characters")
        yield line


def _series_by_name(families: Iterable[Metric]) -> Mapping[str, tuple[Series, ...]]:
    found: dict[str, dict[tuple[object, ...], Series]] = {}
    for sample in (sample for family in families for sample in family.samples):
        if len(sample.labels) > LINE_LABELS:
            raise ValueError(f"a series of {sample.name} has more than {LINE_LABELS} labels")
        one = series_of(dict(sample.labels), float(sample.value))
        add_once(found.setdefault(sample.name, {}), (one.bound, *sorted(one.labels.items())), one)
    return {name: tuple(many.values()) for name, many in found.items()}


def _stamps_by_name(families: Iterable[Metric]) -> Mapping[str, float]:
    found: dict[str, float] = {}
    for sample in (sample for family in families for sample in family.samples):
        if sample.timestamp is not None:
            stamp = float(sample.timestamp)
            found[sample.name] = min(stamp, found.get(sample.name, stamp))
    return found
