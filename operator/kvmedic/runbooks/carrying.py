"""Do a replica's peers carry its requests too? Only then may it be spared."""

from __future__ import annotations

from kvmedic.core.complete import complete, number
from kvmedic.core.diagnosis import Evidence, Inconclusive
from kvmedic.core.evidence import Signal
from kvmedic.core.verdict import QUEUED
from kvmedic.runbooks.preemption_thrash import CALM_SHARE

NEEDED = frozenset({Signal.PREEMPTIONS_PER_REQUEST_HELD, Signal.KV_CACHE_USAGE_MEAN, Signal.WAITING_MEAN})
"""Signals that are needed of every replica."""


def overload(evidence: Evidence, pod: str) -> str:
    """Return why the peers of a replica could not carry its requests too; empty where they can.

    They must be calm, with nothing waiting, and their cache must have room for what the replica holds,
    spread evenly over them. A peer that nothing is known of carries nothing.
    """
    if pod in evidence.left_out:
        return f"nobody knows what it holds ({evidence.left_out[pod].why})"
    found = complete(evidence.burn, NEEDED)
    if isinstance(found, Inconclusive):
        return found.message
    peers = {name: one.numbers for name, one in found.items() if name != pod}
    if not peers:
        return "no peer is known to carry anything" if evidence.left_out else "it is the only replica"
    limit = CALM_SHARE * evidence.trigger.preemptions_per_request
    for name, numbers in peers.items():
        if numbers[Signal.PREEMPTIONS_PER_REQUEST_HELD] > limit:
            return f"{name} has {numbers[Signal.PREEMPTIONS_PER_REQUEST_HELD]:.2f} preemptions per request"
        if numbers[Signal.WAITING_MEAN] >= QUEUED:
            return f"{numbers[Signal.WAITING_MEAN]:.0f} requests wait on {name}"
    held = max(numbers[Signal.KV_CACHE_USAGE_MEAN] for numbers in peers.values())
    usage = held + found[pod].numbers[Signal.KV_CACHE_USAGE_MEAN] / len(peers)
    room = evidence.trigger.kv_cache_usage_ratio
    return f"their KV cache would be {usage:.2f} full (limit {room:g})" if usage > room else ""


def beyond_trigger(evidence: Evidence, pod: str) -> tuple[str, ...]:
    """Return the peers of a replica that are known to preempt beyond the trigger."""
    limit = evidence.trigger.preemptions_per_request
    apart = ((name, out.readings) for name, out in evidence.left_out.items())
    rates = {
        name: number(readings, Signal.PREEMPTIONS_PER_REQUEST_HELD)
        for name, readings in (*evidence.burn.pods.items(), *apart)
        if name != pod
    }
    return tuple(name for name, rate in sorted(rates.items()) if rate is not None and rate > limit)
