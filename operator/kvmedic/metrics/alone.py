"""When a ReplicaSet was last alone in its fleet, by the series of its pods.

A ReplicaSet's own age says when its template was first made, not when it was rolled out again. Whose pods
there were, and when, only the source knows; a pod's name tells which ReplicaSet made it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from math import isfinite

from kvmedic.core.evidence import Absence, Measured, Missing, Reading
from kvmedic.core.recalled import Alone
from kvmedic.metrics.options import Labels, SourceOptions
from kvmedic.metrics.promql import duration_text
from kvmedic.metrics.series import Answer

RANDOM_LENGTH = 5
"""Characters that the API server puts behind the name that a ReplicaSet gives its pods."""
PREFIX_LENGTH = 58
"""What it keeps of that name (apiserver, storage/names/generate.go: 63 less the random ones)."""
STEP = timedelta(minutes=5)
"""The grid of moments at which the past is looked at. A rollout takes minutes for each replica, and what is
looked for is the end of a time in which nothing changed: a week has 2,016 of them."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def is_made_by(replica_set: str, pod: str) -> bool:
    """Return whether a pod's name is one that a ReplicaSet of this name gives."""
    return re.fullmatch(_names(replica_set), pod) is not None


def on_grid(at: datetime) -> datetime:
    """Return the last moment of the grid that is not after some time."""
    return at - (at - _EPOCH) % STEP


def query(sought: Alone, presence: str, namespace: str, options: SourceOptions) -> str:
    """Return the query for the last moment at which each replica's ReplicaSet was alone.

    It was there at the beginning and the end of one window in which no replica of another one was seen.
    Unlike other queries this one names the pods: days of all replicas of a source would be too much. Moments
    are those of the grid, because Prometheus finds the times of samples (`timestamp` of a selector) anew for
    each of them: 8 s for 20 replicas over a week where this takes 0.3 s (2.42).

    Args:
        sought: what is looked for.
        presence: metric that every engine has at all times.
        namespace: of the fleet.
        options: of the source.
    """
    window, recent = duration_text(sought.window), duration_text(options.freshness)
    mine = f"{_selected(presence, (sought.replica_set,), namespace, options.labels)}[{recent}]"
    others = f"{_selected(presence, sought.others, namespace, options.labels)}[{window}]"
    there = f"timestamp(last_over_time({mine}) and last_over_time({mine} offset {window}))"
    alone = f"{there} unless on ({options.labels.namespace}) last_over_time({others})"
    return f"max_over_time(({alone})[{duration_text(sought.within)}:{duration_text(STEP)}])"


def last_of(answer: Answer, replica_set: str, namespace: str, at: datetime) -> Reading[datetime]:
    """Return the newest moment that the replicas of a ReplicaSet have in an answer of some moment."""
    times = [
        one.value
        for pod, many in answer.by_pod.items()
        if pod.namespace == namespace and is_made_by(replica_set, pod.name)
        for one in many
        if isfinite(one.value)
    ]
    if not times:
        return Missing(Absence.NO_SERIES)
    if not 0 <= max(times) <= at.timestamp() + 1:
        return Missing(Absence.AMBIGUOUS)
    last = _EPOCH + timedelta(seconds=max(times))
    return Measured(last, last)


def _selected(metric: str, replica_sets: Iterable[str], namespace: str, labels: Labels) -> str:
    """Return the selector of the series of the pods that some ReplicaSets make."""
    pods = "|".join(_names(each) for each in replica_sets)
    matchers = f"{labels.namespace}={json.dumps(namespace)}, {labels.pod}=~{json.dumps(pods)}"
    return f"{metric}{{{matchers}}}"


def _names(replica_set: str) -> str:
    """Return the pattern of the names of its pods; Prometheus anchors it at both ends."""
    prefix = re.escape(f"{replica_set}-"[:PREFIX_LENGTH])
    return rf"{prefix}[a-z0-9]{{{RANDOM_LENGTH}}}"
