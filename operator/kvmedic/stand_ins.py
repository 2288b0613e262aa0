"""Fleets that stand frozen by a run whose resource is gone: they are looked at until they are given back.

A resource may be deleted by force, its finalizer taken off, or be lost with an etcd that was restored. What
its run noted on the Deployment is enough to give the fleet back (`kvmedic.orphans`). A stand-in is such a
resource that is being deleted, in memory alone: the process after this one reads the note anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from kvmedic.cluster.marks import RECORDED, RUN
from kvmedic.cluster.notes import note_in
from kvmedic.cluster.snapshot import rollout_fields
from kvmedic.core.crowd import Peer
from kvmedic.core.decide import Wish
from kvmedic.core.policy import OnDrainTimeout, Policy, TargetRef
from kvmedic.core.record import Record
from kvmedic.core.resource import Key, Resource
from kvmedic.core.run import Outcome, Terms
from kvmedic.core.terms import without_spec
from kvmedic.kube.objects import annotations_of, section, uid_of
from kvmedic.ports import Store
from kvmedic.roster import Roster

DRAIN_TIMEOUT = timedelta(minutes=10)
"""How long a replica may finish its requests: what a resource has that does not say (`api/spec.py`)."""


@dataclass(frozen=True, slots=True)
class FrozenFleet:
    """A Deployment that a run holds frozen, as the watch tells."""

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

    def note(self, namespace: str, name: str, body: Mapping[str, Any], *, is_deleted: bool) -> None:
        """Remember a Deployment while it stands frozen by a run."""
        found = None if is_deleted else frozen_fleet(name, body)
        if found is None:
            self._frozen.pop((namespace, name), None)
        else:
            self._frozen[namespace, name] = found

    def frozen(self) -> dict[tuple[str, str], FrozenFleet]:
        """Return the Deployments that stand frozen by a run, by namespace and name."""
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
            Peer(key.namespace, key.name, key.uid, key.name, holds=frozenset({self._deployments[key]}))
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

    async def save(self, resource: Resource, record: Record) -> Resource:
        """Write the status with the loaded resourceVersion. Raises Conflict when it moved."""
        if not resource.is_stand_in:
            return await self.store.save(resource, record)
        saved = replace(resource, record=record)
        self._resources[_key(resource)] = saved
        return saved

    async def complain(self, resource: Resource, problem: Outcome) -> tuple[Record, Record] | None:
        """Write conditions that tell a problem; a stand-in has nobody who reads them."""
        return None if resource.is_stand_in else await self.store.complain(resource, problem)

    async def is_open(self, namespace: str, claim: str) -> bool:
        """Return whether a resource exists whose open run made a claim on a target."""
        return await self.store.is_open(namespace, claim)

    async def is_ending(self, namespace: str) -> bool:
        """Return whether a namespace is being deleted, as far as we may know."""
        return await self.store.is_ending(namespace)

    async def finalize(self, resource: Resource, present: bool) -> None:  # noqa: FBT001 - the wanted state
        """Put our finalizer on the resource, or take it off; with it a stand-in goes."""
        if not resource.is_stand_in:
            await self.store.finalize(resource, present)
        elif not present:
            self._dismiss(_key(resource))

    def _dismiss(self, key: Key) -> None:
        self._resources.pop(key, None)
        self._deployments.pop(key, None)


def frozen_fleet(name: str, body: Mapping[str, Any]) -> FrozenFleet | None:
    """Return what a Deployment says of the run that holds it frozen; None where none does.

    One that has everything back and still carries the claim counts too: who gave it back died before it took
    the claim off. Where the change is rolled out the note stays, as it tells a person what was before.
    """
    marks, spec = annotations_of(body), section(body, "spec")
    note, claim = note_in(marks.get(RECORDED, "")), marks.get(RUN, "")
    if note is None or note.rotation_label is None or not claim:
        return None
    if not rollout_fields(spec).is_frozen and not note.is_undone(section(spec, "template")):
        return None
    terms = Terms(note.rotation_label, DRAIN_TIMEOUT, OnDrainTimeout.HOLD)
    return FrozenFleet(uid_of(body), claim, without_spec(TargetRef("Deployment", name, None), terms))


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


def _key(resource: Resource) -> Key:
    return Key(resource.namespace, resource.name, resource.uid)
