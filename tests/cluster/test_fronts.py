"""By which labels requests are led to the pods of a fleet: Services, InferencePools and routers."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from kvmedic.cluster.fronts import (
    INFERENCE_POOLS,
    NOT_READ,
    Depth,
    DrainWay,
    complete_drain,
    with_orphan_drain,
)
from kvmedic.cluster.snapshot import snapshot
from kvmedic.cluster.workloads import DeploymentTarget
from kvmedic.doctor.documents import as_served
from kvmedic.kube.client import Reader
from kvmedic.kube.errors import Call, Refused
from kvmedic.kube.objects import Ref, Resource
from kvmedic.model.fleet import OrphanDrain, Rotation
from kvmedic.model.spec import RotationWay, TargetRef
from kvmedic.rollout.orphan_drain import explain_blocked_drain
from worlds.asked import a_resource
from worlds.live_fleet import LABEL, NAME
from worlds.neighbours import definition
from worlds.plain_fleet import PlainFleet

RELEASED, OLDER = INFERENCE_POOLS
APP = {"app": "llm", "tier": "chat"}


class Cluster:
    """An API server with some kinds, and objects of them."""

    def __init__(self, found: dict[Resource, list[dict[str, Any]]]) -> None:
        self._found = found

    async def get(self, ref: Ref) -> dict[str, Any] | None:
        raise NotImplementedError

    async def list(self, resource: Resource, namespace: str, _selector: str = "") -> list[dict[str, Any]]:
        if resource not in self._found:
            raise Refused(Call("list", resource.path(namespace)), 404, "NotFound")
        return self._found[resource]


def a_pool(selector: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": {"name": "pool"}, "spec": {"selector": selector, "targetPorts": [{"number": 8000}]}}


def a_service(selector: dict[str, str]) -> dict[str, Any]:
    return {"metadata": {"name": "llm"}, "spec": {"selector": selector}}


def way_of(
    labels: dict[str, str],
    services: list[dict[str, Any]] = [],  # noqa: B006 - never changed
    pools: dict[Resource, list[dict[str, Any]]] = {},  # noqa: B006 - never changed
    routers: tuple[dict[str, str], ...] = (),
) -> OrphanDrain:
    container = {"name": "vllm", "resources": {"limits": {"nvidia.com/gpu": 1}}}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    deployment = {"metadata": {"namespace": "serving"}, "spec": {"template": template}}
    rotation = Rotation("serving", "draining", (), effective=False, in_selector=False)
    parts = services, [each["metadata"]["name"] for each in services]
    found = asyncio.run(with_orphan_drain(Cluster(pools), deployment, rotation, routers, parts))
    assert found.orphan is not None
    return found.orphan


@pytest.mark.parametrize(
    ("pools", "keys"),
    [
        ({RELEASED: [a_pool({"matchLabels": {"app": "llm"}})]}, ("app",)),
        ({OLDER: [a_pool({"tier": "chat"})]}, ("tier",)),
        ({RELEASED: [a_pool({"matchLabels": {"app": "llm"}})], OLDER: [a_pool({"tier": "chat"})]}, None),
        ({RELEASED: [a_pool({"matchLabels": {"app": "other"}})]}, ()),
        ({RELEASED: []}, ()),
        ({}, ()),
    ],
    ids=["released", "the one before", "both", "of another fleet", "no pool", "a cluster without the kind"],
)
def test_an_inference_pool_leads_requests_by_its_labels(pools, keys) -> None:
    way = way_of(APP, pools=pools)

    assert way.keys == (("app", "tier") if keys is None else keys)
    assert bool(way.blocked) is (keys == ())


def test_one_label_is_enough_where_service_and_pool_go_by_it() -> None:
    pool = {RELEASED: [a_pool({"matchLabels": APP})]}

    assert way_of(APP, [a_service({"app": "llm"})], pool).keys == ("app",)
    assert way_of(APP, [a_service({"tier": "chat"})], pool).keys == ("tier",)


@pytest.mark.parametrize(
    ("labels", "keys"),
    [
        ({"model.aibrix.ai/name": "llama"}, ("model.aibrix.ai/name",)),
        ({"helm-release-name": "vllm", "environment": "test", "release": "test"}, ("environment",)),
        ({"environment": "test", "release": "test"}, ()),
        ({"llm-d.ai/inferenceServing": "true"}, ("llm-d.ai/inferenceServing",)),
        ({"llm-d.ai/inference-serving": "true"}, ("llm-d.ai/inference-serving",)),
        ({"team": "chat"}, ()),
    ],
    ids=["AIBrix", "production-stack", "labels that anybody has", "llm-d", "llm-d's other spelling", "none"],
)
def test_routers_are_known_by_what_their_charts_put_on_pods(labels, keys) -> None:
    assert way_of(labels).keys == keys


def test_a_router_that_the_spec_names_is_left_too() -> None:
    labels = {**APP, "served-by": "router"}

    assert way_of(labels, [a_service({"app": "llm"})], routers=({"served-by": "router"},)).keys == (
        "app",
        "served-by",
    )


PLAIN = TargetRef("Deployment", "llm", None)


class Counting:
    """A reader that counts what is listed."""

    def __init__(self, served: Reader) -> None:
        self._served = served
        self.clock = SimpleNamespace(now=lambda: datetime(2026, 3, 1, tzinfo=UTC))
        self.listed: Counter[str] = Counter()

    async def get(self, ref: Ref) -> dict[str, Any] | None:
        return await self._served.get(ref)

    async def list(self, resource: Resource, *about: str) -> list[dict[str, Any]]:
        self.listed[resource.plural] += 1
        return await self._served.list(resource, *about)


DRAINING = {"inferencepools": 2, "poddisruptionbudgets": 1, "networkpolicies": 1}
"""What only draining depends on, and how often it is listed: pools in the API's two groups."""


def a_plain_fleet(selector: dict[str, str]) -> Counting:
    container = {"name": "vllm", "image": "vllm/vllm-openai:v0.11.0", "args": ["--model=m"]}
    spec = {
        "replicas": 2,
        "selector": {"matchLabels": {"app": "llm"}},
        "template": {"metadata": {"labels": {"app": "llm"}}, "spec": {"containers": [container]}},
    }
    fleet = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "llm"}, "spec": spec}
    front = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "llm"},
        "spec": {"selector": selector},
    }
    return Counting(as_served([fleet, front], "serving"))


def test_a_quick_look_lists_nothing_that_only_draining_depends_on_and_lets_nothing_be_drained() -> None:
    reader, policy = a_plain_fleet({"app": "llm"}), a_resource().policy
    assert policy is not None
    policy = replace(policy, target=PLAIN)
    target = DeploymentTarget(reader)  # type: ignore[arg-type]  # only what is read of a client

    seen = asyncio.run(target.quick_look("serving", policy))
    at_first = Counter(reader.listed)
    whole = asyncio.run(complete_drain(reader, seen, policy.rollout.routers))
    completed = reader.listed - at_first
    again = asyncio.run(complete_drain(reader, whole, policy.rollout.routers))
    reader.listed.clear()
    looked = asyncio.run(target.look("serving", policy))

    assert not at_first.keys() & DRAINING.keys()
    assert explain_blocked_drain(seen.fleet) == NOT_READ
    assert completed == DRAINING
    assert (again, explain_blocked_drain(whole.fleet)) == (whole, "")
    assert reader.listed == at_first + Counter(DRAINING)
    assert whole.fleet == looked.fleet


def test_a_quick_look_at_a_fleet_without_a_service_reads_what_leads_requests_to_it() -> None:
    reader = a_plain_fleet({"app": "other"})

    drain = DrainWay(RotationWay.ORPHAN, depth=Depth.QUICK)
    asyncio.run(snapshot(reader, "serving", PLAIN, LABEL, drain))

    assert reader.listed["inferencepools"] == 2


async def test_pools_of_both_groups_are_read_where_a_cluster_has_them(live) -> None:
    """The kinds with the fields that are read; what else they have is left as it is."""
    plain = PlainFleet(live.light, live.client, live.namespace, way=RotationWay.ORPHAN)
    await plain.serving(1)
    live.light.kubectl("-n", live.namespace, "delete", "service", NAME)
    labels = plain.deployment()["spec"]["template"]["metadata"]["labels"]
    assert (await plain.look()).fleet.rotation.orphan.keys == ()

    for kind, selector in zip(INFERENCE_POOLS, ({"matchLabels": labels}, labels), strict=True):
        made = definition(*kind.group_version.split("/"), "InferencePool", kind.plural)
        live.light.apply(made)
        name = f"crd/{made['metadata']['name']}"
        live.light.kubectl("wait", "--for=condition=Established", name, "--timeout=20s")
        pool = {**a_pool(selector), "apiVersion": kind.group_version, "kind": "InferencePool"}
        live.light.apply(pool, live.namespace)

        assert (await plain.look()).fleet.rotation.orphan.keys == ("app",)

        plural = f"{kind.plural}.{kind.group_version.split('/')[0]}"
        live.light.kubectl("-n", live.namespace, "delete", plural, "pool")
