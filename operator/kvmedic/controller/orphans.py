"""A fleet that is frozen by a run which no record knows: it is given back by what the run noted on it.

A status may be edited, lost or restored, and a resource deleted by force. Nobody claims the fleet then, and
it would stand frozen for ever. The note is on the Deployment itself, and the values from before are in the
ReplicaSet that still runs them; so the change is walked back as drained as ever, whatever the mode is.

Pods that were taken out of rotation and that nothing leads to any more: they are put back all the same.

The Deployment may be gone and its pods left (`kubectl delete --cascade=orphan`), a pod may have lost the
labels by which its ReplicaSet knew it, a record may have been lost with its resource. Each such pod carries a
note of the Deployment that it was cordoned for; once no open run is about that one, the pod serves again.

Fleets that stand frozen by a run whose resource is gone: they are looked at until they are given back.

A resource may be deleted by force, its finalizer taken off, or be lost with an etcd that was restored. What
its run noted on the Deployment is enough to give the fleet back (`kvmedic.controller.orphans`). A stand-in
is such a resource that is being deleted, in memory alone: the process after this one reads the note anew.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from kvmedic.cluster.ownership import RECORDED, RUN, Note, note_in
from kvmedic.cluster.snapshot import rollout_fields
from kvmedic.cluster.stateful.groups import as_workload
from kvmedic.controller.ports import Ports, Store, Target, save
from kvmedic.kube.errors import Conflict, Refused
from kvmedic.kube.objects import annotations_of, section, uid_of
from kvmedic.model.config_edits import Revision, revision_of
from kvmedic.model.edits import EditState
from kvmedic.model.evidence import Blocked
from kvmedic.model.fleet import Cordoned, Fleet, ObjectRef, ReplicaSet, template_hash
from kvmedic.model.plan import Goal, Plan, RevisionStep
from kvmedic.model.reasons import Reason
from kvmedic.model.run import Intent, Run, StepState
from kvmedic.model.spec import OnDrainTimeout, Policy, RunSpec, TargetRef, place_of, run_spec_of, without_spec
from kvmedic.model.status import Key, Record, Resource, Wish
from kvmedic.record.runs import open_run
from kvmedic.rollout.decide import outcome_of
from kvmedic.rollout.drift import is_foreign
from kvmedic.rollout.gates.one_resource_per_target import Roster
from kvmedic.rollout.gates.runs_at_once import Peer
from kvmedic.rollout.preconditions import frozen_message
from kvmedic.runbooks.workload import View
from kvmedic.verdict.summary import Measure, run_of

AT_ONCE = timedelta(0)


async def adopt_fleet(
    resource: Resource, record: Record, view: View, ports: Ports, now: datetime
) -> timedelta | None:
    """Open the run that gives a frozen fleet back which nobody claims; None where it cannot be known how.

    A process that dies before the run is saved has changed nothing; after it, it is a run like any other.
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
    run_spec = run_spec_of(resource.policy) if resource.policy else None
    await save(resource, open_run(record, replace(run, run_spec=run_spec), resource.generation, now), ports)
    return AT_ONCE


async def adopt_noted_fleet(
    resource: Resource, record: Record, ports: Ports, now: datetime
) -> timedelta | Blocked | None:
    """Open that run for a resource which is deleted, or whose open run somebody damaged.

    Returns when to look again; why a frozen fleet that is nobody else's cannot be given back; or None where
    nothing of the kind is to be done.
    """
    key = Key(resource.namespace, resource.name, resource.uid)
    if resource.policy is None or ports.roster.find_older_resource(key) is not None:
        return None
    view = await ports.target.look(resource.namespace, resource.policy)
    if view is None or view.fleet.kept_by or not view.fleet.fields.is_frozen:
        return None
    again = await adopt_fleet(resource, record, view, ports, now)
    if again is not None:
        return again
    foreign = is_foreign(resource.uid, view.fleet.fence)
    return None if foreign else Blocked(Reason.CLAIMED_BY_ANOTHER, frozen_message(view.fleet))


def run_that_gives_back(
    fleet: Fleet, template: Mapping[str, object], note: Note, generation: int, now: datetime
) -> Run | None:
    """Return the run on its way back that a note makes.

    A template that is somebody's own by now stays, and so does one that every replica runs: only the fields
    go back. None where replicas of two settings are there and the earlier one is kept by nobody.
    """
    earlier = _find_earlier_template(fleet, template, note)
    desired = next((rs for rs in fleet.replica_sets if rs.revision == earlier), None)
    is_whole = all(pod.revision == fleet.revision for pod in fleet.live)
    if desired is None and earlier and not is_whole:
        return None
    state = StepState.LEFT if desired is None else StepState.ROLLING_BACK
    step = _step(fleet, desired)
    message = Reason.FLEET_GIVEN_BACK.sentence
    plan = Plan((step,), fleet.uid, fleet.revision, generation, Reason.FLEET_GIVEN_BACK, message)
    run = run_of(plan, fleet, template, Measure(Goal.CALM), now)
    run = run.with_step(replace(run.current, state=state))
    return replace(
        run,
        recorded=note.fields,
        intent=_intent_as_seen(fleet, now),
        ending=outcome_of(Reason.FLEET_GIVEN_BACK),
    )


def _find_earlier_template(fleet: Fleet, template: Mapping[str, object], note: Note) -> str:
    """Return the hash of the pod template from before; empty where the present one is somebody's own."""
    if note.edit is None:
        return note.template
    state = note.edit.state(template)
    if state is EditState.AFTER:
        return template_hash(note.edit.inverse().apply(template))
    return fleet.revision if state is EditState.BEFORE else ""


def _step(fleet: Fleet, desired: ReplicaSet | None) -> RevisionStep:
    """Return the step that was made: from the revision from before to what else there is."""
    others = [rs for rs in fleet.replica_sets if rs is not desired]
    active = max(others, key=lambda rs: (rs.revision == fleet.revision, rs.desired, rs.number), default=None)
    left = revision_of(active) if active else Revision(0, "", fleet.revision)
    if desired is not None and desired.revision != fleet.revision:
        left = replace(left, template=fleet.revision)
    before = revision_of(desired) if desired else Revision(0, "", fleet.revision)
    return RevisionStep(
        target=ObjectRef(fleet.kind, fleet.name),
        container=None,
        before=before,
        after=left,
        reason=Reason.FLEET_GIVEN_BACK,
    )


def _intent_as_seen(fleet: Fleet, now: datetime) -> Intent:
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


LOG = logging.getLogger("kvmedic")


async def free_pods(ports: Ports, namespace: str, deployment: str) -> None:
    """Put back what a run that ends has cordoned of a Deployment, under any owner.

    A write that the API server refuses does not keep the run from its end: it is tried again now and then.
    """
    found = await ports.target.find_cordoned_pods(namespace)
    await _free(ports.target, (one for one in found if one.deployment == deployment))


async def free_all(target: Target, namespace: str) -> None:
    """Put back every pod of a namespace that is cordoned, as far as the API server lets us."""
    for pod in await target.find_cordoned_pods(namespace):
        with suppress(Conflict):
            await _free(target, (pod,))


async def free_unclaimed(target: Target, found: Sequence[Cordoned], peers: Iterable[Peer]) -> None:
    """Put back the pods that no open run of their namespace can be about.

    Args:
        target: effects on pods.
        found: the pods; looked at before the resources were, so that a run which cordoned one is among them.
        peers: every resource.
    """
    known = tuple(peers)
    unclear = {peer.namespace for peer in known if peer.is_unclear}
    held = {peer.deployment for peer in known}
    for pod in found:
        if pod.namespace not in unclear and pod.deployment not in held:
            with suppress(Conflict):
                await _free(target, (pod,))


async def _free(target: Target, pods: Iterable[Cordoned]) -> None:
    for pod in pods:
        try:
            await target.free(pod)
        except Refused as error:
            LOG.warning("pod=%s/%s reason=LeftCordoned error=%s", pod.namespace, pod.name, error)


DRAIN_TIMEOUT = timedelta(minutes=10)
"""How long a replica may finish its requests: what a resource has that does not say (`api/spec.py`)."""


@dataclass(frozen=True, slots=True)
class FrozenFleet:
    """A workload that a run holds frozen, as the watch reports it."""

    uid: str
    claim: str
    """`<resource uid>/<run>/<sequence>`."""
    policy: Policy
    """By which what the run did can be taken back, and nothing else."""

    @property
    def claimant(self) -> str:
        """Return the uid of the resource whose run it is."""
        return self.claim.partition("/")[0]


@dataclass(slots=True)
class StandIns:
    """The resources' store, with those in it that stand in for resources that are gone."""

    store: Store
    roster: Roster
    _frozen: dict[tuple[str, str], FrozenFleet] = field(default_factory=dict)
    _resources: dict[Key, Resource] = field(default_factory=dict)
    _deployments: dict[Key, str] = field(default_factory=dict)

    def note(self, namespace: str, target: ObjectRef, body: Mapping[str, Any], *, is_deleted: bool) -> None:
        """Remember a workload while it stands frozen by a run."""
        found, place = None if is_deleted else frozen_fleet(target, body), place_of(target.kind, target.name)
        if found is None:
            self._frozen.pop((namespace, place), None)
        else:
            self._frozen[namespace, place] = found

    def list_frozen_fleets(self) -> dict[tuple[str, str], FrozenFleet]:
        """Return the workloads that stand frozen by a run, by namespace and `place_of` them."""
        return dict(self._frozen)

    def appoint(
        self, frozen: Mapping[tuple[str, str], FrozenFleet], peers: Iterable[Peer]
    ) -> tuple[Key, ...]:
        """Stand in where no resource claims a frozen fleet, and none looks after it; return for which.

        Args:
            frozen: as it was before the resources were listed: a claimant that exists is in the list then.
            peers: every resource.
        """
        listed = tuple(peers)
        alive = {peer.uid for peer in listed}
        targets = {(peer.namespace, peer.target) for peer in listed}
        for where, fleet in frozen.items():
            key = Key(*where, fleet.claimant)
            if fleet.claimant not in alive and where not in targets and key not in self._resources:
                self._resources[key] = _stand_in(key, fleet)
                self._deployments[key] = fleet.uid
        return self.keys()

    def keys(self) -> tuple[Key, ...]:
        """Return what there are."""
        return tuple(self._resources)

    def peers(self) -> tuple[Peer, ...]:
        """Return them as other resources see them: each holds its Deployment."""
        return tuple(
            Peer(key.namespace, key.name, key.uid, key.name, deployment=self._deployments[key])
            for key in self._resources
        )

    def dismiss_all(self) -> None:
        """Forget them: another process leads, and what they remember may be behind."""
        self._resources.clear()
        self._deployments.clear()

    async def load(self, key: Key) -> Resource | None:
        """Return the resource, or None when it is gone, another took its place, or looks after its target."""
        if key not in self._resources:
            return await self.store.load(key)
        if any((each.namespace, each.target) == (key.namespace, key.name) for each in self.roster.peers()):
            self._dismiss(key)
        return self._resources.get(key)

    async def load_last_seen(self, key: Key) -> Resource | None:
        """Return the resource as it was a moment ago."""
        return await (self.load(key) if key in self._resources else self.store.load_last_seen(key))

    async def save(self, resource: Resource, record: Record) -> Resource:
        """Write the status with the loaded resourceVersion. Raises Conflict when it moved."""
        if not resource.is_stand_in:
            return await self.store.save(resource, record)
        saved = replace(resource, record=record)
        self._resources[_key_of(resource)] = saved
        return saved

    async def report_problem(self, resource: Resource, problem: Blocked) -> tuple[Record, Record] | None:
        """Write conditions that report a problem; a stand-in has nobody who reads them."""
        return None if resource.is_stand_in else await self.store.report_problem(resource, problem)

    async def is_open(self, namespace: str, claim: str) -> bool:
        """Return whether a resource exists whose open run made a claim on a target."""
        return await self.store.is_open(namespace, claim)

    async def is_ending(self, namespace: str) -> bool:
        """Return whether a namespace is being deleted, as far as we may know."""
        return await self.store.is_ending(namespace)

    async def finalize(self, resource: Resource, present: bool) -> None:  # noqa: FBT001 - the desired state
        """Put our finalizer on the resource, or take it off; with it a stand-in goes."""
        if not resource.is_stand_in:
            await self.store.finalize(resource, present)
        elif not present:
            self._dismiss(_key_of(resource))

    def _dismiss(self, key: Key) -> None:
        self._resources.pop(key, None)
        self._deployments.pop(key, None)


def frozen_fleet(target: ObjectRef, body: Mapping[str, Any]) -> FrozenFleet | None:
    """Return what a workload says of the run that holds it frozen; None where none does.

    One that has everything back and still carries the claim counts too: who gave it back died before it took
    the claim off. Where the change is rolled out the note stays, as it shows a person what was before.
    """
    marks = annotations_of(body)
    note, claim = note_in(marks.get(RECORDED, "")), marks.get(RUN, "")
    if note is None or note.rotation_label is None or not claim:
        return None
    if not rollout_fields(body).is_frozen and not note.is_undone(
        section(as_workload(dict(body)), "spec", "template")
    ):
        return None
    run_spec = RunSpec(note.rotation_label, DRAIN_TIMEOUT, OnDrainTimeout.HOLD, rotation=note.rotation)
    return FrozenFleet(uid_of(body), claim, without_spec(TargetRef(target.kind, target.name, None), run_spec))


def _stand_in(key: Key, fleet: FrozenFleet) -> Resource:
    return Resource(
        namespace=key.namespace,
        name=key.name,
        uid=key.uid,
        resource_version="",
        generation=0,
        wish=Wish.DELETE,
        finalized=True,
        policy=fleet.policy,
        problem=None,
        record=Record(),
        is_stand_in=True,
    )


def _key_of(resource: Resource) -> Key:
    return Key(resource.namespace, resource.name, resource.uid)
