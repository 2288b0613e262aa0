"""What becomes of the copy of a ConfigMap in one tick of a run, and after it.

The copy is named in the run's record before it is made, so whoever reads the record after a crash
knows of it. It is removed only once nothing refers to it: a ReplicaSet that is kept for
`kubectl rollout undo` would give replicas that cannot start.
"""

from __future__ import annotations

from dataclasses import replace

from kvmedic.core.copying import SourceState, awaited, copying_move, hindrance, needs_source
from kvmedic.core.decide import Decision, Direction, Walk, Watch
from kvmedic.core.fleet import Fleet
from kvmedic.core.gates import Blocked
from kvmedic.core.moves import Failed, MakeCopy, Move, Refused, Wait
from kvmedic.core.plan import ConfigStep
from kvmedic.core.reasons import Reason
from kvmedic.core.record import ConfigCopy, Record
from kvmedic.core.run import Run, StepState
from kvmedic.core.standing import Standing
from kvmedic.ports import Ports
from kvmedic.walks import Tick, resting_move

FORWARD = frozenset({StepState.PENDING, StepState.ROLLING_OUT, StepState.VERIFYING})
"""States in which the change is what is wanted."""


async def with_files(tick: Tick, fleet: Fleet) -> Tick:
    """Return the tick with how the step's ConfigMap and its copy stand; as it is where the step has none."""
    step = tick.run.current.step
    if not isinstance(step, ConfigStep):
        return tick
    return replace(tick, files=await tick.ports.copies.stand(fleet, step.file))


def overtaken(tick: Tick, stands: Standing) -> Standing:
    """Return how the target stands to the record, where somebody may have changed the ConfigMap."""
    changed = tick.files is not None and tick.files.source is SourceState.CHANGED
    forward = tick.run.current.state in FORWARD
    return Standing.SOURCE_CHANGED if changed and forward and stands is Standing.AS_RECORDED else stands


def unavailable(tick: Tick) -> Blocked | None:
    """Return why nothing can be built on the ConfigMap now; None where there is none, or it is as planned."""
    step = tick.run.current.step
    text = hindrance(step.file, tick.files) if isinstance(step, ConfigStep) and tick.files else ""
    return Blocked(Reason.CONFIG_MAP_UNAVAILABLE, text) if text else None


def copy_first(tick: Tick, decision: Decision) -> MakeCopy | Failed | Refused | None:
    """Return what has to happen to the copy before a decision is carried out; None: nothing."""
    step = tick.run.current.step
    forward = isinstance(decision, Watch) or decision == Walk(Direction.FORWARD)
    if not isinstance(step, ConfigStep) or tick.files is None or not forward:
        return None
    return copying_move(step.file, tick.files, begun=tick.run.intent is not None)


def held_back(tick: Tick, fleet: Fleet, move: Move) -> Move:
    """Return a move of the way back, or what keeps replicas serving where there is nothing to go back to."""
    step = tick.run.current.step
    if not isinstance(step, ConfigStep) or tick.files is None or tick.files.source is not SourceState.GONE:
        return move
    if not needs_source(move):
        return move
    rest = resting_move(tick, fleet)
    return awaited(step.file, tick.files) if isinstance(rest, Wait) else rest


async def swept(record: Record, run: Run | None, fleet: Fleet | None, ports: Ports) -> Record:
    """Return the record without those copies that nothing refers to any more; they are removed.

    Args:
        record: with the copies of closed runs.
        run: that is being closed, with what it may have made; None: no run is open.
        fleet: the target; None: it is gone, and its copies go with it.
        ports: the world.
    """
    steps = (each.step for each in run.steps) if run else ()
    made = (ConfigCopy(s.file.copy, s.after_template) for s in steps if isinstance(s, ConfigStep))
    copies = tuple(dict.fromkeys((*record.copies, *made)))
    if copies and fleet is not None and ports.leader.is_held():
        copies = await ports.copies.sweep(fleet, copies)
    return record if copies == record.copies else replace(record, copies=copies)
