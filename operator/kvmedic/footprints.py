"""What was added for a while, from look to look: noted, forgotten where it is somebody else's, given back."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from kvmedic.core.diagnosis import Diagnosed, Goal, ScaleBound
from kvmedic.core.footprint import Footprint, in_calm, is_held, returning_step
from kvmedic.core.gates import Blocked
from kvmedic.core.opening import Measure, run_of
from kvmedic.core.plan import Plan
from kvmedic.core.reasons import SENTENCES, Reason
from kvmedic.core.record import Record
from kvmedic.core.resource import Resource
from kvmedic.core.run import Outcome, Run
from kvmedic.core.terms import policy_from
from kvmedic.findings import Survey
from kvmedic.plans import obstacle_to
from kvmedic.ports import Ports, Target, View
from kvmedic.record.runs import opened
from kvmedic.record.surveys import REFRESH, complaint
from kvmedic.saving import save


def noted(record: Record, found: Survey, now: datetime) -> Record:
    """Return the record with what a look says of the replicas that were added for a while.

    The same number set by somebody else in between is not told apart, and counts as ours.
    """
    held = record.footprint
    if held is None:
        return record
    if not is_held(held, found.view.fleet):
        return replace(record, footprint=None)
    calm = isinstance(found.diagnosis, Diagnosed) and found.diagnosis.reason is Reason.HEALTHY
    return replace(record, footprint=_looked_at(in_calm(held, now if calm else None), found.outlook, now))


def _looked_at(held: Footprint, outlook: str, now: datetime) -> Footprint:
    """Return the footprint with the newest outlook, where the one that is told is old."""
    fresh = held.looked_at is not None and now - held.looked_at < REFRESH
    if not outlook or fresh:
        return held
    return replace(held, outlook=outlook, looked_at=now)


async def with_holder(view: View, held: Footprint | None, target: Target) -> View:
    """Return the target with what is held for it, where that is an autoscaler's."""
    if held is None or held.holder == held.target:
        return view
    return await target.with_minimum(view, held.holder)


def holding(held: Footprint | None, bound: ScaleBound | None) -> Blocked | None:
    """Return why replicas that were added for a while are still there; None where there are none."""
    if held is None:
        return None
    after = (bound or ScaleBound()).restore_after
    text = (
        f"{held.line()}; they are given back after {after.total_seconds() / 60:.0f} minutes of calm, once "
        "fewer are predicted to carry the load (status.footprint)"
    )
    return Blocked(Reason.FOOTPRINT_HELD, text)


async def give_back(
    resource: Resource, record: Record, held: Footprint, ports: Ports, now: datetime
) -> timedelta | None:
    """Open the run that gives everything back because its resource is deleted; no gate blocks that.

    Returns when to look again, or None where nothing is left to give back.
    """
    step = returning_step(held, held.fewest, held.template)
    policy = resource.policy or (policy_from(step, held.terms) if held.terms else None)
    view = await ports.target.look(resource.namespace, policy) if policy is not None else None
    if view is None:
        return None
    view = await with_holder(view, held, ports.target)
    if not is_held(held, view.fleet):
        return None
    if refused := obstacle_to(step, view.fleet, Goal.CALM):
        why = Outcome(refused.reason, f"{refused.message}; it is deleted once {held.line()} is given back")
        await save(resource, complaint(record, why, resource.generation, now), ports)
        return ports.pace.idle
    run = _run(resource, held, view, now)
    await save(resource, opened(record, run, resource.generation, now), ports)
    return timedelta(0)


def _run(resource: Resource, held: Footprint, view: View, now: datetime) -> Run:
    fleet = view.fleet
    step = returning_step(held, held.fewest, fleet.revision)
    message = f"the resource is deleted: {SENTENCES[Reason.REPLICAS_GIVEN_BACK]}"
    plan = Plan((step,), fleet.uid, fleet.revision, resource.generation, Reason.RESOURCE_DELETED, message)
    return replace(run_of(plan, fleet, view.template, Measure(Goal.CALM), now), terms=held.terms)
