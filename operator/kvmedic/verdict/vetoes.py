"""What the sustained window says beside the engines' figures: engines that ended, memory at the edge.

A fleet whose GPUs have hardly any memory left when the window ends is not recovered, whatever its
figures are: the next long prompt may end it.

What the sustained window says of a replica that was made so that it has another type of KV cache.

What some settings must show beside fewer preemptions, before they may stay.

A setting may do nothing on some traffic, and a fleet may be calm again for another reason: what is shared is
told by hits, and what is fetched instead of computed by how smoothly answers come.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from math import exp, fsum, lgamma, log, log1p
from types import MappingProxyType

from kvmedic.model.devices import Cause, Device, EngineEnd, Vital
from kvmedic.model.engine import Knob
from kvmedic.model.evidence import (
    Absence,
    Inconclusive,
    Measured,
    Missing,
    Observation,
    Reading,
    Signal,
    Unsupported,
)
from kvmedic.model.fleet import Pod
from kvmedic.model.readings import complete, total
from kvmedic.model.reasons import Reason
from kvmedic.model.run import Baseline, Judged, Verdict
from kvmedic.model.spec import Objectives
from kvmedic.verdict.comparison import is_smoother, not_recovered, serves_more, undecided_verdict

EDGE_MIB = 150.0
"""Free memory of a GPU under which it is at the edge. The engine's own profile of its memory may be off by
as much, so that it advises to leave it free (vLLM v1/worker/gpu_worker.py, `redundancy_buffer_memory`)."""
LATELY = timedelta(minutes=2)
"""The end of the sustained window: as far back as a last value may lie at most (metrics, `freshness`)."""
UNUSUAL = 0.05
"""How improbable as many ends must be at the rate of before to speak against a change: the usual level."""

_MEMORY = frozenset({Cause.HOST_MEMORY, Cause.DEVICE_MEMORY})
_SEVERAL = 2
"""Ends of another cause that speak against a change: one in a window is what fleets see without one."""

_WORDS: Mapping[Cause, str] = MappingProxyType(
    {
        Cause.HOST_MEMORY: "it was ended at its container's memory limit",
        Cause.DEVICE_MEMORY: "its GPU's memory ran out",
        Cause.ANOTHER: "its log says nothing of memory",
        Cause.UNKNOWN: "its log could not be read",
    }
)


def least_free_mib(replicas: Iterable[Reading[tuple[Device, ...]]]) -> float | None:
    """Return the memory that was free on the fullest GPU of some replicas; None where none tells."""
    devices = [device for one in replicas if isinstance(one, Measured) for device in one.value]
    found = [device.value(Vital.MEMORY_FREE) for device in devices]
    return min((float(free) for free in found if free is not None), default=None)


def in_view_of_memory(judged: Judged, before: Baseline | None, free_mib: float | None) -> Judged:
    """Return a verdict that is no recovery where a GPU's memory is at the edge.

    Where it was not before, the change brought it there and is taken back. Where it was, or nobody knows,
    the change stays, as taking it back would free nothing.
    """
    if free_mib is None or free_mib >= EDGE_MIB:
        return judged
    text = f"a GPU has {free_mib:.0f} MiB of memory left (limit {EDGE_MIB:g})"
    known = before.memory_free_mib if before else None
    if known is not None and known >= EDGE_MIB:
        told = f"{text}, {known:.0f} before; {judged.message}"
        return replace(judged, verdict=Verdict.NOT_RECOVERED, reason=Reason.NOT_RECOVERED, message=told)
    told = f"{text}; {judged.message}"
    return replace(judged, verdict=Verdict.IMPROVED, reason=Reason.IMPROVED, message=told)


def window_began_at(pods: Iterable[Pod], settled_at: datetime) -> datetime:
    """Return when the sustained window began by the API server's clock, as that is what ends are dated by.

    It begins once the last replica is Ready, so that none of those that never ended became Ready later. Where
    every one ended, each of their ends counts.

    Args:
        pods: the replicas that are judged.
        settled_at: when the operator's own clock said so, which may be ahead.
    """
    steady = [pod.ready_at for pod in pods if pod.ready_at and not pod.ends]
    return min(settled_at, max(steady)) if steady else datetime.min.replace(tzinfo=UTC)


def count_ends_against(pods: Iterable[Pod], ends: Mapping[str, EngineEnd], since: datetime) -> int:
    """Return how many ends of engines in the sustained window speak against a change.

    An end for want of memory does. Any other may be a node's, or what would have happened without the change:
    it takes two of them. What ended before the window was a start, as a device may not be free at once.

    Args:
        pods: the replicas that are judged.
        ends: how each of them ended last, as far as it is known, by pod.
        since: the beginning of the window.
    """
    recent = [pod for pod in pods if pod.ends and (pod.last_end is None or pod.last_end.ended_at >= since)]
    memory = [pod for pod in recent if pod.name in ends and ends[pod.name].cause in _MEMORY]
    others = sum(_SEVERAL if _keeps_ending(pod) else 1 for pod in recent if pod not in memory)
    return len(memory) + (others if others >= _SEVERAL else 0)


def _keeps_ending(pod: Pod) -> bool:
    return pod.keeps_ending and pod.ends >= _SEVERAL


def ended_as_before(
    pods: Sequence[Pod], ends: Mapping[str, EngineEnd], before: Baseline | None, now: datetime
) -> bool:
    """Return whether engines ended before the change too, and end no more often since.

    Both are counted from when the replicas were made. Given all the ends, how many of them fall to the new
    replicas is binomial where the rate stayed, with their share of all the time (J. Przyborowski and
    H. Wilenski, Biometrika 31, 1940): as many or more in one of twenty cases or fewer is more often. Where
    nobody ended before, or nobody knows how long the replicas had been there, any end is news. So is one for
    want of memory where none was known before.

    Args:
        pods: the replicas that are judged.
        ends: how each of them ended last, as far as it is known, by pod.
        before: the figures before the change.
        now: by the API server's clock, as the pods' own times are.
    """
    if before is None or not before.restarts or not before.up_seconds:
        return False
    known = {Cause.ANOTHER, Cause.UNKNOWN, *({Cause.HOST_MEMORY} if before.ended_at_memory_limit else ())}
    if not {end.cause for end in ends.values()} <= known:
        return False
    up = up_seconds(pods, now)
    found, share = sum(pod.ends for pod in pods), up / (up + before.up_seconds)
    return _at_least(found, found + before.restarts, share) > UNUSUAL


def up_seconds(pods: Iterable[Pod], now: datetime) -> float:
    """Return how long some replicas have been there, together."""
    return sum(max(0.0, (now - pod.created_at).total_seconds()) for pod in pods)


def _at_least(found: int, tries: int, share: float) -> float:
    """Return how probable it is that as many or more of some tries fall to a share of them (0-1)."""
    if share <= 0 or share >= 1:
        return float(found <= 0 or share >= 1)
    ways = (lgamma(tries + 1) - lgamma(k + 1) - lgamma(tries - k + 1) for k in range(found))
    odds = (k * log(share) + (tries - k) * log1p(-share) for k in range(found))
    return 1 - fsum(exp(way + odd) for way, odd in zip(ways, odds, strict=True))


def in_view_of_ends(judged: Judged, ends: Mapping[str, EngineEnd]) -> Judged:
    """Return a verdict that names how engines ended."""
    if not ends:
        return judged
    told = (f"{name} (exit code {end.exit_code}): {_WORDS[end.cause]}" for name, end in sorted(ends.items()))
    return replace(judged, message=f"{judged.message}; {'; '.join(told)}")


def in_view_of_types(judged: Judged, types: AbstractSet[str], wanted: tuple[str, ...]) -> Judged:
    """Return a verdict that is no recovery where no new replica has what it was made for.

    One that has not would be followed by another, without end.

    Args:
        judged: the verdict by the fleet's figures.
        types: in which new replicas store keys and values; empty: nobody tells.
        wanted: beginnings of the types that would do.
    """
    if not types or any(each.startswith(wanted) for each in types):
        return judged
    return not_recovered(
        f"the new replica stores keys and values as {', '.join(sorted(types))}, too", judged.after
    )


LEAST_HITS = 0.05
"""Share of the looked-up tokens that must be found for prefixes to count as shared. At 5 % of the prompts the
mean sequence is at most 5 % smaller, which is no more than two windows of 10 minutes differ by
(`verdict`)."""
ROOM = frozenset({Knob.GPU_MEMORY_UTILIZATION, Knob.PREFIX_CACHING, Knob.CHUNKED_PREFILL})
"""What makes room in the KV cache, or takes less of it."""
HOST = frozenset({Knob.KV_OFFLOADING_SIZE, Knob.SWAP_SPACE})
"""What makes no room, and a preemption cheaper."""
_COUNTED = frozenset({Signal.PREFIX_CACHE_QUERIES, Signal.PREFIX_CACHE_HITS})


def confirm_setting(
    knob: Knob, judged: Judged, before: Baseline, looked: Observation, objectives: Objectives
) -> Judged:
    """Return the verdict on a setting, with what must confirm it.

    Args:
        knob: what was turned.
        judged: the verdict by the fleet's figures; no replica restarted.
        before: the fleet before the change.
        looked: the look over the sustained window, at replicas that run the change only.
        objectives: service levels.
    """
    if knob in ROOM and serves_more(before, looked, objectives):
        judged = _keep_if_serving_more(judged)
    if judged.verdict is Verdict.INCONCLUSIVE:
        return judged
    if knob is Knob.PREFIX_CACHING:
        return _by_hits(judged, looked)
    if knob in HOST:
        return _by_latency(judged, before, looked, objectives)
    return judged


def _keep_if_serving_more(judged: Judged) -> Judged:
    """Return the verdict on a fleet that serves clearly more, however many preemptions that takes."""
    if judged.verdict in (Verdict.RECOVERED, Verdict.IMPROVED):
        return judged
    told = f"it serves more, and no more answers hang; {judged.message}"
    return Judged(Verdict.IMPROVED, Reason.IMPROVED, told)


def _by_hits(judged: Judged, looked: Observation) -> Judged:
    """Return the verdict on reusing prefixes: without hits it did not help, whatever else happened."""
    if _are_uncounted(looked):
        return replace(judged, message=f"this engine counts no hits, so none confirm it; {judged.message}")
    found = complete(looked, _COUNTED)
    if isinstance(found, Inconclusive):
        return undecided_verdict(found)
    queries, hits = total(found, Signal.PREFIX_CACHE_QUERIES), total(found, Signal.PREFIX_CACHE_HITS)
    share = hits / queries if queries > 0 else 0.0
    told = f"{share:.0%} of the looked-up tokens were found in the prefix cache ({LEAST_HITS:.0%} are needed)"
    if share >= LEAST_HITS or judged.verdict is Verdict.NOT_RECOVERED:
        return replace(judged, message=f"{told}; {judged.message}")
    return not_recovered(f"{told}; {judged.message}")


def _are_uncounted(looked: Observation) -> bool:
    """Return whether no replica exports the counters, as engines of old do; a silent source differs."""
    readings = [pod.number(signal) for pod in looked.pods.values() for signal in _COUNTED]
    return bool(readings) and all(one in (Missing(Absence.NOTHING_FOUND), Unsupported()) for one in readings)


def _by_latency(judged: Judged, before: Baseline, looked: Observation, objectives: Objectives) -> Judged:
    """Return the verdict on host memory: it prevents no preemption, so smoother answers decide."""
    smoother = is_smoother(before, looked, objectives)
    if smoother and judged.verdict is Verdict.NOT_RECOVERED:
        told = f"answers come more smoothly, which is what it is for; {judged.message}"
        return Judged(Verdict.IMPROVED, Reason.IMPROVED, told)
    if smoother or judged.verdict is Verdict.NOT_RECOVERED:
        return judged
    told = f"answers come no more smoothly, so it is not what helped; {judged.message}"
    return not_recovered(told)
