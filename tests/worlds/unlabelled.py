"""A fleet as most are: its Service selects what the Deployment selects, and no label takes a replica out."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from kvmedic.cluster.ownership import RELEASED
from lab.cluster.simulation import behaviour
from worlds.people import STILL_SECONDS
from worlds.phases import PATIENCE_SECONDS
from worlds.world import World, is_cordoned

START_SECONDS = 2
"""Longer than the controllers take to let a stand-in go: it must not serve before."""


def make_unlabelled(
    a_world: Callable[..., World], replicas: int, start_seconds: int = START_SECONDS, **options: Any
) -> World:
    """Return the world of such a fleet; the operator is started by the test."""
    start = behaviour(ready_after=f"{start_seconds}s")
    world = a_world(replicas=replicas, annotations=start, **options)
    selector = {"spec": {"selector": {"serving": None}}}
    world.cluster.api.patch("Service", "llm", selector, world.namespace)
    return world


def orphans(world: World) -> list[dict[str, Any]]:
    """Return the pods that were released and are not ended yet."""
    found = world.cluster.api.list("Pod", world.namespace)
    return [
        pod
        for pod in found
        if RELEASED in pod["metadata"].get("annotations", {}) and "deletionTimestamp" not in pod["metadata"]
    ]


def reach_release(world: World) -> str:
    """Start the operator and wait until a released replica is out of rotation and busy; return its name."""
    world.rewrite(inFlight=1)
    world.start()
    world.wait(
        lambda: any(is_cordoned(pod) for pod in orphans(world)), PATIENCE_SECONDS, "a replica is drained"
    )
    return str(orphans(world)[0]["metadata"]["name"])


def stands_still(world: World) -> None:
    """Assert that nothing is written to the fleet for a while."""
    generation = world.deployment()["metadata"]["generation"]
    names = {pod["metadata"]["name"] for pod in world.pods()}
    time.sleep(STILL_SECONDS)
    assert world.deployment()["metadata"]["generation"] == generation
    assert {pod["metadata"]["name"] for pod in world.pods()} == names
