"""People in the middle of a run that turns a method off: theirs stays, ours goes back as a whole."""

from __future__ import annotations

import json

from kvmedic.cluster.ownership import RECORDED
from worlds.bundled import FLAG, OFF, ON, SWITCH, begin, compressing, engine, variables
from worlds.phases import PATIENCE_SECONDS, Phase, let_go, reach
from worlds.world import World

HALF = [*OFF[:1], {"name": SWITCH, "value": "1"}]


def turn_the_switch_on(world: World) -> None:
    """Put one setting of the bundle back, as a person does who knows of no other."""
    path = "/spec/template/spec/containers/0/env/1/value"
    world.kubectl(
        "patch",
        "deployment",
        "llm",
        "--type=json",
        "-p",
        json.dumps([{"op": "replace", "path": path, "value": "1"}]),
    )


def test_a_person_who_turns_one_setting_on_again_is_left_alone(a_world):
    world = a_world(replicas=2, change=compressing)
    begin(world, new="recovered")
    reach(world, Phase.DRAIN)

    turn_the_switch_on(world)
    let_go(world)
    world.wait(world.is_closed, PATIENCE_SECONDS, "the run closes")

    spec = world.deployment()["spec"]
    assert world.outcomes() == ["FlagDrifted"]
    assert variables(world) == HALF
    assert FLAG not in world.args()
    assert "failedAttempts" not in world.status()
    assert (spec.get("paused"), spec.get("minReadySeconds")) == (None, None)
    world.wait(lambda: world.traces() == [], PATIENCE_SECONDS, "nothing of ours is left")


def test_a_person_who_asks_for_it_gets_the_whole_method_back(a_world):
    world = a_world(replicas=2, change=compressing)
    before = world.deployment()["spec"]
    begin(world, new="recovered")
    reach(world, Phase.DRAIN)
    note = json.loads(world.deployment()["metadata"]["annotations"][RECORDED])
    half_way = variables(world)

    world.kubectl("annotate", "kvr", "llm", "kvmedic.io/rollback=20260301-030000")
    let_go(world)
    world.wait(world.is_closed, PATIENCE_SECONDS, "the run closes")

    assert world.outcomes() == ["RolledBackByHand"]
    assert world.deployment()["spec"] == before
    assert half_way == OFF
    assert [part.get("env", part.get("field")) for part in note["parts"]] == [
        SWITCH,
        ON[2]["name"],
        ON[0]["name"],
        "args",
    ]
    assert engine(world)["env"] == ON
    assert world.traces() == []
