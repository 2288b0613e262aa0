"""Which move comes next for the step of an open run, and what has to be asked of replicas for it.

The moves themselves are pure (`rollout/`); here the kind of step decides which of them is asked, and what
they need to know beside the fleet is gathered: whether the replica that is being drained is idle, and whether
a new one answers.

What an open run writes down before an effect: which pod it takes, or what it assigns to the Deployment.

Nothing is changed here. Moves on pods are recomputed from what is observed; an assignment has a number,
by which the claim on the target shows afterwards whether it was committed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import assert_never

from kvmedic.controller.ports import Ports
from kvmedic.model.config_edits import EditedTemplate
from kvmedic.model.evidence import Blocked, Reading
from kvmedic.model.fleet import Fleet, Orphan, Pod, RolloutFields, template_hash
from kvmedic.model.plan import Goal
from kvmedic.model.reasons import Reason
from kvmedic.model.run import CostSoFar, DrainingPod, Intent, Outcome, Run, StepState, TimedOut
from kvmedic.model.spec import OnDrainTimeout, OnInconclusive, Policy, answer_to_no_verdict
from kvmedic.model.status import Record, Resource, Urgency
from kvmedic.rollout import row_of
from kvmedic.rollout.config_copy import Files
from kvmedic.rollout.decide import Direction
from kvmedic.rollout.draining import (
    ARRIVALS_APART,
    Drain,
    count_arrivals,
    drain_by_counts,
    drain_of_unreached,
    drain_past_limit,
    report_arrivals,
)
from kvmedic.rollout.drift import claimed_sequence, committed_sequence
from kvmedic.rollout.edited_template import without_our_change
from kvmedic.rollout.moves import (
    AdoptPod,
    Claim,
    Cordon,
    CordonOrphan,
    DeletePod,
    DeploymentMove,
    Effect,
    Freeze,
    Hold,
    MarkStandIn,
    Move,
    Pause,
    Pulse,
    Regain,
    Release,
    ReleasePod,
    Restore,
    Retarget,
    Revert,
    ScaleIn,
    ScaleOut,
    SetMinimum,
    SetOwnerField,
    Uncordon,
    Wait,
    takes_replica,
)
from kvmedic.rollout.orphan_drain import linger_of
from kvmedic.rollout.owners.field import what_became_of
from kvmedic.rollout.start_failure import StartLimits, canary_pool_move, start_limit
from kvmedic.rollout.steps import StepInput
from kvmedic.runbooks.workload import View


@dataclass(frozen=True, slots=True)
class Tick:
    """Everything that one look at an open run needs."""

    resource: Resource
    policy: Policy
    record: Record
    run: Run
    ports: Ports
    now: datetime
    problem: Blocked | None = None
    """Why the spec cannot be followed; no forward move is made then, and nothing is judged."""
    urgency: Urgency | None = None
    """How urgent the trouble is as of this look; None: as it was."""
    cost_so_far: CostSoFar | None = None
    """What the run has cost as of this look; None: as it was."""
    files: Files | None = None
    """The ConfigMap of a step that copies one, and the copy; None: the step copies none."""


def elapsed_time(tick: Tick, *what: Hashable) -> timedelta:
    """Return how long this process has seen something that the run waits for."""
    return tick.ports.watch.measure_wait(tick.resource.uid, tick.run.id, *what)


def watch_readiness(tick: Tick, pod: Pod, holders: tuple[str, ...] = ()) -> Pod:
    """Return a pod with how long it has been seen not Ready; one that is Ready as it is.

    Args:
        tick: the look.
        pod: the pod.
        holders: uids of released replicas that hold a device still. A pod without a node may wait for that
            one, so its time counts anew once they are gone.
    """
    if pod.ready:
        return pod
    awaited = () if pod.node else holders
    return replace(pod, unready_for=elapsed_time(tick, "unready", pod.uid, pod.unready_at, *awaited))


def as_watched(tick: Tick) -> Run:
    """Return the run as if it had begun when this process first saw it: its limits count from then."""
    return replace(tick.run, started_at=tick.now - elapsed_time(tick, "run"))


def _watched_fleet(tick: Tick, fleet: Fleet) -> Fleet:
    stuck = {one.uid: one.listed_by for one in tick.run.timed_out}
    holders = tuple(each.pod.uid for each in fleet.orphans)
    pods = (
        replace(watch_readiness(tick, pod, holders), stuck_in=stuck.get(pod.uid, ())) for pod in fleet.pods
    )
    return replace(fleet, pods=tuple(pods))


async def walking_move(tick: Tick, fleet: Fleet, direction: Direction) -> Move:
    """Return the next move of the step under way, forward or back."""
    fleet = _watched_fleet(tick, fleet)
    step, forward = tick.run.current.step, direction is Direction.FORWARD
    row = row_of(step if forward else step.inverse())
    known = replace(_input_of(tick, fleet, await drains_of(tick, fleet)), is_back=not forward)
    move = _with_arrivals(tick, row.next_move(fleet, known))
    if forward and takes_replica(move):
        return await _refuse_canary(tick, fleet, row.canaries(fleet)) or move
    return move


def takes_old_replica(tick: Tick, fleet: Fleet) -> bool:
    """Return whether the walk is about to take one more replica without the change out of rotation."""
    fleet = _watched_fleet(tick, fleet)
    row = row_of(tick.run.current.step)
    move = row.next_move(fleet, _input_of(tick, fleet, {}))
    # A released one was taken when it was released: what is asked before that is not asked again.
    return takes_replica(move) and not isinstance(move, CordonOrphan)


async def leaving_move(tick: Tick, view: View) -> Move:
    """Return the next move toward a fleet without anything of ours, even if somebody changed it meanwhile."""
    fleet = _watched_fleet(tick, view.fleet)
    row = row_of(tick.run.current.step)
    asks = row.drains_to_leave or _has_released(fleet)
    drains = await drains_of(tick, fleet) if asks else {}
    known = replace(_input_of(tick, fleet, drains), edited=_without_ours(tick.run, view))
    return _with_arrivals(tick, row.leave(fleet, known))


async def resting_move(tick: Tick, fleet: Fleet) -> Move:
    """Return the next move toward a fleet that stands still with every replica in rotation."""
    drains = await drains_of(tick, fleet) if _has_released(fleet) else {}
    return _with_arrivals(tick, row_of(tick.run.current.step).rest(fleet, _input_of(tick, fleet, drains)))


def _has_released(fleet: Fleet) -> bool:
    """Return whether a replica is there that no controller owns, and that goes once it is idle."""
    return bool(fleet.orphans) or any(pod.is_released for pod in fleet.pods)


def _with_arrivals(tick: Tick, move: Move) -> Move:
    return report_arrivals(move, tick.run.draining_pods, tick.now) if isinstance(move, Wait) else move


def _input_of(tick: Tick, fleet: Fleet, drains: Mapping[str, Drain]) -> StepInput:
    return StepInput(
        run=tick.run,
        resource_uid=tick.resource.uid,
        drains=drains,
        limits=start_limits(tick, fleet.pods),
        drain_limit=tick.policy.rollout.drain_timeout,
        now=tick.now,
        assigned_at=_find_assignment_time(tick),
        held=_find_held_pods(tick),
        waves=tick.policy.rollout.waves,
        taken_at=_find_cordon_times(tick),
        linger=linger_of(
            tick.policy.rollout.drain_timeout,
            proceeds=tick.policy.rollout.on_drain_timeout is OnDrainTimeout.PROCEED,
        ),
    )


_MOVED = frozenset({Reason.FLAG_DRIFTED, Reason.CHANGE_REVERTED})


def outcome_of_leaving(run: Run, view: View, outcome: Outcome) -> Outcome:
    """Return the end of a run that leaves its target; it says so where the run's change is taken out."""
    if (field := run.current.step.through) is not None and outcome.reason in _MOVED:
        return replace(outcome, message=what_became_of(view.fleet, field))
    if _without_ours(run.leave_target(outcome), view) is None:
        return outcome
    text = (
        f"someone else changed the pod template in the middle of the run: what the run had changed "
        f"({run.current.step.line()}) was taken out of it again, and their change rolls out by the "
        "Deployment's own strategy"
    )
    return replace(outcome, message=text)


def _without_ours(run: Run, view: View) -> Mapping[str, object] | None:
    if run.ending is None or run.ending.reason is not Reason.FLAG_DRIFTED:
        return None
    return without_our_change(run.current.step, view.fleet, view.template, view.templates)


async def observe_draining_pods(tick: Tick, fleet: Fleet) -> Tick:
    """Return the tick with what is seen of each draining pod: when it left, and requests that come still."""
    tick = _note_leaving_pods(tick, fleet)
    pods = await asyncio.gather(*(_count_arrivals(tick, each, fleet) for each in tick.run.draining_pods))
    return replace(tick, run=replace(tick.run, draining_pods=tuple(pods)))


async def _count_arrivals(tick: Tick, draining_pod: DrainingPod, fleet: Fleet) -> DrainingPod:
    """Return a draining pod with what came to it since it left rotation, once it had the time to settle."""
    pod, last = _pod(fleet, draining_pod), draining_pod.arrivals.at if draining_pod.arrivals else None
    if pod is None or pod.in_rotation or pod.is_unreached or draining_pod.out_at is None:
        return draining_pod
    is_early = elapsed_time(tick, "out", draining_pod.uid, draining_pod.out_at) < _quiet_time(tick, pod)
    if is_early or (last is not None and tick.now - last < ARRIVALS_APART):
        return draining_pod
    found = await tick.ports.metrics.count_received(tick.policy.source, tick.resource.namespace, pod)
    return replace(draining_pod, arrivals=count_arrivals(draining_pod.arrivals, found, tick.now))


def _quiet_time(tick: Tick, pod: Pod) -> timedelta:
    """Return how long a replica must have been out of rotation before its requests show anything."""
    quiet = tick.ports.pace.drain_quiet
    return max(quiet, tick.policy.rollout.settle) if pod.is_released else quiet


def _note_leaving_pods(tick: Tick, fleet: Fleet) -> Tick:
    """Return the tick with the moment at which each draining pod was first seen out of rotation."""

    def note_out(each: DrainingPod) -> DrainingPod:
        pod = _pod(fleet, each)
        is_out = pod is not None and pod.cordoned and not pod.in_rotation
        return replace(each, out_at=tick.now) if is_out and each.out_at is None else each

    return replace(
        tick, run=replace(tick.run, draining_pods=tuple(note_out(each) for each in tick.run.draining_pods))
    )


def unjudged_answer(tick: Tick) -> OnInconclusive:
    """Return how a sustained window without a verdict is answered now."""
    policy, settled_at = tick.policy, tick.run.current.settled_at
    seen = policy.windows.verify if settled_at is None else elapsed_time(tick, "settled", settled_at)
    held = seen - policy.windows.verify
    return answer_to_no_verdict(policy.on_inconclusive, held, policy.hold_at_most)


def start_limits(tick: Tick, pods: Sequence[Pod] = ()) -> StartLimits:
    """Return how long a new replica may take to become Ready, and to find a node."""
    deadline = tick.run.recorded.progress_deadline_seconds
    start = start_limit(deadline, tick.policy.rollout.start_timeout, pods)
    return StartLimits(start, tick.policy.rollout.spare_limit or tick.ports.pace.spare_limit)


def _find_assignment_time(tick: Tick) -> datetime | None:
    """Return when the last assignment was intended, by the time that this process has known of it."""
    intent = tick.run.intent
    return tick.now - elapsed_time(tick, "assigned", intent.sequence, intent.at) if intent else None


def _find_cordon_times(tick: Tick) -> Mapping[str, datetime]:
    """Return when each draining pod was taken, by uid and the time that this process has known of it."""
    return {
        each.uid: tick.now - elapsed_time(tick, "cordoned", each.uid, each.cordoned_at)
        for each in tick.run.draining_pods
    }


def _find_held_pods(tick: Tick) -> frozenset[str]:
    """Return the replicas whose drain timed out and that are not to be taken again yet.

    Where the spec lets replicas go all the same, they are those that no Service let go of.
    """
    rollout = tick.policy.rollout
    goes = rollout.on_drain_timeout is OnDrainTimeout.PROCEED
    late = (one for one in tick.run.timed_out if one.after >= rollout.drain_timeout)
    return frozenset(one.uid for one in late if one.listed_by or not goes)


async def drains_of(tick: Tick, fleet: Fleet) -> Mapping[str, Drain]:
    """Return what is known of the requests on each draining pod, by uid; all are asked at the same time."""
    pods = [(each, pod) for each in tick.run.draining_pods if (pod := _pod(fleet, each))]
    found = await asyncio.gather(*(_drain_of(tick, *each) for each in pods))
    return {each.uid: drain for (each, _), drain in zip(pods, found, strict=True)}


async def _drain_of(tick: Tick, draining_pod: DrainingPod, pod: Pod) -> Drain:
    rollout, found = tick.policy.rollout, Drain.UNKNOWN
    late = elapsed_time(tick, "cordoned", draining_pod.uid, draining_pod.cordoned_at) > rollout.drain_timeout
    if draining_pod.out_at is not None:
        found = await _count_requests(
            tick, pod, elapsed_time(tick, "out", draining_pod.uid, draining_pod.out_at)
        )
    if not late:
        return found
    return drain_past_limit(found, pod, proceeds=rollout.on_drain_timeout is OnDrainTimeout.PROCEED)


async def _count_requests(tick: Tick, pod: Pod, out: timedelta) -> Drain:
    """Ask a replica for its requests as often as it takes; `out`: since when it has been out of rotation."""
    if pod.is_unreached:
        return drain_of_unreached(await _requests_in_flight(tick, pod, timedelta(0)))
    pace, counts, quiet = tick.ports.pace, list[Reading[float]](), _quiet_time(tick, pod)
    while (drain := drain_by_counts(out, quiet, counts)) is None:
        if counts:
            await asyncio.sleep(pace.drain_interval.total_seconds())
        counts.append(await _requests_in_flight(tick, pod, out - quiet))
    return drain


async def _requests_in_flight(tick: Tick, pod: Pod, left_alone: timedelta) -> Reading[float]:
    namespace = tick.resource.namespace
    return await tick.ports.metrics.count_in_flight(tick.policy.source, namespace, pod, left_alone)


def _pod(fleet: Fleet, draining_pod: DrainingPod) -> Pod | None:
    pods = (*fleet.pods, *(each.pod for each in fleet.orphans))
    return next((p for p in pods if p.uid == draining_pod.uid and not p.terminating), None)


async def _refuse_canary(tick: Tick, fleet: Fleet, canaries: tuple[Pod, ...]) -> Move | None:
    limits = start_limits(tick, fleet.pods)
    for pod in canaries:
        if pod.ready:
            pool = await tick.ports.metrics.pool(tick.policy.source, tick.resource.namespace, pod)
            known = replace(pod, created_at=tick.now - elapsed_time(tick, "canary", pod.uid))
            if refused := canary_pool_move(known, pool, _least_blocks(tick.run), limits, tick.now):
                return refused
    return None


def _least_blocks(run: Run) -> int:
    """Return the KV-cache blocks that the canary is compared with; 0: none.

    A change by which replicas stay up gives memory away on purpose: the pool is smaller then. Another
    revision's image or types may well make another pool, and so may a cache without compression.
    """
    compares = run.goal is not Goal.STAYS_UP and run.current.step.keeps_pool
    return run.blocks or 0 if compares else 0


def record_intent(tick: Tick, fleet: Fleet, effect: Effect) -> Run:
    """Return the run with the effect written down."""
    run = tick.run
    match effect:
        case Cordon(pod, beside):
            kept = (pod.uid, *beside)
            draining_pods = tuple(each for each in run.draining_pods if each.uid in kept)
            known = any(each.uid == pod.uid for each in draining_pods)
            added = () if known else (DrainingPod(pod.name, pod.uid, tick.now),)
            return replace(run, draining_pods=(*draining_pods, *added))
        case ReleasePod(pod) | CordonOrphan(Orphan(pod=pod)):
            others = _released_pods(run, fleet, pod)
            return replace(run, draining_pods=(*others, DrainingPod(pod.name, pod.uid, tick.now)))
        case AdoptPod(orphan):
            return replace(run, draining_pods=_released_pods(run, fleet, orphan.pod))
        case Uncordon(pod, timed_out):
            return _put_pod_back(run, pod, tick.policy.rollout.drain_timeout if timed_out else None)
        case SetOwnerField(seen=seen) if run.intent is not None:
            return replace(run, intent=replace(run.intent, owner_generation=seen.generation, at=tick.now))
        case DeletePod() | SetMinimum() | SetOwnerField() | MarkStandIn():
            return run
        case _:
            return _record_assignment(tick, fleet, effect)


def _released_pods(run: Run, fleet: Fleet, pod: Pod) -> tuple[DrainingPod, ...]:
    """Return the draining pods beside one pod that were released and are still there."""
    released = {each.pod.uid for each in fleet.orphans} - {pod.uid}
    return tuple(each for each in run.draining_pods if each.uid in released)


def _put_pod_back(run: Run, pod: Pod, after: timedelta | None) -> Run:
    """Return the run with a replica back in rotation; `after`: the time-out that its drain came to, if any.

    A crash before it is back leaves it cordoned and not named: then it is put back as any stray one.
    """
    if after is not None:
        others = tuple(one for one in run.timed_out if one.uid != pod.uid)
        run = replace(run, timed_out=(*others, TimedOut(pod.name, pod.uid, after, pod.listed_by)))
    return replace(run, draining_pods=tuple(each for each in run.draining_pods if each.uid != pod.uid))


def _record_assignment(tick: Tick, fleet: Fleet, effect: DeploymentMove) -> Run:
    """Return the run with an assignment to the Deployment written down.

    An assignment that was written down and never committed gives its number to the next one, so the
    claim and the record can never be more than one apart.
    """
    run, uid = _begin_assignment(tick.run, fleet, effect), tick.resource.uid
    committed = committed_sequence(run, uid, fleet.fence)
    before, after = _fields(fleet, effect)
    fewest, most = _numbers(run, fleet, effect)
    intent = Intent(
        sequence=(claimed_sequence(run, uid, fleet.fence) if committed is None else committed) + 1,
        move=type(effect).__name__,
        template_before=fleet.revision,
        template_after=_template_after(run, fleet, effect),
        is_frozen=_is_frozen_after(effect, after),
        at=tick.now,
        was_frozen=before.is_frozen,
        replicas_before=fewest,
        replicas_after=most,
        fields_before=before,
        fields_after=after,
        owner_generation=run.intent.owner_generation if run.intent else None,
    )
    return replace(run, intent=intent)


def _begin_assignment(run: Run, fleet: Fleet, effect: DeploymentMove) -> Run:
    """Return the run with what an assignment changes of it, beside the intent."""
    if run.current.state is StepState.PENDING:
        run = run.with_step(replace(run.current, state=StepState.ROLLING_OUT))
    match effect:
        case Freeze() | Hold():
            return replace(run, recorded=fleet.fields)
        case Pulse() | ScaleIn() | Retarget():
            # One goes: a replica that was put back before gets another try.
            return replace(run, timed_out=())
        case Pause() | Restore() | Revert() | Release() | ScaleOut() | Claim() | Regain():
            return run
        case _:
            assert_never(effect)


def _is_frozen_after(effect: DeploymentMove, after: RolloutFields) -> bool:
    """Return whether the rollout is frozen once an assignment is committed; `after`: its fields then."""
    match effect:
        case Regain():
            return after.is_frozen
        case Freeze() | Hold() | Retarget() | Pause() | Pulse():
            return True
        case Restore() | Revert() | Release() | ScaleOut() | ScaleIn() | Claim():
            return False
        case _:
            assert_never(effect)


def _fields(fleet: Fleet, effect: DeploymentMove) -> tuple[RolloutFields, RolloutFields]:
    """Return the rollout's fields before and after an assignment.

    What is regained was frozen before as well: until that is committed the target is not as it should be.
    """
    match effect:
        case Regain(fields=fields):
            desired = fields or fleet.fields
            return desired, desired
        case ScaleOut() | ScaleIn() | Claim():
            return fleet.fields, fleet.fields
        case Freeze() | Hold() | Pause() | Retarget() | Pulse() | Restore() | Revert() | Release():
            return fleet.fields, effect.fields
        case _:
            assert_never(effect)


def _numbers(run: Run, fleet: Fleet, effect: DeploymentMove) -> tuple[int | None, int | None]:
    """Return the numbers of replicas before and after an assignment; None where it does not matter."""
    match effect:
        case ScaleOut(before, after) | ScaleIn(before, after):
            return before, after
        case Regain() if run.intent is not None and run.intent.replicas_after is not None:
            return fleet.replicas, fleet.replicas
        case Freeze() | Hold() | Pause() | Retarget() | Pulse() | Restore() | Revert() | Release():
            return None, None
        case Claim() | Regain():
            return None, None
        case _:
            assert_never(effect)


def _template_after(run: Run, fleet: Fleet, effect: DeploymentMove) -> str:
    step = run.current.step
    match effect:
        case Revert(EditedTemplate(template)):
            return template_hash(template)
        case Freeze() | Retarget() | Revert():
            return step.after_template if fleet.revision == step.before_template else step.before_template
        case Hold() | Pause() | Pulse() | Restore() | Release():
            return fleet.revision
        case ScaleOut() | ScaleIn() | Claim() | Regain():
            return fleet.revision
        case _:
            assert_never(effect)
