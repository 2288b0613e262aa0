"""The frozen rollout of a StatefulSet as a pure state machine: an observed fleet in, the next move out.

A StatefulSet has neither a surge nor a pause. Its template is changed together with a `partition` above all
ordinals: a new revision comes to be, and no replica is touched. One replica after the other is drained then.
For the moment in which it is deleted, by name and uid, the strategy is `OnDelete`: the controller makes it
anew from the present template and deletes nobody itself, so that nothing goes undrained, if anyone edits the
template or dies meanwhile. Then the partition is back. What dies by itself comes back as it was.

A LeaderWorkerSet's groups are walked in the same way (`kvmedic.rollout.stateful.groups`).

The ordinal has no second replica, so the fleet is one short for each drain and start. With
`podManagementPolicy: OrderedReady` a replica is made only once all below it are Ready: so none is taken while
a lower one is not, and of several that are down the lowest goes first, as nothing above it comes back.

Nothing is remembered from tick to tick but the pod that is being drained.

Source: Kubernetes 1.36, pkg/controller/statefulset: stateful_set_control.go (processReplica,
updateStatefulSetAfterInvariantEstablished, completeRollingUpdate), stateful_set_utils.go
(newVersionedStatefulSetPod); the known issue "Forced rollback" of its documentation.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from kvmedic.model.config_edits import Revision
from kvmedic.model.evidence import Blocked
from kvmedic.model.fleet import ROLLING, Fleet, Pod, hold_by_partition
from kvmedic.model.plan import BundleStep, FlagStep, RevisionStep
from kvmedic.model.reasons import Reason
from kvmedic.rollout.draining import (
    AWAIT_REMOVAL,
    PEER_GRACE,
    Drain,
    Taking,
    exclude_held_pods,
    find_surplus_replicas,
    held_move,
    holding_move,
    stray_move,
    take_pods,
)
from kvmedic.rollout.drift import releasing_move
from kvmedic.rollout.frozen_rollout import CRASHES_AGAINST, Order, order_of, template_row
from kvmedic.rollout.moves import (
    Cordon,
    DeletePod,
    Failed,
    Freeze,
    Hold,
    Move,
    Pause,
    Pulse,
    Restore,
    Retarget,
    Revert,
    Settled,
    Uncordon,
    Wait,
    kubectl_name,
)
from kvmedic.rollout.preconditions import Purpose, end_as_begun, find_rollback_blocker, find_rollout_blocker
from kvmedic.rollout.start_failure import StartLimits, has_crashed, start_failure, unready_since
from kvmedic.rollout.stateful.groups import (
    begin_groups,
    comes_back_as_desired,
    find_group_blocker,
    held_wait,
    let_group_go,
    report_reverted_group,
    unspent_move,
)
from kvmedic.rollout.steps import StepInput, StepRow

NUDGE_AFTER = timedelta(seconds=5)
"""A replica that is deleted and not made anew by then is asked for once more: its controller, which could not
make it while the drained one had its name, tries again later and later. Measured: 7 s after a short drain."""


def next_ordinal_move(fleet: Fleet, order: Order, now: datetime) -> Move:
    """Return the single next move that brings a StatefulSet toward the desired template.

    The template must be one of the order's two: anything else is somebody's edit, and the caller ends the run
    instead.
    """
    if fleet.revision == order.toward:
        return (
            _walk_ordinals(fleet, order, now) if fleet.fields.is_frozen else _after_restore(fleet, order, now)
        )
    if fleet.replicas == 0 and (fleet.fields.is_frozen or order.repairs):
        return Revert(order.edit, order.recorded if fleet.fields.is_frozen else fleet.fields)
    if fleet.fields.is_frozen:
        # Nobody is taken before: the partition is above all, whatever was permitted.
        return _begin(fleet, order, now)
    back = stray_move(fleet, fleet.pods) if order.pulsed_at else None  # somebody put all of it back
    return back or find_ordinal_blocker(fleet, order.purpose) or _begin(fleet, order, now)


def _begin(fleet: Fleet, order: Order, now: datetime) -> Move:
    """Return the move by which the template comes to be the desired one, and nobody is taken."""
    if fleet.groups is not None:
        return begin_groups(fleet, fleet.groups, order, now)
    held = hold_by_partition(fleet.fields)
    return Retarget(order.edit, held) if fleet.fields.is_frozen else Freeze(order.edit, held)


def find_ordinal_blocker(fleet: Fleet, purpose: Purpose) -> Blocked | None:
    """Return why no rollout can begin on a StatefulSet, or None; one replica alone has nobody beside it."""
    if purpose is not Purpose.RETURN and fleet.replicas == 1:
        return Blocked(
            Reason.SPARE_NEEDED,
            f"a {fleet.kind} is one replica short for each drain and start, and nobody serves while the only "
            "one is away: set its spec.replicas to 2, or make the change by hand when nobody needs it",
        )
    return find_rollout_blocker(fleet, purpose) or find_group_blocker(fleet, purpose)


def rest_ordinals(fleet: Fleet, order: Order, now: datetime) -> Move:
    """Return the next move toward a StatefulSet that stands still with every replica in rotation."""
    if fleet.fields.is_frozen and not fleet.fields.paused:
        return _await_made(fleet, order, now) or Pause(hold_by_partition(fleet.fields))
    return holding_move(fleet)


def _walk_ordinals(fleet: Fleet, order: Order, now: datetime) -> Move:
    """Return the next move of a frozen rollout whose template is the desired one."""
    if fleet.replicas == 0:
        return Restore(order.recorded, 0)
    if not fleet.fields.paused:
        return _replace_one(fleet, order, now)
    old = tuple(pod for pod in fleet.live if pod.revision != order.toward)
    if missing := _await_missing(fleet):
        # A drained replica serves meanwhile.
        return stray_move(fleet, fleet.pods) or missing
    if failed := _start_failure(fleet, order, now):
        return failed
    if waiting := _await_new_replicas(fleet, order, now):
        down = [pod for pod in fleet.list_pods(order.toward) if not pod.ready]
        is_over = any(now - unready_since(pod, now) > PEER_GRACE for pod in down)
        return (stray_move(fleet, fleet.pods) if is_over else None) or waiting
    if old:
        return report_reverted_group(fleet, order, now) or _take_next(fleet, order, old, now)
    return stray_move(fleet, fleet.pods) or _restore_strategy(fleet, order)


def _replace_one(fleet: Fleet, order: Order, now: datetime) -> Move:
    """Return the next move while what is deleted is made anew from the present template.

    The drained one goes before anything is waited for: while it has its name, none above it is made either.
    """
    drained = next((pod for pod in fleet.live if _is_recorded(pod, order)), None)
    ends = any(pod.terminating for pod in fleet.pods)
    if drained is not None and not ends and isinstance(_take(fleet, drained, order, now), tuple):
        unspent = unspent_move(fleet, fleet.groups, drained, order, now) if fleet.groups else None
        return unspent or DeletePod(drained)
    return _await_made(fleet, order, now) or Pause(hold_by_partition(fleet.fields))


def _is_recorded(pod: Pod, order: Order) -> bool:
    named = {each.uid for each in order.draining_pods}
    return pod.revision != order.toward and pod.uid in named


def _await_made(fleet: Fleet, order: Order, now: datetime) -> Move | None:
    """Return the wait until a deleted replica is made anew, or the nudge; None: none is missing."""
    if not (missing := _await_missing(fleet)):
        return None
    if fleet.groups is not None:  # a leader stays its controller's own, which so is never late
        return missing
    ends = any(pod.terminating for pod in fleet.pods)
    is_due = order.pulsed_at is None or now - order.pulsed_at > NUDGE_AFTER
    return Pulse((), hold_by_partition(fleet.fields, permits=True)) if is_due and not ends else missing


def _await_missing(fleet: Fleet) -> Wait | None:
    """Return what a StatefulSet with fewer replicas than are asked for waits for; None: all are there."""
    ending = [pod.name for pod in fleet.pods if pod.terminating]
    if ending:
        text = f"{ending[0]} ends; no other of its name is made before it is gone, even from a lost node"
        return Wait(Reason.AWAITING_REPLICA, text)
    there = len(fleet.live) - len(find_surplus_replicas(fleet))
    if there >= fleet.replicas:
        return None
    text = f"{there} of {fleet.replicas} replicas exist; its controller makes the next one"
    return Wait(Reason.AWAITING_CONTROLLER, text)


def _start_failure(fleet: Fleet, order: Order, now: datetime) -> Failed | Wait | None:
    """Return why a new replica will not come up; a wait where that does not end the change.

    The first one speaks against it, and so do two that do not stay up. On the way back nothing is given up.
    """
    new = fleet.list_pods(order.toward)
    lost = _find_failed_starts(fleet, order, now)
    if order.repairs or (order.lifts and len(lost) < len(new)):
        return None
    doubtful = new if len(new) <= 1 else tuple(pod for pod in new if not pod.ready)
    limits = StartLimits(order.start_limit, order.spare_limit)
    failed = next((each for pod in doubtful if (each := start_failure(pod, False, limits, now))), None)
    crashed = [pod for pod in new if has_crashed(pod) and not pod.ready]
    if failed is None or order.lifts or len(new) <= 1 or len(crashed) >= CRASHES_AGAINST:
        return failed
    text = (
        f"{failed.message}; the replicas that were changed before it serve, so the change stays: "
        "see to this one, or ask for the run to be rolled back"
    )
    return Wait(Reason.REPLICA_NOT_STARTING, text)


def _find_failed_starts(fleet: Fleet, order: Order, now: datetime) -> list[Pod]:
    """Return the replicas of the desired template that do not come up."""
    limits = StartLimits(order.start_limit, order.spare_limit)
    down = (pod for pod in fleet.list_pods(order.toward) if not pod.ready)
    return [pod for pod in down if start_failure(pod, False, limits, now)]


def _count_abandoned(fleet: Fleet, order: Order, now: datetime) -> int:
    """Return how many replicas of the desired template nobody waits for: as many were down before, or none
    served, or they are taken back to what could not stay up."""
    lost = len(_find_failed_starts(fleet, order, now))
    if order.lifts or (order.repairs and order.mends):
        return lost
    return min(order.down_before if order.repairs else 0, lost)


def _await_new_replicas(fleet: Fleet, order: Order, now: datetime) -> Wait | None:
    new = fleet.list_pods(order.toward)
    ready = sum(pod.ready for pod in new)
    if ready + _count_abandoned(fleet, order, now) < len(new):
        reason = Reason.AWAITING_CANARY if len(new) == 1 else Reason.AWAITING_REPLICA
        return Wait(reason, f"{ready} of {len(new)} replicas with the desired setting are Ready")
    if sum(rs.available for rs in fleet.replica_sets) < fleet.ready:
        return Wait(Reason.AWAITING_REPLICA, "a replica is Ready and, by minReadySeconds, not Available yet")
    return None


def _take_next(fleet: Fleet, order: Order, old: tuple[Pod, ...], now: datetime) -> Move:
    """Return the next move for one old replica: out of rotation, drained, and then let go."""
    by_permit = not comes_back_as_desired(fleet, order)
    in_turn = (max(old, key=_ordinal),) if fleet.groups is not None and by_permit else old
    takeable = exclude_held_pods(in_turn, order.held)
    if not takeable:
        return held_move(fleet, in_turn)
    pod_to_remove = _choose_pod_to_remove(takeable, order)
    if back := stray_move(fleet, fleet.pods, (pod_to_remove,)):
        return back
    if waiting := lower_wait(fleet, pod_to_remove):
        since = min(unready_since(pod, now) for pod in _down_below(fleet, pod_to_remove))
        is_over = pod_to_remove.cordoned and now - since > PEER_GRACE
        return (stray_move(fleet, fleet.pods) if is_over else None) or waiting
    taken = _take(fleet, pod_to_remove, order, now)
    if not isinstance(taken, tuple):
        return taken
    if fleet.groups is not None:
        return (
            let_group_go(fleet, pod_to_remove)
            if by_permit
            else held_wait(fleet.groups, pod_to_remove) or DeletePod(pod_to_remove)
        )
    return Pulse((pod_to_remove.name,), hold_by_partition(fleet.fields, permits=True))


def _choose_pod_to_remove(pods: tuple[Pod, ...], order: Order) -> Pod:
    """Return the replica to take: the drained one, else the lowest that is down, else the highest."""
    drained = next((pod for pod in pods if pod.cordoned and _is_recorded(pod, order)), None)
    down = [pod for pod in pods if not pod.ready]
    if drained is not None:
        return drained
    return min(down, key=_ordinal) if down else max(pods, key=_ordinal)


def _ordinal(pod: Pod) -> int:
    return pod.ordinal or 0


def _down_below(fleet: Fleet, pod: Pod) -> list[Pod]:
    lower = (each for each in fleet.live if _ordinal(each) < _ordinal(pod))
    return [each for each in lower if not each.ready] if fleet.in_order else []


def lower_wait(fleet: Fleet, pod: Pod) -> Wait | None:
    """Return what a replica waits for that would not be made anew while a lower one is not Ready."""
    down = _down_below(fleet, pod)
    if not down:
        return None
    text = (
        f"{down[0].name} must be Ready before {pod.name} may go: with podManagementPolicy OrderedReady it is "
        "not made anew before"
    )
    return Wait(Reason.AWAITING_REPLICA, text)


def _take(fleet: Fleet, pod: Pod, order: Order, now: datetime) -> tuple[Pod, ...] | Move:
    """Return the replica once it is drained, or what has to be done before; one always stays to serve."""
    others = fleet.replicas - _count_abandoned(fleet, order, now) - 1
    if fleet.groups is not None and order.repairs:
        # The way back from what may have broken them: a lower one waits for its turn.
        old = (each for each in fleet.live if each.uid != pod.uid and each.revision != order.toward)
        others -= sum(not each.in_rotation for each in old)
    needed = others if order.lifts else max(1, others)
    return take_pods(fleet, (pod,), Taking(order.draining_pods, order.drains, order.held, needed, 1))


def _restore_strategy(fleet: Fleet, order: Order) -> Move:
    """Return the restore, once the controller's own count says that only new replicas exist.

    By a partition of the team's, or another strategy, what dies comes back from the revision of the last
    rollout that was complete: it is to be this one.
    """
    counted = fleet.updated_replicas == fleet.status_replicas == fleet.replicas
    parts = bool(order.recorded.partition) or order.recorded.strategy != ROLLING
    # A controller that cannot hold groups at all never shows that it saw them held: nothing was changed then.
    is_seen = fleet.observed or (fleet.groups is not None and order.repairs)
    if is_seen and counted and (fleet.is_complete or not parts):
        return Restore(order.recorded, fleet.replicas)
    return Wait(
        Reason.AWAITING_CONTROLLER,
        f"the status of {kubectl_name(fleet)} does not show the last replacement yet",
    )


def _after_restore(fleet: Fleet, order: Order, now: datetime) -> Move:
    """Return whether the rollout is complete, or what it waits for.

    A replica that came back below somebody's partition, or with `OnDelete`, has the setting from before: the
    StatefulSet is held once more, and that one is walked.
    """
    if back := stray_move(fleet, fleet.pods):
        return back
    others = [pod for pod in fleet.live if pod.revision != order.toward]
    if others and fleet.observed:
        return Hold(order.edit, hold_by_partition(fleet.fields))
    ready = sum(pod.ready for pod in fleet.list_pods(order.toward))
    if fleet.observed and not others and ready >= fleet.replicas - _count_abandoned(fleet, order, now):
        return Settled()
    return Wait(
        Reason.AWAITING_REPLICA, f"{ready} of {fleet.replicas} replicas are Ready with the desired setting"
    )


LET_GO = frozenset({Drain.IDLE, Drain.DOWN, Drain.TIMED_OUT})
"""What is known of a replica that nothing runs on, or that goes all the same."""


def left_behind_move(fleet: Fleet, known: StepInput) -> Move | None:
    """Return the next move for a drained replica that the number does not ask for, even if people lowered it.

    Where labels lead requests to it no more nobody owns it, so it is deleted here. Put back into rotation it
    would be ended with what it serves then.
    """
    drained = next((pod for pod in reversed(find_surplus_replicas(fleet)) if pod.cordoned), None)
    if drained is None or not drained.is_released:
        return None
    drain = known.drains.get(drained.uid)
    if drain in LET_GO or drained.is_unreached:
        return DeletePod(drained)
    if drain is None:
        # Nobody asks it for its requests until the record names it.
        return Cordon(drained)
    if drain is Drain.HELD:
        return Uncordon(drained, timed_out=True)
    return Wait(Reason.DRAINING, f"{drained.name} is out of rotation and finishes its requests")


def await_surplus_removal(fleet: Fleet, move: Move) -> Move:
    """Return a move by which a run ends only once its controller ended what was drained and is beyond its
    number: the end of a run puts back what is still cordoned."""
    left = any(pod.cordoned for pod in find_surplus_replicas(fleet))
    return AWAIT_REMOVAL if left and isinstance(move, Settled) else move


def ordinal_row(step: FlagStep | BundleStep | RevisionStep) -> StepRow:
    """Return what a change of a StatefulSet's pod template does: one frozen rollout."""
    row = replace(
        template_row(step),
        find_blocker=find_ordinal_blocker,
        next_move=lambda fleet, known: (
            left_behind_move(fleet, known)
            or next_ordinal_move(fleet, order_of(step, fleet, known), known.now)
        ),
        rest=lambda fleet, known: (
            left_behind_move(fleet, known) or rest_ordinals(fleet, order_of(step, fleet, known), known.now)
        ),
        leave=_leave,
    )
    return _rollback_row(row, step.after) if isinstance(step, RevisionStep) else row


def _leave(fleet: Fleet, known: StepInput) -> Move:
    """Return the next move toward a StatefulSet without anything of ours; its template stays."""
    gone = left_behind_move(fleet, known)
    return gone or await_surplus_removal(fleet, releasing_move(fleet, known.run.recorded, known.edited))


def _rollback_row(row: StepRow, desired: Revision) -> StepRow:
    """Return the same for the template of another revision, which must be kept until it is put."""

    def move(fleet: Fleet, known: StepInput) -> Move:
        doubt = None if fleet.revision == desired.template else find_rollback_blocker(fleet, desired)
        return end_as_begun(doubt, known.assigned_at) or row.next_move(fleet, known)

    def find_blocker(fleet: Fleet, purpose: Purpose) -> Blocked | None:
        return find_rollback_blocker(fleet, desired) or find_ordinal_blocker(fleet, purpose)

    return replace(row, find_blocker=find_blocker, next_move=move)
