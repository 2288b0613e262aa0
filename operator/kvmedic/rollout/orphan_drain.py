"""Draining a replica whose labels are all in the Deployment's selector: released first, relabelled then.

Only `pod-template-hash` is changed at first. The ReplicaSet lets go of the pod and makes another in its
place, a stand-in, while every Service still leads requests to the released one. The stand-in goes again
before it serves, and only then the labels change that lead requests to the released pod. It finishes what it
has, and is deleted. So a crash at any moment leaves as many replicas in rotation as there were.

Every move follows from what is observed. Once its labels are changed a released pod never comes back: its
deadline, with which the kubelet ends it where no operator does, cannot be taken off again.

Source: run on a real Kubernetes 1.36: 60 steps under traffic, killed after each of 15 kinds of write. The
endpoints were never fewer than the replicas, and none of 2,411 requests on connections of their own failed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import combinations

from kvmedic.model.fleet import ADDING, SURGE, Fleet, Orphan, Pod, frozen
from kvmedic.model.reasons import Reason
from kvmedic.rollout.draining import Drain, choose_pod
from kvmedic.rollout.moves import (
    AdoptPod,
    CordonOrphan,
    DeletePod,
    MarkStandIn,
    Pulse,
    ReleasePod,
    Wait,
)

RELEASED_HASH = "kvmedic-"
"""What `pod-template-hash` of a released pod begins with, before what it was."""

RELEASE_LIMIT = timedelta(seconds=10)
"""A ReplicaSet's controller that has not let go of a pod by then is not there. Measured: 0.18 s, of 60 at
most 1.3 s."""

MOST_SWAPS = 2
"""Steps in which the stand-in became Ready before it went, so that one old replica took another's place."""

QUICK_START = timedelta(seconds=15)
"""Replicas that start faster than that, and wait for no device, may be Ready before they are let go: once in
some 70 such steps the stand-in was removed while it served."""

LINGER_SLACK = timedelta(minutes=1)
"""How long after the drain's time-out the kubelet ends a released replica; the operator deletes it before."""

LONGEST_DRAIN = timedelta(hours=24)
"""The same where nothing may be cut: the longest time-out that a spec can have."""


def choose_keys(
    labels: Mapping[str, str],
    selectors: Sequence[Mapping[str, str]],
    count_affected: Callable[[Mapping[str, str]], int],
) -> tuple[str, ...]:
    """Return the labels to change, so that no selector takes the pod any more; none where nothing takes it.

    Those that the fewest policies go by, and of these the fewest.

    Args:
        labels: of the pod.
        selectors: of all that leads requests to pods.
        count_affected: how many policies would treat a pod with other labels differently.
    """
    taking = [each for each in selectors if each and each.items() <= labels.items()]
    keys = sorted({key for each in taking for key in each})
    found: tuple[tuple[int, int], tuple[str, ...]] | None = None
    for size in range(1, len(keys) + 1):
        for chosen in combinations(keys, size):
            if all(each.keys() & set(chosen) for each in taking):
                after = {**labels, **dict.fromkeys(chosen, draining_value(""))}
                rank = (count_affected(after), size)
                if found is None or rank < found[0]:
                    found = rank, chosen
        if found is not None and found[0][0] == 0:
            break
    return found[1] if found else ()


def draining_value(uid: str) -> str:
    """Return the value of each label that is changed: of no Service, and of one pod alone."""
    return f"kvmedic-draining-{uid[:8]}".rstrip("-")


def linger_of(drain_timeout: timedelta, *, proceeds: bool) -> timedelta:
    """Return how long a released replica may finish its requests if no operator is there.

    Args:
        drain_timeout: of the spec.
        proceeds: the spec lets a replica go with its requests then.
    """
    return drain_timeout + (LINGER_SLACK if proceeds else LONGEST_DRAIN)


def drain_refusal(fleet: Fleet) -> str:
    """Return why replicas cannot be drained as orphans, and what can be done; empty where they can."""
    way = fleet.rotation.orphan
    if way is None or way.blocked:
        return way.blocked if way else "they are drained by their label"
    took = [pod.ready_at - pod.created_at for pod in fleet.live if pod.ready_at and not pod.restarts]
    if not way.has_device and took and min(took) < QUICK_START:
        return (
            f"a replica starts in {int(min(took).total_seconds())} s and waits for no device, so one that is "
            f"made for a moment may serve before it goes: {_way_out(fleet)}"
        )
    return ""


def _way_out(fleet: Fleet) -> str:
    return (
        f"add label {fleet.rotation.label} to the pod template, once every pod has it to the selector of "
        "every Service in front, and name it in spec.rollout.rotationLabel"
    )


@dataclass(frozen=True, slots=True)
class OrphanInput:
    """What is known of a released replica beside the fleet itself."""

    victims: frozenset[str]
    """Uids of the replicas that are being drained, by the record."""
    drains: Mapping[str, Drain]
    """What is known of the requests on each of them."""
    linger: timedelta
    toward: str = ""
    """Hash of the pod template that every replica shall run."""
    needed: int = 0
    """Replicas that must be in rotation beside it before it leaves."""
    is_frozen: bool = True
    """Every pod of the template in force counts as unavailable, so that a pulse takes exactly one other."""
    taken_at: datetime | None = None
    """When it was released, or relabelled; None: not known."""


def orphan_move(
    fleet: Fleet, known: OrphanInput, now: datetime
) -> AdoptPod | MarkStandIn | Pulse | CordonOrphan | DeletePod | Wait | None:
    """Return the next move for a released replica; None where there is none, or the rollout moves first."""
    orphan = _foremost_orphan(fleet)
    if orphan is None:
        return None
    if move := _begun_move(orphan, known):
        return move
    if orphan.is_owned:
        late = known.taken_at is not None and now - known.taken_at > RELEASE_LIMIT
        return AdoptPod(orphan) if late else _await_release(orphan)
    if fleet.fields.is_frozen and fleet.told > fleet.replicas:
        return _remove_stand_in(fleet, orphan, known)
    return _leave_rotation(fleet, orphan, known)


def resting_orphan_move(
    fleet: Fleet, known: OrphanInput
) -> AdoptPod | CordonOrphan | DeletePod | Wait | None:
    """Return the next move of a released replica toward a fleet that stands still; None where there is none.

    It goes back while its stand-in has not served. Else it serves on beside it, or finishes its drain.
    """
    orphan = _foremost_orphan(fleet)
    if orphan is None:
        return None
    if move := _begun_move(orphan, known):
        return move
    if orphan.is_owned:
        return _await_release(orphan)
    stand_in = _stand_in_of(fleet, orphan)
    if fleet.fields.is_frozen and fleet.told > fleet.replicas and not (stand_in and stand_in.ready):
        return AdoptPod(orphan)
    return Wait(Reason.HOLDING, f"the fleet stands still; {orphan.pod.name}, which was released, serves on")


def leaving_orphan_move(fleet: Fleet, known: OrphanInput) -> CordonOrphan | DeletePod | Wait | None:
    """Return the next move until no released replica is left, whoever changed the fleet meanwhile."""
    orphan = _foremost_orphan(fleet)
    if orphan is None:
        return None
    waiting = _await_release(orphan) if orphan.is_owned else None
    return _begun_move(orphan, known) or waiting or _leave_rotation(fleet, orphan, known)


def next_release(fleet: Fleet, old: Sequence[Pod]) -> ReleasePod | Pulse | Wait | None:
    """Return the next move for one of the replicas that are to go; None where those that are down just go.

    They got no request since they were started. One that took a released replica's place is the last to be
    taken: by those it is known how often that happened.
    """
    down = [pod for pod in old if not pod.ready]
    reached = [pod for pod in down if not pod.is_unreached]
    if down and not reached:
        return None
    victims = reached or [pod for pod in old if not pod.is_stand_in] or old
    return release_move(fleet, choose_pod(tuple(victims), None))


def release_before_turning(
    fleet: Fleet, leaving: Sequence[Pod], toward: str
) -> ReleasePod | Pulse | Wait | None:
    """Return the next move until a template can be put back without a cut; None: it can now.

    The controller takes the replicas of another template at once where the wanted ones are all there and
    Available: then those that got requests are released first.
    """
    reached = next((pod for pod in leaving if not pod.is_unreached), None)
    return release_move(fleet, reached) if reached and fleet.is_saturated(toward) else None


def release_move(fleet: Fleet, victim: Pod) -> ReleasePod | Pulse | Wait:
    """Return the next move for a replica that is to be drained and still belongs to its ReplicaSet.

    The one more that the fleet has by then is what keeps as many in rotation as there were.
    """
    if fleet.told <= fleet.replicas:
        return Pulse((), ADDING)
    swapped = [pod.name for pod in fleet.serving(victim.revision) if pod.is_stand_in and pod.ready]
    if len(swapped) >= MOST_SWAPS:
        return Wait(
            Reason.DRAIN_IMPOSSIBLE,
            f"{', '.join(swapped)} started before they could be let go again, so no replica was changed: "
            f"{_way_out(fleet)}",
        )
    return ReleasePod(victim)


def _foremost_orphan(fleet: Fleet) -> Orphan | None:
    """Return the released replica to see to first: the one that is furthest."""
    return min(fleet.orphans, key=lambda each: (not each.pod.cordoned, each.pod.name), default=None)


def _await_release(orphan: Orphan) -> Wait:
    text = f"{orphan.pod.name} is released, and its ReplicaSet has yet to let go of it"
    return Wait(Reason.AWAITING_CONTROLLER, text)


def _stand_in_of(fleet: Fleet, orphan: Orphan) -> Pod | None:
    """Return the newest pod of the ReplicaSet that let go; None while it has not made all."""
    own = fleet.serving(orphan.pod.revision)
    if len(own) < fleet.desired(orphan.pod.revision):
        return None
    return max(own, key=lambda pod: (pod.created_at, pod.name), default=None)


def _remove_stand_in(
    fleet: Fleet, orphan: Orphan, known: OrphanInput
) -> AdoptPod | MarkStandIn | Pulse | CordonOrphan | DeletePod | Wait | None:
    """Return the next move until the stand-in is gone, which must not serve before.

    Where it is Ready nothing is taken back: the released one goes, and an old replica took its place.
    """
    stand_in, revision = _stand_in_of(fleet, orphan), orphan.pod.revision
    if stand_in is not None and not stand_in.is_stand_in:
        return MarkStandIn(stand_in)
    if stand_in is not None and stand_in.ready:
        return _leave_rotation(fleet, orphan, known)
    others = fleet.desired(fleet.revision)
    if revision == known.toward or others == 0:
        return AdoptPod(orphan)
    if revision == fleet.revision:
        return None  # the other template is put back, and with it the stand-in goes
    if not known.is_frozen or fleet.told != fleet.replicas + SURGE:
        return Wait(Reason.AWAITING_CONTROLLER, "the ReplicaSets have not followed the Deployment yet")
    permit = frozen(surge=0, max_unavailable=others, paused=False)
    return Pulse((stand_in.name,) if stand_in else (), permit)


def _leave_rotation(fleet: Fleet, orphan: Orphan, known: OrphanInput) -> CordonOrphan | Wait:
    if orphan.pod.in_rotation and fleet.in_rotation < known.needed:
        text = f"{fleet.in_rotation} of {known.needed} replicas beside {orphan.pod.name} are in rotation"
        return Wait(Reason.AWAITING_REPLICA, text)
    return _cordon_orphan(fleet, orphan, known)


def _cordon_orphan(fleet: Fleet, orphan: Orphan, known: OrphanInput) -> CordonOrphan:
    way = fleet.rotation.orphan
    return CordonOrphan(orphan, way.keys if way else (), known.linger)


def _begun_move(orphan: Orphan, known: OrphanInput) -> CordonOrphan | DeletePod | Wait | None:
    """Return the next move of a released replica that is out of rotation for good; None before that."""
    pod = orphan.pod
    if pod.terminating:
        return Wait(Reason.AWAITING_CONTROLLER, f"{pod.name} is drained and ends")
    if orphan.has_ended:
        return DeletePod(pod)
    if not pod.cordoned:
        return None
    if pod.uid not in known.victims:
        return CordonOrphan(orphan, (), known.linger)
    if pod.in_rotation:
        where = ", ".join(pod.listed_by) or "the Service"
        return Wait(Reason.DRAINING, f"{pod.name} is still in the EndpointSlices of {where}")
    drain = known.drains.get(pod.uid, Drain.UNKNOWN)
    if drain is Drain.HELD:
        text = (
            f"{pod.name} is out of every Service, and still had requests, or did not report them, when the "
            "drain timed out: it is kept until it has none. Where it gets new ones, a router finds it by its "
            "labels: name them in spec.rollout.routers"
        )
        return Wait(Reason.DRAIN_TIMED_OUT, text)
    if drain in (Drain.BUSY, Drain.UNKNOWN):
        return Wait(Reason.DRAINING, f"{pod.name} is out of rotation and finishes its requests")
    return DeletePod(pod)
