"""More replicas for a while, and fewer again: an observed fleet in, the next assignment out.

Out is one assignment: the Deployment's number goes from what was recorded to what was planned, and the
step is settled when all of them take requests. Back is one replica at a time: the one that is to go is
taken out of rotation and drained, and only then the number is lowered by one, so that the ReplicaSet's
controller removes exactly that one: a replica that is not Ready goes first, and among Ready ones the
lowest deletion cost (`kvmedic.rollout.replacement` has the source). The pod template and the rollout's
fields are not touched.

Where no label takes a replica out of rotation it is released (`kvmedic.rollout.orphan_drain`), and the number
is lowered while the one that is made in its place does not serve: that one goes. The released one is drained.

Nothing is remembered from tick to tick but which pod is being drained: the number of replicas itself
says how far the step got. A number that no assignment of ours explains is somebody else's and stays.

Where a HorizontalPodAutoscaler or a ScaledObject decides the number, it is not fought: its minimum is
raised, it makes the replicas, and later its recorded minimum is put back. Whom it then takes away, and
when, is its own decision, as it would be without us. A minimum that is neither the recorded one nor the
one that was set is somebody else's and stays.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from kvmedic.model.fleet import Fleet, Minimum
from kvmedic.model.plan import ReplicasStep
from kvmedic.model.reasons import Reason
from kvmedic.model.run import DrainingPod, Run
from kvmedic.model.status import Attempt
from kvmedic.rollout.draining import (
    AWAIT_REMOVAL,
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
from kvmedic.rollout.drift import committed_sequence, is_kept
from kvmedic.rollout.moves import (
    Claim,
    Failed,
    MarkStandIn,
    Move,
    ReleasePod,
    ScaleIn,
    ScaleOut,
    SetMinimum,
    Settled,
    Wait,
)
from kvmedic.rollout.orphan_drain import (
    OrphanInput,
    await_swapped,
    begun_move,
    leave_rotation,
    may_serve_soon,
    resting_orphan_move,
    returning_orphan_move,
    stand_in_of,
)
from kvmedic.rollout.preconditions import end_as_begun, find_autoscaling_blocker, find_scaling_blocker
from kvmedic.rollout.start_failure import STARTS, StartLimits, making_wait, start_failure
from kvmedic.rollout.steps import StepInput, StepRow


@dataclass(frozen=True, slots=True)
class Scaling:
    """The desired number of replicas, and what is known beside the fleet itself."""

    step: ReplicasStep
    """Its `after` is the desired number; on the way back it is the step's inverse."""
    draining_pod: DrainingPod | None
    drain: Drain
    limits: StartLimits
    """An autoscaler may take as long to follow as a replica to start. The controller looks every 15 s
    (kube-controller-manager, --horizontal-pod-autoscaler-sync-period), KEDA passes a change on at once."""
    begins: bool = False
    """The way forward, and no assignment was committed yet."""
    is_ours: bool = True
    """The number that is there is one of our own assignments, or the recorded one."""
    assigned_at: datetime | None = None
    """When the last assignment was intended; None before the first."""
    held: frozenset[str] = frozenset()
    """Uids of replicas whose drain timed out and that are not taken again yet."""
    down_before: int = 0
    """Replicas that took no requests before the run."""
    replicas: int = 0
    """Of the target before the run; of meaning where an autoscaler has the number."""
    orphans: OrphanInput = field(default_factory=OrphanInput)
    """What is known of replicas that were released to be drained."""


def is_explained(run: Run, resource_uid: str, fleet: Fleet) -> bool:
    """Return whether a run's own record explains the fleet's number of replicas.

    The claim says which assignment was committed last. Where a person's `kubectl rollout undo` took
    the claim away, both numbers of the last intent may be ours. Until a number was assigned it is the one
    that the run's step begins with.
    """
    intent = run.intent
    if intent is None or intent.replicas_before is None or intent.replicas_after is None:
        return fleet.replicas == run.current.step.counts_on
    committed = committed_sequence(run, resource_uid, fleet.fence)
    expected = {intent.replicas_before, intent.replicas_after}
    if committed is not None:
        expected = {intent.replicas_after if committed == intent.sequence else intent.replicas_before}
    return fleet.replicas in expected


def scaling_move(fleet: Fleet, order: Scaling, now: datetime) -> Move:
    """Return the single next move toward the desired number of replicas.

    The pod template and the number must be as the record explains them: anything else is somebody's
    edit, and the caller leaves instead (`leaving_move`).
    """
    desired = order.step.after
    if order.begins:
        refused = find_scaling_blocker(fleet, order.step)
        # Before a replica is drained the target is claimed: who finds one out of rotation then finds a run
        # that began, and nobody else's can.
        first = Claim() if order.step.gives_back else ScaleOut(fleet.replicas, desired, "")
        return end_as_begun(refused, order.assigned_at) or first
    if fleet.replicas < desired:
        # First the number: one that is back in rotation could still go by the one of before.
        return ScaleOut(fleet.replicas, desired, "")
    if fleet.replicas > desired:
        return _one_fewer(fleet, order, now)
    return _await_replicas(fleet, order, now)


def rest_scaling(fleet: Fleet, order: Scaling, now: datetime) -> Move:
    """Return the next move toward a fleet that stands still with every replica in rotation."""
    if not is_followed(fleet, fleet.replicas):
        return AWAIT_REMOVAL
    return resting_orphan_move(fleet, order.orphans, now) or holding_move(fleet)


def leave_scaling(fleet: Fleet, order: Scaling, now: datetime) -> Move:
    """Return the next move toward a fleet without anything of ours.

    Somebody else's number of replicas stays. What a step had added goes as carefully as it came; in the
    middle of somebody's rollout that waits until the rollout is complete. What a step had begun to
    give back stays as it is, and is given back another time.
    """
    step = order.step
    surplus = order.is_ours and not step.gives_back and fleet.replicas > step.before
    edited = fleet.revision != step.template
    if surplus and (not edited or is_whole(fleet)):
        return _one_fewer(fleet, replace(order, step=step.inverse()), now)
    if move := returning_orphan_move(fleet, replace(order.orphans, needed=fleet.replicas), now):
        return move
    return parting_move(fleet, surplus_of(fleet, step.before) if surplus else None)


def _one_fewer(fleet: Fleet, order: Scaling, now: datetime) -> Move:
    asked, desired = fleet.replicas, order.step.after
    if fleet.is_stateful:
        return _last_ordinal(fleet, order, now)
    if fleet.rotation.orphan is not None or fleet.orphans:
        return _release_one(fleet, order, now)
    if not is_followed(fleet, fleet.replicas):
        return AWAIT_REMOVAL
    if len(fleet.live) < asked:
        fewer = max(desired, len(fleet.live))
        waiting = stray_move(fleet, fleet.pods) or making_wait(order.assigned_at, now)
        return waiting or ScaleIn(asked, fewer, "", fleet.ready)
    takeable = find_drainable_pods(fleet.live, order.held)
    if not takeable:
        return held_move(fleet, [pod for pod in fleet.live if pod.uid in order.held])
    # The controller would take a replica that is not Ready before a drained one.
    drained = order.draining_pod.uid if order.draining_pod else ""
    pod_to_remove = min(takeable, key=lambda pod: (pod.ready, pod.uid != drained, *newest_first(pod)))
    if back := stray_move(fleet, fleet.pods, (pod_to_remove,)):
        return back
    draining = draining_move(fleet, pod_to_remove, order.draining_pod, order.drain, desired)
    return draining or ScaleIn(asked, asked - 1, pod_to_remove.name, fleet.ready)


def _last_ordinal(fleet: Fleet, order: Scaling, now: datetime) -> Move:
    """Return the next move until a StatefulSet has one replica less: the highest ordinal always goes."""
    asked, desired = fleet.replicas, order.step.after
    if not is_followed(fleet, asked):
        return AWAIT_REMOVAL
    pod_to_remove = next((pod for pod in fleet.live if pod.ordinal == asked - 1), None)
    if pod_to_remove is None:
        # It is not there, so that a lower number takes nobody.
        waiting = stray_move(fleet, fleet.pods) or making_wait(order.assigned_at, now)
        return waiting or ScaleIn(asked, asked - 1, "", None)
    if pod_to_remove.uid in order.held:
        return held_move(fleet, (pod_to_remove,))
    if back := stray_move(fleet, fleet.pods, (pod_to_remove,)):
        return back
    draining = draining_move(fleet, pod_to_remove, order.draining_pod, order.drain, desired)
    return draining or ScaleIn(asked, asked - 1, pod_to_remove.name, None)


def _release_one(fleet: Fleet, order: Scaling, now: datetime) -> Move:
    """Return the next move until one replica less is asked for, or one more is drained.

    The number is lowered only while a replica is there that does not serve, or one is missing: that goes. A
    stand-in that serves before goes another time, and the released one is drained all the same.
    """
    asked, desired, known = fleet.replicas, order.step.after, replace(order.orphans, needed=order.step.after)
    if move := begun_move(fleet, known, now):
        return move
    if not is_followed(fleet, asked):
        return AWAIT_REMOVAL
    orphan = next(iter(fleet.orphans), None)
    made = stand_in_of(fleet, orphan, known) if orphan else None
    if made is not None and not made.is_stand_in:
        return MarkStandIn(made)
    idle = [pod for pod in fleet.live if not may_serve_soon(fleet, pod, now)]
    if idle or len(fleet.live) < asked:
        unmade = None if idle or orphan else making_wait(order.assigned_at, now)
        name = orphan.pod.name if orphan else idle[0].name if idle else ""
        waiting = stray_move(fleet, fleet.pods) or unmade
        return waiting or ScaleIn(asked, asked - 1, name, fleet.ready)
    if orphan is not None:
        return leave_rotation(fleet, orphan, known)
    takeable = find_drainable_pods(fleet.live, order.held)
    if not takeable:
        return held_move(fleet, [pod for pod in fleet.live if pod.uid in order.held])
    pod_to_remove = min(takeable, key=lambda pod: (pod.ready, pod.is_stand_in, *newest_first(pod)))
    if pod_to_remove.in_rotation and fleet.in_rotation <= desired:
        text = f"{fleet.in_rotation - 1} of {desired} replicas beside {pod_to_remove.name} are in rotation"
        return Wait(Reason.AWAITING_REPLICA, text)
    waiting = stray_move(fleet, fleet.pods) or await_swapped(fleet, pod_to_remove.revision)
    return waiting or ReleasePod(pod_to_remove)


def _await_replicas(fleet: Fleet, order: Scaling, now: datetime) -> Move:
    step = order.step
    if not is_followed(fleet, fleet.replicas):
        return AWAIT_REMOVAL
    if move := returning_orphan_move(fleet, replace(order.orphans, needed=step.after), now):
        return move
    if back := stray_move(fleet, fleet.pods):
        return back
    numbers = step.before, step.after
    awaited = report_missing_replicas(fleet, numbers, order.down_before)
    if step.gives_back or not awaited:
        return Settled()
    waited = now - order.assigned_at if order.assigned_at else timedelta(0)
    failed = start_of_added(fleet, numbers, order.limits, waited, now)
    return failed or Wait(Reason.AWAITING_REPLICA, awaited)


def report_missing_replicas(fleet: Fleet, numbers: tuple[int, int], down_before: int) -> str:
    """Return which of the replicas that are to serve do not yet; empty once enough do.

    Enough are all, or every one that was added and as many more as served before: nobody waits for one that
    was down then.
    """
    before, desired = numbers
    serving = [pod for pod in fleet.live if pod.ready and pod.in_rotation]
    added = sorted(fleet.live, key=newest_first)[: max(0, desired - before)]
    is_there = len(fleet.live) >= desired and all(pod in serving for pod in added)
    if fleet.observed and len(serving) >= desired - (down_before if is_there else 0):
        return ""
    return f"{len(serving)} of {desired} replicas serve"


def start_of_added(
    fleet: Fleet, numbers: tuple[int, int], limits: StartLimits, waited: timedelta, now: datetime
) -> Failed | None:
    """Return why added replicas will not come up, or take too long; `numbers`: before, and desired."""
    before, desired = numbers
    newest = sorted(fleet.live, key=newest_first)
    for pod in newest[: max(0, len(fleet.live) - before)]:
        if failed := start_failure(pod, False, limits, now):
            return failed
    seconds = int(waited.total_seconds())
    if len(fleet.live) < desired and waited > limits.spare:
        text = f"{len(fleet.live)} of {desired} replicas were made within {seconds} s"
        return Failed(Reason.SPARE_UNSCHEDULABLE, f"{text}: look for a quota in the Events of the ReplicaSet")
    if waited > STARTS * limits.start:
        text = f"not every replica served {seconds} s after their number was raised"
        return Failed(Reason.CANARY_FAILED, text)
    return None


def autoscaling_move(fleet: Fleet, order: Scaling, now: datetime) -> Move:
    """Return the single next move toward the desired minimum.

    It must be as the record explains it: anything else is somebody's edit, and the caller leaves
    instead (`leaving_move`).
    """
    step, holder = order.step, fleet.minimum
    if order.begins:
        refused = find_autoscaling_blocker(fleet, step)
        return end_as_begun(refused, order.assigned_at) or Claim()
    if holder is None:
        return Settled()
    if not _is_set(holder, step):
        return _assign(holder, step)
    if step.gives_back:
        return stray_move(fleet, fleet.pods) or Settled()
    return _await_minimum(fleet, order, now)


def leave_autoscaling(fleet: Fleet, order: Scaling, _now: datetime) -> Move:
    """Return the next move toward an autoscaler without anything of ours.

    A minimum that somebody else set stays, and what had begun to be given back stays as it is.
    """
    step, holder = order.step, fleet.minimum
    raised = holder is not None and order.is_ours and not step.gives_back and _is_set(holder, step)
    if holder is not None and raised:
        return _assign(holder, step.inverse())
    return stray_move(fleet, fleet.pods) or Settled()


def _is_set(holder: Minimum, step: ReplicasStep) -> bool:
    return (holder.number, holder.is_given) == (step.after, step.leaves_number)


def _assign(holder: Minimum, step: ReplicasStep) -> SetMinimum:
    return SetMinimum(holder, step.after, step.leaves_number)


def _await_minimum(fleet: Fleet, order: Scaling, now: datetime) -> Move:
    step = order.step
    numbers = order.replicas, step.after
    awaited = report_missing_replicas(fleet, numbers, order.down_before)
    if not awaited:
        return Settled()
    waited = now - order.assigned_at if order.assigned_at else timedelta(0)
    if fleet.replicas < step.after:
        who = f"{step.number_in.kind} {step.number_in.name}"
        text = f"{who} keeps {step.after}, and {fleet.replicas} are asked for"
        if waited > order.limits.start:
            return Failed(Reason.AUTOSCALER_IDLE, f"{text} after {int(waited.total_seconds())} s")
        return Wait(Reason.AWAITING_CONTROLLER, text)
    failed = start_of_added(fleet, numbers, order.limits, waited, now)
    return failed or Wait(Reason.AWAITING_REPLICA, awaited)


def scaling_row(step: ReplicasStep) -> StepRow:
    """Return what another number of replicas does: on the Deployment, or by its autoscaler's minimum."""
    auto = step.holder is not None
    following, leaving = (autoscaling_move, leave_autoscaling) if auto else (scaling_move, leave_scaling)
    return StepRow(
        find_blocker=lambda fleet, _purpose: (find_autoscaling_blocker if auto else find_scaling_blocker)(
            fleet, step
        ),
        next_move=lambda fleet, known: following(fleet, _order(step, fleet, known), known.now),
        rest=lambda fleet, known: (
            holding_move(fleet) if auto else rest_scaling(fleet, _order(step, fleet, known), known.now)
        ),
        leave=lambda fleet, known: leaving(fleet, _order(step, fleet, known), known.now),
        drains_to_leave=not auto,
        attempt=lambda run: None if step.gives_back else (Attempt.ADD_REPLICAS, str(run.replicas)),
    )


def _order(step: ReplicasStep, fleet: Fleet, known: StepInput) -> Scaling:
    run, uid = known.run, known.resource_uid
    explained = is_kept if step.holder else is_explained
    abandoned = run.ending is not None and run.ending.reason is Reason.ABANDONED
    return Scaling(
        step=step,
        draining_pod=known.draining_pod,
        drain=known.drain,
        limits=known.limits,
        begins=not known.is_back and not committed_sequence(run, uid, fleet.fence),
        is_ours=not abandoned and explained(run, uid, fleet),
        assigned_at=known.assigned_at,
        held=known.held,
        down_before=known.down_before,
        replicas=run.replicas,
        orphans=known.orphans,
    )
