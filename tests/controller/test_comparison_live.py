"""New replicas beside old ones on real controllers: what stands still meanwhile, and what people read."""

from __future__ import annotations

import json
from typing import Any

import pytest

from worlds.command_line import kvmedic
from worlds.phases import BESIDE, PATIENCE_SECONDS, Phase, drained, is_comparing, reach
from worlds.replacing import names
from worlds.world import Eye, World

CHANGED = "--max-num-seqs=14"


def compared(world: World) -> dict[str, Any]:
    """Return what the open run's record says of both sides."""
    return dict(world.status().get("run", {}).get("steps", [{}])[0].get("comparison", {}))


def progress_message(world: World) -> str:
    return next(c["message"] for c in world.status()["conditions"] if c["type"] == "Progressing")


def events(world: World) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(world.kubectl("get", "events", "-o", "json"))["items"]
    return found


def test_the_walk_waits_beside_untouched_old_replicas_and_goes_on(a_world):
    world = a_world(replicas=3, spec=BESIDE)
    old = names(world)

    with Eye(world.cluster, world.namespace, 3) as eye:
        reach(world, Phase.COMPARE)
        world.wait(
            lambda: compared(world).get("minutes", 0) >= 3, PATIENCE_SECONDS, "both sides are compared"
        )
        shown, message = compared(world), progress_message(world)
        assert (old <= names(world), drained(world), world.endpoints()) == (True, [], 4)
        world.wait(world.is_closed, PATIENCE_SECONDS, "the run closes")

    assert shown["state"] == "Watching"
    assert (shown["old"]["replicas"], shown["new"]["replicas"], len(shown["pods"])) == (3, 1, 1)
    assert shown["new"]["servedInTimePerSecond"] > shown["old"]["servedInTimePerSecond"]
    assert "1 new: " in message
    assert "served in time" in message
    assert world.outcomes() == ["Recovered"]
    (went_on,) = {e["message"] for e in events(world) if e["reason"] == "ReplicasCompared"}
    assert "served-in-time: x " in went_on
    assert eye.lost == []
    assert eye.fewest >= 3


def test_of_four_replicas_two_are_changed_before_harm_is_taken_back(a_world):
    world = a_world(replicas=4, spec=BESIDE)
    before, old = world.deployment()["spec"], names(world)
    world.rewrite(new="worse")

    with Eye(world.cluster, world.namespace, 4) as eye:
        world.start()
        world.wait(world.is_closed, PATIENCE_SECONDS, "the run closes")

    assert world.outcomes() == ["NotRecovered"]
    assert world.status()["history"][0]["message"].startswith("served-")
    assert "2 new: " in world.status()["history"][0]["message"]
    assert [one["why"] for one in world.status()["failedAttempts"]] == ["NotRecovered"]
    assert world.deployment()["spec"] == before
    assert len(old & names(world)) == 3, "one old replica had been replaced"
    assert eye.lost == []
    assert eye.fewest >= 4


@pytest.mark.parametrize(("answer", "outcome"), [("Hold", "Inconclusive"), ("Keep", "KeptUnjudged")])
def test_where_figures_stay_missing_the_spec_answers(a_world, answer, outcome):
    verify = {**BESIDE["verify"], "onInconclusive": answer, "holdAtMost": "0s"}
    world = a_world(replicas=2, spec={"verify": verify})
    old = names(world)
    world.rewrite(new="missing")

    with Eye(world.cluster, world.namespace, 2) as eye:
        reach_missing(world)
        world.wait(world.is_closed, PATIENCE_SECONDS, "the run closes")

    assert world.outcomes() == [outcome]
    assert (names(world) == old) is (answer == "Hold")
    assert any(CHANGED in pod["spec"]["containers"][0]["args"] for pod in world.pods()) is (answer == "Keep")
    assert eye.lost == []
    assert eye.fewest >= 2


def reach_missing(world: World) -> None:
    """Start the operator and wait until it says which figures it waits for."""
    world.start()
    world.wait(lambda: is_comparing(world), PATIENCE_SECONDS, "new replicas are compared")
    world.wait(lambda: "scraped" in progress_message(world), PATIENCE_SECONDS, "what is missing is said")


def test_a_person_lets_the_walk_go_on(a_world):
    world = a_world(replicas=2, spec=BESIDE)

    reach(world, Phase.COMPARE)
    asked = kvmedic(world, "keep", "llm")
    assert asked.returncode == 0, asked.stderr
    world.wait(lambda: bool(drained(world)) or world.is_closed(), 8, "the walk goes on at once")
    world.wait(world.is_closed, PATIENCE_SECONDS, "the run closes")

    assert world.outcomes() == ["KeptByHand"]
    assert world.args()[2] == CHANGED


def test_a_person_has_the_first_new_replica_taken_back(a_world):
    world = a_world(replicas=2, spec=BESIDE)
    before, old = world.deployment()["spec"], names(world)

    reach(world, Phase.COMPARE)
    asked = kvmedic(world, "rollback", "llm")
    assert asked.returncode == 0, asked.stderr
    world.wait(world.is_closed, PATIENCE_SECONDS, "the run closes")

    assert world.outcomes() == ["RolledBackByHand"]
    assert world.deployment()["spec"] == before
    world.wait(lambda: names(world) == old, PATIENCE_SECONDS, "the new replica is gone")
