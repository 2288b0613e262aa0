"""Do replicas that run a change stay up? The verdict on a change that is to end restarts.

The figures of before are no measure: replicas that restart have none. What counts is that no replica
that runs the change restarted over the sustained window **while requests were served**: a replica
without traffic does not run out of memory, and proves nothing.
"""

from __future__ import annotations

from kvmedic.core.baseline import FEWEST_FINISHED
from kvmedic.core.complete import complete, total
from kvmedic.core.diagnosis import Inconclusive
from kvmedic.core.evidence import Observation, Signal
from kvmedic.core.judged import Judged, Verdict, not_recovered, undecided
from kvmedic.core.reasons import Reason

NEEDED = frozenset({Signal.REQUESTS_FINISHED})
"""Signals that the verdict needs of every replica."""


def steadiness(observation: Observation, restarts: int) -> Judged:
    """Return whether replicas stay up with a change.

    Args:
        observation: the look over the sustained window, at replicas that run the change only.
        restarts: restarts of those replicas; each was started by the change, so each restart is new.
    """
    if restarts > 0:
        text = f"{restarts} restarts of replicas that run the change"
        return not_recovered(text)
    found = complete(observation, NEEDED)
    if isinstance(found, Inconclusive):
        return undecided(found)
    finished = total(found, Signal.REQUESTS_FINISHED)
    seen = f"{finished:.0f} requests finished in {observation.window_seconds:.0f} s"
    if finished < FEWEST_FINISHED:
        text = f"{seen}, {FEWEST_FINISHED} are needed: without load nothing runs out of memory; wait"
        return Judged(Verdict.INCONCLUSIVE, Reason.TOO_FEW_REQUESTS, text)
    text = f"none of {len(found)} replicas restarted; {seen}"
    return Judged(Verdict.RECOVERED, Reason.RECOVERED, text)
