"""Taking one replica out of rotation until nothing runs on it: what is known, and what comes next."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
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


class Drain(StrEnum):
    """What is known of the requests on the victim."""

    BUSY = "Busy"
    IDLE = "Idle"
    """Two readings of zero, at least five seconds after it left rotation."""
    UNKNOWN = "Unknown"
    """The engine did not say."""
    TIMED_OUT = "TimedOut"
    """`drainTimeout` passed; the engine's own graceful shutdown has to do the rest."""


def draining_move(
    fleet: Fleet, victim: Pod, recorded: Victim | None, drain: Drain, needed: int
) -> Cordon | Wait | None:
    """Return the next move until the victim is out of rotation and idle; None when it may go.

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
    if victim.in_rotation:
        return Wait(Reason.DRAINING, f"{victim.name} is still in the Service's EndpointSlices")
    if not victim.ready and drain is Drain.UNKNOWN:
        return None
    if recorded is None or recorded.uid != victim.uid:
        return Cordon(victim)
    if drain in (Drain.BUSY, Drain.UNKNOWN):
        return Wait(Reason.DRAINING, f"{victim.name} is out of rotation and finishes its requests")
    return None


def stray_move(fleet: Fleet, pods: Iterable[Pod], victim: Pod | None = None) -> Uncordon | Wait | None:
    """Return the move that puts a cordoned pod which is not the victim back into rotation.

    Only once it is sure that it stays: a ReplicaSet with a pod more than it is told ends one, the
    cordoned one first, with what it serves then.
    """
    uid = victim.uid if victim else None
    stray = next((pod for pod in pods if pod.cordoned and not pod.terminating and pod.uid != uid), None)
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
