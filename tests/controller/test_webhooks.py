"""Somebody's admission webhook answers too late, or not at all, while a run is open."""

from __future__ import annotations

import pytest

from worlds.conditions import message_of
from worlds.hooked import asked_of
from worlds.phases import PATIENCE_SECONDS, Phase, conditions, drained, let_go, reach
from worlds.world import Eye, World

NAME = "policy.example.com"
SILENT = f"webhook {NAME} does not answer"


def accepted(world: World) -> list[int]:
    """Return the sequences of the claims that the API server accepted, in order."""
    return [int(value.rpartition("/")[2]) for _, value, status in sorted(world.proxy.claims) if status < 300]


@pytest.mark.parametrize("phase", [Phase.DRAIN, Phase.WAY_BACK])
def test_a_webhook_that_answers_late_is_named_to_the_person_and_waited_for(a_world, phase):
    world = a_world(2, **conditions(phase))
    before = world.deployment()["spec"]

    with Eye(world.cluster, world.namespace, 2) as eye, asked_of(world, NAME) as hook:
        reach(world, phase)
        hook.turn(late=True)
        let_go(world)
        world.wait(
            lambda: world.condition("ActionRequired") == ("True", "ChangeRefused"),
            PATIENCE_SECONDS,
            "it is reported that a write does not go through",
        )
        stands = world.deployment()["metadata"]["generation"]
        message, number = message_of(world, "ActionRequired"), accepted(world)
        world.wait(lambda: world.log.count(SILENT) >= 3, PATIENCE_SECONDS, "it is tried again")
        assert world.deployment()["metadata"]["generation"] == stands
        assert accepted(world) == number, "nothing that was tried was done"
        hook.turn(late=False)
        world.wait(world.is_closed, PATIENCE_SECONDS, "the run closes")
        world.wait(world.is_settled, PATIENCE_SECONDS, "the rollout is complete")

    assert SILENT in message
    assert "goes on by itself" in message
    assert world.outcomes() == ["NotRecovered" if phase is Phase.WAY_BACK else "Recovered"]
    assert world.condition("ActionRequired")[1] != "ChangeRefused"
    assert (world.deployment()["spec"] == before) is (phase is Phase.WAY_BACK)
    assert accepted(world) == list(range(1, len(accepted(world)) + 1)), "each effect was committed once"
    assert world.starts == 1
    assert drained(world) == []
    assert eye.lost == []
    assert eye.fewest >= 2
    assert world.traces() == []
