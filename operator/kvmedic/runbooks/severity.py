"""How urgent a trouble is: a page only while users are let down, else a ticket.

What the runbook calls trouble may hurt nobody yet; a breached objective hurts those who wait for an
answer. It is judged by what replicas report over the trigger's window, all of them together. Where the spec
names no objective, the share of requests that are served in time decides, over that window and that of
sizing: most troubles of a few minutes pass by themselves. What cannot be measured is never taken for met: a
page stays one until the objective is seen to be met.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from kvmedic.model.evidence import Histogram, Observation, Signal
from kvmedic.model.readings import (
    count_above,
    histogram,
    merge_histograms,
    quantile,
    reported_values,
    total,
    total_reported,
)
from kvmedic.model.spec import Objectives
from kvmedic.model.status import SERVED_IN_TIME, Severity, Urgency
from kvmedic.runbooks.branches import Diagnosis, Evidence, is_content
from kvmedic.verdict.served_in_time import (
    FIRST_TOKEN_SECONDS,
    STALL_SECONDS,
    FirstTokens,
    served_in_time,
    stalls_per_request,
)

NO_OBJECTIVES = "spec.objectives names none, and most requests are served in time"
LEAST_IN_TIME = 0.7
"""Share of the requests that are served in time over both windows, under which a person is paged. Of 280
simulated fleets, looked at once a minute, 32 came into trouble meanwhile. 31 of these were paged, by half
after 7 minutes; 8 % of the pages had recovered by themselves 15 minutes later, and 18 % by the short window
alone. Of 74 fleets that let hardly anybody down none was paged."""
FEWEST_DUE = 20
"""Requests that were answered, or should have been, under which a window says nothing."""
SERVED = frozenset(
    {
        Signal.TIME_TO_FIRST_TOKEN_SECONDS,
        Signal.INTER_TOKEN_SECONDS,
        Signal.OUTPUT_LENGTH,
        Signal.GENERATED_TOKENS,
        Signal.REQUESTS_FINISHED,
        Signal.REQUESTS_ABORTED,
        Signal.REQUESTS_IN_FLIGHT_CHANGE,
        Signal.WAITING_AT_END,
    }
)
"""What shows which share of the requests is served in time."""
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
    """Return the signals that show whether the given objectives are met; none where none is given."""
    return frozenset(level.signal for level in _levels(objectives))


@dataclass(frozen=True, slots=True)
class _Figure:
    """What decides whether a person is paged, as far as it is measured."""

    name: str
    text: str
    is_breached: bool | None
    """None: not measured."""


def urgency_of(
    diagnosis: Diagnosis, evidence: Evidence, objectives: Objectives, shown: Urgency | None, cause: str = ""
) -> Urgency | None:
    """Return how urgent what a look found is, or None where it found no trouble and no breach is measured.

    `cause`: what of ours is behind it, in one clause; empty: nothing.
    """
    looks = evidence.burn, evidence.sizing
    if is_content(diagnosis):
        return _page(_measure(looks, objectives), evidence.burn.at, shown)
    return urgency(looks, objectives, shown, cause)


def urgency(
    looks: Sequence[Observation], objectives: Objectives, shown: Urgency | None, cause: str = ""
) -> Urgency:
    """Return how urgent a trouble is, by a look at the fleet, and one over a longer window.

    What was said last is returned as it is while the same objectives are breached: numbers that
    differ are not worth a write.
    """
    found, at = _measure(looks, objectives), looks[0].at
    paged = _page(found, at, shown, cause)
    if paged is not None:
        return paged
    unknown = [one.name for one in found if one.is_breached is None]
    if shown is not None and set(unknown) & set(shown.breached):
        return shown
    why = "every objective of the spec is met" if _levels(objectives) else NO_OBJECTIVES
    if unknown:
        why = f"no objective is seen to be breached; not measured: {', '.join(unknown)}"
    return unmeasured_urgency(_with_cause(why, cause), at, shown)


def _measure(looks: Sequence[Observation], objectives: Objectives) -> tuple[_Figure, ...]:
    """Return the figures of each objective, or which share is served in time where there is none."""
    found = []
    for level in _levels(objectives):
        p95 = _p95_seconds(looks[0], level.signal)
        text = "" if p95 is None else f"{level.words} p95 {p95:.3g} s, objective {level.seconds:g} s"
        found.append(_Figure(level.name, text, None if p95 is None else p95 > level.seconds))
    return tuple(found) or (_measure_service(looks),)


def _measure_service(looks: Sequence[Observation]) -> _Figure:
    shares = [share_served(look) for look in looks]
    known = [share for share in shares if share is not None]
    if any(share >= LEAST_IN_TIME for share in known):
        return _Figure(SERVED_IN_TIME, "", is_breached=False)
    rates = " and ".join(
        f"{share:.0%} over {look.window_seconds / 60:g} min"
        for share, look in zip(known, looks, strict=False)
    )
    text = (
        f"of the requests {rates} are served in time, limit {LEAST_IN_TIME:.0%} (the spec names no objective)"
    )
    return _Figure(SERVED_IN_TIME, text, True if len(known) == len(shares) else None)


def are_served(seen: Observation) -> bool:
    """Return whether enough requests are seen to be served in time for no page."""
    share = share_served(seen)
    return share is not None and share >= LEAST_IN_TIME


def share_served(seen: Observation) -> float | None:
    """Return the share of the requests that is served in time; None where too few say something.

    Of all replicas together that report it. Requests that wait for too long count although none of them was
    answered yet.
    """
    pods = reported_values(seen, SERVED - {Signal.REQUESTS_ABORTED})
    aborted = total_reported(seen.only(pods), Signal.REQUESTS_ABORTED)
    firsts, gaps, outputs = (
        [one.histograms[signal] for one in pods.values()]
        for signal in (
            Signal.TIME_TO_FIRST_TOKEN_SECONDS,
            Signal.INTER_TOKEN_SECONDS,
            Signal.OUTPUT_LENGTH,
        )
    )
    came = sum(one.count for one in firsts)
    arrived = total(pods, Signal.REQUESTS_FINISHED) + total(pods, Signal.REQUESTS_IN_FLIGHT_CHANGE) + aborted
    requests = FirstTokens(
        came,
        came - sum(count_above(one, FIRST_TOKEN_SECONDS) for one in firsts),
        aborted,
        total(pods, Signal.WAITING_AT_END),
        max(0.0, arrived / seen.window_seconds),
    )
    if requests.count_due(FIRST_TOKEN_SECONDS) < FEWEST_DUE:
        return None
    output = sum(one.total for one in outputs) / max(1.0, sum(one.count for one in outputs))
    stalls = sum(count_above(one, STALL_SECONDS) for one in gaps)
    hanging = stalls_per_request(stalls, total(pods, Signal.GENERATED_TOKENS), output)
    return served_in_time(1.0, requests.share_in_time(FIRST_TOKEN_SECONDS), hanging)


def _with_cause(text: str, cause: str) -> str:
    return f"{cause}; {text}" if cause else text


def _page(found: Sequence[_Figure], at: datetime, shown: Urgency | None, cause: str = "") -> Urgency | None:
    """Return the page for what is measured and breached, or None."""
    over = [one for one in found if one.is_breached]
    if not over:
        return None
    text = _with_cause("; ".join(one.text for one in over), cause)
    return _unless_same(shown, Urgency(Severity.PAGE, text, at, tuple(one.name for one in over)))


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
    """Return the percentile over all replicas that report it, or None where none does.

    Replicas that count in different buckets are taken apart, and the worst of them counts.
    """
    by_bounds: dict[tuple[float, ...], list[Histogram]] = {}
    for readings in seen.pods.values():
        counted = histogram(readings, signal)
        if counted is not None and counted.count > 0:
            by_bounds.setdefault(counted.bounds, []).append(counted)
    return max((quantile(merge_histograms(alike), PERCENTILE) for alike in by_bounds.values()), default=None)
