"""The figures that a change is judged against: of the fleet under pressure, and of nothing before it."""

from __future__ import annotations

from datetime import timedelta

from kvmedic.core.baseline import NEEDED, Baseline
from kvmedic.core.diagnosis import Goal, Inconclusive
from kvmedic.core.evidence import Look, Signal
from kvmedic.core.onset import PARTS, SHORTEST, has_begun, preemptions, pressured
from kvmedic.core.policy import Policy
from kvmedic.core.reasons import Reason
from kvmedic.findings import Survey
from kvmedic.ports import Metrics

_ASKED = NEEDED | {Signal.STARTED_SECONDS, Signal.REQUESTS_ABORTED}
_BEGIN = frozenset({Signal.PREEMPTIONS})


async def pressed_baseline(
    found: Survey, policy: Policy, namespace: str, metrics: Metrics
) -> Baseline | Inconclusive | None:
    """Return the fleet's figures under pressure, or why there are none; None where none are needed.

    Where the pressure began within the trigger's window, they are of the part since then. Where the
    trigger held for as long as a window, or that is no longer than the shortest, the window does.
    """
    window = policy.windows.trigger
    if found.goal is not Goal.RELIEF or policy.windows.hold >= window or window <= SHORTEST:
        return found.baseline()
    since = await _pressed_for(found, policy, namespace, metrics)
    if since >= window:
        return found.baseline()
    if since < SHORTEST:
        text = (
            f"the pressure began less than {SHORTEST.total_seconds():.0f} s ago, too short a time for the "
            "figures that a change is judged against; wait"
        )
        return Inconclusive(Reason.WINDOW_TOO_SHORT, text)
    look = Look(since, signals=_ASKED)
    return found.baseline_over(await metrics.look(policy.source, found.judged, namespace, look))


async def _pressed_for(found: Survey, policy: Policy, namespace: str, metrics: Metrics) -> timedelta:
    """Return for how long the pressured replicas preempt, in whole parts of the window; at most the window.

    The part in which it began is not counted: nobody knows how much of it was calm.
    """
    names = pressured(found.burn, policy.trigger)
    part = policy.windows.trigger / PARTS

    async def counted(parts: int) -> float:
        asked = Look(part * parts, signals=_BEGIN)
        seen = await metrics.look(policy.source, found.judged, namespace, asked)
        return preemptions(seen, names)

    longer = await counted(PARTS + 1)
    for parts in range(PARTS, 0, -1):
        shorter = await counted(parts)
        if has_begun(longer, shorter, parts + 1):
            return part * parts
        longer = shorter
    return timedelta(0)
