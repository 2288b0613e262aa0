"""Events about what was saved: each transition between two saved records, once, on resource and target."""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from kvmedic.api.resource import GROUP, KIND, VERSION
from kvmedic.kube.errors import ApiError, Conflict
from kvmedic.kube.objects import EVENTS, JsonObject, Ref
from kvmedic.model.edits import DIGITS
from kvmedic.model.reasons import Reason, Trait
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
"""What a run in the middle of its walk reports to a person by an Event: it goes no further without one."""

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
    """Return what a person must do, unless an earlier status gave that reason."""
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


class EventSink(Protocol):
    """Where Events go; a failure to write one is logged and forgotten."""

    async def publish(self, resource: Resource, note: Note) -> None:
        """Write one Event on the resource, and on its target where the note says so."""


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
