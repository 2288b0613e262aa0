"""Draining a replica whose labels are all in the Deployment's selector: released first, relabelled then.

Only `pod-template-hash` is changed at first. The ReplicaSet lets go of the pod and makes another in its
place, a stand-in, while every Service still leads requests to the released one. The stand-in goes again
before it serves, and only then the labels change that lead requests to the released pod. It finishes what it
has, and is deleted. So a crash at any moment leaves as many replicas in rotation as there were.

Every move follows from what is observed. Once its labels are changed a released pod never comes back: its
deadline, with which the kubelet ends it where no operator does, cannot be taken off again.

Where no spare may be made, the stand-in gives way to a new replica instead, which waits for the device of the
released one. So the fleet is one replica short from the cordon until that serves, and never two.

Source: run on a real Kubernetes 1.36: 60 steps under traffic, killed after each of 15 kinds of write. The
endpoints were never fewer than the replicas, and none of 2,411 requests on connections of their own failed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import combinations

from kvmedic.model.fleet import ADDING, STILL_WITHOUT_SPARE, SURGE, Fleet, Orphan, Pod, freeze_fields
from kvmedic.model.reasons import Reason
from kvmedic.rollout.draining import Drain, choose_pod
from kvmedic.rollout.moves import AdoptPod, CordonOrphan, DeletePod, MarkStandIn, Pulse, ReleasePod, Wait
from kvmedic.rollout.start_failure import BELIEVED_START

RELEASED_HASH = "kvmedic-"
"""What `pod-template-hash` of a released pod begins with, before what it was."""

RELEASE_LIMIT = timedelta(seconds=10)
"""A ReplicaSet's controller that has not let go of a pod by then is not there. Measured: 0.18 s, of 60 at
most 1.3 s."""

MOST_SWAPS = 3
"""Steps in a row in which the stand-in became Ready before it went, so that one old replica took another's
place. Two were seen beside six that went as they should, on a control plane with twenty times its load."""

QUICK_START = timedelta(seconds=15)
"""Replicas that start faster than that, and wait for no device, may be Ready before they are let go: once in
some 70 such steps the stand-in was removed while it served."""

FOLLOWED_WITHIN = timedelta(seconds=1)
"""What the controllers need until a replica that is let go ends. Measured: 0.5 s; up to 4 s on an overloaded
machine, where engines take longer to start as well."""

QUICKEST = timedelta(seconds=3)
"""No engine serves sooner after its pod was made: the lab's, which has no weights to read, takes 3 to 5 s."""

MADE_WITHIN = timedelta(seconds=1)
"""A stand-in is made after its pod was released; Kubernetes writes when in whole seconds, cut off."""

LINGER_SLACK = timedelta(minutes=1)
"""How long after the drain's time-out the kubelet ends a released replica; the operator deletes it before."""

LONGEST_DRAIN = timedelta(hours=24)
"""The same where nothing may be cut: the longest time-out that a spec can have."""


GROUP_LABELS = "leaderworkerset.sigs.k8s.io/"
"""Beginning of the labels by which a LeaderWorkerSet's controllers know their pods: none is ever changed."""


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
    keys = sorted({key for each in taking for key in each if not key.startswith(GROUP_LABELS)})
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


def explain_blocked_drain(fleet: Fleet) -> str:
    """Return why replicas cannot be drained as orphans, and what can be done; empty where they can."""
    way = fleet.rotation.orphan
    if way is None or way.blocked:
        return way.blocked if way else "they are drained by their label"
    took = _starts(fleet)
    if not way.has_device and took and min(took) < QUICK_START:
        return (
            f"a replica starts in {int(min(took).total_seconds())} s and waits for no device, so one that is "
            f"made for a moment may serve before it goes: {_way_out(fleet)}"
        )
    return ""


def _starts(fleet: Fleet) -> list[timedelta]:
    """Return how long the replicas took to become Ready that did so once."""
    took = (pod.ready_at - pod.created_at for pod in fleet.live if pod.ready_at and not pod.restarts)
    return [each for each in took if each <= BELIEVED_START]


def may_serve_soon(fleet: Fleet, pod: Pod, now: datetime) -> bool:
    """Return whether a replica serves, or may before the controllers have done what is decided now.

    One whose engine does not run is not Ready by then. Neither is one that is younger than half of what the
    quickest took to start, or so young that the controllers are done before it is as old as that one was.
    """
    if pod.ready or pod.runs_since is None:
        return pod.ready
    quickest = max(QUICKEST, min(_starts(fleet), default=2 * QUICK_START))
    age = (fleet.looked_at or now) - pod.created_at
    return age > max(quickest / 2, min(QUICK_START, quickest - FOLLOWED_WITHIN))


def _way_out(fleet: Fleet) -> str:
    return (
        f"add label {fleet.rotation.label} to the pod template, once every pod has it to the selector of "
        "every Service in front, and name it in spec.rollout.rotationLabel"
    )


@dataclass(frozen=True, slots=True)
class OrphanInput:
    """What is known of released replicas beside the fleet itself."""

    draining_since: Mapping[str, datetime] = field(default_factory=dict)
    """The replicas that are being drained, by uid: when the record says that each was taken."""
    drains: Mapping[str, Drain] = field(default_factory=dict)
    """What is known of the requests on each of them."""
    linger: timedelta = LONGEST_DRAIN
    toward: str = ""
    """Hash of the pod template that every replica shall run."""
    needed: int = 0
    """Replicas that must be in rotation beside one before it leaves."""
    may_lack: int = 0
    """Replicas that may be missing while a rollout walks: 1 where no spare is made, else 0."""
    assigned_at: datetime | None = None
    """When something was assigned to the Deployment last, by the clock of this process."""
    is_frozen: bool = True
    """Every pod of the template in force counts as unavailable, so that a pulse takes exactly one other."""
    taken_at: Mapping[str, datetime] = field(default_factory=dict)
    """When each was released, or relabelled, by the clock of this process."""


OrphanDecision = AdoptPod | MarkStandIn | Pulse | CordonOrphan | DeletePod | Wait


def orphan_move(fleet: Fleet, known: OrphanInput, now: datetime) -> OrphanDecision | None:
    """Return the next move for released replicas; None where there is none, or the rollout moves first."""
    found = _next_of_all(fleet, known, now, lambda each: _rollout_move(fleet, each, known, now))
    return found or _ask_again(fleet, known)


def _ask_again(fleet: Fleet, known: OrphanInput) -> Pulse | None:
    """Return the pulse after which a replica is made that was refused while a released one was there.

    A ReplicaSet's controller tries later and later, up to as long again as it has tried (client-go's
    backoff), and at once when the Deployment changes. Nothing goes: all of the template in force count as
    unavailable.
    """
    desired = known.toward
    is_refused = any(each.failure for each in fleet.replica_sets if each.revision == desired)
    is_short = known.may_lack and fleet.total_desired == fleet.replicas and not fleet.orphans
    if not (is_short and is_refused and known.taken_at):
        return None
    is_asked = known.assigned_at is not None and known.assigned_at > max(known.taken_at.values())
    is_made = len(fleet.list_pods(desired)) >= fleet.count_desired(desired)
    is_held = fleet.fields == STILL_WITHOUT_SPARE and fleet.revision == desired and known.is_frozen
    if is_asked or is_made or not is_held:
        return None
    return Pulse((), replace(STILL_WITHOUT_SPARE, paused=False))


def resting_orphan_move(fleet: Fleet, known: OrphanInput, now: datetime) -> OrphanDecision | None:
    """Return the next move of released replicas toward a fleet that stands still; None where there is none.

    One goes back while its stand-in has not served. Else it serves on beside it, or finishes its drain.
    """

    def adopt_or_keep(orphan: Orphan) -> AdoptPod | Wait:
        text = f"the fleet stands still; {orphan.pod.name}, which was released, serves on"
        return AdoptPod(orphan) if can_adopt(fleet, orphan, now) else Wait(Reason.HOLDING, text)

    return _next_of_all(fleet, known, now, adopt_or_keep)


def leaving_orphan_move(fleet: Fleet, known: OrphanInput, now: datetime) -> OrphanDecision | None:
    """Return the next move until no released replica is left, even if somebody changed the fleet."""
    return _next_of_all(fleet, known, now, lambda each: leave_rotation(fleet, each, known))


def returning_orphan_move(fleet: Fleet, known: OrphanInput, now: datetime) -> OrphanDecision | None:
    """Return the next move until no released replica is left: back where it can, drained where it cannot."""

    def adopt_or_drain(orphan: Orphan) -> AdoptPod | CordonOrphan | Wait:
        back = can_adopt(fleet, orphan, now)
        return AdoptPod(orphan) if back else leave_rotation(fleet, orphan, known)

    return _next_of_all(fleet, known, now, adopt_or_drain)


def _next_of_all(
    fleet: Fleet,
    known: OrphanInput,
    now: datetime,
    of_released: Callable[[Orphan], OrphanDecision | None],
) -> OrphanDecision | None:
    """Return the next move of all released replicas.

    Args:
        fleet: the fleet.
        known: what is known of them.
        now: the time of asking.
        of_released: the next move of one that may go on either way.
    """
    begun = begun_move(fleet, known, now)
    if not isinstance(begun, Wait | None) or any(each.is_owned for each in fleet.orphans):
        return begun
    free = (each for each in fleet.orphans if _drain_move(each, known) is None)
    return _pick_move(move for each in free if (move := of_released(each)) is not None) or begun


def begun_move(fleet: Fleet, known: OrphanInput, now: datetime) -> OrphanDecision | None:
    """Return the next move of released replicas that their ReplicaSet has not seen, or that leave for good.

    None: each of them is let go, and may go on either way.
    """
    return _pick_move(
        move for one in fleet.orphans if (move := _drain_move(one, known) or _await_release(one, known, now))
    )


def _pick_move(moves: Iterable[OrphanDecision]) -> OrphanDecision | None:
    """Return the first move that changes something, else the first wait; None where there is none."""
    found = tuple(moves)
    return next((each for each in found if not isinstance(each, Wait)), found[0] if found else None)


def can_adopt(fleet: Fleet, orphan: Orphan, now: datetime) -> bool:
    """Return whether a released replica may go back without another one going that serves, or soon does.

    Its ReplicaSet then ends as many as it has too many, those first that are not Ready. So it must have
    followed all that was asked of it before.
    """
    own, desired = fleet.list_pods(orphan.pod.revision), fleet.count_desired(orphan.pod.revision)
    surge = fleet.fields.max_surge if fleet.fields.is_frozen else 0
    is_followed = isinstance(surge, int) and fleet.observed and fleet.total_desired <= fleet.replicas + surge
    if orphan.pod.cordoned or not is_followed or not 0 < desired >= len(own):
        return False
    idle = sum(not may_serve_soon(fleet, pod, now) for pod in own)
    return len(own) + 1 - desired <= idle


def next_release(fleet: Fleet, old: Sequence[Pod], surge: int = SURGE) -> ReleasePod | Pulse | Wait | None:
    """Return the next move for one of the replicas that are to go; None where those that are down just go.

    They got no request since they were started. One that took a released replica's place is the last to be
    taken: by those it is known how often that happened.

    Args:
        fleet: the fleet.
        old: the replicas that are to go.
        surge: how many are made beside the fleet's number where none is; 0: one may be missing instead.
    """
    down = [pod for pod in old if not pod.ready]
    reached = [pod for pod in down if not pod.is_unreached]
    if down and not reached:
        return None
    pods = reached or [pod for pod in old if not pod.is_stand_in] or old
    return release_move(fleet, choose_pod(tuple(pods), None), surge)


def release_before_turning(
    fleet: Fleet, leaving: Sequence[Pod], toward: str, now: datetime
) -> ReleasePod | Pulse | Wait | None:
    """Return the next move until a template can be put back without a cut; None: it can now.

    The controller takes the replicas of another template at once where the desired ones are all there and
    Available: then those that got requests, or may get one by then, are released first.
    """
    reached = next((p for p in leaving if not p.is_unreached or may_serve_soon(fleet, p, now)), None)
    return release_move(fleet, reached) if reached and fleet.is_saturated(toward) else None


def release_move(fleet: Fleet, pod_to_remove: Pod, surge: int = SURGE) -> ReleasePod | Pulse | Wait:
    """Return the next move for a replica that is to be drained and still belongs to its ReplicaSet.

    The one more that the fleet has by then is what keeps as many in rotation as there were; with a surge of 0
    one may be missing instead.
    """
    if surge and fleet.total_desired <= fleet.replicas:
        return Pulse((), replace(ADDING, max_surge=surge))
    return await_swapped(fleet, pod_to_remove.revision) or ReleasePod(pod_to_remove)


def await_swapped(fleet: Fleet, revision: str) -> Wait | None:
    """Return the wait for a person where stand-ins serve before they go, again and again.

    One that is older than the youngest replica of another revision is of a step that was made good by a later
    one: the rollout goes on, and takes it like any other.
    """
    later = max((pod.created_at for pod in fleet.live if pod.revision != revision), default=None)
    standing = [pod for pod in fleet.list_pods(revision) if pod.is_stand_in and pod.ready]
    swapped = [pod.name for pod in standing if later is None or pod.created_at > later]
    if len(swapped) < MOST_SWAPS:
        return None
    return Wait(
        Reason.DRAIN_IMPOSSIBLE,
        f"{', '.join(swapped)} started before they could be let go again, so old ones only change places: "
        f"{_way_out(fleet)}",
    )


def _await_release(orphan: Orphan, known: OrphanInput, now: datetime) -> AdoptPod | Wait | None:
    """Return the wait until a ReplicaSet has let go of a replica, or its end; None once it has."""
    if not orphan.is_owned:
        return None
    since = known.taken_at.get(orphan.pod.uid)
    if since is not None and now - since > RELEASE_LIMIT:
        return AdoptPod(orphan)
    text = f"{orphan.pod.name} is released, and its ReplicaSet has yet to let go of it"
    return Wait(Reason.AWAITING_CONTROLLER, text)


def stand_in_of(fleet: Fleet, orphan: Orphan, known: OrphanInput) -> Pod | None:
    """Return the pod that was made for a released one; None while it is not, and once it is gone."""
    own = fleet.list_pods(orphan.pod.revision)
    newest = max(own, key=lambda pod: (pod.created_at, pod.name), default=None)
    if newest is None or len(own) < fleet.count_desired(orphan.pod.revision):
        return None
    released = known.draining_since.get(orphan.pod.uid)
    is_later = released is not None and newest.created_at >= released - MADE_WITHIN
    return newest if is_later or not newest.ready else None


def _rollout_move(fleet: Fleet, orphan: Orphan, known: OrphanInput, now: datetime) -> OrphanDecision | None:
    """Return the next move for a replica that is let go; None where the rollout moves first.

    Its stand-in must be gone before it serves. Where it is Ready nothing is taken back: the released one
    goes, and an old replica took its place.
    """
    if fleet.fields.is_frozen and known.may_lack and fleet.total_desired == fleet.replicas:
        return _short_move(fleet, orphan, known, now)
    if not fleet.fields.is_frozen or fleet.total_desired <= fleet.replicas:
        return leave_rotation(fleet, orphan, known)
    revision, idle = orphan.pod.revision, _idle_of(fleet, orphan, now)
    own = fleet.list_pods(revision)
    if first := _before_letting_go(fleet, orphan, known):
        return first
    if not idle and len(own) >= fleet.count_desired(revision):
        return leave_rotation(fleet, orphan, known)
    if revision == known.toward or fleet.count_desired(fleet.revision) == 0:
        return AdoptPod(orphan)
    if revision == fleet.revision:
        return None  # the other template is put back, and with it the stand-in goes
    return _let_stand_in_go(fleet, orphan, known, idle)


def _short_move(fleet: Fleet, orphan: Orphan, known: OrphanInput, now: datetime) -> OrphanDecision | None:
    """Return the next move for a replica that is let go in a fleet without a spare; None: the rollout's.

    Whether its stand-in gave way already is seen by the replica that comes instead: it is asked for, and does
    not serve while the released one holds the device. Then that one goes, and one replica is missing.
    """
    revision = orphan.pod.revision
    # A peer that is not Ready for a moment may have requests: it does not go in a stand-in's place.
    idle = [pod for pod in _idle_of(fleet, orphan, now) if pod.is_unreached]
    if revision == known.toward:
        away = [pod for each in _others(fleet, revision) for pod in fleet.list_pods(each)]
        waits = sum(fleet.count_desired(each) for each in _others(fleet, revision)) > sum(
            pod.ready for pod in away
        )
        if can_adopt(fleet, orphan, now):
            return AdoptPod(orphan)
        return None if waits else leave_rotation(fleet, orphan, known)
    if revision == fleet.revision:
        return None
    own, coming = fleet.list_pods(revision), fleet.list_pods(fleet.revision)
    is_swapped = sum(pod.ready for pod in coming) < fleet.count_desired(fleet.revision)
    if is_swapped or (not idle and len(own) >= fleet.count_desired(revision)):
        return leave_rotation(fleet, orphan, known)
    return _before_letting_go(fleet, orphan, known) or _let_stand_in_go(fleet, orphan, known, idle)


def _others(fleet: Fleet, revision: str) -> set[str]:
    """Return the revisions beside one that are to have replicas."""
    return {each.revision for each in fleet.replica_sets if each.desired and each.revision != revision}


def _idle_of(fleet: Fleet, orphan: Orphan, now: datetime) -> list[Pod]:
    """Return the replicas of a released one's revision that do not serve, and will not within seconds."""
    return [pod for pod in fleet.list_pods(orphan.pod.revision) if not may_serve_soon(fleet, pod, now)]


def _before_letting_go(fleet: Fleet, orphan: Orphan, known: OrphanInput) -> MarkStandIn | Wait | None:
    """Return the next move until it is the stand-in of a released replica that goes, and nothing else."""
    if len(fleet.list_pods(orphan.pod.revision)) > fleet.count_desired(orphan.pod.revision):
        return Wait(Reason.AWAITING_CONTROLLER, "a ReplicaSet has yet to end the replica that was let go")
    stand_in = stand_in_of(fleet, orphan, known)
    return MarkStandIn(stand_in) if stand_in is not None and not stand_in.is_stand_in else None


def _let_stand_in_go(fleet: Fleet, orphan: Orphan, known: OrphanInput, idle: Sequence[Pod]) -> Pulse | Wait:
    """Return the pulse by which exactly one goes, the stand-in of a released replica.

    All of the template in force count as unavailable, so of n of them the permit is n + 1 less the spares.
    With a spare there is one less then; without one, a replica of that template is made in its place.
    """
    beyond, surge = fleet.total_desired - fleet.replicas, fleet.fields.max_surge
    if not known.is_frozen or surge != beyond:
        return Wait(Reason.AWAITING_CONTROLLER, "the ReplicaSets have not followed the Deployment yet")
    stand_in, others = stand_in_of(fleet, orphan, known), fleet.count_desired(fleet.revision)
    fields = freeze_fields(
        surge=max(0, beyond - SURGE), max_unavailable=others + SURGE - beyond, paused=False
    )
    return Pulse(tuple(pod.name for pod in ([stand_in] if stand_in in idle else idle)[:1] if pod), fields)


def leave_rotation(fleet: Fleet, orphan: Orphan, known: OrphanInput) -> CordonOrphan | Wait:
    """Return the next move of a released replica that goes: out of rotation once enough serve beside it."""
    if orphan.pod.in_rotation and fleet.in_rotation < known.needed:
        text = f"{fleet.in_rotation} of {known.needed} replicas beside {orphan.pod.name} are in rotation"
        return Wait(Reason.AWAITING_REPLICA, text)
    way = fleet.rotation.orphan
    return CordonOrphan(orphan, way.keys if way else (), known.linger)


def _drain_move(orphan: Orphan, known: OrphanInput) -> CordonOrphan | DeletePod | Wait | None:
    """Return the next move of a released replica that is out of rotation for good; None before that."""
    pod = orphan.pod
    if pod.terminating:
        return Wait(Reason.AWAITING_CONTROLLER, f"{pod.name} is drained and ends")
    if orphan.has_ended:
        return DeletePod(pod)
    if not pod.cordoned:
        return None
    if pod.uid not in known.draining_since or orphan.led_by:
        # Nobody noted it, or what leads requests to it was named only now.
        return CordonOrphan(orphan, orphan.led_by, known.linger)
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
