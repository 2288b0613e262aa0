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

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from kvmedic.core.edit import TokenEdit
from kvmedic.core.fleet import (
    FROZEN_MIN_READY_SECONDS,
    FROZEN_PROGRESS_DEADLINE_SECONDS,
    Fleet,
    Pod,
    RolloutFields,
    frozen,
)
from kvmedic.core.moves import (
    Cordon,
    DeletePod,
    Failed,
    Freeze,
    Move,
    Pause,
    Pulse,
    Release,
    Restore,
    Retarget,
    Revert,
    Settled,
    Uncordon,
    Wait,
)
from kvmedic.core.preconditions import refusal
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
    repairs: bool = False
    """The way back: also for a fleet whose replicas are not all Ready, or that was scaled to zero."""


def next_move(fleet: Fleet, order: Order, now: datetime) -> Move:
    """Return the single next move that brings the fleet toward the wanted template.

    The template must be one of the order's two: anything else is somebody's edit, and the caller
    ends the run instead.
    """
    if fleet.revision == order.toward:
        return _walk(fleet, order, now) if fleet.fields.is_frozen else _after_restore(fleet, order)
    if fleet.fields.is_frozen:
        return _turn_around(fleet, order, now)
    if fleet.replicas == 0 and order.repairs:
        return Revert(order.edit, fleet.fields)
    refused = refusal(fleet, whole=not order.repairs)
    return refused or Freeze(order.edit, frozen(max_unavailable=0, paused=False))


def resting_move(fleet: Fleet, now: datetime, pulsed_at: datetime | None) -> Move:
    """Return the next move toward a fleet that stands still with every replica in rotation."""
    if fleet.fields.is_frozen and not fleet.fields.paused:
        return _await_controller(fleet, now, pulsed_at)
    if back := _back_in(fleet, fleet.pods):
        return back
    return Wait(Reason.HOLDING, "the fleet stands still with every replica in rotation")


def releasing_move(fleet: Fleet, recorded: RolloutFields) -> Move:
    """Return the next move toward a fleet without anything of ours but its template.

    Cordoned pods go back into rotation before the rollout is let go, so that whatever the
    controller does then, it does to a whole fleet.
    """
    if back := _back_in(fleet, fleet.pods):
        return back
    ours = released(fleet.fields, recorded)
    return Settled() if ours == fleet.fields else Release(ours)


def _back_in(fleet: Fleet, pods: Iterable[Pod]) -> Move | None:
    """Return the move that puts the first cordoned pod back into rotation, once it is sure that it stays.

    A ReplicaSet with a pod more than it is told ends one, the cordoned one first, with what it serves then.
    """
    pod = next((pod for pod in pods if pod.cordoned and not pod.terminating), None)
    if pod is None:
        return None
    if len(fleet.serving(pod.revision)) > fleet.desired(pod.revision):
        return Wait(Reason.AWAITING_CONTROLLER, f"a ReplicaSet has yet to end a pod, maybe {pod.name}")
    return Uncordon(pod)


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
    if failure := _failure(fleet, order, now):
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


def _failure(fleet: Fleet, order: Order, now: datetime) -> Failed | None:
    """Return why a new replica will not come up, if one will not.

    On the way back nothing is given up: old replicas may have restarted often, and there is no other way.
    """
    if order.repairs:
        return None
    leaving = any(pod.terminating for pod in fleet.pods)
    failures = (_failure_of(pod, leaving, order, now) for pod in fleet.serving(order.toward))
    return next((failure for failure in failures if failure is not None), None)


def _failure_of(pod: Pod, leaving: bool, order: Order, now: datetime) -> Failed | None:  # noqa: FBT001
    """Return why one replica will not come up; `leaving`: another one's device may yet become free."""
    if pod.waiting_reason in FATAL_WAITING or pod.restarts >= FATAL_RESTARTS:
        why = pod.waiting_reason or f"{pod.restarts} restarts"
        return Failed(Reason.CANARY_FAILED, f"new replica {pod.name} does not start: {why}")
    waited = now - _unready_since(pod)
    spare, start = (int(each.total_seconds()) for each in (order.spare_limit, order.start_limit))
    if pod.unschedulable and not leaving and waited > order.spare_limit:
        text = f"no node took {pod.name} within {spare} s: free one device or raise the quota"
        return Failed(Reason.SPARE_UNSCHEDULABLE, text)
    if not pod.ready and waited > order.start_limit:
        return Failed(Reason.CANARY_FAILED, f"new replica {pod.name} was not Ready within {start} s")
    return None


def _unready_since(pod: Pod) -> datetime:
    """Return since when a pod that is not Ready has not been, as far as anybody said."""
    return pod.unready_at or pod.created_at


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
    if back := _back_in(fleet, fleet.serving(order.toward)):
        return back
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
    if back := _back_in(fleet, (pod for pod in old if pod.uid != victim.uid)):
        return back
    if waiting := _drain(fleet, victim, order):
        return waiting
    return _let_go(fleet, victim, old, now)


def chosen(pods: tuple[Pod, ...], victim: Victim | None) -> Pod:
    """Return the pod to take next: the recorded one, else one that takes no requests, else by name."""
    for pod in pods:
        if victim is not None and pod.uid == victim.uid:
            return pod
    return min(pods, key=lambda p: (p.ready, not p.cordoned, p.in_rotation, p.name))


def _drain(fleet: Fleet, victim: Pod, order: Order) -> Move | None:
    """Return the next move until the victim is out of rotation and idle; None when it may go."""
    if not victim.cordoned:
        others = fleet.in_rotation - victim.in_rotation
        if victim.in_rotation and others < fleet.replicas:
            text = f"{others} of {fleet.replicas} replicas beside {victim.name} are in rotation"
            return Wait(Reason.AWAITING_REPLICA, text)
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
        since = max((_unready_since(pod) for pod in peers), default=now)
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
    if back := _back_in(fleet, wanted):
        return back
    if fleet.replicas == 0:
        return Revert(order.edit, order.recorded)
    if not leaving:
        return _await_pod(fleet, order, now) or Revert(order.edit, order.recorded)
    if _lacks_spare(fleet, order):
        return Retarget(order.edit, frozen(max_unavailable=0, paused=True))
    victim = chosen(leaving, order.victim)
    if waiting := _drain(fleet, victim, order):
        return waiting
    if len(leaving) == 1 and fleet.desired(order.toward) >= fleet.replicas:
        return Revert(order.edit, order.recorded)
    return Retarget(order.edit, frozen(max_unavailable=0, paused=True))


def _lacks_spare(fleet: Fleet, order: Order) -> bool:
    """Return whether every replica runs the template that is to be left, and nothing else is there.

    Nobody may be drained then, since nobody carries on in its place; and nobody can go either when
    the template is put back, since the controller first has one pod of it to add.
    """
    told = sum(rs.desired for rs in fleet.replica_sets)
    return fleet.desired(order.toward) == 0 and told <= fleet.replicas


def _await_pod(fleet: Fleet, order: Order, now: datetime) -> Wait | None:
    """Return the wait for a pod that is told but not there yet: it could become Ready unseen."""
    told = fleet.desired(order.away) > 0
    if told and order.pulsed_at is not None and now - order.pulsed_at <= PULSE_LIMIT:
        return Wait(Reason.AWAITING_CONTROLLER, "a replica that is to go has not been made yet")
    return None
