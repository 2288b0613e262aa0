"""What becomes of a run, from the first look to the last trace, on real controllers."""

from __future__ import annotations

from reconcile.world import Eye


def test_a_thrashing_fleet_is_healed_and_nothing_is_left_behind(a_world):
    world = a_world(replicas=3)
    before = world.deployment()

    with Eye(world.cluster, world.namespace, 3) as eye:
        world.start()
        world.wait(world.is_closed, 60, "the run closes")

    after = world.deployment()
    caps = [arg for arg in world.args() if arg.startswith("--max-num-seqs=")]
    assert world.status()["history"][0]["outcome"] == "Recovered"
    assert len(caps) == 1
    assert caps != ["--max-num-seqs=64"]
    assert eye.lost == []
    assert eye.fewest >= 3
    assert len(eye.seen) == 6
    assert after["spec"]["strategy"] == before["spec"]["strategy"]
    assert "minReadySeconds" not in after["spec"]
    assert "paused" not in after["spec"]
    assert not [key for key in after["metadata"]["annotations"] if key.startswith("kvmedic.io/")]


def test_a_change_that_did_not_help_is_taken_back(a_world):
    world = a_world()
    before = world.deployment()["spec"]
    world.write_script(old="thrash", new="worse", revision=world.revision())

    with Eye(world.cluster, world.namespace, 2) as eye:
        world.start()
        world.wait(world.is_closed, 90, "the run closes")

    assert world.status()["history"][0]["outcome"] == "NotRecovered"
    assert world.deployment()["spec"] == before
    assert eye.lost == []
    assert eye.fewest >= 2


def test_a_crashing_canary_leaves_the_old_fleet_alone(a_world):
    world = a_world(
        annotations={"lab.kvmedic.io/mode": "crash", "lab.kvmedic.io/mode-when": "--max-num-seqs=[1-3]"}
    )
    before, pods = world.deployment()["spec"], {p["metadata"]["name"] for p in world.pods()}

    world.start()
    world.wait(world.is_closed, 90, "the run closes")

    assert world.status()["history"][0]["outcome"] == "CanaryFailed"
    assert world.deployment()["spec"] == before
    world.wait(lambda: {p["metadata"]["name"] for p in world.pods()} == pods, 10, "the canary is gone")
