"""The fleet before a method of compression was turned on, on a real API server: asked once, kept for good."""

from __future__ import annotations

import json

import pytest

from reconcile.deploying import settle
from reconcile.trying import SWITCH, spec
from reconcile.world import World

pytestmark = pytest.mark.light
SECONDS = 60
OTHERWISE = {"spec": {"compression": {"keepTokens": 2049}}}


def turn_on(world: World) -> None:
    """Have a person turn the method on; return when that is rolled out."""
    env = [{"name": SWITCH, "value": "1"}]
    patch = [{"op": "add", "path": "/spec/template/spec/containers/0/env", "value": env}]
    world.kubectl("patch", "deployment", "llm", "--type=json", "-p", json.dumps(patch))
    settle(world)


def test_what_history_told_is_kept_when_the_source_has_forgotten_it(a_world):
    world = a_world(replicas=2, spec=spec())
    turn_on(world)
    world.write_script(old="recovered", new="recovered", before="recovered", revision=world.revision())
    world.start()
    world.wait(lambda: "baseline" in world.status(), SECONDS, "history was asked")
    told = world.status()["baseline"]

    world.kill()
    world.rewrite(before=None)
    world.kubectl("patch", "kvremediation", "llm", "--type=merge", "-p", json.dumps(OTHERWISE))
    world.start()
    world.wait(lambda: world.status()["observedGeneration"] == 2, SECONDS, "another process looked")

    assert (told["method"], told["revision"], told["previous"]) == ("Mine", 2, 1)
    assert (told["template"], told["replicas"]) == (world.revision(), 2)
    assert told["figures"]["requestsPerSecond"] > 0
    assert world.status()["baseline"] == told
    assert "before is revision 1, 2 replicas" in world.status()["diagnosis"]["message"]
