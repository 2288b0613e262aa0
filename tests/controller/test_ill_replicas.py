"""Replicas that are ill: a GPU that is, memory that ran out. On real controllers, with simulated pods."""

from __future__ import annotations

import pytest

from lab.cluster.simulation import behaviour
from worlds.ending import LEVERS, PROMPT, TORCH, crash, has_event, touched
from worlds.world import Eye


def test_a_step_that_does_not_even_start_is_taken_back(a_world):
    """The replica that cannot stay up is still down on the way back, and stands in no way there either."""
    annotations = behaviour(mode="crash", mode_when="--gpu-memory-utilization=0.9")
    world = a_world(spec={"levers": LEVERS}, annotations=annotations)
    before = world.deployment()["spec"]
    world.proxy.log = TORCH
    world.rewrite(old="recovered", pods={crash(world, **{"mode-when": ".*"}): "missing"})

    with Eye(world.cluster, world.namespace, 2) as eye:
        world.start()
        world.wait(world.is_closed, 120, "the run closes")

    assert world.outcomes() == ["CanaryFailed"]
    assert world.deployment()["spec"] == before
    assert world.traces() == []
    assert eye.lost == []


@pytest.mark.parametrize(
    ("log", "crashes", "reason"),
    [
        (f"{PROMPT}\n{TORCH}", {"exit-code": "137", "exit-reason": "OOMKilled"}, "HostOutOfMemory"),
        (f"{PROMPT}\nKeyError: 'x'", {}, "Healthy"),
        (None, {}, "LogUnreadable"),
    ],
    ids=["killed at its limit", "another reason", "nobody can read its log"],
)
def test_a_replica_that_ended_otherwise_changes_nothing(a_world, log, crashes, reason):
    world = a_world(spec={"levers": LEVERS})
    world.proxy.log = log
    name = crash(world, **crashes)
    world.rewrite(old="recovered", pods={name: "missing"})

    world.start()
    world.wait(lambda: world.condition("Diagnosed")[1] == reason, 60, f"the diagnosis is {reason}")

    assert touched(world) == []
    assert name in world.status()["diagnosis"]["message"]
    if reason == "HostOutOfMemory":
        world.wait(lambda: has_event(world, reason, "open the runbook 'host memory'", name), 20, "an Event")
        assert world.condition("ActionRequired") == ("True", reason)
    else:
        assert world.condition("ActionRequired")[0] == "False"


@pytest.mark.parametrize(
    ("gpu", "reason", "runbook"),
    [
        ({"lastXid": 79}, "GpuFault", "GPU fault"),
        ({"clockReasons": 0x40}, "ThermalEmergency", "thermal emergency"),
    ],
)
def test_an_ill_gpu_diverts_and_a_healed_one_lets_the_fleet_be_healed(a_world, gpu, reason, runbook):
    world = a_world(spec={"nodeHealth": "Required"})
    name = world.pods()[0]["metadata"]["name"]
    world.rewrite(devices={"*": {}, name: gpu})
    world.start()
    world.wait(lambda: world.condition("ActionRequired") == ("True", reason), 60, "a person is asked for")
    world.wait(lambda: has_event(world, reason, runbook, name), 20, "an Event names runbook and replica")
    writes = touched(world)

    world.rewrite(devices={"*": {}})
    world.wait(world.is_closed, 120, "the run closes")

    assert writes == []
    assert world.outcomes() == ["Recovered"]


def test_unknown_node_health_holds_where_it_is_required(a_world):
    world = a_world(spec={"nodeHealth": "Required"})

    world.start()
    world.wait(lambda: world.condition("Diagnosed") == ("Unknown", "NodeHealthUnknown"), 60, "it holds")

    assert touched(world) == []
    assert world.condition("MetricsAvailable") == ("False", "NodeHealthUnknown")
    assert "DCGM_FI_DEV_XID_ERRORS" in world.status()["diagnosis"]["message"]
