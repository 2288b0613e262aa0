"""Replicas are added for a while and given back, on the real controllers, whatever people do meanwhile."""

from __future__ import annotations

import time

import pytest

from lab.cluster.simulation import behaviour
from worlds.command_line import kvmedic
from worlds.people import BRAKES, abandon_resource, delete_resource, is_gone
from worlds.phases import PATIENCE_SECONDS
from worlds.replacing import names
from worlds.scaling import MORE, REPLICAS, calm, grow, held, press, spec
from worlds.world import Eye, World, remediation

LOOKS_SECONDS = 3.0
"""Three minutes of the fast clock: three times as long as it must be calm."""


def ended(world: World, runs: int = 1) -> None:
    """Wait until as many runs are closed and the Deployment is settled."""
    world.wait(
        lambda: len(world.outcomes()) >= runs and "run" not in world.status(),
        PATIENCE_SECONDS,
        f"{runs} runs close",
    )
    world.wait(world.is_settled, PATIENCE_SECONDS, "the Deployment is settled")


def test_a_replica_is_added_and_stays_until_fewer_carry_the_load(a_world):
    world = a_world(REPLICAS, spec=spec())
    before, deployed = names(world), world.deployment()["spec"]

    with Eye(world.cluster, world.namespace, REPLICAS) as eye:
        grow(world)
        added, temporary = world.replicas(), held(world)
        finalizers = world.resource()["metadata"].get("finalizers")
        world.wait(
            lambda: bool(held(world).get("outlook")),
            PATIENCE_SECONDS,
            "somebody asked whether fewer would do",
        )
        time.sleep(LOOKS_SECONDS)
        explained = kvmedic(world, "explain", "llm").stdout
        stays = (world.replicas(), len(world.outcomes()))
        calm(world)
        ended(world, 2)
        world.wait(world.is_closed, PATIENCE_SECONDS, "the finalizer goes")

    assert (added, stays) == (MORE, (MORE, 1)), "the load is what two could not carry"
    assert (temporary["before"], temporary["after"]) == (REPLICAS, MORE)
    assert finalizers, "what is held is given back before the resource goes"
    assert "Temporary change: replicas 2 -> 3" in explained
    assert "45 requests wait on 3 replicas" in explained
    assert world.condition("ActionRequired")[0] == "False"
    assert world.outcomes() == ["Recovered", "Recovered"]
    assert [run["steps"][0] for run in world.status()["history"]] == [
        "Deployment/llm: replicas 3 -> 2: Kept",
        "Deployment/llm: replicas 2 -> 3: Kept",
    ]
    assert held(world) == {}
    assert names(world) == before, "the one that came last went"
    assert world.deployment()["spec"] == deployed
    assert world.traces() == []
    assert eye.lost == []
    assert eye.fewest >= REPLICAS


def test_more_replicas_that_did_not_help_go_and_are_not_tried_again(a_world):
    world = a_world(REPLICAS, spec=spec())
    before = names(world)

    with Eye(world.cluster, world.namespace, REPLICAS) as eye:
        press(world, more="fewer requests, and thrash")
        world.start()
        ended(world)
        world.wait(
            lambda: world.condition("Diagnosed") == ("True", "CapacityExhausted"),
            PATIENCE_SECONDS,
            "no lever is left",
        )
        time.sleep(LOOKS_SECONDS)

    assert world.outcomes() == ["NotRecovered"]
    [tried] = world.status()["failedAttempts"]
    assert (tried["change"], tried["key"]) == (f"replicas {REPLICAS} -> {MORE}", str(REPLICAS))
    assert tried["template"] == world.revision()
    assert world.condition("ActionRequired") == ("True", "CapacityExhausted")
    assert held(world) == {}
    assert names(world) == before
    assert eye.lost == []
    assert eye.fewest >= REPLICAS


def test_where_fewer_turn_out_to_be_too_few_they_come_back(a_world):
    world = a_world(REPLICAS, spec=spec(limits={"cooldown": "24h", "maxRunsPerDay": 10}))

    with Eye(world.cluster, world.namespace, REPLICAS) as eye:
        grow(world)
        world.rewrite(old="thrash", byCount={str(MORE): "idle"})
        world.cluster.api.patch(
            "KVRemediation", "llm", {"spec": {"limits": {"cooldown": "1s"}}}, world.namespace
        )
        world.wait(lambda: world.replicas() == REPLICAS, PATIENCE_SECONDS, "it is given back")
        world.cluster.api.patch(
            "KVRemediation", "llm", {"spec": {"limits": {"cooldown": "24h"}}}, world.namespace
        )
        ended(world, 2)

    assert world.outcomes() == ["NotRecovered", "Recovered"]
    assert world.replicas() == MORE
    assert (held(world)["before"], held(world)["after"]) == (REPLICAS, MORE)
    assert eye.lost == []
    assert eye.fewest >= REPLICAS


def test_a_replica_for_which_there_is_no_room_is_given_up(a_world):
    waits = {**remediation()["spec"]["rollout"], "spareLimit": "15m"}
    world = a_world(REPLICAS, spec=spec(rollout=waits))
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "two"}}
    world.cluster.api.create({**quota, "spec": {"hard": {"pods": str(REPLICAS)}}}, world.namespace)
    before, deployed = names(world), world.deployment()["spec"]

    press(world)
    world.start()
    ended(world)

    assert world.outcomes()[-1] == "SpareUnschedulable"
    assert "quota" in world.status()["history"][-1]["message"]
    assert (names(world), world.deployment()["spec"]["replicas"]) == (before, deployed["replicas"])
    assert held(world) == {}


# Twins: what must not add anything.


@pytest.mark.parametrize(
    ("levers", "state", "reason"),
    [
        ([{"name": "maxNumSeqs"}, {"name": "scaleOut", "maxReplicas": MORE}], "thrash", "FleetWideDemand"),
        ([{"name": "scaleOut", "maxReplicas": MORE}], "prompts", "FleetWideDemand"),
        ([{"name": "scaleOut", "maxReplicas": REPLICAS}], "thrash", "CapacityExhausted"),
    ],
    ids=["demand is not capped", "preemptions are cheap", "at its bound"],
)
def test_no_replica_is_added(a_world, levers, state, reason):
    world = a_world(REPLICAS, spec=spec(mode="Observe", levers=levers))
    world.rewrite(old=state, new=state)

    world.start()
    world.wait(lambda: world.condition("Diagnosed")[1] == reason, PATIENCE_SECONDS, "the branch is named")

    steps = world.status().get("plan", {}).get("steps", [])
    assert not [step for step in steps if "replicas " in step]
    assert world.replicas() == REPLICAS


# People.


def hang(world: World, name: str) -> None:
    """Let one replica be not Ready, as one that starts."""
    marks = {"metadata": {"annotations": behaviour(mode="unready")}}
    serving = world.endpoints()
    world.cluster.api.patch("Pod", name, marks, world.namespace)
    world.wait(lambda: world.endpoints() == serving - 1, PATIENCE_SECONDS, "it serves no more")


def oldest(world: World) -> str:
    pods = (pod["metadata"] for pod in world.pods())
    return str(min(pods, key=lambda each: each["creationTimestamp"])["name"])


def test_what_is_held_without_a_run_goes_with_the_resource_though_everything_is_stopped(a_world):
    world = a_world(REPLICAS, spec=spec())
    before, deployed = names(world), world.deployment()["spec"]
    hold, _, _ = BRAKES["the operator-wide stop"]

    with Eye(world.cluster, world.namespace, REPLICAS) as eye:
        grow(world)
        hold(world)
        delete_resource(world)
        world.wait(lambda: is_gone(world), PATIENCE_SECONDS, "the finalizer goes")
        world.wait(world.is_settled, PATIENCE_SECONDS, "the Deployment is settled")

    assert world.deployment()["spec"] == deployed
    assert names(world) == before
    assert world.traces() == []
    assert eye.lost == []


def test_one_is_added_beside_one_that_is_down_and_an_abandoned_resource_leaves_it(a_world):
    world = a_world(MORE, spec=spec(levers=[{"name": "scaleOut", "maxReplicas": MORE + 1}]))
    hang(world, oldest(world))

    with Eye(world.cluster, world.namespace, REPLICAS) as eye:
        grow(world, MORE + 1)
        abandon_resource(world)
        world.wait(lambda: is_gone(world), PATIENCE_SECONDS, "the finalizer goes")

    assert (world.replicas(), world.endpoints()) == (MORE + 1, MORE)
    assert world.traces() == []
    assert eye.lost == []
    assert eye.fewest >= REPLICAS


def test_a_number_that_somebody_sets_while_no_run_is_open_stays(a_world):
    world = a_world(REPLICAS, spec=spec())

    grow(world)
    world.cluster.api.patch(
        "KVRemediation", "llm", {"spec": {"limits": {"cooldown": "24h"}}}, world.namespace
    )
    calm(world)
    world.kubectl("scale", "deployment/llm", f"--replicas={MORE + 1}")
    world.wait(lambda: held(world) == {}, PATIENCE_SECONDS, "it is forgotten")
    world.wait(world.is_closed, PATIENCE_SECONDS, "the finalizer goes")
    time.sleep(LOOKS_SECONDS)

    assert world.replicas() == MORE + 1
    assert len(world.outcomes()) == 1
