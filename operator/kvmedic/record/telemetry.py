"""Events, log lines and the operator's own metrics, for what was saved. Never for what was not.

What changed between two saved records becomes notes: one Event each, on the resource and its target. Label
values come from enums, but for the names of resources in one bounded family.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kvmedic.api.resource import GROUP, KIND, VERSION
from kvmedic.kube.errors import ApiError, Conflict
from kvmedic.kube.objects import EVENTS, JsonObject, Ref
from kvmedic.model.edits import DIGITS
from kvmedic.model.reasons import Reason, Trait, reasons_with
from kvmedic.model.redaction import redact
from kvmedic.model.run import ComparisonState, Run, StepState
from kvmedic.model.status import SERVED_IN_TIME, ConditionType, Record, Resource, Severity, Truth

if TYPE_CHECKING:
    from kvmedic.kube.client import Client

STATE_REASONS = {
    StepState.PENDING: Reason.PLANNED,
    StepState.ROLLING_OUT: Reason.ROLLING_OUT,
    StepState.VERIFYING: Reason.VERIFYING,
    StepState.ROLLING_BACK: Reason.ROLLING_BACK,
}
"""The reason of the Event about a step's state. A step that ended has the Event of its run's outcome."""

STUCK_DRAINS = (Reason.DRAIN_TIMED_OUT, Reason.REQUESTS_STILL_ARRIVE)
"""What a run in the middle of its walk tells a person by an Event: it goes no further without one."""

COMPARISON_REASONS = {
    ComparisonState.GO_ON: Reason.REPLICAS_COMPARED,
    ComparisonState.NOT_COMPARABLE: Reason.NOT_COMPARABLE,
}
"""The reason of the Event about replicas that were compared and after which the rollout goes on."""


@dataclass(frozen=True, slots=True)
class Note:
    """One transition."""

    reason: Reason
    message: str
    warning: bool = False
    run: str = ""
    """The run's id; empty outside a run."""
    on_target: bool = False
    """The target was or will be touched, so it belongs on the Deployment's Events as well."""
    severity: Severity | None = None
    """Of the trouble that it is about; None without trouble."""


def notes(before: Record | None, after: Record) -> tuple[Note, ...]:
    """Return what is new in the later of two records, in the order of reading."""
    old = before or Record()
    new = (*_runbook_switch_notes(old, after), *_state_notes(old, after), *_urgency_notes(old, after))
    severity = after.urgency.severity if after.urgency else None
    return tuple(replace(note, severity=severity) for note in new)


def _state_notes(old: Record, after: Record) -> tuple[Note, ...]:
    if after.run is not None:
        held = tuple(note for note in _person_notes(old, after) if note.reason in STUCK_DRAINS)
        return (
            *_diagnosis_notes(old, after),
            *_run_notes(old.run, after.run),
            *_not_ready_notes(old, after),
            *(replace(note, run=after.run.id) for note in held),
        )
    if old.run is not None and after.history:
        end = after.history[0]
        is_good = Trait.GOOD_END in end.outcome.traits
        text = f"run {end.id} ended: {end.message} ({'; '.join(end.steps)})"
        return (Note(end.outcome, text, not is_good, end.id, on_target=True),)
    return _survey_notes(old, after)


def _run_notes(old: Run | None, new: Run) -> tuple[Note, ...]:
    state = new.current.state
    if old is not None and old.current.state is state and old.index == new.index:
        return _comparison_notes(old, new)
    reason = STATE_REASONS.get(state)
    if reason is None:
        return ()
    step = new.current.step.line()
    why = new.ending.message if new.ending else new.message
    text = f"run {new.id}: {reason.sentence} {step}. {why}"
    return (Note(reason, text, state is StepState.ROLLING_BACK, new.id, on_target=True),)


def _comparison_notes(old: Run, new: Run) -> tuple[Note, ...]:
    """Return that the rollout goes on after new replicas were compared; that it turns back says its state."""
    found, was = new.current.comparison, old.current.comparison
    reason = COMPARISON_REASONS.get(found.state) if found is not None else None
    if found is None or reason is None or (was is not None and was.state is found.state):
        return ()
    text = f"run {new.id}: {reason.sentence} {found.message}"
    return (Note(reason, text, run=new.id, on_target=True),)


def _runbook_switch_notes(old: Record, new: Record) -> tuple[Note, ...]:
    if new.runbook_switches[:1] == old.runbook_switches[:1] or not new.runbook_switches:
        return ()
    switch = new.runbook_switches[0]
    text = f"{switch.line()}: {switch.message}"
    return (Note(Reason.RUNBOOK_SWITCHED, text),)


def _urgency_notes(old: Record, new: Record) -> tuple[Note, ...]:
    """Return that a page begins, or that it ends while there is still trouble."""
    paged = old.urgency is not None and old.urgency.severity is Severity.PAGE
    if new.urgency is None or paged is (new.urgency.severity is Severity.PAGE):
        return ()
    reason = Reason.OBJECTIVES_MET if paged else Reason.OBJECTIVE_BREACHED
    if SERVED_IN_TIME in (old.urgency if paged and old.urgency else new.urgency).breached:
        reason = Reason.SERVED_IN_TIME if paged else Reason.SERVED_TOO_LATE
    text = f"{reason.sentence} {new.urgency.message}"
    return (Note(reason, text, warning=not paged),)


def _diagnosis_notes(old: Record, new: Record) -> tuple[Note, ...]:
    """Return the diagnosis unless its reason is the same as before; also when a run opens on it."""
    shown, was = new.diagnosis, old.diagnosis
    if shown is None or (was is not None and was.reason is shown.reason):
        return ()
    return (Note(shown.reason, shown.message),)


def _not_ready_notes(old: Record, new: Record) -> tuple[Note, ...]:
    """Return why the resource is not Ready, unless the reason is the same as before."""
    ready, was = new.condition(ConditionType.READY), old.condition(ConditionType.READY)
    if ready is None or ready.status is Truth.TRUE or (was is not None and was.reason is ready.reason):
        return ()
    return (Note(ready.reason, ready.message, warning=True),)


def _person_notes(old: Record, new: Record) -> tuple[Note, ...]:
    """Return what a person must do, unless it or a complaint gave that reason before."""
    acting, was = new.condition(ConditionType.ACTION_REQUIRED), old.condition(ConditionType.ACTION_REQUIRED)
    if acting is None or acting.status is not Truth.TRUE or Trait.NEEDS_A_PERSON not in acting.reason.traits:
        return ()
    ready = new.condition(ConditionType.READY)
    known = {each.reason for each in (was, ready) if each is not None}
    if acting.reason in known:
        return ()
    return (Note(acting.reason, acting.message, warning=True),)


def _survey_notes(old: Record, new: Record) -> tuple[Note, ...]:
    found = [*_diagnosis_notes(old, new), *_not_ready_notes(old, new), *_person_notes(old, new)]
    if new.plan is not None and (old.plan is None or old.plan.digest != new.plan.digest):
        text = f"plan {new.plan.digest}: {'; '.join(new.plan.steps)}. {new.plan.message}"
        found.append(Note(Reason.PLANNED, text))
    still = {(each.knob, each.run if each.knob else "") for each in new.temporary}
    for each in old.temporary:
        if each.adds_replicas and (None, "") not in still:
            text = f"{each.line()} is forgotten: someone else set the number, and that number stays"
            found.append(Note(Reason.REPLICAS_CHANGED, text))
        elif each.knob is not None and (each.knob, each.run) not in still:
            text = f"{each.line()} is forgotten: someone else set the flag, or created the target again"
            found.append(Note(Reason.TEMPORARY_CHANGE_FORGOTTEN, text))
    return tuple(found)


EVENT_LOG = logging.getLogger("kvmedic.events")
SEVERITY_LABEL = f"{GROUP}/severity"
"""Label of an Event: `page` or `ticket`; absent where there is no trouble."""
NOTE_LIMIT = 1024
"""Bytes of an Event's note, at most (events.k8s.io/v1)."""


@dataclass(frozen=True, slots=True)
class Events:
    """Writes Events. One transition of one run on one object has one name, so it is written once."""

    client: Client
    instance: str
    """This process, as Events name it: the pod's name."""

    async def publish(self, resource: Resource, note: Note) -> None:
        """Write a note's Events; a failure is logged, because an Event is never worth a retry."""
        for regarding in _regarding_objects(resource, note):
            event = self._event(resource, note, regarding)
            try:
                await self.client.create(Ref(EVENTS, resource.namespace, event["metadata"]["name"]), event)
            except Conflict:
                continue
            except ApiError as error:
                EVENT_LOG.warning(
                    "resource=%s/%s event=%s error=%s", resource.namespace, resource.name, note.reason, error
                )

    def _event(self, resource: Resource, note: Note, regarding: dict[str, str]) -> JsonObject:
        now = self.client.clock.now().strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        within = note.run or now
        key = f"{resource.uid}/{regarding['kind']}/{note.reason}/{within}"
        digest = hashlib.sha256(key.encode()).hexdigest()[:DIGITS]
        return {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {
                "name": f"{resource.name[:200]}.{digest}",
                "namespace": resource.namespace,
                "labels": {SEVERITY_LABEL: str(note.severity)} if note.severity else {},
            },
            "eventTime": now,
            "reportingController": "kvmedic.io/operator",
            "reportingInstance": self.instance,
            "action": "Remediate" if note.run else "Diagnose",
            "reason": str(note.reason),
            "type": "Warning" if note.warning else "Normal",
            "note": _event_text(note).encode()[:NOTE_LIMIT].decode(errors="ignore"),
            "regarding": regarding,
        }


def _event_text(note: Note) -> str:
    """Return the Event's text. A page says so first, because a list of Events shows only the beginning."""
    message = redact(note.message)
    return f"[page] {message}" if note.severity is Severity.PAGE else message


def _regarding_objects(resource: Resource, note: Note) -> list[dict[str, str]]:
    own = {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": KIND,
        "name": resource.name,
        "namespace": resource.namespace,
        "uid": resource.uid,
    }
    if resource.policy is None or not (note.on_target or resource.is_stand_in):
        return [own]
    target = {
        "apiVersion": "apps/v1",
        "kind": resource.policy.target.kind,
        "name": resource.policy.target.name,
        "namespace": resource.namespace,
    }
    run = resource.record.run if resource.record else None
    target = {**target, "uid": run.target_uid} if run else target
    return [target] if resource.is_stand_in else [own, target]


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
    """Tells what each source cost: its own time and ours apart."""

    def __init__(self, costs: Mapping[str, SourceCost]) -> None:
        """Tell of these sources, by name."""
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
"""What may be told of a resource, the more urgent first."""


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


MOST_TOLD = 1000
"""Series that name a resource, at most. A choice: a page of 200 kB, and what a Prometheus keeps of one pod
without noticing. In a storm beyond that the more urgent ones are told."""


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
        told = [(each, state) for each in list(self.standings.values()) for state in each.states]
        told.sort(key=lambda one: (one[0].severity is not Severity.PAGE, STATES.index(one[1])))
        for each, state in told[:MOST_TOLD]:
            row = (each.namespace, each.name, state, each.severity.value, each.states[state])
            info.add_metric(row, 1.0)
        yield info
        text = "Series of kvmedic_resource_info that there was no room for"
        left_out = max(0, len(told) - MOST_TOLD)
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
        self.waiting, self.oldest_look = _delays(registry)
        self.notifications = _notifications(registry)
        for reason in Reason:
            self.decisions.labels(reason=reason.value)

    def tell_leadership(self, shard: int, count: int, is_held: Callable[[], bool]) -> None:
        """Tell of which shard of how many this process is, and whether it acts."""
        self.shards.set(count)
        self.leading.labels(shard=str(shard)).set_function(lambda: float(is_held()))

    def tell_delays(self, waiting: Callable[[], float], oldest_look_seconds: Callable[[], float]) -> None:
        """Tell how many resources wait for a look, and for how long one was not looked at."""
        self.waiting.set_function(waiting)
        self.oldest_look.set_function(oldest_look_seconds)


def _leaders(registry: CollectorRegistry) -> tuple[Gauge, Gauge]:
    """Return the gauges of who acts, and of how many that should be."""
    text = "1 while this process is the one that acts"
    return (
        Gauge("kvmedic_leading", text, ["shard"], registry=registry),
        Gauge("kvmedic_shards", "Operators that divide the namespaces, as was told", registry=registry),
    )


def _notifications(registry: CollectorRegistry) -> Counter:
    """Return the counter of what came of notifications."""
    text = "Notifications by what came of them: sent, failed (given up), dropped (too many waited)"
    return Counter("kvmedic_notifications", text, ["destination", "result"], registry=registry)


def _delays(registry: CollectorRegistry) -> tuple[Gauge, Gauge]:
    """Return the gauges of what waits for a look, and for how long."""
    return (
        Gauge("kvmedic_waiting_resources", "Resources that are due and wait for a worker", registry=registry),
        Gauge(
            "kvmedic_oldest_look_age_seconds",
            "For how long the resource that waits longest was not looked at; 0 while another process leads",
            registry=registry,
        ),
    )


LOG = logging.getLogger("kvmedic.decisions")


class EventSink(Protocol):
    """Where Events go; a failure to write one is logged and forgotten."""

    async def publish(self, resource: Resource, note: Note) -> None:
        """Write one Event on the resource, and on its target where the note says so."""


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

    def seen(self, resource: Resource) -> None:
        """Count a resource as it was loaded: what an earlier process saved shows in the gauges too."""
        self._standings[resource.uid] = standing_of(resource, resource.record)

    async def saved(self, resource: Resource, before: Record | None, after: Record) -> None:
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
        victim = ",".join(victim.name for victim in record.run.victims) or "none"
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
