"""Log lines and the operator's own metrics for what was saved, and its Events. Never for what was not.

Label values come from enums, but for the names of resources in one bounded family.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kvmedic.model.reasons import Reason, Trait, reasons_with
from kvmedic.model.status import ConditionType, Record, Resource, Severity, Truth
from kvmedic.record.events import EventSink, notes

if TYPE_CHECKING:
    pass

TICK_SECONDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Buckets from one cached look to the API time-outs."""

SEVERITY = ("severity",)
"""Label of the gauges of resources in trouble: `page` while an objective is breached, else `ticket`."""


class SourceCost(Protocol):
    """What a metrics source was asked so far, and what its answers took."""

    queries: int
    received_bytes: int
    source_seconds: float
    own_seconds: float


class SourceCosts(Collector):
    """Reports what each source cost: its own time and ours apart."""

    def __init__(self, costs: Mapping[str, SourceCost]) -> None:
        """Report these sources, by name."""
        self._costs = costs

    def collect(self) -> Iterator[Metric]:
        """Yield the counters as they stand."""
        queries = CounterMetricFamily(
            "kvmedic_source_queries", "Queries to a metrics source", None, ["source"]
        )
        received = CounterMetricFamily(
            "kvmedic_source_received_bytes", "Bytes of its answers", None, ["source"]
        )
        text = (
            "Time for its answers, summed over queries: until one is there (source), and to read it (kvmedic)"
        )
        seconds = CounterMetricFamily("kvmedic_source_seconds", text, None, ["source", "by"])
        for name, cost in self._costs.items():
            queries.add_metric([name], cost.queries)
            received.add_metric([name], cost.received_bytes)
            seconds.add_metric([name, "source"], cost.source_seconds)
            seconds.add_metric([name, "kvmedic"], cost.own_seconds)
        yield from (queries, received, seconds)


@dataclass(frozen=True, slots=True)
class Standing:
    """In which gauges a resource counts."""

    namespace: str
    name: str
    states: Mapping[str, str]
    """What is true of it (`STATES`), with the reason."""
    urgency: Severity | None = None
    """None: no trouble is known."""

    @property
    def severity(self) -> Severity:
        """Return under which severity it counts: only what is known to be a page is one."""
        return self.urgency or Severity.TICKET


OPEN_RUN, TROUBLED, DIVERTED = "OpenRun", "Troubled", "Diverted"
CONDITIONS = {
    ConditionType.ACTION_REQUIRED: Truth.TRUE,
    ConditionType.STALLED: Truth.TRUE,
    ConditionType.METRICS_AVAILABLE: Truth.FALSE,
}
"""Conditions that are states, with what they then say."""
BLIND = "MetricsUnavailable"
STATES = (
    TROUBLED,
    ConditionType.ACTION_REQUIRED.value,
    ConditionType.STALLED.value,
    BLIND,
    DIVERTED,
    OPEN_RUN,
)
"""What may be true of a resource, the more urgent first."""


def standing_of(resource: Resource, record: Record | None) -> Standing:
    """Return where a resource stands; one whose record cannot be read waits for a person."""
    if record is None:
        why = Reason.RUN_UNREADABLE.value
        states = {ConditionType.ACTION_REQUIRED.value: why, ConditionType.STALLED.value: why, OPEN_RUN: why}
        return Standing(resource.namespace, resource.name, states)
    shown, urgency = record.diagnosis, record.urgency
    states = {}
    if urgency is not None:
        states[TROUBLED] = shown.reason.value if shown else ""
    for kind, truth in CONDITIONS.items():
        found = record.condition(kind)
        if found is not None and found.status is truth:
            states[BLIND if truth is Truth.FALSE else kind.value] = found.reason.value
    if record.run is not None:
        states[OPEN_RUN] = record.run.reason.value
    elif shown and Trait.DIVERTS in shown.reason.traits:
        states[DIVERTED] = shown.reason.value
    return Standing(resource.namespace, resource.name, states, urgency.severity if urgency else None)


MOST_NAMED = 1000
"""Series that name a resource, at most. A choice: a page of 200 kB, and what a Prometheus keeps of one pod
without noticing. In a storm beyond that the more urgent ones are named."""


class NamedStandings(Collector):
    """Names each resource that somebody may have to look at; one that is calm has no series."""

    def __init__(self) -> None:
        """Know of none yet."""
        self.standings: Mapping[str, Standing] = {}

    def collect(self) -> Iterator[Metric]:
        """Yield a series for each state of each resource, pages first, and how many there was no room for."""
        labels = ["resource_namespace", "resource_name", "state", "severity", "reason"]
        text = "1 for each state of a KVRemediation that somebody may have to look at"
        info = GaugeMetricFamily("kvmedic_resource_info", text, None, labels)
        # A copy: the metrics are served by a thread of their own.
        series = [(each, state) for each in list(self.standings.values()) for state in each.states]
        series.sort(key=lambda one: (one[0].severity is not Severity.PAGE, STATES.index(one[1])))
        for each, state in series[:MOST_NAMED]:
            row = (each.namespace, each.name, state, each.severity.value, each.states[state])
            info.add_metric(row, 1.0)
        yield info
        text = "Series of kvmedic_resource_info that there was no room for"
        left_out = max(0, len(series) - MOST_NAMED)
        yield GaugeMetricFamily("kvmedic_resource_info_left_out", text, left_out)


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
        self.resources = Gauge("kvmedic_resources", "KVRemediations that are watched", registry=registry)
        self.open_runs = Gauge("kvmedic_open_runs", "Runs that are open", registry=registry)
        self.troubled = Gauge(
            "kvmedic_troubled", "Resources whose fleets are in trouble", SEVERITY, registry=registry
        )
        self.action_required = Gauge(
            "kvmedic_action_required", "Resources that wait for a person", SEVERITY, registry=registry
        )
        self.stalled = Gauge(
            "kvmedic_stalled",
            "Resources that are stuck until a person acts",
            SEVERITY,
            registry=registry,
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
        self.named = NamedStandings()
        registry.register(self.named)
        self.storm = Gauge(
            "kvmedic_storm_breaker_tripped",
            "1 while so many runs ended badly that no new one is opened",
            registry=registry,
        )
        self.leading, self.shards = _leaders(registry)
        self.waiting, self.oldest_look, self.loop_lag = _delays(registry)
        self.notifications = _notifications(registry)
        for reason in Reason:
            self.decisions.labels(reason=reason.value)

    def observe_leadership(self, shard: int, count: int, is_held: Callable[[], bool]) -> None:
        """Report which shard of how many this process is, and whether it acts."""
        self.shards.set(count)
        self.leading.labels(shard=str(shard)).set_function(lambda: float(is_held()))

    def observe_delays(self, waiting: Callable[[], float], oldest_look_seconds: Callable[[], float]) -> None:
        """Report how many resources wait for a look, and for how long one was not looked at."""
        self.waiting.set_function(waiting)
        self.oldest_look.set_function(oldest_look_seconds)

    def observe_loop_lag(self, lag_seconds: Callable[[], float]) -> None:
        """Report by how much the event loop comes late."""
        self.loop_lag.set_function(lag_seconds)


def _leaders(registry: CollectorRegistry) -> tuple[Gauge, Gauge]:
    """Return the gauges of who acts, and of how many that should be."""
    text = "1 while this process is the one that acts"
    return (
        Gauge("kvmedic_leading", text, ["shard"], registry=registry),
        Gauge("kvmedic_shards", "Operators that divide the namespaces, as configured", registry=registry),
    )


def _notifications(registry: CollectorRegistry) -> Counter:
    """Return the counter of what came of notifications."""
    text = "Notifications by what came of them: sent, failed (given up), dropped (too many waited)"
    return Counter("kvmedic_notifications", text, ["destination", "result"], registry=registry)


def _delays(registry: CollectorRegistry) -> tuple[Gauge, Gauge, Gauge]:
    """Return the gauges of what waits for a look, for how long, and of how late the event loop comes."""
    return (
        Gauge("kvmedic_waiting_resources", "Resources that are due and wait for a worker", registry=registry),
        Gauge(
            "kvmedic_oldest_look_age_seconds",
            "For how long the resource that waits longest was not looked at; 0 while another process leads",
            registry=registry,
        ),
        Gauge(
            "kvmedic_loop_lag_seconds",
            "By how much the event loop came late at worst to what was due, over the last minute",
            registry=registry,
        ),
    )


LOG = logging.getLogger("kvmedic.decisions")


@dataclass(slots=True)
class Reporter:
    """Writes log lines, metrics and Events about what changed."""

    events: EventSink
    telemetry: Telemetry
    _standings: dict[str, Standing] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Have the gauges summed up when they are scraped, not on every look."""
        telemetry = self.telemetry
        telemetry.named.standings = self._standings
        telemetry.open_runs.set_function(partial(self._how_many, OPEN_RUN))
        for severity in Severity:
            for gauge, state in (
                (telemetry.troubled, TROUBLED),
                (telemetry.action_required, ConditionType.ACTION_REQUIRED.value),
                (telemetry.stalled, ConditionType.STALLED.value),
                (telemetry.metrics_unavailable, BLIND),
            ):
                counted = partial(self._how_many, state, severity)
                gauge.labels(severity=severity.value).set_function(counted)
            for reason in reasons_with(Trait.DIVERTS):
                counted = partial(self._how_many, DIVERTED, severity, reason.value)
                telemetry.diverted.labels(reason=reason.value, severity=severity.value).set_function(counted)

    def _how_many(self, state: str, severity: Severity | None = None, reason: str | None = None) -> float:
        # A copy: the metrics are served by a thread of their own.
        asked = (each for each in list(self._standings.values()) if severity in (None, each.severity))
        reasons = [each.states[state] for each in asked if state in each.states]
        return float(sum(reason in (None, each) for each in reasons))

    def count_resource(self, resource: Resource) -> None:
        """Count a resource as it was loaded: what an earlier process saved shows in the gauges too."""
        self._standings[resource.uid] = standing_of(resource, resource.record)

    async def report_changes(self, resource: Resource, before: Record | None, after: Record) -> None:
        """Report what changed between two saved records."""
        self._log(resource, before, after)
        self._standings[resource.uid] = standing_of(resource, after)
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
        draining = ",".join(each.name for each in record.run.draining_pods) or "none"
        return (
            f"run={record.run.id} step={step.step.kind} state={step.state} reason={progressing.reason} "
            f"last_move={at} draining={draining} message={progressing.message!r} {problem}".rstrip()
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
