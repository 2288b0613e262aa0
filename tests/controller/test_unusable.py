"""A resource that cannot be followed any more, as after a downgrade, while its run is open.

An operator of another version may have written a spec or a record that this one does not read. The
fleet stands still with every replica in rotation, and the resource can always be deleted, or says what
to type.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import cycle
from typing import Any

import pytest

from lab.cluster.api import ApiError
from worlds.conditions import events, message_of
from worlds.downgrading import LATER, as_another_version, downgrade
from worlds.people import NEW, OLD, abandon_resource, cap, delete_resource, is_gone, stands_still
from worlds.phases import LONG_WINDOW, PATIENCE_SECONDS, Phase, conditions, drained, let_go, reach
from worlds.world import Eye, World

UNUSABLE = {
    "a value that is not known": ({"verify": {"for": "soon"}}, "SpecInvalid"),
    "a feature that is not there": (LATER, "SpecInvalid"),
}


def is_away(world: World) -> bool:
    """Return whether the resource is gone; an API server that takes a definition in does not say."""
    try:
        return is_gone(world)
    except ApiError:
        return False


def spoil(world: World, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the stored status into one that this version does not read."""
    spoiled: list[dict[str, Any]] = []

    def write() -> None:
        body = world.resource()
        change(body["status"])
        spoiled[:] = [copy.deepcopy(body["status"])]
        path = f"/apis/kvmedic.io/v1alpha1/namespaces/{world.namespace}/kvremediations/llm/status"
        world.cluster.api.request("PUT", path, json=body)

    as_another_version(world, write, lambda: world.condition("Ready")[1] == "RunUnreadable")


def strange_run(status: dict[str, Any]) -> None:
    status["run"]["steps"][0]["state"] = "Teleporting"


def strange_history(status: dict[str, Any]) -> None:
    status["history"] = [{"id": "1", "outcome": "Transcended"}]


DELETED_IN = (Phase.DRAIN, Phase.WAY_BACK, Phase.COMPARE)


@pytest.mark.parametrize(("phase", "what"), [*zip(DELETED_IN, cycle(UNUSABLE), strict=False)])
def test_a_resource_with_an_unusable_spec_can_be_deleted(a_world, phase, what):
    spec, reason = UNUSABLE[what]
    world = a_world(2, **conditions(phase, LONG_WINDOW))
    before = world.deployment()["spec"]

    with Eye(world.cluster, world.namespace, 2) as eye:
        reach(world, phase)
        downgrade(world, spec)
        delete_resource(world)
        let_go(world)
        world.wait(lambda: is_away(world), PATIENCE_SECONDS, "the finalizer goes")
        world.wait(world.is_settled, PATIENCE_SECONDS, "the rollout is complete")

    assert world.log.count(f"problem={reason}") >= 1
    assert len(events(world, reason)) == 1
    assert world.deployment()["spec"] == before
    assert world.traces() == []
    assert eye.lost == []
    assert eye.fewest >= 2


def test_a_run_whose_spec_becomes_unusable_waits_and_goes_on_when_it_is_mended(a_world):
    world = a_world(2)
    spec, reason = UNUSABLE["a value that is not known"]

    with Eye(world.cluster, world.namespace, 2) as eye:
        reach(world, Phase.DRAIN)
        downgrade(world, spec)
        let_go(world)
        for name, status in (("Ready", "False"), ("Stalled", "True"), ("ActionRequired", "True")):
            world.wait(
                lambda name=name, status=status: world.condition(name) == (status, reason),
                20,
                f"{name} is reported",
            )
        world.wait(lambda: drained(world) == [], PATIENCE_SECONDS, "every replica is in rotation again")
        stands_still(world)
        assert "spec.verify.for" in message_of(world, "Ready")
        world.cluster.api.patch(
            "KVRemediation",
            "llm",
            {"spec": {"verify": {"for": "1m", "sideBySide": "Never"}}},
            world.namespace,
        )
        world.wait(world.is_closed, PATIENCE_SECONDS, "the run closes")

    assert world.outcomes() == ["Recovered"]
    assert world.condition("Ready") == ("True", "TargetFound")
    assert world.condition("Stalled") == ("False", "NothingToDo")
    assert world.traces() == []
    assert eye.lost == []


def test_abandoning_with_an_unusable_spec_leaves_the_template(a_world):
    world = a_world(2)

    reach(world, Phase.DRAIN)
    downgrade(world, LATER)
    abandon_resource(world)
    world.wait(lambda: is_away(world), PATIENCE_SECONDS, "the finalizer goes")
    world.wait(world.is_settled, PATIENCE_SECONDS, "the rollout is complete")

    assert cap(world) == NEW
    assert world.traces() == []


def test_another_rotation_label_in_the_middle_strands_nobody(a_world):
    world = a_world(2)

    reach(world, Phase.DRAIN)
    rollout = {"rotationLabel": {"key": "traffic", "draining": "off"}}
    world.cluster.api.patch("KVRemediation", "llm", {"spec": {"rollout": rollout}}, world.namespace)
    let_go(world)
    world.wait(world.is_closed, PATIENCE_SECONDS, "the run closes")

    assert world.outcomes() == ["Recovered"]
    assert world.traces() == []


def test_a_deleted_resource_with_an_unreadable_run_says_what_to_type(a_world):
    world = a_world(2)

    reach(world, Phase.DRAIN)
    spoil(world, strange_run)
    advice = message_of(world, "Ready")
    delete_resource(world)
    world.wait(lambda: "is being deleted" in message_of(world, "Ready"), 20, "it says what to type")
    stands = world.deployment()["metadata"]["generation"]
    command = message_of(world, "Ready").rpartition("release the resource: kubectl ")[2]

    assert "--subresource=status" in advice
    assert not is_away(world)
    world.cluster.kubectl(*command.split())
    world.wait(lambda: is_away(world), PATIENCE_SECONDS, "the finalizer goes")
    assert world.deployment()["metadata"]["generation"] == stands
    assert len(events(world, "RunUnreadable")) == 1
    assert world.log.count("problem=RunUnreadable") == 2, (
        "reported before and after the deletion, not on every look"
    )


def test_an_unreadable_run_does_not_keep_a_resource_whose_target_is_gone(a_world):
    world = a_world(2)

    reach(world, Phase.DRAIN)
    spoil(world, strange_run)
    world.kubectl("delete", "deployment", "llm", "--wait=false")
    delete_resource(world)

    world.wait(lambda: is_away(world), PATIENCE_SECONDS, "the finalizer goes")


def test_an_unreadable_history_does_not_keep_a_run_from_being_taken_back(a_world):
    world = a_world(2)
    before = world.deployment()["spec"]

    reach(world, Phase.DRAIN)
    spoil(world, strange_history)
    delete_resource(world)
    let_go(world)
    world.wait(lambda: is_away(world), PATIENCE_SECONDS, "the finalizer goes")

    assert cap(world) == OLD
    assert world.deployment()["spec"] == before
    assert world.traces() == []
