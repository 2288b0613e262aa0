"""A person who approves, or tries to."""

from __future__ import annotations

from typing import Any

from kvmedic.api.resource import approval_manifest
from worlds.world import World

APPROVE: dict[str, Any] = {"mode": "Approve", "limits": {"cooldown": "0s"}}
"""Without a cooldown: nothing but the approval keeps a second run from being opened."""
LONG_ENOUGH_LOOKS = 3


def waiting(world: World) -> World:
    """Return the world with its operator started and a plan that waits for approval.

    The operator's clock runs as the API server's does: the age of an approval is a matter of both.
    """
    world.speed = 1.0
    world.start()
    world.wait(lambda: waits_as(world, "AwaitingApproval"), 60, "a plan waits")
    return world


def waits_as(world: World, reason: str) -> bool:
    return world.condition("Progressing") == ("False", reason)


def message(world: World) -> str:
    """Return what the operator says that it waits for."""
    conditions = world.status()["conditions"]
    return str(next(each["message"] for each in conditions if each["type"] == "Progressing"))


def digest(world: World) -> str:
    return str(world.status()["plan"]["digest"])


def approve(world: World, namespace: str = "", **spec: Any) -> dict[str, Any]:
    """Approve the shown plan; what is given replaces what the command would write."""
    place = namespace or world.namespace
    body = approval_manifest("llm", world.resource()["metadata"]["uid"], place, digest(world))
    if namespace:
        del body["metadata"]["ownerReferences"]  # nobody owns an object from another namespace
    return world.cluster.api.create({**body, "spec": {**body["spec"], **spec}}, place)


def has_run(world: World) -> bool:
    return "run" in world.status()


def looks(world: World) -> int:
    """Return how often approvals were asked for."""
    return sum("/kvapprovals" in path for path in world.proxy.reads)


def let_it_look(world: World) -> None:
    """Wait until the operator has asked for approvals some more times."""
    seen = looks(world)
    world.wait(lambda: looks(world) >= seen + LONG_ENOUGH_LOOKS, 60, "it looks again")
