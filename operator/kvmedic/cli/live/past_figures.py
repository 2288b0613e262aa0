"""A fleet's figures over a stretch of time, from its metrics source: what a report's tables and plots show.

The figures are the operator's own: each moment is one look over `WINDOW`, read as a verdict reads it. One
that allows no figure has none, and says why: a gap stays a gap.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import isfinite
from typing import Any, TypeAlias

from kvmedic.engines import VOCABULARIES
from kvmedic.metrics.history import HASH_LENGTH, is_named_after
from kvmedic.metrics.prometheus import PrometheusClient
from kvmedic.metrics.readings import PREFIX_LENGTH, RANDOM_LENGTH
from kvmedic.metrics.series import PodKey
from kvmedic.metrics.source import PrometheusSource
from kvmedic.model.evidence import Inconclusive, Look, LookSeries, Observation, Signal
from kvmedic.model.fleet import DEPLOYMENT
from kvmedic.model.readings import number_or_none
from kvmedic.model.spec import Policy, TargetRef
from kvmedic.settings import Settings
from kvmedic.verdict.baseline import NEEDED, baseline_of
from kvmedic.verdict.counts import Counts, Limits, count_replica
from kvmedic.verdict.served_in_time import FirstTokens, served_in_time, silent_seconds, stalls_per_request

WINDOW = timedelta(minutes=2)
"""Of each look: eight scrapes at the usual 15 s, and short enough to show a rollout's waves."""
MOMENTS = 60
"""At most: more cannot be distinguished on a page of 380 px."""
PRESENCES = 20
"""Moments at which it is asked who was there, at most."""
ASKED = NEEDED | {Signal.RUNNING_MEAN, Signal.STARTED_SECONDS, Signal.REQUESTS_ABORTED}
SERIES = (
    "replicas",
    "servedInTime",
    "servedInTimePerSecond",
    "servedInTimeOfNew",
    "servedInTimeOfOld",
    "silentSecondsPerRequest",
    "stallsPerRequest",
    "timeToFirstTokenP95Seconds",
    "preemptionsPerSecond",
    "kvCacheUsage",
    "running",
    "waiting",
)
"""What is reported of each moment, in the order of reading."""


@dataclass(frozen=True, slots=True)
class PastFigures:
    """Figures moment after moment, or why there are none."""

    source: str
    moments: tuple[Mapping[str, Any], ...]
    """Each with `at`, every one of `SERIES` (None: not known) and `why` it is not."""
    trouble: str = ""
    """Why there are none; empty where there are."""
    sides_trouble: str = ""
    """Why it is not known which replicas had the new setting; empty where it is."""

    def describe_series(self) -> dict[str, Any] | None:
        """Return them for a program; None where there are none."""
        if self.trouble:
            return None
        return {
            "source": self.source,
            "windowSeconds": WINDOW.total_seconds(),
            "moments": [dict(each) for each in self.moments],
        }


@dataclass(frozen=True, slots=True)
class Asked:
    """Of which run the figures are asked."""

    first: datetime
    last: datetime
    began: datetime
    """When the run did."""
    is_taken_back: bool
    """Its change is not on the fleet any more, or is on its way back."""


IsNew: TypeAlias = Callable[[str, Observation], bool | None]
"""Whether a replica, by its name and a look at it, has the setting that the run brought; None: not known."""


async def read_figures(settings: Settings, namespace: str, policy: Policy, asked: Asked) -> PastFigures:
    """Return the figures of a target's replicas over a stretch of time; never raises for a silent source."""
    name, (first, last) = policy.source, (asked.first, asked.last)
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
    limits, sides = Limits(policy.objectives), distinguish_sides(policy.target, looks, asked)
    is_new = None if isinstance(sides, str) else sides
    moments = tuple(figures_at(each, limits, is_new) for each in looks)
    return PastFigures(name, moments, sides_trouble=sides if isinstance(sides, str) else "")


async def _replicas(
    source: PrometheusSource, namespace: str, target: TargetRef, first: datetime, last: datetime
) -> Sequence[PodKey]:
    """Return every replica of the target that the source saw within the stretch."""
    found: set[PodKey] = set()
    apart = max((last - first) / PRESENCES, WINDOW)
    moment = first
    while moment <= last:
        then = source.as_of(moment)
        found |= set(await then.find_pods(WINDOW, namespace, f"{target.name}-"))
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


def distinguish_sides(target: TargetRef, looks: Sequence[Observation], asked: Asked) -> IsNew | str:
    """Return how a replica of the new setting is known from one of the old, or why it is not.

    A ReplicaSet gives its name to its pods: new are those of one that had none in the last look before the
    run. Replicas that keep their names are new once their engine was started within the run, which says
    nothing where the old setting came back in the same way.
    """
    if target.kind == DEPLOYMENT and len(target.name) + 1 + HASH_LENGTH <= PREFIX_LENGTH:
        earlier = (_names_in(each) for each in looks if each.at <= asked.began)
        before = next((names for names in reversed([*earlier]) if names), [])
        known = {_replica_set(each) for each in before}
        if not known:
            return "no replica reported figures before the run"
        return lambda name, _: _replica_set(name) not in known
    if asked.is_taken_back:
        return "its replicas keep their names, and the change was taken back"
    began = asked.began.timestamp()
    return lambda name, seen: None if (at := _start_seconds_of(name, seen)) is None else at >= began


def _replica_set(pod: str) -> str:
    return pod[: -RANDOM_LENGTH - 1]


def _start_seconds_of(name: str, seen: Observation) -> float | None:
    return number_or_none(seen.pods[name], Signal.STARTED_SECONDS)


def _names_in(look: Observation) -> list[str]:
    """Return the replicas that reported anything."""
    return [name for name, each in look.pods.items() if number_or_none(each, Signal.RUNNING_MEAN) is not None]


def figures_at(look: Observation, limits: Limits, is_new: IsNew | None = None) -> dict[str, Any]:
    """Return the figures of one moment, of the replicas that reported anything then.

    Args:
        look: at the replicas.
        limits: what is in time.
        is_new: which replicas have the new setting; None where it is not known.
    """
    there = _names_in(look)
    found: dict[str, Any] = {"at": f"{look.at:%Y-%m-%dT%H:%M:%SZ}", **dict.fromkeys(SERIES), "why": None}
    if not there:
        return {**found, "why": "no replica reported anything"}
    found["replicas"] = len(there)
    seen = look.only(there)
    found |= {
        "running": _total(seen, Signal.RUNNING_MEAN),
        "waiting": _total(seen, Signal.WAITING_MEAN),
        "kvCacheUsage": _mean(seen, Signal.KV_CACHE_USAGE_MEAN),
        "preemptionsPerSecond": _total(seen, Signal.PREEMPTIONS, 1 / look.window_seconds),
    }
    if is_new is not None:
        sides = {name: is_new(name, look) for name in there}
        for figure, side in (("servedInTimeOfNew", True), ("servedInTimeOfOld", False)):
            found[figure] = _side_in_time(seen, [name for name in there if sides[name] is side], limits)
    figures = baseline_of(seen, 0, limits.first_token_seconds)
    if isinstance(figures, Inconclusive):
        return {**found, "why": f"{figures.reason}: {figures.message}"}
    silent = silent_seconds(figures.waiting_mean, figures.requests_per_second)
    return found | {
        "servedInTime": round(figures.in_time_share, 4),
        "servedInTimePerSecond": round(figures.served_in_time_per_second, 2),
        "silentSecondsPerRequest": round(silent, 3) if isfinite(silent) else None,
        "stallsPerRequest": round(figures.stalls_per_request, 4),
        "timeToFirstTokenP95Seconds": round(figures.time_to_first_token_p95_seconds, 3),
    }


def _side_in_time(seen: Observation, names: Iterable[str], limits: Limits) -> float | None:
    """Return the share of a side's requests whose first token was in time and whose answer never hung.

    Replicas beside others are few, so it is counted as a verdict counts them, without a least number of
    requests. One that started within the look is left out, as its first answers are short.
    """
    begins = seen.at.timestamp() - seen.window_seconds
    old_enough = sorted(name for name in names if (_start_seconds_of(name, seen) or 0.0) <= begins)
    waiting, whole = 0.0, Counts()
    for name in old_enough:
        queue = number_or_none(seen.pods[name], Signal.WAITING_AT_END)
        if queue is None:
            return None
        counted = count_replica(seen.pods[name], seen.window_seconds, limits, (queue, queue))
        if not isinstance(counted, Counts):
            return None
        waiting, whole = waiting + queue, whole + counted
    arrivals = whole.arrivals / seen.window_seconds
    firsts = FirstTokens(whole.first_tokens, whole.in_time, whole.aborted, waiting, arrivals)
    if not whole.finished or firsts.count_due(limits.first_token_seconds) < 1:
        return None
    stalls = stalls_per_request(whole.stalls, whole.tokens, whole.tokens / whole.finished)
    return round(served_in_time(1.0, firsts.share_in_time(limits.first_token_seconds), stalls), 4)


def _numbers(look: Observation, signal: Signal) -> Iterable[float | None]:
    return [number_or_none(each, signal) for each in look.pods.values()]


def _total(look: Observation, signal: Signal, factor: float = 1.0) -> float | None:
    """Return the sum over all replicas; None where one does not report, as part of a sum is no sum."""
    numbers = [each for each in _numbers(look, signal) if each is not None]
    return round(sum(numbers) * factor, 4) if len(numbers) == len(look.pods) else None


def _mean(look: Observation, signal: Signal) -> float | None:
    total = _total(look, signal)
    return None if total is None else round(total / len(look.pods), 4)
