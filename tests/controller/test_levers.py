"""Lever after lever on real controllers: what did not help is taken back, remembered, and passed over."""

from __future__ import annotations

import time
from typing import Any

import pytest

from worlds.host_memory import LOOKS_SECONDS, OFTEN, turned
from worlds.world import Eye, World

PATIENCE_SECONDS = 90
BUDGET = "--max-num-batched-tokens=8192"


def levers(*names: str) -> dict[str, Any]:
    return {"levers": [{"name": name} for name in names], "limits": OFTEN}


def close(world: World, runs: int) -> None:
    """Wait until as many runs are closed and nothing of theirs is left."""
    world.wait(
        lambda: len(world.outcomes()) >= runs and world.is_closed(), PATIENCE_SECONDS, f"{runs} runs close"
    )


def test_after_a_cap_that_did_not_help_the_next_lever_is_taken(a_world):
    world = a_world(spec=levers("maxNumSeqs", "maxNumBatchedTokens"), arguments=[BUDGET])
    before = world.deployment()["spec"]["template"]
    world.rewrite(new="worse")

    with Eye(world.cluster, world.namespace, 2) as eye:
        world.start()
        world.wait(lambda: world.outcomes() == ["NotRecovered"], PATIENCE_SECONDS, "the cap is taken back")
        assert world.deployment()["spec"]["template"] == before
        world.kill()
        world.rewrite(new="recovered")
        close(world, 2)

    assert world.outcomes() == ["Recovered", "NotRecovered"]
    assert turned(world) == ["maxNumSeqs", "maxNumBatchedTokens"]
    assert "--max-num-seqs=64" in world.args(), "the first lever's change is gone"
    assert [arg for arg in world.args() if "batched" in arg] == ["--max-num-batched-tokens=256"]
    assert (eye.lost, eye.fewest >= 2) == ([], True)


def test_where_prompts_fill_the_cache_a_watermark_is_set_instead_of_a_cap(a_world):
    world = a_world(spec=levers("maxNumSeqs", "watermark"))
    world.rewrite(old="prompts", new="prompts recovered")

    world.start()
    close(world, 1)

    assert world.outcomes() == ["Recovered"]
    assert turned(world) == ["watermark"]
    assert world.args()[-1].startswith("--watermark=0.")
    assert "--max-num-seqs=64" in world.args()


def pinned(container: dict[str, Any], _pod: dict[str, Any]) -> None:
    """Let the template name its image by digest alone."""
    container["image"] = "vllm/vllm-openai@sha256:" + "0" * 64


def test_an_image_by_digest_gets_a_flag_of_some_versions_once_its_replicas_report_theirs(a_world):
    world = a_world(spec=levers("watermark"), change=pinned)
    before = world.deployment()["spec"]["template"]
    world.rewrite(old="prompts", new="prompts recovered")

    world.start()
    world.wait(
        lambda: world.condition("Progressing") == ("False", "FlagUnknownToEngine"),
        PATIENCE_SECONDS,
        "the flag is refused",
    )
    assert "has no such page" in world.status()["diagnosis"]["message"]
    assert world.deployment()["spec"]["template"] == before
    world.rewrite(version="0.32.0")
    close(world, 1)

    assert (world.outcomes(), turned(world)) == (["Recovered"], ["watermark"])


def test_a_lever_that_did_not_help_is_remembered_over_a_restart_and_not_tried_again(a_world):
    world = a_world(spec=levers("watermark"))
    before = world.deployment()["spec"]["template"]
    world.rewrite(old="prompts", new="prompts worse")

    world.start()
    close(world, 1)
    world.kill()
    world.wait(
        lambda: world.condition("Progressing") == ("False", "LeverExhausted"),
        PATIENCE_SECONDS,
        "the next operator knows",
    )
    time.sleep(LOOKS_SECONDS)

    assert world.outcomes() == ["NotRecovered"]
    assert world.deployment()["spec"]["template"] == before
    assert world.condition("ActionRequired") == ("True", "LeverExhausted")
    [tried] = world.status()["failedAttempts"]
    assert (tried["key"], tried["why"], tried["template"]) == (
        "watermark",
        "NotRecovered",
        world.revision(),
    )
    lengths = tried["load"]["promptTokens"], tried["load"]["outputTokens"]
    assert lengths == (pytest.approx(310), pytest.approx(40))
