"""A fleet's figures over a stretch of time, from its metrics source: what a report's tables and plots show.

The figures are the operator's own: each moment is one look over `WINDOW`, read as a verdict reads it. One
that allows no figure has none, and says why: a gap stays a gap.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from kvmedic.engines import VOCABULARIES
from kvmedic.metrics.history import is_named_after
from kvmedic.metrics.prometheus import PrometheusClient
from kvmedic.metrics.series import PodKey
from kvmedic.metrics.source import PrometheusSource
from kvmedic.model.evidence import Inconclusive, Look, LookSeries, Observation, Signal
from kvmedic.model.fleet import DEPLOYMENT
from kvmedic.model.readings import number_or_none
from kvmedic.model.spec import Policy, TargetRef
from kvmedic.settings import Settings
from kvmedic.verdict.baseline import NEEDED, baseline_of
from kvmedic.verdict.served_in_time import first_token_limit

WINDOW = timedelta(minutes=2)
"""Of each look: eight scrapes at the usual 15 s, and short enough to show a rollout's waves."""
MOMENTS = 60
"""At most: more are not told apart on a page of 380 px."""
PRESENCES = 20
"""Moments at which it is asked who was there, at most."""
ASKED = NEEDED | {Signal.RUNNING_MEAN, Signal.STARTED_SECONDS, Signal.REQUESTS_ABORTED}
SERIES = (
    "replicas",
    "servedInTime",
    "servedInTimePerSecond",
    "stallsPerRequest",
    "timeToFirstTokenP95Seconds",
    "preemptionsPerSecond",
    "kvCacheUsage",
    "running",
    "waiting",
)
"""What is told of each moment, in the order of reading."""


@dataclass(frozen=True, slots=True)
class PastFigures:
    """Figures moment after moment, or why there are none."""

    source: str
    moments: tuple[Mapping[str, Any], ...]
    """Each with `at`, every one of `SERIES` (None: not known) and `why` it is not."""
    trouble: str = ""
    """Why there are none; empty where there are."""

    def describe_series(self) -> dict[str, Any] | None:
        """Return them for a program; None where there are none."""
        if self.trouble:
            return None
        return {
            "source": self.source,
            "windowSeconds": WINDOW.total_seconds(),
            "moments": [dict(each) for each in self.moments],
        }


async def read_figures(
    settings: Settings, namespace: str, policy: Policy, stretch: tuple[datetime, datetime]
) -> PastFigures:
    """Return the figures of a target's replicas over a stretch of time; never raises for a silent source."""
    name, (first, last) = policy.source, stretch
    options = settings.sources.get(name)
    if options is None:
        return PastFigures(name, (), f"no metrics source is named {name}: give --prometheus URL")
    client = PrometheusClient(options)
    now = PrometheusSource(name, client, options, VOCABULARIES[0].signals, now=lambda: last)
    try:
        pods = await _replicas(now, namespace, policy.target, first, last)
        if now.trouble:
            return PastFigures(name, (), now.trouble)
        if not pods:
            return PastFigures(
                name, (), f"metrics source {name} knew no replica of {policy.target.name} then"
            )
        apart = max((last - first) / MOMENTS, options.resolution)
        count = max(1, (last - first) // apart + 1)
        looks = await now.observe_series(pods, LookSeries(Look(WINDOW, signals=ASKED), apart, count))
        if now.trouble:
            return PastFigures(name, (), now.trouble)
    finally:
        now.close()
    limit = first_token_limit(policy.objectives)
    return PastFigures(name, tuple(figures_at(each, limit) for each in looks))


async def _replicas(
    source: PrometheusSource, namespace: str, target: TargetRef, first: datetime, last: datetime
) -> Sequence[PodKey]:
    """Return every replica of the target that the source saw within the stretch."""
    found: set[PodKey] = set()
    apart = max((last - first) / PRESENCES, WINDOW)
    moment = first
    while moment <= last:
        then = source.as_of(moment)
        found |= set(await then.present(WINDOW, namespace, f"{target.name}-"))
        if then.trouble:
            source.trouble = then.trouble
            break
        moment += apart
    return sorted(each for each in found if is_replica_of(target, each.name))


def is_replica_of(target: TargetRef, pod: str) -> bool:
    """Return whether a pod has a name that its workload gives: by a hash, or by an ordinal or two."""
    if target.kind == DEPLOYMENT:
        return is_named_after(target.name, pod)
    return re.fullmatch(rf"{re.escape(target.name)}-\d+(-\d+)?", pod) is not None


def figures_at(look: Observation, limit_seconds: float) -> dict[str, Any]:
    """Return the figures of one moment, of the replicas that told anything then.

    Args:
        look: at the replicas.
        limit_seconds: up to how late a first token is in time.
    """
    there = [
        name for name, each in look.pods.items() if number_or_none(each, Signal.RUNNING_MEAN) is not None
    ]
    found: dict[str, Any] = {"at": f"{look.at:%Y-%m-%dT%H:%M:%SZ}", **dict.fromkeys(SERIES), "why": None}
    found["replicas"] = len(there)
    if not there:
        return {**found, "why": "no replica told anything"}
    seen = look.only(there)
    found |= {
        "running": _total(seen, Signal.RUNNING_MEAN),
        "waiting": _total(seen, Signal.WAITING_MEAN),
        "kvCacheUsage": _mean(seen, Signal.KV_CACHE_USAGE_MEAN),
        "preemptionsPerSecond": _total(seen, Signal.PREEMPTIONS, 1 / look.window_seconds),
    }
    figures = baseline_of(seen, 0, limit_seconds)
    if isinstance(figures, Inconclusive):
        return {**found, "why": f"{figures.reason}: {figures.message}"}
    return found | {
        "servedInTime": round(figures.in_time_share, 4),
        "servedInTimePerSecond": round(figures.served_in_time_per_second, 2),
        "stallsPerRequest": round(figures.stalls_per_request, 4),
        "timeToFirstTokenP95Seconds": round(figures.time_to_first_token_p95_seconds, 3),
    }


def _numbers(look: Observation, signal: Signal) -> Iterable[float | None]:
    return [number_or_none(each, signal) for each in look.pods.values()]


def _total(look: Observation, signal: Signal, factor: float = 1.0) -> float | None:
    """Return the sum over all replicas; None where one does not tell, as part of a sum is no sum."""
    numbers = [each for each in _numbers(look, signal) if each is not None]
    return round(sum(numbers) * factor, 4) if len(numbers) == len(look.pods) else None


def _mean(look: Observation, signal: Signal) -> float | None:
    total = _total(look, signal)
    return None if total is None else round(total / len(look.pods), 4)
