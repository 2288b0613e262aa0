"""Did more replicas help, do fewer do, and does the fleet do without what it was lent?

What each replica gets changes by design with their number, so the fleet as a whole is compared: the
same requests must arrive, and as many tokens come out.
"""

from __future__ import annotations

from dataclasses import replace

from kvmedic.core.baseline import TAIL_PER_REQUEST, baseline_of
from kvmedic.core.complete import complete
from kvmedic.core.diagnosis import Inconclusive, Trigger
from kvmedic.core.evidence import Observation, Signal
from kvmedic.core.judged import Judged, Verdict, figures_after, not_recovered, restarted, undecided
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
    after = figures_after(observation, restarts, "since the number of replicas was raised")
    if isinstance(after, Judged):
        return after
    found = compare(before, replace(after, replicas=before.replicas), objectives, trigger)
    text = f"{before.replicas} -> {after.replicas} replicas, the fleet's figures: {found.message}"
    return replace(found, message=text, after=after)


def share_of(figures: Baseline, share: float) -> Baseline:
    """Return the figures of a part of a fleet; `share`: of its load, above 1 for a larger part."""
    return replace(
        figures,
        requests_per_second=share * figures.requests_per_second,
        generated_tokens_per_second=share * figures.generated_tokens_per_second,
        waiting_mean=share * figures.waiting_mean,
    )


def judge_fewer(observation: Observation, trigger: Trigger) -> Judged:
    """Return whether it stays calm with fewer replicas, whatever the load is now.

    Replicas that serve nothing are calm: what fewer have to carry may well be nothing.

    Args:
        observation: the look over the sustained window, at every replica that is left.
        trigger: when a replica counts as pressured.
    """
    judged = _calm(observation, trigger)
    if judged.verdict is not Verdict.NOT_RECOVERED:
        return judged
    return replace(judged, message=f"{len(observation.pods)} replicas are too few: {judged.message}")


def judge_without(
    before: Baseline | None, observation: Observation, trigger: Trigger, restarts: int
) -> Judged:
    """Return whether it stays calm without what was lent, and answers do not hang again.

    Answers that hang are what host memory was lent for. A fleet that hardly serves has none.

    Args:
        before: the fleet with it; None: it was not measured.
        observation: the look over the sustained window, at the replicas without it.
        trigger: when a replica counts as pressured.
        restarts: restarts of those replicas; each was started by the change, so each restart is new.
    """
    if down := restarted(restarts):
        return down
    judged = _calm(observation, trigger)
    after = baseline_of(observation, restarts)
    if judged.verdict is not Verdict.RECOVERED or isinstance(after, Inconclusive):
        return judged
    stalls, had = after.stalls_per_request, before.stalls_per_request if before else 0.0
    text = f"{judged.message}; {stalls:.2f} stalls per request, {had:.2f} before"
    if stalls >= TAIL_PER_REQUEST and stalls > had:
        return Judged(Verdict.NOT_RECOVERED, Reason.NOT_RECOVERED, f"answers hang again: {text}", after)
    return replace(judged, message=text, after=after)


def _calm(observation: Observation, trigger: Trigger) -> Judged:
    """Return whether no replica is beyond the trigger over the whole window."""
    found = complete(observation, NEEDED)
    if isinstance(found, Inconclusive):
        return undecided(found)
    rates = {name: one.preemptions_per_request for name, one in found.items()}
    limit = trigger.preemptions_per_request
    hot = [f"{name} ({rate:.2f} per request)" for name, rate in rates.items() if rate > limit]
    if hot:
        return not_recovered(f"beyond the trigger are {', '.join(hot)}")
    text = f"{len(found)} replicas have {max(rates.values()):.2f} preemptions per request at most"
    return Judged(Verdict.RECOVERED, Reason.RECOVERED, f"{text}, limit {limit:g}")
