"""How urgent a trouble is: a page only while an objective of the spec is breached, else a ticket.

What the runbook calls trouble may hurt nobody yet; a breached objective hurts whoever waits for an
answer. It is judged by what replicas tell over the trigger's window, all of them together. What
cannot be measured is never taken for met: a page stays one until the objective is seen to be met.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from kvmedic.model.evidence import Histogram, Observation, Signal
from kvmedic.model.readings import histogram, merge_histograms, quantile
from kvmedic.model.spec import Objectives
from kvmedic.model.status import Severity, Urgency
from kvmedic.runbooks.branches import Diagnosis, is_content

NO_OBJECTIVES = "spec.objectives names none, so nothing tells whether somebody suffers"
PERCENTILE = 0.95
"""Of which the objectives speak: `interTokenP95`, `e2eP95`, `ttftP95` (spec.objectives)."""


@dataclass(frozen=True, slots=True)
class _Level:
    """One objective that the spec gives."""

    name: str
    words: str
    signal: Signal
    seconds: float


def signals_of(objectives: Objectives) -> frozenset[Signal]:
    """Return the signals that tell whether the given objectives are met; none where none is given."""
    return frozenset(level.signal for level in _levels(objectives))


def urgency_of(
    diagnosis: Diagnosis, seen: Observation, objectives: Objectives, shown: Urgency | None, cause: str = ""
) -> Urgency | None:
    """Return how urgent what a look found is, or None where it found no trouble and no breach is measured.

    `cause`: what of ours is behind it, in one clause; empty: nothing.
    """
    if is_content(diagnosis):
        return _page(_measured_urgency(seen, objectives), seen.at, shown)
    return urgency(seen, objectives, shown, cause)


def urgency(seen: Observation, objectives: Objectives, shown: Urgency | None, cause: str = "") -> Urgency:
    """Return how urgent a trouble is, by one look at the fleet.

    What was said last is returned as it is while the same objectives are breached: numbers that
    differ are not worth a write.
    """
    found = _measured_urgency(seen, objectives)
    paged = _page(found, seen.at, shown, cause)
    if paged is not None:
        return paged
    unknown = [level.name for level, p95 in found if p95 is None]
    if shown is not None and set(unknown) & set(shown.breached):
        return shown
    why = "every objective of the spec is met" if found else NO_OBJECTIVES
    if unknown:
        why = f"no objective is seen to be breached; not measured: {', '.join(unknown)}"
    return unmeasured_urgency(_with_cause(why, cause), seen.at, shown)


def _measured_urgency(seen: Observation, objectives: Objectives) -> tuple[tuple[_Level, float | None], ...]:
    return tuple((level, _p95_seconds(seen, level.signal)) for level in _levels(objectives))


def _with_cause(text: str, cause: str) -> str:
    return f"{cause}; {text}" if cause else text


def _page(
    found: Sequence[tuple[_Level, float | None]], at: datetime, shown: Urgency | None, cause: str = ""
) -> Urgency | None:
    """Return the page for objectives that are measured and breached, or None."""
    over = [(level, p95) for level, p95 in found if p95 is not None and p95 > level.seconds]
    if not over:
        return None
    told = (f"{one.words} p95 {p95:.3g} s, objective {one.seconds:g} s" for one, p95 in over)
    text = _with_cause("; ".join(told), cause)
    fresh = Urgency(Severity.PAGE, text, at, tuple(one.name for one, _ in over))
    return _unless_same(shown, fresh)


def unmeasured_urgency(why: str, at: datetime, shown: Urgency | None) -> Urgency:
    """Return the urgency of a trouble for which nobody can look at the objectives."""
    return _unless_same(shown, Urgency(Severity.TICKET, why, at))


def _unless_same(shown: Urgency | None, fresh: Urgency) -> Urgency:
    """Return what was said last where nothing but numbers changed."""
    if shown is None or shown.severity is not fresh.severity:
        return fresh
    same = shown.breached == fresh.breached and (bool(fresh.breached) or shown.message == fresh.message)
    return shown if same else replace(fresh, since=shown.since)


def _levels(objectives: Objectives) -> tuple[_Level, ...]:
    between, whole, first = (
        objectives.inter_token_p95_seconds,
        objectives.e2e_p95_seconds,
        objectives.time_to_first_token_p95_seconds,
    )
    named = (
        ("interTokenP95", "time between tokens", Signal.INTER_TOKEN_SECONDS, between),
        ("e2eP95", "whole request", Signal.E2E_SECONDS, whole),
        ("ttftP95", "first token", Signal.TIME_TO_FIRST_TOKEN_SECONDS, first),
    )
    return tuple(
        _Level(name, words, signal, limit) for name, words, signal, limit in named if limit is not None
    )


def _p95_seconds(seen: Observation, signal: Signal) -> float | None:
    """Return the percentile over all replicas that tell, or None where none does.

    Replicas that count in different buckets are taken apart, and the worst of them counts.
    """
    by_bounds: dict[tuple[float, ...], list[Histogram]] = {}
    for readings in seen.pods.values():
        counted = histogram(readings, signal)
        if counted is not None and counted.count > 0:
            by_bounds.setdefault(counted.bounds, []).append(counted)
    return max((quantile(merge_histograms(alike), PERCENTILE) for alike in by_bounds.values()), default=None)
