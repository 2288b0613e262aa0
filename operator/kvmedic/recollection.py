"""How a fleet fared before its KV cache was compressed, where nobody says so: from history.

A source of metrics is asked once for each revision that turned a method on, at a whole look. The status keeps
what it told, so that every later look, a glance too, has it for nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from datetime import datetime, timedelta
from typing import TypeAlias

from kvmedic.core.complete import complete
from kvmedic.core.compressed import GIVEN, Compressed, with_recalled
from kvmedic.core.diagnosis import Inconclusive
from kvmedic.core.evidence import Absence, Look, Measured, Missing, Observation, Reading
from kvmedic.core.figures import Figures
from kvmedic.core.policy import Policy, Runbook
from kvmedic.core.reasons import Reason
from kvmedic.core.recalled import Alone, Recalled
from kvmedic.core.resource import Resource
from kvmedic.core.vitals import Vitals
from kvmedic.ports import Metrics, View
from kvmedic.runbooks.compression_figures import ASKED, NEEDED, figures_over
from kvmedic.runbooks.enabling import Enabled, Kept, Untold, run_of

UNSOUGHT = frozenset({"replicas", "requests_in_flight"})
"""Figures for which alone history is not asked."""
HISTORY = timedelta(days=7)
"""How far back is looked. Prometheus keeps 15 days where nobody says otherwise (storage.tsdb.retention.time),
and a load of longer ago is hardly that of today."""
AGAIN = timedelta(minutes=10)
"""How long a source is left alone that did not answer: until then looks go on without."""


@dataclass(frozen=True, slots=True)
class Inquiry:
    """Whose past is asked for, and when."""

    resource: Resource
    policy: Policy
    view: View
    at: datetime


@dataclass(frozen=True, slots=True)
class NotAsked:
    """Nobody wants to know: no method, another runbook, or the spec says all."""


Prospect: TypeAlias = NotAsked | Untold | Recalled | Enabled
"""What history holds: nothing, what is on record, or a revision about which the source is to be asked."""


def prospect(method: Compressed | None, inquiry: Inquiry) -> Prospect:
    """Return what history can tell of a fleet without its method; nobody is asked for it."""
    policy, view = inquiry.policy, inquiry.view
    if method is None or Runbook.COMPRESSION_WITHOUT_SAVINGS not in policy.runbooks:
        return NotAsked()
    if all(
        getattr(method.without, each.name) is not None
        for each in fields(Figures)
        if each.name not in UNSOUGHT
    ):
        return NotAsked()
    run = run_of(Kept(view.fleet, view.templates, view.config_maps), policy, method)
    recorded = inquiry.resource.record.baseline if inquiry.resource.record else None
    if recorded is not None and recorded.holds(method.name, run.on, policy.source, inquiry.at):
        return recorded
    return run.enabled


def as_recorded(method: Compressed | None, told: Prospect) -> Compressed | None:
    """Return a method with what is known of the fleet without it, as long as nobody is asked."""
    match told:
        case Recalled(trouble="") if method is not None:
            return with_recalled(method, told)
        case Recalled(trouble=why) if method is not None:
            return replace(method, recalled=told, no_history=f"{why}; or give {GIVEN}")
        case Untold(why) if method is not None:
            return replace(method, no_history=f"{why}; or give {GIVEN}")
        case _:
            return method


async def with_history(method: Compressed | None, inquiry: Inquiry, metrics: Metrics) -> Compressed | None:
    """Return a method with what is known of the fleet without it; a source is asked where it was not yet."""
    told = prospect(method, inquiry)
    if method is not None and isinstance(told, Enabled):
        told = await _asked(told, method.name, inquiry, metrics)
    return as_recorded(method, told)


async def _asked(enabled: Enabled, method: str, inquiry: Inquiry, metrics: Metrics) -> Recalled:
    """Return what the source tells of the revision before the one that turned a method on."""
    policy, namespace = inquiry.policy, inquiry.resource.namespace
    window, mine = policy.windows.trigger, enabled.previous.replica_set
    others = tuple(sorted(each.name for each in inquiry.view.fleet.replica_sets if each.name != mine))
    empty = _empty(enabled, method, inquiry)
    last = await metrics.last_alone(
        policy.source, namespace, Alone(mine, others, window, HISTORY), inquiry.at
    )
    if not isinstance(last, Measured):
        return _unseen(empty, last)
    look = Look(window, signals=ASKED)
    seen = await metrics.past(policy.source, namespace, mine, last.value, look)
    if not isinstance(seen, Measured):
        return _unseen(empty, seen)
    devices = await metrics.past_devices(policy.source, namespace, seen.value.pods, last.value, window)
    vitals = {name: Vitals(devices=reading) for name, reading in devices.items()}
    return _seen(replace(empty, seen_at=last.value, replicas=len(seen.value.pods)), seen.value, vitals)


def _empty(enabled: Enabled, method: str, inquiry: Inquiry) -> Recalled:
    """Return the record of a question, as long as nothing is known."""
    return Recalled(
        method=method,
        revision=enabled.now.number,
        template=enabled.now.template,
        previous=enabled.previous.number,
        source=inquiry.policy.source,
        asked_at=inquiry.at,
        figures=Figures(),
    )


def _unseen(empty: Recalled, why: Reading[datetime] | Reading[Observation]) -> Recalled:
    """Return that no replica of that time is known, which does not change any more once a source said so."""
    if why == Missing(Absence.SOURCE_UNAVAILABLE):
        return _unanswered(empty)
    text = f"the source knows no replica of revision {empty.previous} then: see how long it keeps samples"
    return replace(empty, trouble=text)


def _unanswered(empty: Recalled) -> Recalled:
    again_at = empty.asked_at + AGAIN
    text = f"the source did not answer completely about revision {empty.previous}"
    return replace(empty, trouble=f"{text}; asked again at {again_at:%H:%MZ}", again_at=again_at)


def _seen(empty: Recalled, seen: Observation, vitals: Mapping[str, Vitals]) -> Recalled:
    """Return the figures of a look at the past, or what is missing in it."""
    lacking = complete(seen, NEEDED)
    if not isinstance(lacking, Inconclusive):
        return replace(empty, figures=figures_over(seen, vitals))
    if lacking.reason is Reason.SOURCE_UNAVAILABLE:
        return _unanswered(empty)
    return replace(empty, trouble=f"of revision {empty.previous} the source lacks: {lacking.message}")
