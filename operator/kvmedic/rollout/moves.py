"""The moves of a rollout or a replacement: each an absolute assignment to one object, or why none is."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from math import ceil
from typing import TypeAlias, assert_never

from kvmedic.model.config_edits import EditedTemplate, FileEdit, OwnerField, TemplateChange
from kvmedic.model.evidence import Blocked
from kvmedic.model.fleet import SURGE, Fleet, Minimum, Orphan, OwnerObject, Pod, RolloutFields, freeze_fields
from kvmedic.model.reasons import Reason


@dataclass(frozen=True, slots=True)
class Freeze:
    """Change the template and freeze the rollout, in one patch: the controller adds one new pod."""

    edit: TemplateChange
    fields: RolloutFields


@dataclass(frozen=True, slots=True)
class Hold:
    """Freeze somebody's rollout where it stands: the template stays, and nothing is added or removed."""

    edit: TemplateChange
    """What the template is to become later."""
    fields: RolloutFields


@dataclass(frozen=True, slots=True)
class Pause:
    """Stop the controller and take back every permit."""

    fields: RolloutFields


@dataclass(frozen=True, slots=True)
class Retarget:
    """Put the other template back while the rollout stays paused."""

    edit: TemplateChange
    fields: RolloutFields


@dataclass(frozen=True, slots=True)
class Pulse:
    """Let exactly these pods go, or none; and let the controller add what is missing then."""

    pods_to_remove: tuple[str, ...]
    fields: RolloutFields


@dataclass(frozen=True, slots=True)
class Restore:
    """Every replica runs the desired template: put the recorded fields back."""

    fields: RolloutFields
    replicas: int
    """Expected of `/status/replicas` and `/status/updatedReplicas`."""


@dataclass(frozen=True, slots=True)
class Revert:
    """Put the template and the recorded fields back in one patch.

    Only while the desired revision has all its replicas (or none are desired), so that nothing but
    the extra pod can go; or where somebody edited the template, whose rollout goes its own way then.
    """

    edit: TemplateChange | EditedTemplate
    fields: RolloutFields


@dataclass(frozen=True, slots=True)
class Release:
    """Put back those of the recorded fields that still hold our values; the template is somebody else's."""

    fields: RolloutFields


@dataclass(frozen=True, slots=True)
class Regain:
    """The claim, its note and the frozen fields again, where somebody took them off; the template stays."""

    edit: TemplateChange | None
    """What the run changes, for the note; None: it changes no template."""
    recorded: RolloutFields
    """The fields to be put back at the end, for the note."""
    fields: RolloutFields | None
    """None: the rollout's fields stay as they are."""


@dataclass(frozen=True, slots=True)
class ScaleOut:
    """One replica more: the spare. The template and the rollout's fields stay as they are."""

    before: int
    replicas: int
    pod: str
    """The replica that is to go once the spare serves; for the note that a person can read."""


@dataclass(frozen=True, slots=True)
class ScaleIn:
    """The recorded number of replicas again: the controller removes the cordoned one first."""

    before: int
    replicas: int
    pod: str
    """The replica that is to go."""
    ready: int | None
    """Expected of `/status/readyReplicas`, so that no other replica goes first; None: any number."""


@dataclass(frozen=True, slots=True)
class Claim:
    """Nothing but the claim: whatever follows is on another object than the Deployment."""


@dataclass(frozen=True, slots=True)
class SetMinimum:
    """Another minimum of an autoscaler; the Deployment is not touched."""

    holder: Minimum
    """As it was looked at."""
    number: int
    is_given: bool
    """False: the field is removed, since the autoscaler did not have it before."""


@dataclass(frozen=True, slots=True)
class SetOwnerField:
    """Another value in the object that the Deployment is rendered from; the Deployment is not touched."""

    field: OwnerField
    seen: OwnerObject
    """As it was looked at."""


@dataclass(frozen=True, slots=True)
class Cordon:
    """Take one pod out of rotation: label and deletion cost in one patch."""

    pod: Pod
    beside: tuple[str, ...] = ()
    """Uids of those that are drained already, and stay out."""


@dataclass(frozen=True, slots=True)
class Uncordon:
    """Put one pod back into rotation."""

    pod: Pod
    timed_out: bool = False
    """Its drain timed out: it is not taken again before another one went."""


@dataclass(frozen=True, slots=True)
class DeletePod:
    """Delete the drained pod by name, because the controller would take a NotReady peer first."""

    pod: Pod


@dataclass(frozen=True, slots=True)
class ReleasePod:
    """Have a pod's ReplicaSet let go of it, while everything still leads requests to it."""

    pod: Pod


@dataclass(frozen=True, slots=True)
class AdoptPod:
    """Give a released pod back to its ReplicaSet, which takes it in and lets the newest one go."""

    orphan: Orphan


@dataclass(frozen=True, slots=True)
class MarkStandIn:
    """Make the pod that took a released one's place the first of its ReplicaSet to go."""

    pod: Pod


@dataclass(frozen=True, slots=True)
class CordonOrphan:
    """Take a released pod out of rotation for good, and have the kubelet end it if nobody else does."""

    orphan: Orphan
    keys: tuple[str, ...]
    """The labels to change; none: those that were noted when it was released."""
    linger: timedelta
    """How long it may finish its requests before the kubelet ends it."""


@dataclass(frozen=True, slots=True)
class MakeCopy:
    """Make the copy of a ConfigMap that a changed template refers to; the ConfigMap stays as it is."""

    file: FileEdit


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to assign; somebody else has to act first."""

    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class Settled:
    """Every replica runs the desired template, and nothing of ours is left but the claim."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The way forward is closed: a new replica does not come up."""

    reason: Reason
    message: str


RolloutMove: TypeAlias = Freeze | Hold | Pause | Retarget | Pulse | Restore | Revert | Release
ScaleMove: TypeAlias = ScaleOut | ScaleIn
DeploymentMove: TypeAlias = RolloutMove | ScaleMove | Claim | Regain
OrphanMove: TypeAlias = ReleasePod | AdoptPod | MarkStandIn | CordonOrphan
PodMove: TypeAlias = Cordon | Uncordon | DeletePod | OrphanMove
Effect: TypeAlias = DeploymentMove | PodMove | SetMinimum | SetOwnerField
Move: TypeAlias = Effect | Wait | Settled | Failed | Blocked


WAVE_PARTS = 4
"""A wave is one part of so many, as Kubernetes' own `maxSurge` is where a Deployment names none (25 %)."""


def largest_wave(replicas: int) -> int:
    """Return how many replicas a quarter of the fleet is, rounded up as `maxSurge` is."""
    return max(SURGE, ceil(replicas / WAVE_PARTS))


def kubectl_name(fleet: Fleet) -> str:
    """Return how kubectl names a workload: `deployment/NAME`."""
    return f"{fleet.kind.lower()}/{fleet.name}"


def count_lacking(fleet: Fleet, may_lack: int) -> int:
    """Return how many replicas may be missing now: never the only one."""
    return min(may_lack, max(0, fleet.replicas - 1))


def edit_in(move: DeploymentMove) -> TemplateChange | EditedTemplate | None:
    """Return what a move changes of the pod template; None: the template stays."""
    match move:
        case Freeze() | Retarget() | Revert():
            return move.edit
        case Hold() | Pause() | Pulse() | Restore() | Release() | ScaleOut() | ScaleIn() | Claim() | Regain():
            return None
        case _:
            assert_never(move)


def takes_replica(move: Move) -> bool:
    """Return whether a move begins to take a replica away, or takes one out of rotation for good.

    Until then everybody serves on, so whatever has to hold before a replica goes is asked here. A pulse, a
    deletion and a lower number end those that were taken before, or that serve nobody.
    """
    match move:
        case Cordon() | ReleasePod() | CordonOrphan():
            return True
        case Uncordon() | AdoptPod() | MarkStandIn() | DeletePod():
            return False
        case Freeze() | Hold() | Pause() | Retarget() | Pulse() | Restore() | Revert() | Release():
            return False
        case ScaleOut() | ScaleIn() | SetMinimum() | SetOwnerField() | Claim() | Regain():
            return False
        case Wait() | Settled() | Failed() | Blocked():
            return False
        case _:
            assert_never(move)


def still_fields(fleet: Fleet, may_lack: int = 0) -> RolloutFields:
    """Return the fields with which the controller adds nothing and removes nothing."""
    if fleet.is_stateful or fleet.rotation.orphan is not None or count_lacking(fleet, may_lack):
        return fleet.hold_fields(count_lacking(fleet, may_lack))
    held = fleet.fields.max_surge if fleet.fields.is_frozen else SURGE
    surge = min(fleet.spares, held) if isinstance(held, int) else SURGE
    return freeze_fields(max_unavailable=0, paused=True, surge=max(SURGE, surge))


def adding_pulse(fleet: Fleet, surge: int = SURGE) -> Pulse:
    """Return the pulse that lets nobody go and lets the controller add what is missing."""
    return Pulse((), freeze_fields(max_unavailable=0, paused=False, surge=max(surge, fleet.spares)))


def is_first(fleet: Fleet, away: str, toward: str) -> bool:
    """Return whether no more than one replica was replaced, or every old one is there still."""
    return fleet.is_saturated(away) or fleet.count_desired(toward) <= SURGE


def is_target_unavailable(fleet: Fleet, desired: str) -> bool:
    """Return whether every pod of the desired ReplicaSet counts as unavailable.

    On the way back the desired ReplicaSet is an old one whose pods are Available until its
    controller has seen the frozen `minReadySeconds`: a pulse before that could take several pods.
    """
    return all(
        rs.observed and rs.available == 0 and rs.min_ready_seconds == fleet.fields.min_ready_seconds
        for rs in fleet.replica_sets
        if rs.revision == desired and rs.desired > 0
    )
