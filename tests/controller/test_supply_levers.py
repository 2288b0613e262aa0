"""Supply levers on real controllers: each where it applies, and taken back where it did not help."""

from __future__ import annotations

import time
from typing import Any

import pytest

from worlds.host_memory import LOOKS_SECONDS, OFTEN, PATIENCE_SECONDS, roomy, turned
from worlds.world import Eye, World

SHARE = {"name": "gpuMemoryUtilization", "min": 0.8, "max": 0.95, "step": 0.02}
HOST = {"name": "cpuOffload", "maxGiB": 16}
GIVEN = "--gpu-memory-utilization=0.9"

pytestmark = pytest.mark.timeout(3 * PATIENCE_SECONDS)


def spec(*levers: dict[str, Any]) -> dict[str, Any]:
    return {"levers": list(levers), "limits": OFTEN}


def close(world: World) -> None:
    """Wait until a run is closed and nothing of it is left."""
    world.wait(world.is_closed, PATIENCE_SECONDS, "the run closes")


def said(world: World) -> str:
    """Return why no run is open."""
    found = [one for one in world.status().get("conditions", []) if one["type"] == "Progressing"]
    return str(found[0]["message"]) if found else ""


def left_alone(world: World, why: str) -> None:
    """Wait until no run is open for a reason, and look several times more with every gate open."""
    world.wait(lambda: why in said(world), PATIENCE_SECONDS, f"it says {why}")
    time.sleep(LOOKS_SECONDS)
    assert why in said(world)


def gone_on(world: World) -> None:
    """Let the next operator look several times, with every gate open."""
    world.kill()
    left_alone(world, "tried on this revision")


def test_a_share_is_raised_where_memory_stays_free_and_a_cap_would_not_help(a_world):
    world = a_world(spec=spec({"name": "maxNumSeqs"}, SHARE), arguments=[GIVEN])
    world.rewrite(old="prompts", new="prompts recovered", devices={"*": {"memoryInUse": 0.9}})

    with Eye(world.cluster, world.namespace, 2) as eye:
        world.start()
        close(world)

    assert (world.outcomes(), turned(world)) == (["Recovered"], ["gpuMemoryUtilization"])
    assert "--max-num-seqs=64" in world.args()
    assert [arg for arg in world.args() if "utilization" in arg] == ["--gpu-memory-utilization=0.92"]
    assert (eye.lost, eye.fewest >= 2) == ([], True)


def test_a_share_that_did_not_help_is_lowered_again_and_remembered(a_world):
    world = a_world(spec=spec(SHARE), arguments=[GIVEN])
    before = world.deployment()["spec"]["template"]
    world.rewrite(new="worse", devices={"*": {"memoryInUse": 0.9}})

    world.start()
    close(world)
    gone_on(world)

    assert world.outcomes() == ["NotRecovered"]
    assert world.deployment()["spec"]["template"] == before
    [tried] = world.status()["failedAttempts"]
    assert (tried["attempt"], tried["key"]) == ("RaiseMemory", "gpuMemoryUtilization")


@pytest.mark.parametrize(
    ("devices", "why"),
    [
        ({}, "how much of the GPUs' memory stays free under load is not known"),
        ({"*": {"memoryInUse": 0.99}}, "99.0% of a GPU's memory was in use"),
    ],
    ids=["nobody knows what is free", "hardly anything is free"],
)
def test_without_room_a_share_is_left_alone_and_somebody_is_asked(a_world, devices, why):
    world = a_world(spec=spec(SHARE), arguments=[GIVEN])
    world.rewrite(devices=devices)

    world.start()
    left_alone(world, why)

    assert world.condition("ActionRequired")[0] == "True"
    assert (world.outcomes(), GIVEN in world.args()) == ([], True)


def test_prefixes_are_reused_where_prompts_are_long_and_stay_so_if_hits_confirm_it(a_world):
    world = a_world(spec=spec({"name": "prefixCaching"}), arguments=["--no-enable-prefix-caching"])
    world.rewrite(old="unshared", new="shared")

    world.start()
    close(world)

    assert (world.outcomes(), turned(world)) == (["Recovered"], ["prefixCaching"])
    assert world.args()[-1] == "--enable-prefix-caching"
    assert "60% of the looked-up tokens" in world.status()["history"][0]["message"]


def test_prefixes_without_hits_are_not_what_helped_and_are_not_tried_again(a_world):
    world = a_world(spec=spec({"name": "prefixCaching"}), arguments=["--no-enable-prefix-caching"])
    before = world.deployment()["spec"]["template"]
    world.rewrite(old="unshared", new="shared without hits")

    world.start()
    close(world)
    gone_on(world)

    assert world.outcomes() == ["NotRecovered"]
    assert world.deployment()["spec"]["template"] == before


def test_prefills_are_chunked_where_that_frees_memory(a_world):
    arguments = ["--max-model-len=32768", "--no-enable-chunked-prefill"]
    world = a_world(spec=spec({"name": "chunkedPrefill"}), arguments=arguments)

    world.start()
    close(world)

    assert (world.outcomes(), turned(world)) == (["Recovered"], ["chunkedPrefill"])
    assert world.args()[-1] == "--enable-chunked-prefill"


def test_host_memory_that_makes_nothing_smoother_is_given_back_and_not_tried_again(a_world):
    world = a_world(spec=spec(HOST), change=roomy)
    before = world.deployment()["spec"]["template"]
    world.rewrite(new="thrash")

    world.start()
    close(world)
    gone_on(world)

    assert world.outcomes() == ["NotRecovered"]
    assert world.deployment()["spec"]["template"] == before
    assert "temporary" not in world.status()


def test_without_a_memory_limit_that_covers_it_no_host_memory_is_used(a_world):
    world = a_world(spec=spec(HOST))

    world.start()
    left_alone(world, "the container has no memory limit")

    assert world.condition("ActionRequired")[0] == "True"
    assert world.outcomes() == []
