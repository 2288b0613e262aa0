"""What of a fleet's evidence shows pressure: who preempts, whose answers hang, who keeps users waiting.

One finds here the signals that show it, the replicas that are beyond the trigger by them, how that is put
into words, and what sizing rests on for these replicas. Nothing here says what to do about it.

Silence is one of the signals that an engine need not have: a replica that does not report it keeps nobody
waiting, and is judged by its preemptions alone.
"""

from __future__ import annotations

from collections.abc import Callable

from kvmedic.model.evidence import Inconclusive, Signal
from kvmedic.model.readings import Complete, gather_values, number_or_none
from kvmedic.model.reasons import Reason
from kvmedic.runbooks.branches import Evidence, Finding, Found
from kvmedic.runbooks.preemption.pressure import Case, size_fleet

TRIGGER = frozenset({Signal.PREEMPTIONS_PER_REQUEST_HELD, Signal.PREEMPTIONS})
"""Needed of every replica to tell a calm fleet from a pressured one: the ratio, and the counter behind it,
which must not contradict it."""
WAITS = frozenset({Signal.SILENT_SECONDS_HELD, Signal.WAITING_MEAN})
"""What shows that a replica keeps users waiting."""
FELT = WAITS | {Signal.STALLS_PER_REQUEST_HELD}
"""What users feel, of the engines that report it."""
QUEUED_BEHIND = 0.5
"""Waiting requests of an engine, on average, from which its cap holds somebody up."""


def find_pressure(evidence: Evidence, enough: Callable[[int], int]) -> Found:
    """Return the pressured replicas where there are enough of them, and what sizing rests on is there."""
    held = held_preemptions(evidence)
    if isinstance(held, Inconclusive):
        return held
    pressured = pressured_replicas(held, evidence)
    if not pressured:
        return None
    if len(pressured) < enough(len(held)):
        why = "the others are calm, so a setting that all share is not the cause"
        return partial_pressure(held, pressured, evidence, why)
    case = size_fleet(evidence, pressured)
    return case if isinstance(case, Inconclusive) else pressure_findings(held, pressured, evidence)


def pressured_case(evidence: Evidence) -> Case | Inconclusive:
    """Return what sizing rests on for the replicas beyond the trigger, or what is missing."""
    held = held_preemptions(evidence)
    if isinstance(held, Inconclusive):
        return held
    return size_fleet(evidence, pressured_replicas(held, evidence) or waiting_replicas(evidence))


def held_preemptions(evidence: Evidence) -> dict[str, float] | Inconclusive:
    """Return the preemptions per request that each replica held, by pod name."""
    found = gather_values(evidence.burn, TRIGGER)
    if isinstance(found, Inconclusive):
        return found
    return {name: one.numbers[Signal.PREEMPTIONS_PER_REQUEST_HELD] for name, one in found.items()}


def preempting_replicas(held: dict[str, float], evidence: Evidence) -> tuple[str, ...]:
    """Return the replicas that preempt beyond the trigger."""
    limit = evidence.trigger.preemptions_per_request
    return tuple(name for name, value in held.items() if value > limit)


def pressured_replicas(held: dict[str, float], evidence: Evidence) -> tuple[str, ...]:
    """Return the replicas that preempt beyond the trigger, or whose answers hang, as far as reported."""
    preempting, limit = preempting_replicas(held, evidence), evidence.trigger.stalls_per_request
    return tuple(name for name in held if name in preempting or _stalls(evidence, name) > limit)


def waiting_replicas(evidence: Evidence) -> dict[str, float]:
    """Return the silent seconds per request of each replica that keeps users waiting, by pod name.

    A single request that waits for long in a quiet hour is no queue.
    """
    found = {}
    for name, pod in evidence.burn.pods.items():
        silent, waiting = (
            number_or_none(pod, each) for each in (Signal.SILENT_SECONDS_HELD, Signal.WAITING_MEAN)
        )
        is_queue = waiting is not None and waiting > QUEUED_BEHIND * pod.engines
        if silent is not None and is_queue and silent > evidence.trigger.silent_seconds:
            found[name] = silent
    return found


def preemption_rate(replica: Complete) -> float:
    """Return a replica's preemptions per request over the whole window, or at its best moment if more."""
    return max(replica.preemptions_per_request, replica.numbers[Signal.PREEMPTIONS_PER_REQUEST_HELD])


def partial_pressure(
    held: dict[str, float], pressured: tuple[str, ...], evidence: Evidence, why: str
) -> Inconclusive:
    """Return that only some replicas are beyond the trigger, and `why` nothing follows for all of them."""
    limit = evidence.trigger.preemptions_per_request
    preempting = preempting_replicas(held, evidence)
    hot = ", ".join(f"{name} ({held[name]:.2f} per request)" for name in pressured if name in preempting)
    hang = ", ".join(
        f"{name} ({_describe_stalls(evidence, name)})" for name in pressured if name not in preempting
    )
    beyond = f"preempt beyond {limit:g} per request" if not hang else "are beyond the trigger"
    named = ", ".join(filter(None, (hot, hang)))
    text = f"{len(pressured)} of {len(held)} replicas {beyond}: {named}; {why}"
    return Inconclusive(Reason.PARTIAL_PRESSURE, text)


def pressure_findings(
    held: dict[str, float], pressured: tuple[str, ...], evidence: Evidence
) -> tuple[Finding, ...]:
    """Return each pressured replica, and how full their caches are: that corroborates and decides nothing."""
    limit, signal = evidence.trigger.preemptions_per_request, Signal.PREEMPTIONS_PER_REQUEST_HELD
    preempting, most = preempting_replicas(held, evidence), evidence.trigger.stalls_per_request
    stalls = Signal.STALLS_PER_REQUEST_HELD
    found = tuple(
        Finding(name, signal, held[name], limit, f"{held[name]:.2f} preemptions per request, limit {limit:g}")
        if name in preempting
        else Finding(name, stalls, _stalls(evidence, name), most, _describe_stalls(evidence, name))
        for name in pressured
    )
    pods = [evidence.burn.pods[name] for name in pressured]
    usage = [each for pod in pods if (each := number_or_none(pod, Signal.KV_CACHE_USAGE_MEAN)) is not None]
    if not usage:
        return found
    mean, limit = sum(usage) / len(usage), evidence.trigger.kv_cache_usage_ratio
    text = f"KV-cache usage {mean:.2f} on average, {'over' if mean > limit else 'not over'} {limit:g}"
    return (*found, Finding("fleet", Signal.KV_CACHE_USAGE_MEAN, mean, limit, text))


def _stalls(evidence: Evidence, name: str) -> float:
    return number_or_none(evidence.burn.pods[name], Signal.STALLS_PER_REQUEST_HELD) or 0.0


def _describe_stalls(evidence: Evidence, name: str) -> str:
    limit = evidence.trigger.stalls_per_request
    return f"{_stalls(evidence, name):.2f} long gaps between tokens per request, limit {limit:g}"
