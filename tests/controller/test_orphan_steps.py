"""Steps other than a rollout on fleets that have no rotation label, on the real controllers."""

from __future__ import annotations

import pytest

from worlds.autoscaled import behind_hpa
from worlds.killing import Killer
from worlds.people import abandon_resource, delete_resource, edit_flag, is_gone, rollout, scale
from worlds.phases import BESIDE, PATIENCE_SECONDS, let_go
from worlds.replacing import names, press_one
from worlds.scaling import MORE, calm, held, press, spec
from worlds.unlabelled import make_unlabelled, orphans
from worlds.world import Eye, World, is_cordoned, remediation

SECONDS = 400
LONG_START_SECONDS = 20
"""Longer than the next process takes to come on a busy machine: no stand-in may serve meanwhile."""
pytestmark = pytest.mark.timeout(2 * SECONDS + 60)


def run_to_end(world: World, replicas: int, killer: Killer | None = None, runs: int = 1) -> Eye:
    """Run until so many runs are closed, killed at every write; print what was covered."""
    with Eye(world.cluster, world.namespace, replicas) as eye:
        world.start()
        world.wait(lambda: len(world.outcomes()) >= runs and world.is_closed(), SECONDS, "the run closes")
    if killer is not None:
        print(f"{world.starts} processes; {killer.report()}")
    return eye


def test_killed_at_every_write_one_replica_is_replaced_without_a_label(a_world):
    killer = Killer()
    world = make_unlabelled(a_world, 2, decide=killer.decide)
    before, deployed = names(world), world.deployment()["spec"]
    pressured = press_one(world)

    eye = run_to_end(world, 2, killer)

    assert world.outcomes() == ["Recovered"]
    assert world.deployment()["spec"] == deployed
    assert before - names(world) == {pressured}
    assert (world.traces(), orphans(world)) == ([], [])
    assert (eye.lost, eye.fewest) == ([], 2)
    assert len(eye.seen) == 3, "one spare came, and one replica went"


def test_killed_at_every_write_a_replica_is_given_back_to_its_replica_set(a_world):
    killer = Killer()
    world = make_unlabelled(a_world, 2, LONG_START_SECONDS, decide=killer.decide)
    before, deployed = names(world), world.deployment()["spec"]
    press_one(world)

    with Eye(world.cluster, world.namespace, 2) as eye:
        world.start()
        world.wait(lambda: bool(orphans(world)), SECONDS, "the replica is released")
        world.kubectl("annotate", "kvr", "llm", f"kvmedic.io/rollback={world.status()['run']['id']}")
        world.wait(world.is_closed, SECONDS, "the run closes")
        world.wait(lambda: names(world) == before, SECONDS, "its spare is gone")
    print(f"{world.starts} processes; {killer.report()}")

    assert world.outcomes() == ["RolledBackByHand"]
    assert world.deployment()["spec"] == deployed
    assert (world.traces(), orphans(world)) == ([], [])
    assert (eye.lost, eye.fewest) == ([], 2)


def test_a_spare_without_room_is_given_up_and_the_replica_serves_on(a_world):
    waits = {**remediation()["spec"]["rollout"], "spareLimit": "15m"}
    world = make_unlabelled(a_world, 2, spec={"rollout": waits})
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "two"}}
    world.cluster.api.create({**quota, "spec": {"hard": {"pods": "2"}}}, world.namespace)
    before = names(world)
    press_one(world)

    eye = run_to_end(world, 2)

    assert world.outcomes() == ["SpareUnschedulable"]
    assert names(world) == before
    assert (world.traces(), orphans(world)) == ([], [])
    assert (eye.lost, eye.fewest) == ([], 2)


def test_one_replica_is_replaced_beside_an_autoscaler(a_world):
    world = make_unlabelled(a_world, 2)
    behind_hpa(world, 2)
    before, deployed = names(world), world.deployment()["spec"]
    pressured = press_one(world)

    eye = run_to_end(world, 2)

    assert world.outcomes() == ["Recovered"]
    assert before - names(world) == {pressured}
    assert world.deployment()["spec"] == deployed
    assert len(eye.seen) == 3, "one spare came, and one replica went"
    assert (world.traces(), orphans(world)) == ([], [])
    assert (eye.lost, eye.fewest) == ([], 2)


def test_killed_at_every_write_replicas_are_added_and_given_back_without_a_label(a_world):
    killer = Killer()
    world = make_unlabelled(a_world, 2, LONG_START_SECONDS, decide=killer.decide, spec=spec())
    deployed = world.deployment()["spec"]

    with Eye(world.cluster, world.namespace, 2) as eye:
        press(world)
        world.start()
        world.wait(lambda: bool(held(world)) and "run" not in world.status(), SECONDS, "a replica is added")
        calm(world)
        world.wait(lambda: len(world.outcomes()) == 2 and world.is_closed(), SECONDS, "it is given back")
    print(f"{world.starts} processes; {killer.report()}")

    assert world.outcomes() == ["Recovered", "Recovered"]
    assert world.deployment()["spec"] == deployed
    assert (len(names(world)), held(world)) == (2, {})
    assert (world.traces(), orphans(world)) == ([], [])
    assert (eye.lost, eye.fewest) == ([], 2)


def test_a_fleet_without_a_label_goes_in_waves(a_world):
    options = {**BESIDE, "rollout": {"waves": "Quarter"}}
    world = make_unlabelled(a_world, 5, spec=options)

    eye = run_to_end(world, 5)

    assert world.outcomes() == ["Recovered"]
    assert {pod["spec"]["containers"][0]["args"][2] for pod in world.pods()} == {"--max-num-seqs=14"}
    assert (world.traces(), orphans(world)) == ([], [])
    assert (eye.lost, eye.fewest) == ([], 5)


def release_one(world: World) -> str:
    """Start the operator; wait until the pressured replica, released, is out of rotation and busy."""
    name = press_one(world)
    world.rewrite(inFlight=1)
    world.start()
    world.wait(
        lambda: any(is_cordoned(pod) for pod in orphans(world)), PATIENCE_SECONDS, "the replica is drained"
    )
    return name


def delete_released(world: World, name: str) -> None:
    world.kubectl("delete", "pod", name, "--wait=false")


def delete_peer(world: World, name: str) -> None:
    world.kubectl("delete", "pod", min(names(world) - {name}), "--wait=false")


DEEDS = {
    "scales up": (lambda world, _: scale(4)(world), {"Recovered"}, 4, 0),
    "scales down": (lambda world, _: scale(2)(world), {"Recovered"}, 2, 1),
    "scales to zero": (lambda world, _: scale(0)(world), {"ScaledToZero"}, 0, 3),
    "deletes the released replica": (delete_released, {"Recovered"}, 3, 0),
    "deletes a peer": (delete_peer, {"Recovered"}, 3, 1),
    "restarts the rollout": (lambda world, _: rollout("restart")(world), {"FlagDrifted"}, 3, 3),
    "edits the flag": (lambda world, _: edit_flag(world), {"FlagDrifted"}, 3, 3),
    "deletes the resource": (lambda world, _: delete_resource(world), set(), 3, 0),
    "abandons the resource": (lambda world, _: abandon_resource(world), set(), 3, 0),
}
"""By what somebody does: how the run may end, the number of replicas then, and how many may go with requests
in flight by that."""


@pytest.mark.parametrize(("deed", "outcomes", "replicas", "lost"), DEEDS.values(), ids=DEEDS)
def test_a_replacement_without_a_label_survives_people(a_world, deed, outcomes, replicas, lost):
    world = make_unlabelled(a_world, 3, spec={"limits": {"cooldown": "24h"}})

    with Eye(world.cluster, world.namespace, 3) as eye:
        name = release_one(world)
        deed(world, name)
        let_go(world)
        over = world.is_closed if outcomes else (lambda: is_gone(world))
        world.wait(over, PATIENCE_SECONDS, "the run closes")
        world.wait(world.is_settled, PATIENCE_SECONDS, "the Deployment is settled")
        world.wait(lambda: orphans(world) == [], PATIENCE_SECONDS, "nothing is left")

    assert set(world.outcomes() if outcomes else ()) == outcomes
    assert (world.replicas(), world.traces()) == (replicas, [])
    assert len(eye.lost) <= lost, eye.lost


def test_a_person_who_scales_while_a_replica_is_given_back_is_followed(a_world):
    world = make_unlabelled(a_world, 2, spec=spec())
    press(world)
    with Eye(world.cluster, world.namespace, 2) as eye:
        world.start()
        world.wait(lambda: bool(held(world)) and "run" not in world.status(), SECONDS, "a replica is added")
        world.rewrite(inFlight=1)
        calm(world)
        world.wait(lambda: bool(orphans(world)), SECONDS, "one is released")
        scale(MORE + 1)(world)
        let_go(world)
        world.wait(lambda: len(world.outcomes()) == 2 and "run" not in world.status(), SECONDS, "it ends")
        world.wait(world.is_settled, PATIENCE_SECONDS, "the Deployment is settled")

    assert (world.replicas(), orphans(world)) == (MORE + 1, [])
    assert (eye.lost, eye.fewest) == ([], 2)
