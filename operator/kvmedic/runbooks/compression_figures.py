"""A fleet's figures as they are compared with those without KV compression."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, isfinite

from kvmedic.core.complete import Complete, complete, histogram, number, total
from kvmedic.core.diagnosis import Evidence, Inconclusive
from kvmedic.core.distribution import merged, quantile
from kvmedic.core.evidence import Measured, Observation, Signal
from kvmedic.core.figures import Figures
from kvmedic.core.vitals import Vitals

NEEDED = frozenset(
    {
        Signal.PREEMPTIONS_PER_REQUEST_HELD,
        Signal.PREEMPTIONS,
        Signal.REQUESTS_FINISHED,
        Signal.REQUESTS_IN_FLIGHT_CHANGE,
        Signal.GENERATED_TOKENS,
        Signal.KV_CACHE_USAGE_MEAN,
    }
)
"""Needed of every replica."""
HELPFUL = frozenset(
    {
        Signal.E2E_SECONDS,
        Signal.STARTED_SECONDS,
        Signal.KV_CACHE_USAGE_DEVIATION,
        Signal.RUNNING_MEAN,
    }
)
"""Used where replicas tell it."""
ASKED = NEEDED | HELPFUL


def figures_of(evidence: Evidence) -> Figures:
    """Return the fleet's figures over the trigger's window; what is not known of every replica is None.

    Nothing is known while one of them started inside the window.
    """
    return Figures() if _is_young(evidence.burn) else figures_over(evidence.burn, evidence.vitals)


def figures_over(seen: Observation, vitals: Mapping[str, Vitals]) -> Figures:
    """Return the same of any look, however young its replicas are.

    Args:
        seen: the replicas.
        vitals: their devices, by pod name.
    """
    found = complete(seen, NEEDED)
    if isinstance(found, Inconclusive) or not 0 < seen.window_seconds < inf:
        return Figures()
    finished = total(found, Signal.REQUESTS_FINISHED)
    arrived = max(0.0, finished + total(found, Signal.REQUESTS_IN_FLIGHT_CHANGE))
    return Figures(
        requests_per_second=arrived / seen.window_seconds,
        tokens_per_second=total(found, Signal.GENERATED_TOKENS) / seen.window_seconds,
        preemptions_per_request=total(found, Signal.PREEMPTIONS) / max(1.0, finished),
        kv_cache_usage=_mean(found, Signal.KV_CACHE_USAGE_MEAN),
        kv_cache_usage_deviation=_most(seen, Signal.KV_CACHE_USAGE_DEVIATION),
        device_memory=_device_memory(seen, vitals),
        e2e_p95=_e2e_p95(seen),
        requests_in_flight=_in_flight(seen),
        replicas=float(len(found)),
    )


def _is_young(seen: Observation) -> bool:
    """Return whether a replica started inside the window, in which it had less to do than the others."""
    began = seen.at.timestamp() - seen.window_seconds
    started = [number(pod, Signal.STARTED_SECONDS) for pod in seen.pods.values()]
    return any(each is not None and each > began for each in started)


def _in_flight(seen: Observation) -> float | None:
    """Return how many requests run on all replicas together; None where one does not tell."""
    found = [number(pod, Signal.RUNNING_MEAN) for pod in seen.pods.values()]
    known = [each for each in found if each is not None]
    return sum(known) if len(known) == len(found) else None


def _mean(found: Mapping[str, Complete], signal: Signal) -> float:
    return total(found, signal) / len(found)


def _most(seen: Observation, signal: Signal) -> float | None:
    """Return the largest of the replicas' readings; None where one does not tell."""
    found = [number(pod, signal) for pod in seen.pods.values()]
    known = [each for each in found if each is not None]
    return max(known, default=None) if len(known) == len(found) else None


def _device_memory(seen: Observation, vitals: Mapping[str, Vitals]) -> float | None:
    """Return the most memory of a device that was in use, in bytes; None where a replica's is not known."""
    known: list[float] = []
    for name in seen.pods:
        mine = vitals.get(name)
        devices = mine.devices.value if mine and isinstance(mine.devices, Measured) else ()
        used = [device.memory_used() for device in devices]
        if not used or None in used:
            return None
        known.extend(each for each in used if each is not None)
    return max(known, default=None)


def _e2e_p95(seen: Observation) -> float | None:
    found = [histogram(pod, Signal.E2E_SECONDS) for pod in seen.pods.values()]
    known = [each for each in found if each is not None]
    if len(known) != len(found) or len({each.bounds for each in known}) != 1:
        return None
    whole = merged(known)
    seconds = quantile(whole, 0.95) if whole.count > 0 else inf
    return seconds if isfinite(seconds) else None
