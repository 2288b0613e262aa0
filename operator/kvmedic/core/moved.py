"""What a fleet's traffic is like, and what of it moved since it was healthy.

A figure that cannot be told is None and is never taken for one that stayed.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvmedic.core.complete import histogram, number
from kvmedic.core.evidence import Observation, Signal

MOVED = 0.8
"""The smaller over the larger figure, under which it counts as moved: a verdict calls mean lengths unlike,
and a load lighter, from the same difference on."""

TRAFFIC = frozenset(
    {
        Signal.REQUESTS_FINISHED,
        Signal.REQUESTS_IN_FLIGHT_CHANGE,
        Signal.PROMPT_LENGTH,
        Signal.OUTPUT_LENGTH,
        Signal.OUTPUT_LIMIT,
    }
)
"""The signals that tell it."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """What clients send to a whole fleet, over one window."""

    requests_per_second: float | None = None
    """Arrivals: (finished + change of running and waiting) / window."""
    prompt_tokens: float | None = None
    """Of the finished requests, on average."""
    output_tokens: float | None = None
    limit_tokens: float | None = None
    """`max_tokens` that they asked for, on average."""


def traffic_of(seen: Observation) -> Traffic:
    """Return what clients send, as far as every replica tells it."""
    return Traffic(
        requests_per_second=_arrivals(seen),
        prompt_tokens=_mean(seen, Signal.PROMPT_LENGTH),
        output_tokens=_mean(seen, Signal.OUTPUT_LENGTH),
        limit_tokens=_mean(seen, Signal.OUTPUT_LIMIT),
    )


def moves(then: Traffic, now: Traffic) -> tuple[str, ...]:
    """Return each figure that moved, as `outputs 190 -> 700 tokens`; those that are not known did not."""
    pairs = (
        ("arrivals", "/s", then.requests_per_second, now.requests_per_second),
        ("prompts", " tokens", then.prompt_tokens, now.prompt_tokens),
        ("outputs", " tokens", then.output_tokens, now.output_tokens),
        ("max_tokens", "", then.limit_tokens, now.limit_tokens),
    )
    return tuple(
        f"{name} {_shown(before)} -> {_shown(after)}{unit}"
        for name, unit, before, after in pairs
        if before is not None and after is not None and min(before, after) < MOVED * max(before, after)
    )


def _shown(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.2g}"


def _arrivals(seen: Observation) -> float | None:
    finished = [number(pod, Signal.REQUESTS_FINISHED) for pod in seen.pods.values()]
    changed = [number(pod, Signal.REQUESTS_IN_FLIGHT_CHANGE) for pod in seen.pods.values()]
    known = [each for each in (*finished, *changed) if each is not None]
    if not finished or len(known) < 2 * len(seen.pods) or not 0 < seen.window_seconds < float("inf"):
        return None
    return max(0.0, sum(known) / seen.window_seconds)


def _mean(seen: Observation, signal: Signal) -> float | None:
    found = [histogram(pod, signal) for pod in seen.pods.values()]
    known = [each for each in found if each is not None]
    count = sum(each.count for each in known)
    if len(known) < len(found) or count <= 0:
        return None
    return sum(each.total for each in known) / count
