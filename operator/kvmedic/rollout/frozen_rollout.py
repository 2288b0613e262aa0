"""The frozen rollout as a pure state machine: an observed fleet in, the next assignment out.

A Deployment has one pod template, so one setting reaches its replicas one by one like this: the template is
changed together with a `minReadySeconds` so large that no new pod is ever Available, which makes the
controller wait for ever with one pod more than before. Between steps the Deployment is paused with
`maxUnavailable: 0`; a step is one pulse that lets exactly the drained pods go: one, or those of a wave.
If any process dies at any time, the fleet stands still with every replica serving.

Nothing here is remembered from tick to tick except the pods being drained: every move follows from what is
observed, so the same observation always gives the same move.

Source: Kubernetes 1.36 deployment controller, rolling.go. One more pod may go while `pods - (replicas -
maxUnavailable) - unavailable pods of the target ReplicaSet > 0`, counted by the ReplicaSets' specs. While it
is paused (sync.go, scale), it adds or takes, undrained, what differs from `replicas + maxSurge`: so the surge
is always as many spares as there are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from kvmedic.model.config_edits import TemplateChange
from kvmedic.model.fleet import ADDING, STILL_WITHOUT_SPARE, SURGE, Fleet, Pod, RolloutFields, freeze_fields
from kvmedic.model.plan import BundleStep, FlagStep, Goal, RevisionStep
from kvmedic.model.reasons import Reason
from kvmedic.model.run import ComparisonState, DrainingPod
from kvmedic.model.spec import Waves
from kvmedic.model.status import Attempt
from kvmedic.rollout.draining import PEER_GRACE, Drain, Taking, holding_move, stray_move, take_pods
from kvmedic.rollout.drift import releasing_move
from kvmedic.rollout.moves import (
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
    Wait,
    adding_pulse,
    count_lacking,
    is_first,
    is_target_unavailable,
    largest_wave,
    still_fields,
)
from kvmedic.rollout.orphan_drain import (
    OrphanInput,
    leaving_orphan_move,
    next_release,
    orphan_move,
    release_before_turning,
    resting_orphan_move,
)
from kvmedic.rollout.preconditions import Purpose, find_rollout_blocker
from kvmedic.rollout.start_failure import StartLimits, has_crashed, making_wait, start_failure, unready_since
from kvmedic.rollout.steps import StepInput, StepRow

PULSE_LIMIT = timedelta(seconds=10)
"""A pulse that the controller has not spent by then is taken back: a permit left standing is spent
by the next edit. Measured: the controller needs 0.2-0.4 s."""

CRASHES_AGAINST = 2
"""Replicas that do not stay up and speak against a change whose first replica proved good: one may be its
node's fault, two are on two nodes or hit the same thing."""


@dataclass(frozen=True, slots=True)
class Order:
    """Which way the fleet is to go, and what is known beside the fleet itself."""

    away: str
    """Hash of the pod template that is being left."""
    toward: str
    """Hash of the pod template that every replica shall run."""
    edit: TemplateChange
    """What turns the one into the other."""
    recorded: RolloutFields
    """The Deployment's own fields, to be put back at the end."""
    draining_pods: tuple[DrainingPod, ...]
    drains: Mapping[str, Drain]
    """What is known of the requests on each of them, by uid."""
    start_limit: timedelta
    """How long a new replica may take to become Ready."""
    spare_limit: timedelta
    """How long a new replica may stay unschedulable."""
    pulsed_at: datetime | None = None
    """When the last pulse was intended."""
    repairs: bool = False
    """The way back: also for a fleet whose replicas are not all Ready, or that was scaled to zero."""
    mends: bool = False
    """The change is for replicas that cannot stay up, so not every one must be Ready before it."""
    served_before: int = 1
    """Replicas that took requests before the run."""
    down_before: int = 0
    """Replicas that took none before a run that began all the same."""
    held: frozenset[str] = frozenset()
    """Uids of replicas whose drain timed out and that are not taken again yet."""
    wave: int = 1
    """How many may be replaced at once, where there are as many spares."""
    compared: int = 0
    """New replicas that were compared with old ones: with no more of them, no wave has begun."""
    orphans: OrphanInput = field(default_factory=OrphanInput)
    """What is known of replicas that were released to be drained."""
    may_lack: int = 0
    """Replicas that may be missing while it walks: 1 where no spare is made, else 0."""
    is_made: bool = False
    """The replica that was let go last had been made anew, so that the permit was taken back."""

    @property
    def purpose(self) -> Purpose:
        """Return what the walk is for."""
        if self.repairs:
            return Purpose.RETURN
        return Purpose.MENDING if self.mends else Purpose.RELIEF

    @property
    def lifts(self) -> bool:
        """Return whether nobody served before the change, so that every replica that is up is one more."""
        return self.mends and self.served_before == 0


def next_template_move(fleet: Fleet, order: Order, now: datetime) -> Move:
    """Return the single next move that brings the fleet toward the desired template.

    The template must be one of the order's two: anything else is somebody's edit, and the caller
    ends the run instead.
    """
    if fleet.revision == order.toward:
        return _walk(fleet, order, now) if fleet.fields.is_frozen else _after_restore(fleet, order, now)
    if fleet.fields.is_frozen:
        return _turn_around(fleet, order, now)
    if fleet.replicas == 0 and order.repairs:
        return Revert(order.edit, fleet.fields)
    begun = STILL_WITHOUT_SPARE if count_lacking(fleet, order.may_lack) else ADDING
    released = _move_orphan(fleet, order, now) if order.pulsed_at else None
    return released or find_rollout_blocker(fleet, order.purpose) or Freeze(order.edit, begun)


def rest_template(
    fleet: Fleet,
    now: datetime,
    pulsed_at: datetime | None,
    may_lack: int = 0,
    orphan: OrphanInput | None = None,
) -> Move:
    """Return the next move toward a fleet that stands still with every replica in rotation."""
    if fleet.fields.is_frozen and not fleet.fields.paused:
        return _await_controller(fleet, now, pulsed_at, may_lack)
    return (resting_orphan_move(fleet, orphan, now) if orphan else None) or holding_move(fleet)


def _move_orphan(fleet: Fleet, order: Order, now: datetime) -> Move | None:
    """Return the next move for replicas that were released, if any were."""
    known = replace(
        order.orphans,
        draining_since={pod.uid: pod.cordoned_at for pod in order.draining_pods},
        drains=order.drains,
        toward=order.toward,
        needed=fleet.replicas - _count_abandoned(fleet, order, now) - count_lacking(fleet, order.may_lack),
        may_lack=count_lacking(fleet, order.may_lack),
        assigned_at=order.pulsed_at,
        is_frozen=is_target_unavailable(fleet, fleet.revision),
    )
    return orphan_move(fleet, known, now)


def _drain_released(fleet: Fleet, order: Order, now: datetime) -> Move | None:
    """Return the next move for replicas that were released; None where one more of a wave may be, too.

    The others finish their requests meanwhile.
    """
    move = _move_orphan(fleet, order, now)
    placed = min(order.wave, fleet.spares + len(fleet.orphans)) - _count_unplaced(fleet, order, now)
    gone = all(each.pod.cordoned for each in fleet.orphans)
    more = gone and fleet.total_desired > fleet.replicas and len(fleet.orphans) < placed
    return None if more and isinstance(move, Wait) else move


def _walk(fleet: Fleet, order: Order, now: datetime) -> Move:
    """Return the next move of a frozen rollout whose template is the desired one."""
    if not fleet.fields.paused:
        return _await_controller(fleet, now, order.pulsed_at, order.may_lack)
    new, old = fleet.list_pods(order.toward), fleet.list_pods(order.away)
    if fleet.replicas == 0:
        return Restore(order.recorded, 0)
    if first := _drain_released(fleet, order, now) or _start_failure(fleet, order, now):
        return first
    if fleet.count_desired(order.toward) == 0 and not count_lacking(fleet, order.may_lack):
        return adding_pulse(fleet)
    waiting = _await_new_replicas(fleet, new, order, now)
    if waiting and not _leaves_failed_behind(fleet, order):
        return waiting
    surplus = fleet.count_desired(order.toward) - fleet.replicas
    if surplus <= 0 and (back := stray_move(fleet, new)):
        return back
    if not old and fleet.count_desired(order.away) == 0:
        return _finish(fleet, order)
    return _replace_old(fleet, order, old, now)


def _await_controller(fleet: Fleet, now: datetime, pulsed_at: datetime | None, may_lack: int) -> Move:
    """Return the pause, once the controller has spent the permit or has had its time."""
    desired, fields = fleet.count_desired(fleet.revision), fleet.fields
    others = fleet.total_desired - desired
    permitted = fields.max_unavailable if isinstance(fields.max_unavailable, int) else 0
    surge = fields.max_surge if isinstance(fields.max_surge, int) else SURGE
    missing = desired < min(fleet.replicas, fleet.replicas + surge - others)
    spent = others <= fleet.replicas - permitted and not missing and desired <= fleet.replicas
    if (fleet.observed and spent) or pulsed_at is None or now - pulsed_at > PULSE_LIMIT:
        return Pause(still_fields(fleet, may_lack))
    return Wait(Reason.AWAITING_CONTROLLER, "the deployment controller has not acted on the last step yet")


def _start_failure(fleet: Fleet, order: Order, now: datetime) -> Failed | Wait | None:
    """Return why a new replica will not come up, if one will not; a wait where that does not end the change.

    On the way back nothing is given up: old replicas may have restarted often, and there is no other way.
    Where nobody served before, the change is given up only when no new replica comes up.
    """
    new = fleet.list_pods(order.toward)
    if order.repairs or (order.lifts and len(_list_failures(fleet, order, now)) < len(new)):
        return None
    doubtful = new if _is_first(fleet, order) else tuple(pod for pod in new if not pod.ready)
    found = _failures(fleet, doubtful, order, now)
    if not found and not fleet.is_losing:
        found = [failure for failure in (_report_refused_replica(fleet, order, now),) if failure]
    if _count_unplaced(fleet, order, now):
        found = [failure for failure in found if failure.reason is not Reason.SPARE_UNSCHEDULABLE]
    failure = next(iter(found), None)
    if failure is None or _speaks_against(fleet, order):
        return failure
    text = (
        f"{failure.message}; the replicas that were changed before it serve, so the change stays: "
        "see to this one, or ask for the run to be rolled back"
    )
    return Wait(Reason.REPLICA_NOT_STARTING, text)


def _speaks_against(fleet: Fleet, order: Order) -> bool:
    """Return whether replicas that do not come up speak against the change, and not against their luck.

    The first one does, before any old replica went. After it proved good, one that finds no node, image or
    device says nothing about the change, and neither does a single engine that does not stay up: the replicas
    that were changed serve, and taking them all back would cost each of them a restart more.
    """
    crashed = [pod for pod in fleet.list_pods(order.toward) if has_crashed(pod) and not pod.ready]
    return _is_first(fleet, order) or len(crashed) >= CRASHES_AGAINST


def _is_first(fleet: Fleet, order: Order) -> bool:
    """Return whether the new replica is the canary: every old one is there still, or none of them served."""
    return order.lifts or is_first(fleet, order.away, order.toward)


def _failures(fleet: Fleet, pods: tuple[Pod, ...], order: Order, now: datetime) -> list[Failed]:
    leaving = any(pod.terminating for pod in fleet.pods)
    limits = StartLimits(order.start_limit, order.spare_limit)
    found = (start_failure(pod, leaving, limits, now) for pod in pods)
    return [failure for failure in found if failure is not None]


def _report_refused_replica(fleet: Fleet, order: Order, now: datetime) -> Failed | None:
    """Return that a new replica is refused, as by a quota; None while it may yet be made.

    Its controller tries again and again, so a quota that has room within the limit stops nothing.
    """
    desired = [rs for rs in fleet.replica_sets if rs.revision == order.toward and rs.failure]
    made, expected = len(fleet.list_pods(order.toward)), fleet.count_desired(order.toward)
    waited = now - order.pulsed_at if order.pulsed_at else timedelta(0)
    if not desired or made >= expected or waited <= order.spare_limit:
        return None
    return Failed(
        Reason.SPARE_UNSCHEDULABLE,
        f"no new replica was made within {int(order.spare_limit.total_seconds())} s: {desired[0].failure}",
    )


def _list_failures(fleet: Fleet, order: Order, now: datetime) -> list[Failed]:
    down = tuple(pod for pod in fleet.list_pods(order.toward) if not pod.ready)
    return _failures(fleet, down, order, now)


def _count_abandoned(fleet: Fleet, order: Order, now: datetime) -> int:
    """Return how many replicas of the desired template nobody waits for.

    Where nobody served before, one that does not come up keeps no other one from being replaced, on either
    way: nothing is lost by going on, and a walk that waited for it would never end. Nor does the way back
    wait for more than served before.
    """
    if not order.lifts:
        spared = order.down_before if order.repairs and not order.mends else 0
        return min(spared, len(_list_failures(fleet, order, now)))
    unmade = fleet.count_desired(order.toward) - len(fleet.list_pods(order.toward))
    refused = _report_refused_replica(fleet, order, now) is not None
    return len(_list_failures(fleet, order, now)) + (unmade if refused else 0)


def _count_unplaced(fleet: Fleet, order: Order, now: datetime) -> int:
    """Return how many spares of a wave find no node, or are refused, while another one serves.

    Nobody waits for these: fewer replicas go at once, and their devices are taken over.
    """
    asked = fleet.spares + len(fleet.orphans)
    if order.repairs or asked == SURGE:
        return 0
    placeless = [one for one in _list_failures(fleet, order, now) if one.reason is Reason.SPARE_UNSCHEDULABLE]
    refused = _report_refused_replica(fleet, order, now) is not None
    unmade = fleet.count_desired(order.toward) - len(fleet.list_pods(order.toward)) if refused else 0
    found = len(placeless) + unmade
    return found if found < asked else 0


def _leaves_failed_behind(fleet: Fleet, order: Order) -> bool:
    """Return whether a change is taken back to replicas that are all there, and not all Ready.

    What is left of the change does not serve either, or nobody is owed more than that. The controller, let
    go, would keep it for as long as a desired replica is not Ready; a pulse removes it.
    """
    desired = fleet.list_pods(order.toward)
    down = sum(not pod.ready for pod in desired) if len(desired) >= fleet.replicas else 0
    failed = not any(pod.ready for pod in fleet.list_pods(order.away))
    enough = failed or order.lifts if order.mends else down <= order.down_before
    return order.repairs and down > 0 and enough


def _await_new_replicas(fleet: Fleet, new: tuple[Pod, ...], order: Order, now: datetime) -> Wait | None:
    ready = sum(pod.ready for pod in new)
    desired = fleet.count_desired(order.toward)
    if ready + _count_abandoned(fleet, order, now) + _count_unplaced(fleet, order, now) >= desired:
        return None
    reason = Reason.AWAITING_CANARY if fleet.is_saturated(order.away) else Reason.AWAITING_REPLICA
    return Wait(reason, f"{ready} of {desired} new replicas are Ready")


def _finish(fleet: Fleet, order: Order) -> Move:
    """Return the restore, once the controller's own count says that only new replicas exist."""
    if fleet.updated_replicas == fleet.status_replicas == fleet.replicas:
        return Restore(order.recorded, fleet.replicas)
    if not fleet.is_saturated(order.toward):
        return adding_pulse(fleet)
    return Wait(Reason.AWAITING_CONTROLLER, "the Deployment's status does not show the last replacement yet")


def _after_restore(fleet: Fleet, order: Order, now: datetime) -> Move:
    """Return whether the rollout is complete, or what it waits for.

    A change that was to mend is taken back to replicas that cannot stay up: nobody waits for them. The
    controller does, and keeps a changed replica that was made too late to be seen: it is held once more then.
    """
    if back := _move_orphan(fleet, order, now) or stray_move(fleet, fleet.list_pods(order.toward)):
        return back
    others = [pod for pod in fleet.pods if pod.revision != order.toward and not pod.terminating]
    if others and fleet.observed and _leaves_failed_behind(fleet, order):
        return Hold(order.edit, still_fields(fleet, order.may_lack))
    there = fleet.list_pods(order.toward)
    ready, is_followed = sum(pod.ready for pod in there), len(there) <= fleet.count_desired(order.toward)
    desired = 0 if order.mends and order.repairs else fleet.replicas - _count_abandoned(fleet, order, now)
    if fleet.observed and is_followed and not others and ready >= desired:
        return Settled()
    return Wait(
        Reason.AWAITING_REPLICA, f"{ready} of {fleet.replicas} replicas are Ready with the desired setting"
    )


def _replace_old(fleet: Fleet, order: Order, old: tuple[Pod, ...], now: datetime) -> Move:
    """Return the next move for one old replica, or those of a wave: cordon, drain, let go.

    Only once the last ones went: a second permit for the same replicas would take peers.
    """
    if not old:
        return Wait(Reason.AWAITING_CONTROLLER, "an old replica is being replaced by its ReplicaSet")
    if len(old) > fleet.count_desired(order.away):
        return Wait(Reason.AWAITING_CONTROLLER, "a ReplicaSet has yet to end the replica that was let go")
    if not is_target_unavailable(fleet, order.toward):
        return Wait(
            Reason.AWAITING_CONTROLLER, "the desired ReplicaSet has not taken over the frozen fields yet"
        )
    surplus = fleet.count_desired(order.toward) - fleet.replicas
    if fleet.rotation.orphan is None and surplus > 0:
        return _take_surplus(fleet, order, surplus, now)
    if spares := _first_wave(fleet, order, old):
        return spares
    if fleet.rotation.orphan is not None:
        return _release_next(fleet, order, old, now)
    # Without any permit the controller takes what is old beyond the fleet's number: somebody's own surge.
    at_least = fleet.count_desired(order.away) - fleet.replicas
    taken = _take(fleet, order, old, max(at_least, min(order.wave, fleet.spares)), now)
    if isinstance(taken, tuple) and len(taken) < at_least:
        return Wait(Reason.DRAINING, f"{len(taken)} of {at_least} replicas that go together are drained")
    return _let_go(fleet, order, taken, now) if isinstance(taken, tuple) else taken


def _release_next(fleet: Fleet, order: Order, old: tuple[Pod, ...], now: datetime) -> Move:
    """Return the next move for one old replica that no label takes out of rotation."""
    if back := stray_move(fleet, fleet.pods):
        return back
    down = tuple(pod for pod in old if not pod.ready)
    at_once = 0 if count_lacking(fleet, order.may_lack) else min(order.wave, len(old))
    return next_release(fleet, old, at_once) or _let_go(fleet, order, down[:1], now)


def _take_surplus(fleet: Fleet, order: Order, surplus: int, now: datetime) -> Move:
    """Return the next move for new replicas beyond the fleet's number, which somebody's own surge made.

    The controller takes them as soon as it is let go, so they are drained before.
    """
    taken = _take(fleet, order, fleet.list_pods(order.toward), surplus, now)
    if not isinstance(taken, tuple):
        return taken
    text = f"{len(taken)} of {surplus} new replicas beyond the fleet's number are drained"
    return adding_pulse(fleet) if len(taken) == surplus else Wait(Reason.DRAINING, text)


def _first_wave(fleet: Fleet, order: Order, old: tuple[Pod, ...]) -> Pulse | None:
    """Return the pulse that adds the spares of the waves; None where they are there, or none are desired.

    They are asked for once, after the comparison. Those that found no node are not asked for again.
    """
    desired = min(order.wave, len(old))
    taken = bool(fleet.orphans) or any(pod.cordoned for pod in old)
    begun = fleet.count_desired(order.toward) > order.compared or taken
    return None if begun or desired <= fleet.spares else adding_pulse(fleet, desired)


def _take(
    fleet: Fleet, order: Order, pods: tuple[Pod, ...], at_once: int, now: datetime
) -> tuple[Pod, ...] | Move:
    needed = fleet.replicas - _count_abandoned(fleet, order, now) - count_lacking(fleet, order.may_lack)
    return take_pods(fleet, pods, Taking(order.draining_pods, order.drains, order.held, needed, at_once))


def _let_go(fleet: Fleet, order: Order, pods_to_remove: tuple[Pod, ...], now: datetime) -> Move:
    """Return the pulse, or the deletion by name where the controller would take a NotReady peer.

    Of two that are not Ready it takes the one with the lower deletion cost, so that a drained pod goes; only
    one that no node has yet, and that never served, would go before it.
    """
    old = fleet.list_pods(order.away)
    peers = [pod for pod in old if pod not in pods_to_remove and not pod.ready]
    names = ", ".join(pod.name for pod in peers)
    if peers and now - max(unready_since(pod, now) for pod in peers) <= PEER_GRACE:
        text = f"{names} must be Ready before {', '.join(pod.name for pod in pods_to_remove)} may go"
        return Wait(Reason.AWAITING_REPLICA, text)
    ready = [pod for pod in pods_to_remove if pod.ready]
    if peers and ready:
        return DeletePod(ready[0])
    going, others = len(pods_to_remove), fleet.count_desired(order.away)
    kept = min(order.wave, fleet.spares) - _count_unplaced(fleet, order, now)
    surge = max(SURGE, fleet.spares - going, min(kept, others - going))
    if count_lacking(fleet, order.may_lack):
        surge = max(0, fleet.total_desired - fleet.replicas - going)
    permit = max(0, fleet.replicas + going - others)
    fields = freeze_fields(max_unavailable=permit, paused=False, surge=surge)
    return Pulse(tuple(pod.name for pod in pods_to_remove), fields)


def _turn_around(fleet: Fleet, order: Order, now: datetime) -> Move:
    """Return the next move of a frozen rollout whose template is the one to be left."""
    if not fleet.fields.paused:
        return _await_controller(fleet, now, order.pulsed_at, order.may_lack)
    leaving, desired = fleet.list_pods(order.away), fleet.list_pods(order.toward)
    if back := _move_orphan(fleet, order, now) or stray_move(fleet, desired):
        return back
    if fleet.replicas == 0:
        return Revert(order.edit, order.recorded)
    if not leaving:
        waiting = making_wait(order.pulsed_at, now) if fleet.count_desired(order.away) > 0 else None
        return waiting or Revert(order.edit, order.recorded)
    if _lacks_spare(fleet, order):
        return Retarget(order.edit, still_fields(fleet, order.may_lack))
    if fleet.rotation.orphan is None:
        return _take_leaving(fleet, order, leaving, now)
    if first := release_before_turning(fleet, leaving, order.toward, now):
        return first
    is_whole = fleet.is_saturated(order.toward) and not _leaves_failed_behind(fleet, order)
    return (
        Revert(order.edit, order.recorded)
        if is_whole
        else Retarget(order.edit, still_fields(fleet, order.may_lack))
    )


def _take_leaving(fleet: Fleet, order: Order, leaving: tuple[Pod, ...], now: datetime) -> Move:
    """Return the next move until one replica of the template that is left is drained; then it is put back.

    Where the desired template has all its replicas, the controller takes every other one as soon as it is.
    """
    all_go = fleet.is_saturated(order.toward) and not _leaves_failed_behind(fleet, order)
    taken = _take(fleet, order, leaving, len(leaving) if all_go else 1, now)
    if not isinstance(taken, tuple):
        return taken
    if not all_go:
        return Retarget(order.edit, still_fields(fleet, order.may_lack))
    if len(taken) < len(leaving):
        return Wait(Reason.DRAIN_TIMED_OUT, "not every replica that goes with the template is drained")
    return Revert(order.edit, order.recorded)


def _lacks_spare(fleet: Fleet, order: Order) -> bool:
    """Return whether every replica runs the template that is to be left, and nothing else is there.

    Nobody may be drained then, since nobody carries on in its place; and nobody can go either when
    the template is put back, since the controller first has one pod of it to add.
    """
    return fleet.count_desired(order.toward) == 0 and fleet.total_desired <= fleet.replicas


def order_of(step: FlagStep | BundleStep | RevisionStep, fleet: Fleet, known: StepInput) -> Order:
    """Return which way a step of a run is to take the fleet."""
    run, comparison = known.run, known.run.current.comparison
    went_on = comparison is not None and comparison.state is ComparisonState.GO_ON
    in_waves = went_on and known.waves is Waves.QUARTER and not known.is_back
    return Order(
        away=step.before_template,
        toward=step.after_template,
        edit=step.template_change,
        recorded=run.recorded,
        draining_pods=run.draining_pods,
        drains=known.drains,
        start_limit=known.limits.start,
        spare_limit=known.limits.spare,
        pulsed_at=known.assigned_at,
        held=known.held,
        orphans=known.orphans,
        repairs=known.is_back,
        mends=run.goal is Goal.STAYS_UP,
        served_before=run.in_rotation,
        down_before=known.down_before,
        wave=largest_wave(fleet.replicas) if in_waves and not run.may_lack else 1,
        compared=len(comparison.pods) if comparison else 0,
        may_lack=run.may_lack,
        is_made=run.intent is not None and run.intent.move == Pause.__name__,
    )


def template_row(step: FlagStep | BundleStep | RevisionStep) -> StepRow:
    """Return what a change of the pod template does: one frozen rollout."""
    return StepRow(
        find_blocker=find_rollout_blocker,
        next_move=lambda fleet, known: next_template_move(fleet, order_of(step, fleet, known), known.now),
        rest=lambda fleet, known: rest_template(
            fleet, known.now, known.assigned_at, known.run.may_lack, known.orphans
        ),
        leave=_leave_template,
        canaries=lambda fleet: (
            fleet.list_pods(step.after_template)
            if is_first(fleet, step.before_template, step.after_template)
            else ()
        ),
        attempt=lambda _run: _attempt(step),
    )


def _leave_template(fleet: Fleet, known: StepInput) -> Move:
    """Return the next move toward a fleet without anything of ours; the fields first, as somebody waits."""
    move = releasing_move(fleet, known.run.recorded, known.edited, known.run.may_lack)
    is_whole = isinstance(move, Settled)
    return (leaving_orphan_move(fleet, known.orphans, known.now) if is_whole else None) or move


def _attempt(step: FlagStep | BundleStep | RevisionStep) -> tuple[Attempt, str]:
    if isinstance(step, RevisionStep):
        return Attempt.ROLL_BACK_REVISION, ""
    if isinstance(step, BundleStep):
        return Attempt.SWITCH_METHOD, step.method
    if step.gives_back:
        return Attempt.GIVE_BACK, str(step.knob)
    others = {
        Reason.MEMORY_STEPPED_UP: Attempt.RAISE_MEMORY,
        Reason.CAP_RAISED: Attempt.RAISE_CAP,
        Reason.CAP_TAKEN_BACK: Attempt.GIVE_BACK,
    }
    return others.get(step.reason, Attempt.TURN_LEVER), str(step.knob)
