"""Changes that stay for a while: what is kept of them when a run is closed, and the number that goes back.

A temporary change outlives the run that made it: the run is judged and closed, and what it added or set
stays until the fleet is predicted to do without. Closing the run and noting the change are one write of the
status, so it is restored whoever dies meanwhile. It counts only while number or flag are as they were set:
what somebody else set is theirs, and the change is forgotten.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from enum import StrEnum

from kvmedic.model.engine import Scalar
from kvmedic.model.fleet import Fleet
from kvmedic.model.plan import FlagStep, ReplicasStep
from kvmedic.model.reasons import Reason
from kvmedic.model.run import Outcome, Run, StepState
from kvmedic.model.status import Load, TemporaryChange

NOT_OURS = frozenset({Reason.REPLICAS_CHANGED, Reason.SCALED_TO_ZERO, Reason.TARGET_DELETED})
"""Ends of a run after which the number of replicas is somebody else's."""
MOST = 10
"""Changes that are kept: an engine has two flags for its host's memory, so more are never there."""


class SetValue(StrEnum):
    """Whether number or flag are as a temporary change set them."""

    UNCHANGED = "Unchanged"
    CHANGED = "Changed"
    """Somebody set another one, took the flag away, or made the target anew."""
    UNKNOWN = "Unknown"
    """The command line, or the file that it names, cannot be read now."""


def temporary_after(
    held: tuple[TemporaryChange, ...], run: Run, fleet: Fleet | None, outcome: Outcome, now: datetime
) -> tuple[TemporaryChange, ...]:
    """Return the temporary changes once a run is closed, replicas first.

    Args:
        held: those before it.
        run: the run that is being closed.
        fleet: the target as it is now; None where it is gone.
        outcome: how the run ends.
        now: the time.
    """
    step, mine, left = run.current.step, None, None
    if isinstance(step, ReplicasStep):
        mine = next((one for one in held if one.adds_replicas), None)
        number = None if fleet is None or outcome.reason in NOT_OURS else _present_number(step, fleet)
        left = None if number is None else _replicas_left(mine, run, step, number, now)
    elif isinstance(step, FlagStep):
        mine = next((one for one in held if one.knob is step.knob), None)
        left = _setting_left(mine, run, step, outcome, now)
    others = (one for one in held if one is not mine)
    return tuple(sorted((*((left,) if left else ()), *others), key=lambda one: not one.adds_replicas))[:MOST]


def _present_number(step: ReplicasStep, fleet: Fleet) -> int | None:
    if step.holder is None:
        return fleet.replicas
    found = fleet.minimum
    return found.number if found is not None and found.uid == step.holder.uid else None


def _replicas_left(
    mine: TemporaryChange | None, run: Run, step: ReplicasStep, number: int, now: datetime
) -> TemporaryChange | None:
    """Return the change that there is with a number; None where the number is none that a run of ours set."""
    had = mine.step if mine is not None and isinstance(mine.step, ReplicasStep) else None
    before = had.before if had is not None else min(step.before, step.after)
    if not before < number <= max(step.before, step.after):
        return None
    if mine is not None and had is not None and number <= had.after:
        return with_calm(replace(mine, step=replace(had, after=number)), None)
    up = step if step.after > step.before else step.inverse()
    return TemporaryChange(
        step=replace(up, before=before, after=number, reason=Reason.REPLICAS_ADDED),
        run=run.id,
        target_uid=run.target_uid,
        at=now,
        fewest=mine.fewest if mine else run.replicas,
        load=load_of(run),
        terms=run.terms,
    )


def _setting_left(
    mine: TemporaryChange | None, run: Run, step: FlagStep, outcome: Outcome, now: datetime
) -> TemporaryChange | None:
    """Return the change that there is of a setting after a run; None: there is none."""
    state = run.current.state
    if step.reason is Reason.HOST_MEMORY_USED and state is StepState.KEPT and step.after is not None:
        return mine if outcome.reason is Reason.TARGET_DELETED else _kept_setting(mine, run, step, now)
    if step.reason is not Reason.HOST_MEMORY_GIVEN_BACK or mine is None:
        return mine
    deleted = outcome.reason is Reason.RESOURCE_DELETED
    if state is StepState.KEPT or (state is StepState.VERIFYING and deleted):
        return None
    if state is not StepState.REVERTED:
        return mine
    if run.reason is Reason.RESOURCE_DELETED:
        # Nothing is tried twice then: what could not be restored stays, and nobody waits for it.
        return None
    return with_calm(mine, None)


def _kept_setting(mine: TemporaryChange | None, run: Run, step: FlagStep, now: datetime) -> TemporaryChange:
    """Return a setting that was kept; one that was set in two parts goes back to what was before both."""
    had = mine.step if mine is not None and isinstance(mine.step, FlagStep) else None
    more = had is not None and None not in (had.after, step.before) and is_value(str(had.after), step.before)
    first = had if more else None
    load = load_of(run)
    if mine is not None and first is not None:
        load = mine.load if first.after_template == step.before_template else None
    return TemporaryChange(
        step=step if first is None else replace(step, before=first.before),
        run=run.id,
        target_uid=run.target_uid,
        at=now,
        load=load,
        terms=run.terms,
    )


def load_of(run: Run) -> Load | None:
    """Return what a replica carried before a run, on average; None where it was not measured."""
    then = run.baseline
    if then is None or then.running_mean is None:
        return None
    return Load(
        running=then.running_mean / then.replicas,
        tokens_per_second=then.generated_tokens_per_second / then.replicas,
        prompt_tokens=then.prompt_tokens_mean,
        output_tokens=then.output_tokens_mean,
    )


def is_value(text: str, given: Scalar) -> bool:
    """Return whether a text and a value say the same: 32, "32" and "32.0" do."""
    try:
        return float(text) == float(str(given))
    except ValueError:
        return text == str(given)


def is_unchanged_number(held: TemporaryChange, fleet: Fleet) -> bool:
    """Return whether the number is the one that was set, by nobody else's doing.

    Where it is an autoscaler's minimum, the fleet must have been read with it.
    """
    if fleet.uid != held.target_uid:
        return False
    step, found = held.step, fleet.minimum
    if isinstance(step, ReplicasStep) and step.holder is not None:
        return found is not None and (found.uid, found.number) == (step.holder.uid, step.after)
    return fleet.replicas == step.after and fleet.scaler is None


def step_back(step: ReplicasStep, fewest: int, replicas: int, template: str) -> ReplicasStep:
    """Return the inverse of a step that added replicas, so far that some replicas are enough.

    Args:
        step: what added them.
        fewest: replicas that there were before.
        replicas: that are enough; no more than there were before restores the number as a whole.
        template: hash of the pod template that runs now.
    """
    number = step.before if replicas <= fewest else replicas
    back = replace(step.inverse(), after=number, template=template, reason=Reason.REPLICAS_GIVEN_BACK)
    if back.holder is None:
        return back
    return replace(back, holder=replace(back.holder, is_given=back.holder.is_given or number > step.before))


def with_calm(held: TemporaryChange, since: datetime | None) -> TemporaryChange:
    """Return it with since when it is calm: the earlier of what is known; None: it is not."""
    if since is None:
        return held if held.calm_since is None else replace(held, calm_since=None, outlook="", looked_at=None)
    return held if held.calm_since is not None else replace(held, calm_since=since)


def with_outlook(held: TemporaryChange, outlook: str, now: datetime, refresh: timedelta) -> TemporaryChange:
    """Return it with the newest outlook, where the one that is told is older than `refresh`."""
    fresh = held.looked_at is not None and now - held.looked_at < refresh
    return held if fresh or not outlook else replace(held, outlook=outlook, looked_at=now)
