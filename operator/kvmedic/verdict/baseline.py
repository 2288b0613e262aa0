"""A fleet's figures over one window: what a change is judged against, and what it is judged by.

* Since when the fleet is under pressure. A window that also holds the minutes before the load came shows
  less throughput than the fleet had under it, and a change that costs throughput would look as if it cost
  none. Preemptions show when the pressure began: the part of the window in which they began is left out.
* What its traffic is like, and what of it moved since it was healthy. A figure that is not known is None
  and is never taken for one that stayed.
* Which replicas it is judged on. One that is not Ready, younger than the window or not scraped says nothing
  of the fleet's setting. It is left out and named where the others are most of the fleet, or where
  everybody knows why it says nothing; otherwise it counts, and what is missing of it is missing of the
  fleet.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from math import inf

from kvmedic.model.evidence import (
    HISTOGRAMS,
    Histogram,
    Inconclusive,
    Measured,
    Missing,
    Observation,
    PodReadings,
    Signal,
    Unsupported,
)
from kvmedic.model.fleet import Pod
from kvmedic.model.readings import (
    Complete,
    count_above,
    gather_values,
    histogram,
    list_first,
    merge_histograms,
    number_or_none,
    quantile,
    total,
    total_if_reported,
)
from kvmedic.model.reasons import Reason
from kvmedic.model.run import Baseline
from kvmedic.model.spec import Objectives, Trigger
from kvmedic.model.status import Traffic
from kvmedic.verdict.served_in_time import (
    FIRST_TOKEN_SECONDS,
    STALL_SECONDS,
    FirstTokens,
    first_token_limit,
    served_in_time,
    stalls_per_request,
)

TAIL_PER_REQUEST = 0.05
"""The tail of the gaps is the gap that one request in twenty exceeds once. A fixed quantile of gaps would
miss what it is for: with 434 tokens and 1.8 preemptions per request (recorded from vLLM 0.32.0 in
thrash) the p99 of all gaps is 0.02 s, the gap of one request in twenty 4.0 s."""
FEWEST_FINISHED = 50
"""Finished requests of the whole fleet, at least. Verdicts over simulated windows with 20 to 50 began to
be wrong (2 of 450 changes that did nothing looked better, 1 harmful cap recovered), with more none was."""

NEEDED = frozenset(
    {
        Signal.PREEMPTIONS,
        Signal.REQUESTS_FINISHED,
        Signal.REQUESTS_IN_FLIGHT_CHANGE,
        Signal.WAITING_MEAN,
        Signal.WAITING_AT_END,
        Signal.GENERATED_TOKENS,
        Signal.KV_CACHE_USAGE_MEAN,
        Signal.PROMPT_LENGTH,
        Signal.OUTPUT_LENGTH,
        Signal.INTER_TOKEN_SECONDS,
        Signal.TIME_TO_FIRST_TOKEN_SECONDS,
        Signal.E2E_SECONDS,
    }
)
"""Signals that a baseline and a verdict need of every replica."""
_PER_REQUEST = (
    Signal.PROMPT_LENGTH,
    Signal.OUTPUT_LENGTH,
    Signal.TIME_TO_FIRST_TOKEN_SECONDS,
    Signal.E2E_SECONDS,
)


def baseline_of(
    observation: Observation, restarts: int, limit_seconds: float = FIRST_TOKEN_SECONDS
) -> Baseline | Inconclusive:
    """Return a fleet's figures over one window, of every replica, or what is missing for them.

    Args:
        observation: of the window.
        restarts: of its engines.
        limit_seconds: up to how late a first token is in time. To compare two windows it must be the same.
    """
    found = gather_values(observation, NEEDED)
    if isinstance(found, Inconclusive):
        return found
    doubt = _doubt_window(found, observation)
    return doubt or _figures(found, observation, restarts, limit_seconds)


PATIENCE = 2.0
"""Clients that send again only once they were answered do not leave. Where they wait for longer than most sit
through, they accept so many times what they waited. So in 101 of the 504 simulated fleets behind the verdict,
whose clients never left."""


def patient_baseline_of(
    observation: Observation, restarts: int, objectives: Objectives, *, clients_stay: bool
) -> Baseline | Inconclusive:
    """Return a fleet's figures over one window, and by them up to how late a first token is in time.

    That is what was promised, or 30 s, or longer where the same clients send again and again and wait for
    longer anyway: what they wait for less is no gain to them, and no loss.

    Args:
        observation: of the window.
        restarts: of its engines.
        objectives: what was promised.
        clients_stay: the same ones send, each once it is answered.
    """
    limit = first_token_limit(objectives)
    found = baseline_of(observation, restarts, limit)
    if isinstance(found, Inconclusive) or not clients_stay:
        return found
    waited = found.time_to_first_token_p95_seconds
    if objectives.time_to_first_token_p95_seconds is not None or waited <= limit:
        return found
    return baseline_of(observation, restarts, PATIENCE * waited)


def _doubt_window(found: Mapping[str, Complete], observation: Observation) -> Inconclusive | None:
    """Return why complete readings still say too little, or None."""
    for name, readings in sorted(observation.pods.items()):
        started = number_or_none(readings, Signal.STARTED_SECONDS)
        age = inf if started is None else observation.at.timestamp() - started
        if age < observation.window_seconds:
            return Inconclusive(
                Reason.TOO_FEW_REQUESTS,
                f"{name} started {age:.0f} s ago, in the window of {observation.window_seconds:.0f} s; wait",
            )
    for signal in sorted(NEEDED & HISTOGRAMS):
        if len({one.histograms[signal].bounds for one in found.values()}) > 1:
            return Inconclusive(Reason.REPLICAS_DIFFER, f"the replicas count {signal} in different buckets")
    finished = min(total(found, Signal.REQUESTS_FINISHED), *(counts_of(found, s).count for s in _PER_REQUEST))
    if finished >= FEWEST_FINISHED and counts_of(found, Signal.INTER_TOKEN_SECONDS).count > 0:
        return None
    return Inconclusive(
        Reason.TOO_FEW_REQUESTS,
        f"{finished:.0f} requests finished in {observation.window_seconds:.0f} s, "
        f"{FEWEST_FINISHED} are needed; wait, or raise the window",
    )


def _figures(
    found: Mapping[str, Complete], observation: Observation, restarts: int, limit_seconds: float
) -> Baseline:
    window, finished = observation.window_seconds, total(found, Signal.REQUESTS_FINISHED)
    aborted = total_if_reported(observation, Signal.REQUESTS_ABORTED)
    arrived = finished + (aborted or 0.0) + total(found, Signal.REQUESTS_IN_FLIGHT_CHANGE)
    arrivals_per_second = max(0.0, arrived / window)
    tokens, output = total(found, Signal.GENERATED_TOKENS), counts_of(found, Signal.OUTPUT_LENGTH).mean
    gaps = counts_of(found, Signal.INTER_TOKEN_SECONDS)
    stalls = stalls_per_request(count_above(gaps, STALL_SECONDS), tokens, output)
    firsts = counts_of(found, Signal.TIME_TO_FIRST_TOKEN_SECONDS)
    in_time = FirstTokens(
        firsts.count,
        firsts.count - count_above(firsts, limit_seconds),
        aborted or 0.0,
        total(found, Signal.WAITING_AT_END),
        arrivals_per_second,
    ).share_in_time(limit_seconds)
    return Baseline(
        window_seconds=window,
        replicas=len(found),
        preemptions_per_request=total(found, Signal.PREEMPTIONS) / finished,
        requests_per_second=arrivals_per_second,
        prompt_tokens_mean=counts_of(found, Signal.PROMPT_LENGTH).mean,
        output_tokens_mean=output,
        generated_tokens_per_second=tokens / window,
        inter_token_p95_seconds=_quantile(gaps, 0.95),
        inter_token_tail_seconds=_quantile(gaps, max(0.0, 1 - TAIL_PER_REQUEST * finished / gaps.count)),
        stalls_per_request=stalls,
        time_to_first_token_p95_seconds=_quantile(firsts, 0.95),
        first_token_limit_seconds=limit_seconds,
        in_time_share=in_time,
        served_in_time_per_second=served_in_time(tokens / window, in_time, stalls),
        end_to_end_p95_seconds=_quantile(counts_of(found, Signal.E2E_SECONDS), 0.95),
        kv_cache_usage_ratio=total(found, Signal.KV_CACHE_USAGE_MEAN) / len(found),
        waiting_mean=total(found, Signal.WAITING_MEAN),
        restarts=restarts,
        models=tuple(sorted({name for pod in observation.pods.values() for name in pod.model_names})),
        aborted_share=None if aborted is None else aborted / (aborted + finished),
        running_mean=total_if_reported(observation, Signal.RUNNING_MEAN),
    )


def counts_of(found: Mapping[str, Complete], signal: Signal) -> Histogram:
    """Return a histogram of the whole fleet."""
    return merge_histograms([one.histograms[signal] for one in found.values()])


def _quantile(counted: Histogram, share: float) -> float:
    """Return a quantile; the top bound stands for everything above it, so that the figure can be stored."""
    return min(quantile(counted, share), max(counted.bounds, default=counted.mean))


PARTS = 5
"""Parts of a window. Of the default window of 5 minutes each has four scrapes at the usual 15 s."""
SHORTEST = timedelta(minutes=2)
"""The least that figures may rest on: over 2 minutes 106 of 111 simulated right caps were recognised, 109 of
112 over 5 minutes (docs/explanation/verdict-thresholds.md)."""
BEGUN = 0.5
"""Preemptions of a window's first part over those of its parts on average, from which the pressure was
there. Rates are extrapolated to the ends of a window by up to one scrape, a third of that at most with
four scrapes in a part."""


def pressured_replicas(burn: Observation, trigger: Trigger) -> tuple[str, ...]:
    """Return the replicas that preempt beyond the trigger."""
    held = {name: number_or_none(pod, Signal.PREEMPTIONS_PER_REQUEST_HELD) for name, pod in burn.pods.items()}
    return tuple(name for name, rate in held.items() if (rate or 0.0) > trigger.preemptions_per_request)


def preemptions(seen: Observation, names: Iterable[str]) -> float:
    """Return the preemptions of some replicas together; one that does not report them counts 0."""
    return sum(number_or_none(seen.pods[name], Signal.PREEMPTIONS) or 0.0 for name in names)


def has_begun(window: float, without_first: float, parts: int) -> bool:
    """Return whether the pressure was there in a window's first part, by preemptions with and without it."""
    return window > 0 and window - without_first >= BEGUN * window / parts


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
"""The signals that show it."""


def traffic_of(seen: Observation) -> Traffic:
    """Return what clients send, as far as every replica reports it."""
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
        f"{name} {_seconds_text(before)} -> {_seconds_text(after)}{unit}"
        for name, unit, before, after in pairs
        if before is not None and after is not None and min(before, after) < MOVED * max(before, after)
    )


def _seconds_text(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.2g}"


def _arrivals(seen: Observation) -> float | None:
    finished = [number_or_none(pod, Signal.REQUESTS_FINISHED) for pod in seen.pods.values()]
    changed = [number_or_none(pod, Signal.REQUESTS_IN_FLIGHT_CHANGE) for pod in seen.pods.values()]
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


SHARE = 0.8
"""Share of the replicas that must be judged where nobody knows why the others say nothing. A choice: of five
replicas one may be silent, of four none."""
APART = 0.5
"""Part of the window by which a young replica is younger than the oldest one. Of a fleet that was started as
one the first replicas are not set against the last while those are a little under the window."""
NAMED = 3
"""Replicas that a message names; the rest is counted."""
STARTING = timedelta(minutes=1)
"""A replica that has not been Ready since so short a time after it was made has never been: it starts."""

_TRIGGER = Signal.PREEMPTIONS_PER_REQUEST_HELD


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A replica that the fleet is not judged on. Nothing rests on it: it carries no load, either."""

    why: str
    is_explained: bool
    """It is young, or not Ready for a known reason; otherwise it should say something, and does not."""
    readings: PodReadings
    """What is known of it all the same, over the trigger's window."""


def exclude_pods(pods: Sequence[Pod], seen: Observation, at: datetime) -> Mapping[str, LeftOut]:
    """Return the replicas that the fleet is not judged on, by name; none where too few would be left.

    A young replica that reports something is left out where most that are Ready are older: a fleet of which
    most were just started is judged as it is, and never on the few that were not.
    """
    window = timedelta(seconds=seen.window_seconds)
    ages = {pod.name: at - pod.ready_at for pod in pods if pod.ready_at is not None}
    oldest = max(ages.values(), default=window)
    young = {name for name, age in ages.items() if age < min(window, oldest - APART * window)}
    counts = 2 * len(young) < len(ages)
    found = {
        pod.name: out
        for pod in pods
        if (out := _exclude_replica(pod, seen.pods[pod.name], is_young=pod.name in young, counts=counts))
    }
    judged = len(pods) - len(found)
    explained = all(one.is_explained for one in found.values())
    return found if judged and (explained or judged >= SHARE * len(pods)) else {}


def is_quorate(pods: Sequence[Pod]) -> bool:
    """Return whether those that are not Ready keep no change from the others: few, or all explained."""
    down = [pod for pod in pods if not pod.ready]
    ready = len(pods) - len(down)
    return ready > 0 and (ready >= SHARE * len(pods) or all(_explain_not_ready(pod) for pod in down))


def judged_part(
    pods: Sequence[Pod], seen: Observation, down_before: int, added: Collection[str] = ()
) -> tuple[Observation, str]:
    """Return the look at those replicas that a change is judged on, and who is left out, for a person.

    Nobody is left out where more are not Ready than took no requests before the change (`down_before`): that
    may be its doing. Nor where one that the change made beside others (`added`) says nothing.
    """
    out = exclude_pods(pods, seen, seen.at)
    if not out or out.keys() & set(added) or sum(not pod.ready for pod in pods) > max(0, down_before):
        return seen, ""
    kept = {name: readings for name, readings in seen.pods.items() if name not in out}
    return replace(seen, pods=kept), f"{quorum_line(len(kept), out)}; "


def quorum_line(judged: int, out: Mapping[str, LeftOut]) -> str:
    """Return who is left out and why, as one clause for a person; the same for as long as that holds."""
    named = list_first([f"{name} ({out[name].why})" for name in sorted(out)], NAMED)
    return f"judged on {judged} of {judged + len(out)} replicas, without {named}"


def _exclude_replica(pod: Pod, readings: PodReadings, *, is_young: bool, counts: bool) -> LeftOut | None:
    if not pod.ready:
        why = _explain_not_ready(pod)
        return LeftOut(f"not Ready: {why or 'nobody says why'}", bool(why), readings)
    silence = _silence(readings)
    if is_young and (counts or silence):
        return LeftOut("Ready for less than the trigger's window", is_explained=True, readings=readings)
    return LeftOut(silence, is_explained=False, readings=readings) if silence else None


def _explain_not_ready(pod: Pod) -> str:
    """Return why a replica is not Ready; empty where nobody says."""
    if pod.unschedulable:
        return "it cannot be scheduled"
    if pod.waiting_reason:
        return pod.waiting_reason
    if pod.is_down:
        return "its engine ended"
    is_new = pod.unready_at is None or pod.unready_at - pod.created_at < STARTING
    return "it starts" if is_new and not pod.restarts else ""


def _silence(readings: PodReadings) -> str:
    """Return why a replica that serves says nothing; empty where it does, or was not asked."""
    asked = (_TRIGGER,) if _TRIGGER in readings.numbers else tuple(readings.numbers)
    answers = [readings.number(signal) for signal in asked]
    if not answers or any(isinstance(one, Measured | Unsupported) for one in answers):
        return ""
    return f"no metrics: {answers[0].reason}" if isinstance(answers[0], Missing) else "its metrics are stale"
