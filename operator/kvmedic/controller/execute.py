"""One tick of an open run: where it stands, what comes next, written down before it is done.

After a crash in the middle: an assignment to the target is first an intent in the status; the claim
annotation, set in the same patch, says afterwards whether it was committed. Moves on pods are
recomputed from what is observed, so repeating them changes nothing.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import assert_never

from kvmedic.controller.next_move import (
    Tick,
    leaving_move,
    observe_draining_pods,
    outcome_of_leaving,
    record_intent,
    resting_move,
    unjudged_answer,
    walking_move,
)
from kvmedic.controller.orphans import free_pods
from kvmedic.controller.ports import save
from kvmedic.controller.replica_comparison import compare_replicas
from kvmedic.controller.temporary import (
    copy_first,
    delete_unused_copies,
    find_source_blocker,
    hold_back_move,
    note_changed_source,
    with_files,
)
from kvmedic.controller.trial import (
    NO_QUOTA,
    begin_test,
    delete_trial,
    evaluation_of,
    make_trial,
    next_trial_move,
    remember_failed_trial,
)
from kvmedic.controller.verify import grade_urgency, judge_window
from kvmedic.kube.errors import Refused, WebhookSilent
from kvmedic.model.evidence import Blocked
from kvmedic.model.fleet import Fleet
from kvmedic.model.plan import OnTrial
from kvmedic.model.reasons import Reason
from kvmedic.model.run import Outcome, Run, StepState
from kvmedic.model.status import ConditionType, Resource, Wish
from kvmedic.model.trial import Answer
from kvmedic.record.runs import after_trouble, close_run, report_decision, with_answer, with_score
from kvmedic.rollout.decide import (
    Close,
    Decision,
    Direction,
    Keep,
    Leave,
    Recover,
    Rest,
    Situation,
    TurnBack,
    Walk,
    Watch,
    decide,
    outcome_of,
)
from kvmedic.rollout.drift import Standing, is_foreign, regain_freeze, target_standing
from kvmedic.rollout.gates.opening import forward_gate
from kvmedic.rollout.moves import Failed, MakeCopy, Move, SetMinimum, Settled, Wait
from kvmedic.rollout.owners.field import field_standing
from kvmedic.rollout.trial import Answered, BeginTest, Evaluated, MakeJob, MakeTrial
from kvmedic.runbooks.preemption.restore import temporary_after
from kvmedic.runbooks.workload import View

AT_ONCE = timedelta(0)


async def execute_run(tick: Tick) -> timedelta:
    """Make the next move of the open run; return when to look again."""
    view = await tick.ports.target.look(tick.resource.namespace, tick.policy)
    try:
        view = await _with_objects_of_step(tick, view) if view else None
    except Refused as error:
        return await _report_refusal(tick, error)
    if view is not None:
        tick = replace(tick, cost_so_far=tick.run.count_cost(view.fleet, tick.now))
        tick = await with_files(tick, view.fleet)
    stands = note_changed_source(tick, await _standing_of_target(tick, view))
    blocked = await _find_run_blocker(tick)
    judged = await judge_window(tick, view, stands)
    compared = None
    if blocked is None:
        tick, compared = await compare_replicas(tick, view, stands)
    seen = Situation(stands, tick.resource.wish, blocked, judged, unjudged_answer(tick), compared)
    decision = decide(tick.run, seen)
    if view is None or isinstance(decision, Close):
        outcome = decision.outcome if isinstance(decision, Close) else outcome_of(Reason.TARGET_DELETED)
        return await _close(tick, view, outcome)
    if first := copy_first(tick, decision):
        return await _advance(tick, view, first, Direction.FORWARD)
    return await _carry_out(tick, view, decision)


async def _with_objects_of_step(tick: Tick, view: View) -> View:
    """Return a target with the objects, as they are now, that the step goes through.

    Raises:
        Refused: the right to their kinds was taken away. A person who abandons the run does not need it.
    """
    holder, field = tick.run.current.step.holder, tick.run.current.step.through
    try:
        view = await tick.ports.target.with_minimum(view, holder.object) if holder else view
        return await tick.ports.target.with_owner_object(view, field) if field else view
    except Refused:
        if tick.resource.wish is Wish.ABANDON:
            return view
        raise


async def _standing_of_target(tick: Tick, view: View | None) -> Standing:
    uid, fleet = tick.resource.uid, view.fleet if view else None
    rivalled = fleet is not None and is_foreign(uid, fleet.fence) and await _is_held(tick, fleet)
    stands = field_standing if tick.run.current.step.through else target_standing
    return stands(tick.run, uid, fleet, rivalled=rivalled)


async def _is_held(tick: Tick, fleet: Fleet) -> bool:
    return await tick.ports.store.is_open(tick.resource.namespace, fleet.fence)


async def _find_run_blocker(tick: Tick) -> Blocked | None:
    if tick.problem is not None:
        return tick.problem
    blocked = forward_gate(tick.policy, await tick.ports.stop.read()) or find_source_blocker(tick)
    if blocked is not None or tick.run.intent is not None:
        return blocked
    return await tick.ports.run_limits.recheck_limits(tick.resource.uid, tick.now)


async def _carry_out(tick: Tick, view: View, decision: Decision) -> timedelta:
    run, pace = tick.run, tick.ports.pace
    match decision:
        case Walk(direction):
            return await _walk(tick, view, direction)
        case Rest(reason, message):
            tick = await observe_draining_pods(tick, view.fleet) if view.fleet.orphans else tick
            again = await _act(tick, view, await resting_move(tick, view.fleet), Blocked(reason, message))
            return min(again, pace.verifying) if reason is Reason.COMPARING_REPLICAS else again
        case Watch(reason, message):
            await _save(await grade_urgency(tick, view.fleet), run, reason, message)
            return pace.verifying
        case Keep(judged):
            await _save(tick, run.keep_step(judged), judged.reason, judged.message)
        case TurnBack(outcome, verdict, after):
            tick = _record_oom_share(tick, view)
            await _save(tick, run.turn_step_back(outcome, verdict, after), outcome.reason, outcome.message)
        case Recover():
            found = regain_freeze(run, tick.resource.uid, view.fleet, tick.now)
            blocked = Blocked(found.outcome.reason, found.outcome.message)
            again = await _act(replace(tick, run=found.run), view, found.move, blocked)
            return pace.replica if isinstance(found.move, Wait) else again
        case Leave(outcome) | Close(outcome):
            ends = _leave if isinstance(decision, Leave) else _close
            return await ends(tick, view, outcome)
        case _:
            assert_never(decision)
    return AT_ONCE


async def _walk(tick: Tick, view: View, direction: Direction) -> timedelta:
    step = tick.run.current.step
    if direction is Direction.FORWARD and isinstance(step, OnTrial):
        return await _ask(tick, view, step)
    tick = await observe_draining_pods(tick, view.fleet)
    move = await walking_move(tick, view.fleet, direction)
    if direction is Direction.BACK:
        move = await hold_back_move(tick, view.fleet, move)
    return await _advance(tick, view, move, direction)


async def _advance(tick: Tick, view: View, move: Move | MakeCopy, direction: Direction) -> timedelta:
    """Carry a move out, or write down what it means for the run."""
    run = tick.run
    match move:
        case Settled() if direction is Direction.FORWARD:
            await _save(tick, run.open_verification(tick.now), Reason.VERIFYING, Reason.VERIFYING.sentence)
        case Settled():
            ending = run.ending or outcome_of(Reason.NOT_RECOVERED)
            await _save(tick, run.end_reverted(), ending.reason, ending.message)
        case Failed(reason, message) if direction is Direction.FORWARD:
            tick = _record_oom_share(tick, view)
            await _save(tick, run.turn_step_back(Outcome(reason, message), None), reason, message)
        case Blocked(reason, message) if run.intent is None:
            return await _close(tick, view, Outcome(reason, message))
        case Failed(Reason.REVISION_GONE as reason, message):
            # There is no way back any more: what the fleet has now is the best that there is.
            return await _leave(tick, view, Outcome(reason, message))
        case MakeCopy():
            return await _copy(tick, view, move)
        case _:
            return await _act(tick, view, move, None)
    return AT_ONCE


async def _ask(tick: Tick, view: View, step: OnTrial) -> timedelta:
    """Make the next move of a trial or an evaluation, or write down what it showed; then the run ends."""
    ports, move = tick.ports, await next_trial_move(tick, step)
    match move:
        case MakeTrial() | BeginTest() | MakeJob() if not ports.leader.is_held():
            return ports.pace.controller
        case BeginTest(pod, asked):
            begin_test(tick, view, asked, pod)
            return AT_ONCE
        case MakeTrial() | MakeJob():
            return await _make_trial(tick, view, step, move)
        case Answered() | Evaluated():
            return await _record_answer(tick, move)
        case Wait():
            return await _advance(tick, view, move, Direction.FORWARD)
        case Failed():
            return await _advance(remember_failed_trial(tick, step, move), view, move, Direction.FORWARD)


async def _make_trial(tick: Tick, view: View, step: OnTrial, move: MakeTrial | MakeJob) -> timedelta:
    """Make the trial pod or its Job; where it cannot be made, the run ends."""
    if isinstance(move, MakeTrial):
        why = await make_trial(tick, view, step)
    else:
        why = await tick.ports.evaluations.make(evaluation_of(tick, move.step), move.subject)
    if not why:
        return AT_ONCE
    reason = Reason.SPARE_UNSCHEDULABLE if NO_QUOTA in why else Reason.TRIAL_IMPOSSIBLE
    failed = Failed(reason, f"the trial pod or its Job cannot be made: {why}")
    return await _advance(remember_failed_trial(tick, step, failed), view, failed, Direction.FORWARD)


async def _record_answer(tick: Tick, move: Answered | Evaluated) -> timedelta:
    found = move.answer if isinstance(move, Answered) else move.result
    noted = with_answer(tick.record, found) if isinstance(found, Answer) else with_score(tick.record, found)
    showed = found.is_conclusive or found.refused
    reason = Reason.TRIAL_ANSWERED if showed else Reason.TRIAL_UNANSWERED
    run = tick.run.end_answered(Outcome(reason, found.message))
    await _save(replace(tick, record=noted), run, reason, found.message)
    return AT_ONCE


async def _copy(tick: Tick, view: View, move: MakeCopy) -> timedelta:
    """Make the copy that the run's record names; where it cannot be made the run ends, or turns back."""
    if not tick.ports.leader.is_held():
        return tick.ports.pace.controller
    why = await tick.ports.copies.make(view.fleet, move.file)
    if not why:
        return AT_ONCE
    outcome = Outcome(Reason.CONFIG_MAP_UNAVAILABLE, f"ConfigMap {move.file.copy} cannot be made: {why}")
    if tick.run.intent is None:
        return await _close(tick, view, outcome)
    await _save(tick, tick.run.turn_step_back(outcome, None), outcome.reason, outcome.message)
    return AT_ONCE


async def _act(tick: Tick, view: View, move: Move, blocked: Blocked | None) -> timedelta:
    """Write the intent down, then carry the effect out; or write what is waited for."""
    pace = tick.ports.pace
    match move:
        case Wait(reason, message) | Failed(reason, message) | Blocked(reason, message):
            shown = blocked or Blocked(reason, message)
            hurried = reason is Reason.AWAITING_CONTROLLER
            graded = tick if hurried else await grade_urgency(tick, view.fleet)
            await _save(graded, tick.run, shown.reason, shown.message)
            if blocked is not None:
                return pace.idle
            return pace.controller if hurried else pace.replica
        case Settled():
            return AT_ONCE
        case _:
            run = record_intent(tick, view.fleet, move)
            back = run.current.state is StepState.ROLLING_BACK
            doing = Blocked(Reason.ROLLING_BACK if back else Reason.ROLLING_OUT, "")
            last = tick.record.condition(ConditionType.PROGRESSING)
            if last is not None and last.reason is Reason.CHANGE_REFUSED:
                # What the last write met, this one may meet too.
                doing = Blocked(last.reason, last.message)
                blocked = None
            shown = blocked or doing
            resource = await _save(tick, run, shown.reason, shown.message)
            if not tick.ports.leader.is_held():
                return pace.controller
            number = move.number if isinstance(move, SetMinimum) else run.sequence
            try:
                await tick.ports.target.apply(view.fleet, move, run.claim(resource.uid, number))
            except Refused as error:
                return await _report_refusal(replace(tick, resource=resource, run=run), error)
            except WebhookSilent as error:
                await _report_refusal(replace(tick, resource=resource, run=run), error)
                raise  # most come back within seconds: back-offs find that sooner than the next idle look
            return pace.controller


async def _report_refusal(tick: Tick, error: Refused | WebhookSilent) -> timedelta:
    """Say whose no it is: a person has to allow the write, and the run goes on then."""
    until = "it answers" if isinstance(error, WebhookSilent) else "this is allowed"
    text = f"{error}; the fleet stands as it is, and the run goes on by itself once {until}"
    tick = replace(tick, record=tick.resource.record or tick.record)
    await _save(tick, tick.run, Reason.CHANGE_REFUSED, text)
    return tick.ports.pace.idle


def _record_oom_share(tick: Tick, view: View) -> Tick:
    return replace(tick, record=after_trouble(tick.record, tick.run, view.fleet, view.template, tick.now))


async def _leave(tick: Tick, view: View, outcome: Outcome) -> timedelta:
    """Put back what is ours and leave the template alone; close once nothing of ours is left."""
    if tick.run.current.state is not StepState.LEFT:
        outcome = outcome_of_leaving(tick.run, view, outcome)
        await _save(tick, tick.run.leave_target(outcome), outcome.reason, outcome.message)
        return AT_ONCE
    tick = await observe_draining_pods(tick, view.fleet)
    move = await leaving_move(tick, view)
    if isinstance(move, Settled):
        return await _close(tick, view, outcome)
    blocked = None if isinstance(move, Wait) else Blocked(outcome.reason, outcome.message)
    return await _act(tick, view, move, blocked)


async def _close(tick: Tick, view: View | None, outcome: Outcome) -> timedelta:
    """Take the claim off the target, then close the run; the finalizer goes on the next tick.

    A trial pod is gone before that, and a replica that was tested in its place is back in rotation.

    Dying between the two is harmless: the run's end is already in its record, and a claim that is
    gone is not looked for again. A process that does not lead leaves both to the one who does.
    """
    if not tick.ports.leader.is_held() or not await delete_trial(tick):
        return tick.ports.pace.controller
    run = replace(tick.run, cost_so_far=tick.cost_so_far or tick.run.cost_so_far)
    if run.ending is None and run.intent is not None:
        run = replace(run, ending=outcome)
    if outcome.reason is not Reason.FENCE_LOST:
        await free_pods(tick.ports, tick.resource.namespace, run.target_uid)
        await _unclaim(tick, view.fleet if view is not None else None)
    tick.ports.watch.forget(tick.resource.uid)
    fleet = view.fleet if view is not None else None
    record = await delete_unused_copies(tick.record, run, fleet, tick.ports)
    done = close_run(record, run, outcome, tick.resource.generation, tick.now)
    done = replace(done, temporary=temporary_after(tick.record.temporary, run, fleet, outcome, tick.now))
    await save(tick.resource, done, tick.ports)
    return AT_ONCE


async def _unclaim(tick: Tick, fleet: Fleet | None) -> None:
    """Remove the claim, unless it is one of another run that is open.

    `kubectl rollout undo` may have brought one of long ago back. Another Deployment that took the target's
    place frozen, with its notes, is given back by these.
    """
    if fleet is None or (fleet.uid != tick.run.target_uid and fleet.fields.is_frozen):
        return
    if not is_foreign(tick.resource.uid, fleet.fence) or not await _is_held(tick, fleet):
        await tick.ports.target.unclaim(fleet)


def _has_other_cost(tick: Tick, reason: Reason) -> bool:
    """Return whether another number of spares is there than was written down last.

    Time that merely goes by is not worth a write; nor is anything while a controller acts.
    """
    if tick.cost_so_far is None or reason is Reason.AWAITING_CONTROLLER:
        return False
    return tick.cost_so_far.above != (tick.run.cost_so_far.above if tick.run.cost_so_far else 0)


async def _save(tick: Tick, run: Run, reason: Reason, message: str) -> Resource:
    record = replace(tick.record, run=run, urgency=tick.urgency or tick.record.urgency)
    decision = Outcome(reason, message)
    after = report_decision(record, decision, tick.resource.generation, tick.now, tick.problem)
    if after == tick.record and not _has_other_cost(tick, reason):
        return tick.resource
    after = replace(after, run=replace(run, cost_so_far=tick.cost_so_far or run.cost_so_far))
    return await save(tick.resource, after, tick.ports)
