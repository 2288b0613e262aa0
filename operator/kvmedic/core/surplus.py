"""Replicas beyond the number that stays: is it followed, which is the newest, what is left behind.

What is the same for one spare (`kvmedic.core.replacement`) and for several replicas that were added for
a while (`kvmedic.core.scaling`).
"""

from __future__ import annotations

from collections.abc import Collection

from kvmedic.core.draining import stray_move, to_be_taken
from kvmedic.core.fleet import Fleet, Pod
from kvmedic.core.moves import Settled, Uncordon, Wait
from kvmedic.core.reasons import Reason

AWAIT_REMOVAL = Wait(Reason.AWAITING_CONTROLLER, "the replica that is to go has not been removed yet")


def is_followed(fleet: Fleet, wanted: int) -> bool:
    """Return whether the controllers have removed all that a number of replicas asks them to."""
    return fleet.observed and fleet.told <= wanted and len(fleet.live) <= wanted


def is_whole(fleet: Fleet) -> bool:
    """Return whether every replica runs the present template and is Ready, and nothing else is there."""
    current = fleet.serving(fleet.revision)
    whole = len(fleet.live) == len(current) == fleet.replicas == fleet.told
    return fleet.observed and whole and all(pod.ready for pod in current)


def newest_first(pod: Pod) -> tuple[float, str]:
    """Return what sorts replicas by age, the newest first; by name where two are as old."""
    return -pod.created_at.timestamp(), pod.name


def to_go(live: tuple[Pod, ...], held: Collection[str]) -> tuple[Pod, ...]:
    """Return the replicas of which one may be drained; none while the controller would take a held one.

    It takes a replica that is not Ready before any drained one.

    Args:
        live: replicas of which one is to go.
        held: uids of those whose drain timed out.
    """
    first = any(pod.uid in held and not pod.ready for pod in live)
    return () if first else to_be_taken(live, held)


def parting_move(fleet: Fleet, surplus: Wait | None) -> Uncordon | Wait | Settled:
    """Return the next move toward a fleet without marks of ours, once its number is not changed any more.

    Where the controller has yet to remove replicas it takes its victim by the marks, so they stay until
    it did; not so in the middle of somebody's rollout, which has more replicas than asked for by design.

    Args:
        fleet: the fleet.
        surplus: the wait for the moment at which replicas of ours may go; None: none of ours are there.
    """
    mixed = any(pod.revision != fleet.revision for pod in fleet.live)
    if len(fleet.live) > fleet.replicas and not mixed and surplus is None:
        return AWAIT_REMOVAL
    return stray_move(fleet, fleet.pods) or surplus or Settled()


def surplus_of(fleet: Fleet, before: int) -> Wait:
    """Return the wait for the end of somebody's rollout, after which what is beyond a number goes."""
    how = "one goes" if fleet.replicas == before + 1 else "they go one by one"
    return Wait(
        Reason.TARGET_NOT_SETTLED,
        f"{fleet.replicas} replicas are asked for, {before} were; {how}, drained, when the rollout is "
        f"complete; to end it now, undrained: kubectl scale deployment/{fleet.name} --replicas={before}",
    )
