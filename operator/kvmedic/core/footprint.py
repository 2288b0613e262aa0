"""Replicas that were added for a while: who they are, since when it is calm, when they are let go.

A footprint outlives the run that made it: the run is judged and closed, and what it added stays until
fewer replicas are predicted to carry the load. It is part of the status, so it is given back whoever
dies meanwhile; and it counts only while the number is the one that was set: a number that somebody
else set is theirs, and the footprint is forgotten.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from kvmedic.core.calm import Temporary
from kvmedic.core.fleet import Fleet
from kvmedic.core.plan import AutoscalerStep, ObjectRef, ScaleStep
from kvmedic.core.reasons import Reason
from kvmedic.core.run import Outcome, Run, Terms

THEIRS = frozenset({Reason.REPLICAS_CHANGED, Reason.SCALED_TO_ZERO, Reason.TARGET_DELETED})
"""Ends of a run after which the number of replicas is somebody else's."""


@dataclass(frozen=True, slots=True)
class Load:
    """What a replica carried, on average, when replicas had to be added."""

    running: float
    """Sequences that ran at once."""
    tokens_per_second: float
    """Generated."""
    prompt_tokens: float
    output_tokens: float


@dataclass(frozen=True, slots=True)
class Footprint(Temporary):
    """What was added, and what it is given back by."""

    run: str
    """The run that added it."""
    target: ObjectRef
    holder: ObjectRef
    """The object that has the number: the target itself, or the autoscaler whose minimum it is."""
    holder_uid: str
    target_uid: str
    container: str | None
    before: int
    """The number that is put back."""
    after: int
    """The number as it was set last."""
    fewest: int
    """Replicas that there were before."""
    template: str
    """Hash of the pod template that the load was carried with."""
    at: datetime
    is_given: bool = True
    """An autoscaler's minimum stood in the object before; otherwise it is removed where it is put back."""
    load: Load | None = None
    """None: it was not measured; another measure has to do then."""
    terms: Terms | None = None

    def line(self) -> str:
        """Return what is held in one clause."""
        what = "replicas" if self.holder == self.target else f"minimum of {self.holder.kind}"
        return f"{what} {self.before} -> {self.after} since {self.at:%Y-%m-%dT%H:%M:%SZ} (run {self.run})"


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
    if not isinstance(step, ScaleStep | AutoscalerStep):
        return held
    number = None if fleet is None else _number(step, fleet)
    before = held.before if held else min(step.before, step.after)
    if number is None or outcome.reason in THEIRS or not before < number <= max(step.before, step.after):
        return None
    if held is not None and number <= held.after:
        return replace(held, after=number, calm_since=None, outlook="", looked_at=None)
    holder, uid, is_given = _holder(step, run)
    return Footprint(
        run=run.id,
        target=step.target,
        holder=holder,
        holder_uid=uid,
        target_uid=run.target_uid,
        container=step.container,
        before=before,
        after=number,
        fewest=held.fewest if held else run.replicas,
        template=step.template,
        at=now,
        is_given=is_given,
        load=load_of(run),
        terms=run.terms,
    )


def _holder(step: ScaleStep | AutoscalerStep, run: Run) -> tuple[ObjectRef, str, bool]:
    """Return the object that has the number, its uid, and whether the number stood in it before."""
    if isinstance(step, AutoscalerStep):
        return step.holder, step.holder_uid, step.is_given
    return step.target, run.target_uid, True


def _number(step: ScaleStep | AutoscalerStep, fleet: Fleet) -> int | None:
    if isinstance(step, ScaleStep):
        return fleet.replicas
    found = fleet.minimum
    return found.number if found is not None and found.uid == step.holder_uid else None


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


def returning_step(held: Footprint, replicas: int, template: str) -> ScaleStep | AutoscalerStep:
    """Return the step that gives a footprint back, so far that some replicas are enough.

    Args:
        held: what is held.
        replicas: that are enough; no more than there were before give it back as a whole.
        template: hash of the pod template that runs now.
    """
    number = held.before if replicas <= held.fewest else replicas
    if held.holder == held.target:
        return ScaleStep(
            held.target, held.container, held.after, number, template, Reason.REPLICAS_GIVEN_BACK
        )
    return AutoscalerStep(
        target=held.target,
        container=held.container,
        holder=held.holder,
        holder_uid=held.holder_uid,
        before=held.after,
        after=number,
        is_given=held.is_given or number > held.before,
        template=template,
        reason=Reason.REPLICAS_GIVEN_BACK,
        gives_back=True,
    )
