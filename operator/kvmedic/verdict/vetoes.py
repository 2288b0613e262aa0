"""What overrules the verdict by a goal: engines that ended, GPU memory, blocks that do not come back, hits.

`VETOES` are asked in their order, and each returns the verdict as it is where it has nothing to say. A fleet
whose GPUs have hardly any memory left when the window ends is not recovered, whatever its figures are: the
next long prompt may end it. What is not known makes no verdict worse.

A setting may do nothing on some traffic, and a fleet may be calm again for another reason. So some settings
must be confirmed before they stay: shared prefixes by hits, host memory by how smoothly answers come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import Enum
from math import exp, fsum, lgamma, log, log1p
from types import MappingProxyType

from kvmedic.engines.kv_methods import CACHE_TYPE_PREFIXES
from kvmedic.model.devices import Cause, Device, EngineEnd, Vital
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
from kvmedic.model.readings import gather_values, total
from kvmedic.model.reasons import Reason
from kvmedic.model.run import Baseline, Judged, Verdict
from kvmedic.model.spec import Objectives, OnInconclusive, Trigger
from kvmedic.verdict.blocks_reclaimed import Expectation, judge_blocks
from kvmedic.verdict.comparison import Comparison, report_no_recovery, undecided_verdict

LEAST_FREE_MIB = 150.0
"""Free memory of a GPU under which the next prompt may end its engine. The engine's own profile of its memory
may be off by as much, so that it advises to leave it free (vLLM v1/worker/gpu_worker.py,
`redundancy_buffer_memory`)."""
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


class Confirmation(Enum):
    """What shows that a setting is what helped."""

    FIGURES = "preemptions and gaps alone"
    MORE_SERVED = "or clearly more requests served, as it makes room in the KV cache"
    PREFIX_HITS = "the same, and hits in the prefix cache"
    SMOOTHER_ANSWERS = "smoother answers, as it prevents no preemption"


@dataclass(frozen=True, slots=True)
class VerdictInput:
    """What is known of a change once its sustained window is over."""

    before: Baseline | None
    """The fleet before the change; None: it was not measured."""
    looked: Observation
    """The look over the window, at the replicas that the change is judged on."""
    objectives: Objectives
    trigger: Trigger
    restarts: int = 0
    """Ends of engines that speak against the change; each is new."""
    confirmed_by: Confirmation = Confirmation.FIGURES
    """What must confirm the setting that was turned."""
    ends: Mapping[str, EngineEnd] = field(default_factory=dict)
    """How engines ended last, by pod, as far as it is known."""
    free_mib: float | None = None
    """Free memory of the fullest GPU as the window ended; None: not known."""
    cache_types: AbstractSet[str] = frozenset()
    """Types of KV cache of a replica that was made for its type; empty: none was, or not known."""
    expected: Expectation | None = None
    """What a method that was turned on is to give back; None: none was."""
    first_up: int = 0
    """Replicas that are Ready, where the change was to keep them up and none served before it."""
    on_inconclusive: OnInconclusive = OnInconclusive.HOLD


GOOD = frozenset({Verdict.RECOVERED, Verdict.IMPROVED})


def veto_cache_type(judged: Judged, given: VerdictInput) -> Judged:
    """Return no recovery where no new replica has the type of KV cache that it was made for.

    One that has not would be followed by another, without end.
    """
    types = given.cache_types
    if not types or any(each.startswith(CACHE_TYPE_PREFIXES) for each in types):
        return judged
    text = f"the new replica stores keys and values as {', '.join(sorted(types))}, too"
    return report_no_recovery(text, judged.after)


def veto_blocks(judged: Judged, given: VerdictInput) -> Judged:
    """Return no recovery where live traffic shows that a method that was turned on gives no blocks back."""
    if given.expected is None or judged.verdict not in GOOD:
        return judged
    return judge_blocks(judged, given.looked, given.expected)


def name_ends(judged: Judged, given: VerdictInput) -> Judged:
    """Return a bad verdict with how engines ended."""
    if judged.verdict is not Verdict.NOT_RECOVERED or not given.ends:
        return judged
    ends = (
        f"{name} (exit code {end.exit_code}): {_WORDS[end.cause]}" for name, end in sorted(given.ends.items())
    )
    return replace(judged, message=f"{judged.message}; {'; '.join(ends)}")


def veto_memory(judged: Judged, given: VerdictInput) -> Judged:
    """Return no recovery where a GPU has hardly any memory left.

    Where it had more before, the change took it and is taken back. Where it had not, or nobody knows, the
    change stays, as taking it back would free nothing.
    """
    free = given.free_mib
    if judged.verdict not in GOOD or free is None or free >= LEAST_FREE_MIB:
        return judged
    text = f"a GPU has {free:.0f} MiB of memory left (limit {LEAST_FREE_MIB:g})"
    known = given.before.memory_free_mib if given.before else None
    if known is not None and known >= LEAST_FREE_MIB:
        return report_no_recovery(f"{text}, {known:.0f} before; {judged.message}", judged.after)
    text = f"{text}; {judged.message}"
    return replace(judged, verdict=Verdict.IMPROVED, reason=Reason.IMPROVED, message=text)


def keep_first_replicas(judged: Judged, given: VerdictInput) -> Judged:
    """Return an improvement where replicas are up of a fleet of which none served before the change.

    Taking the change back would take the fleet down again. So it stays also where some restarted, or where
    nobody can say more and the spec would take it back.
    """
    unsaid = judged.verdict is Verdict.INCONCLUSIVE and given.on_inconclusive is OnInconclusive.ROLL_BACK
    if given.first_up == 0 or not (unsaid or judged.verdict is Verdict.NOT_RECOVERED):
        return judged
    text = f"{judged.message}; {given.first_up} replicas are up, none was before the change, so it stays"
    return replace(judged, verdict=Verdict.IMPROVED, reason=Reason.IMPROVED, message=text)


VETOES: tuple[Callable[[Judged, VerdictInput], Judged], ...] = (
    veto_cache_type,
    veto_blocks,
    name_ends,
    veto_memory,
    keep_first_replicas,
)
"""In the order in which they are asked. The last one speaks for a change, whatever was said against it."""


LEAST_HITS = 0.05
"""Share of the looked-up tokens that must be found for prefixes to count as shared. At 5 % of the prompts the
mean sequence is at most 5 % smaller, which is no more than two windows of 10 minutes differ by
(`verdict`)."""
_COUNTED = frozenset({Signal.PREFIX_CACHE_QUERIES, Signal.PREFIX_CACHE_HITS})


def confirm_setting(judged: Judged, change: Comparison, given: VerdictInput) -> Judged:
    """Return the verdict on a setting by the fleet's figures, with what must confirm the setting."""
    bad = judged.verdict not in GOOD
    makes_room = given.confirmed_by in (Confirmation.MORE_SERVED, Confirmation.PREFIX_HITS)
    if makes_room and bad and change.serves_more():
        text = f"it serves more, and no more answers hang; {judged.message}"
        judged = replace(judged, verdict=Verdict.IMPROVED, reason=Reason.IMPROVED, message=text)
    if judged.verdict is Verdict.INCONCLUSIVE:
        return judged
    if given.confirmed_by is Confirmation.PREFIX_HITS:
        return _confirm_by_hits(judged, given.looked)
    if given.confirmed_by is Confirmation.SMOOTHER_ANSWERS:
        return _confirm_by_latency(judged, change)
    return judged


def _confirm_by_hits(judged: Judged, looked: Observation) -> Judged:
    """Return the verdict on reusing prefixes: without hits it did not help, whatever else happened."""
    readings = [pod.number(signal) for pod in looked.pods.values() for signal in _COUNTED]
    # Old engines export no such counters; a source that is silent is another matter.
    if readings and all(one in (Missing(Absence.NOTHING_FOUND), Unsupported()) for one in readings):
        return replace(judged, message=f"this engine counts no hits, so none confirm it; {judged.message}")
    found = gather_values(looked, _COUNTED)
    if isinstance(found, Inconclusive):
        return undecided_verdict(found)
    queries, hits = total(found, Signal.PREFIX_CACHE_QUERIES), total(found, Signal.PREFIX_CACHE_HITS)
    share = hits / queries if queries > 0 else 0.0
    text = f"{share:.0%} of the looked-up tokens were found in the prefix cache ({LEAST_HITS:.0%} are needed)"
    judged = replace(judged, message=f"{text}; {judged.message}")
    return judged if share >= LEAST_HITS else report_no_recovery(judged.message, judged.after)


def _confirm_by_latency(judged: Judged, change: Comparison) -> Judged:
    """Return the verdict on host memory: it prevents no preemption, so smoother answers decide."""
    smoother, bad = change.is_smoother(), judged.verdict is Verdict.NOT_RECOVERED
    if smoother and bad:
        text = f"answers come more smoothly, which is what it is for; {judged.message}"
        return replace(judged, verdict=Verdict.IMPROVED, reason=Reason.IMPROVED, message=text)
    if smoother or bad:
        return judged
    return report_no_recovery(
        f"answers come no more smoothly, so it is not what helped; {judged.message}", judged.after
    )


def least_free_mib(replicas: Iterable[Reading[tuple[Device, ...]]]) -> float | None:
    """Return the memory that was free on the fullest GPU of some replicas; None where none reports it."""
    devices = [device for one in replicas if isinstance(one, Measured) for device in one.value]
    found = [device.value(Vital.MEMORY_FREE) for device in devices]
    return min((float(free) for free in found if free is not None), default=None)


def window_began_at(pods: Iterable[Pod], settled_at: datetime) -> datetime:
    """Return when the sustained window began by the API server's clock, as that is what ends are dated by.

    It begins once the last replica is Ready, so that none of those that never ended became Ready later. Where
    every one ended, each of their ends counts.
    The operator's own clock, which says `settled_at`, may be ahead.
    """
    steady = [pod.ready_at for pod in pods if pod.ready_at and not pod.ends]
    return min(settled_at, max(steady)) if steady else datetime.min.replace(tzinfo=UTC)


def count_ends_against(pods: Iterable[Pod], ends: Mapping[str, EngineEnd], since: datetime) -> int:
    """Return how many ends of engines in the sustained window speak against a change.

    An end for want of memory does. Any other may be a node's, or what would have happened without the change:
    it takes two of them. What ended before the window was a start, as a device may not be free at once.
    """
    recent = [pod for pod in pods if pod.ends and (pod.last_end is None or pod.last_end.ended_at >= since)]
    memory = [pod for pod in recent if pod.name in ends and ends[pod.name].cause in _MEMORY]
    others = sum(
        _SEVERAL if pod.keeps_ending and pod.ends >= _SEVERAL else 1 for pod in recent if pod not in memory
    )
    return len(memory) + (others if others >= _SEVERAL else 0)


def has_ended_as_before(
    pods: Sequence[Pod], ends: Mapping[str, EngineEnd], before: Baseline | None, now: datetime
) -> bool:
    """Return whether engines ended before the change too, and end no more often since.

    Both are counted from when the replicas were made. Given all the ends, how many of them fall to the new
    replicas is binomial where the rate stayed, with their share of all the time (J. Przyborowski and
    H. Wilenski, Biometrika 31, 1940): as many or more in one of twenty cases or fewer is more often. Where
    nobody ended before, or nobody knows how long the replicas had been there, any end is news. So is one for
    want of memory where none was known before.
    `now` is by the API server's clock, as the pods' own times are.
    """
    if before is None or not before.restarts or not before.up_seconds:
        return False
    known = {Cause.ANOTHER, Cause.UNKNOWN, *({Cause.HOST_MEMORY} if before.ended_at_memory_limit else ())}
    if not {end.cause for end in ends.values()} <= known:
        return False
    up = up_seconds(pods, now)
    found, share = sum(pod.ends for pod in pods), up / (up + before.up_seconds)
    return _tail_probability(found, found + before.restarts, share) > UNUSUAL


def up_seconds(pods: Iterable[Pod], now: datetime) -> float:
    """Return how long some replicas have been there, together."""
    return sum(max(0.0, (now - pod.created_at).total_seconds()) for pod in pods)


def _tail_probability(found: int, tries: int, share: float) -> float:
    """Return how probable it is that as many or more of some tries fall to a share of them (0-1)."""
    if share <= 0 or share >= 1:
        return float(found <= 0 or share >= 1)
    ways = (lgamma(tries + 1) - lgamma(k + 1) - lgamma(tries - k + 1) for k in range(found))
    odds = (k * log(share) + (tries - k) * log1p(-share) for k in range(found))
    return 1 - fsum(exp(way + odd) for way, odd in zip(ways, odds, strict=True))
