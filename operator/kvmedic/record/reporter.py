"""Events, log lines and metrics for what was saved. Never called for something that was not.

The operator's own metrics. Label values come from enums only, so their number is bounded.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics

from kvmedic.model.reasons import Reason, Trait, reasons_with
from kvmedic.model.status import ConditionType, Record, Resource, Severity, Truth
from kvmedic.record.events import Note, notes

TICK_SECONDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Buckets from one cached look to the API time-outs."""

SEVERITY = ("severity",)
"""Label of the gauges of resources in trouble: `page` while an objective is breached, else `ticket`."""


class Telemetry:
    """Counters and gauges of one operator process."""

    def __init__(self) -> None:
        # One series more for every counter and histogram, which nobody asks for.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        registry = CollectorRegistry()
        self.registry = registry
        self.decisions = Counter(
            "kvmedic_decisions", "Decisions that differed from the last", ["reason"], registry=registry
        )
        self.tick_seconds = Histogram(
            "kvmedic_tick_seconds", "One look at one resource", registry=registry, buckets=TICK_SECONDS
        )
        self.failures = Counter(
            "kvmedic_tick_failures", "Looks that ended in an error", ["kind"], registry=registry
        )
        self.resources = Gauge("kvmedic_resources", "Resources that are looked after", registry=registry)
        self.open_runs = Gauge("kvmedic_open_runs", "Runs that are open", registry=registry)
        self.troubled = Gauge(
            "kvmedic_troubled", "Resources whose fleets are in trouble", SEVERITY, registry=registry
        )
        self.action_required = Gauge(
            "kvmedic_action_required", "Resources that wait for a person", SEVERITY, registry=registry
        )
        self.stalled = Gauge(
            "kvmedic_stalled", "Resources for which nothing goes on by itself", SEVERITY, registry=registry
        )
        self.metrics_unavailable = Gauge(
            "kvmedic_metrics_unavailable",
            "Resources whose replicas' metrics are missing, stale or out of reach",
            SEVERITY,
            registry=registry,
        )
        self.diverted = Gauge(
            "kvmedic_diverted",
            "Resources whose trouble is for another runbook: GPU fault, thermal emergency, host memory",
            ["reason", *SEVERITY],
            registry=registry,
        )
        self.leading = Gauge(
            "kvmedic_leading", "1 while this process is the one that acts", registry=registry
        )
        self.storm = Gauge(
            "kvmedic_storm_breaker_tripped",
            "1 while so many runs ended badly that no new one is opened",
            registry=registry,
        )
        for reason in Reason:
            self.decisions.labels(reason=reason.value)


LOG = logging.getLogger("kvmedic.decisions")


class EventSink(Protocol):
    """Where Events go; a failure to write one is logged and forgotten."""

    async def publish(self, resource: Resource, note: Note) -> None:
        """Write one Event on the resource, and on its target where the note says so."""


@dataclass(frozen=True, slots=True)
class Standing:
    """In which gauges a resource counts."""

    open_run: bool
    action_required: bool
    stalled: bool
    metrics_unavailable: bool
    diverted: Reason | None = None
    """The diagnosis that another runbook is for; None where it is another, or a run is open."""
    urgency: Severity | None = None
    """None: no trouble is known."""

    @property
    def severity(self) -> Severity:
        """Return under which severity it counts: only what is known to be a page is one."""
        return self.urgency or Severity.TICKET


def standing_of(record: Record | None) -> Standing:
    """Return where a resource stands; one whose record cannot be read waits for a person."""
    if record is None:
        return Standing(open_run=True, action_required=True, stalled=True, metrics_unavailable=False)

    def says(condition: ConditionType, status: Truth) -> bool:
        found = record.condition(condition)
        return found is not None and found.status is status

    return Standing(
        open_run=record.run is not None,
        action_required=says(ConditionType.ACTION_REQUIRED, Truth.TRUE),
        stalled=says(ConditionType.STALLED, Truth.TRUE),
        metrics_unavailable=says(ConditionType.METRICS_AVAILABLE, Truth.FALSE),
        diverted=_diverted_reason(record),
        urgency=record.urgency.severity if record.urgency else None,
    )


def _diverted_reason(record: Record) -> Reason | None:
    shown = record.diagnosis
    return (
        shown.reason
        if shown is not None and record.run is None and Trait.DIVERTS in shown.reason.traits
        else None
    )


def _is_diverted(reason: Reason, standing: Standing) -> bool:
    return standing.diverted is reason


@dataclass(slots=True)
class Reporter:
    """Tells people what changed."""

    events: EventSink
    telemetry: Telemetry
    _standings: dict[str, Standing] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Have the gauges summed up when they are scraped, not on every look."""
        telemetry = self.telemetry
        telemetry.open_runs.set_function(lambda: self._how_many(lambda each: each.open_run))
        for severity in Severity:
            for gauge, counts in (
                (telemetry.troubled, lambda each: each.urgency is not None),
                (telemetry.action_required, lambda each: each.action_required),
                (telemetry.stalled, lambda each: each.stalled),
                (telemetry.metrics_unavailable, lambda each: each.metrics_unavailable),
            ):
                counted = partial(self._how_many, counts, severity)
                gauge.labels(severity=severity.value).set_function(counted)
            for reason in reasons_with(Trait.DIVERTS):
                counted = partial(self._how_many, partial(_is_diverted, reason), severity)
                telemetry.diverted.labels(reason=reason.value, severity=severity.value).set_function(counted)

    def _how_many(self, counts: Callable[[Standing], bool], severity: Severity | None = None) -> float:
        # A copy: the metrics are served by a thread of their own.
        asked = (each for each in list(self._standings.values()) if severity in (None, each.severity))
        return float(sum(map(counts, asked)))

    def seen(self, resource: Resource) -> None:
        """Count a resource as it was loaded: what an earlier process saved shows in the gauges too."""
        self._standings[resource.uid] = standing_of(resource.record)

    async def saved(self, resource: Resource, before: Record | None, after: Record) -> None:
        """Tell what changed between two saved records."""
        self._log(resource, before, after)
        self._standings[resource.uid] = standing_of(after)
        for note in notes(before, after):
            self.telemetry.decisions.labels(reason=note.reason.value).inc()
            await self.events.publish(resource, note)

    def forget(self, uid: str) -> None:
        """Drop a resource that no longer exists from the gauges."""
        self._standings.pop(uid, None)

    def _log(self, resource: Resource, before: Record | None, after: Record) -> None:
        """Write one line per decision that differs from the last."""
        line = _ending_text(before, after) or _decision(after)
        if line and (before is None or _decision(before) != line):
            LOG.info("resource=%s/%s %s", resource.namespace, resource.name, line)


def _decision(record: Record) -> str:
    """Return the record's present decision as key-value text."""
    progressing = record.condition(ConditionType.PROGRESSING)
    diagnosed = record.condition(ConditionType.DIAGNOSED)
    problem = _problem(record)
    if record.run is None and problem:
        return problem
    if record.run is not None and progressing is not None:
        step = record.run.current
        at = record.run.intent.move if record.run.intent else "none"
        victim = record.run.victim.name if record.run.victim else "none"
        return (
            f"run={record.run.id} step={step.step.kind} state={step.state} reason={progressing.reason} "
            f"last_move={at} draining={victim} message={progressing.message!r} {problem}".rstrip()
        )
    if diagnosed is None:
        return ""
    why = progressing.reason if progressing else "none"
    text = diagnosed.message if progressing is None or why is Reason.NO_RUN else progressing.message
    return f"run=none diagnosis={diagnosed.reason} reason={why} message={text!r}"


def _ending_text(before: Record | None, after: Record) -> str:
    """Return how a run ended as key-value text; empty where none did."""
    if before is None or before.run is None or after.run is not None or not after.history:
        return ""
    end = after.history[0]
    return f"run={end.id} outcome={end.outcome} message={end.message!r}"


def _problem(record: Record) -> str:
    """Return why the resource is not Ready as key-value text; empty while it is."""
    ready = record.condition(ConditionType.READY)
    if ready is None or ready.status is Truth.TRUE:
        return ""
    return f"problem={ready.reason} advice={ready.message!r}"
