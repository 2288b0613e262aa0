"""Taking one replica out of rotation until nothing runs on it: what is known, and what comes next."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from kvmedic.core.fleet import Fleet, Pod
from kvmedic.core.moves import Cordon, Uncordon, Wait
from kvmedic.core.reasons import Reason


@dataclass(frozen=True, slots=True)
class Victim:
    """The pod that is being taken out of rotation and drained."""

    name: str
    uid: str
    cordoned_at: datetime
    out_at: datetime | None = None
    """When the EndpointSlices were first seen without it."""


@dataclass(frozen=True, slots=True)
class TimedOut:
    """A replica that still had requests, or did not tell, when its drain timed out."""

    name: str
    uid: str
    after: timedelta
    """The time-out; a longer one gives it another try."""
    listed_by: tuple[str, ...] = ()
    """Services that led requests to it all the time, whatever its label was; empty: it left all of them."""


class Drain(StrEnum):
    """What is known of the requests on the victim."""

    BUSY = "Busy"
    IDLE = "Idle"
    """Two readings of zero, at least five seconds after it left rotation."""
    UNKNOWN = "Unknown"
    """Not every engine of it said how many: that waits as requests do."""
    DOWN = "Down"
    """No Service can have led a request to it since its container was started, and nobody counts one."""
    TIMED_OUT = "TimedOut"
    """`drainTimeout` passed, and it goes all the same: the spec says so, or it is down. The engine's own
    graceful shutdown has to do the rest."""
    HELD = "Held"
    """`drainTimeout` passed, and it is not let go."""


def draining_move(
    fleet: Fleet, victim: Pod, recorded: Victim | None, drain: Drain, needed: int
) -> Cordon | Uncordon | Wait | None:
    """Return the next move until the victim is out of rotation and idle; None when it may go.

    One whose drain timed out with requests in flight goes back into rotation, and so does one that no
    Service let go of until then, whatever the spec says: it never stopped to get requests.

    One that carries the label although the record knows of none, or of another, is taken out once more:
    what is known of requests, and since when, is the recorded one's.

    Args:
        fleet: the fleet.
        victim: the pod that is to go.
        recorded: the pod that is being drained, by the record.
        drain: what is known of the requests on that one.
        needed: replicas that must be in rotation beside it before it is taken out.
    """
    if not victim.cordoned:
        others = fleet.in_rotation - victim.in_rotation
        if victim.in_rotation and others < needed:
            text = f"{others} of {needed} replicas beside {victim.name} are in rotation"
            return Wait(Reason.AWAITING_REPLICA, text)
        return Cordon(victim)
    known = recorded is not None and recorded.uid == victim.uid
    if known and (drain is Drain.HELD or (drain is Drain.TIMED_OUT and victim.in_rotation)):
        return Uncordon(victim, timed_out=True)
    if victim.in_rotation:
        where = ", ".join(victim.listed_by) or "the Service"
        return Wait(Reason.DRAINING, f"{victim.name} is still in the EndpointSlices of {where}")
    if not known:
        return Cordon(victim)
    if drain in (Drain.BUSY, Drain.UNKNOWN):
        return Wait(Reason.DRAINING, f"{victim.name} is out of rotation and finishes its requests")
    return None


def to_be_taken(pods: Iterable[Pod], held: Collection[str]) -> tuple[Pod, ...]:
    """Return the pods that may be taken: not those that are held because their drain timed out, by uid."""
    return tuple(pod for pod in pods if pod.uid not in held)


def chosen(pods: tuple[Pod, ...], victim: Victim | None) -> Pod:
    """Return the pod to take next: the recorded one, else one that takes no requests, else by name.

    Of several that are not Ready it is the one that has not been for longest: the newest may just start, and
    once it is Ready the controller takes another.
    """
    for pod in pods:
        if victim is not None and pod.uid == victim.uid:
            return pod
    return min(pods, key=lambda p: (p.ready, not p.cordoned, p.in_rotation, _down_since(p), p.name))


def _down_since(pod: Pod) -> float:
    """Return since when a pod is not Ready (seconds of the epoch); of those that are, none comes first."""
    return 0.0 if pod.ready else (pod.unready_at or pod.created_at).timestamp()


def held_move(fleet: Fleet, pods: Iterable[Pod]) -> Uncordon | Wait:
    """Return the next move where every replica that could go is held: all of them serve."""
    held = tuple(pods)
    busy = ", ".join(pod.name for pod in held if not pod.stuck_in)
    told = [f"{busy} still had requests, or did not tell, when the drain timed out"] if busy else []
    told += _stuck(fleet, [pod for pod in held if pod.stuck_in])
    text = f"{'; '.join(told)}; nothing is let go"
    return stray_move(fleet, fleet.pods) or Wait(Reason.DRAIN_TIMED_OUT, text)


def _stuck(fleet: Fleet, pods: list[Pod]) -> list[str]:
    """Return which Services did not let go of which replicas, and what to type; nothing where all did."""
    if not pods:
        return []
    names, label = ", ".join(pod.name for pod in pods), fleet.rotation.label
    fronts = ", ".join(sorted({front for pod in pods for front in pod.stuck_in}))
    return [
        f"{names} stayed in the EndpointSlices of {fronts} until the drain timed out: have each of them "
        f"select {label}, or remove the slice that nobody keeps (kubectl -n {fleet.namespace} get services,"
        "endpointslices -o wide), then raise spec.rollout.drainTimeout by a second, and the run goes on"
    ]


def stray_move(fleet: Fleet, pods: Iterable[Pod], victim: Pod | None = None) -> Uncordon | Wait | None:
    """Return the move that puts a cordoned pod which is not the victim back into rotation.

    Only once it is sure that it stays: a ReplicaSet with a pod more than it is told ends one, the
    cordoned one first, with what it serves then.
    """
    uid = victim.uid if victim else None
    left = (pod for pod in pods if not pod.terminating and pod.uid != uid)
    stray = next((pod for pod in left if pod.cordoned or pod.half_cordoned), None)
    if stray is None:
        return None
    if len(fleet.serving(stray.revision)) > fleet.desired(stray.revision):
        return Wait(Reason.AWAITING_CONTROLLER, f"a ReplicaSet has yet to end a pod, maybe {stray.name}")
    return Uncordon(stray)


def holding_move(fleet: Fleet) -> Uncordon | Wait:
    """Return the next move toward a fleet that stands still: nothing of it was taken out of rotation."""
    return stray_move(fleet, fleet.pods) or Wait(
        Reason.HOLDING, "the fleet stands still with every replica in rotation"
    )
