"""Replicas are added through the minimum of what decides their number: a real HorizontalPodAutoscaler,
and a ScaledObject whose definition alone is there (the test does what KEDA would)."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from worlds.autoscaled import HPA, SCALED_OBJECT, behind_hpa, behind_keda, marks, minimum
from worlds.people import abandon_resource, delete_resource, is_gone
from worlds.phases import PATIENCE_SECONDS
from worlds.scaling import MORE, REPLICAS, calm, held, press, spec
from worlds.world import World

HPA_SECONDS = 60
"""The controller looks every 15 s."""
LOOKS_SECONDS = 3.0


def pressed(world: World) -> None:
    """Let as many as there are now thrash, and one more be calm."""
    press(world)


def grow(world: World) -> None:
    pressed(world)
    world.start()
    world.wait(
        lambda: bool(held(world)) and "run" not in world.status(),
        PATIENCE_SECONDS + HPA_SECONDS,
        "it is kept",
    )


def closed(world: World, runs: int) -> None:
    world.wait(
        lambda: len(world.outcomes()) >= runs and "run" not in world.status(),
        PATIENCE_SECONDS + HPA_SECONDS,
        f"{runs} runs close",
    )


def test_more_that_did_not_help_puts_the_minimum_back(a_world):
    world = a_world(REPLICAS, spec=spec(limits={"cooldown": "24h"}))
    behind_hpa(world)
    press(world, more="fewer requests, and thrash")

    world.start()
    closed(world, 1)

    assert world.outcomes() == ["NotRecovered"]
    assert (minimum(world), marks(world), held(world)) == (REPLICAS, [], {})


def test_the_definition_of_keda_alone_is_enough(a_world):
    world = a_world(REPLICAS, spec=spec())
    behind_keda(world)

    pressed(world)
    world.start()
    world.wait(lambda: minimum(world, SCALED_OBJECT) == MORE, PATIENCE_SECONDS, "its minimum is raised")
    time.sleep(LOOKS_SECONDS)
    before_keda = world.replicas()
    world.kubectl("scale", "deployment/llm", f"--replicas={MORE}")
    world.wait(lambda: bool(held(world)) and "run" not in world.status(), PATIENCE_SECONDS, "it is kept")
    calm(world)
    closed(world, 2)

    assert before_keda == REPLICAS, "the Deployment's number is never touched"
    assert world.replicas() == MORE, "whom KEDA takes away is its own matter"
    assert minimum(world, SCALED_OBJECT) is None, "the field was not there before"
    assert marks(world, SCALED_OBJECT) == []


# People.


def set_minimum(number: int) -> Callable[[World], None]:
    def act(world: World) -> None:
        world.cluster.api.patch(HPA, "llm", {"spec": {"minReplicas": number}}, world.namespace)

    return act


def delete_autoscaler(world: World) -> None:
    world.cluster.api.delete(HPA, "llm", world.namespace)


@dataclass(frozen=True, slots=True)
class Deed:
    """What a person does to the autoscaler, and what must come of it."""

    act: Callable[[World], None]
    outcome: str
    minimum: int


DEEDS = {
    "raises the minimum": Deed(set_minimum(4), "ReplicasChanged", 4),
    "puts the old minimum back": Deed(set_minimum(REPLICAS), "ReplicasChanged", REPLICAS),
}


@pytest.mark.parametrize("deed", DEEDS.values(), ids=DEEDS)
def test_what_people_do_in_the_middle_stays(a_world, deed):
    world = a_world(REPLICAS, spec=spec(verify={"for": "30m"}, limits={"cooldown": "24h"}))
    behind_hpa(world)
    pressed(world)

    world.start()
    world.wait(lambda: minimum(world) == MORE, PATIENCE_SECONDS, "the minimum is raised")
    deed.act(world)
    closed(world, 1)

    assert world.outcomes() == [deed.outcome]
    assert minimum(world) == deed.minimum
    assert marks(world) == []
    assert held(world) == {}


def test_a_minimum_that_somebody_sets_while_it_is_held_stays(a_world):
    world = a_world(REPLICAS, spec=spec())
    behind_hpa(world)

    grow(world)
    set_minimum(4)(world)
    calm(world)
    world.wait(lambda: held(world) == {}, PATIENCE_SECONDS, "it is forgotten")
    time.sleep(LOOKS_SECONDS)

    assert minimum(world) == 4


def test_an_autoscaler_that_is_deleted_while_it_is_held_is_forgotten(a_world):
    world = a_world(REPLICAS, spec=spec(limits={"cooldown": "24h"}))
    behind_hpa(world)

    grow(world)
    delete_autoscaler(world)
    world.wait(lambda: held(world) == {}, PATIENCE_SECONDS, "it is forgotten")
    world.wait(world.is_closed, PATIENCE_SECONDS, "the finalizer goes")


@pytest.mark.parametrize("abandoned", [False, True], ids=["deleting", "abandoning"])
def test_with_the_resource_the_minimum_is_put_back(a_world, abandoned):
    world = a_world(REPLICAS, spec=spec())
    behind_hpa(world)

    grow(world)
    (abandon_resource if abandoned else delete_resource)(world)
    world.wait(lambda: is_gone(world), PATIENCE_SECONDS, "the finalizer goes")

    assert minimum(world) == (MORE if abandoned else REPLICAS)
    assert marks(world) == []


# Twins: where it may not be moved.

ARGO = {"argocd.argoproj.io/tracking-id": "llm:autoscaling/HorizontalPodAutoscaler:serving/llm"}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"spec": {"maxReplicas": REPLICAS}}, "LeverAtBound"),
        ({"metadata": {"annotations": ARGO}}, "ReplicasAutoscaled"),
    ],
    ids=["its maximum is reached", "somebody applies it again and again"],
)
def test_a_minimum_that_cannot_be_moved_is_left_alone(a_world, changes, reason):
    world = a_world(REPLICAS, spec=spec())
    behind_hpa(world)
    world.cluster.api.patch(HPA, "llm", changes, world.namespace)
    pressed(world)

    world.start()
    world.wait(
        lambda: world.condition("ActionRequired") == ("True", reason), PATIENCE_SECONDS, "a person is asked"
    )

    assert minimum(world) == REPLICAS
    assert world.replicas() == REPLICAS
    assert "run" not in world.status()
