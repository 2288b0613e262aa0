"""What `kvmedic judge` prints: the verdict, both sides' figures and every check, as text and as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict
from math import exp, isfinite

from kvmedic.verdict.figure_intervals import CONFIDENCE, MOMENTS, Interval, Intervals
from kvmedic.verdict.side_by_side import SURE, Check, Comparison, Figures

SCHEMA = "kvmedic.io/judge/v1"
"""Version of the JSON: fields are added under it, and none is taken away or changes its meaning."""
_ROWS = (
    ("first_tokens", "first tokens", "{:.0f}"),
    ("arrivals_per_second", "requests/s of a replica", "{:.3g}"),
    ("tokens_per_second", "tokens/s of a replica", "{:.4g}"),
    ("in_time_share", "share served in time", "{:.1%}"),
    ("served_in_time_per_second", "tokens/s served in time", "{:.4g}"),
    ("stalls_per_request", "stalls over 2 s per request", "{:.3f}"),
    ("silent_seconds", "silent seconds per request", "{:.1f}"),
    ("waiting", "waiting on a replica", "{:.1f}"),
    ("in_flight", "in flight on a replica", "{:.1f}"),
    ("queued_share", "arrivals that only queued", "{:+.1%}"),
)
"""Figures of both sides: field, name, and how it is printed."""


_LOGARITHMS = frozenset({"served-in-time", "served-when-full", "arrivals"})
"""Checks whose value is the logarithm of new over old; those of the others are shares."""


def comparison_as_text(found: Comparison, old: Intervals, new: Intervals) -> str:
    """Return the comparison for a person, each figure with its interval; what is unknown is a dash."""
    rows = [("", "old", "new"), ("replicas", str(found.old_replicas), str(found.new_replicas))]
    for name, title, form in _ROWS:
        sides = ((found.old, old), (found.new, new))
        before, after = (_with_interval(getattr(side, name), many.get(name), form) for side, many in sides)
        rows.append((title, before, after))
    table = "\n".join(f"  {title:<28}{before:>29}{after:>29}" for title, before, after in rows)
    checks = "\n".join(
        f"  {'FAILS' if each.fails else 'passes':<7} {each.name}: {each.message} ({_range_of(each)})"
        for each in found.checks
    )
    few = f"; what is read off moments has one from {MOMENTS} of them on" if old["waiting"] is None else ""
    return (
        f"{found.verdict} ({found.decided_by}): {found.message}\n"
        f"watched {found.seconds:.0f} s, routing {found.routing}\n{table}\n{checks}"
    ).rstrip() + f"\nin brackets: the range in which a figure lies with {CONFIDENCE:.0%} confidence{few}"


def _with_interval(value: float, interval: Interval | None, form: str) -> str:
    if not isfinite(value):
        return "-"
    text = form.format(value)
    return text if interval is None else f"{text} ({_from_to(interval, form)})"


def _from_to(interval: Interval, form: str) -> str:
    return f"{form.format(interval.low)} to {form.format(interval.high)}"


def _interval_of(check: Check) -> Interval:
    """Return between what the value of a check lies, in its own unit."""
    return Interval(check.value - SURE * check.error, check.value + SURE * check.error)


def _range_of(check: Check) -> str:
    """Return the interval of a check as a person reads it."""
    found = _interval_of(check)
    if check.name in _LOGARITHMS:
        return f"x {_from_to(Interval(exp(found.low), exp(found.high)), '{:.2f}')}"
    if check.name == "queue":
        return _from_to(found, "{:+.0%}")
    return _from_to(Interval(max(0.0, found.low), min(1.0, found.high)), "{:.0%}")


def error_as_json(message: str) -> str:
    """Return as JSON why there is no verdict: wrong usage, or pages that cannot be compared."""
    return json.dumps({"schema": SCHEMA, "verdict": None, "error": message}, indent=2)


def comparison_as_json(found: Comparison, old: Intervals, new: Intervals) -> str:
    """Return the comparison as JSON; an unknown or infinite number is null, and so is an unknown interval."""
    return json.dumps(
        {
            "schema": SCHEMA,
            "verdict": found.verdict,
            "decidedBy": found.decided_by,
            "message": found.message,
            "seconds": found.seconds,
            "routing": found.routing,
            "confidence": CONFIDENCE,
            "old": _side_as_json(found.old_replicas, found.old, old),
            "new": _side_as_json(found.new_replicas, found.new, new),
            "checks": [
                {
                    "name": each.name,
                    "value": each.value,
                    "interval": [_interval_of(each).low, _interval_of(each).high],
                    "limit": each.limit,
                    "fails": each.fails,
                    "message": each.message,
                }
                for each in found.checks
            ],
        },
        indent=2,
    )


def _side_as_json(replicas: int, figures: Figures, intervals: Intervals) -> dict[str, object]:
    numbers = {_camel(name): value if isfinite(value) else None for name, value in asdict(figures).items()}
    ranges = {_camel(name): None if each is None else asdict(each) for name, each in intervals.items()}
    return {"replicas": replicas, **numbers, "intervals": ranges}


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(each.title() for each in rest)
