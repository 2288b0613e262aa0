"""A model of the deployment and ReplicaSet controllers, one small act at a time.

It follows Kubernetes 1.36 `pkg/controller/deployment/rolling.go` and `pkg/controller/replicaset`:
what may be removed is counted from the ReplicaSets' specs and statuses, which lag behind the pods.
Acts happen in any order that a test chooses, so that every interleaving can be tried in memory; the
tests of the light tier run the same walk against the real controllers.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from kvmedic.model.edits import Field, TokenEdit
from kvmedic.model.fleet import Fleet, Pod, ReplicaSet, RolloutFields, Rotation
from kvmedic.rollout.moves import (
    Claim,
    Cordon,
    DeletePod,
    Effect,
    Freeze,
    Hold,
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
)
from kvmedic.rollout.start_failure import MAKING_LIMIT

START = datetime(2026, 3, 1, tzinfo=UTC)
EDIT = TokenEdit("vllm", 0, Field.ARGS, 1, "--max-num-seqs=64", "--max-num-seqs=16")
LONGEST_SOAK_SECONDS = 86_400
"""No person's `minReadySeconds` is longer, in this model; the frozen one is."""
REFUSED = "pods is forbidden: exceeded quota: gpus"
OWN_FIELDS = RolloutFields(False, "25%", "25%", 0, 600)


class StaleError(Exception):
    """A patch whose tests do not hold."""


@dataclass
class ModelSet:
    """One ReplicaSet: its desired number, what it last reported."""

    revision: str
    desired: int = 0
    min_ready: int = 0
    reported: int = 0
    reported_available: int = 0
    seen: bool = True
    most: int = 0
    """Replicas and surge when it was scaled last (annotation `deployment.kubernetes.io/max-replicas`)."""
    failure: str = ""
    """Why no more pods can be made."""
    asked_at: datetime | None = None
    """When the assignment was made that has it make pods; None: it has made all."""


@dataclass
class ModelPod:
    name: str
    revision: str
    ready: bool = False
    cordoned: bool = False
    in_rotation: bool = False
    busy: bool = False
    broken: bool = False
    soaked: bool = False
    """It has been Ready for longer than any `minReadySeconds` of a person."""
    number: int = 0
    """Pods are made in this order, one a second."""
    unready_at: datetime | None = None
    """Since when it is not Ready, while it is not."""
    served: bool = False
    """It has taken requests, now or before."""
    stubborn: bool = False
    """Its requests do not end before any drain times out."""
    placed: bool = False
    """It has a node."""
    placeless: bool = False
    """No node has a device for it."""
    late: bool = False
    """It was made after `MAKING_LIMIT`: nobody counts on it any more, and it may be met Ready unseen.

    For that its engine has to start, and get a request, between the patch that puts the template back and
    what the deployment controller makes of it. That took 0.2-0.4 s, both controllers are one process, and no
    engine starts in that time. Here it may: without the excuse one example fails, `MADE_TOO_LATE`."""


@dataclass
class Model:
    """A Deployment with its controllers. Every public method is one act that may happen or not."""

    replicas: int
    revision: str = "old"
    fields: RolloutFields = OWN_FIELDS
    now: datetime = START
    sets: dict[str, ModelSet] = field(default_factory=dict)
    pods: list[ModelPod] = field(default_factory=list)
    observed: bool = True
    broken_revisions: set[str] = field(default_factory=set)
    broken_numbers: set[int] = field(default_factory=set)
    """Pods that are broken whatever they run, by the order in which they are made."""
    stubborn_numbers: set[int] = field(default_factory=set)
    """Pods whose requests do not end, likewise."""
    devices: int = 10**9
    """Pods that find a node."""
    quota: int = 10**9
    """Pods that may be made."""
    front: bool = False
    """Something leads requests to these pods whatever their label is."""
    lost_in_rotation: list[str] = field(default_factory=list)
    """Pods that went while they took requests: by our own moves this must stay empty."""
    undrained: list[str] = field(default_factory=list)
    """Pods that had served and went without a cordon: nobody asked whether they were idle."""
    fewest: int = 10**9
    fence: str = ""
    strategy: str = "RollingUpdate"
    lost_late: list[str] = field(default_factory=list)
    """The same of those that were made too late to be known of, as the way back from them began."""
    own: RolloutFields = OWN_FIELDS
    """The Deployment's fields before anybody changed them."""
    most: int = 0
    """Most pods that were there at once."""
    committed: int = 0
    """Assignments to the number of replicas that were committed."""
    _names: int = 0
    _assigned_at: datetime = START

    @classmethod
    def healthy(cls, replicas: int, own: RolloutFields = OWN_FIELDS) -> Model:
        model = cls(replicas, fields=own, own=own, strategy=own.strategy)
        model.sets["old"] = ModelSet("old", replicas, own.min_ready_seconds, replicas, replicas)
        for _ in range(replicas):
            pod = model._pod("old")
            pod.ready = pod.in_rotation = pod.served = pod.placed = pod.soaked = True
        model.fewest = replicas
        return model

    def _pod(self, revision: str) -> ModelPod:
        self._names += 1
        broken = revision in self.broken_revisions or self._names in self.broken_numbers
        pod = ModelPod(
            f"p{self._names:02d}", revision, broken=broken, number=self._names, unready_at=self.now
        )
        pod.stubborn = self._names in self.stubborn_numbers
        self.pods.append(pod)
        self.most = max(self.most, len(self.pods))
        return pod

    def break_down(self, name: str) -> None:
        """Let a replica crash, for good."""
        pod = self._find(name)
        pod.broken, pod.ready, pod.in_rotation, pod.unready_at = True, False, False, self.now
        self.sets[pod.revision].reported_available -= 1
        self.fewest -= 1

    # What the operator does.

    def apply(self, effect: Effect) -> None:
        match effect:
            case Freeze(_, fields) | Retarget(_, fields) | Revert(_, fields):
                self.revision = "new" if self.revision == "old" else "old"
                self._assign(fields)
            case Hold(_, fields) | Pause(fields) | Pulse(_, fields) | Restore(fields) | Release(fields):
                self._assign(fields)
            case Regain(_, _, fields):
                self._assign(fields or replace(self.fields, strategy=self.strategy))
            case Cordon(pod) | Uncordon(pod):
                self._find(pod.name).cordoned = isinstance(effect, Cordon)
            case DeletePod(pod):
                self._remove(self._find(pod.name))
            case ScaleOut(before, replicas) | ScaleIn(before, replicas):
                self._scale(effect, before, replicas)
            case Claim():
                self.committed += 1

    def _scale(self, move: ScaleOut | ScaleIn, before: int, replicas: int) -> None:
        """The API server's side of it: the tests of the patch hold, or nothing changes."""
        ready = sum(pod.ready for pod in self.pods)
        if self.replicas != before or (isinstance(move, ScaleIn) and move.ready not in (None, ready)):
            raise StaleError
        self.replicas, self.observed = replicas, False
        self.committed += 1

    def _assign(self, fields: RolloutFields) -> None:
        self.fields, self.strategy = fields, fields.strategy
        self.observed = False
        self._assigned_at = self.now

    def _find(self, name: str) -> ModelPod:
        return next(p for p in self.pods if p.name == name)

    # What the cluster does.

    def happen(self, act: int, which: int) -> None:
        """Let a controller act, the kubelet of one pod, or some time pass: seven acts in turn."""
        match act:
            case 0 | 1:
                self.deployment_controller()
            case 2:
                self.replica_set_controller("old")
            case 3:
                self.replica_set_controller("new")
            case 4:
                self.kubelet(which)
            case 5:
                self.endpoints()
            case _:
                self.requests_end()
                self.pass_time(1)

    def deployment_controller(self) -> None:
        """One sync: the target ReplicaSet gets the frozen fields; then one scaling, unless paused."""
        self.observed = True
        target = self.sets.get(self.revision)
        if target is None:
            if self.fields.paused:
                self._one_alone()
                return
            target = self.sets[self.revision] = ModelSet(self.revision)
        if self.strategy == "Recreate" and not self.fields.paused:
            self._recreate(target)
            return
        if self.fields.paused and not self._saturated(target):
            self._in_proportion()
        if target.min_ready != self.fields.min_ready_seconds:
            target.min_ready = self.fields.min_ready_seconds
            target.seen = False
            return
        if self._scaled_in(target) or self.fields.paused or self._scaled_up(target):
            return
        self._scale_down(target)

    def _recreate(self, target: ModelSet) -> None:
        """Every replica of another revision goes at once, and then all of the present one are made."""
        target.min_ready, target.seen = self.fields.min_ready_seconds, True
        for other in self.sets.values():
            other.desired = other.desired if other is target else 0
        if all(pod.revision == target.revision for pod in self.pods):
            target.desired = self.replicas

    def _saturated(self, target: ModelSet) -> bool:
        """A paused Deployment whose revision has every replica Available keeps no other (sync.go, scale)."""
        if not self.replicas == target.desired == target.reported_available:
            return False
        for other in self.sets.values():
            other.desired = other.desired if other is target else 0
        return True

    def _surge(self) -> int:
        surge = self.fields.max_surge
        return surge if isinstance(surge, int) else -(-self.replicas // 4)

    def _one_alone(self) -> None:
        """The only revision that has replicas follows their number, paused or not (sync.go, scale)."""
        active = [each for each in self.sets.values() if each.desired]
        if len(active) == 1:
            active[0].desired = self.replicas

    def _in_proportion(self) -> None:
        """A paused Deployment of several revisions is scaled to its surge in proportion (sync.go)."""
        active = [each for each in self.sets.values() if each.desired]
        if not active[1:]:
            self._one_alone()
            return
        allowed = self.replicas + self._surge() if self.replicas else 0
        missing = allowed - sum(each.desired for each in active)
        newest_first = active[::-1] if missing > 0 else active
        by_size, left = sorted(newest_first, key=lambda each: -each.desired), missing
        for each in by_size if missing else ():
            share = int(each.desired * allowed / (each.most or len(self.pods)) + 0.5) - each.desired
            share = min(share, left) if missing > 0 else max(share, left)
            each.desired, left = each.desired + share, left - share
        by_size[0].desired = max(0, by_size[0].desired + left)
        for each in active:
            each.most = allowed
            each.asked_at = self._assigned_at if missing > 0 else each.asked_at

    def _scaled_in(self, target: ModelSet) -> bool:
        """The present revision has no more than the number; alone also while it is paused (sync.go)."""
        alone = not any(s.desired for s in self.sets.values() if s is not target)
        if target.desired <= self.replicas or (self.fields.paused and not alone):
            return False
        target.desired = self.replicas
        return True

    def _scaled_up(self, target: ModelSet) -> bool:
        total = sum(s.desired for s in self.sets.values())
        room = self.replicas + self._surge() - total
        add = min(room, self.replicas - target.desired)
        if add <= 0:
            return False
        target.desired += add
        target.most = self.replicas + self._surge()
        target.asked_at = self._assigned_at
        return True

    def _scale_down(self, target: ModelSet) -> None:
        unavailable = self.fields.max_unavailable
        unavailable = self.replicas // 4 if isinstance(unavailable, str) else min(unavailable, self.replicas)
        total = sum(s.desired for s in self.sets.values())
        least = self.replicas - unavailable
        room = total - least - (target.desired - target.reported_available)
        if room <= 0:
            return
        others = [s for s in self.sets.values() if s is not target and s.desired]
        for other in others:
            unhealthy = min(room, other.desired - min(other.desired, other.reported_available))
            other.desired -= unhealthy
            room -= unhealthy
        available = sum(min(s.desired, s.reported_available) for s in self.sets.values())
        down = available - least
        for other in others:
            count = max(0, min(other.desired, down))
            other.desired -= count
            down -= count

    def replica_set_controller(self, revision: str) -> None:
        """One sync: create or delete pods, then report."""
        own = self.sets.get(revision)
        if own is None:
            return
        pods = [p for p in self.pods if p.revision == revision]
        room = max(0, self.quota - len(self._all_pods()))
        own.failure = REFUSED if own.desired - len(pods) > room else ""
        for _ in range(min(room, own.desired - len(pods))):
            self._pod(revision).late = bool(own.asked_at and self.now - own.asked_at > MAKING_LIMIT)
        own.asked_at = None
        surplus = sorted(pods, key=self.order_of_going)[: max(0, len(pods) - own.desired)]
        for pod in surplus:
            self._remove(pod)
        pods = [p for p in self.pods if p.revision == revision]
        own.seen = True
        own.reported = len(pods)
        own.reported_available = sum(p.ready and self._is_long_ready(p, own.min_ready) for p in pods)

    def order_of_going(self, pod: ModelPod) -> tuple[bool | str, ...]:
        """Which pod of a ReplicaSet goes before which."""
        return pod.ready, not pod.cordoned, pod.name

    def _is_long_ready(self, pod: ModelPod, seconds: int) -> bool:
        return seconds == 0 or (pod.soaked and seconds <= LONGEST_SOAK_SECONDS)

    def _remove(self, pod: ModelPod) -> None:
        if pod.in_rotation or pod.busy:
            unknown = pod.late and pod.revision != self.revision
            (self.lost_late if unknown else self.lost_in_rotation).append(pod.name)
        if pod.served and not pod.cordoned:
            self.undrained.append(pod.name)
        self.pods.remove(pod)

    def kubelet(self, index: int) -> None:
        """One pod becomes Ready, if it can."""
        pod = self.pods[index % len(self.pods)] if self.pods else None
        if pod is None:
            return
        self._place(pod)
        pod.ready = pod.ready or (pod.placed and not pod.broken)

    def _place(self, pod: ModelPod) -> None:
        """Give a pod a node, if one has a device that no other pod holds."""
        pod.placed = pod.placed or sum(other.placed for other in self._all_pods()) < self.devices
        pod.placeless = not pod.placed

    def _all_pods(self) -> list[ModelPod]:
        """The pods that hold a device and count against a quota."""
        return self.pods

    def endpoints(self) -> None:
        """EndpointSlices follow the pods' labels and readiness."""
        for pod in self.pods:
            inside = pod.ready and (not pod.cordoned or (self.front and pod.stubborn))
            if inside:
                pod.busy = pod.served = True
            pod.in_rotation = inside
        self.fewest = min(self.fewest, sum(p.in_rotation for p in self.pods))

    def requests_end(self) -> None:
        """Requests on pods out of rotation finish."""
        for pod in self.pods:
            pod.busy = pod.busy and (pod.in_rotation or pod.stubborn)

    def pass_time(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    # What the operator sees.

    def fleet(self) -> Fleet:
        return Fleet(
            namespace="serving",
            name="llm",
            uid="uid-1",
            resource_version="1",
            generation=1,
            observed=self.observed,
            replicas=self.replicas,
            strategy=self.strategy,
            fields=replace(self.fields, strategy=self.strategy),
            revision=self.revision,
            status_replicas=len(self.pods),
            updated_replicas=sum(p.revision == self.revision for p in self.pods),
            fence=self.fence,
            replica_sets=tuple(
                ReplicaSet(
                    f"llm-{s.revision}",
                    s.revision,
                    i,
                    s.desired,
                    s.reported_available,
                    s.min_ready,
                    s.seen,
                    failure=s.failure,
                )
                for i, s in enumerate(self.sets.values())
            ),
            pods=tuple(self._seen(p) for p in self.pods),
            rotation=Rotation("serving", "draining", ("llm",), effective=True, in_selector=False),
            owner=None,
            recorded={},
        )

    def _seen(self, pod: ModelPod) -> Pod:
        return Pod(
            name=pod.name,
            uid=pod.name,
            resource_version="1",
            revision=pod.revision,
            address="10.0.0.1",
            created_at=START + timedelta(seconds=pod.number),
            ready_at=START if pod.ready else None,
            unready_at=None if pod.ready else pod.unready_at,
            terminating=False,
            unschedulable=pod.placeless,
            in_rotation=pod.in_rotation,
            listed_by=("Service llm",) if pod.in_rotation else (),
            cordoned=pod.cordoned,
            restarts=0,
            waiting_reason="CrashLoopBackOff" if pod.broken else "",
            node="node-1",
        )


def paused(fields: RolloutFields) -> RolloutFields:
    return replace(fields, paused=True)
