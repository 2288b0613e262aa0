"""A flag that is changed in the InferenceService from which a controller renders the fleet."""

from __future__ import annotations

from worlds.conditions import message_of
from worlds.phases import PATIENCE_SECONDS
from worlds.rendered import OWN_ARGS, give_owner, own_args, probed, rendering, set_own_args
from worlds.world import Eye

REPLICAS = 2


def test_the_owners_own_field_is_changed_and_a_revert_by_its_tool_ends_it(a_world):
    world = a_world(REPLICAS, spec={"ownership": "Apply", "limits": {"cooldown": "0s"}}, change=probed)
    give_owner(world)

    with rendering(world) as reverted, Eye(world.cluster, world.namespace, REPLICAS) as eye:
        world.start()
        world.wait(
            lambda: bool(world.outcomes()) and "run" not in world.status(), PATIENCE_SECONDS, "it ends"
        )
        changed, after, made = own_args(world), world.args(), list(reverted)
        set_own_args(world, OWN_ARGS)
        contested = ("True", "TemplateContested")
        world.wait(lambda: world.condition("ActionRequired") == contested, PATIENCE_SECONDS, "it is noticed")

    cap = int(changed[0].removeprefix("--max-num-seqs="))
    assert world.outcomes() == ["Recovered"]
    assert cap < 64
    assert (changed[1], after[2:]) == (OWN_ARGS[1], changed)
    assert made == ["args"], "nothing that we set on the Deployment had to be put back"
    assert eye.fewest >= REPLICAS
    assert "kvmedic.io/try-again" in message_of(world, "ActionRequired")
    assert own_args(world) == OWN_ARGS, "it is not fought"
    assert world.traces() == []


def test_a_revert_in_the_middle_of_the_run_is_not_fought(a_world):
    world = a_world(REPLICAS, spec={"ownership": "Apply", "limits": {"cooldown": "0s"}}, change=probed)
    give_owner(world)

    with rendering(world):
        world.start()
        world.wait(lambda: own_args(world) != OWN_ARGS, PATIENCE_SECONDS, "the field is written")
        set_own_args(world, OWN_ARGS)
        world.wait(
            lambda: bool(world.outcomes()) and "run" not in world.status(), PATIENCE_SECONDS, "it ends"
        )
        contested = ("True", "TemplateContested")
        world.wait(lambda: world.condition("ActionRequired") == contested, PATIENCE_SECONDS, "it is reported")

    assert world.outcomes() == ["ChangeReverted"]
    assert own_args(world) == OWN_ARGS
    assert world.traces() == []
