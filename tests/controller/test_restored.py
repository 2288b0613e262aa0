"""An etcd is restored from a backup while a run is open, and the operator goes on as if nothing had been.

All that it knows is of a later version then: the run that it closed is open again, replicas that it let go
are back, and no watch reports it (Kubernetes 1.36 answers one from a later version with 200 and silence).
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from lab.cluster.light import LightCluster
from worlds.phases import PATIENCE_SECONDS, Phase, drained, let_go, reach
from worlds.world import Eye, Maker, World, define

BEHIND = ("kwok", "kube-scheduler", "kube-controller-manager", "kube-apiserver", "etcd")
"""What is stopped while an etcd is saved or restored, in this order; it comes back the other way round."""
LONGEST = 3 * PATIENCE_SECONDS


@contextmanager
def stopped(cluster: LightCluster) -> Iterator[Path]:
    """Yield etcd's directory while nothing runs."""
    for name in BEHIND:
        cluster.stop_component(name)
    yield cluster.directory / "etcd"
    cluster.components["etcd"].start()
    for name in reversed(BEHIND[:-1]):
        cluster.start_component(name)


def wait_for(claim: Callable[[], bool], world: World, what: str) -> None:
    """Wait by the API server alone: our own watches are as deaf as any."""
    deadline = time.monotonic() + LONGEST
    while time.monotonic() < deadline:
        world.revive()
        if claim():
            return
        time.sleep(0.5)
    raise AssertionError(f"{what} was not so within {LONGEST} s; {world.status()}\n{world.log[-4000:]}")


@pytest.mark.timeout(2 * LONGEST)
def test_a_run_that_an_etcd_brings_back_is_ended_by_the_process_that_had_closed_it(private_light, tmp_path):
    cluster = private_light(controllers=True, kwok=True, node_gpus=8)
    define(cluster)
    saved = tmp_path / "saved"
    with ExitStack() as stack:
        world = Maker(cluster, cluster.create_namespace("fleet"), tmp_path, stack).make(2)
        reach(world, Phase.DRAIN)
        out = drained(world)
        with stopped(cluster) as etcd:
            shutil.copytree(etcd, saved)
        let_go(world)
        wait_for(world.is_closed, world, "the run closes")
        assert world.outcomes() == ["Recovered"]

        with stopped(cluster) as etcd:
            shutil.rmtree(etcd)
            shutil.copytree(saved, etcd)
        assert "run" in world.status()
        assert drained(world) == out
        with Eye(cluster, world.namespace, 2) as eye:
            wait_for(world.is_closed, world, "the run closes again")
            wait_for(world.is_settled, world, "the rollout is complete")

    assert world.starts == 1
    assert world.outcomes() == ["Recovered"]
    assert world.args()[2] == "--max-num-seqs=14"
    assert world.traces() == []
    assert eye.lost == []
