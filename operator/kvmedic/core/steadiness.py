"""Do replicas that run a change stay up? The verdict on a change that is to end restarts.

The figures of before are no measure: replicas that restart have none. What counts is that no replica
that runs the change restarted over the sustained window **while requests were served**: a replica
without traffic does not run out of memory, and proves nothing. Where no replica served before the change,
one that is up with it is better than none, and is not taken away again.
"""

from __future__ import annotations

from dataclasses import replace

from kvmedic.core.baseline import FEWEST_FINISHED
from kvmedic.core.complete import complete, total
from kvmedic.core.diagnosis import Inconclusive
from kvmedic.core.evidence import Observation, Signal
from kvmedic.core.judged import Judged, Verdict, restarted, undecided
from kvmedic.core.policy import OnInconclusive
from kvmedic.core.reasons import Reason

NEEDED = frozenset({Signal.REQUESTS_FINISHED})
"""Signals that the verdict needs of every replica."""


def steadiness(observation: Observation, restarts: int) -> Judged:
    """Return whether replicas stay up with a change.

    Args:
        observation: the look over the sustained window, at replicas that run the change only.
        restarts: restarts of those replicas; each was started by the change, so each restart is new.
    """
    if down := restarted(restarts):
        return down
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


def in_view_of_none_before(judged: Judged, up: int, otherwise: OnInconclusive) -> Judged:
    """Return a verdict on a fleet of which no replica served before the change.

    Taking the change back would take the fleet down again. So replicas that are up with it are an
    improvement, also where some restarted, or where nobody can say more and the spec would take it back.

    Args:
        judged: the verdict as of any other fleet.
        up: replicas that are Ready with the change.
        otherwise: what is done about a window without a verdict.
    """
    unsaid = judged.verdict is Verdict.INCONCLUSIVE and otherwise is OnInconclusive.ROLL_BACK
    if up == 0 or not (unsaid or judged.verdict is Verdict.NOT_RECOVERED):
        return judged
    text = f"{judged.message}; {up} replicas are up, none was before the change, so it stays"
    return replace(judged, verdict=Verdict.IMPROVED, reason=Reason.IMPROVED, message=text)
