"""A model of the StatefulSet controller, one small act at a time, and a walk on it.

It follows Kubernetes 1.36 `pkg/controller/statefulset`: replicas are made and looked after from the lowest
ordinal, of `OrderedReady` none while a lower one is not Ready, so that a broken one blocks all that follows;
below the partition a replica is made from the revision of the last complete rollout, above it, and with
`OnDelete`, from the newest; with `RollingUpdate` the highest that is not of it is deleted. A pod whose labels
changed is nobody's, and keeps its name: the controller cannot make another, and tries again later and later.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from kvmedic.model.config_edits import EditedTemplate
from kvmedic.model.evidence import Blocked
from kvmedic.model.fleet import (
    ROLLING,
    STATEFUL_SET,
    Fleet,
    OrphanDrain,
    Pod,
    ReplicaSet,
    RolloutFields,
    Rotation,
)
from kvmedic.rollout.draining import Drain
from kvmedic.rollout.frozen_rollout import Order
from kvmedic.rollout.moves import (
    Cordon,
    DeletePod,
    Effect,
    Freeze,
    Hold,
    Move,
    Pause,
    Pulse,
    Regain,
    Release,
    Restore,
    Retarget,
    Revert,
    ScaleIn,
    ScaleOut,
    Uncordon,
    Wait,
)
from kvmedic.rollout.stateful.walk import next_ordinal_move
from worlds.model_controller import EDIT, START, ModelPod
from worlds.model_walk import LIMIT, Walk

OWN = RolloutFields(False, 0, 1, 0, None, partition=0)
"""What a StatefulSet has that says nothing."""
BY_LABEL = Rotation("serving", "draining", ("llm",), effective=True, in_selector=False)
BY_KEYS = replace(BY_LABEL, effective=False, relabel=OrphanDrain(("app",)))
FIRST_RETRY, LONGEST_RETRY = timedelta(seconds=1), timedelta(seconds=1000)


@dataclass
class SetPod(ModelPod):
    ordinal: int = 0
    uid: str = ""
    terminating: bool = False
    owned: bool = True
    """Its labels are such that the controller takes it for its own."""


@dataclass
class SetModel:
    """A StatefulSet with its controller. Every public method is one act that may happen or not."""

    replicas: int
    own: RolloutFields = OWN
    in_order: bool = True
    by_keys: bool = False
    fields: RolloutFields = OWN
    revision: str = "old"
    current: str = "old"
    """Revision of the last rollout that was complete."""
    observed: bool = True
    now: datetime = START
    pods: list[SetPod] = field(default_factory=list)
    broken_revisions: set[str] = field(default_factory=set)
    front: bool = False
    undrained: list[str] = field(default_factory=list)
    """Pods that were ended while they took requests, or had some."""
    fewest: int = 10**9
    """Replicas in rotation, at the fewest."""
    fence: str = ""
    """The claim of a run."""
    wakes: bool = True
    """Something of its own changed since the controller looked last."""
    retry: timedelta = FIRST_RETRY
    retry_at: datetime | None = None
    _made: int = 0

    @classmethod
    def healthy(cls, replicas: int, own: RolloutFields = OWN, **more: Any) -> SetModel:
        model = cls(replicas, own, fields=own, **more)
        for ordinal in range(replicas):
            pod = model._make(ordinal, "old")
            pod.ready = pod.in_rotation = pod.served = True
        model.fewest = replicas
        return model

    def _make(self, ordinal: int, revision: str) -> SetPod:
        self._made += 1
        name, broken = f"llm-{ordinal}", revision in self.broken_revisions
        pod = SetPod(name, revision, broken=broken, number=self._made, unready_at=self.now)
        pod.ordinal, pod.uid = ordinal, f"{name}#{self._made}"
        self.pods.append(pod)
        self.wakes = True
        return pod

    # What the operator does.

    def apply(self, effect: Effect) -> None:
        match effect:
            case Revert(EditedTemplate(template), fields):
                self.revision = str(template["revision"])
                self._assign(fields)
            case ScaleOut(before, after) | ScaleIn(before, after):
                assert self.replicas == before, "the API server's side of it: the test of the patch"
                self.scale(after)
            case Freeze(_, fields) | Retarget(_, fields) | Revert(_, fields):
                self.revision = "new" if self.revision == "old" else "old"
                self._assign(fields)
            case Hold(_, fields) | Pause(fields) | Pulse(_, fields) | Restore(fields) | Release(fields):
                self._assign(fields)
            case Regain(_, _, fields):
                self._assign(fields or self.fields)
            case Cordon(pod) | Uncordon(pod):
                found = self._find(pod.uid)
                found.cordoned = isinstance(effect, Cordon)
                found.owned = not (found.cordoned and self.by_keys)
                self.wakes = True
            case DeletePod(pod):
                self._end(self._find(pod.uid))

    def scale(self, replicas: int) -> None:
        """Ask for another number of replicas, as anybody may."""
        self.replicas, self.observed, self.wakes = replicas, False, True

    def edit(self, revision: str) -> None:
        """Change the pod template, as anybody may."""
        self.revision, self.observed, self.wakes = revision, False, True

    def _assign(self, fields: RolloutFields) -> None:
        self.fields, self.observed, self.wakes = fields, False, True

    def _find(self, uid: str) -> SetPod:
        return next(pod for pod in self.pods if pod.uid == uid)

    def _end(self, pod: SetPod) -> None:
        if not pod.terminating and (pod.in_rotation or pod.busy):
            self.undrained.append(pod.uid)
        pod.terminating = True

    # What the cluster does.

    def happen(self, act: int, which: int) -> None:
        """Let the controller act, the kubelet of one pod, or some time pass: five acts in turn."""
        match act:
            case 0 | 1:
                self.controller()
            case 2:
                self.kubelet(which)
            case 3:
                self.endpoints()
            case _:
                for pod in self.pods:
                    pod.busy = pod.busy and (pod.in_rotation or pod.stubborn)
                self.now += timedelta(seconds=1)

    def controller(self) -> None:
        """One sync, if anything woke it or its next try is due."""
        if not self.wakes and (self.retry_at is None or self.now < self.retry_at):
            return
        self.observed, self.wakes, self.retry_at = True, False, None
        if not self._keep_all():
            return
        if self.fields.strategy == ROLLING:
            self._update()
            own = [pod for pod in self.pods if pod.owned and not pod.terminating]
            if len(own) == self.replicas and all(p.ready and p.revision == self.revision for p in own):
                self.current = self.revision

    def _keep_all(self) -> bool:
        """Make what is missing; return whether nothing keeps it from going on."""
        own = {pod.ordinal: pod for pod in self.pods if pod.owned}
        taken = {pod.ordinal for pod in self.pods if not pod.owned}
        for ordinal in range(self.replicas):
            pod = own.get(ordinal)
            if pod is None and ordinal in taken:  # the API server says that it exists
                self.retry_at, self.retry = self.now + self.retry, min(self.retry * 2, LONGEST_RETRY)
                return False
            if pod is None:
                pod = self._make(ordinal, self._revision_for(ordinal))
                self.retry = FIRST_RETRY
            if self.in_order and (pod.terminating or not pod.ready):
                return False
        for pod in sorted(self.pods, key=lambda each: -each.ordinal):
            if pod.owned and pod.ordinal >= self.replicas:
                self._end(pod)
                return False
        return True

    def _revision_for(self, ordinal: int) -> str:
        held = self.fields.strategy == ROLLING and ordinal < (self.fields.partition or 0)
        return self.current if held else self.revision

    def _update(self) -> None:
        own = {pod.ordinal: pod for pod in self.pods if pod.owned}
        for ordinal in range(self.replicas - 1, (self.fields.partition or 0) - 1, -1):
            pod = own.get(ordinal)
            if pod is not None and pod.revision != self.revision and not pod.terminating:
                self._end(pod)
                return
            if pod is None or pod.terminating or not pod.ready:
                return

    def kubelet(self, which: int) -> None:
        """One pod is gone, or becomes Ready."""
        if not self.pods:
            return
        pod = self.pods[which % len(self.pods)]
        if pod.terminating:
            self.pods.remove(pod)
            self.wakes = self.wakes or pod.owned
        elif not pod.broken and not pod.ready:
            pod.ready, pod.unready_at = True, None
            self.wakes = True

    def endpoints(self) -> None:
        """EndpointSlices follow labels and readiness; who is in rotation gets requests."""
        for pod in self.pods:
            pod.in_rotation = pod.ready and not pod.terminating and not pod.cordoned
            pod.busy = pod.busy or pod.in_rotation
            pod.served = pod.served or pod.in_rotation
        self.fewest = min(self.fewest, sum(pod.in_rotation for pod in self.pods))

    def die(self, which: int) -> None:
        """One pod is gone with its node, no matter which."""
        if self.pods:
            pod = self.pods.pop(which % len(self.pods))
            self.wakes = self.wakes or pod.owned

    def fleet(self) -> Fleet:
        live = [pod for pod in self.pods if not pod.terminating]
        own = [pod for pod in live if pod.owned]
        return Fleet(
            namespace="serving",
            name="llm",
            uid="uid-1",
            resource_version="10",
            generation=4,
            observed=self.observed,
            replicas=self.replicas,
            strategy=self.fields.strategy,
            fields=self.fields,
            revision=self.revision,
            status_replicas=sum(pod.owned for pod in self.pods),
            updated_replicas=sum(pod.revision == self.revision for pod in own),
            fence=self.fence,
            replica_sets=tuple(self._set(revision, live) for revision in self._revisions()),
            pods=tuple(self._seen(pod) for pod in self.pods),
            rotation=BY_KEYS if self.by_keys else BY_LABEL,
            owner=None,
            recorded={},
            kind=STATEFUL_SET,
            in_order=self.in_order,
            is_complete=self.current == self.revision,
        )

    def _revisions(self) -> list[str]:
        return list(dict.fromkeys(["old", "new", self.revision, *(pod.revision for pod in self.pods)]))

    def _set(self, revision: str, live: list[SetPod]) -> ReplicaSet:
        pods = [pod for pod in live if pod.revision == revision]
        return ReplicaSet(
            f"llm-{revision}", revision, 1, len(pods), sum(pod.ready for pod in pods), 0, observed=True
        )

    def _seen(self, pod: SetPod) -> Pod:
        return Pod(
            name=pod.name,
            uid=pod.uid,
            resource_version="1",
            revision=pod.revision,
            address="10.0.0.1",
            created_at=START,
            ready_at=START if pod.ready else None,
            terminating=pod.terminating,
            unschedulable=False,
            in_rotation=pod.in_rotation,
            cordoned=pod.cordoned,
            restarts=3 if pod.broken and not pod.ready else 0,
            waiting_reason="CrashLoopBackOff" if pod.broken and not pod.ready else "",
            unready_at=pod.unready_at,
            ordinal=pod.ordinal,
            is_released=not pod.owned,
        )


class SetWalk(Walk):
    """The operator's side of a frozen rollout of a StatefulSet toward one of two revisions."""

    ACTS = 5

    def __init__(self, model: SetModel, toward: str, *, mends: bool = False, served: int = 1) -> None:
        super().__init__(model)  # type: ignore[arg-type]
        self.set, self.toward, self.mends, self.served = model, toward, mends, served
        self.writes = 0
        self.last = ""
        """The last assignment, by the name of its move."""
        self.dies_at = 0
        """Before which write, counted from 1, this process dies once; 0: never."""

    def another_life(self, toward: str) -> SetWalk:
        """Another process that knows the record."""
        other = SetWalk(self.set, toward, mends=self.mends, served=self.served)
        other.draining_pods, other.assigned_at, other.last = self.draining_pods, self.assigned_at, self.last
        return other

    def drains(self) -> dict[str, Drain]:
        uids = {each.uid for each in self.draining_pods}
        return {pod.uid: self._drain_of(pod) for pod in self.set.pods if pod.uid in uids}

    def order(self) -> Order:
        edit, away = (EDIT, "old") if self.toward == "new" else (EDIT.inverse(), "new")
        return Order(
            away,
            self.toward,
            edit,
            self.set.own,
            self.draining_pods,
            self.drains(),
            LIMIT,
            LIMIT,
            self.assigned_at,
            repairs=self.toward == "old",
            mends=self.mends,
            served_before=self.served,
            held=self.held,
            may_lack=1,
            is_made=self.last == Pause.__name__,
        )

    def move(self) -> Move:
        move = next_ordinal_move(self.set.fleet(), self.order(), self.set.now)
        if isinstance(move, Blocked) and self.toward == "old":
            # A run that began asks again.
            return Wait(move.reason, move.message)
        return move

    def apply(self, effect: Effect) -> None:
        self.writes += 1
        self.last = self.last if isinstance(effect, Cordon | Uncordon | DeletePod) else type(effect).__name__
        if self.writes == self.dies_at:
            self.write_down(effect)
            return
        super().apply(effect)

    def happen(self, act: int, which: int) -> None:
        self.set.happen(act, which)
