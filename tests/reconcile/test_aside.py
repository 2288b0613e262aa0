"""An ill replica on real controllers: spared while its peers carry the load, and back when it is well."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from reconcile.phases import drained
from reconcile.test_crashes import Killer
from reconcile.test_ill_replicas import tells, touched
from reconcile.world import Eye, World

PATIENCE_SECONDS = 120
LOOKS_SECONDS = 3.0
"""A minute of the fast clock: several looks."""
FALLEN = {"lastXid": 79}


def fall_ill(world: World, peers: str = "idle") -> str:
    """Let one replica thrash on a GPU that fell off the bus; return its name."""
    name = str(world.pods()[0]["metadata"]["name"])
    world.rewrite(old=peers, pods={name: "thrash"}, devices={"*": {}, name: FALLEN})
    return name


def is_out(world: World) -> bool:
    return world.status().get("aside", {}).get("station") == "Out"


def is_back(world: World) -> bool:
    return world.status().get("aside", {}).get("station") == "Returned" and not drained(world)


def spare(world: World, name: str) -> None:
    """Wait until a replica is out of rotation, and let it be idle from then on."""
    world.wait(lambda: is_out(world), PATIENCE_SECONDS, "the ill replica is out of rotation")
    assert drained(world) == [name]
    world.rewrite(pods={name: "idle"})


@pytest.mark.timeout(300)
def test_an_ill_replica_is_spared_and_put_back_when_its_gpu_is_well(a_world: Callable[..., World]) -> None:
    world = a_world(replicas=3)
    before = world.deployment()["spec"]
    name = fall_ill(world)

    with Eye(world.cluster, world.namespace, 3) as eye:
        world.start()
        spare(world, name)
        world.wait(lambda: world.condition("Diagnosed")[1] == "Healthy", PATIENCE_SECONDS, "it is calm")
        time.sleep(LOOKS_SECONDS)
        assert drained(world) == [name], "calm alone does not bring it back"
        assert world.condition("ActionRequired") == ("True", "GpuFault")
        assert world.resource()["metadata"]["finalizers"]
        world.rewrite(devices={"*": {}})
        world.wait(lambda: is_back(world), PATIENCE_SECONDS, "it is back in rotation")
        world.wait(
            lambda: not world.resource()["metadata"].get("finalizers"), PATIENCE_SECONDS, "nothing is held"
        )

    assert world.deployment()["spec"] == before
    assert world.traces() == []
    assert (eye.lost, len(eye.seen)) == ([], 3), "nobody was deleted"
    assert eye.fewest >= 2
    assert world.status()["aside"]["ended"] == "its GPUs are well again"
    assert tells(world, "SetAside", name, "XID 79")
    assert tells(world, "PutBack", name, "well again")
    assert world.outcomes() == []


@pytest.mark.parametrize(
    ("spec", "replicas", "peers", "why"),
    [
        ({}, 3, "recovered", "requests wait on"),
        ({"limits": {"minHealthyReplicas": 2}}, 2, "idle", "1 replicas would be left (limit 2)"),
        ({"mode": "Approve"}, 3, "idle", "spec.mode is Approve"),
    ],
    ids=["its peers are busy", "too few would be left", "nobody is asked in that mode"],
)
@pytest.mark.timeout(300)
def test_an_ill_replica_stays_where_it_cannot_be_spared(
    a_world: Callable[..., World], spec: dict[str, Any], replicas: int, peers: str, why: str
) -> None:
    world = a_world(replicas=replicas, spec=spec)
    name = fall_ill(world, peers)

    world.start()
    world.wait(
        lambda: world.condition("ActionRequired") == ("True", "GpuFault"),
        PATIENCE_SECONDS,
        "a person is asked",
    )
    time.sleep(LOOKS_SECONDS)

    assert touched(world) == []
    told = next(c["message"] for c in world.status()["conditions"] if c["type"] == "ActionRequired")
    assert f"{name} stays in rotation" in told
    assert why in told


@pytest.mark.timeout(300)
def test_two_ill_replicas_stay(a_world: Callable[..., World]) -> None:
    world = a_world(replicas=3)
    name = fall_ill(world)
    other = str(world.pods()[1]["metadata"]["name"])
    world.rewrite(devices={"*": {}, name: FALLEN, other: FALLEN})

    world.start()
    world.wait(
        lambda: world.condition("ActionRequired") == ("True", "GpuFault"),
        PATIENCE_SECONDS,
        "a person is asked",
    )
    time.sleep(LOOKS_SECONDS)

    assert touched(world) == []


@pytest.mark.parametrize(
    "ask",
    [
        ("patch", "kvr", "llm", "--type=merge", "-p", '{"spec":{"suspend":true}}'),
        ("create", "configmap", "kvmedic-stop"),
        ("patch", "kvr", "llm", "--type=merge", "-p", '{"spec":{"mode":"Observe"}}'),
        ("delete", "kvr", "llm", "--wait=false"),
    ],
    ids=["suspended", "stopped", "only to observe", "deleted"],
)
@pytest.mark.timeout(300)
def test_whoever_stops_the_operator_has_every_replica_in_rotation(
    a_world: Callable[..., World], ask: tuple[str, ...]
) -> None:
    world = a_world(replicas=3)
    name = fall_ill(world)
    world.start()
    spare(world, name)

    world.kubectl(*ask)
    world.wait(lambda: drained(world) == [], PATIENCE_SECONDS, "it is back in rotation")
    time.sleep(LOOKS_SECONDS)

    assert world.traces() == []
    gone = ask[0] == "delete"
    listed = world.cluster.api.list("KVRemediation", world.namespace)
    assert (listed == []) is gone


@pytest.mark.timeout(300)
def test_peers_that_cannot_carry_the_load_have_it_back_and_it_is_not_taken_out_again(
    a_world: Callable[..., World],
) -> None:
    world = a_world(replicas=3)
    name = fall_ill(world)
    world.start()
    spare(world, name)

    world.rewrite(old="thrash")
    world.wait(lambda: is_back(world), PATIENCE_SECONDS, "it is back in rotation")
    assert "its peers do not carry the load" in world.status()["aside"]["ended"]
    world.rewrite(old="idle", pods={name: "thrash"})
    time.sleep(2 * LOOKS_SECONDS)

    assert drained(world) == []


@pytest.mark.timeout(300)
def test_a_pod_that_is_replaced_by_a_person_is_forgotten(a_world: Callable[..., World]) -> None:
    world = a_world(replicas=3)
    name = fall_ill(world)
    world.start()
    spare(world, name)

    world.kubectl("delete", "pod", name, "--wait=false")
    world.wait(lambda: "aside" not in world.status(), PATIENCE_SECONDS, "it is forgotten")
    world.wait(lambda: tells(world, "PutBack", name, "the pod is gone"), PATIENCE_SECONDS, "that is told")

    assert world.traces() == []


@pytest.mark.timeout(460)
def test_killed_at_every_write_an_ill_replica_is_spared_and_put_back_all_the_same(
    a_world: Callable[..., World],
) -> None:
    killer = Killer()
    world = a_world(replicas=3, decide=killer.decide)
    name = fall_ill(world)

    with Eye(world.cluster, world.namespace, 3) as eye:
        world.start()
        spare(world, name)
        world.rewrite(devices={"*": {}})
        world.wait(lambda: is_back(world), PATIENCE_SECONDS, "it is back in rotation")
        world.wait(
            lambda: not world.resource()["metadata"].get("finalizers"), PATIENCE_SECONDS, "nothing is held"
        )
    print(f"{world.starts} processes; {killer.report()}")

    assert world.traces() == []
    assert (eye.lost, len(eye.seen)) == ([], 3)
    assert eye.fewest >= 2
    assert killer.kills
