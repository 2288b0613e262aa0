"""Which move comes next for the step of an open run, and what has to be asked of replicas for it.

The moves themselves are pure (`rollout/template.py`, `rollout/replacement.py`); here the kind of step decides
which of them is asked, and what they need to know beside the fleet is gathered: whether the replica
that is being drained is idle, and whether a new one answers.

What an open run writes down before an effect: which pod it takes, or what it assigns to the Deployment.

Nothing is changed here. Moves on pods are recomputed from what is observed; an assignment has a number,
by which the claim on the target tells afterwards whether it was committed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import assert_never

from kvmedic.controller.ports import Ports
from kvmedic.model.config_edits import EditedTemplate
from kvmedic.model.edits import BundleStep
from kvmedic.model.evidence import Absence, Blocked, Measured, Missing, Reading
from kvmedic.model.fleet import Fleet, Pod, RolloutFields, template_hash
from kvmedic.model.plan import (
    FlagStep,
    Goal,
    ReplaceStep,
    ReplicasStep,
    RevisionStep,
)
from kvmedic.model.reasons import Reason
from kvmedic.model.run import Intent, Outcome, Run, Spending, StepState, TimedOut, Victim
from kvmedic.model.spec import OnDrainTimeout, OnInconclusive, Policy, answer_to_no_verdict
from kvmedic.model.status import Record, Resource, Urgency
from kvmedic.model.trial import GateStep, TrialStep
from kvmedic.rollout.config_copy import Files
from kvmedic.rollout.decide import Direction
from kvmedic.rollout.draining import Drain, StartLimits, canary_pool_move, holding_move, start_limit
from kvmedic.rollout.drift import claimed_sequence, committed_sequence, is_kept
from kvmedic.rollout.edited_template import without_our_change
from kvmedic.rollout.moves import (
    Claim,
    Cordon,
    DeletePod,
    DeploymentMove,
    Effect,
    Freeze,
    Hold,
    Move,
    Pause,
    Pulse,
    Regain,
    Retarget,
    Revert,
    ScaleIn,
    ScaleOut,
    SetMinimum,
    Settled,
    Uncordon,
)
from kvmedic.rollout.replacement import (
    Replacement,
    leave_replacement,
    replacing_move,
    rest_replacement,
    scaled_by,
    spare_of,
)
from kvmedic.rollout.scaling import (
    Autoscaling,
    Scaling,
    autoscaling_move,
    is_explained,
    leave_autoscaling,
    leave_scaling,
    rest_scaling,
    scaling_move,
)
from kvmedic.rollout.template import Order, next_template_move, recalling_move, releasing_move, rest_template
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
    spending: Spending | None = None
    """What the run has cost as of this look; None: as it was."""
    files: Files | None = None
    """The ConfigMap of a step that copies one, and the copy; None: the step copies none."""


def elapsed_time(tick: Tick, *what: Hashable) -> timedelta:
    """Return how long this process has seen something that the run waits for."""
    return tick.ports.watch.elapsed(tick.resource.uid, tick.run.id, *what)


def watch_readiness(tick: Tick, pod: Pod) -> Pod:
    """Return a pod with how long it has been seen not Ready; one that is Ready as it is."""
    if pod.ready:
        return pod
    return replace(pod, unready_for=elapsed_time(tick, "unready", pod.uid, pod.unready_at))


def as_watched(tick: Tick) -> Run:
    """Return the run as if it had begun when this process first saw it: its limits count from then."""
    return replace(tick.run, started_at=tick.now - elapsed_time(tick, "run"))


def _watched_fleet(tick: Tick, fleet: Fleet) -> Fleet:
    stuck = {one.uid: one.listed_by for one in tick.run.timed_out}
    pods = (replace(watch_readiness(tick, pod), stuck_in=stuck.get(pod.uid, ())) for pod in fleet.pods)
    return replace(fleet, pods=tuple(pods))


async def walking_move(tick: Tick, fleet: Fleet, direction: Direction) -> Move:
    """Return the next move of the step under way, forward or back."""
    fleet = _watched_fleet(tick, fleet)
    step, drain = tick.run.current.step, await drain_of(tick, fleet)
    way = step if direction is Direction.FORWARD else step.inverse()
    match way:
        case BundleStep() | FlagStep():
            order = _order(tick, fleet, way, drain)
            move = next_template_move(fleet, order, tick.now)
            canaries = _canaries(fleet, order)
        case RevisionStep():
            order = _order(tick, fleet, way, drain)
            move = recalling_move(fleet, order, way.after, tick.now)
            canaries = _canaries(fleet, order)
        case ReplaceStep():
            move = replacing_move(fleet, _replacement(tick, fleet, way, drain), tick.now)
            spare = spare_of(fleet, way)
            canaries = (spare,) if spare else ()
        case ReplicasStep(holder=None):
            scaled = replace(_scaling_order(tick, fleet, way, drain), begins=_begins(tick, fleet, direction))
            return scaling_move(fleet, scaled, tick.now)
        case ReplicasStep():
            asked = replace(_autoscaling_order(tick, fleet, way), begins=_begins(tick, fleet, direction))
            return autoscaling_move(fleet, asked, tick.now)
        case TrialStep() | GateStep():
            return Settled()
        case _:
            assert_never(way)
    if direction is Direction.FORWARD and isinstance(move, Cordon):
        return await _refused_canary(tick, fleet, canaries) or move
    return move


async def leaving_move(tick: Tick, view: View) -> Move:
    """Return the next move toward a fleet without anything of ours, whoever changed it meanwhile."""
    step, fleet = tick.run.current.step, _watched_fleet(tick, view.fleet)
    match step:
        case BundleStep() | FlagStep() | RevisionStep():
            return releasing_move(fleet, tick.run.recorded, _without_ours(tick.run, view))
        case ReplaceStep():
            order = _replacement(tick, fleet, step, await drain_of(tick, fleet))
            return leave_replacement(fleet, order, tick.now)
        case ReplicasStep(holder=None):
            scaled = _scaling_order(tick, fleet, step, await drain_of(tick, fleet))
            return leave_scaling(fleet, scaled, tick.now)
        case ReplicasStep():
            return leave_autoscaling(fleet, _autoscaling_order(tick, fleet, step))
        case TrialStep() | GateStep():
            return Settled()
        case _:
            assert_never(step)


def left_as(run: Run, view: View, outcome: Outcome) -> Outcome:
    """Return the end of a run that leaves its target; it says so where the run's change is taken out."""
    if _without_ours(run.left(outcome), view) is None:
        return outcome
    text = (
        f"someone else changed the pod template in the middle of the run: what the run had changed "
        f"({run.current.step.line()}) was taken out of it again, and their change rolls out by the "
        "Deployment's own strategy"
    )
    return replace(outcome, message=text)


def _without_ours(run: Run, view: View) -> Mapping[str, object] | None:
    """Return the template that somebody edited, without the run's change; None: nothing is to go."""
    if run.ending is None or run.ending.reason is not Reason.FLAG_DRIFTED:
        return None
    return without_our_change(run.current.step, view.fleet, view.template, view.templates)


def resting_move(tick: Tick, fleet: Fleet) -> Move:
    """Return the next move toward a fleet that stands still with every replica in rotation."""
    step = tick.run.current.step
    match step:
        case BundleStep() | FlagStep() | RevisionStep():
            return rest_template(fleet, tick.now, _assigned_at(tick))
        case ReplaceStep():
            return rest_replacement(fleet, _replacement(tick, fleet, step, Drain.UNKNOWN))
        case ReplicasStep():
            return holding_move(fleet) if step.holder else rest_scaling(fleet)
        case TrialStep() | GateStep():
            return Settled()
        case _:
            assert_never(step)


def observed_victim(tick: Tick, fleet: Fleet) -> Tick:
    """Return the tick with the moment at which the victim was first seen out of rotation."""
    victim = tick.run.victim
    if victim is None or victim.out_at is not None:
        return tick
    pod = _pod(fleet, victim)
    if pod is None or pod.in_rotation or not pod.cordoned:
        return tick
    return replace(tick, run=replace(tick.run, victim=replace(victim, out_at=tick.now)))


def _canaries(fleet: Fleet, order: Order) -> tuple[Pod, ...]:
    """Return the new replicas while every old one is still there."""
    swapped = fleet.desired(order.away) < fleet.replicas
    return () if swapped else fleet.serving(order.toward)


def _order(tick: Tick, fleet: Fleet, step: FlagStep | BundleStep | RevisionStep, drain: Drain) -> Order:
    run, limits = tick.run, start_limits(tick, fleet.pods)
    return Order(
        away=step.before_template,
        toward=step.after_template,
        edit=step.swap if isinstance(step, RevisionStep) else step.edit,
        recorded=run.recorded,
        victim=run.victim,
        drain=drain,
        start_limit=limits.start,
        spare_limit=limits.spare,
        pulsed_at=_assigned_at(tick),
        held=_pods_held_back(tick),
        repairs=step is not run.current.step,
        mends=run.goal is Goal.STEADINESS,
        served_before=run.in_rotation,
        down_before=_down_before(run),
    )


def _down_before(run: Run) -> int:
    """Return how many replicas took no requests before a run that began all the same."""
    return max(0, run.replicas - run.in_rotation)


def _replacement(tick: Tick, fleet: Fleet, step: ReplaceStep, drain: Drain) -> Replacement:
    return Replacement(
        step=step,
        scaled=scaled_by(tick.run, step, tick.resource.uid, fleet),
        victim=tick.run.victim,
        drain=drain,
        limits=start_limits(tick, fleet.pods),
        drain_limit=tick.policy.rollout.drain_timeout,
        assigned_at=_assigned_at(tick),
        held=_pods_held_back(tick),
        down_before=_down_before(tick.run),
    )


def _autoscaling_order(tick: Tick, fleet: Fleet, step: ReplicasStep) -> Autoscaling:
    return Autoscaling(
        step=step,
        replicas=tick.run.replicas,
        limits=start_limits(tick, fleet.pods),
        is_ours=not _is_abandoned(tick.run) and is_kept(tick.run, tick.resource.uid, fleet),
        assigned_at=_assigned_at(tick),
        down_before=_down_before(tick.run),
    )


def _begins(tick: Tick, fleet: Fleet, direction: Direction) -> bool:
    """Return whether a step goes forward and nothing of its run was committed yet."""
    committed = committed_sequence(tick.run, tick.resource.uid, fleet.fence)
    return direction is Direction.FORWARD and not committed


def _is_abandoned(run: Run) -> bool:
    return run.ending is not None and run.ending.reason is Reason.ABANDONED


def _scaling_order(tick: Tick, fleet: Fleet, step: ReplicasStep, drain: Drain) -> Scaling:
    run = tick.run
    begun = run.current.step
    explained = isinstance(begun, ReplicasStep) and is_explained(run, begun, tick.resource.uid, fleet)
    return Scaling(
        step=step,
        victim=run.victim,
        drain=drain,
        limits=start_limits(tick, fleet.pods),
        is_ours=explained and not _is_abandoned(run),
        assigned_at=_assigned_at(tick),
        held=_pods_held_back(tick),
        down_before=_down_before(run),
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
    return StartLimits(start, tick.ports.pace.spare_limit)


def _assigned_at(tick: Tick) -> datetime | None:
    """Return when the last assignment was intended, by the time that this process has known of it."""
    intent = tick.run.intent
    return tick.now - elapsed_time(tick, "assigned", intent.sequence, intent.at) if intent else None


def _pods_held_back(tick: Tick) -> frozenset[str]:
    """Return the replicas whose drain timed out and that are not to be taken again yet.

    Where the spec lets replicas go all the same, they are those that no Service let go of.
    """
    rollout = tick.policy.rollout
    goes = rollout.on_drain_timeout is OnDrainTimeout.PROCEED
    late = (one for one in tick.run.timed_out if one.after >= rollout.drain_timeout)
    return frozenset(one.uid for one in late if one.listed_by or not goes)


async def drain_of(tick: Tick, fleet: Fleet) -> Drain:
    """Return what is known of the requests on the victim.

    What nobody knows is waited for like requests. After the time-out a replica that is down goes; any other
    one only where the spec says so.
    """
    victim = tick.run.victim
    pod = _pod(fleet, victim) if victim else None
    if victim is None or pod is None:
        return Drain.UNKNOWN
    rollout = tick.policy.rollout
    late = elapsed_time(tick, "cordoned", victim.uid, victim.cordoned_at) > rollout.drain_timeout
    found = Drain.UNKNOWN
    if victim.out_at is not None:
        found = await _requests_on(tick, pod, elapsed_time(tick, "out", victim.uid, victim.out_at))
    if not late or (found in (Drain.IDLE, Drain.DOWN) and not pod.in_rotation):
        return found
    goes = pod.is_unreached or rollout.on_drain_timeout is OnDrainTimeout.PROCEED
    return Drain.TIMED_OUT if goes else Drain.HELD


async def _requests_on(tick: Tick, pod: Pod, out: timedelta) -> Drain:
    """Return what the replica itself says of its requests; `out`: for how long it has been out of rotation.

    Two counts of zero are needed, both some seconds after it left rotation: clients with an open
    connection may send once more.
    """
    pace = tick.ports.pace
    if pod.is_unreached:
        return await _requests_on_unreached(tick, pod)
    if out < pace.drain_quiet:
        return Drain.BUSY
    first = await _requests_in_flight(tick, pod)
    if not _is_zero(first):
        return Drain.BUSY if isinstance(first, Measured) else Drain.UNKNOWN
    await asyncio.sleep(pace.drain_interval.total_seconds())
    second = await _requests_in_flight(tick, pod)
    if _is_zero(second):
        return Drain.IDLE
    return Drain.BUSY if isinstance(second, Measured) else Drain.UNKNOWN


async def _requests_on_unreached(tick: Tick, pod: Pod) -> Drain:
    """Return what is known of the requests on a replica to which no Service has led any.

    Where nobody answers there are none; one look finds those who go past the Services.
    """
    found = await _requests_in_flight(tick, pod)
    if isinstance(found, Measured):
        return Drain.BUSY if found.value > 0 else Drain.DOWN
    silent = isinstance(found, Missing) and found.reason is Absence.SOURCE_UNAVAILABLE
    return Drain.DOWN if silent else Drain.UNKNOWN


async def _requests_in_flight(tick: Tick, pod: Pod) -> Reading[float]:
    return await tick.ports.metrics.in_flight(tick.policy.source, tick.resource.namespace, pod)


def _is_zero(reading: Reading[float]) -> bool:
    return isinstance(reading, Measured) and reading.value == 0


def _pod(fleet: Fleet, victim: Victim) -> Pod | None:
    return next((p for p in fleet.pods if p.uid == victim.uid and not p.terminating), None)


async def _refused_canary(tick: Tick, fleet: Fleet, canaries: tuple[Pod, ...]) -> Move | None:
    """Return what speaks against the new replicas before the first old one is touched, or None."""
    limits = start_limits(tick, fleet.pods)
    for pod in canaries:
        if pod.ready:
            pool = await tick.ports.metrics.pool(tick.resource.namespace, pod)
            known = replace(pod, created_at=tick.now - elapsed_time(tick, "canary", pod.uid))
            if refused := canary_pool_move(known, pool, _least_blocks(tick.run), limits, tick.now):
                return refused
    return None


def _least_blocks(run: Run) -> int:
    """Return the KV-cache blocks that the canary is compared with; 0: none.

    A change for steadiness gives memory away on purpose: the pool is smaller then. Another revision's
    image or types may well make another pool, and so may a cache without compression.
    """
    other_pool = isinstance(run.current.step, BundleStep | RevisionStep)
    same_engine = run.goal is not Goal.STEADINESS and not other_pool
    return run.blocks or 0 if same_engine else 0


def record_intent(tick: Tick, fleet: Fleet, effect: Effect) -> Run:
    """Return the run with the effect written down."""
    run = tick.run
    match effect:
        case Cordon(pod):
            known = run.victim is not None and run.victim.uid == pod.uid
            return run if known else replace(run, victim=Victim(pod.name, pod.uid, tick.now))
        case Uncordon(pod, timed_out):
            return _put_back(run, pod, tick.policy.rollout.drain_timeout if timed_out else None)
        case DeletePod() | SetMinimum():
            return run
        case _:
            return _record_assignment(tick, fleet, effect)


def _put_back(run: Run, pod: Pod, after: timedelta | None) -> Run:
    """Return the run with a replica back in rotation; `after`: the time-out that its drain came to, if any.

    Whoever dies before it is back finds it cordoned and not named: then it is put back as any stray one.
    """
    if after is not None:
        others = tuple(one for one in run.timed_out if one.uid != pod.uid)
        run = replace(run, timed_out=(*others, TimedOut(pod.name, pod.uid, after, pod.listed_by)))
    same = run.victim is not None and run.victim.uid == pod.uid
    return replace(run, victim=None) if same else run


def _record_assignment(tick: Tick, fleet: Fleet, effect: DeploymentMove) -> Run:
    """Return the run with an assignment to the Deployment written down.

    An assignment that was written down and never committed gives its number to the next one, so the
    claim and the record can never be more than one apart.
    """
    run = tick.run
    if run.current.state is StepState.PENDING:
        run = run.with_step(replace(run.current, state=StepState.ROLLING_OUT))
    if isinstance(effect, Freeze | Hold):
        run = replace(run, recorded=fleet.fields)
    if isinstance(effect, Pulse | ScaleIn | Retarget):
        # One goes: whoever was put back before gets another try.
        run = replace(run, timed_out=())
    uid = tick.resource.uid
    committed = committed_sequence(run, uid, fleet.fence)
    before, after = _fields(fleet, effect)
    fewest, most = _numbers(run, fleet, effect)
    intent = Intent(
        sequence=(claimed_sequence(run, uid, fleet.fence) if committed is None else committed) + 1,
        move=type(effect).__name__,
        template_before=fleet.revision,
        template_after=_template_after(run, fleet, effect),
        is_frozen=_freezes(effect, after),
        at=tick.now,
        was_frozen=before.is_frozen,
        replicas_before=fewest,
        replicas_after=most,
        fields_before=before,
        fields_after=after,
    )
    return replace(run, intent=intent)


def _freezes(effect: DeploymentMove, after: RolloutFields) -> bool:
    """Return whether an assignment leaves the rollout frozen."""
    if isinstance(effect, Regain):
        return after.is_frozen
    return isinstance(effect, Freeze | Hold | Retarget | Pause | Pulse)


def _fields(fleet: Fleet, effect: DeploymentMove) -> tuple[RolloutFields, RolloutFields]:
    """Return the rollout's fields before and after an assignment.

    What is regained was frozen before as well: until that is committed the target is not as it should be.
    """
    match effect:
        case Regain(fields=fields):
            wanted = fields or fleet.fields
            return wanted, wanted
        case ScaleOut() | ScaleIn() | Claim():
            return fleet.fields, fleet.fields
        case _:
            return fleet.fields, effect.fields


def _numbers(run: Run, fleet: Fleet, effect: DeploymentMove) -> tuple[int | None, int | None]:
    """Return the numbers of replicas before and after an assignment; None where it does not matter."""
    match effect:
        case ScaleOut(before, after) | ScaleIn(before, after):
            return before, after
        case Regain() if run.intent is not None and run.intent.replicas_after is not None:
            return fleet.replicas, fleet.replicas
        case _:
            return None, None


def _template_after(run: Run, fleet: Fleet, effect: DeploymentMove) -> str:
    """Return the hash of the pod template after an assignment."""
    step = run.current.step
    match effect:
        case Revert(EditedTemplate(template)):
            return template_hash(template)
        case Freeze() | Retarget() | Revert():
            return step.after_template if fleet.revision == step.before_template else step.before_template
        case _:
            return fleet.revision
