"""How urgent the trouble of a fleet with an open run is, looked at whenever the run waits.

A run may take an hour; whether somebody suffers changes meanwhile. Nothing is asked where the spec
names no objective, nor between two moves that a controller is still acting on.
"""

from __future__ import annotations

from dataclasses import replace

from kvmedic.core.evidence import Look
from kvmedic.core.fleet import Fleet
from kvmedic.core.severity import NO_OBJECTIVES, signals_of, unmeasured, urgency
from kvmedic.walks import Tick


async def graded(tick: Tick, fleet: Fleet) -> Tick:
    """Return the tick with the urgency as it is now; as it was where nobody can look at the objectives."""
    shown, policy = tick.record.urgency, tick.policy
    signals = signals_of(policy.objectives)
    if tick.problem is not None:
        return tick
    if not signals:
        return replace(tick, urgency=unmeasured(NO_OBJECTIVES, tick.now, shown))
    asked = Look(policy.windows.trigger, signals=signals)
    seen = await tick.ports.metrics.look(policy.source, fleet.live, tick.resource.namespace, asked)
    return replace(tick, urgency=urgency(seen, policy.objectives, shown))
