"""Several fleets under one operator: budgets, and the breaker that a storm of bad ends trips."""

from __future__ import annotations

import copy
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from lab.cluster.api import ApiError
from worlds.conditions import events, message_of
from worlds.phases import PATIENCE_SECONDS, Phase, drained, let_go, reach
from worlds.world import SERVICE, World, deployment, remediation

OTHER = "other"
TICKS_SECONDS = 3.0
"""Three minutes of the fast clock: three looks at a resource that waits."""


def renamed(manifest: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the manifest of another fleet of the same kind."""
    made = copy.deepcopy(manifest)
    made["metadata"]["name"] = name
    spec = made["spec"]
    for labels in (
        spec.get("selector", {}).get("matchLabels") or spec.get("selector", {}),
        spec.get("template", {}).get("metadata", {}).get("labels", {}),
    ):
        if "app" in labels:
            labels["app"] = name
    if "targetRef" in spec:
        spec["targetRef"]["name"] = name
    return made


def add_fleet(world: World, name: str = OTHER) -> None:
    """Add a thrashing fleet of two, with its resource."""
    world.cluster.api.create(renamed(deployment(2), name), world.namespace)
    world.cluster.api.create(renamed(SERVICE, name), world.namespace)
    world.kubectl("rollout", "status", f"deployment/{name}", "--timeout=30s")
    pods = world.cluster.api.list("Pod", world.namespace, f"app={name}")
    world.rewrite(pods={pod["metadata"]["name"]: "thrash" for pod in pods})
    world.cluster.apply(renamed(remediation(), name), world.namespace)


def status_of(world: World, name: str) -> dict[str, Any]:
    return world.cluster.api.get("KVRemediation", name, world.namespace).get("status") or {}


def progressing(world: World, name: str) -> tuple[str, str]:
    """Return reason and message of a resource's condition Progressing."""
    for condition in status_of(world, name).get("conditions", []):
        if condition["type"] == "Progressing":
            return condition["reason"], condition["message"]
    return "", ""


def open_runs(world: World) -> list[str]:
    resources = world.cluster.api.list("KVRemediation", world.namespace)
    return [each["metadata"]["name"] for each in resources if (each.get("status") or {}).get("run")]


def history(world: World, name: str) -> list[dict[str, Any]]:
    return list(status_of(world, name).get("history") or [])


def test_of_two_fleets_one_waits_for_the_other_also_across_a_restart(a_world):
    world = a_world(2)
    add_fleet(world)
    world.rewrite(inFlight=1)
    world.settings = {"budgets": {"runsPerNamespace": 1, "fleetShare": 1}}

    def waiting() -> list[str]:
        return [name for name in ("llm", OTHER) if progressing(world, name)[0] == "RunsAtLimit"]

    world.start()
    world.wait(lambda: len(open_runs(world)) == 1 and len(waiting()) == 1, PATIENCE_SECONDS, "one waits")
    (holder,), (waiter,) = open_runs(world), waiting()
    sentence = progressing(world, waiter)[1]
    world.kill()
    time.sleep(TICKS_SECONDS)
    after_restart = open_runs(world)
    let_go(world)
    world.wait(lambda: bool(history(world, waiter)), 2 * PATIENCE_SECONDS, "the other has its turn")

    assert "budgets.runsPerNamespace is 1" in sentence
    assert f"{world.namespace}/{holder} has a run open" in sentence
    assert after_restart == [holder]
    first, second = history(world, holder), history(world, waiter)
    assert [run["outcome"] for run in (*first, *second)] == ["Recovered", "Recovered"]
    assert first[0]["endedAt"] <= second[0]["startedAt"], "two runs were open at once"


def test_with_room_for_both_neither_waits(a_world):
    world = a_world(2)
    add_fleet(world)
    world.rewrite(inFlight=1)
    world.settings = {"budgets": {"fleetShare": 1}}

    world.start()
    world.wait(lambda: len(open_runs(world)) == 2, PATIENCE_SECONDS, "both have a run open")


def storm(world: World, minutes_ago: float = 5, count: int = 3) -> None:
    """Leave a resource whose runs ended badly, some minutes ago by the fast clock."""
    now = world.began + (time.time() - world.began) * world.speed
    at = (datetime.fromtimestamp(now, UTC) - timedelta(minutes=minutes_ago)).isoformat()
    run = {"id": "1", "reason": "FleetWideDemand", "outcome": "CanaryFailed", "message": "", "steps": []}
    ended = [{**run, "startedAt": at, "endedAt": at} for _ in range(count)]
    made = renamed(remediation(mode="Observe"), "ruins")
    world.cluster.api.create(made, world.namespace)
    path = f"/apis/kvmedic.io/v1alpha1/namespaces/{world.namespace}/kvremediations/ruins/status"
    while not history(world, "ruins"):
        body = world.cluster.api.get("KVRemediation", "ruins", world.namespace)
        body["status"] = {**(body.get("status") or {}), "history": ended}
        with suppress(ApiError):  # the operator may write in between
            world.cluster.api.request("PUT", path, json=body)


def waits_for_calm(world: World) -> None:
    world.wait(
        lambda: world.condition("ActionRequired") == ("True", "StormBreakerTripped"),
        PATIENCE_SECONDS,
        "the storm is reported",
    )


def test_after_a_storm_no_run_opens_until_an_administrator_says_so(a_world):
    world = a_world(2)
    storm(world)

    world.start()
    waits_for_calm(world)
    sentence = message_of(world, "ActionRequired")
    time.sleep(TICKS_SECONDS)
    assert open_runs(world) == []
    assert not history(world, "llm")
    command = sentence.rpartition("go on earlier with: kubectl ")[2]
    world.cluster.kubectl(*command.split())
    world.wait(world.is_closed, PATIENCE_SECONDS, "the run closes")

    assert f"{world.namespace}/ruins CanaryFailed" in sentence
    assert len(events(world, "StormBreakerTripped")) == 1
    assert world.outcomes() == ["Recovered"]


def test_after_a_storm_runs_open_again_by_themselves(a_world):
    world = a_world(2)
    world.settings = {"storm": {"lasts": "15m"}}
    storm(world, minutes_ago=8)

    world.start()
    waits_for_calm(world)
    world.wait(world.is_closed, PATIENCE_SECONDS, "the run closes")

    until = datetime.fromisoformat(world.status()["history"][0]["startedAt"])
    bad = datetime.fromisoformat(history(world, "ruins")[0]["endedAt"])
    assert world.outcomes() == ["Recovered"]
    assert until - bad >= timedelta(minutes=15)


@pytest.mark.parametrize(("phase", "outcome"), [(Phase.DRAIN, "Recovered"), (Phase.WAY_BACK, "NotRecovered")])
def test_a_storm_ends_no_run_that_is_open_and_keeps_none_from_going_back(a_world, phase, outcome):
    world = a_world(2)

    reach(world, phase)
    storm(world, minutes_ago=0)
    time.sleep(TICKS_SECONDS)
    assert drained(world), "the walk is where it was"
    let_go(world)
    world.wait(world.is_closed, PATIENCE_SECONDS, "the run closes")

    assert world.outcomes() == [outcome]
    assert world.traces() == []
