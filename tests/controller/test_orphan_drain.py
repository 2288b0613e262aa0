"""Whole runs on fleets that have no rotation label, on the real controllers."""

from __future__ import annotations

import pytest

from worlds.killing import Killer
from worlds.people import (
    EDITED,
    NEW,
    OLD,
    cap,
    delete_resource,
    edit_flag,
    is_gone,
    pause_and_resume,
    refused,
    scale,
    suspend,
    unsuspend,
    untouched,
)
from worlds.phases import PATIENCE_SECONDS, let_go
from worlds.unlabelled import make_unlabelled, orphans, reach_release, stands_still
from worlds.world import Eye, World, remediation

SECONDS = 400
pytestmark = pytest.mark.timeout(2 * SECONDS + 60)


@pytest.mark.parametrize(("new", "outcome"), [("recovered", "Recovered"), ("worse", "NotRecovered")])
def test_killed_at_every_write_a_fleet_without_a_label_loses_nobody(a_world, new, outcome):
    killer = Killer(each_replica=new == "worse")
    # Longer than the next process takes to come on a busy machine: no stand-in may serve meanwhile.
    world = make_unlabelled(a_world, 2, start_seconds=20, decide=killer.decide)
    before = world.deployment()["spec"]
    world.rewrite(new=new)

    with Eye(world.cluster, world.namespace, 2) as eye:
        world.start()
        world.wait(world.is_closed, SECONDS, "the run closes")
    print(f"{world.starts} processes; {killer.report()}")

    assert world.outcomes() == [outcome]
    assert untouched(world.deployment()["spec"]) == untouched(before)
    assert (world.deployment()["spec"] == before) is (new == "worse")
    assert world.traces() == []
    assert eye.lost == []
    assert eye.fewest >= 2


def test_without_a_spare_a_released_replica_hands_its_place_on(a_world):
    """A quota refuses the stand-in, and the new replica until the released one is gone."""
    rollout = {**remediation()["spec"]["rollout"], "spare": "None", "rotation": "Orphan", "settle": "1s"}
    world = make_unlabelled(a_world, 2, spec={"rollout": rollout})
    before = world.deployment()["spec"]
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "two"}}
    world.cluster.api.create({**quota, "spec": {"hard": {"pods": "2"}}}, world.namespace)

    with Eye(world.cluster, world.namespace, 2) as eye:
        world.start()
        world.wait(world.is_closed, PATIENCE_SECONDS, "the run closes")

    assert world.outcomes() == ["Recovered"]
    assert cap(world) == NEW
    assert untouched(world.deployment()["spec"]) == untouched(before)
    assert (world.traces(), orphans(world)) == ([], [])
    assert (eye.lost, eye.fewest, len(eye.seen)) == ([], 1, 4)


def delete_peer(world: World, orphan: str) -> None:
    old = [pod["metadata"]["name"] for pod in world.pods() if OLD in pod["spec"]["containers"][0]["args"]]
    world.kubectl("delete", "pod", next(name for name in old if name != orphan), "--wait=false")


def delete_released(world: World, orphan: str) -> None:
    world.kubectl("delete", "pod", orphan, "--wait=false")


def meddle_without_effect(world: World, _: str) -> None:
    refused("undo")(world)
    refused("restart")(world)
    pause_and_resume(world)


def meddle_delete_and_scale_up(world: World, orphan: str) -> None:
    meddle_without_effect(world, orphan)
    delete_released(world, orphan)
    scale(5)(world)


def delete_peer_and_scale_down(world: World, orphan: str) -> None:
    delete_peer(world, orphan)
    scale(2)(world)


DEEDS = {
    "edits the flag": (lambda world, _: edit_flag(world), "FlagDrifted", EDITED, 3, 4),
    "scales to zero": (lambda world, _: scale(0)(world), "ScaledToZero", OLD, 0, 3),
    "tries to undo and to restart, pauses and resumes, deletes the released replica and scales up": (
        meddle_delete_and_scale_up,
        "Recovered",
        NEW,
        5,
        0,
    ),
    "deletes a peer and scales down": (delete_peer_and_scale_down, "Recovered", NEW, 2, 2),
}
"""By what somebody does: how the run ends, the flag and the number of replicas then, and how many may go with
requests in flight by that."""


@pytest.mark.parametrize(("deed", "outcome", "flag", "replicas", "lost"), DEEDS.values(), ids=DEEDS)
def test_a_run_with_a_released_replica_survives_people(a_world, deed, outcome, flag, replicas, lost):
    world = make_unlabelled(a_world, 3)
    before = world.deployment()["spec"]

    with Eye(world.cluster, world.namespace, 3) as eye:
        orphan = reach_release(world)
        deed(world, orphan)
        let_go(world)
        world.wait(world.is_closed, PATIENCE_SECONDS, "the run closes")
        world.wait(world.is_settled, PATIENCE_SECONDS, "the rollout is complete")

    assert world.outcomes() == [outcome]
    assert (cap(world), world.replicas()) == (flag, replicas)
    assert untouched(world.deployment()["spec"]) == untouched(before)
    assert world.traces() == []
    assert orphans(world) == []
    assert len(eye.lost) <= lost, eye.lost


def test_deleting_the_resource_takes_a_run_without_a_label_back(a_world):
    world = make_unlabelled(a_world, 2)
    before = world.deployment()["spec"]

    with Eye(world.cluster, world.namespace, 2) as eye:
        reach_release(world)
        delete_resource(world)
        let_go(world)
        world.wait(lambda: is_gone(world), PATIENCE_SECONDS, "the finalizer goes")
        world.wait(world.is_settled, PATIENCE_SECONDS, "the rollout is complete")

    assert world.deployment()["spec"] == before
    assert (world.traces(), orphans(world)) == ([], [])
    assert (eye.lost, eye.fewest) == ([], 2)


def test_deleting_the_target_takes_a_released_replica_along(a_world):
    world = make_unlabelled(a_world, 2)

    reach_release(world)
    world.kubectl("delete", "deployment", "llm", "--wait=false")
    world.wait(world.is_closed, PATIENCE_SECONDS, "the run closes and the finalizer goes")
    world.wait(lambda: orphans(world) == [], PATIENCE_SECONDS, "the released replica goes")

    assert world.outcomes() == ["TargetDeleted"]


def test_a_resource_that_is_lost_leaves_a_fleet_that_is_given_back(a_world):
    world = make_unlabelled(a_world, 2)
    before = world.deployment()["spec"]

    with Eye(world.cluster, world.namespace, 2) as eye:
        reach_release(world)
        world.cluster.api.patch("KVRemediation", "llm", {"metadata": {"finalizers": None}}, world.namespace)
        delete_resource(world)
        world.wait(lambda: is_gone(world), PATIENCE_SECONDS, "the resource is lost")
        let_go(world)
        world.wait(lambda: world.deployment()["spec"] == before, PATIENCE_SECONDS, "it is given back")
        world.wait(world.is_settled, PATIENCE_SECONDS, "the rollout is complete")
        world.wait(lambda: orphans(world) == [], PATIENCE_SECONDS, "nothing is left")

    assert (eye.lost, eye.fewest) == ([], 2)


def test_a_stopped_run_finishes_the_drain_and_then_stands_still(a_world):
    world = make_unlabelled(a_world, 2)

    with Eye(world.cluster, world.namespace, 2) as eye:
        reach_release(world)
        suspend(world)
        stopped = ("True", "Suspended")
        world.wait(lambda: world.condition("Progressing") == stopped, PATIENCE_SECONDS, "the stop is shown")
        let_go(world)
        world.wait(lambda: orphans(world) == [], PATIENCE_SECONDS, "the released replica is drained")
        stands_still(world)
        unsuspend(world)
        world.wait(world.is_closed, PATIENCE_SECONDS, "the run closes")

    assert world.outcomes() == ["Recovered"]
    assert world.traces() == []
    assert (eye.lost, eye.fewest) == ([], 2)


def test_a_replica_that_keeps_its_requests_is_kept_and_a_person_is_asked(a_world):
    rollout = {"drainTimeout": "10s", "rotation": "Orphan"}
    world = make_unlabelled(a_world, 2, spec={"rollout": rollout})

    with Eye(world.cluster, world.namespace, 2) as eye:
        orphan = reach_release(world)
        asked = ("True", "DrainTimedOut")
        world.wait(lambda: world.condition("ActionRequired") == asked, PATIENCE_SECONDS, "a person is asked")
        kept = [pod["metadata"]["name"] for pod in orphans(world)]
        proceed = {"spec": {"rollout": {"onDrainTimeout": "Proceed"}}}
        world.cluster.api.patch("KVRemediation", "llm", proceed, world.namespace)
        world.wait(world.is_closed, PATIENCE_SECONDS, "the run closes")

    assert kept == [orphan]
    assert world.outcomes() == ["Recovered"]
    assert (eye.lost, eye.fewest) == ([], 2)
