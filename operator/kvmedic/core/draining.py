"""Taking one replica out of rotation until nothing runs on it: what is known, and what comes next."""

from __future__ import annotations

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


def draining_move(fleet: Fleet, victim: Pod, drain: Drain, needed: int) -> Cordon | Wait | None:
    """Return the next move until the victim is out of rotation and idle; None when it may go.

    Args:
        fleet: the fleet.
        victim: the pod that is to go.
        drain: what is known of the requests on it.
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
    if drain in (Drain.BUSY, Drain.UNKNOWN):
        return Wait(Reason.DRAINING, f"{victim.name} is out of rotation and finishes its requests")
    return None


def stray_move(pods: tuple[Pod, ...], victim: Pod | None = None) -> Uncordon | None:
    """Return the way back into rotation of a pod that carries our marks and is not the victim."""
    uid = victim.uid if victim else None
    stray = next((pod for pod in pods if pod.cordoned and not pod.terminating and pod.uid != uid), None)
    return Uncordon(stray) if stray else None
