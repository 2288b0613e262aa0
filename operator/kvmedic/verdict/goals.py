"""Is a fleet no worse off than before? That is what a change is judged by which was not to make it better.

Taking away what brought nothing helps nobody by itself, and must harm nobody either. The figures and their
thresholds are those of `kvmedic.verdict.comparison`, read the other way round.

Do replicas that run a change stay up? The verdict on a change that is to end restarts.

The figures of before are no measure: replicas that restart have none. What counts is that no replica
that runs the change restarted over the sustained window **while requests were served**: a replica
without traffic does not run out of memory, and proves nothing. Where no replica served before the change,
one that is up with it is better than none, and is not taken away again.

Did more replicas help, do fewer do, and does the fleet do without what it was lent?

What each replica gets changes by design with their number, so the fleet as a whole is compared: the
same requests must arrive, and as many tokens come out.
"""

from __future__ import annotations

from dataclasses import replace

from kvmedic.model.evidence import Inconclusive, Observation, Signal
from kvmedic.model.readings import complete, total
from kvmedic.model.reasons import Reason
from kvmedic.model.run import Baseline, Judged, Verdict
from kvmedic.model.spec import Objectives, OnInconclusive, Trigger
from kvmedic.verdict.baseline import FEWEST_FINISHED, TAIL_PER_REQUEST, baseline_of
from kvmedic.verdict.comparison import (
    BETTER,
    NO_STALL_SECONDS,
    SMOOTH,
    TRIGGER_SHARE,
    Change,
    compare,
    figures_after,
    not_recovered,
    restart_verdict,
    undecided_verdict,
)

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


STEADINESS_SIGNALS = frozenset({Signal.REQUESTS_FINISHED})
"""Signals that the verdict needs of every replica."""


def steadiness(observation: Observation, restarts: int) -> Judged:
    """Return whether replicas stay up with a change.

    Args:
        observation: the look over the sustained window, at replicas that run the change only.
        restarts: restarts of those replicas; each was started by the change, so each restart is new.
    """
    if down := restart_verdict(restarts):
        return down
    found = complete(observation, STEADINESS_SIGNALS)
    if isinstance(found, Inconclusive):
        return undecided_verdict(found)
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


PRESSURE_SIGNALS = frozenset({Signal.PREEMPTIONS, Signal.REQUESTS_FINISHED})
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
    judged = _is_calm(observation, trigger)
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
    if down := restart_verdict(restarts):
        return down
    judged = _is_calm(observation, trigger)
    after = baseline_of(observation, restarts)
    if judged.verdict is not Verdict.RECOVERED or isinstance(after, Inconclusive):
        return judged
    stalls, had = after.stalls_per_request, before.stalls_per_request if before else 0.0
    text = f"{judged.message}; {stalls:.2f} stalls per request, {had:.2f} before"
    if stalls >= TAIL_PER_REQUEST and stalls > had:
        return Judged(Verdict.NOT_RECOVERED, Reason.NOT_RECOVERED, f"answers hang again: {text}", after)
    return replace(judged, message=text, after=after)


def _is_calm(observation: Observation, trigger: Trigger) -> Judged:
    """Return whether no replica is beyond the trigger over the whole window."""
    found = complete(observation, PRESSURE_SIGNALS)
    if isinstance(found, Inconclusive):
        return undecided_verdict(found)
    rates = {name: one.preemptions_per_request for name, one in found.items()}
    limit = trigger.preemptions_per_request
    hot = [f"{name} ({rate:.2f} per request)" for name, rate in rates.items() if rate > limit]
    if hot:
        return not_recovered(f"beyond the trigger are {', '.join(hot)}")
    text = f"{len(found)} replicas have {max(rates.values()):.2f} preemptions per request at most"
    return Judged(Verdict.RECOVERED, Reason.RECOVERED, f"{text}, limit {limit:g}")
