"""Replicas that are ill: a GPU that is, memory that ran out. On real controllers, with simulated pods."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lab.cluster.simulation import ANNOTATION, behaviour
from reconcile.test_unusable import events
from reconcile.world import Eye, World

LEVERS = [{"name": "maxNumSeqs"}, {"name": "gpuMemoryUtilization", "min": 0.8, "max": 0.95, "step": 0.02}]
PROMPT = "a prompt that nobody else may read"
TORCH = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB."
WORKLOAD = {"deployments", "pods"}


def crash(world: World, **annotations: str) -> str:
    """Let one replica end and wait in CrashLoopBackOff; return its name."""
    name = str(world.pods()[0]["metadata"]["name"])
    marks = {f"{ANNOTATION}{key}": text for key, text in {"mode": "crash", **annotations}.items()}
    marks[f"{ANNOTATION}restart-after"] = "1h"
    world.cluster.api.patch("Pod", name, {"metadata": {"annotations": marks}}, world.namespace)
    return name


def touched(world: World) -> list[str]:
    """Return what was written to the workload."""
    return [str(write) for write in world.proxy.writes if write.object in WORKLOAD]


def tells(world: World, reason: str, *texts: str) -> bool:
    """Return whether an Event with a reason says all of some texts."""
    return any(all(text in note for text in texts) for note in events(world, reason))


def test_a_gpu_that_ran_out_of_memory_is_given_one_step_less(a_world: Callable[..., World]) -> None:
    world = a_world(spec={"levers": LEVERS})
    world.proxy.log = f"{PROMPT}\n{TORCH}\n"
    world.rewrite(old="recovered", pods={crash(world): "missing"})

    with Eye(world.cluster, world.namespace, 2) as eye:
        world.start()
        world.wait(world.is_closed, 120, "the run closes")

    assert world.outcomes() == ["Recovered"]
    assert world.status()["history"][0]["reason"] == "CudaOutOfMemory"
    assert [one["share"] for one in world.status()["outgrown"]] == [0.92], "never gone back to"
    assert [arg for arg in world.args() if "memory" in arg] == ["--gpu-memory-utilization=0.9"]
    assert "--max-num-seqs=64" in world.args()
    assert eye.lost == []
    assert PROMPT not in world.log
    assert PROMPT not in str(world.status())
    assert "Tried to allocate" not in world.log + str(world.status())


def test_a_step_that_does_not_even_start_is_taken_back(a_world: Callable[..., World]) -> None:
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
        (None, {}, "PreviousLogUnreadable"),
    ],
    ids=["killed at its limit", "another reason", "nobody can read its log"],
)
def test_a_replica_that_ended_otherwise_changes_nothing(
    a_world: Callable[..., World], log: str | None, crashes: dict[str, str], reason: str
) -> None:
    world = a_world(spec={"levers": LEVERS})
    world.proxy.log = log
    name = crash(world, **crashes)
    world.rewrite(old="recovered", pods={name: "missing"})

    world.start()
    world.wait(lambda: world.condition("Diagnosed")[1] == reason, 60, f"the diagnosis is {reason}")

    assert touched(world) == []
    assert name in world.status()["diagnosis"]["message"]
    if reason == "HostOutOfMemory":
        world.wait(lambda: tells(world, reason, "open the runbook 'host memory'", name), 20, "an Event")
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
def test_an_ill_gpu_diverts_and_a_healed_one_lets_the_fleet_be_healed(
    a_world: Callable[..., World], gpu: dict[str, int], reason: str, runbook: str
) -> None:
    world = a_world(spec={"nodeHealth": "Required"})
    name = world.pods()[0]["metadata"]["name"]
    world.rewrite(devices={"*": {}, name: gpu})
    world.start()
    world.wait(lambda: world.condition("ActionRequired") == ("True", reason), 60, "a person is asked for")
    world.wait(lambda: tells(world, reason, runbook, name), 20, "an Event names runbook and replica")
    writes = touched(world)

    world.rewrite(devices={"*": {}})
    world.wait(world.is_closed, 120, "the run closes")

    assert writes == []
    assert world.outcomes() == ["Recovered"]


def test_unknown_node_health_holds_where_it_is_required(a_world: Callable[..., World]) -> None:
    world = a_world(spec={"nodeHealth": "Required"})

    world.start()
    world.wait(lambda: world.condition("Diagnosed") == ("Unknown", "NodeHealthUnknown"), 60, "it holds")

    assert touched(world) == []
    assert world.condition("MetricsAvailable") == ("False", "NodeHealthUnknown")
    assert "DCGM_FI_DEV_XID_ERRORS" in world.status()["diagnosis"]["message"]
