"""One pressured replica makes room for a new one, on the real controllers, whatever people do meanwhile."""

from __future__ import annotations

from worlds.people import abandon_resource, is_gone
from worlds.phases import PATIENCE_SECONDS, let_go
from worlds.replacing import Phase, names, press_one, reach
from worlds.world import Eye, World

REPLICAS = 3


def settled(world: World) -> None:
    world.wait(world.is_closed, PATIENCE_SECONDS, "the run closes")
    world.wait(world.is_settled, PATIENCE_SECONDS, "the Deployment is settled")


def test_a_replacement_that_did_not_help_is_remembered_and_not_tried_again(a_world):
    world = a_world(REPLICAS, spec={"limits": {"cooldown": "1s"}})
    pressured = reach(world, Phase.DRAIN)
    other = max(names(world) - {pressured})
    world.rewrite(pods={other: "thrash"}, inFlight=0)
    settled(world)
    before = names(world)

    world.wait(
        lambda: world.condition("Progressing") == ("False", "LeverExhausted"),
        PATIENCE_SECONDS,
        "the next look says why nothing is done",
    )

    assert world.outcomes() == ["NotRecovered"]
    (tried,) = world.status()["failedAttempts"]
    assert (tried["change"], tried["key"], tried["why"]) == (
        f"replica {pressured} -> a new one",
        str(REPLICAS),
        "NotRecovered",
    )
    assert tried["template"] == world.revision()
    assert world.condition("ActionRequired") == ("True", "LeverExhausted")
    assert names(world) == before
    world.kubectl("scale", "deployment/llm", f"--replicas={REPLICAS + 1}")
    world.wait(lambda: len(world.outcomes()) == 2, PATIENCE_SECONDS, "another number is other evidence")


def test_an_autoscaler_is_never_fought(a_world):
    world = a_world(2)
    autoscaler = {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "llm"},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "llm"},
            "minReplicas": 2,
            "maxReplicas": 4,
        },
    }
    world.cluster.api.create(autoscaler, world.namespace)
    generation = world.deployment()["metadata"]["generation"]
    press_one(world)

    world.start()
    world.wait(
        lambda: world.condition("ActionRequired") == ("True", "ReplicasAutoscaled"),
        PATIENCE_SECONDS,
        "the autoscaler is named",
    )

    assert world.deployment()["metadata"]["generation"] == generation
    assert "run" not in world.status()


# Twins: what must not replace anything.


def test_two_pressured_replicas_of_four_are_not_replaced(a_world):
    world = a_world(4, spec={"mode": "Observe"})
    hot = sorted(names(world))[:2]
    world.rewrite(old="recovered", pods=dict.fromkeys(hot, "thrash"))

    world.start()
    world.wait(
        lambda: world.condition("Diagnosed") == ("True", "FleetWideDemand"),
        PATIENCE_SECONDS,
        "the branch is named",
    )

    assert not [step for step in world.status().get("plan", {}).get("steps", []) if "replica " in step]


def test_abandoning_the_resource_leaves_nothing_temporary(a_world):
    world = a_world(REPLICAS)
    before, spec = names(world), world.deployment()["spec"]

    with Eye(world.cluster, world.namespace, REPLICAS) as eye:
        reach(world, Phase.DRAIN)
        abandon_resource(world)
        let_go(world)
        world.wait(lambda: is_gone(world), PATIENCE_SECONDS, "the finalizer goes")
        world.wait(world.is_settled, PATIENCE_SECONDS, "the Deployment is settled")

    assert world.deployment()["spec"] == spec
    assert world.traces() == []
    assert before <= names(world)
    assert eye.lost == []
    assert eye.fewest >= REPLICAS
