"""What `kvmedic judge` prints: the verdict, both sides' figures and every check, as text and as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from math import isfinite

from kvmedic.verdict.side_by_side import SURE, Comparison

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


def comparison_as_text(found: Comparison) -> str:
    """Return the comparison for a person; what is unknown or infinite is a dash."""
    rows = [("", "old", "new"), ("replicas", str(found.old_replicas), str(found.new_replicas))]
    for name, title, form in _ROWS:
        figures = (getattr(side, name) for side in (found.old, found.new))
        old, new = (form.format(each) if isfinite(each) else "-" for each in figures)
        rows.append((title, old, new))
    table = "\n".join(f"  {title:<28}{old:>12}{new:>12}" for title, old, new in rows)
    checks = "\n".join(
        f"  {'FAILS' if each.fails else 'passes':<7} {each.name}: {each.message}" for each in found.checks
    )
    return (
        f"{found.verdict} ({found.decided_by}): {found.message}\n"
        f"watched {found.seconds:.0f} s, routing {found.routing}\n{table}\n{checks}"
    ).rstrip()


def error_as_json(message: str) -> str:
    """Return as JSON why there is no verdict: wrong usage, or pages that cannot be compared."""
    return json.dumps({"schema": SCHEMA, "verdict": None, "error": message}, indent=2)


def comparison_as_json(found: Comparison) -> str:
    """Return the comparison as JSON; an unknown or infinite number is null."""
    return json.dumps(
        {
            "schema": SCHEMA,
            "verdict": found.verdict,
            "decidedBy": found.decided_by,
            "message": found.message,
            "seconds": found.seconds,
            "routing": found.routing,
            "old": {"replicas": found.old_replicas, **_in_camel_case(asdict(found.old))},
            "new": {"replicas": found.new_replicas, **_in_camel_case(asdict(found.new))},
            "checks": [
                {
                    "name": each.name,
                    "value": each.value,
                    "interval": [each.value - SURE * each.error, each.value + SURE * each.error],
                    "limit": each.limit,
                    "fails": each.fails,
                    "message": each.message,
                }
                for each in found.checks
            ],
        },
        indent=2,
    )


def _in_camel_case(figures: Mapping[str, float]) -> dict[str, float | None]:
    def camel(name: str) -> str:
        first, *rest = name.split("_")
        return first + "".join(each.title() for each in rest)

    return {camel(name): value if isfinite(value) else None for name, value in figures.items()}
