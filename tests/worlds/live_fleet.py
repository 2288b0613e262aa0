"""A fleet on the light tier, a walker that moves it as the reconcile loop does, and a witness of what went.

The walker keeps what a run's record keeps (draining pods, claim, time of the last assignment) and nothing
else, so it can be thrown away and made anew at any moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from kvmedic.cluster.fronts import DrainWay
from kvmedic.cluster.ownership import notes_on
from kvmedic.cluster.rotation import move_pod
from kvmedic.cluster.snapshot import snapshot
from kvmedic.cluster.workloads import assign
from kvmedic.kube.client import Client
from kvmedic.kube.errors import Conflict
from kvmedic.model.edits import Field, TokenEdit
from kvmedic.model.evidence import Blocked
from kvmedic.model.fleet import Fleet, template_hash
from kvmedic.model.run import DrainingPod
from kvmedic.model.spec import RotationLabel, RotationWay, TargetRef
from kvmedic.rollout.draining import Drain
from kvmedic.rollout.frozen_rollout import Order
from kvmedic.rollout.frozen_rollout import next_template_move as next_move
from kvmedic.rollout.moves import (
    AdoptPod,
    Cordon,
    CordonOrphan,
    DeletePod,
    Failed,
    MarkStandIn,
    Move,
    Pause,
    ReleasePod,
    Settled,
    Uncordon,
    Wait,
)
from kvmedic.rollout.orphan_drain import draining_value
from kvmedic.rollout.stateful.walk import next_ordinal_move
from kvmedic.runbooks.workload import View
from lab.cluster.light import LightCluster
from lab.cluster.watch import Watches

NAME = "llm"
LABEL = RotationLabel("serving", "draining")
TARGET = TargetRef("Deployment", NAME, "vllm")
ARGS = ["serve", "/model", "--max-num-seqs=64", "--port=8000"]
EDIT = TokenEdit("vllm", 0, Field.ARGS, 2, "--max-num-seqs=64", "--max-num-seqs=16")
POLL_SECONDS = 0.15
"""A look takes eight requests. What is waited for takes the real controllers a tenth of a second and more."""


def deployment(
    replicas: int,
    annotations: dict[str, str] | None = None,
    resources: dict[str, Any] | None = None,
    **spec: Any,
) -> dict[str, Any]:
    """A Deployment whose pods are taken out of rotation by the label `serving`."""
    image = "vllm/vllm-openai:v0.32.0"
    container = {"name": "vllm", "image": image, "args": ARGS, "resources": resources or {}}
    template = {
        "metadata": {"labels": {"app": NAME, "serving": "true"}, "annotations": annotations or {}},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 1},
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": NAME},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": NAME}},
            "template": template,
            **spec,
        },
    }


def service(name: str = NAME, **selector: str) -> dict[str, Any]:
    """A Service over the fleet; by default it selects the rotation label."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"selector": selector or {"app": NAME, "serving": "true"}, "ports": [{"port": 80}]},
    }


@dataclass
class LiveFleet:
    """A Deployment and its Service in a namespace of the light tier."""

    light: LightCluster
    client: Client
    namespace: str
    kind: str = TARGET.kind

    async def look(self) -> View:
        """The fleet as it is now."""
        way = RotationWay.LABEL if self.kind == TARGET.kind else RotationWay.AUTO
        seen = await snapshot(
            self.client, self.namespace, replace(TARGET, kind=self.kind), LABEL, DrainWay(way)
        )
        assert seen is not None
        return seen

    async def fleet(self) -> Fleet:
        """The fleet as it is now, without its template."""
        return (await self.look()).fleet

    async def until(self, holds: Callable[[Fleet], bool], what: str, seconds: float = 20) -> Fleet:
        """Wait for a state of the fleet."""
        deadline = asyncio.get_running_loop().time() + seconds
        while True:
            fleet = await self.fleet()
            if holds(fleet):
                return fleet
            assert asyncio.get_running_loop().time() < deadline, f"{what} within {seconds} s: {fleet}"
            await asyncio.sleep(POLL_SECONDS)

    async def serving(self, replicas: int, annotations: dict[str, str] | None = None, **spec: Any) -> Fleet:
        """Create the Deployment and its Service, and wait until every replica is in rotation."""
        self.light.api.create(service(), self.namespace)
        self.light.api.create(deployment(replicas, annotations, **spec), self.namespace)
        return await self.until(is_whole, f"{replicas} replicas in rotation")

    def deployment(self) -> dict[str, Any]:
        """The Deployment's object, by another client than the one under test."""
        return self.light.api.get(self.kind, NAME, self.namespace)

    def patch(self, patch: dict[str, Any]) -> dict[str, Any]:
        """A person's edit of the Deployment."""
        return self.light.api.patch("Deployment", NAME, patch, self.namespace)

    def pod(self, name: str) -> dict[str, Any]:
        """A pod's object."""
        return self.light.api.get("Pod", name, self.namespace)

    def patch_pod(self, name: str, patch: dict[str, Any]) -> dict[str, Any]:
        """A person's edit of a pod."""
        return self.light.api.patch("Pod", name, patch, self.namespace)


def is_whole(fleet: Fleet) -> bool:
    """Whether every replica is Ready, Available and in rotation, and nothing else is there."""
    available = sum(each.available for each in fleet.replica_sets)
    return (
        fleet.observed
        and len(fleet.pods) == fleet.replicas == available == fleet.in_rotation == fleet.ready
        and fleet.replicas > 0
    )


@dataclass
class Walker:
    """Moves a fleet as the reconcile loop does, with the memory that a run's record has."""

    live: LiveFleet
    order: Order
    claim_of: Callable[[int], str]
    sequence: int = 0
    moves: list[Move] = field(default_factory=list)
    conflicts: int = 0
    on_step: Callable[[Fleet, Move], Awaitable[None]] | None = None

    async def walk(self, seconds: float = 60) -> Settled | Failed | Blocked:
        """Move on until there is nothing more to do. On the way back a refusal is waited out."""
        deadline = asyncio.get_running_loop().time() + seconds
        while asyncio.get_running_loop().time() < deadline:
            move = await self.step()
            if isinstance(move, Settled | Failed) or (isinstance(move, Blocked) and not self.order.repairs):
                return move
            await asyncio.sleep(POLL_SECONDS)
        raise AssertionError(f"not at the end after {seconds} s; last moves {self.names()[-12:]}")

    async def step(self) -> Move:
        """Look, decide, and carry one move out."""
        seen = await self.live.look()
        drains = {each.uid: drain_of(seen.fleet, each) for each in self.order.draining_pods}
        order = replace(self.order, drains=drains)
        following = next_ordinal_move if seen.fleet.is_stateful else next_move
        move = following(seen.fleet, order, datetime.now(UTC))
        if not self.moves or move != self.moves[-1]:
            self.moves.append(move)
        if self.on_step is not None:
            await self.on_step(seen.fleet, move)
        try:
            await self.carry_out(seen.fleet, move)
        except Conflict:
            self.conflicts += 1
        return move

    async def carry_out(self, fleet: Fleet, move: Move) -> None:
        """Do what a move says, with the next claim."""
        self.sequence = max(self.sequence, _sequence(fleet.fence))
        now = datetime.now(UTC)
        match move:
            case Wait() | Settled() | Failed() | Blocked():
                return
            case Cordon(pod, beside):
                kept = tuple(each for each in self.order.draining_pods if each.uid in beside)
                self.order = replace(self.order, draining_pods=(*kept, DrainingPod(pod.name, pod.uid, now)))
                await move_pod(self.live.client, fleet, move)
            case ReleasePod(pod):
                self.order = replace(self.order, draining_pods=(DrainingPod(pod.name, pod.uid, now),))
                await move_pod(self.live.client, fleet, move)
            case CordonOrphan(orphan):
                draining_pods = (DrainingPod(orphan.pod.name, orphan.pod.uid, now),)
                self.order = replace(self.order, draining_pods=draining_pods)
                await move_pod(self.live.client, fleet, move)
            case Uncordon() | DeletePod() | AdoptPod() | MarkStandIn():
                await move_pod(self.live.client, fleet, move)
            case _:
                self.order = replace(self.order, pulsed_at=now, is_made=isinstance(move, Pause))
                await assign(
                    self.live.client, fleet, move, self.claim_of(self.sequence + 1), notes_on(fleet, move)
                )

    def back(self) -> Walker:
        """The way back from wherever this one stopped."""
        order = replace(
            self.order,
            away=self.order.toward,
            toward=self.order.away,
            edit=self.order.edit.inverse(),
            draining_pods=(),
            wave=1,
            repairs=True,
            is_made=False,
        )
        return Walker(self.live, order, self.claim_of, self.sequence)

    def names(self) -> list[str]:
        """The moves by name, waits included."""
        return [type(move).__name__ for move in self.moves]

    def effects(self) -> list[str]:
        """The moves by name, waits left out."""
        return [name for name in self.names() if name not in ("Wait", "Refused")]


def walker(live: LiveFleet, seen: View, **changes: Any) -> Walker:
    """A walker for the one edit of these tests, from a fleet that stands still."""
    order = Order(
        away=seen.fleet.revision,
        toward=template_hash(EDIT.apply(seen.template)),
        edit=EDIT,
        recorded=seen.fleet.fields,
        draining_pods=(),
        drains={},
        start_limit=timedelta(seconds=30),
        spare_limit=timedelta(seconds=30),
    )
    return Walker(live, replace(order, **changes), lambda number: f"resource/run/{number}")


def drain_of(fleet: Fleet, draining_pod: DrainingPod | None) -> Drain:
    """What a replica without requests says once it is out of rotation."""
    pods = (*fleet.pods, *(each.pod for each in fleet.orphans))
    pod = next((pod for pod in pods if draining_pod and pod.uid == draining_pod.uid), None)
    if pod is None:
        return Drain.UNKNOWN
    return Drain.BUSY if pod.in_rotation or not pod.cordoned else Drain.IDLE


def _sequence(fence: str) -> int:
    return int(fence.rpartition("/")[2]) if fence else 0


def is_cordoned(pod: dict[str, Any]) -> bool:
    """Whether a pod is out of rotation, by the rotation label or as one that was released."""
    labels = pod["metadata"]["labels"]
    own = draining_value(pod["metadata"]["uid"])
    return labels.get(LABEL.key) == LABEL.draining or own in labels.values()


@dataclass
class Witness:
    """Every event of the pods and EndpointSlices of a namespace, in order; nothing is missed."""

    gone: list[dict[str, Any]] = field(default_factory=list)
    """Pods as they were when they began to terminate, or were deleted."""
    fewest: int = 10**9
    """The least number of ready endpoints that the EndpointSlices ever listed."""
    _terminating: set[str] = field(default_factory=set)

    def undrained(self) -> list[str]:
        """Names of pods that went while they carried no cordon."""
        return [pod["metadata"]["name"] for pod in self.gone if not is_cordoned(pod)]

    def undrained_ready(self) -> list[str]:
        """Those of them that were Ready, so that they may have served."""
        conditions = {
            pod["metadata"]["name"]: pod.get("status", {}).get("conditions", []) for pod in self.gone
        }
        ready = {"type": "Ready", "status": "True"}
        return [
            name
            for name in self.undrained()
            if any(ready.items() <= each.items() for each in conditions[name])
        ]

    def pod(self, event: str, body: dict[str, Any]) -> None:
        """Take note of one event."""
        metadata = body["metadata"]
        ending = "deletionTimestamp" in metadata or event == "DELETED"
        if ending and metadata["uid"] not in self._terminating:
            self._terminating.add(metadata["uid"])
            self.gone.append(body)

    def slice(self, event: str, body: dict[str, Any]) -> None:
        """Take note of one event; the fleet has one EndpointSlice."""
        endpoints = body.get("endpoints") or []
        ready = sum(each["conditions"].get("ready", True) for each in endpoints)
        self.fewest = min(self.fewest, ready)


@asynccontextmanager
async def witnessed(live: LiveFleet) -> AsyncIterator[Witness]:
    """Watch a namespace while the block runs, from the state in which it begins."""
    witness = Witness()
    pods = f"/api/v1/namespaces/{live.namespace}/pods"
    slices = f"/apis/discovery.k8s.io/v1/namespaces/{live.namespace}/endpointslices"
    with Watches(live.light.access, {pods: witness.pod, slices: witness.slice}):
        yield witness
        await asyncio.sleep(0.5)
