"""Durations and quantities in Kubernetes' own grammar.

Durations are what Go's `time.ParseDuration` reads, without signs, without units below a millisecond
and with at most five digits before and three after the point: `80ms`, `90s`, `1.5h`, `1h30m`.
Quantities are what `resource.Quantity` reads: `24Gi`, `500m`, `1e3`.
"""

from __future__ import annotations

import re
from datetime import timedelta
from decimal import Decimal

from kvmedic.model.compression import QUANTITY_PATTERN, parse_quantity

__all__ = [
    "DURATION_LENGTH",
    "DURATION_PATTERN",
    "QUANTITY_PATTERN",
    "format_duration",
    "parse_duration",
    "parse_quantity",
]

DURATION_PATTERN = "^([0-9]{1,5}([.][0-9]{1,3})?(ms|s|m|h))+$"
"""Readable by CEL, Go and Python alike. Five digits keep every duration of `DURATION_LENGTH`
characters within the 292 years that Go's nanoseconds can hold."""

DURATION_LENGTH = 16
"""Characters of a duration, at most; the longest sensible one, `99h59m59s999ms`, has 14."""

_DURATION = re.compile(DURATION_PATTERN)
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)")
_UNITS = {"ms": 1_000, "s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000}


def parse_duration(text: str) -> timedelta:
    """Return a duration, exact to the microsecond.

    Raises:
        ValueError: the text is not a duration.
    """
    if not _DURATION.fullmatch(text):
        raise ValueError(f"{text!r} is not a duration: write one such as 80ms, 90s, 10m or 1h30m")
    microseconds = sum(Decimal(number) * _UNITS[unit] for number, unit in _PART.findall(text))
    return timedelta(microseconds=int(microseconds))


def format_duration(duration: timedelta) -> str:
    """Return a duration in its shortest form: `1h30m`, `80ms`, `0s`. Parts of a millisecond are dropped.

    Raises:
        ValueError: the duration is negative.
    """
    if duration < timedelta(0):
        raise ValueError(f"{duration} is negative: Kubernetes durations of this resource never are")
    rest = duration // timedelta(milliseconds=1)
    parts = []
    for unit in ("h", "m", "s", "ms"):
        count, rest = divmod(rest, _UNITS[unit] // 1_000)
        parts.append(f"{count}{unit}" if count else "")
    return "".join(parts) or "0s"
