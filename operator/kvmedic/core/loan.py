"""Memory of the host that an engine was lent for a while: since when, on which load, how it goes back.

A loan outlives the run that made it, as replicas do that were added for a while
(`kvmedic.core.footprint`): the run is judged and closed, and the flag stays until the fleet is predicted
to do without it. Closing the run and noting the loan are one write of the status, so nobody who dies
loses it. It counts only while the flag has the value that was set: another one is somebody else's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from kvmedic.core.calm import Temporary
from kvmedic.core.engine import Knob, Scalar
from kvmedic.core.footprint import Load, load_of
from kvmedic.core.plan import ConfigStep, FlagStep, ObjectRef
from kvmedic.core.reasons import Reason
from kvmedic.core.run import Outcome, Run, StepState, Terms

MOST_LOANS = 10
"""Loans that are kept: an engine has two flags for its host's memory, so more are never there."""
AGAINST = frozenset({Reason.NOT_RECOVERED, Reason.CANARY_FAILED, Reason.ROLLED_BACK_BY_HAND})
"""Ends of a way back after which it is not tried again on the same evidence."""


@dataclass(frozen=True, slots=True)
class TriedReturn:
    """A loan was given back on some evidence, and had to be lent again."""

    template: str
    """Hash of the pod template with the loan; another template is other evidence."""
    at: datetime
    load: Load | None = None
    """What a replica carried then. None: it was not measured; only another template is other evidence."""


@dataclass(frozen=True, slots=True)
class Borrowed(Temporary):
    """A flag that has a value for a while: what it was before, and on which evidence it was set."""

    knob: Knob
    before: str | None
    """The value that is put back. None: the flag was not given, and is removed."""
    after: str
    """The value as it was set last."""
    revision: str
    """Hash of the pod template with it."""
    at: datetime
    """When it was judged and kept."""
    run: str
    """The run that set it."""
    target: ObjectRef
    target_uid: str
    container: str | None
    load: Load | None = None
    """What a replica carried without it, when that was too much. None: it was not measured, or not without
    it; another measure has to do then."""
    terms: Terms | None = None
    in_vain: TriedReturn | None = None
    """The newest way back that did not hold; None: none was tried."""

    def line(self) -> str:
        """Return what is lent in one clause."""
        before = self.before or "(engine default)"
        return f"{self.knob} {before} -> {self.after} since {self.at:%Y-%m-%dT%H:%M:%SZ} (run {self.run})"


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
    if not isinstance(step, FlagStep | ConfigStep):
        return held
    mine = next((one for one in held if one.knob is step.knob), None)
    others = tuple(one for one in held if one.knob is not step.knob)
    if step.reason is Reason.HOST_MEMORY_LENT and record.state is StepState.KEPT and step.after is not None:
        lent = _lent(mine, run, step, step.after, now)
        return held if outcome.reason is Reason.TARGET_DELETED else (lent, *others)[:MOST_LOANS]
    if step.reason is not Reason.HOST_MEMORY_GIVEN_BACK or mine is None:
        return held
    left = _left(mine, run, outcome, now)
    return others if left is None else (left, *others)


def _lent(
    mine: Borrowed | None, run: Run, step: FlagStep | ConfigStep, after: str, now: datetime
) -> Borrowed:
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
        container=step.edit.container if isinstance(step, FlagStep) else step.container,
        load=load_of(run) if first is None else first.load if unmoved else None,
        terms=run.terms,
    )


def _left(mine: Borrowed, run: Run, outcome: Outcome, now: datetime) -> Borrowed | None:
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
    again = replace(mine, calm_since=None, outlook="", looked_at=None)
    if outcome.reason not in AGAINST:
        return again
    return replace(again, in_vain=TriedReturn(run.current.step.before_template, now, load_of(run)))
