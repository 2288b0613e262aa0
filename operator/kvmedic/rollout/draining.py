"""Taking one replica out of rotation until nothing runs on it: what is known, and what comes next.

Replicas beyond the number that stays: is it followed, which is the newest, what is left behind.

What is the same for one spare (`kvmedic.rollout.replacement`) and for several replicas that were added for
a while (`kvmedic.rollout.scaling`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

from kvmedic.model.evidence import Absence, Measured, Missing, Reading
from kvmedic.model.fleet import Fleet, Pod
from kvmedic.model.reasons import Reason
from kvmedic.model.run import Arrivals, DrainingPod
from kvmedic.rollout.moves import Cordon, Settled, Uncordon, Wait, kubectl_name


class Drain(StrEnum):
    """What is known of the requests on the draining pod."""

    BUSY = "Busy"
    IDLE = "Idle"
    """`ZERO_COUNTS` counts of zero, the first some seconds after it left rotation."""
    UNKNOWN = "Unknown"
    """Not every engine of it said how many: that waits as requests do."""
    DOWN = "Down"
    """No Service can have led a request to it since its container was started, and nobody counts one."""
    TIMED_OUT = "TimedOut"
    """`drainTimeout` passed, and it goes all the same: the spec says so, or it is down. The engine's own
    graceful shutdown has to do the rest."""
    HELD = "Held"
    """`drainTimeout` passed, and it is not let go."""


ZERO_COUNTS = 2
"""Counts of no request, one after the other, that end a drain: a client with an open connection may send once
more between them."""


def drain_by_counts(out: timedelta, quiet: timedelta, counts: Sequence[Reading[float]]) -> Drain | None:
    """Return what a replica's own counts say of the requests on it; None: one more count is needed.

    Args:
        out: for how long it has been out of rotation.
        quiet: for how long it must have been before a count means anything.
        counts: of its requests, in their order.
    """
    if out < quiet:
        return Drain.BUSY
    for count in counts:
        if not isinstance(count, Measured):
            return Drain.UNKNOWN
        if count.value != 0:
            return Drain.BUSY
    return Drain.IDLE if len(counts) >= ZERO_COUNTS else None


def drain_of_unreached(count: Reading[float]) -> Drain:
    """Return what one count says of a replica to which no Service has led a request.

    Where nobody answers there are none; a count finds those who go past the Services.
    """
    if isinstance(count, Measured):
        return Drain.BUSY if count.value > 0 else Drain.DOWN
    is_silent = isinstance(count, Missing) and count.reason is Absence.SOURCE_UNAVAILABLE
    return Drain.DOWN if is_silent else Drain.UNKNOWN


def drain_past_limit(found: Drain, pod: Pod, *, proceeds: bool) -> Drain:
    """Return what becomes of a drain whose time-out passed; `proceeds`: the spec lets the replica go then.

    One that is idle goes. What nobody knows counts like requests: a replica that is down goes, any other one
    only where the spec says so.
    """
    if found in (Drain.IDLE, Drain.DOWN) and not pod.in_rotation:
        return found
    return Drain.TIMED_OUT if pod.is_unreached or proceeds else Drain.HELD


ARRIVALS_APART = timedelta(seconds=30)
"""How far apart two counts of arrivals are: what was on its way is in the engine by then, and who keeps
sending has sent again. Balancers that probe an engine themselves do so every 5 to 30 s."""

RISES_AGAINST = 2
"""So many times more than before: one may be what was on its way when the replica left rotation."""


def count_arrivals(known: Arrivals | None, found: Reading[float], now: datetime) -> Arrivals | None:
    """Return what is known of arrivals after one more count; as it was where that says nothing new.

    Less than before means that the engine was started again, or that requests ended uncounted: from there it
    is counted anew.
    """
    if not isinstance(found, Measured) or (known and found.value == known.latest):
        return known
    if known is None or found.value < known.latest:
        return Arrivals(found.value, now, found.value, now)
    if now - known.at < ARRIVALS_APART:
        return known
    return replace(known, latest=found.value, at=now, rises=known.rises + 1)


def report_arrivals(wait: Wait, draining_pods: Iterable[DrainingPod], now: datetime) -> Wait:
    """Return a wait for the end of requests; with what is to be done where new ones keep coming."""
    if wait.reason not in (Reason.DRAINING, Reason.DRAIN_TIMED_OUT):
        return wait
    cases = "; ".join(
        f"{pod.name} left every Service, and {int(seen.latest - seen.first)} requests came to it within "
        f"{int((seen.at - seen.since).total_seconds())} s all the same"
        for pod in draining_pods
        if (seen := pod.arrivals) and seen.rises >= RISES_AGAINST and now - seen.at <= 3 * ARRIVALS_APART
    )
    if not cases:
        return wait
    return Wait(
        Reason.REQUESTS_STILL_ARRIVE,
        f"{cases}: something finds it by its labels or address. Name the labels that a router selects by in "
        "spec.rollout.routers, or have that front leave the pod out; a client that keeps its connection "
        "sends until it closes it. It is drained once no request is left",
    )


def draining_move(
    fleet: Fleet, pod_to_remove: Pod, recorded: DrainingPod | None, drain: Drain, needed: int
) -> Cordon | Uncordon | Wait | None:
    """Return the next move until the pod is out of rotation and idle; None when it may go.

    One whose drain timed out with requests in flight goes back into rotation, and so does one that no
    Service let go of until then, whatever the spec says: it never stopped to get requests.

    One that carries the label although the record knows of none, or of another, is taken out once more:
    what is known of requests, and since when, is the recorded one's.

    Args:
        fleet: the fleet.
        pod_to_remove: the pod that is to go.
        recorded: the pod that is being drained, by the record.
        drain: what is known of the requests on that one.
        needed: replicas that must be in rotation beside it before it is taken out.
    """
    if not pod_to_remove.cordoned:
        others = count_staying(fleet, pod_to_remove)
        if pod_to_remove.in_rotation and others < needed:
            text = f"{others} of {needed} replicas beside {pod_to_remove.name} are in rotation"
            return Wait(Reason.AWAITING_REPLICA, text)
        return Cordon(pod_to_remove)
    known = recorded is not None and recorded.uid == pod_to_remove.uid
    if known and (drain is Drain.HELD or (drain is Drain.TIMED_OUT and pod_to_remove.in_rotation)):
        return Uncordon(pod_to_remove, timed_out=True)
    if pod_to_remove.in_rotation:
        where = ", ".join(pod_to_remove.listed_by) or "the Service"
        return Wait(Reason.DRAINING, f"{pod_to_remove.name} is still in the EndpointSlices of {where}")
    if not known:
        return Cordon(pod_to_remove)
    if drain in (Drain.BUSY, Drain.UNKNOWN):
        return Wait(Reason.DRAINING, f"{pod_to_remove.name} is out of rotation and finishes its requests")
    return None


def count_staying(fleet: Fleet, pod_to_remove: Pod) -> int:
    """Return how many replicas take requests beside one, and go on doing so: EndpointSlices lag behind."""
    others = (pod for pod in fleet.pods if pod.uid != pod_to_remove.uid)
    return sum(pod.in_rotation and not (pod.cordoned or pod.half_cordoned) for pod in others)


def exclude_held_pods(pods: Iterable[Pod], held: Collection[str]) -> tuple[Pod, ...]:
    """Return the pods that may be taken: not those that are held because their drain timed out, by uid."""
    return tuple(pod for pod in pods if pod.uid not in held)


def choose_pod(pods: tuple[Pod, ...], draining_pod: DrainingPod | None) -> Pod:
    """Return the pod to take next: the recorded one, else one that takes no requests, else by name.

    Of several that are not Ready it is the one that has not been for longest: the newest may just start, and
    once it is Ready the controller takes another.
    """
    for pod in pods:
        if draining_pod is not None and pod.uid == draining_pod.uid:
            return pod

    def down_since(pod: Pod) -> float:
        return 0.0 if pod.ready else (pod.unready_at or pod.created_at).timestamp()

    return min(pods, key=lambda p: (p.ready, not p.cordoned, p.in_rotation, down_since(p), p.name))


@dataclass(frozen=True, slots=True)
class Taking:
    """How replicas are taken out of rotation: which are already, and how many may be."""

    draining_pods: Sequence[DrainingPod]
    drains: Mapping[str, Drain]
    """What is known of the requests on each of them, by uid."""
    held: Collection[str]
    """Uids of those whose drain timed out and that are not taken again yet."""
    needed: int
    """Replicas that must be in rotation beside those that are taken out."""
    at_once: int


def take_pods(
    fleet: Fleet, pods: tuple[Pod, ...], taking: Taking
) -> tuple[Pod, ...] | Cordon | Uncordon | Wait:
    """Return those of some pods that are drained and may go at once, or what has to be done before."""
    takeable = exclude_held_pods(pods, taking.held)
    if not takeable:
        return held_move(fleet, pods)
    pods_to_remove = _choose_pods_to_remove(takeable, taking)
    if back := stray_move(fleet, pods, pods_to_remove):
        return back
    recorded = {pod.uid: pod for pod in taking.draining_pods}
    found = [
        draining_move(
            fleet, pod, recorded.get(pod.uid), taking.drains.get(pod.uid, Drain.UNKNOWN), taking.needed
        )
        for pod in pods_to_remove
    ]
    effects = [move for move in found if isinstance(move, Cordon | Uncordon)]
    if not effects and (pod := _choose_next(fleet, takeable, pods_to_remove, taking)):
        effects = [Cordon(pod)]
    if effects and isinstance(effects[0], Cordon):
        pod = effects[0].pod
        return Cordon(pod, tuple(each.uid for each in pods_to_remove if each.uid != pod.uid))
    return effects[0] if effects else next((move for move in found if move is not None), pods_to_remove)


def _choose_pods_to_remove(pods: tuple[Pod, ...], taking: Taking) -> tuple[Pod, ...]:
    """Return the recorded pods that are out of rotation, or the one that is taken first."""
    order = [pod.uid for pod in taking.draining_pods]
    out = sorted((p for p in pods if p.uid in order and p.cordoned), key=lambda pod: order.index(pod.uid))
    return tuple(out[: taking.at_once]) or (choose_pod(pods, next(iter(taking.draining_pods), None)),)


def _choose_next(
    fleet: Fleet, pods: tuple[Pod, ...], pods_to_remove: tuple[Pod, ...], taking: Taking
) -> Pod | None:
    """Return the pod that joins those which are drained, where enough stay in rotation without it."""
    rest = tuple(pod for pod in pods if pod not in pods_to_remove)
    if not rest or len(pods_to_remove) >= taking.at_once or not all(pod.cordoned for pod in pods_to_remove):
        return None
    pod = choose_pod(rest, None)
    return None if pod.in_rotation and count_staying(fleet, pod) < taking.needed else pod


def held_move(fleet: Fleet, pods: Iterable[Pod]) -> Uncordon | Wait:
    """Return the next move where every replica that could go is held: all of them serve."""
    held = tuple(pods)
    busy = ", ".join(pod.name for pod in held if not pod.stuck_in)
    reasons = [f"{busy} still had requests, or did not report them, when the drain timed out"] if busy else []
    reasons += _explain_stuck_pods(fleet, [pod for pod in held if pod.stuck_in])
    text = f"{'; '.join(reasons)}; nothing is let go"
    return stray_move(fleet, fleet.pods) or Wait(Reason.DRAIN_TIMED_OUT, text)


def _explain_stuck_pods(fleet: Fleet, pods: list[Pod]) -> list[str]:
    if not pods:
        return []
    names, label = ", ".join(pod.name for pod in pods), fleet.rotation.label
    fronts = ", ".join(sorted({front for pod in pods for front in pod.stuck_in}))
    return [
        f"{names} stayed in the EndpointSlices of {fronts} until the drain timed out: have each of them "
        f"select {label}, or remove the slice that no controller keeps (kubectl -n {fleet.namespace} get "
        "services,endpointslices -o wide), then raise spec.rollout.drainTimeout by a second, and the run "
        "goes on"
    ]


def stray_move(
    fleet: Fleet, pods: Iterable[Pod], pods_to_remove: Collection[Pod] = ()
) -> Uncordon | Wait | None:
    """Return the move that puts a cordoned pod that is not to go back into rotation.

    Only once it is sure that it stays: a ReplicaSet with a pod more than its number ends one, the
    cordoned one first, with what it serves then. A StatefulSet ends those beyond its number.
    """
    uids = {pod.uid for pod in (*pods_to_remove, *find_surplus_replicas(fleet))}
    left = (pod for pod in pods if not pod.terminating and pod.uid not in uids)
    stray = next((pod for pod in left if pod.cordoned or pod.half_cordoned), None)
    if stray is None:
        return None
    if len(fleet.list_pods(stray.revision)) > fleet.count_desired(stray.revision):
        return Wait(Reason.AWAITING_CONTROLLER, f"a ReplicaSet has yet to end a pod, maybe {stray.name}")
    return Uncordon(stray)


def find_surplus_replicas(fleet: Fleet) -> tuple[Pod, ...]:
    """Return the replicas of a StatefulSet that its number does not ask for, the lowest first.

    Its controller may be long in ending them: with `OrderedReady` it waits for all others to be Ready.
    """
    found = (pod for pod in fleet.live if pod.ordinal is not None and pod.ordinal >= fleet.replicas)
    return tuple(sorted(found, key=lambda pod: pod.ordinal or 0))


def holding_move(fleet: Fleet) -> Uncordon | Wait:
    """Return the next move toward a fleet that stands still: nothing of it was taken out of rotation."""
    return stray_move(fleet, fleet.pods) or Wait(
        Reason.HOLDING, "the fleet stands still with every replica in rotation"
    )


PEER_GRACE = timedelta(seconds=20)
"""How long a peer may be NotReady while a replica is out of rotation: two periods of a usual readiness
probe (10 s, the API's default). After that a rollout deletes the drained pod by name instead of by
order, and a replacement puts the replica back into rotation."""

AWAIT_REMOVAL = Wait(Reason.AWAITING_CONTROLLER, "the replica that is to go has not been removed yet")


def is_followed(fleet: Fleet, desired: int) -> bool:
    """Return whether the controllers have removed all that a number of replicas asks them to."""
    is_more = fleet.total_desired > desired or len(fleet.live) > desired or bool(find_surplus_replicas(fleet))
    return fleet.observed and not is_more


def is_whole(fleet: Fleet) -> bool:
    """Return whether every replica runs the present template and is Ready, and nothing else is there."""
    current = fleet.list_pods(fleet.revision)
    whole = len(fleet.live) == len(current) == fleet.replicas == fleet.total_desired
    return fleet.observed and whole and all(pod.ready for pod in current)


def newest_first(pod: Pod) -> tuple[float, str]:
    """Return what sorts replicas by age, the newest first; by name where two are as old."""
    return -pod.created_at.timestamp(), pod.name


def find_drainable_pods(live: tuple[Pod, ...], held: Collection[str]) -> tuple[Pod, ...]:
    """Return the replicas of which one may be drained; none while the controller would take a held one.

    It takes a replica that is not Ready before any drained one.
    """
    first = any(pod.uid in held and not pod.ready for pod in live)
    return () if first else exclude_held_pods(live, held)


def parting_move(fleet: Fleet, surplus: Wait | None) -> Uncordon | Wait | Settled:
    """Return the next move toward a fleet without marks of ours, once its number is not changed any more.

    Where the controller has yet to remove replicas it takes the drained pod by the marks, so they stay until
    it did; not so in the middle of somebody's rollout, which has more replicas than asked for by design.
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
        f"complete; to end it now, undrained: kubectl scale {kubectl_name(fleet)} --replicas={before}",
    )
