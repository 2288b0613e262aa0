"""A fleet that is frozen by a run which no record knows: it is given back by what the run noted on it.

A status may be edited, lost or restored, and a resource deleted by force. Nobody claims the fleet then, and
it would stand frozen for ever. The note is on the Deployment itself, and the values from before are in the
ReplicaSet that still runs them; so the change is walked back as drained as ever, whatever the mode is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta

from kvmedic.cluster.marks import RECORDED
from kvmedic.cluster.notes import Note, note_in
from kvmedic.core.decide import Wish, outcome_of
from kvmedic.core.diagnosis import Goal
from kvmedic.core.edit import EditState
from kvmedic.core.fleet import Fleet, ReplicaSet
from kvmedic.core.opening import Measure, run_of
from kvmedic.core.plan import ObjectRef, Plan, RevisionStep
from kvmedic.core.preconditions import frozen_message
from kvmedic.core.reasons import Reason
from kvmedic.core.record import Record
from kvmedic.core.resource import Key, Resource
from kvmedic.core.revisions import Revision, revision_of
from kvmedic.core.run import Intent, Outcome, Run, StepState
from kvmedic.core.sentences import SENTENCES
from kvmedic.core.standing import is_foreign
from kvmedic.core.template import template_hash
from kvmedic.core.terms import terms_of
from kvmedic.ports import Ports, View
from kvmedic.record.runs import opened
from kvmedic.saving import save

AT_ONCE = timedelta(0)


async def adopted(
    resource: Resource, record: Record, view: View, ports: Ports, now: datetime
) -> timedelta | None:
    """Open the run that gives a frozen fleet back which nobody claims; None where it cannot be known how.

    Whoever dies before the run is saved has changed nothing; after it, it is a run like any other.
    """
    fleet = view.fleet
    note = note_in(fleet.recorded.get(RECORDED, ""))
    is_held = is_foreign(resource.uid, fleet.fence) and await ports.store.is_open(
        resource.namespace, fleet.fence
    )
    if note is None or is_held or fleet.kept_by:
        return None
    run = run_that_gives_back(fleet, view.template, note, resource.generation, now)
    if run is None:
        return None
    if not resource.finalized and resource.wish is Wish.NONE:
        await ports.store.finalize(resource, present=True)
        return AT_ONCE
    terms = terms_of(resource.policy) if resource.policy else None
    await save(resource, opened(record, replace(run, terms=terms), resource.generation, now), ports)
    return AT_ONCE


async def adopted_by_note(
    resource: Resource, record: Record, ports: Ports, now: datetime
) -> timedelta | Outcome | None:
    """Open that run for a resource which is deleted, or whose open run somebody damaged.

    Returns when to look again; why a frozen fleet that is nobody else's cannot be given back; or None where
    nothing of the kind is to be done.
    """
    key = Key(resource.namespace, resource.name, resource.uid)
    if resource.policy is None or ports.roster.elder(key) is not None:
        return None
    view = await ports.target.look(resource.namespace, resource.policy)
    if view is None or view.fleet.kept_by or not view.fleet.fields.is_frozen:
        return None
    again = await adopted(resource, record, view, ports, now)
    if again is not None:
        return again
    foreign = is_foreign(resource.uid, view.fleet.fence)
    return None if foreign else Outcome(Reason.CLAIMED_BY_ANOTHER, frozen_message(view.fleet))


def run_that_gives_back(
    fleet: Fleet, template: Mapping[str, object], note: Note, generation: int, now: datetime
) -> Run | None:
    """Return the run on its way back that a note makes.

    A template that is somebody's own by now stays, and so does one that every replica runs: only the fields
    go back. None where replicas of two settings are there and the earlier one is kept by nobody.
    """
    earlier = _earlier(fleet, template, note)
    wanted = next((rs for rs in fleet.replica_sets if rs.revision == earlier), None)
    is_whole = all(pod.revision == fleet.revision for pod in fleet.live)
    if wanted is None and earlier and not is_whole:
        return None
    state = StepState.LEFT if wanted is None else StepState.ROLLING_BACK
    step = _step(fleet, wanted)
    message = SENTENCES[Reason.FLEET_GIVEN_BACK]
    plan = Plan((step,), fleet.uid, fleet.revision, generation, Reason.FLEET_GIVEN_BACK, message)
    run = run_of(plan, fleet, template, Measure(Goal.CALM), now)
    run = run.with_step(replace(run.current, state=state))
    return replace(
        run,
        recorded=note.fields,
        intent=_seen(fleet, now),
        ending=outcome_of(Reason.FLEET_GIVEN_BACK),
    )


def _earlier(fleet: Fleet, template: Mapping[str, object], note: Note) -> str:
    """Return the hash of the pod template from before; empty where the present one is somebody's own."""
    if note.edit is None:
        return note.template
    state = note.edit.state(template)
    if state is EditState.AFTER:
        return template_hash(note.edit.inverse().apply(template))
    return fleet.revision if state is EditState.BEFORE else ""


def _step(fleet: Fleet, wanted: ReplicaSet | None) -> RevisionStep:
    """Return the step that was made: from the revision from before to what else there is."""
    others = [rs for rs in fleet.replica_sets if rs is not wanted]
    active = max(others, key=lambda rs: (rs.revision == fleet.revision, rs.desired, rs.number), default=None)
    left = revision_of(active) if active else Revision(0, "", fleet.revision)
    if wanted is not None and wanted.revision != fleet.revision:
        left = replace(left, template=fleet.revision)
    before = revision_of(wanted) if wanted else Revision(0, "", fleet.revision)
    return RevisionStep(
        target=ObjectRef("Deployment", fleet.name),
        container=None,
        before=before,
        after=left,
        reason=Reason.FLEET_GIVEN_BACK,
    )


def _seen(fleet: Fleet, now: datetime) -> Intent:
    """Return what stands for the lost run's last assignment: the target as it is."""
    return Intent(
        sequence=1,
        move="Regain",
        template_before=fleet.revision,
        template_after=fleet.revision,
        is_frozen=True,
        at=now,
        was_frozen=True,
        fields_before=fleet.fields,
        fields_after=fleet.fields,
    )
