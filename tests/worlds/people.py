"""What people do to a fleet and to its resource, and what is seen of it afterwards."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from typing import Any

import pytest

from worlds.phases import drained
from worlds.world import World

OLD, NEW = "--max-num-seqs=64", "--max-num-seqs=14"
EDITED = "--max-num-seqs=32"
FIELDS = ("strategy", "minReadySeconds", "progressDeadlineSeconds", "paused", "revisionHistoryLimit")


def cap(world: World) -> str:
    return next(arg for arg in world.args() if arg.startswith("--max-num-seqs="))


def edit_flag(world: World) -> None:
    args = [EDITED if arg.startswith("--max-num-seqs=") else arg for arg in world.args()]
    patch = [{"op": "replace", "path": "/spec/template/spec/containers/0/args", "value": args}]
    world.kubectl("patch", "deployment", "llm", "--type=json", "-p", json.dumps(patch))


def set_env(world: World) -> None:
    world.kubectl("set", "env", "deployment/llm", "CUDA_LAUNCH_BLOCKING=1")


def scale(count: int) -> Callable[[World], None]:
    def act(world: World) -> None:
        world.kubectl("scale", "deployment/llm", f"--replicas={count}")

    return act


def rollout(verb: str) -> Callable[[World], None]:
    def act(world: World) -> None:
        world.kubectl("rollout", verb, "deployment/llm")

    return act


def refused(verb: str) -> Callable[[World], None]:
    """kubectl itself refuses on a paused Deployment: that is as good as nothing happening."""

    def act(world: World) -> None:
        with pytest.raises(subprocess.CalledProcessError):
            rollout(verb)(world)

    return act


def pause_and_resume(world: World) -> None:
    if not world.deployment()["spec"].get("paused"):
        rollout("pause")(world)
    rollout("resume")(world)


def delete_pod(which: Callable[[World], str]) -> Callable[[World], None]:
    def act(world: World) -> None:
        world.kubectl("delete", "pod", which(world), "--wait=false")

    return act


def a_pod(flag: str) -> Callable[[World], str]:
    """A pod with the old or the new setting that is in rotation, or none but it."""

    def which(world: World) -> str:
        out = drained(world)
        names = [p["metadata"]["name"] for p in world.pods() if flag in p["spec"]["containers"][0]["args"]]
        return next(name for name in names if name not in out)

    return which


def draining_pod(world: World) -> str:
    return drained(world)[0]


def delete_resource(world: World) -> None:
    world.kubectl("delete", "kvr", "llm", "--wait=false")


def abandon_resource(world: World) -> None:
    world.kubectl("annotate", "kvr", "llm", "kvmedic.io/abandon=true")
    delete_resource(world)


def untouched(spec: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that a run changes for a while and has to put back."""
    return {name: spec.get(name) for name in FIELDS}


def is_gone(world: World, kind: str = "KVRemediation") -> bool:
    return not world.cluster.api.list(kind, world.namespace)


def suspend(world: World) -> None:
    world.cluster.api.patch("KVRemediation", "llm", {"spec": {"suspend": True}}, world.namespace)


def unsuspend(world: World) -> None:
    world.cluster.api.patch("KVRemediation", "llm", {"spec": {"suspend": False}}, world.namespace)


def stop(world: World) -> None:
    world.kubectl("create", "configmap", "kvmedic-stop")


def unstop(world: World) -> None:
    world.kubectl("delete", "configmap", "kvmedic-stop")


def observe(world: World) -> None:
    world.cluster.api.patch("KVRemediation", "llm", {"spec": {"mode": "Observe"}}, world.namespace)


def automatic(world: World) -> None:
    world.cluster.api.patch("KVRemediation", "llm", {"spec": {"mode": "Auto"}}, world.namespace)


BRAKES = {
    "spec.suspend": (suspend, unsuspend, "Suspended"),
    "the operator-wide stop": (stop, unstop, "Stopped"),
    "mode: Observe": (observe, automatic, "ObserveOnly"),
}
STILL_SECONDS = 1.5
"""A minute and a half of the fast clock, in which a run that is not held makes many moves."""


def stands_still(world: World) -> None:
    """Assert that nothing is written to the fleet for a while."""
    generation, names = world.deployment()["metadata"]["generation"], {*pod_names(world)}
    time.sleep(STILL_SECONDS)
    assert world.deployment()["metadata"]["generation"] == generation
    assert {*pod_names(world)} == names
    assert drained(world) == []


def pod_names(world: World) -> list[str]:
    return [pod["metadata"]["name"] for pod in world.pods()]
