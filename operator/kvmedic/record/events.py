"""Kubernetes Events for transitions, on the resource and on its target."""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass

from kvmedic.api.resource import GROUP, KIND, VERSION
from kvmedic.core.redaction import redact
from kvmedic.core.resource import Resource
from kvmedic.core.severity import Severity
from kvmedic.kube.client import Client
from kvmedic.kube.errors import ApiError, Conflict
from kvmedic.kube.objects import EVENTS, JsonObject, Ref
from kvmedic.record.transitions import Note

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
        for regarding in _regarding(resource, note):
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
            "note": _text(note).encode()[:NOTE_LIMIT].decode(errors="ignore"),
            "regarding": regarding,
        }


def _text(note: Note) -> str:
    """Return what the Event says; a page says so first, because only the beginning is sure to be read."""
    message = redact(note.message)
    return f"[page] {message}" if note.severity is Severity.PAGE else message


def _regarding(resource: Resource, note: Note) -> list[dict[str, str]]:
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
