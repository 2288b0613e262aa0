"""Is a fleet no worse off than before? That is what a change is judged by which was not to make it better.

Taking away what brought nothing helps nobody by itself, and must harm nobody either. The figures and their
thresholds are those of `kvmedic.core.verdict`, read the other way round.
"""

from __future__ import annotations

from kvmedic.core.baseline import Baseline
from kvmedic.core.diagnosis import Trigger
from kvmedic.core.evidence import Observation
from kvmedic.core.judged import Judged, Verdict, figures_after, not_recovered
from kvmedic.core.reasons import Reason
from kvmedic.core.verdict import BETTER, NO_STALL_SECONDS, SMOOTH, TRIGGER_SHARE, Change, Objectives

MORE_PREEMPTIONS = 1 / BETTER
"""Preemptions per request after over before, beyond which they are clearly more: as much more as is clearly
less."""
ROUGHER = 1 / SMOOTH
"""Tail of the gaps between tokens after over before, beyond which answers clearly hang more."""


def judge_parity(
    before: Baseline, observation: Observation, objectives: Objectives, trigger: Trigger, restarts: int
) -> Judged:
    """Return whether a change left a fleet no worse off.

    Args:
        before: the fleet before the change.
        observation: the look over the sustained window, at replicas that run the change only.
        objectives: service levels.
        trigger: when a replica counts as pressured.
        restarts: restarts of those replicas; each was started by the change, so each restart is new.
    """
    after = figures_after(observation, restarts)
    if isinstance(after, Judged):
        return after
    return compare_for_parity(before, after, objectives, trigger)


def compare_for_parity(before: Baseline, after: Baseline, objectives: Objectives, trigger: Trigger) -> Judged:
    """Return whether a fleet is no worse off with a change, by its figures before and after."""
    change = Change(before, after)
    text = change.line(objectives)
    worse = _worse(change, objectives, trigger)
    unlike = change.unlike() or (change.heavier() if worse else None)
    if unlike is not None:
        return Judged(Verdict.INCONCLUSIVE, Reason.LOAD_DIFFERS, f"{unlike}; {text}", after)
    if worse:
        return not_recovered(f"{worse}; {text}", after)
    return Judged(Verdict.RECOVERED, Reason.RECOVERED, f"no worse than before; {text}", after)


def _worse(change: Change, objectives: Objectives, trigger: Trigger) -> str:
    """Return what is clearly worse than before; empty where nothing is."""
    after = change.after
    limit = TRIGGER_SHARE * trigger.preemptions_per_request
    more = change.preemptions > MORE_PREEMPTIONS and after.preemptions_per_request >= limit
    rougher = change.tail > ROUGHER and after.inter_token_tail_seconds > NO_STALL_SECONDS
    facts = (
        (not change.is_harmless(objectives), "less is served, or later, or an objective is broken"),
        (more, f"more than {MORE_PREEMPTIONS:g} times the preemptions per request"),
        (rougher, f"more than {ROUGHER:g} times the gap between tokens"),
    )
    return ", ".join(text for applies, text in facts if applies)
