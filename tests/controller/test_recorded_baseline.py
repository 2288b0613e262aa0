"""The fleet before a method of compression came, on a real API server: noted while healthy, and kept."""

from __future__ import annotations

import json

from worlds.deploying import settle
from worlds.trying import SWITCH, spec
from worlds.world import World

SECONDS = 60
OTHERWISE = {"spec": {"compression": {"keepTokens": 2049}}}


def turn_on(world: World) -> None:
    """Have a person turn the method on; return when that is rolled out."""
    env = [{"name": SWITCH, "value": "1"}]
    patch = [{"op": "add", "path": "/spec/template/spec/containers/0/env", "value": env}]
    world.kubectl("patch", "deployment", "llm", "--type=json", "-p", json.dumps(patch))
    settle(world)


def test_the_last_healthy_look_without_the_method_is_kept_when_it_comes(a_world):
    world = a_world(replicas=2, spec=spec())
    world.write_script(old="recovered", new="recovered", revision=world.revision())
    world.start()
    world.wait(lambda: "figures" in world.status().get("lastGood", {}), SECONDS, "it is healthy without it")
    without = world.status()["lastGood"]
    turn_on(world)
    world.wait(lambda: "baseline" in world.status(), SECONDS, "the method is noticed")
    kept = world.status()["baseline"]

    world.kill()
    world.kubectl("patch", "kvremediation", "llm", "--type=merge", "-p", json.dumps(OTHERWISE))
    world.start()
    world.wait(lambda: world.status()["observedGeneration"] == 2, SECONDS, "another process looked")

    assert (kept["method"], kept["revision"], kept["seenAt"]) == (
        "Mine",
        without["revision"],
        without["recordedAt"],
    )
    assert kept["figures"] == without["figures"]
    assert kept["doubt"] == ""
    assert world.status()["baseline"] == kept
    assert (
        f"before is pod template {without['revision']}, 2 replicas" in world.status()["diagnosis"]["message"]
    )
