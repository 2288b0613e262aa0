"""A moment of the past as a Prometheus remembers it: who served then, and what they did."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from kvmedic.core.diagnosis import Evidence
from kvmedic.core.evidence import Look
from kvmedic.core.policy import Policy
from kvmedic.core.vitals import Vitals
from kvmedic.engines.vllm_signals import VLLM_SIGNALS
from kvmedic.metrics.client import PrometheusClient
from kvmedic.metrics.series import PodKey
from kvmedic.metrics.source import PrometheusSource
from kvmedic.settings import Settings

_NAMED = 5
"""Pods that a note names."""


class PastError(Exception):
    """The moment or the replicas cannot be told; the message says why and what to write."""


@dataclass(frozen=True, slots=True)
class Past:
    """Which replicas, and when."""

    at: datetime
    namespace: str
    pods: str
    """Regular expression of their whole names."""


def moment_of(text: str) -> datetime:
    """Return the time that a text tells.

    Raises:
        PastError: it tells none, or one without a time zone, or one that has not come yet.
    """
    found = _moment(text)
    if found > datetime.now(UTC):
        raise PastError(f"--at {text}: that moment has not come yet")
    return found


def _moment(text: str) -> datetime:
    hint = "write RFC 3339 with a time zone, such as 2026-03-01T03:00:00Z, or Unix seconds"
    try:
        return datetime.fromtimestamp(float(text), UTC)
    except (ValueError, OverflowError, OSError):
        pass
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise PastError(f"--at {text}: {hint}") from None
    if found.tzinfo is None:
        raise PastError(f"--at {text}: which time zone? {hint}")
    return found.astimezone(UTC)


@dataclass(frozen=True, slots=True)
class Seen:
    """What a source answers about a moment."""

    evidence: Evidence
    notes: tuple[str, ...]
    """What a reader must know."""
    trouble: str
    """Why the source did not answer; empty where it did."""


async def observed(past: Past, settings: Settings, policy: Policy) -> Seen:
    """Return both looks at the replicas that served at a moment.

    Raises:
        PastError: no source of that name is configured, or the pods' expression is none.
    """
    meant, windows = _pattern(past.pods), policy.windows
    source = _source(past, settings, policy.source)
    try:
        known = await source.present(windows.trigger)
        pods = [pod for pod in known if pod.namespace == past.namespace and meant.fullmatch(pod.name)]
        burn, sizing, devices = await asyncio.gather(
            source.observe(pods, Look(windows.trigger, windows.hold)),
            source.observe(pods, Look(windows.sizing)),
            source.devices(pods, windows.trigger),
        )
    finally:
        source.close()
    vitals = {name: Vitals(devices=found) for name, found in devices.items()}
    evidence = Evidence(burn, sizing, policy.trigger, vitals)
    return Seen(evidence, _notes(past, known, pods), source.trouble)


def _pattern(pods: str) -> re.Pattern[str]:
    try:
        return re.compile(pods)
    except re.error as error:
        raise PastError(f"--pod-regex {pods}: {error}") from None


def _source(past: Past, settings: Settings, name: str) -> PrometheusSource:
    options = settings.sources.get(name)
    if options is None:
        known = ", ".join(sorted(settings.sources)) or "none"
        raise PastError(f"no metrics source is named {name} (known: {known}): give --prometheus URL")
    # One moment for all that is asked, however long it takes.
    steady = options.model_copy(update={"reuse": timedelta(days=1)})
    return PrometheusSource(name, PrometheusClient(options), steady, VLLM_SIGNALS, now=lambda: past.at)


def _notes(past: Past, known: tuple[PodKey, ...], pods: list[PodKey]) -> tuple[str, ...]:
    if pods:
        return ()
    others = [f"{pod.namespace}/{pod.name}" for pod in known]
    shown = ", ".join(others[:_NAMED]) + (f" and {len(others) - _NAMED} more" if len(others) > _NAMED else "")
    found = f"then it knew {shown}" if others else "it knew no replica of an engine then"
    return (f"no pod of namespace {past.namespace} matches {past.pods}; {found}",)
