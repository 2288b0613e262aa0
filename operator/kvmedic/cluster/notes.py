"""The note on a Deployment that a run holds frozen, read back, so that the fleet can be given back by it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvmedic.core.bundle import BundleEdit, EnvEdit
from kvmedic.core.edit import EditState, Field, TokenEdit
from kvmedic.core.fleet import RolloutFields
from kvmedic.core.policy import RotationLabel
from kvmedic.core.reference import ReferenceEdit, TemplateEdit
from kvmedic.core.template import template_hash


@dataclass(frozen=True, slots=True)
class Note:
    """What a run wrote down on its target before it froze it."""

    fields: RolloutFields
    """As they were."""
    edit: TemplateEdit | None
    """What it changed of the pod template; None: it put a whole template."""
    template: str
    """Hash of the pod template from before; empty where the edit tells."""
    rotation_label: RotationLabel | None = None
    """By which its replicas are drained; None: the note does not say."""

    def is_undone(self, template: Mapping[str, object]) -> bool:
        """Return whether a pod template is as it was before."""
        if self.edit is None:
            return template_hash(template) == self.template
        return self.edit.state(template) is EditState.BEFORE


def note_in(text: str) -> Note | None:
    """Return what a note says; None where it is none, or not of a rollout, or cannot be read."""
    try:
        return _note(json.loads(text))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _note(said: Mapping[str, Any]) -> Note:
    fields = RolloutFields(
        paused=bool(said["paused"]),
        max_surge=_number(said["maxSurge"]),
        max_unavailable=_number(said["maxUnavailable"]),
        min_ready_seconds=int(said["minReadySeconds"]),
        progress_deadline_seconds=_optional(said["progressDeadlineSeconds"]),
    )
    if fields.is_frozen:
        raise ValueError("a note of frozen fields says nothing of those from before")
    if "replicaSet" in said:
        return Note(fields, None, str(said["template"]), _rotation_label(said))
    return Note(fields, _edit(said), "", _rotation_label(said))


def _rotation_label(said: Mapping[str, Any]) -> RotationLabel | None:
    key, draining = _text(said.get("rotationLabel")), _text(said.get("draining"))
    return RotationLabel(key, draining) if key and draining else None


def _edit(said: Mapping[str, Any]) -> TemplateEdit:
    if "parts" in said:
        return BundleEdit(tuple(_part(part) for part in said["parts"]))
    if "volume" in said:
        where = (str(said["volume"]), int(said["volumeIndex"]), _optional(said.get("source")))
        return ReferenceEdit(*where, before=str(said["before"]), after=str(said["after"]))
    part = _part(said)
    return part if isinstance(part, TokenEdit) else BundleEdit((part,))


def _part(said: Mapping[str, Any]) -> TokenEdit | EnvEdit:
    container, index = str(said["container"]), int(said["containerIndex"])
    place, before, after = int(said["index"]), _text(said["before"]), _text(said["after"])
    if "env" in said:
        return EnvEdit(container, index, str(said["env"]), place, before, after)
    return TokenEdit(container, index, Field(said["field"]), place, before, after, _optional(said.get("at")))


def _number(value: object) -> int | str:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise TypeError(f"{value!r} is no number of replicas")
    return value


def _optional(value: object) -> int | None:
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    raise TypeError(f"{value!r} is no whole number")


def _text(value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    raise TypeError(f"{value!r} is no text")
