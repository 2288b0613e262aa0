"""Replicas that are replaced, added or given back where a partition holds them, and the steps refused there.

Replacing one is a drain and a deletion by name: its controller makes it anew. No spare is made, as none can
be. More replicas are a higher number, and of fewer the highest ordinal goes: it is drained before.

Where labels lead requests to a drained replica no more, its controller does not own it: it is deleted by us
after the number was lowered, and asked for again after it was deleted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

from kvmedic.model.evidence import Blocked
from kvmedic.model.fleet import Fleet
from kvmedic.model.plan import PodToRemove, ReplaceStep, ReplicasStep
from kvmedic.model.reasons import Reason
from kvmedic.rollout.draining import (
    Taking,
    find_surplus_replicas,
    held_move,
    holding_move,
    stray_move,
    take_pods,
)
from kvmedic.rollout.drift import committed_sequence
from kvmedic.rollout.moves import Claim, DeletePod, Failed, Move, Settled, Wait
from kvmedic.rollout.preconditions import Purpose, end_as_begun, find_ordinal_replacement_blocker
from kvmedic.rollout.start_failure import STARTS
from kvmedic.rollout.stateful.walk import NUDGE_AFTER, await_surplus_removal, left_behind_move, lower_wait
from kvmedic.rollout.steps import StepInput, StepRow


def unsupported_row(row: StepRow, what: str) -> StepRow:
    """Return the row of a step that is not made on a kind of workload: it is refused by name."""

    def find_blocker(fleet: Fleet, _purpose: Purpose) -> Blocked:
        text = (
            f"{what} is not made for a {fleet.kind} (spec.targetRef.kind): make the change by hand, or serve "
        )
        return Blocked(Reason.KIND_UNSUPPORTED, f"{text}the model from a Deployment")

    return replace(row, find_blocker=find_blocker)


def ordinal_replacement_row(row: StepRow, step: ReplaceStep) -> StepRow:
    """Return what the replacement of a StatefulSet's replica does; nothing of it is ever to be taken back."""

    def move(fleet: Fleet, known: StepInput) -> Move:
        if step.pod_to_remove is PodToRemove.SPARE:
            return leave(fleet, known)
        return left_behind_move(fleet, known) or _replacing_move(fleet, step, known)

    def leave(fleet: Fleet, known: StepInput) -> Move:
        gone = left_behind_move(fleet, known) or stray_move(fleet, fleet.pods)
        return gone or await_surplus_removal(fleet, Settled())

    return replace(
        row,
        find_blocker=lambda fleet, _purpose: _find_blocker(fleet, step),
        next_move=move,
        rest=lambda fleet, known: left_behind_move(fleet, known) or holding_move(fleet),
        leave=leave,
        drains_to_leave=False,
        canaries=lambda _fleet: (),
    )


def _replacing_move(fleet: Fleet, step: ReplaceStep, known: StepInput) -> Move:
    """Return the next move until the named replica was made anew and serves."""
    begun = bool(committed_sequence(known.run, known.resource_uid, fleet.fence))
    if not begun:
        return end_as_begun(_find_blocker(fleet, step), known.assigned_at) or Claim()
    named = next((pod for pod in fleet.live if pod.uid == step.uid), None)
    if named is None:
        return _await_made(fleet, known)
    if named.uid in known.held:
        return held_move(fleet, (named,))
    if waiting := stray_move(fleet, fleet.pods, (named,)) or lower_wait(fleet, named):
        return waiting
    least = max(1, fleet.replicas - 1 - known.down_before + (not named.ready))
    needed = min(least, fleet.replicas - 1)
    taken = take_pods(fleet, (named,), Taking(known.run.draining_pods, known.drains, known.held, needed, 1))
    return DeletePod(named) if isinstance(taken, tuple) else taken


def _find_blocker(fleet: Fleet, step: ReplaceStep) -> Blocked | None:
    if all(pod.uid != step.uid for pod in fleet.live):
        text = f"{step.pod} is gone: there is nothing to replace"
        return Blocked(Reason.TARGET_NOT_SETTLED, text)
    return find_ordinal_replacement_blocker(fleet, step)


def _await_made(fleet: Fleet, known: StepInput) -> Move:
    """Return what comes until as many replicas serve as before; a controller that lags is asked anew."""
    waited = known.now - known.assigned_at if known.assigned_at else timedelta(0)
    ends = any(pod.terminating for pod in fleet.pods)
    there = len(fleet.live) - len(find_surplus_replicas(fleet))
    if there < fleet.replicas and not ends and waited > NUDGE_AFTER:
        return Claim()
    serving = sum(pod.ready and pod.in_rotation for pod in fleet.live)
    if there >= fleet.replicas and serving >= fleet.replicas - max(0, known.down_before - 1):
        return Settled()
    limit = STARTS * known.limits.start + known.drain_limit
    if waited > limit:
        text = f"not done {int(limit.total_seconds())} s after it began"
        return Failed(Reason.REPLACEMENT_CALLED_OFF, text)
    return Wait(Reason.AWAITING_REPLICA, f"{serving} of {fleet.replicas} replicas serve")


def ordinal_scaling_row(row: StepRow, step: ReplicasStep) -> StepRow:
    """Return what another number of a StatefulSet's replicas does: the highest ordinals come and go."""
    if step.holder is not None:
        return row

    def first(usual: Callable[[Fleet, StepInput], Move]) -> Callable[[Fleet, StepInput], Move]:
        return lambda fleet, known: left_behind_move(fleet, known) or usual(fleet, known)

    def move(fleet: Fleet, known: StepInput) -> Move:
        # One that is to stay after all is owned again once the number is raised.
        is_raised = fleet.replicas < step.after
        return row.next_move(fleet, known) if is_raised else first(row.next_move)(fleet, known)

    def leave(fleet: Fleet, known: StepInput) -> Move:
        return await_surplus_removal(fleet, first(row.leave)(fleet, known))

    return replace(row, next_move=move, rest=first(row.rest), leave=leave)
