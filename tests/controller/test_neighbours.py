"""Autoscalers and disruption budgets beside a run: never fought, and where they would harm none begins."""

from __future__ import annotations

import time
from typing import Any

import pytest

from worlds.conditions import message_of
from worlds.neighbours import DEFINITIONS, hpa, pdb, vpa
from worlds.phases import PATIENCE_SECONDS, Phase, let_go, reach
from worlds.world import Eye, World

HPA_SECONDS = 60
"""The controller looks every 15 s."""
LONG_DRAIN = {"rollout": {"drainTimeout": "3h", "rotationLabel": {"key": "serving", "draining": "draining"}}}


def add(world: World, manifest: dict[str, Any]) -> None:
    world.cluster.api.create(manifest, world.namespace)


@pytest.mark.parametrize(
    ("bounds", "replicas", "lost"),
    [({"minReplicas": 4}, 4, 1), ({"maxReplicas": 2}, 2, 2)],
    ids=["scales out", "scales in"],
)
def test_a_run_goes_on_beside_an_autoscaler_that_scales_in_the_middle(a_world, bounds, replicas, lost):
    world = a_world(3, spec=LONG_DRAIN)
    add(world, hpa("llm", minReplicas=1, maxReplicas=5))
    add(world, pdb("llm", app="llm"))

    with Eye(world.cluster, world.namespace, 3) as eye:
        reach(world, Phase.DRAIN)
        message = world.status()["run"]["message"]
        world.cluster.api.patch("HorizontalPodAutoscaler", "llm", {"spec": bounds}, world.namespace)
        world.wait(lambda: world.replicas() == replicas, HPA_SECONDS, "the real autoscaler scales")
        let_go(world)
        world.wait(world.is_closed, PATIENCE_SECONDS, "the run closes")
        world.wait(world.is_settled, PATIENCE_SECONDS, "the rollout is complete")

    assert "HorizontalPodAutoscaler llm goes on setting the replicas (1 to 5)" in message
    assert "PodDisruptionBudget llm does not limit a rollout" in message
    assert world.outcomes() == ["Recovered"]
    assert world.replicas() == replicas, "what the autoscaler wants stays"
    assert world.traces() == []
    assert len(eye.lost) <= lost, eye.lost


def test_no_run_begins_beside_one_that_evicts(a_world):
    world = a_world(2)
    for definition in DEFINITIONS:
        world.cluster.apply(definition)
    for definition in DEFINITIONS:
        name = f"crd/{definition['metadata']['name']}"
        world.kubectl("wait", "--for=condition=Established", name, "--timeout=10s")
    add(world, vpa("llm", updateMode="Recreate"))

    world.start()
    world.wait(
        lambda: world.condition("ActionRequired") == ("True", "ManagedByVerticalPodAutoscaler"),
        PATIENCE_SECONDS,
        "a person is asked",
    )
    time.sleep(2)
    assert world.outcomes() == []
    assert 'spec.updatePolicy.updateMode to "Off"' in message_of(world, "ActionRequired")
    world.cluster.api.patch(
        "VerticalPodAutoscaler", "llm", {"spec": {"updatePolicy": {"updateMode": "Off"}}}, world.namespace
    )
    world.wait(world.is_closed, PATIENCE_SECONDS, "the run closes")

    assert world.outcomes() == ["Recovered"]
