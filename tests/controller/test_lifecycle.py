"""What becomes of a run, from the first look to the last trace, on real controllers."""

from __future__ import annotations

from worlds.world import Eye


def test_a_thrashing_fleet_of_one_replica_is_healed_and_nothing_is_left_behind(a_world):
    replicas = 1
    world = a_world(replicas)
    before = world.deployment()

    with Eye(world.cluster, world.namespace, replicas) as eye:
        world.start()
        world.wait(world.is_closed, 60, "the run closes")

    after = world.deployment()
    caps = [arg for arg in world.args() if arg.startswith("--max-num-seqs=")]
    assert world.status()["history"][0]["outcome"] == "Recovered"
    assert len(caps) == 1
    assert caps != ["--max-num-seqs=64"]
    assert world.traces() == []
    assert eye.lost == []
    assert eye.fewest >= replicas
    assert len(eye.seen) == 2 * replicas
    assert after["spec"]["strategy"] == before["spec"]["strategy"]
    assert "minReadySeconds" not in after["spec"]
    assert "paused" not in after["spec"]
    assert not [key for key in after["metadata"]["annotations"] if key.startswith("kvmedic.io/")]
