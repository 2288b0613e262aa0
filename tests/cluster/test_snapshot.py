"""What is read of a fleet: on a real API server where the server matters, and by tables where it does not."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from kvmedic.cluster.fronts import front_port
from kvmedic.cluster.ownership import CORDON_COST, CORDONED, DELETION_COST
from kvmedic.cluster.snapshot import (
    Frame,
    container_index,
    find_listing_services,
    map_ready_listings,
    pod_of,
    rollout_fields,
    rotation_of,
    snapshot,
)
from kvmedic.engines import profiles_for
from kvmedic.kube.client import Client, Limits, connect
from kvmedic.kube.errors import Refused
from kvmedic.kube.objects import Ref, Resource, selector_text
from kvmedic.model.devices import ContainerEnd, Instance
from kvmedic.model.fleet import Fleet, Pod, RolloutFields, Rotation, template_hash
from kvmedic.rollout.draining import stray_move
from kvmedic.rollout.moves import Uncordon
from lab.cluster.simulation import behaviour
from run_builder import a_fleet
from worlds.live_fleet import EDIT, LABEL, NAME, TARGET, LiveFleet, deployment, is_whole, service


class Counted:
    """A client that keeps what was asked of it."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.asked: list[str] = []

    async def get(self, ref: Ref) -> Any:
        self.asked.append(ref.resource.plural)
        return await self.client.get(ref)

    async def list(self, resource: Resource, namespace: str, label_selector: str = "") -> Any:
        self.asked.append(resource.plural)
        return await self.client.list(resource, namespace, label_selector)


class TestRealServer:
    async def test_a_deployment_that_does_not_exist_has_no_fleet(self, live: LiveFleet) -> None:
        assert await snapshot(live.client, live.namespace, TARGET, LABEL) is None

    async def test_a_fleet_that_serves(self, live: LiveFleet) -> None:
        before = datetime.now(UTC) - timedelta(seconds=2)
        await live.serving(2)

        seen = await live.look()

        fleet, body = seen.fleet, live.deployment()
        assert (fleet.namespace, fleet.name) == (live.namespace, NAME)
        assert fleet.uid == body["metadata"]["uid"]
        assert fleet.generation == body["metadata"]["generation"]
        assert fleet.observed
        assert fleet.strategy == "RollingUpdate"
        assert fleet.fields == RolloutFields(False, "25%", "25%", 0, 600)
        assert (fleet.replicas, fleet.status_replicas, fleet.updated_replicas) == (2, 2, 2)
        assert (fleet.fence, fleet.recorded, fleet.owner) == ("", {}, None)
        assert fleet.rotation == Rotation("serving", "draining", ("llm",), effective=True, in_selector=False)
        (only,) = fleet.replica_sets
        assert (only.revision, only.number, only.desired, only.available) == (fleet.revision, 1, 2, 2)
        assert (only.observed, only.min_ready_seconds) == (True, 0)
        for pod in fleet.pods:
            raw = live.pod(pod.name)
            assert pod.uid == raw["metadata"]["uid"]
            assert pod.resource_version == raw["metadata"]["resourceVersion"]
            assert pod.revision == fleet.revision
            assert pod.address == raw["status"]["podIP"]
            assert pod.node == "node1"
            assert pod.ready_at is not None
            assert pod.unready_at is None
            assert before <= pod.created_at <= pod.ready_at
            assert (pod.in_rotation, pod.cordoned, pod.terminating, pod.unschedulable) == (
                True,
                False,
                False,
                False,
            )
            assert (pod.restarts, pod.waiting_reason) == (0, "")
        assert seen.template == body["spec"]["template"]

    async def test_a_replica_that_a_quota_refuses_is_reported_until_it_is_made(self, live: LiveFleet) -> None:
        await live.serving(1)
        quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "few"}}
        live.light.api.apply({**quota, "spec": {"hard": {"pods": "1"}}}, live.namespace)
        live.patch({"spec": {"replicas": 2}})

        refused = await live.until(lambda fleet: bool(fleet.replica_sets[0].failure), "it is refused")
        live.light.api.apply({**quota, "spec": {"hard": {"pods": "2"}}}, live.namespace)
        made = await live.until(lambda fleet: fleet.ready == 2, "it is made")

        assert "exceeded quota: few" in refused.replica_sets[0].failure
        assert made.replica_sets[0].failure == ""

    async def test_a_revision_is_known_by_when_it_came_and_by_its_template(self, live: LiveFleet) -> None:
        first = await live.serving(1)
        labels = {"app": NAME, "serving": "other"}
        live.patch({"spec": {"template": {"metadata": {"labels": labels}}}})
        await live.until(lambda fleet: len(fleet.replica_sets) == 2, "another ReplicaSet")

        seen = await live.look()

        sets = {each.revision: each for each in seen.fleet.replica_sets}
        old, new = sets[first.revision], sets[seen.fleet.revision]
        assert old.created_at is not None
        assert new.created_at is not None
        assert old.created_at <= new.created_at
        assert (old.number, new.number) == (1, 2)
        assert (old.reachable, new.reachable) == (True, True), "no Service selects the present template"
        assert {name: template_hash(each) for name, each in seen.templates.items()} == {
            old.name: old.revision,
            new.name: new.revision,
        }

    async def test_a_revision_that_was_brought_back_keeps_its_earlier_number(self, live: LiveFleet) -> None:
        first = await live.serving(1)
        for note in ("tried", None):
            live.patch({"spec": {"template": {"metadata": {"annotations": {"note": note}}}}})
            await live.until(lambda fleet: len(fleet.replica_sets) == 2, "another ReplicaSet")
        await live.until(lambda fleet: any(rs.number == 3 for rs in fleet.replica_sets), "a third number")

        seen = await live.look()

        assert seen.fleet.revision == first.revision
        sets = {rs.first_number: (rs.number, rs.earlier_numbers) for rs in seen.fleet.replica_sets}
        assert sets == {1: (3, (1,)), 2: (2, ())}

    async def test_a_look_costs_seven_calls_in_the_order_of_cause_and_effect(self, live: LiveFleet) -> None:
        await live.serving(1)
        client = Counted(live.client)

        await snapshot(client, live.namespace, TARGET, LABEL)  # type: ignore[arg-type]

        assert client.asked == [
            "deployments",
            "replicasets",
            "pods",  # those that were released from their ReplicaSet
            "pods",
            "services",
            "endpointslices",
            "horizontalpodautoscalers",
        ]

    async def test_an_edited_template_hashes_as_computed_before_the_edit(self, live: LiveFleet) -> None:
        await live.serving(1)
        seen = await live.look()
        computed = template_hash(EDIT.apply(seen.template))
        live.patch({"spec": {"template": {"spec": {"containers": _edited(live)}}}})

        after = await live.until(lambda fleet: fleet.observed and len(fleet.replica_sets) == 2, "a rollout")

        assert after.revision == computed
        assert {each.revision for each in after.replica_sets} == {seen.fleet.revision, computed}
        assert sorted(each.number for each in after.replica_sets) == [1, 2]

    async def test_pods_of_others_with_the_same_labels_are_not_ours(self, live: LiveFleet) -> None:
        fleet = await live.serving(1)
        lone = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "lone", "labels": {"app": NAME, "serving": "true"}},
            "spec": {"containers": [{"name": "vllm", "image": "x"}], "nodeSelector": {"nowhere": "true"}},
        }
        live.light.api.create(lone, live.namespace)
        other = deployment(1)
        other["metadata"]["name"] = "other"
        other["spec"]["selector"]["matchLabels"]["team"] = "b"
        other["spec"]["template"]["metadata"]["labels"]["team"] = "b"
        live.light.api.create(other, live.namespace)
        await asyncio.sleep(1)

        after = await live.fleet()

        assert [pod.uid for pod in after.pods] == [pod.uid for pod in fleet.pods]
        assert len(after.replica_sets) == 1

    async def test_a_pod_that_ended_for_good_is_no_replica(self, live: LiveFleet) -> None:
        fleet = await live.serving(2)
        evicted = fleet.pods[0].name
        status = {"status": {"phase": "Failed", "reason": "Evicted"}}
        live.light.api.patch("Pod", evicted, status, live.namespace, "status")

        after = await live.until(
            lambda seen: is_whole(seen) and evicted not in {pod.name for pod in seen.pods}, "a replacement"
        )

        assert live.pod(evicted)["status"]["phase"] == "Failed"
        assert len(after.pods) == 2

    async def test_a_pod_on_its_way_out_is_seen_and_takes_no_requests(self, live: LiveFleet) -> None:
        fleet = await live.serving(2, behaviour(gone_after="10s"))
        going = fleet.pods[0].name
        live.light.api.delete("Pod", going, live.namespace)

        after = await live.until(lambda seen: any(pod.terminating for pod in seen.pods), "a pod terminates")
        after = await live.until(lambda seen: not _named(seen, going).in_rotation, "it leaves rotation")

        assert going not in {pod.name for pod in after.list_pods(after.revision)}

    async def test_a_pod_that_crashes_says_so(self, live: LiveFleet) -> None:
        live.light.api.create(deployment(1, behaviour(mode="crash")), live.namespace)

        fleet = await live.until(lambda seen: any(pod.waiting_reason for pod in seen.pods), "a crash")

        assert fleet.pods[0].waiting_reason == "CrashLoopBackOff"
        assert not fleet.pods[0].ready

    async def test_a_pod_that_no_node_takes_is_unschedulable(self, live: LiveFleet) -> None:
        body = deployment(1)
        body["spec"]["template"]["spec"]["nodeSelector"] = {"nowhere": "true"}
        live.light.api.create(body, live.namespace)

        fleet = await live.until(lambda seen: any(pod.unschedulable for pod in seen.pods), "no node")

        assert (fleet.pods[0].node, fleet.pods[0].address) == ("", "")

    async def test_a_pod_that_is_not_ready_is_out_of_rotation(self, live: LiveFleet) -> None:
        fleet = await live.serving(2)
        sick = fleet.pods[0].name
        await asyncio.sleep(1.1)  # times on the wire are whole seconds
        live.patch_pod(sick, {"metadata": {"annotations": behaviour(mode="unready")}})

        after = await live.until(lambda seen: not _named(seen, sick).ready, "one is not Ready")
        after = await live.until(lambda seen: seen.in_rotation == 1, "one is out")

        assert _named(after, sick).unready_at > _named(fleet, sick).ready_at
        assert not _named(after, sick).in_rotation

    async def test_a_second_service_without_the_label_makes_the_label_useless(self, live: LiveFleet) -> None:
        await live.serving(1)
        live.light.api.create(service("metrics", app=NAME), live.namespace)

        after = await live.until(lambda seen: len(seen.rotation.services) == 2, "the Service is seen")

        assert after.rotation.services == ("llm", "metrics")
        assert not after.rotation.effective

    async def test_slices_that_somebody_writes_by_hand_make_the_label_useless(self, live: LiveFleet) -> None:
        fleet = await live.serving(1)
        pod = fleet.pods[0]
        reference = {"kind": "Pod", "name": pod.name, "namespace": live.namespace, "uid": pod.uid}
        by_hand = {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {"name": "by-hand", "labels": {"kubernetes.io/service-name": "external"}},
            "addressType": "IPv4",
            "endpoints": [{"addresses": [pod.address], "targetRef": reference}],
        }
        live.light.api.create(by_hand, live.namespace)

        after = await live.fleet()

        assert after.rotation.services == ("external", "llm")
        assert not after.rotation.effective

    async def test_without_permission_the_first_read_is_refused(self, live: LiveFleet, tmp_path: Any) -> None:
        kubeconfig = live.light.impersonate("default", live.namespace).write_kubeconfig(tmp_path / "config")
        async with await connect(kubeconfig, Limits()) as nobody:
            with pytest.raises(Refused, match='cannot get resource "deployments"'):
                await snapshot(nobody, live.namespace, TARGET, LABEL)

    @pytest.mark.parametrize(
        ("by", "owned"),
        [
            ("kubectl", False),
            ("argocd-controller", True),
            ("somebodys-operator", True),
        ],
    )
    async def test_who_applies_the_manifest_owns_it_unless_it_is_a_person(
        self,
        live: LiveFleet,
        by: str,
        owned: bool,
    ) -> None:
        live.light.api.apply(deployment(1), live.namespace, manager=by)

        assert ((await live.fleet()).owner is not None) is owned

    async def test_who_applies_only_the_replicas_owns_nothing_of_ours(self, live: LiveFleet) -> None:
        live.light.api.create(deployment(1), live.namespace)
        part = {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": NAME},
            "spec": {"replicas": 2},
        }
        live.light.api.apply(part, live.namespace, manager="autoscaler")

        fleet = await live.fleet()

        assert (fleet.replicas, fleet.owner) == (2, None)


def _edited(live: LiveFleet) -> list[dict[str, Any]]:
    template = EDIT.apply(live.deployment()["spec"]["template"])
    return list(template["spec"]["containers"])  # type: ignore[index]


def _named(fleet: Fleet, name: str) -> Any:
    return next(pod for pod in fleet.pods if pod.name == name)


def exposed(*services: dict[str, Any], slices: tuple[dict[str, Any], ...] = (), **spec: Any) -> Rotation:
    body = {**deployment(1), **({"spec": {**deployment(1)["spec"], **spec}} if spec else {})}
    return rotation_of(body, LABEL, services, find_listing_services(slices, frozenset({"ours"})))


def a_slice(uid: str, service_name: str = NAME, **conditions: bool) -> dict[str, Any]:
    labels = {"kubernetes.io/service-name": service_name} if service_name else {}
    endpoint = {"conditions": conditions, "targetRef": {"uid": uid}}
    return {"metadata": {"labels": labels}, "endpoints": [endpoint]}


class TestRotation:
    def test_every_service_that_selects_the_pods_must_look_at_the_label(self) -> None:
        good, bad = service("good"), service("bad", app=NAME)

        assert exposed(good).effective
        assert not exposed(good, bad).effective
        assert exposed(good, bad).services == ("bad", "good")

    def test_without_a_service_the_label_does_nothing(self) -> None:
        assert exposed() == Rotation("serving", "draining", (), effective=False, in_selector=False)

    def test_services_of_others_do_not_count(self) -> None:
        elsewhere = service("elsewhere", app="other")
        nothing = service("nothing")
        nothing["spec"]["selector"] = None

        assert exposed(service(), elsewhere, nothing).services == (NAME,)

    def test_slices_of_a_service_without_a_selector_do_not_follow_a_label(self) -> None:
        external = service("external")
        external["spec"]["selector"] = None

        assert not exposed(service(), external, slices=(a_slice("ours", "external"),)).effective
        assert exposed(service(), external, slices=(a_slice("theirs", "external"),)).effective

    def test_slices_of_no_service_do_not_follow_a_label(self) -> None:
        assert not exposed(service(), slices=(a_slice("ours", ""),)).effective

    def test_another_service_that_takes_what_drains_is_named(self) -> None:
        trap = service("trap", serving="draining")
        found = exposed(service(), trap, service("theirs", app="other", serving="draining"))

        assert (found.effective, found.rivals, found.services) == (False, ("trap",), (NAME,))
        assert exposed(service()).rivals == ()

    def test_a_template_that_carries_the_draining_value_serves_nobody(self) -> None:
        template = {"metadata": {"labels": {"app": NAME, "serving": "draining"}}}

        assert not exposed(service("odd", app=NAME, serving="draining"), template=template).effective

    @pytest.mark.parametrize(
        "selector",
        [
            {"matchLabels": {"app": NAME, "serving": "true"}},
            {"matchLabels": {"app": NAME}, "matchExpressions": [{"key": "serving", "operator": "Exists"}]},
        ],
        ids=["as a label", "as an expression"],
    )
    def test_a_label_in_the_deployments_own_selector_is_noticed(self, selector: dict[str, Any]) -> None:
        assert exposed(service(), selector=selector).in_selector
        assert not exposed(service()).in_selector

    @pytest.mark.parametrize(
        ("conditions", "serves"),
        [
            ({"ready": True}, True),
            ({}, True),
            ({"ready": False}, False),
            ({"ready": True, "terminating": True}, False),
            ({"ready": False, "serving": True, "terminating": True}, False),
        ],
    )
    def test_who_gets_requests(self, conditions: dict[str, bool], serves: bool) -> None:
        assert map_ready_listings([a_slice("ours", **conditions)]) == (
            {"ours": ("Service llm",)} if serves else {}
        )

    def test_one_slice_of_many_is_enough(self) -> None:
        slices = [a_slice("ours", "a", ready=False), a_slice("ours", "b", ready=True), {"endpoints": None}]

        assert map_ready_listings(slices) == {"ours": ("Service b",)}

    def test_a_slice_of_no_service_is_known_by_its_own_name(self) -> None:
        own = a_slice("ours", "", ready=True)
        own["metadata"]["name"] = "mine"

        assert map_ready_listings([own, a_slice("ours")]) == {"ours": ("EndpointSlice mine", "Service llm")}


@pytest.mark.parametrize(
    ("selector", "text"),
    [
        ({"matchLabels": {"a": "1", "b": "2"}}, "a=1,b=2"),
        ({"matchExpressions": [{"key": "a", "operator": "In", "values": ["1", "2"]}]}, "a in (1,2)"),
        ({"matchExpressions": [{"key": "a", "operator": "NotIn", "values": ["1"]}]}, "a notin (1)"),
        ({"matchExpressions": [{"key": "a", "operator": "Exists"}]}, "a"),
        ({"matchExpressions": [{"key": "a", "operator": "DoesNotExist"}]}, "!a"),
        ({"matchLabels": {"a": "1"}, "matchExpressions": [{"key": "b", "operator": "Exists"}]}, "a=1,b"),
    ],
)
def test_selectors_as_queries(selector: dict[str, Any], text: str) -> None:
    assert selector_text(selector) == text


CONTAINERS = {"spec": {"containers": [{"name": "proxy"}, {"name": "vllm"}]}}
SERVES = {"name": "vllm", "image": "vllm/vllm-openai:v0.32.0", "command": ["vllm", "serve", "m"]}
WITH_SIDECAR = {"spec": {"containers": [{"name": "proxy", "image": "envoy"}, SERVES]}}
TWO_ENGINES = {"spec": {"containers": [SERVES, SERVES | {"name": "other"}]}}
ALONE = {"spec": {"containers": [{"name": "vllm"}]}}


OWN_IMAGE = {"name": "serve", "image": "example.com/llm:7", "args": ["--model=m", "--port", "8200"]}


def test_an_image_that_says_nothing_is_an_engine_where_the_target_names_it() -> None:
    template = {"spec": {"containers": [{"name": "proxy", "image": "envoy"}, OWN_IMAGE]}}

    assert container_index(template, None) is None
    assert container_index(template, None, profiles_for("vLLM")) == 1


def with_ports(*ports: tuple[str, int], **more: Any) -> dict[str, Any]:
    declared = [{"name": name, "containerPort": number} for name, number in ports]
    return {"name": "vllm", "image": "vllm/vllm-openai:v0.32.0", "ports": declared, **more}


PROXY = {"name": "proxy", "image": "envoy", "ports": [{"containerPort": 8443}]}
MINE = profiles_for("vLLM")


@pytest.mark.parametrize(
    ("engine", "scrape", "more", "port"),
    [
        (with_ports(("", 8080), args=["--port", "8200"]), "9400", {}, 8200),
        (with_ports(("", 8080), args=["--port=8200"]), "", {"port": 7000}, 7000),
        (with_ports(args=["--port", "$(PORT)"], env=[{"name": "PORT", "value": "2080"}]), "", {}, 2080),
        (with_ports(("", 8080), args=["--port", "$(PORT)"]), "", {}, 8080),
        (with_ports(("grpc", 9000), ("http", 8888)), "", {}, 8888),
        (with_ports(("http", 8888), ("metrics", 9100)), "", {}, 9100),
        (with_ports(("a", 9000), ("b", 8888)), "8080", {}, 8080),
        (with_ports(("a", 9000), ("b", 8888)), "", {"front_port": 8888}, 8888),
        (with_ports(("a", 9000), ("b", 8888)), "many", {}, None),
        (with_ports(("", 8000), ("", 5557)), "", {"front_port": 8000}, 8000),
        (with_ports(("", 9000), ("", 5557)), "", {"front_port": 9000}, 9000),
        (with_ports(("", 8000), ("", 5557)), "", {}, 8000),
        (with_ports(("", 9000), ("", 5557)), "", {}, None),
        (with_ports(), "70000", {}, None),
        ({**OWN_IMAGE, "name": "vllm"}, "", {}, None),
        ({**OWN_IMAGE, "name": "vllm"}, "", {"profiles": MINE}, 8200),
    ],
)
def test_where_the_metrics_of_a_pod_are(
    engine: dict[str, Any], scrape: str, more: dict[str, Any], port: int | None
) -> None:
    body = a_pod({}, {"prometheus.io/port": scrape}) | {"spec": {"containers": [PROXY, engine]}}

    assert pod_of(body, Frame("r", "vllm", ROTATION, {}, **more)).port == port


LLM = {"app": "llm"}


def _declaring(restart: str, *ports: tuple[str, int, str]) -> dict[str, Any]:
    keys = ("name", "containerPort", "protocol")
    return {"restartPolicy": restart, "ports": [dict(zip(keys, port, strict=True)) for port in ports]}


NAMED = {
    "metadata": {"labels": LLM},
    "spec": {
        "containers": [
            _declaring("", ("api", 9000, "TCP"), ("zmq", 5557, "TCP"), ("udp", 9000, "UDP")),
            _declaring("", ("mesh", 8443, "TCP")),
        ],
        "initContainers": [
            _declaring("Never", ("once", 7000, "TCP")),
            _declaring("Always", ("late", 8444, "TCP"), ("api", 7001, "TCP")),
        ],
    },
}


@pytest.mark.parametrize(
    ("services", "port"),
    [
        ([(LLM, [{"port": 80, "targetPort": 8080}])], 8080),
        ([(LLM, [{"port": 8080}])], 8080),
        ([(LLM, [{"port": 80, "targetPort": "api"}])], 9000),
        ([(LLM, [{"port": 80, "targetPort": "mesh"}])], 8443),
        ([(LLM, [{"port": 80, "targetPort": "late"}])], 8444),
        ([(LLM, [{"port": 80, "targetPort": "api"}]), (LLM, [{"port": 9000}])], 9000),
        ([(LLM, [{"port": 80, "targetPort": "api"}, {"port": 81, "targetPort": "mesh"}])], None),
        ([(LLM, [{"port": 80, "targetPort": "udp"}])], None),
        ([(LLM, [{"port": 80, "targetPort": "once"}])], None),
        ([(LLM, [{"port": 80, "targetPort": "gone"}])], None),
        ([(LLM, [{"port": 80, "targetPort": "gone"}, {"port": 9000}])], None),
        ([(LLM, [{"port": 80, "targetPort": 8080}]), (LLM, [{"port": 9000}])], None),
        ([({"app": "other"}, [{"port": 8080}])], None),
        ([], None),
    ],
)
def test_the_port_that_services_lead_to(
    services: list[tuple[dict[str, str], list[dict[str, Any]]]], port: int | None
) -> None:
    made = [{"spec": {"selector": selector, "ports": ports}} for selector, ports in services]

    assert front_port(made, NAMED) == port


@pytest.mark.parametrize(
    ("template", "name", "index"),
    [
        (CONTAINERS, "vllm", 1),
        (CONTAINERS, None, None),
        (WITH_SIDECAR, None, 1),
        (TWO_ENGINES, None, None),
        (CONTAINERS, "gone", None),
        (ALONE, None, 0),
        (ALONE, "gone", None),
        ({}, None, None),
    ],
)
def test_which_container_is_the_engine(template: dict[str, Any], name: str | None, index: int | None) -> None:
    assert container_index(template, name) == index


def test_fields_of_a_deployment_that_recreates() -> None:
    spec = {"strategy": {"type": "Recreate"}, "paused": True}

    assert rollout_fields({"spec": spec}) == RolloutFields(True, 0, 0, 0, None, "Recreate")


ROTATION = Rotation("serving", "draining", ("llm",), effective=True, in_selector=False)


def a_pod(labels: dict[str, str], annotations: dict[str, str] | None = None, **status: Any) -> dict[str, Any]:
    metadata = {
        "name": "p",
        "uid": "u",
        "resourceVersion": "7",
        "creationTimestamp": "2026-03-01T03:00:00Z",
        "labels": labels,
        "annotations": annotations,
    }
    return {"metadata": metadata, "spec": {}, "status": status}


@pytest.mark.parametrize(
    ("label", "cost", "cordoned"),
    [
        ("draining", CORDON_COST, True),
        ("draining", None, False),
        ("draining", "-1", False),
        ("true", CORDON_COST, False),
        (None, None, False),
    ],
)
def test_a_pod_is_cordoned_when_it_carries_both_marks(
    label: str | None,
    cost: str | None,
    cordoned: bool,
) -> None:
    labels = {"serving": label} if label else {}
    body = a_pod(labels, {DELETION_COST: cost} if cost else None)

    assert pod_of(body, Frame("r", None, ROTATION, {})).cordoned is cordoned


@pytest.mark.parametrize("note", ["", "garbage", '{"label": "true", "cost": null}', None])
@pytest.mark.parametrize("cost", ["", "garbage", "-1", None])
@pytest.mark.parametrize("label", ["true", "draining"])
def test_a_pod_that_drains_by_our_note_alone_is_put_back(
    label: str, cost: str | None, note: str | None
) -> None:
    given = {DELETION_COST: cost, CORDONED: note}
    body = a_pod({"serving": label}, {key: text for key, text in given.items() if text is not None})
    fleet = a_fleet()
    pod = pod_of(body, Frame(fleet.revision, None, ROTATION, {}))

    moved = stray_move(fleet, (pod,))

    assert moved == (Uncordon(pod) if label == "draining" and note is not None else None)


@pytest.mark.parametrize(
    ("container", "restarts", "reason"),
    [("vllm", 3, "CrashLoopBackOff"), ("proxy", 1, ""), (None, 4, "CrashLoopBackOff")],
)
def test_only_the_engines_container_counts_where_it_is_known(
    container: str | None, restarts: int, reason: str
) -> None:
    statuses = [
        {"name": "proxy", "restartCount": 1, "state": {"running": {}}},
        {"name": "vllm", "restartCount": 3, "state": {"waiting": {"reason": "CrashLoopBackOff"}}},
    ]
    pod = pod_of(
        a_pod({}, containerStatuses=statuses), Frame("r", container, ROTATION, {"u": ("Service llm",)})
    )

    assert (pod.restarts, pod.waiting_reason, pod.in_rotation) == (restarts, reason, True)


@pytest.mark.parametrize(
    ("container", "image"), [("vllm", "vllm@sha256:1"), ("proxy", ""), (None, ""), ("gone", "")]
)
def test_what_the_engines_container_runs_is_as_the_kubelet_found_it(
    container: str | None, image: str
) -> None:
    statuses = [
        {"name": "proxy", "image": "proxy:latest"},
        {"name": "vllm", "image": "vllm:latest", "imageID": "vllm@sha256:1"},
    ]
    pod = pod_of(a_pod({}, containerStatuses=statuses), Frame("r", container, ROTATION, {}))

    assert pod.image == image


LATELY = datetime(2026, 3, 1, 2, 58, tzinfo=UTC)
STARTED = LATELY - timedelta(minutes=1)


def ended(*containers: tuple[str, dict[str, Any]]) -> Pod:
    """A pod whose containers ended as given before they were started again."""
    return seen(*({"name": name, "lastState": {"terminated": end}} for name, end in containers))


def seen(*states: dict[str, Any]) -> Pod:
    """A pod with such statuses of its containers."""
    body = {
        "metadata": {
            "name": "llm-0",
            "uid": "u",
            "resourceVersion": "1",
            "creationTimestamp": "2026-03-01T02:00:00Z",
        },
        "spec": {"nodeName": "gpu-7"},
        "status": {"containerStatuses": [{"restartCount": 2, **state} for state in states]},
    }
    return pod_of(body, Frame("r", "vllm" if len(states) < 3 else None, ROTATION, {}))


END = {
    "exitCode": 1,
    "reason": "Error",
    "startedAt": "2026-03-01T02:57:00Z",
    "finishedAt": "2026-03-01T02:58:00Z",
}
EARLIER = {
    "exitCode": 2,
    "reason": "Error",
    "startedAt": "2026-03-01T02:55:00Z",
    "finishedAt": "2026-03-01T02:56:00Z",
}
CRASHING = {"waiting": {"reason": "CrashLoopBackOff"}}
RUNNING = {"running": {"startedAt": "2026-03-01T02:58:10Z"}}


def test_the_end_of_the_engines_container_is_read_off_its_status() -> None:
    pod = ended(("proxy", {"exitCode": 0, "finishedAt": "2026-03-01T02:59:00Z"}), ("vllm", END))

    assert pod.last_end == ContainerEnd("vllm", 1, "Error", STARTED, LATELY, Instance.PREVIOUS)


@pytest.mark.parametrize(
    ("state", "last", "instance", "ends"),
    [
        (CRASHING, {"terminated": END}, Instance.PREVIOUS, 3),
        ({"terminated": END}, {"terminated": EARLIER}, Instance.PRESENT, 3),
        ({"terminated": END}, {}, Instance.PRESENT, 3),
        ({"terminated": EARLIER}, {"terminated": END}, Instance.PREVIOUS, 2),
        ({"terminated": END}, {"terminated": END}, Instance.PRESENT, 3),
        (RUNNING, {"terminated": END}, Instance.PREVIOUS, 2),
    ],
    ids=[
        "it waits",
        "it just ended again",
        "for the first time",
        "the one before is newer",
        "within one second",
        "it runs again",
    ],
)
def test_the_newest_end_is_found_wherever_the_kubelet_shows_it(
    state: dict[str, Any], last: dict[str, Any], instance: Instance, ends: int
) -> None:
    pod = seen({"name": "vllm", "state": state, "lastState": last})

    assert pod.last_end == ContainerEnd("vllm", 1, "Error", STARTED, LATELY, instance)
    assert pod.ends == ends


def test_an_end_that_does_not_say_since_when_it_ran_leaves_its_log_no_time() -> None:
    pod = ended(("vllm", {**END, "startedAt": None}))

    assert pod.last_end == ContainerEnd("vllm", 1, "Error", LATELY, LATELY, Instance.PREVIOUS)


@pytest.mark.parametrize(
    "containers",
    [
        (),
        (("proxy", END),),
        (("vllm", {}),),
        (("vllm", {"exitCode": 1}),),
        (("vllm", END), ("proxy", END), ("other", END)),
    ],
    ids=["no status yet", "another container", "never ended", "no time", "the engine's is not known"],
)
def test_no_end_is_read_where_there_is_none(containers: tuple[tuple[str, dict[str, Any]], ...]) -> None:
    assert ended(*containers).last_end is None


TWO_ENGINES = {
    "metadata": {"labels": {"app": "llm"}},
    "spec": {
        "containers": [
            {"name": "chat", "image": "vllm/vllm-openai:v0.32.0", "args": ["--model=a", "--port=8000"]},
            {"name": "code", "image": "vllm/vllm-openai:v0.32.0", "args": ["--model=b", "--port=8001"]},
        ]
    },
}


@pytest.mark.parametrize(
    ("more", "ports", "only"),
    [
        ({}, (), None),
        ({"engine_ports": (8000,)}, (), None),
        ({"engine_ports": (8000, 8001)}, (8000, 8001), None),
        ({"has_other_engines": True}, (), 8001),
    ],
    ids=["nothing is declared", "one port", "a pool with two", "another container runs one"],
)
def test_which_ports_of_a_pod_are_engines(
    more: dict[str, Any], ports: tuple[int, ...], only: int | None
) -> None:
    body = a_pod({}, {}) | {"spec": TWO_ENGINES["spec"]}

    pod = pod_of(body, Frame("r", "code", ROTATION, {}, **more))

    assert (pod.engine_ports, pod.only_port) == (ports, only)
