"""Replicas that were added for a while: who they are, since when it is calm, when they are let go.

A footprint outlives the run that made it: the run is judged and closed, and what it added stays until
fewer replicas are predicted to carry the load. It is part of the status, so it is given back whoever
dies meanwhile; and it counts only while the number is the one that was set: a number that somebody
else set is theirs, and the footprint is forgotten.

Memory of the host that an engine was lent for a while: since when, on which load, how it goes back.

A loan outlives the run that made it, as replicas do that were added for a while
(`kvmedic.runbooks.preemption.loans`): the run is judged and closed, and the flag stays until the fleet is
predicted to do without it. Closing the run and noting the loan are one write of the status, so nobody who
dies loses it. It counts only while the flag has the value that was set: another one is somebody else's.

What is there for a while, and what is known of whether it may go: since when it is calm, the outlook.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TypeVar

from kvmedic.model.engine import Scalar
from kvmedic.model.fleet import Fleet
from kvmedic.model.plan import FlagStep, MinimumHolder, ReplicasStep
from kvmedic.model.reasons import Reason
from kvmedic.model.run import Outcome, Run, StepState
from kvmedic.model.status import Borrowed, Footprint, Load, Temporary

THEIRS = frozenset({Reason.REPLICAS_CHANGED, Reason.SCALED_TO_ZERO, Reason.TARGET_DELETED})
"""Ends of a run after which the number of replicas is somebody else's."""


def footprint_after(
    run: Run, held: Footprint | None, fleet: Fleet | None, outcome: Outcome, now: datetime
) -> Footprint | None:
    """Return what is held once a run is closed.

    Args:
        run: the run that is being closed.
        held: what was held before it.
        fleet: the target as it is now; None where it is gone.
        outcome: how the run ends.
        now: the time.
    """
    step = run.current.step
    if not isinstance(step, ReplicasStep):
        return held
    number = None if fleet is None else _present_number(step, fleet)
    before = held.before if held else min(step.before, step.after)
    if number is None or outcome.reason in THEIRS or not before < number <= max(step.before, step.after):
        return None
    if held is not None and number <= held.after:
        return replace(held, after=number, calm_since=None, outlook="", looked_at=None)
    holder = step.holder
    return Footprint(
        run=run.id,
        target=step.target,
        holder=step.number_in,
        holder_uid=holder.uid if holder else run.target_uid,
        target_uid=run.target_uid,
        container=step.container,
        before=before,
        after=number,
        fewest=held.fewest if held else run.replicas,
        template=step.template,
        at=now,
        is_given=holder.is_given if holder else True,
        load=load_of(run),
        terms=run.terms,
    )


def _present_number(step: ReplicasStep, fleet: Fleet) -> int | None:
    if step.holder is None:
        return fleet.replicas
    found = fleet.minimum
    return found.number if found is not None and found.uid == step.holder.uid else None


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


def is_held(held: Footprint, fleet: Fleet) -> bool:
    """Return whether the number is the one that was set, by nobody else's doing.

    Where it is an autoscaler's minimum, the fleet must have been read with it.
    """
    if fleet.uid != held.target_uid:
        return False
    if held.holder == held.target:
        return fleet.replicas == held.after and fleet.scaler is None
    found = fleet.minimum
    return found is not None and (found.uid, found.number) == (held.holder_uid, held.after)


def returning_step(held: Footprint, replicas: int, template: str) -> ReplicasStep:
    """Return the step that gives a footprint back, so far that some replicas are enough.

    Args:
        held: what is held.
        replicas: that are enough; no more than there were before give it back as a whole.
        template: hash of the pod template that runs now.
    """
    number = held.before if replicas <= held.fewest else replicas
    holder = None
    if held.holder != held.target:
        is_given = held.is_given or number > held.before
        holder = MinimumHolder(held.holder, held.holder_uid, is_given)
    reason = Reason.REPLICAS_GIVEN_BACK
    return ReplicasStep(held.target, held.container, held.after, number, template, reason, holder)


MOST_LOANS = 10
"""Loans that are kept: an engine has two flags for its host's memory, so more are never there."""


class Tenure(StrEnum):
    """Whose a flag is that was lent."""

    OURS = "Ours"
    """It has the value that was set."""
    THEIRS = "Theirs"
    """Somebody gave it another value, took it away, or made the target anew."""
    UNKNOWN = "Unknown"
    """The command line, or the file that it names, cannot be read now."""


def tenure_of(held: Borrowed, target_uid: str, given: Scalar) -> Tenure:
    """Return whose a flag is, of which is known what the engine is given.

    Args:
        held: what was lent.
        target_uid: of the Deployment as it is now.
        given: the flag's value; None: it is not given.
    """
    same = target_uid == held.target_uid and given is not None and is_value(held.after, given)
    return Tenure.OURS if same else Tenure.THEIRS


def is_value(text: str, given: Scalar) -> bool:
    """Return whether a text and a value say the same: 32, "32" and "32.0" do."""
    try:
        return float(text) == float(str(given))
    except ValueError:
        return text == str(given)


def loans_after(
    held: tuple[Borrowed, ...], run: Run, outcome: Outcome, now: datetime
) -> tuple[Borrowed, ...]:
    """Return what is lent once a run is closed.

    Args:
        held: what was lent before it.
        run: the run that is being closed.
        outcome: how the run ends.
        now: the time.
    """
    record = run.current
    step = record.step
    if not isinstance(step, FlagStep):
        return held
    mine = next((one for one in held if one.knob is step.knob), None)
    others = tuple(one for one in held if one.knob is not step.knob)
    if step.reason is Reason.HOST_MEMORY_LENT and record.state is StepState.KEPT and step.after is not None:
        lent = _kept_loan(mine, run, step, step.after, now)
        return held if outcome.reason is Reason.TARGET_DELETED else (lent, *others)[:MOST_LOANS]
    if step.reason is not Reason.HOST_MEMORY_GIVEN_BACK or mine is None:
        return held
    left = _rest_of_loan(mine, run, outcome)
    return others if left is None else (left, *others)


def _kept_loan(mine: Borrowed | None, run: Run, step: FlagStep, after: str, now: datetime) -> Borrowed:
    """Return a loan that was kept; what is lent in two parts goes back to what was there before both."""
    more = mine is not None and step.before is not None and is_value(mine.after, step.before)
    first = mine if more else None
    unmoved = first is not None and first.revision == step.before_template
    return Borrowed(
        knob=step.knob,
        before=step.before if first is None else first.before,
        after=after,
        revision=step.after_template,
        at=now,
        run=run.id,
        target=step.target,
        target_uid=run.target_uid,
        container=step.container,
        load=load_of(run) if first is None else first.load if unmoved else None,
        terms=run.terms,
    )


def _rest_of_loan(mine: Borrowed, run: Run, outcome: Outcome) -> Borrowed | None:
    """Return what is left of a loan after a run that was to give it back; None: nothing.

    Of a resource that is deleted nothing is tried twice: a loan that could not be given back stays, and
    nobody waits for it.
    """
    state, deleted = run.current.state, run.reason is Reason.RESOURCE_DELETED
    if state is StepState.KEPT or (
        state is StepState.VERIFYING and outcome.reason is Reason.RESOURCE_DELETED
    ):
        return None
    if state is not StepState.REVERTED:
        return mine
    if deleted:
        return None
    return replace(mine, calm_since=None, outlook="", looked_at=None)


HeldT = TypeVar("HeldT", bound=Temporary)


def in_calm(held: HeldT, since: datetime | None) -> HeldT:
    """Return it with since when it is calm: the earlier of what is known; None: it is not."""
    if since is None:
        return held if held.calm_since is None else replace(held, calm_since=None, outlook="", looked_at=None)
    return held if held.calm_since is not None else replace(held, calm_since=since)


def with_outlook(held: HeldT, outlook: str, now: datetime, refresh: timedelta) -> HeldT:
    """Return it with the newest outlook, where the one that is told is older than `refresh`."""
    fresh = held.looked_at is not None and now - held.looked_at < refresh
    return held if fresh or not outlook else replace(held, outlook=outlook, looked_at=now)
