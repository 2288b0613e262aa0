"""Whether a pod more finds a node: only what is sure says no."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from kvmedic.cluster.node_inventory import node_of, shape_of, tenant_of
from kvmedic.rollout.spares.room import (
    Node,
    NoRoom,
    Quota,
    Room,
    RoomUnknown,
    Surroundings,
    Tenant,
    Tenants,
    find_room,
)

GPU = "nvidia.com/gpu"


def a_node(name: str = "gpu-1", *, gpus: str = "8", **spec: Any) -> Node:
    labels = {"kubernetes.io/hostname": name, "zone": "a", **spec.pop("labels", {})}
    allocatable = {"cpu": "32", "memory": "256Gi", "pods": "110", GPU: gpus}
    allocatable |= spec.pop("allocatable", {})
    return node_of(
        {"metadata": {"name": name, "labels": labels}, "spec": spec, "status": {"allocatable": allocatable}}
    )


def resources(**requests: str) -> dict[str, Any]:
    named = {GPU if name == "gpu" else name: amount for name, amount in requests.items()}
    return {"resources": {"requests": named}}


def a_pod(
    node: str = "", *, gpu: str = "1", namespace: str = "serving", labels: Any = None, **spec: Any
) -> dict[str, Any]:
    containers = spec.pop("containers", [{"name": "vllm", **resources(cpu="4", memory="32Gi", gpu=gpu)}])
    return {
        "metadata": {"namespace": namespace, "labels": {"app": "llm"} if labels is None else labels},
        "spec": {"containers": containers, **({"nodeName": node} if node else {}), **spec},
    }


def found(
    pod: Mapping[str, Any], *nodes: Node, tenants: tuple[dict[str, Any], ...] = (), **known: Any
) -> Room | NoRoom | RoomUnknown:
    there = Tenants(tenant_of(each) for each in tenants)
    return find_room(shape_of("serving", pod), Surroundings(nodes, there, **known))


def test_a_free_device_is_room() -> None:
    assert found(a_pod(), a_node(), tenants=tuple(a_pod("gpu-1") for _ in range(7))) == Room(("gpu-1",))


def test_the_last_device_taken_is_no_room_with_the_figures() -> None:
    seen = found(a_pod(), a_node(), tenants=tuple(a_pod("gpu-1") for _ in range(8)))

    assert isinstance(seen, NoRoom)
    assert seen.message == (
        "a spare asks for 4 cpu, 32Gi memory, 1 nvidia.com/gpu, and none of 1 node takes it "
        "(gpu-1: 8 of 8 nvidia.com/gpu taken)"
    )


def test_a_node_that_allocates_nothing_has_no_device() -> None:
    seen = found(a_pod(), a_node(gpus="0"), a_node("cpu-1", allocatable={GPU: "0"}))

    assert isinstance(seen, NoRoom)
    assert "gpu-1: has no nvidia.com/gpu" in seen.message


def test_a_node_full_of_pods_takes_none() -> None:
    small = a_node(allocatable={"pods": "1"})

    seen = found(a_pod(), small, tenants=(a_pod("gpu-1", gpu="0"),))

    assert isinstance(seen, NoRoom)
    assert "1 of 1 pods taken" in seen.message


@pytest.mark.parametrize("nodes", [(), (a_node(),)], ids=["none listed", "not allowed"])
def test_what_cannot_be_seen_is_not_no_room(nodes: tuple[Node, ...]) -> None:
    assert isinstance(found(a_pod(), *nodes, unknown="" if not nodes else "403"), RoomUnknown)


TAINT = {"key": GPU, "value": "present", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("toleration", "fits"),
    [
        (None, False),
        ({"key": GPU, "operator": "Exists"}, True),
        ({"key": GPU, "value": "present", "effect": "NoSchedule"}, True),
        ({"key": GPU, "value": "absent"}, False),
        ({"key": GPU, "operator": "Exists", "effect": "NoExecute"}, False),
        ({"operator": "Exists"}, True),
        ({"key": "other", "operator": "Exists"}, False),
    ],
)
def test_a_taint_keeps_out_who_does_not_tolerate_it(toleration: Any, fits: bool) -> None:
    pod = a_pod(tolerations=[toleration] if toleration else [])

    seen = found(pod, a_node(taints=[TAINT]))

    assert isinstance(seen, Room if fits else NoRoom)


def test_a_taint_that_only_prefers_keeps_nobody_out() -> None:
    assert isinstance(found(a_pod(), a_node(taints=[{**TAINT, "effect": "PreferNoSchedule"}])), Room)


def test_a_cordoned_node_is_named_as_such() -> None:
    seen = found(a_pod(), a_node(unschedulable=True))

    assert isinstance(seen, NoRoom)
    assert "gpu-1: cordoned" in seen.message


def test_pods_of_daemon_sets_take_room_as_all_do() -> None:
    daemon = a_pod("gpu-1", containers=[{"name": "agent", **resources(cpu="30")}])

    seen = found(a_pod(), a_node(), tenants=(daemon,))

    assert isinstance(seen, NoRoom)
    assert "30 of 32 cpu taken" in seen.message


def test_what_a_limit_says_counts_where_no_request_does() -> None:
    pod = a_pod(containers=[{"name": "vllm", "resources": {"limits": {GPU: "8"}}}])

    assert isinstance(found(pod, a_node(), tenants=(a_pod("gpu-1"),)), NoRoom)


@pytest.mark.parametrize(
    ("init", "asked"),
    [
        ([{"name": "fetch", **resources(cpu="20")}], "20"),
        ([{"name": "fetch", **resources(cpu="1")}], "4"),
        ([{"name": "proxy", "restartPolicy": "Always", **resources(cpu="2")}], "6"),
        (
            [
                {"name": "proxy", "restartPolicy": "Always", **resources(cpu="2")},
                {"name": "fetch", **resources(cpu="9")},
            ],
            "11",
        ),
    ],
    ids=["a large one", "a small one", "one that stays", "one beside one that stays"],
)
def test_init_containers_count_by_the_largest_and_those_that_stay(init: list[Any], asked: str) -> None:
    assert shape_of("serving", a_pod(initContainers=init)).requests["cpu"] == Decimal(asked)


def test_what_the_pod_says_itself_and_its_overhead_count() -> None:
    pod = a_pod(resources={"requests": {"cpu": "10"}}, overhead={"cpu": "500m"})

    assert shape_of("serving", pod).requests["cpu"] == Decimal("10.5")


def test_pods_of_a_lower_priority_make_way_and_others_do_not() -> None:
    low = tuple(a_pod("gpu-1", priority=-10) for _ in range(8))

    assert isinstance(found(a_pod(priority=0), a_node(), tenants=low), Room)
    assert isinstance(found(a_pod(priority=-10), a_node(), tenants=low), NoRoom)
    assert isinstance(found(a_pod(preemptionPolicy="Never"), a_node(), tenants=low), NoRoom)


def test_a_class_whose_number_is_not_known_is_kept_out_by_nobody() -> None:
    full = tuple(a_pod("gpu-1", priority=1000) for _ in range(8))

    assert isinstance(found(a_pod(priorityClassName="serving"), a_node(), tenants=full), Room)


def affinity(*expressions: dict[str, Any], field: str = "matchExpressions") -> dict[str, Any]:
    terms = [{field: [each]} for each in expressions]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    return {"affinity": {"nodeAffinity": required}}


@pytest.mark.parametrize(
    ("spec", "fits"),
    [
        ({"nodeSelector": {"zone": "a"}}, True),
        ({"nodeSelector": {"zone": "b"}}, False),
        (affinity({"key": "zone", "operator": "In", "values": ["b"]}), False),
        (affinity({"key": "zone", "operator": "NotIn", "values": ["b"]}), True),
        (affinity({"key": "zone", "operator": "Exists"}), True),
        (affinity({"key": "zone", "operator": "DoesNotExist"}), False),
        (affinity({"key": "gpus", "operator": "Gt", "values": ["4"]}), True),
        (affinity({"key": "gpus", "operator": "Lt", "values": ["8"]}), False),
        (affinity({"key": "zone", "operator": "Lt", "values": ["8"]}), False),
        (
            affinity(
                {"key": "zone", "operator": "In", "values": ["b"]}, {"key": "gpus", "operator": "Exists"}
            ),
            True,
        ),
        (affinity({"key": "zone", "operator": "Later"}), True),
        (
            affinity({"key": "metadata.name", "operator": "In", "values": ["gpu-2"]}, field="matchFields"),
            False,
        ),
    ],
)
def test_selectors_and_required_affinities_leave_nodes_out(spec: Any, fits: bool) -> None:
    seen = found(a_pod(**spec), a_node(labels={"gpus": "8"}))

    assert isinstance(seen, Room if fits else NoRoom)


def term(app: str, topology: str = "kubernetes.io/hostname", **more: Any) -> Any:
    return {"topologyKey": topology, "labelSelector": {"matchLabels": {"app": app}}, **more}


def required(kind: str, *terms: Any) -> Any:
    return {"affinity": {kind: {"requiredDuringSchedulingIgnoredDuringExecution": list(terms)}}}


def test_replicas_that_keep_apart_need_a_node_each() -> None:
    apart = required("podAntiAffinity", term("llm"))

    beside = found(a_pod(**apart), a_node(), tenants=(a_pod("gpu-1", **apart),))
    alone = found(a_pod(**apart), a_node(), a_node("gpu-2"), tenants=(a_pod("gpu-1", **apart),))

    assert isinstance(beside, NoRoom)
    assert alone == Room(("gpu-2",))


def test_somebody_elses_anti_affinity_keeps_the_spare_off_too() -> None:
    other = a_pod("gpu-1", labels={"app": "db"}, **required("podAntiAffinity", term("llm")))

    assert isinstance(found(a_pod(), a_node(), tenants=(other,)), NoRoom)


@pytest.mark.parametrize(
    "more",
    [{"matchLabelKeys": ["pod-template-hash"]}, {"namespaceSelector": {"matchLabels": {"team": "x"}}}],
    ids=["of one revision", "of namespaces that are not known"],
)
def test_an_anti_affinity_that_may_not_be_about_the_spare_says_nothing(more: Any) -> None:
    apart = required("podAntiAffinity", term("llm", **more))

    assert isinstance(found(a_pod(**apart), a_node(), tenants=(a_pod("gpu-1", **apart),)), Room)


def test_an_anti_affinity_counts_in_its_own_namespace_alone() -> None:
    apart = required("podAntiAffinity", term("llm"))

    assert isinstance(found(a_pod(**apart), a_node(), tenants=(a_pod("gpu-1", namespace="other"),)), Room)


def test_an_affinity_wants_its_pods_there_unless_the_spare_is_the_first_of_them() -> None:
    near = required("podAffinity", term("cache", "zone"))
    own = required("podAffinity", term("llm", "zone"))
    cache = a_pod("gpu-2", labels={"app": "cache"})
    other = a_node("gpu-2", labels={"zone": "b"})

    assert isinstance(found(a_pod(**near), a_node()), NoRoom)
    assert found(a_pod(**near), a_node(), other, tenants=(cache,)) == Room(("gpu-2",))
    assert isinstance(found(a_pod(**own), a_node()), Room)


def spread_over_zones(most: int) -> dict[str, Any]:
    strict = {"maxSkew": most, "whenUnsatisfiable": "DoNotSchedule"}
    return {"topologySpreadConstraints": [{**term("llm", "zone"), **strict}]}


@pytest.mark.parametrize(("most", "room"), [(1, Room(("gpu-2",))), (2, Room(("gpu-1", "gpu-2")))])
def test_a_strict_topology_spread_leaves_the_fuller_domain_out(most: int, room: Room) -> None:
    nodes = a_node(), a_node("gpu-2", labels={"zone": "b"})

    assert found(a_pod(**spread_over_zones(most)), *nodes, tenants=(a_pod("gpu-1"),)) == room


def test_where_only_the_fuller_domain_has_devices_a_strict_topology_spread_leaves_no_room() -> None:
    nodes, spread = (a_node(), a_node("gpu-2", labels={"zone": "b"})), spread_over_zones(1)
    full = tuple(a_pod("gpu-2", labels={"app": "x"}) for _ in range(8))
    assert isinstance(found(a_pod(**spread), *nodes, tenants=(a_pod("gpu-1"), *full)), NoRoom)


def with_port(node: str = "", **port: Any) -> dict[str, Any]:
    return a_pod(node, containers=[{"name": "vllm", **resources(gpu="1"), "ports": [port]}])


@pytest.mark.parametrize(
    ("taken", "fits"),
    [
        ({"containerPort": 8000, "hostPort": 8000}, False),
        ({"containerPort": 8000, "hostPort": 8001}, True),
        ({"containerPort": 8000}, True),
        ({"containerPort": 8000, "hostPort": 8000, "protocol": "UDP"}, True),
        ({"containerPort": 8000, "hostPort": 8000, "hostIP": "10.0.0.1"}, False),
    ],
)
def test_a_port_of_the_host_is_for_one_pod_of_a_node(taken: Any, fits: bool) -> None:
    pod = with_port(containerPort=8000, hostPort=8000)

    seen = found(pod, a_node(), tenants=(with_port("gpu-1", **taken),))

    assert isinstance(seen, Room if fits else NoRoom)


def test_on_the_hosts_network_every_port_is_the_hosts() -> None:
    pod = with_port(containerPort=8000)
    pod["spec"]["hostNetwork"] = True

    seen = found(pod, a_node(), tenants=(with_port("gpu-1", containerPort=1, hostPort=8000),))

    assert isinstance(seen, NoRoom)
    assert "port 8000 of the host is taken" in seen.message


def with_claim(node: str = "", claim: str = "weights") -> dict[str, Any]:
    return a_pod(node, volumes=[{"name": "w", "persistentVolumeClaim": {"claimName": claim}}])


def test_a_volume_of_one_node_ties_the_spare_to_it() -> None:
    access = {"weights": frozenset({"ReadWriteOnce"})}
    full = tuple(a_pod("gpu-1") for _ in range(7))
    nodes = a_node(), a_node("gpu-2")

    near = found(with_claim(), *nodes, tenants=(with_claim("gpu-1"),), access=access)
    none = found(
        with_claim(), *nodes, tenants=(with_claim("gpu-1"), *full), access=access, adds_nodes="Karpenter"
    )

    assert near == Room(("gpu-1",))
    assert isinstance(none, NoRoom)
    assert "weights is ReadWriteOnce and mounted on gpu-1" in none.message
    assert none.adds_nodes == "", "another node would not help"


@pytest.mark.parametrize(
    ("modes", "room"),
    [({"ReadWriteOncePod"}, False), ({"ReadWriteMany", "ReadWriteOnce"}, True), (None, True)],
    ids=["of one pod", "of many", "not known"],
)
def test_a_volume_of_one_pod_leaves_no_room_anywhere(modes: Any, room: bool) -> None:
    access = {"weights": frozenset(modes)} if modes else {}

    seen = found(with_claim(), a_node("gpu-2"), tenants=(with_claim("gpu-1"),), access=access)

    assert isinstance(seen, Room if room else NoRoom)


def a_quota(resource: str, hard: str, used: str) -> Quota:
    return Quota("team", {resource: Decimal(hard)}, {resource: Decimal(used)})


@pytest.mark.parametrize(
    ("quota", "fits"),
    [
        (a_quota("requests.nvidia.com/gpu", "3", "2"), True),
        (a_quota("requests.nvidia.com/gpu", "3", "3"), False),
        (a_quota("pods", "3", "3"), False),
        (a_quota("count/pods", "3", "3"), False),
        (a_quota("cpu", "12", "8"), True),
        (a_quota("requests.cpu", "11", "8"), False),
        (a_quota("limits.cpu", "1", "1"), True),
        (a_quota("services", "1", "1"), True),
    ],
)
def test_a_quota_says_no_before_any_node_is_looked_at(quota: Quota, fits: bool) -> None:
    seen = found(a_pod(), a_node(), quotas=(quota,))

    assert isinstance(seen, Room if fits else NoRoom)


def test_a_full_quota_is_final_also_where_nodes_cannot_be_seen() -> None:
    quota = a_quota("requests.nvidia.com/gpu", "3", "3")

    seen = found(a_pod(), unknown="403", quotas=(quota,), adds_nodes="Karpenter")

    assert seen == NoRoom(
        "ResourceQuota team has 3 of 3 requests.nvidia.com/gpu in use, and a spare asks for 1"
    )


def test_who_may_add_a_node_is_named_where_one_would_help() -> None:
    full = tuple(a_pod("gpu-1") for _ in range(8))

    seen = found(a_pod(), a_node(), tenants=full, adds_nodes="Karpenter")

    assert isinstance(seen, NoRoom)
    assert seen.adds_nodes == "Karpenter"


def test_of_many_nodes_the_nearest_are_named_and_the_rest_counted() -> None:
    cpu = tuple(a_node(f"cpu-{i}", taints=[TAINT], gpus="0") for i in range(5))
    full = tuple(a_pod("gpu-1") for _ in range(8))

    seen = found(a_pod(), *cpu, a_node(), tenants=full)

    assert isinstance(seen, NoRoom)
    assert "none of 6 nodes takes it (gpu-1: 8 of 8 nvidia.com/gpu taken; cpu-0: taint" in seen.message
    assert "3 more taint nvidia.com/gpu=present:NoSchedule is not tolerated" in seen.message


def test_devices_come_before_cores_where_both_are_lacking() -> None:
    full = tuple(a_pod("gpu-1") for _ in range(8))

    seen = found(a_pod(), a_node(allocatable={"cpu": "1"}), tenants=full)

    assert isinstance(seen, NoRoom)
    assert "(gpu-1: 8 of 8 nvidia.com/gpu taken)" in seen.message


def test_a_tenant_of_a_node_that_is_not_listed_is_nobodys() -> None:
    stranger = Tenant("serving", "gone", {}, {"app": "llm"})
    shape = shape_of("serving", a_pod(**required("podAntiAffinity", term("llm"))))

    assert isinstance(find_room(shape, Surroundings((a_node(),), Tenants((stranger,)))), Room)
    assert isinstance(
        find_room(replace(shape, requests={GPU: Decimal(9)}), Surroundings((a_node(),), Tenants())), NoRoom
    )


def test_what_runs_on_the_nodes_is_counted_once_for_all_who_ask() -> None:
    """A first look at each of 5,000 fleets counted all their pods anew: more than half of its CPU."""
    walks = 0

    class Counted(Tenants):
        def __iter__(self) -> Iterator[Tenant]:
            nonlocal walks
            walks += 1
            return super().__iter__()

    around = Surroundings((a_node(),), Counted(tenant_of(a_pod("gpu-1")) for _ in range(8)))
    found = [find_room(shape_of("serving", a_pod()), around) for _ in range(100)]

    assert all(isinstance(each, NoRoom) for each in found)
    assert walks <= 3
