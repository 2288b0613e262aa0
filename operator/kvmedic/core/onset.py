"""Since when a fleet is under pressure, so that its figures of before are figures under pressure.

A window that also holds the minutes before the load came shows less throughput than the fleet had under
it, and a change that costs throughput would then look as if it cost none. Preemptions tell when the
pressure began: the window is cut into parts, and the part in which they began is left out.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

from kvmedic.core.complete import number
from kvmedic.core.diagnosis import Trigger
from kvmedic.core.evidence import Observation, Signal

PARTS = 5
"""Parts of a window. Of the default window of 5 minutes each has four scrapes at the usual 15 s."""
SHORTEST = timedelta(minutes=2)
"""The least that figures may rest on: over 2 minutes 106 of 111 simulated right caps were recognised, 109 of
112 over 5 minutes (docs/explanation/verdict-thresholds.md)."""
BEGUN = 0.5
"""Preemptions of a window's first part over those of its parts on average, from which the pressure was
there. Rates are extrapolated to the ends of a window by up to one scrape, a third of that at most with
four scrapes in a part."""


def pressured(burn: Observation, trigger: Trigger) -> tuple[str, ...]:
    """Return the replicas that preempt beyond the trigger."""
    held = {name: number(pod, Signal.PREEMPTIONS_PER_REQUEST_HELD) for name, pod in burn.pods.items()}
    return tuple(name for name, rate in held.items() if (rate or 0.0) > trigger.preemptions_per_request)


def preemptions(seen: Observation, names: Iterable[str]) -> float:
    """Return the preemptions of some replicas together; one that does not tell counts 0."""
    return sum(number(seen.pods[name], Signal.PREEMPTIONS) or 0.0 for name in names)


def has_begun(window: float, without_first: float, parts: int) -> bool:
    """Return whether the pressure was there in the first part of a window.

    Args:
        window: preemptions of the whole window.
        without_first: preemptions of the window without its first part.
        parts: how many parts the window has.
    """
    return window > 0 and window - without_first >= BEGUN * window / parts
