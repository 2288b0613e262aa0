"""The frozen rollout as a pure state machine: an observed fleet in, the next assignment out.

A Deployment has one pod template, so one setting reaches its replicas one by one like this: the
template is changed together with a `minReadySeconds` so large that no new pod is ever Available,
which makes the controller wait for ever with one pod more than before. Between steps the Deployment
is paused with `maxUnavailable: 0`; a step is one pulse that lets exactly one drained pod go. Whoever
dies whenever, the fleet stands still with every replica serving.

Nothing here is remembered from tick to tick except the pod being drained: every move follows from
what is observed, so the same observation always gives the same move.

Source: Kubernetes 1.36 deployment controller, rolling.go. One more pod may go while
`pods - (replicas - maxUnavailable) - unavailable pods of the target ReplicaSet > 0`, pods being
counted by the ReplicaSets' specs.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TypeAlias

from kvmedic.core.edit import TokenEdit
from kvmedic.core.fleet import (
    FROZEN_MIN_READY_SECONDS,
    FROZEN_PROGRESS_DEADLINE_SECONDS,
    Fleet,
    Owner,
    Pod,
    RolloutFields,
    frozen,
)
from kvmedic.core.reasons import Reason

SURGE = 1
"""One spare: it needs one free device, and capacity in rotation never falls below what it was."""

PULSE_LIMIT = timedelta(seconds=10)
"""A pulse that the controller has not spent by then is taken back: a permit left standing is spent
by the next edit. Measured: the controller needs 0.2-0.4 s."""

PEER_GRACE = timedelta(seconds=20)
"""How long a peer may be NotReady before the drained pod is deleted by name instead of by order: two
periods of a usual readiness probe (10 s, the API's default)."""

FATAL_WAITING = frozenset(
    {
        "CrashLoopBackOff",
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "CreateContainerConfigError",
        "CreateContainerError",
        "RunContainerError",
    }
)
"""Reasons of a waiting container that do not pass by themselves (kubelet 1.36)."""

FATAL_RESTARTS = 2
"""A new pod that restarted twice has failed: one restart may be a device not yet released."""


@dataclass(frozen=True, slots=True)
class Victim:
    """The pod that is being taken out of rotation and drained."""

    name: str
    uid: str
    cordoned_at: datetime
    out_at: datetime | None = None
    """When the EndpointSlices were first seen without it."""


class Drain(StrEnum):
    """What is known of the requests on the victim."""

    BUSY = "Busy"
    IDLE = "Idle"
    """Two readings of zero, at least five seconds after it left rotation."""
    UNKNOWN = "Unknown"
    """The engine did not say."""
    TIMED_OUT = "TimedOut"
    """`drainTimeout` passed; the engine's own graceful shutdown has to do the rest."""


@dataclass(frozen=True, slots=True)
class Order:
    """Which way the fleet is to go, and what is known beside the fleet itself."""

    away: str
    """Hash of the pod template that is being left."""
    toward: str
    """Hash of the pod template that every replica shall run."""
    edit: TokenEdit
    """The edit that turns the one into the other."""
    recorded: RolloutFields
    """The Deployment's own fields, to be put back at the end."""
    victim: Victim | None
    drain: Drain
    start_limit: timedelta
    """How long a new replica may take to become Ready."""
    spare_limit: timedelta
    """How long a new replica may stay unschedulable."""
    pulsed_at: datetime | None = None
    """When the last pulse was intended."""


@dataclass(frozen=True, slots=True)
class Freeze:
    """Change the template and freeze the rollout, in one patch: the controller adds one new pod."""

    edit: TokenEdit
    fields: RolloutFields


@dataclass(frozen=True, slots=True)
class Pause:
    """Stop the controller and take back every permit."""

    fields: RolloutFields


@dataclass(frozen=True, slots=True)
class Retarget:
    """Put the other template back while the rollout stays paused."""

    edit: TokenEdit
    fields: RolloutFields


@dataclass(frozen=True, slots=True)
class Pulse:
    """Let exactly one pod go: the victim."""

    victim: str
    fields: RolloutFields


@dataclass(frozen=True, slots=True)
class Restore:
    """Every replica runs the wanted template: put the recorded fields back."""

    fields: RolloutFields
    replicas: int
    """Expected of `/status/replicas` and `/status/updatedReplicas`."""


@dataclass(frozen=True, slots=True)
class Revert:
    """Put the template and the recorded fields back in one patch.

    Only while the wanted revision has all its replicas (or none are wanted), so that nothing but
    the extra pod can go.
    """

    edit: TokenEdit
    fields: RolloutFields


@dataclass(frozen=True, slots=True)
class Release:
    """Put back those of the recorded fields that still hold our values; the template is somebody else's."""

    fields: RolloutFields


@dataclass(frozen=True, slots=True)
class Cordon:
    """Take one pod out of rotation: label and deletion cost in one patch."""

    pod: Pod


@dataclass(frozen=True, slots=True)
class Uncordon:
    """Put one pod back into rotation."""

    pod: Pod


@dataclass(frozen=True, slots=True)
class DeletePod:
    """Delete the drained victim by name, because the controller would take a NotReady peer first."""

    pod: Pod


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to assign; somebody else has to act first."""

    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class Settled:
    """Every replica runs the wanted template, and nothing of ours is left but the claim."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The way forward is closed: a new replica does not come up."""

    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class Refused:
    """The rollout cannot begin safely."""

    reason: Reason
    message: str


DeploymentMove: TypeAlias = Freeze | Pause | Retarget | Pulse | Restore | Revert | Release
PodMove: TypeAlias = Cordon | Uncordon | DeletePod
Effect: TypeAlias = DeploymentMove | PodMove
Move: TypeAlias = Effect | Wait | Settled | Failed | Refused


def refusal(fleet: Fleet) -> Refused | None:
    """Return why a frozen rollout cannot begin on this fleet, or None.

    Each row was seen to break the rollout on a real controller when ignored.
    """
    for applies, reason, message in (
        (
            fleet.strategy != "RollingUpdate",
            Reason.STRATEGY_UNSUPPORTED,
            f"strategy is {fleet.strategy}: it stops every replica at once; set strategy.type: RollingUpdate",
        ),
        (
            fleet.owner is not None,
            fleet.owner.reason if fleet.owner else Reason.OWNED_BY_CONTROLLER,
            _owner_message(fleet.owner),
        ),
        (
            fleet.rotation.in_selector,
            Reason.ROTATION_LABEL_IN_SELECTOR,
            f"label {fleet.rotation.label} is in the Deployment's selector: changing it on a pod orphans "
            "the pod; name another label in spec.rollout.rotationLabel.key",
        ),
        (
            not fleet.rotation.effective,
            Reason.ROTATION_LABEL_WITHOUT_EFFECT,
            _rotation_message(fleet),
        ),
        (fleet.replicas < 1, Reason.NO_REPLICAS, "spec.replicas is 0: nothing serves"),
        (
            fleet.fields.paused,
            Reason.TARGET_PAUSED,
            f"somebody paused it: kubectl rollout resume deployment/{fleet.name}",
        ),
        (_unsettled(fleet) != "", Reason.TARGET_NOT_SETTLED, _unsettled(fleet)),
    ):
        if applies:
            return Refused(reason, message)
    return None


def next_move(fleet: Fleet, order: Order, now: datetime) -> Move:
    """Return the single next move that brings the fleet toward the wanted template.

    The template must be one of the order's two: anything else is somebody's edit, and the caller
    ends the run instead.
    """
    if fleet.revision == order.toward:
        return _walk(fleet, order, now) if fleet.fields.is_frozen else _after_restore(fleet, order)
    if not fleet.fields.is_frozen:
        return refusal(fleet) or Freeze(order.edit, frozen(max_unavailable=0, paused=False))
    return _turn_around(fleet, order, now)


def resting_move(fleet: Fleet, now: datetime, pulsed_at: datetime | None) -> Move:
    """Return the next move toward a fleet that stands still with every replica in rotation."""
    if fleet.fields.is_frozen and not fleet.fields.paused:
        return _await_controller(fleet, now, pulsed_at)
    for pod in fleet.pods:
        if pod.cordoned and not pod.terminating:
            return Uncordon(pod)
    return Wait(Reason.HOLDING, "the fleet stands still with every replica in rotation")


def releasing_move(fleet: Fleet, recorded: RolloutFields) -> Move:
    """Return the next move toward a fleet without anything of ours but its template.

    Cordoned pods go back into rotation before the rollout is let go, so that whatever the
    controller does then, it does to a whole fleet.
    """
    for pod in fleet.pods:
        if pod.cordoned and not pod.terminating:
            return Uncordon(pod)
    ours = released(fleet.fields, recorded)
    return Settled() if ours == fleet.fields else Release(ours)


def released(seen: RolloutFields, recorded: RolloutFields) -> RolloutFields:
    """Return the fields with each one that still holds a frozen rollout's value put back.

    A field that somebody else set meanwhile is theirs and stays.
    """
    held = seen.min_ready_seconds == FROZEN_MIN_READY_SECONDS
    dated = seen.progress_deadline_seconds == FROZEN_PROGRESS_DEADLINE_SECONDS
    if not held and not dated:
        return seen
    ours = isinstance(seen.max_unavailable, int) and seen.max_surge == SURGE
    return RolloutFields(
        paused=recorded.paused,
        max_surge=recorded.max_surge if ours else seen.max_surge,
        max_unavailable=recorded.max_unavailable if ours else seen.max_unavailable,
        min_ready_seconds=recorded.min_ready_seconds if held else seen.min_ready_seconds,
        progress_deadline_seconds=(
            recorded.progress_deadline_seconds if dated else seen.progress_deadline_seconds
        ),
    )


def _walk(fleet: Fleet, order: Order, now: datetime) -> Move:
    """Return the next move of a frozen rollout whose template is the wanted one."""
    if not fleet.fields.paused:
        return _await_controller(fleet, now, order.pulsed_at)
    new, old = fleet.serving(order.toward), fleet.serving(order.away)
    if fleet.replicas == 0:
        return Restore(order.recorded, 0)
    if failure := _failure(new, order, now):
        return failure
    if fleet.desired(order.toward) == 0:
        return Pulse("", frozen(max_unavailable=0, paused=False))
    if waiting := _not_ready(fleet, new, order):
        return waiting
    if not old and fleet.desired(order.away) == 0:
        return _finish(fleet, order)
    return _next_victim(fleet, order, old, now)


def _await_controller(fleet: Fleet, now: datetime, pulsed_at: datetime | None) -> Move:
    """Return the pause, once the controller has spent the permit or has had its time."""
    others = sum(rs.desired for rs in fleet.replica_sets if rs.revision != fleet.revision)
    wanted = fleet.desired(fleet.revision)
    permitted = fleet.fields.max_unavailable if isinstance(fleet.fields.max_unavailable, int) else 0
    spent = others <= fleet.replicas - permitted and wanted >= min(
        fleet.replicas, fleet.replicas + SURGE - others
    )
    if (fleet.observed and spent) or pulsed_at is None or now - pulsed_at > PULSE_LIMIT:
        return Pause(frozen(max_unavailable=0, paused=True))
    return Wait(Reason.AWAITING_CONTROLLER, "the deployment controller has not acted on the last step yet")


def _failure(new: tuple[Pod, ...], order: Order, now: datetime) -> Failed | None:
    """Return why a new replica will not come up, if one will not."""
    for pod in new:
        if pod.waiting_reason in FATAL_WAITING or pod.restarts >= FATAL_RESTARTS:
            why = pod.waiting_reason or f"{pod.restarts} restarts"
            return Failed(Reason.CANARY_FAILED, f"new replica {pod.name} does not start: {why}")
        age = now - pod.created_at
        if pod.unschedulable and age > order.spare_limit:
            limit = int(order.spare_limit.total_seconds())
            return Failed(
                Reason.SPARE_UNSCHEDULABLE,
                f"no node took {pod.name} within {limit} s: free one device or raise the quota",
            )
        if not pod.ready and age > order.start_limit:
            limit = int(order.start_limit.total_seconds())
            return Failed(Reason.CANARY_FAILED, f"new replica {pod.name} was not Ready within {limit} s")
    return None


def _not_ready(fleet: Fleet, new: tuple[Pod, ...], order: Order) -> Wait | None:
    """Return what is waited for while new replicas are fewer than told, or not all Ready."""
    ready = sum(pod.ready for pod in new)
    told = fleet.desired(order.toward)
    if ready >= told:
        return None
    reason = (
        Reason.AWAITING_CANARY if fleet.desired(order.away) >= fleet.replicas else Reason.AWAITING_REPLICA
    )
    return Wait(reason, f"{ready} of {told} new replicas are Ready")


def _finish(fleet: Fleet, order: Order) -> Move:
    """Return the restore, once the controller's own count says that only new replicas exist."""
    if fleet.updated_replicas == fleet.status_replicas == fleet.replicas:
        return Restore(order.recorded, fleet.replicas)
    if fleet.desired(order.toward) < fleet.replicas:
        return Pulse("", frozen(max_unavailable=0, paused=False))
    return Wait(Reason.AWAITING_CONTROLLER, "the Deployment's status does not show the last replacement yet")


def _after_restore(fleet: Fleet, order: Order) -> Move:
    """Return whether the rollout is complete, or what it waits for."""
    for pod in fleet.serving(order.toward):
        if pod.cordoned:
            return Uncordon(pod)
    others = [pod for pod in fleet.pods if pod.revision != order.toward and not pod.terminating]
    ready = sum(pod.ready for pod in fleet.serving(order.toward))
    if fleet.observed and not others and ready >= fleet.replicas:
        return Settled()
    return Wait(
        Reason.AWAITING_REPLICA, f"{ready} of {fleet.replicas} replicas are Ready with the wanted setting"
    )


def _next_victim(fleet: Fleet, order: Order, old: tuple[Pod, ...], now: datetime) -> Move:
    """Return the next move for one old replica: cordon, drain, let go."""
    if not old:
        return Wait(Reason.AWAITING_CONTROLLER, "an old replica is being replaced by its ReplicaSet")
    if not _target_unavailable(fleet, order):
        return Wait(
            Reason.AWAITING_CONTROLLER, "the wanted ReplicaSet has not taken over the frozen fields yet"
        )
    victim = chosen(old, order.victim)
    if stray := next((p for p in old if p.cordoned and p.uid != victim.uid), None):
        return Uncordon(stray)
    if waiting := _drain(victim, order):
        return waiting
    return _let_go(fleet, victim, old, now)


def chosen(pods: tuple[Pod, ...], victim: Victim | None) -> Pod:
    """Return the pod to take next: the recorded one, else a NotReady one, else the first by name."""
    for pod in pods:
        if victim is not None and pod.uid == victim.uid:
            return pod
    return min(pods, key=lambda p: (p.ready, not p.cordoned, p.name))


def _drain(victim: Pod, order: Order) -> Move | None:
    """Return the next move until the victim is out of rotation and idle; None when it may go."""
    if not victim.cordoned:
        return Cordon(victim)
    if victim.in_rotation:
        return Wait(Reason.DRAINING, f"{victim.name} is still in the Service's EndpointSlices")
    if not victim.ready and order.drain is Drain.UNKNOWN:
        return None
    if order.drain in (Drain.BUSY, Drain.UNKNOWN):
        return Wait(Reason.DRAINING, f"{victim.name} is out of rotation and finishes its requests")
    return None


def _let_go(fleet: Fleet, victim: Pod, old: tuple[Pod, ...], now: datetime) -> Move:
    """Return the pulse, or the deletion by name where the controller would take a NotReady peer."""
    peers = [pod for pod in old if pod.uid != victim.uid and not pod.ready]
    if victim.ready and peers:
        names = ", ".join(pod.name for pod in peers)
        since = max((pod.created_at for pod in peers), default=now)
        if now - since <= PEER_GRACE:
            return Wait(Reason.AWAITING_REPLICA, f"{names} must be Ready before {victim.name} may go")
        return DeletePod(victim)
    permit = max(
        0, fleet.replicas + 1 - sum(rs.desired for rs in fleet.replica_sets if rs.revision != fleet.revision)
    )
    return Pulse(victim.name, frozen(max_unavailable=permit, paused=False))


def _target_unavailable(fleet: Fleet, order: Order) -> bool:
    """Return whether every pod of the wanted ReplicaSet counts as unavailable.

    On the way back the wanted ReplicaSet is an old one whose pods are Available until its
    controller has seen the frozen `minReadySeconds`: a pulse before that could take several pods.
    """
    return all(
        rs.observed and rs.available == 0 and rs.min_ready_seconds == fleet.fields.min_ready_seconds
        for rs in fleet.replica_sets
        if rs.revision == order.toward and rs.desired > 0
    )


def _turn_around(fleet: Fleet, order: Order, now: datetime) -> Move:
    """Return the next move of a frozen rollout whose template is the one to be left."""
    if not fleet.fields.paused:
        return _await_controller(fleet, now, order.pulsed_at)
    leaving, wanted = fleet.serving(order.away), fleet.serving(order.toward)
    if stray := next((p for p in wanted if p.cordoned), None):
        return Uncordon(stray)
    if fleet.replicas == 0 or not leaving:
        return Revert(order.edit, order.recorded)
    victim = chosen(leaving, order.victim)
    if (victim.in_rotation or victim.ready) and (waiting := _drain(victim, order)):
        return waiting
    if len(leaving) == 1 and fleet.desired(order.toward) >= fleet.replicas:
        return Revert(order.edit, order.recorded)
    if not victim.cordoned:
        return Cordon(victim)
    return Retarget(order.edit, frozen(max_unavailable=0, paused=True))


def _unsettled(fleet: Fleet) -> str:
    """Return what of the fleet is in the middle of another change; empty when nothing is."""
    live = [pod for pod in fleet.pods if not pod.terminating]
    current = fleet.serving(fleet.revision)
    active = [rs for rs in fleet.replica_sets if rs.desired > 0]
    for applies, text in (
        (not fleet.observed, "the deployment controller has not seen the newest spec yet"),
        (len(live) != len(fleet.pods), "a pod is terminating"),
        (len(active) != 1 or len(live) != len(current), "pods of more than one revision exist"),
        (len(current) != fleet.replicas, f"{len(current)} of {fleet.replicas} replicas exist"),
        (any(not pod.ready for pod in current), f"{fleet.ready} of {fleet.replicas} replicas are Ready"),
        (sum(rs.available for rs in active) != fleet.replicas, "not every replica is Available"),
        (any(pod.cordoned for pod in current), "a replica carries the draining label"),
    ):
        if applies:
            return text
    return ""


def _owner_message(owner: Owner | None) -> str:
    who = owner.name if owner else "nobody"
    return f"{who} decides what this Deployment looks like and would revert a change: make the change there"


def _rotation_message(fleet: Fleet) -> str:
    label, services = fleet.rotation.label, ", ".join(fleet.rotation.services) or "no Service"
    return (
        f"{services} selects the pods without label {label}: add the label to the pod template and to the "
        "selector of every Service in front of it"
    )
