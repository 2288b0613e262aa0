"""Did more replicas help, and do fewer do? Verdicts on a fleet whose number of replicas changed.

What each replica gets changes by design with their number, so the fleet as a whole is compared: the
same requests must arrive, and as many tokens come out.
"""

from __future__ import annotations

from dataclasses import replace

from kvmedic.core.baseline import baseline_of
from kvmedic.core.complete import complete
from kvmedic.core.diagnosis import Inconclusive, Trigger
from kvmedic.core.evidence import Observation, Signal
from kvmedic.core.judged import Judged, Verdict, not_recovered, undecided
from kvmedic.core.reasons import Reason
from kvmedic.core.verdict import Baseline, Objectives, compare

NEEDED = frozenset({Signal.PREEMPTIONS, Signal.REQUESTS_FINISHED})
"""Signals that tell of every replica whether it is beyond the trigger."""


def judge_more(
    before: Baseline, observation: Observation, objectives: Objectives, trigger: Trigger, restarts: int
) -> Judged:
    """Return whether more replicas helped.

    Args:
        before: the fleet with fewer.
        observation: the look over the sustained window, at every replica.
        objectives: service levels.
        trigger: when a replica counts as pressured.
        restarts: restarts since the number was raised.
    """
    if restarts > 0:
        text = f"{restarts} restarts since the number of replicas was raised"
        return not_recovered(text)
    after = baseline_of(observation, restarts)
    if isinstance(after, Inconclusive):
        return undecided(after)
    found = compare(before, replace(after, replicas=before.replicas), objectives, trigger)
    text = f"{before.replicas} -> {after.replicas} replicas, the fleet's figures: {found.message}"
    return replace(found, message=text, after=after)


def judge_fewer(observation: Observation, trigger: Trigger) -> Judged:
    """Return whether it stays calm with fewer replicas, whatever the load is now.

    Replicas that serve nothing are calm: what fewer have to carry may well be nothing.

    Args:
        observation: the look over the sustained window, at every replica that is left.
        trigger: when a replica counts as pressured.
    """
    found = complete(observation, NEEDED)
    if isinstance(found, Inconclusive):
        return undecided(found)
    rates = {name: one.preemptions_per_request for name, one in found.items()}
    limit = trigger.preemptions_per_request
    hot = [f"{name} ({rate:.2f} per request)" for name, rate in rates.items() if rate > limit]
    if hot:
        text = f"{len(found)} replicas are too few: beyond the trigger are {', '.join(hot)}"
        return not_recovered(text)
    text = f"{len(found)} replicas have {max(rates.values()):.2f} preemptions per request at most"
    return Judged(Verdict.RECOVERED, Reason.RECOVERED, f"{text}, limit {limit:g}")
