"""Events, log lines and metrics for what was saved. Never called for something that was not."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Protocol

from kvmedic.core.record import ConditionType, Record, Truth
from kvmedic.core.resource import Resource
from kvmedic.record.telemetry import Telemetry
from kvmedic.record.transitions import Note, notes

LOG = logging.getLogger("kvmedic.decisions")


class EventSink(Protocol):
    """Where Events go; a failure to write one is logged and forgotten."""

    async def publish(self, resource: Resource, note: Note) -> None:
        """Write one Event on the resource, and on its target where the note says so."""


@dataclass(slots=True)
class Reporter:
    """Tells people what changed."""

    events: EventSink
    telemetry: Telemetry
    _open: set[str] = field(default_factory=set)
    _waiting: set[str] = field(default_factory=set)

    async def saved(self, resource: Resource, before: Record | None, after: Record) -> None:
        """Tell what changed between two saved records."""
        self._log(resource, before, after)
        self._count(resource, after)
        for note in notes(before, after):
            self.telemetry.decisions.labels(reason=note.reason.value).inc()
            await self.events.publish(resource, note)

    def forget(self, uid: str) -> None:
        """Drop a resource that no longer exists from the gauges."""
        self._open.discard(uid)
        self._waiting.discard(uid)
        self._set()

    def _count(self, resource: Resource, after: Record) -> None:
        action = after.condition(ConditionType.ACTION_REQUIRED)
        waiting = action is not None and action.status is Truth.TRUE
        (self._open.add if after.run else self._open.discard)(resource.uid)
        (self._waiting.add if waiting else self._waiting.discard)(resource.uid)
        self._set()

    def _set(self) -> None:
        self.telemetry.open_runs.set(len(self._open))
        self.telemetry.action_required.set(len(self._waiting))

    def _log(self, resource: Resource, before: Record | None, after: Record) -> None:
        """Write one line per decision that differs from the last."""
        line = _decision(after)
        if line and (before is None or _decision(before) != line):
            LOG.info("resource=%s/%s %s", resource.namespace, resource.name, line)


def _decision(record: Record) -> str:
    """Return the record's present decision as key-value text."""
    progressing = record.condition(ConditionType.PROGRESSING)
    diagnosed = record.condition(ConditionType.DIAGNOSED)
    if record.run is not None and progressing is not None:
        step = record.run.current
        at = record.run.intent.move if record.run.intent else "none"
        victim = record.run.victim.name if record.run.victim else "none"
        return (
            f"run={record.run.id} step={step.step.kind} state={step.state} reason={progressing.reason} "
            f"last_move={at} draining={victim} message={progressing.message!r}"
        )
    if diagnosed is None:
        return ""
    why = progressing.reason if progressing else "none"
    return f"run=none diagnosis={diagnosed.reason} reason={why} message={diagnosed.message!r}"
