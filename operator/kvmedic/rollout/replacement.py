"""Replacing one replica as a pure state machine: an observed fleet in, the next assignment out.

The spare comes first (one replica more, by the Deployment's own number), serves, and only then is the
replica that is to go taken out of rotation and drained. When nothing runs on it any more the recorded
number is put back, and the ReplicaSet's controller removes exactly that one: its deletion cost is the
lowest there is, and all others are Ready. Where another one is down, as it was before, the controller would
take that: the drained one is deleted by name then, and one that is not Ready goes with the recorded number.
The pod template and the rollout's fields are not touched.

Nothing is remembered from tick to tick but which of our two assignments was committed and which pod
is being drained. Between any two moves the fleet stands still with as many replicas in rotation as
before, or one more.

Where no label takes a replica out of rotation its ReplicaSet lets go of it instead
(`kvmedic.rollout.orphan_drain`), and the replica that is made in its place is the spare: no number is
assigned, so an autoscaler may have it. Back, the spare changes places with the released one.

Source: Kubernetes 1.36, pkg/controller/controller_utils.go, ActivePodsWithRanks. Of two pods the one
without a node goes first, then the pending one, then the one that is not Ready, then the one of lower
deletion cost.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import Enum
from typing import assert_never

from kvmedic.model.evidence import Blocked
from kvmedic.model.fleet import Fleet, Orphan, Pod
from kvmedic.model.plan import PodToRemove, ReplaceStep
from kvmedic.model.reasons import Reason
from kvmedic.model.run import DrainingPod, Run
from kvmedic.model.status import Attempt
from kvmedic.rollout.draining import (
    AWAIT_REMOVAL,
    PEER_GRACE,
    Drain,
    draining_move,
    find_drainable_pods,
    held_move,
    holding_move,
    is_followed,
    is_whole,
    newest_first,
    parting_move,
    stray_move,
    surplus_of,
)
from kvmedic.rollout.drift import committed_sequence
from kvmedic.rollout.moves import (
    AdoptPod,
    Claim,
    DeletePod,
    Failed,
    Move,
    ReleasePod,
    ScaleIn,
    ScaleOut,
    Settled,
    Uncordon,
    Wait,
)
from kvmedic.rollout.orphan_drain import (
    OrphanInput,
    begun_move,
    can_adopt,
    leave_rotation,
    leaving_orphan_move,
    resting_orphan_move,
    returning_orphan_move,
)
from kvmedic.rollout.preconditions import end_as_begun, find_replacement_blocker
from kvmedic.rollout.start_failure import STARTS, StartLimits, making_wait, start_failure, unready_since
from kvmedic.rollout.steps import StepInput, StepRow
from kvmedic.verdict.baseline import is_quorate


class Scaled(Enum):
    """How far our own assignments to the number of replicas got."""

    NOT_YET = "not yet"
    OUT = "out"
    """One replica more than recorded is asked for, by us."""
    BACK = "back"
    """The recorded number is asked for again."""


@dataclass(frozen=True, slots=True)
class Replacement:
    """Which replica is to go, and what is known beside the fleet itself."""

    step: ReplaceStep
    """Its `pod_to_remove` says which way: the named replica, or on the way back the spare."""
    scaled: Scaled
    draining_pod: DrainingPod | None
    drain: Drain
    limits: StartLimits
    drain_limit: timedelta
    assigned_at: datetime | None = None
    """When the last assignment was intended; None before the first."""
    held: frozenset[str] = frozenset()
    """Uids of replicas whose drain timed out and that are not taken again yet."""
    down_before: int = 0
    """Replicas that took no requests before the run; nobody waits for as many."""
    begins: bool = False
    """The way forward, and no assignment was committed yet."""
    orphans: OrphanInput = field(default_factory=OrphanInput)
    """What is known of replicas that were released to be drained."""

    @property
    def least(self) -> int:
        """Return how many replicas must take requests beside one that goes: as many as before the run."""
        return max(0, self.desired - self.down_before)

    @property
    def desired(self) -> int:
        """Return the number of replicas before and after."""
        return self.step.replicas

    @property
    def surged(self) -> int:
        """Return the number of replicas while the spare is there."""
        return self.step.replicas + 1


def find_last_scaling(run: Run, step: ReplaceStep, resource_uid: str, fleet: Fleet) -> Scaled:
    """Return which of a run's assignments to the number of replicas was committed last.

    The claim says so. Where a person's `kubectl rollout undo` took the claim away together with the
    template, the number itself does: one more than recorded is then our spare.
    """
    intent = run.intent
    if intent is None or intent.replicas_after is None:
        return Scaled.NOT_YET
    outward = intent.replicas_after > step.replicas
    committed = committed_sequence(run, resource_uid, fleet.fence)
    lost = committed is None or (committed == 0 and fleet.revision != step.template)
    if lost:
        surged = fleet.replicas == step.replicas + 1
        return Scaled.OUT if surged else Scaled.NOT_YET if outward else Scaled.BACK
    if committed == intent.sequence:
        return Scaled.OUT if outward else Scaled.BACK
    return Scaled.NOT_YET if outward else Scaled.OUT


def spare_of(fleet: Fleet, step: ReplaceStep) -> Pod | None:
    """Return the replica that came last beside the named one; None while there is not one more."""
    others = [pod for pod in fleet.live if pod.uid != step.uid]
    return min(others, key=newest_first) if len(others) >= step.replicas else None


def replacing_move(fleet: Fleet, order: Replacement, now: datetime) -> Move:
    """Return the single next move of a replacement, forward or back.

    The pod template and the number of replicas must be as the record explains them: anything else is
    somebody's edit, and the caller leaves instead (`leaving_move`).
    """
    if _is_released(fleet, order):
        own = _as_asked_for(fleet, order)
        takes_back = order.step.pod_to_remove is PodToRemove.SPARE
        return _change_places(fleet, own, now) if takes_back else _exchange_released(fleet, own, now)
    match order.scaled:
        case Scaled.NOT_YET:
            return _begin(fleet, order)
        case Scaled.OUT:
            named = _name_pods(fleet, order)
            if order.step.pod_to_remove is PodToRemove.SPARE or named is None:
                return _take_back(fleet, order, now)
            return _exchange(fleet, order, named, now)
        case Scaled.BACK:
            return _finish(fleet, order, now)
        case _:
            assert_never(order.scaled)


def rest_replacement(fleet: Fleet, order: Replacement, now: datetime) -> Move:
    """Return the next move toward a fleet that stands still with every replica in rotation.

    The spare stays: it serves too. Once the recorded number is asked for again, the controller takes
    the drained pod by the marks on it, so they stay until it did.
    """
    if move := resting_orphan_move(fleet, order.orphans, now):
        return move
    if order.scaled is Scaled.BACK and not is_followed(fleet, order.desired):
        return AWAIT_REMOVAL
    return holding_move(fleet)


def leave_replacement(fleet: Fleet, order: Replacement, now: datetime) -> Move:
    """Return the next move toward a fleet without anything of ours.

    Somebody else's number of replicas stays. Ours goes back as carefully as it came: by one drained
    replica; in the middle of somebody's rollout that waits until the rollout is complete.
    """
    if move := returning_orphan_move(fleet, _as_asked_for(fleet, order).orphans, now):
        return move
    surplus = order.scaled is Scaled.OUT and fleet.replicas == order.surged
    edited = fleet.revision != order.step.template
    if surplus and (not edited or is_whole(fleet)):
        return _take_back(fleet, order, now)
    return parting_move(fleet, surplus_of(fleet, order.desired) if surplus else None)


def _begin(fleet: Fleet, order: Replacement) -> Move:
    if order.step.pod_to_remove is PodToRemove.SPARE:
        return stray_move(fleet, fleet.pods) or Settled()
    refused = _find_blocker(fleet, order)
    return refused or ScaleOut(order.desired, order.surged, order.step.pod)


def _find_blocker(fleet: Fleet, order: Replacement) -> Blocked | Failed | None:
    refused = find_replacement_blocker(fleet, order.step)
    if refused is None and _name_pods(fleet, order) is None:
        refused = Blocked(Reason.TARGET_NOT_SETTLED, f"{order.step.pod} is gone: there is nothing to replace")
    return end_as_begun(refused, order.assigned_at)


def _is_released(fleet: Fleet, order: Replacement) -> bool:
    """Return whether the named replica is, or will be, released; not where the number was raised for it."""
    way = fleet.rotation.orphan is not None or bool(fleet.orphans)
    return order.scaled is Scaled.NOT_YET and way


def _as_asked_for(fleet: Fleet, order: Replacement) -> Replacement:
    """Return the order for as many replicas as are asked for now, since no number is assigned by it."""
    order = replace(order, step=replace(order.step, replicas=fleet.replicas))
    return replace(order, orphans=replace(order.orphans, needed=order.least))


def _exchange_released(fleet: Fleet, order: Replacement, now: datetime) -> Move:
    """Return the next move until the named replica, released, is gone and as many serve as before."""
    orphan, named = _named_orphan(fleet, order), _name_pods(fleet, order)
    if orphan is None and order.begins:
        return _find_blocker(fleet, order) or Claim()
    if move := begun_move(fleet, order.orphans, now):
        return move
    if named is not None:
        return stray_move(fleet, fleet.pods) or ReleasePod(named)
    if orphan is None:
        return _await_least(fleet, order, now)
    if failed := _spare_failure(fleet, order, now):
        return failed
    short = _find_shortage(fleet, order, now)
    return short[1] if short else leave_rotation(fleet, orphan, order.orphans)


def _change_places(fleet: Fleet, order: Replacement, now: datetime) -> Move:
    """Return the next move until the named replica belongs to its ReplicaSet again, and the spare is gone.

    Where the spare serves it is released too, which makes room: the one that is made for it goes at once.
    Should that serve as well, the named one leaves: as many others serve.
    """
    orphan, spare = _named_orphan(fleet, order), spare_of(fleet, order.step)
    if move := begun_move(fleet, order.orphans, now):
        return move
    if orphan is None:
        left = leaving_orphan_move(fleet, order.orphans, now) or stray_move(fleet, fleet.pods)
        return left or (Settled() if is_followed(fleet, fleet.replicas) else AWAIT_REMOVAL)
    if can_adopt(fleet, orphan, now):
        return AdoptPod(orphan)
    if spare is not None and len(fleet.orphans) == 1:
        return ReleasePod(spare)
    return leave_rotation(fleet, orphan, order.orphans)


def _named_orphan(fleet: Fleet, order: Replacement) -> Orphan | None:
    return next((each for each in fleet.orphans if each.pod.uid == order.step.uid), None)


def _exchange(fleet: Fleet, order: Replacement, named: Pod, now: datetime) -> Move:
    if named.uid in order.held:
        return held_move(fleet, (named,))
    if failed := _spare_failure(fleet, order, now):
        return failed
    if back := stray_move(fleet, fleet.pods, (named,)):
        return back
    if short := _find_shortage(fleet, order, now):
        since, missing = short
        return Uncordon(named) if named.cordoned and now - since > PEER_GRACE else missing
    if waiting := draining_move(fleet, named, order.draining_pod, order.drain, order.least):
        return waiting
    if any(not pod.ready for pod in fleet.live if pod.uid != named.uid):
        return DeletePod(named)
    return ScaleIn(order.surged, order.desired, named.name, order.desired + named.ready)


def _spare_failure(fleet: Fleet, order: Replacement, now: datetime) -> Failed | None:
    spare = spare_of(fleet, order.step)
    if spare is not None and (failed := start_failure(spare, False, order.limits, now)):
        return failed
    waited = now - order.assigned_at if order.assigned_at else timedelta(0)
    if spare is None and len(fleet.live) <= order.desired and waited > order.limits.spare:
        return Failed(
            Reason.SPARE_UNSCHEDULABLE,
            f"no spare was made within {int(waited.total_seconds())} s: look for a quota in the Events of "
            "the ReplicaSet",
        )
    return _check_deadline(order, now)


def _check_deadline(order: Replacement, now: datetime) -> Failed | None:
    limit = STARTS * order.limits.start + order.drain_limit
    if order.assigned_at is None or now - order.assigned_at <= limit:
        return None
    text = f"not done {int(limit.total_seconds())} s after it began"
    return Failed(Reason.REPLACEMENT_CALLED_OFF, text)


def _find_shortage(fleet: Fleet, order: Replacement, now: datetime) -> tuple[datetime, Wait] | None:
    """Return since when too few replicas serve beside the named one, and what is waited for.

    None: enough do. These are the spare and, with it, as many as before; and enough to judge a fleet by.
    """
    others = [pod for pod in fleet.live if pod.uid != order.step.uid]
    unfit = [pod for pod in others if not pod.ready or not pod.in_rotation]
    spare, serve = spare_of(fleet, order.step), len(others) - len(unfit)
    if spare is not None and spare not in unfit and serve >= order.least and is_quorate(others):
        return None
    first = spare is None or (spare in unfit and serve + 1 >= order.least)
    reason = Reason.AWAITING_CANARY if first else Reason.AWAITING_REPLICA
    since = min((unready_since(pod, now) for pod in unfit if not pod.ready), default=now)
    return since, Wait(reason, f"{serve} of {order.desired} replicas beside {order.step.pod} serve")


def _take_back(fleet: Fleet, order: Replacement, now: datetime) -> Move:
    """Return the next move that puts the recorded number back while the spare, or nobody, goes.

    The one that goes is out of rotation before. Should a peer turn NotReady just then, the controller
    takes that one, which takes no requests either.
    """
    if len(fleet.live) <= order.desired:
        return (
            stray_move(fleet, fleet.pods)
            or making_wait(order.assigned_at, now)
            or ScaleIn(order.surged, order.desired, "", None)
        )
    takeable = find_drainable_pods(tuple(pod for pod in fleet.live if pod.uid != order.step.uid), order.held)
    if not takeable and order.held:
        return held_move(fleet, [pod for pod in fleet.live if pod.uid in order.held])
    # One that is not Ready, else the newest; never the named one.
    live = takeable or fleet.live
    others = [pod for pod in live if pod.uid != order.step.uid] or list(live)
    recorded = [pod for pod in others if order.draining_pod is not None and pod.uid == order.draining_pod.uid]
    pod_to_remove = min(recorded or others, key=lambda pod: (pod.ready, *newest_first(pod)))
    if back := stray_move(fleet, fleet.pods, (pod_to_remove,)):
        return back
    if waiting := draining_move(fleet, pod_to_remove, order.draining_pod, order.drain, order.least):
        return waiting
    return ScaleIn(order.surged, order.desired, pod_to_remove.name, None)


def _finish(fleet: Fleet, order: Replacement, now: datetime) -> Move:
    if not is_followed(fleet, order.desired):
        return AWAIT_REMOVAL
    if back := stray_move(fleet, fleet.pods):
        return back
    if order.step.pod_to_remove is PodToRemove.SPARE:
        return Settled()
    if _name_pods(fleet, order) is not None:
        return Failed(
            Reason.REPLACEMENT_CALLED_OFF,
            f"another replica was not Ready and went in place of {order.step.pod}",
        )
    return _await_least(fleet, order, now)


def _await_least(fleet: Fleet, order: Replacement, now: datetime) -> Move:
    serving = sum(pod.ready and pod.in_rotation for pod in fleet.live)
    if serving >= order.least:
        return Settled()
    text = f"{serving} of {order.desired} replicas serve"
    return _check_deadline(order, now) or Wait(Reason.AWAITING_REPLICA, text)


def _name_pods(fleet: Fleet, order: Replacement) -> Pod | None:
    return next((pod for pod in fleet.live if pod.uid == order.step.uid), None)


def replacement_row(step: ReplaceStep) -> StepRow:
    """Return what a replica's replacement does: one more, then the named one less."""
    return StepRow(
        find_blocker=lambda fleet, _purpose: find_replacement_blocker(fleet, step),
        next_move=lambda fleet, known: replacing_move(fleet, _order(step, fleet, known), known.now),
        rest=lambda fleet, known: rest_replacement(fleet, _order(step, fleet, known), known.now),
        leave=lambda fleet, known: leave_replacement(fleet, _order(step, fleet, known), known.now),
        drains_to_leave=True,
        canaries=lambda fleet: tuple(spare for spare in (spare_of(fleet, step),) if spare),
        attempt=lambda _run: (Attempt.REPLACE_REPLICA, str(step.replicas)),
    )


def _order(step: ReplaceStep, fleet: Fleet, known: StepInput) -> Replacement:
    return Replacement(
        step=step,
        scaled=find_last_scaling(known.run, step, known.resource_uid, fleet),
        draining_pod=known.draining_pod,
        drain=known.drain,
        limits=known.limits,
        drain_limit=known.drain_limit,
        assigned_at=known.assigned_at,
        held=known.held,
        down_before=known.down_before,
        begins=not known.is_back and not committed_sequence(known.run, known.resource_uid, fleet.fence),
        orphans=known.orphans,
    )
