"""How the ConfigMap of an open step and its copy stand, and what follows from it; pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never

from kvmedic.model.config_edits import ConfigMap, FileEdit, Sight, Unseen
from kvmedic.model.evidence import Blocked
from kvmedic.model.reasons import Reason
from kvmedic.rollout.moves import (
    AdoptPod,
    Claim,
    Cordon,
    CordonOrphan,
    DeletePod,
    Failed,
    Freeze,
    Hold,
    MakeCopy,
    MarkStandIn,
    Move,
    Pause,
    Pulse,
    Regain,
    Release,
    ReleasePod,
    Restore,
    Retarget,
    Revert,
    ScaleIn,
    ScaleOut,
    SetMinimum,
    SetOwnerField,
    Settled,
    Uncordon,
    Wait,
)


class SourceState(StrEnum):
    """How the ConfigMap stands to what was planned on it."""

    AS_PLANNED = "AsPlanned"
    CHANGED = "Changed"
    """Somebody changed what is in it."""
    GONE = "Gone"
    UNREADABLE = "Unreadable"


class CopyState(StrEnum):
    """How the copy stands."""

    ABSENT = "Absent"
    READY = "Ready"
    FOREIGN = "Foreign"
    """Something else has its name."""


@dataclass(frozen=True, slots=True)
class Files:
    """The ConfigMap of a step and its copy, as they are now."""

    source: SourceState
    copy: CopyState


def files_of(file: FileEdit, source: Sight, copy: Sight, target_uid: str) -> Files:
    """Return how a step's ConfigMap and its copy stand to the step."""
    return Files(_source_state(file, source), _copy_state(file, copy, target_uid))


def _source_state(file: FileEdit, source: Sight) -> SourceState:
    match source:
        case ConfigMap(contents):
            same = contents.digest == file.before_content
            return SourceState.AS_PLANNED if same else SourceState.CHANGED
        case Unseen.GONE:
            return SourceState.GONE
        case Unseen.UNREADABLE:
            return SourceState.UNREADABLE


def _copy_state(file: FileEdit, copy: Sight, target_uid: str) -> CopyState:
    match copy:
        case ConfigMap(contents) if contents.digest == file.after_content:
            return CopyState.READY if copy.for_target == target_uid else CopyState.FOREIGN
        case ConfigMap():
            return CopyState.FOREIGN
        case Unseen.GONE:
            return CopyState.ABSENT
        case Unseen.UNREADABLE:
            return CopyState.FOREIGN


def copying_move(file: FileEdit, files: Files, *, begun: bool) -> MakeCopy | Failed | Blocked | None:
    """Return what has to happen to the copy before anything else does; None: it is there.

    It is made anew where somebody deleted it, because every replica that restarts needs it.
    """
    match files.copy:
        case CopyState.READY:
            return None
        case CopyState.ABSENT:
            return MakeCopy(file) if files.source is SourceState.AS_PLANNED else None
        case CopyState.FOREIGN:
            reason, text = Reason.CONFIG_MAP_UNAVAILABLE, f"another ConfigMap {file.copy} is in the way"
            return Failed(reason, text) if begun else Blocked(reason, text)


def find_copy_blocker(file: FileEdit, files: Files) -> str:
    """Return why nothing can be built on the ConfigMap now; empty where it can be."""
    match files.source:
        case SourceState.GONE:
            return (
                f"ConfigMap {file.config_map} does not exist, and replicas without the change need it to "
                f"start: make it again; ConfigMap {file.copy} is a copy of it with {file.after!r} for "
                f"{file.before!r}"
            )
        case SourceState.UNREADABLE:
            return f"the operator may not read ConfigMap {file.config_map}: let it get configmaps"
        case _:
            return ""


def needs_source(move: Move) -> bool:
    """Return whether a move of the way back leads to a new replica that reads the ConfigMap.

    While there is no ConfigMap that replica cannot start, so making room for it would change nothing.
    """
    match move:
        case Freeze() | Retarget() | Pulse():
            # The template refers to the ConfigMap from then on, or its controller makes one more replica.
            return True
        case Cordon() | ReleasePod() | MarkStandIn() | CordonOrphan() | DeletePod():
            # One replica after the other on the way out. A replica that is past that is seen to at rest.
            return True
        case ScaleOut() | SetOwnerField():
            # No step in a file comes to these; they make replicas of the template all the same.
            return True
        case Uncordon() | AdoptPod():
            # A replica that serves already comes back.
            return False
        case Revert():
            # Replicas of the template that is put back are all there already, or none are desired.
            return False
        case Restore() | Release() | Regain() | Hold() | Pause() | ScaleIn() | SetMinimum() | Claim():
            # The template stays, and no more replicas of it are asked for.
            return False
        case Wait() | Settled() | Failed() | Blocked():
            # Nothing is assigned.
            return False
        case _:
            assert_never(move)


def await_config_map(file: FileEdit, files: Files) -> Wait:
    """Return the wait for a person to make the ConfigMap again."""
    return Wait(Reason.CONFIG_MAP_UNAVAILABLE, find_copy_blocker(file, files))
