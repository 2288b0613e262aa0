"""The model of the controllers with replicas that are released from their ReplicaSet, and a walk on it.

A ReplicaSet's controller lets go of a pod whose hash changed, makes another in its place, and takes one back
whose hash is as it was (Kubernetes 1.36 `controller_ref_manager.go`). Services select a released pod until
its labels change, and nothing but the operator deletes it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from kvmedic.model.evidence import Blocked
from kvmedic.model.fleet import Fleet, Orphan, OrphanDrain, Pod, Rotation
from kvmedic.model.run import DrainingPod
from kvmedic.rollout.draining import Drain
from kvmedic.rollout.frozen_rollout import Order, next_template_move
from kvmedic.rollout.moves import (
    AdoptPod,
    CordonOrphan,
    DeletePod,
    Effect,
    MarkStandIn,
    Move,
    ReleasePod,
    Wait,
)
from kvmedic.rollout.orphan_drain import QUICK_START, OrphanInput
from worlds.model_controller import EDIT, START, Model, ModelPod
from worlds.model_walk import Walk

LIMIT = timedelta(seconds=600)
START_TAKES = QUICK_START + timedelta(seconds=1)
"""No replica is Ready before; the controllers act once more until then."""
ROTATION = Rotation(
    "serving", "draining", ("llm",), effective=False, in_selector=False, orphan=OrphanDrain(("app",))
)


@dataclass
class OrphanModel(Model):
    """A Deployment whose Service selects what the Deployment selects."""

    orphans: list[ModelPod] = field(default_factory=list)
    owned: set[str] = field(default_factory=set)
    """Released pods whose ReplicaSet has not seen it yet."""
    stand_ins: set[str] = field(default_factory=set)
    """Pods that were marked as such, or made while one of their revision was released and served."""
    marked: set[str] = field(default_factory=set)
    quick: bool = False
    """A replica may be Ready before the controllers let it go again."""
    made_at: dict[str, datetime] = field(default_factory=dict)
    placed_at: dict[str, datetime] = field(default_factory=dict)

    def _pod(self, revision: str) -> ModelPod:
        pod = super()._pod(revision)
        is_first = revision == "old" and len(self.made_at) < self.replicas and self.now == START
        self.made_at[pod.name] = self.now - timedelta(hours=is_first)
        if is_first:
            self.placed_at[pod.name] = self.made_at[pod.name]
        if any(each.revision == revision and not each.cordoned for each in self.orphans):
            self.stand_ins.add(pod.name)
        return pod

    def apply(self, effect: Effect) -> None:
        match effect:
            case ReleasePod(pod):
                released = self._find(pod.name)
                self.pods.remove(released)
                self.orphans.append(released)
                self.owned.add(pod.name)
            case AdoptPod(orphan):
                back = self._orphan(orphan.pod.name)
                self.orphans.remove(back)
                self.pods.append(back)
            case MarkStandIn(pod):
                self.marked.add(pod.name)
            case CordonOrphan(orphan):
                self._orphan(orphan.pod.name).cordoned = True
            case DeletePod(pod) if any(each.name == pod.name for each in self.orphans):
                gone = self._orphan(pod.name)
                if gone.in_rotation or gone.busy or not gone.cordoned:
                    self.lost_in_rotation.append(gone.name)
                self.orphans.remove(gone)
            case _:
                super().apply(effect)

    def _orphan(self, name: str) -> ModelPod:
        return next(pod for pod in self.orphans if pod.name == name)

    def order_of_going(self, pod: ModelPod) -> tuple[bool | str, ...]:
        return pod.placed, pod.ready, pod.name not in self.marked, pod.name

    def _all_pods(self) -> list[ModelPod]:
        return [*self.pods, *self.orphans]

    def replica_set_controller(self, revision: str) -> None:
        """It lets go of what was released, and makes what is missing then."""
        self.owned -= {pod.name for pod in self.orphans if pod.revision == revision}
        super().replica_set_controller(revision)

    def kubelet(self, index: int) -> None:
        """One pod becomes Ready; unless starts are quick, not before its start took its time."""
        chosen = self.pods[index % len(self.pods)] if self.pods else None
        if chosen is None:
            return
        self._place(chosen)
        if chosen.placed:
            began = self.placed_at.setdefault(chosen.name, self.now)
            if self.quick or self.now - began > START_TAKES:
                super().kubelet(index)

    def pass_time(self, seconds: float) -> None:
        """Controllers act within a second."""
        self.deployment_controller()
        for revision in tuple(self.sets):
            self.replica_set_controller(revision)
        super().pass_time(seconds)

    def endpoints(self) -> None:
        """EndpointSlices list released pods as well, until their labels change."""
        own, self.pods = self.pods, [*self.pods, *self.orphans]
        super().endpoints()
        self.pods = own

    def requests_end(self) -> None:
        """Requests on released pods finish as well, once they are out of rotation."""
        own, self.pods = self.pods, [*self.pods, *self.orphans]
        super().requests_end()
        self.pods = own

    def fleet(self) -> Fleet:
        orphans = tuple(
            Orphan(self._seen(pod), is_owned=pod.name in self.owned, has_ended=False) for pod in self.orphans
        )
        return replace(super().fleet(), rotation=ROTATION, orphans=orphans)

    def _seen(self, pod: ModelPod) -> Pod:
        seen = super()._seen(pod)
        made, began = self.made_at[pod.name], self.placed_at.get(pod.name)
        return replace(
            seen,
            is_stand_in=pod.name in self.marked,
            created_at=made,
            runs_since=began,
            ready_at=began + START_TAKES if began and pod.ready else None,
            address=seen.address if began else "",
            node=seen.node if began else "",
        )


class OrphanWalk(Walk):
    """The operator's side of a frozen rollout on such a fleet, toward one of two revisions."""

    ACTS = 7
    spare_limit = LIMIT

    def __init__(self, model: OrphanModel, toward: str, wave: int = 1, may_lack: int = 0) -> None:
        super().__init__(model)
        self.wave, self.may_lack = wave, may_lack
        self.plain, self.toward = model, toward
        self.taken_at: dict[str, datetime] = {}

    def another_life(self, toward: str) -> OrphanWalk:
        """The next process, that knows nothing but when the last assignment was intended."""
        other = OrphanWalk(self.plain, toward, may_lack=self.may_lack)
        other.assigned_at = self.assigned_at
        return other

    def order(self) -> Order:
        """Which way it goes, and what is known beside the fleet."""
        edit = EDIT if self.toward == "new" else EDIT.inverse()
        away = "old" if self.toward == "new" else "new"
        drains = self.drains()
        order = Order(
            away,
            self.toward,
            edit,
            self.model.own,
            self.draining_pods,
            drains,
            LIMIT,
            self.spare_limit,
            self.assigned_at,
        )
        known = orphans_of(self)
        return replace(order, orphans=known, wave=self.wave, compared=1, may_lack=self.may_lack)

    def move(self) -> Move:
        move = next_template_move(self.model.fleet(), self.order(), self.model.now)
        if isinstance(move, Blocked) and self.toward == "old":
            # A run that began asks again.
            return Wait(move.reason, move.message)
        return move

    def drains(self) -> dict[str, Drain]:
        return drains_of(self)

    def happen(self, act: int, which: int) -> None:
        self.model.happen(act, which)

    def apply(self, effect: Effect) -> None:
        before = self.assigned_at
        super().apply(effect)
        self.assigned_at = before if isinstance(effect, POD_MOVES) else self.assigned_at

    def write_down(self, effect: Effect) -> None:
        super().write_down(effect)
        note_released(self, effect)


POD_MOVES = ReleasePod | CordonOrphan | AdoptPod | MarkStandIn


def drains_of(walk: Walk) -> dict[str, Drain]:
    """What is known of the requests on each released pod that the record names."""
    uids = {each.uid for each in walk.draining_pods}
    return {pod.name: walk._drain_of(pod) for pod in orphans_in(walk) if pod.name in uids}


def orphans_of(walk: Walk) -> OrphanInput:
    """What an operator knows of released pods by its record."""
    since = {pod.uid: pod.cordoned_at for pod in walk.draining_pods}
    return OrphanInput(since, walk.drains(), taken_at=since)


def note_released(walk: Walk, effect: Effect) -> None:
    """What the record says of released pods before an effect."""
    match effect:
        case ReleasePod(pod) | CordonOrphan(Orphan(pod=pod)) | AdoptPod(Orphan(pod=pod)):
            left = {each.name for each in orphans_in(walk)} - {pod.name}
            added = () if isinstance(effect, AdoptPod) else (DrainingPod(pod.name, pod.uid, walk.model.now),)
            walk.draining_pods = (*(each for each in walk.draining_pods if each.uid in left), *added)


def orphans_in(walk: Walk) -> list[ModelPod]:
    return walk.model.orphans if isinstance(walk.model, OrphanModel) else []
