"""Replicas that end: one or all of a fleet, with what their logs say."""

from __future__ import annotations

from lab.cluster.simulation import ANNOTATION, behaviour
from worlds.conditions import events
from worlds.world import World

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


def has_event(world: World, reason: str, *texts: str) -> bool:
    """Return whether an Event with a reason says all of some texts."""
    return any(all(text in note for text in texts) for note in events(world, reason))


def all_crash(world: World, hanging: int = 0) -> None:
    """Let every replica end and wait in CrashLoopBackOff, without metrics; some hang instead."""
    crash, hang = behaviour(mode="crash", restart_after="1h"), behaviour(mode="unready")
    for number, pod in enumerate(world.pods()):
        marks = {"metadata": {"annotations": hang if number < hanging else crash}}
        world.cluster.api.patch("Pod", pod["metadata"]["name"], marks, world.namespace)
    world.rewrite(old="missing", new="recovered")
    world.wait(lambda: world.endpoints() == 0, 30, "nothing serves")
