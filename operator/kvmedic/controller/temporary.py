"""Temporary changes from look to look: noted, and forgotten where they are somebody else's now.

Shares of the devices' memory that were too much, as surveys and runs come upon them.

What becomes of the copy of a ConfigMap in one tick of a run, and after it.

The copy is named in the run's record before it is made, so a process that reads the record after a crash
knows of it. It is removed only once nothing refers to it: a ReplicaSet that is kept for
`kubectl rollout undo` would give replicas that cannot start.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from kvmedic.controller.evidence import Survey, engine_of
from kvmedic.controller.next_move import Tick, resting_move
from kvmedic.controller.ports import Ports, Target
from kvmedic.model.evidence import Blocked, Inconclusive
from kvmedic.model.fleet import Fleet
from kvmedic.model.plan import ReplicasStep
from kvmedic.model.reasons import Reason
from kvmedic.model.run import Run, StepState
from kvmedic.model.spec import Policy
from kvmedic.model.status import ConfigCopy, Record, TemporaryChange
from kvmedic.record.runs import with_oom_share
from kvmedic.record.surveys import REFRESH
from kvmedic.rollout.config_copy import (
    SourceState,
    await_config_map,
    copying_move,
    find_copy_blocker,
    needs_source,
)
from kvmedic.rollout.decide import Decision, Direction, Walk, Watch
from kvmedic.rollout.drift import Standing
from kvmedic.rollout.moves import Failed, MakeCopy, Move, Wait
from kvmedic.runbooks.branches import Diagnosed
from kvmedic.runbooks.preemption.memory_levers import memory_share
from kvmedic.runbooks.preemption.restore import SetValue, restore_after, state_of, with_calm, with_outlook
from kvmedic.runbooks.workload import View, Workload


def note_temporary(record: Record, found: Survey, policy: Policy, now: datetime) -> Record:
    """Return the record with what a look says of the temporary changes; without those that are not ours now.

    The same number or value set by somebody else in between is not distinguished, and counts as ours. What
    nobody can read now stays, and was not calm. The newest outlook is of what is restored first.
    """
    if not record.temporary:
        return record
    calm = isinstance(found.diagnosis, Diagnosed) and found.diagnosis.reason is Reason.HEALTHY
    workload, outlook, kept = engine_of(found.view, policy), found.outlook, []
    for each in record.temporary:
        state = state_of(each, found.view.fleet, workload)
        if state is not SetValue.CHANGED:
            since = now if calm and state is SetValue.UNCHANGED else None
            kept.append(with_outlook(with_calm(each, since), outlook, now, REFRESH))
            outlook = "" if each.adds_replicas else outlook
    return replace(record, temporary=tuple(kept))


async def with_holder(view: View, held: TemporaryChange | None, target: Target) -> View:
    """Return the target with the autoscaler's minimum that was raised for it, where one was."""
    if held is None or not isinstance(held.step, ReplicasStep) or held.step.holder is None:
        return view
    return await target.with_minimum(view, held.step.holder.object)


def why_not_restored(record: Record, policy: Policy) -> Blocked | None:
    """Return why a temporary change is still there; None where there is none."""
    for held in record.temporary:
        minutes = restore_after(held, policy).total_seconds() / 60
        what = "fewer" if held.adds_replicas else "the fleet without it"
        text = (
            f"{held.line()}; restored after {minutes:.0f} minutes of calm, once {what} is predicted to carry "
            "the load (status.temporary)"
        )
        return Blocked(Reason.TEMPORARY_CHANGE_HELD, text)
    return None


def with_known_limit(record: Record, found: Survey, policy: Policy, now: datetime) -> Record:
    """Return the record with the share at which a replica ran out of its GPU's memory, where one just did.

    Written down with the diagnosis, in every mode: a share that people lower is not raised to there again.
    """
    if isinstance(found.diagnosis, Inconclusive) or found.diagnosis.reason is not Reason.CUDA_OUT_OF_MEMORY:
        return record
    workload = found.engine(policy)
    share = memory_share(workload) if isinstance(workload, Workload) else None
    if share is None or share.ratio is None or share.fixed_by or share.unread:
        return record
    return with_oom_share(record, share.ratio, found.view.template, now)


FORWARD = frozenset({StepState.PENDING, StepState.ROLLING_OUT, StepState.VERIFYING})
"""States in which the change is desired."""


async def with_files(tick: Tick, fleet: Fleet) -> Tick:
    """Return the tick with how the step's ConfigMap and its copy stand; as it is where the step has none."""
    file = tick.run.current.step.file_of
    return tick if file is None else replace(tick, files=await tick.ports.copies.stand(fleet, file))


def note_changed_source(tick: Tick, stands: Standing) -> Standing:
    """Return how the target stands to the record, where somebody may have changed the ConfigMap."""
    changed = tick.files is not None and tick.files.source is SourceState.CHANGED
    forward = tick.run.current.state in FORWARD
    return Standing.SOURCE_CHANGED if changed and forward and stands is Standing.AS_RECORDED else stands


def find_source_blocker(tick: Tick) -> Blocked | None:
    """Return why nothing can be built on the ConfigMap now; None where there is none, or it is as planned."""
    file = tick.run.current.step.file_of
    text = find_copy_blocker(file, tick.files) if file and tick.files else ""
    return Blocked(Reason.CONFIG_MAP_UNAVAILABLE, text) if text else None


def copy_first(tick: Tick, decision: Decision) -> MakeCopy | Failed | Blocked | None:
    """Return what has to happen to the copy before a decision is carried out; None: nothing."""
    file = tick.run.current.step.file_of
    forward = isinstance(decision, Watch) or decision == Walk(Direction.FORWARD)
    if file is None or tick.files is None or not forward:
        return None
    return copying_move(file, tick.files, begun=tick.run.intent is not None)


async def hold_back_move(tick: Tick, fleet: Fleet, move: Move) -> Move:
    """Return a move of the way back, or what keeps replicas serving where there is nothing to go back to."""
    file = tick.run.current.step.file_of
    if file is None or tick.files is None or tick.files.source is not SourceState.GONE:
        return move
    if not needs_source(move):
        return move
    rest = await resting_move(tick, fleet)
    return await_config_map(file, tick.files) if isinstance(rest, Wait) else rest


async def delete_unused_copies(record: Record, run: Run | None, fleet: Fleet | None, ports: Ports) -> Record:
    """Return the record without those copies that nothing refers to any more; they are removed.

    Args:
        record: with the copies of closed runs.
        run: that is being closed, with what it may have made; None: no run is open.
        fleet: the target; None: it is gone, and its copies go with it.
        ports: the world.
    """
    steps = (each.step for each in run.steps) if run else ()
    made = (ConfigCopy(file.copy, s.after_template) for s in steps if (file := s.file_of))
    copies = tuple(dict.fromkeys((*record.copies, *made)))
    if copies and fleet is not None and ports.leader.is_held():
        copies = await ports.copies.delete_unused(fleet, copies)
    return record if copies == record.copies else replace(record, copies=copies)
