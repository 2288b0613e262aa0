"""What is read to compute the room for a spare: as little as decides it, and what may not be read is said."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import pytest

from kvmedic.cluster.node_inventory import SURROUNDINGS_LAST, SharedSurroundings, room_for
from kvmedic.cluster.workloads import DeploymentTarget
from kvmedic.kube.errors import Call, Refused, Unavailable
from kvmedic.kube.objects import CLAIMS, NODES, PODS, QUOTAS, Ref, Resource
from kvmedic.model.fleet import Fleet
from kvmedic.rollout.spares.room import Finding, NoRoom, Room, RoomUnknown
from kvmedic.runbooks.workload import View
from run_builder import a_fleet

GPU = "nvidia.com/gpu"
TEMPLATE = {"spec": {"containers": [{"name": "vllm", "resources": {"limits": {GPU: "1"}}}]}}


def a_node(name: str, gpus: int, **metadata: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name, **metadata},
        "status": {"allocatable": {GPU: str(gpus), "pods": "110"}},
    }


def a_pod(name: str, node: str, gpus: int = 1, **spec: Any) -> dict[str, Any]:
    container = {"name": "vllm", "resources": {"limits": {GPU: str(gpus)}}}
    return {
        "metadata": {"name": name, "namespace": "serving"},
        "spec": {"containers": [container], "nodeName": node, **spec},
        "status": {"phase": "Running"},
    }


@dataclass
class Cluster:
    """Objects by kind, and what was asked."""

    there: Mapping[Resource, list[dict[str, Any]]]
    refused: frozenset[Resource] = frozenset()
    asked: list[tuple[str, str]] = field(default_factory=list)

    async def list(self, resource: Resource, *asked: str, **selected: str) -> Any:
        assert resource != PODS, "thousands of pods as they are take more memory than all else"
        return self._select(resource, *asked, **selected)

    def _select(self, resource: Resource, namespace: str, labels: str = "", fields: str = "") -> Any:
        del labels
        self.asked.append((resource.plural, fields))
        self._check(resource)
        node = fields.partition(",")[0].partition("spec.nodeName=")[2]
        found = self.there.get(resource, [])
        return [each for each in found if not node or each["spec"]["nodeName"] == node]

    async def read_each(self, *asked: Any, **fields: str) -> AsyncIterator[Any]:
        for each in self._select(*asked, **fields):
            yield each

    async def get(self, ref: Ref) -> Any:
        self._check(ref.resource)
        found = self.there.get(ref.resource, [])
        return next((each for each in found if each["metadata"]["name"] == ref.name), None)

    def _check(self, resource: Resource) -> None:
        if resource in self.refused:
            raise Refused(Call("list", resource.path()), 403, "Forbidden")


async def room(cluster: Cluster, fleet: Fleet | None = None, template: Any = TEMPLATE) -> Finding:
    here = fleet or a_fleet(pods=())
    return await room_for(cluster, here, template)  # type: ignore[arg-type]


async def test_only_pods_of_nodes_that_could_take_the_spare_are_asked_for() -> None:
    cluster = Cluster({NODES: [a_node("gpu-1", 2), a_node("cpu-1", 0)], PODS: [a_pod("a", "gpu-1")]})

    assert await room(cluster) == Room(("gpu-1",))
    assert [fields.partition(",")[0] for plural, fields in cluster.asked if plural == "pods"] == [
        "spec.nodeName=gpu-1"
    ]


async def test_no_pods_are_listed_where_no_node_could_take_it() -> None:
    cluster = Cluster({NODES: [a_node("cpu-1", 0)]})

    assert isinstance(await room(cluster), NoRoom)
    assert "pods" not in {plural for plural, _ in cluster.asked}


async def test_the_last_device_is_no_room() -> None:
    cluster = Cluster({NODES: [a_node("gpu-1", 1)], PODS: [a_pod("a", "gpu-1")]})

    assert isinstance(await room(cluster), NoRoom)


async def test_pods_that_ended_leave_their_room() -> None:
    ended = {**a_pod("a", "gpu-1"), "status": {"phase": "Failed"}}
    cluster = Cluster({NODES: [a_node("gpu-1", 1)], PODS: [ended]})

    assert isinstance(await room(cluster), Room)


@pytest.mark.parametrize("kind", [NODES, PODS], ids=["nodes", "pods"])
async def test_who_may_not_look_does_not_know(kind: Resource) -> None:
    cluster = Cluster({NODES: [a_node("gpu-1", 1)], PODS: [a_pod("a", "gpu-1")]}, frozenset({kind}))

    seen = await room(cluster)

    assert isinstance(seen, RoomUnknown)
    assert "403 Forbidden" in seen.message


async def test_who_may_not_read_quotas_and_claims_computes_without() -> None:
    template = {
        "spec": {**TEMPLATE["spec"], "volumes": [{"persistentVolumeClaim": {"claimName": "weights"}}]}
    }
    cluster = Cluster({NODES: [a_node("gpu-1", 1)]}, frozenset({QUOTAS, CLAIMS}))

    assert isinstance(await room(cluster, template=template), Room)


async def test_a_quota_counts_by_its_scopes() -> None:
    full = {"status": {"hard": {"pods": "1"}, "used": {"pods": "1"}}}
    named = {"metadata": {"name": "team"}, **full}
    batch = {"metadata": {"name": "jobs"}, "spec": {"scopes": ["Terminating"]}, **full}
    other = {
        "metadata": {"name": "low"},
        "spec": {
            "scopeSelector": {
                "matchExpressions": [{"scopeName": "PriorityClass", "operator": "In", "values": ["low"]}]
            }
        },
        **full,
    }
    nodes = {NODES: [a_node("gpu-1", 1)]}

    assert isinstance(await room(Cluster({**nodes, QUOTAS: [batch, other]})), Room)
    assert isinstance(await room(Cluster({**nodes, QUOTAS: [batch, named]})), NoRoom)


async def test_a_replica_that_runs_shows_what_admission_added() -> None:
    fleet = a_fleet()
    newest = fleet.list_pods(fleet.revision)[-1].name
    node = a_node("node1", 9)
    node["spec"] = {"taints": [{"key": GPU, "value": "present", "effect": "NoSchedule"}]}
    running = a_pod(newest, "node1", tolerations=[{"key": GPU, "operator": "Exists"}])
    others = {pod.node for pod in fleet.live} - {"node1", ""}
    nodes = [node, *(a_node(name, 0) for name in sorted(others))]

    with_it = await room(Cluster({NODES: nodes, PODS: [running]}), fleet)
    without = await room(Cluster({NODES: nodes}), fleet)

    assert with_it == Room(("node1",))
    assert isinstance(without, NoRoom)


async def test_replicas_on_nodes_that_are_not_listed_leave_it_open() -> None:
    fleet = a_fleet()
    fleet = replace(fleet, pods=tuple(replace(pod, node="node1") for pod in fleet.pods))

    assert isinstance(await room(Cluster({NODES: [a_node("virtual", 9)]}), fleet), RoomUnknown)


@pytest.mark.parametrize(
    ("mark", "who"),
    [
        (
            {"labels": {"karpenter.sh/nodepool": "gpus"}},
            "Karpenter (label karpenter.sh/nodepool on node gpu-1)",
        ),
        (
            {"annotations": {"cluster-autoscaler.kubernetes.io/scale-down-disabled": "true"}},
            "the cluster autoscaler (cluster-autoscaler.kubernetes.io/scale-down-disabled on node gpu-1)",
        ),
        ({}, ""),
    ],
)
async def test_who_adds_nodes_is_seen_by_what_it_left_on_them(mark: dict[str, Any], who: str) -> None:
    cluster = Cluster({NODES: [a_node("gpu-1", 1, **mark)], PODS: [a_pod("a", "gpu-1")]})

    seen = await room(cluster)

    assert isinstance(seen, NoRoom)
    assert seen.adds_nodes == who


PORT = {"name": "vllm", "ports": [{"containerPort": 8000, "hostPort": 8000}]}
BOUND: Mapping[str, Mapping[str, Any]] = {
    "by name": {"nodeName": "gpu-01"},
    "by label": {"nodeSelector": {"kubernetes.io/hostname": "gpu-01"}},
    "by affinity": {
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [
                        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["gpu-01"]}]}
                    ]
                }
            }
        }
    },
}


@pytest.mark.parametrize("bound", BOUND.values(), ids=BOUND)
async def test_a_port_of_the_only_node_takes_no_second_pod_whatever_can_be_seen(bound) -> None:
    blind = Cluster({}, refused=frozenset({NODES, QUOTAS}))
    template = {"spec": {"containers": [PORT], **bound}}
    fleet = a_fleet()
    fleet = replace(fleet, pods=tuple(replace(pod, node="gpu-01") for pod in fleet.pods))

    found = await room_for(blind, fleet, template)

    assert isinstance(found, NoRoom)
    assert "port 8000 of node gpu-01 is" in found.message


async def test_a_port_of_several_nodes_or_of_none_that_serves_is_asked_of_the_nodes() -> None:
    template = {"spec": {"containers": [PORT], "nodeSelector": {"kubernetes.io/hostname": "gpu-01"}}}
    fleet = a_fleet()
    elsewhere = replace(fleet, pods=tuple(replace(pod, node="gpu-02") for pod in fleet.pods))

    found = await room_for(Cluster({}), elsewhere, template)

    assert isinstance(found, RoomUnknown)


@dataclass
class Town:
    """A reader of one pod, which answers once it is opened; at first it fails as often as `failures` says."""

    failures: int = 0
    lists: int = 0
    opened: asyncio.Event = field(default_factory=asyncio.Event)

    async def read_each(self, *_: object, fields: str = "") -> AsyncIterator[dict[str, Any]]:
        self.lists += 1
        await self.opened.wait()
        if self.lists <= self.failures:
            raise Unavailable(Call("list", "pods"), None, "away")
        yield {"metadata": {"name": "a", "namespace": "b"}, "spec": {"nodeName": "gpu-node"}}


async def test_who_asks_what_runs_on_the_nodes_at_once_shares_one_list() -> None:
    town = Town()
    shared = SharedSurroundings(town, SURROUNDINGS_LAST)  # type: ignore[arg-type]
    impatient, *asking = [asyncio.create_task(shared.tenants()) for _ in range(5)]
    await asyncio.sleep(0)
    impatient.cancel()
    town.opened.set()

    found = await asyncio.gather(*asking)

    assert town.lists == 1
    assert [each.node for answer in found for each in answer] == ["gpu-node"] * 4


async def test_two_fleets_that_ask_for_room_read_the_nodes_once() -> None:
    cluster = Cluster({NODES: [a_node("gpu-1", 1)]})
    shared = SharedSurroundings(cluster, SURROUNDINGS_LAST)  # type: ignore[arg-type]

    found = [await shared.nodes() for _ in range(2)]

    assert [each.name for answer in found for each in answer.nodes] == ["gpu-1"] * 2
    assert len(cluster.asked) == 1


async def test_runs_that_begin_together_list_what_runs_on_the_nodes_once() -> None:
    cluster = Cluster({NODES: [a_node("gpu-1", 2)], PODS: [a_pod("a", "gpu-1")]})
    shared = SharedSurroundings(cluster, SURROUNDINGS_LAST)  # type: ignore[arg-type]
    target = DeploymentTarget(cluster, surroundings=shared)  # type: ignore[arg-type]
    fleets = [a_fleet(name=f"chat-{number}", pods=()) for number in range(3)]

    found = await asyncio.gather(*(target.room_for(View(each, TEMPLATE)) for each in fleets))

    assert found == [Room(("gpu-1",))] * 3
    assert [plural for plural, _ in cluster.asked if plural in ("nodes", "pods")] == ["nodes", "pods"]


async def test_what_runs_on_the_nodes_is_forgotten_once_it_is_old() -> None:
    town = Town()
    town.opened.set()
    shared = SharedSurroundings(town, timedelta(seconds=0.05))  # type: ignore[arg-type]
    await shared.tenants()
    await shared.tenants()
    assert town.lists == 1

    await asyncio.sleep(0.1)

    await shared.tenants()
    assert town.lists == 2


async def test_a_list_that_failed_is_read_anew() -> None:
    town = Town(failures=1)
    town.opened.set()
    shared = SharedSurroundings(town, SURROUNDINGS_LAST)  # type: ignore[arg-type]
    with pytest.raises(Unavailable):
        await shared.tenants()
    await asyncio.sleep(0.01)

    assert len(await shared.tenants()) == 1
