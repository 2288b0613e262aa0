"""Kubernetes Events for transitions, on the resource and on its target.

What changed between two saved records that a person should hear of; pure.
"""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass, replace

from kvmedic.api.resource import GROUP, KIND, VERSION
from kvmedic.kube.client import Client
from kvmedic.kube.errors import ApiError, Conflict
from kvmedic.kube.objects import EVENTS, JsonObject, Ref
from kvmedic.model.reasons import Reason, Trait
from kvmedic.model.redaction import redact
from kvmedic.model.run import Run, StepState
from kvmedic.model.status import ConditionType, Record, Resource, Severity, Truth

STATE_REASONS = {
    StepState.PENDING: Reason.PLANNED,
    StepState.ROLLING_OUT: Reason.ROLLING_OUT,
    StepState.VERIFYING: Reason.VERIFYING,
    StepState.ROLLING_BACK: Reason.ROLLING_BACK,
}
"""The reason under which a step's state is told; a step that ended is told with its run's outcome."""


@dataclass(frozen=True, slots=True)
class Note:
    """One transition."""

    reason: Reason
    message: str
    warning: bool
    run: str
    """The run's id; empty outside a run."""
    on_target: bool
    """The target was or will be touched, so it belongs on the Deployment's Events as well."""
    severity: Severity | None = None
    """Of the trouble that it is about; None: there is none."""


def notes(before: Record | None, after: Record) -> tuple[Note, ...]:
    """Return what is new in the later of two records, in the order of reading."""
    old = before or Record()
    told = (
        *_runbook_switch_notes(old, after),
        *_notes(old, after),
        *_urgency_notes(old, after),
    )
    severity = after.urgency.severity if after.urgency else None
    return tuple(replace(note, severity=severity) for note in told)


def _notes(old: Record, after: Record) -> tuple[Note, ...]:
    if after.run is not None:
        held = tuple(note for note in _demands(old, after) if note.reason is Reason.DRAIN_TIMED_OUT)
        return (
            *_diagnosis_notes(old, after),
            *_run_notes(old.run, after.run),
            *_complaints(old, after),
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
        return ()
    reason = STATE_REASONS.get(state)
    if reason is None:
        return ()
    step = new.current.step.line()
    why = new.ending.message if new.ending else new.message
    text = f"run {new.id}: {reason.sentence} {step}. {why}"
    return (Note(reason, text, state is StepState.ROLLING_BACK, new.id, on_target=True),)


def _runbook_switch_notes(old: Record, new: Record) -> tuple[Note, ...]:
    """Return that one runbook left the fleet to the other, or took it back."""
    if new.runbook_switches[:1] == old.runbook_switches[:1] or not new.runbook_switches:
        return ()
    switch = new.runbook_switches[0]
    text = f"{switch.line()}: {switch.message}"
    return (Note(Reason.RUNBOOK_SWITCHED, text, warning=False, run="", on_target=False),)


def _urgency_notes(old: Record, new: Record) -> tuple[Note, ...]:
    """Return that a page begins, or that it ends while there is still trouble."""
    paged = old.urgency is not None and old.urgency.severity is Severity.PAGE
    if new.urgency is None or paged is (new.urgency.severity is Severity.PAGE):
        return ()
    reason = Reason.OBJECTIVES_MET if paged else Reason.OBJECTIVE_BREACHED
    text = f"{reason.sentence} {new.urgency.message}"
    return (Note(reason, text, warning=not paged, run="", on_target=False),)


def _diagnosis_notes(old: Record, new: Record) -> tuple[Note, ...]:
    """Return the diagnosis if it is another than before: also the one that a run is opened on."""
    shown, was = new.diagnosis, old.diagnosis
    if shown is None or (was is not None and was.reason is shown.reason):
        return ()
    return (Note(shown.reason, shown.message, warning=False, run="", on_target=False),)


def _complaints(old: Record, new: Record) -> tuple[Note, ...]:
    """Return why the resource is not Ready, if it is another reason than before."""
    ready, was = new.condition(ConditionType.READY), old.condition(ConditionType.READY)
    if ready is None or ready.status is Truth.TRUE or (was is not None and was.reason is ready.reason):
        return ()
    return (Note(ready.reason, ready.message, warning=True, run="", on_target=False),)


def _demands(old: Record, new: Record) -> tuple[Note, ...]:
    """Return what a person must do, if it is another reason than before and no complaint told it."""
    acting, was = new.condition(ConditionType.ACTION_REQUIRED), old.condition(ConditionType.ACTION_REQUIRED)
    if acting is None or acting.status is not Truth.TRUE or Trait.NEEDS_A_PERSON not in acting.reason.traits:
        return ()
    ready = new.condition(ConditionType.READY)
    known = {each.reason for each in (was, ready) if each is not None}
    if acting.reason in known:
        return ()
    return (Note(acting.reason, acting.message, warning=True, run="", on_target=False),)


def _survey_notes(old: Record, new: Record) -> tuple[Note, ...]:
    found = [*_diagnosis_notes(old, new), *_complaints(old, new), *_demands(old, new)]
    if new.plan is not None and (old.plan is None or old.plan.digest != new.plan.digest):
        text = f"plan {new.plan.digest}: {'; '.join(new.plan.steps)}. {new.plan.message}"
        found.append(Note(Reason.PLANNED, text, warning=False, run="", on_target=False))
    still = {(each.knob, each.run if each.knob else "") for each in new.temporary}
    for each in old.temporary:
        if each.adds_replicas and (None, "") not in still:
            text = f"{each.line()} is forgotten: somebody else set the number, and it stays"
            found.append(Note(Reason.REPLICAS_CHANGED, text, warning=False, run="", on_target=False))
        elif each.knob is not None and (each.knob, each.run) not in still:
            text = f"{each.line()} is forgotten: somebody else set the flag, or made the target anew"
            found.append(
                Note(Reason.TEMPORARY_CHANGE_FORGOTTEN, text, warning=False, run="", on_target=False)
            )
    return tuple(found)


LOG = logging.getLogger("kvmedic.events")
SEVERITY = f"{GROUP}/severity"
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
                LOG.warning(
                    "resource=%s/%s event=%s error=%s", resource.namespace, resource.name, note.reason, error
                )

    def _event(self, resource: Resource, note: Note, regarding: dict[str, str]) -> JsonObject:
        now = self.client.clock.now().strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        within = note.run or now
        key = f"{resource.uid}/{regarding['kind']}/{note.reason}/{within}"
        digest = hashlib.sha256(key.encode()).hexdigest()[:16]
        return {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {
                "name": f"{resource.name[:200]}.{digest}",
                "namespace": resource.namespace,
                "labels": {SEVERITY: str(note.severity)} if note.severity else {},
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
    """Return what the Event says; a page says so first, because only the beginning is sure to be read."""
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
