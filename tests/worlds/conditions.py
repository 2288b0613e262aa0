"""What the operator says of a resource: messages of its conditions, and Events."""

from __future__ import annotations

import json

from worlds.world import World


def events(world: World, reason: str) -> list[str]:
    """Return the notes of the Events on the resource with a reason."""
    found = json.loads(world.kubectl("get", "events", "-o", "json"))["items"]
    return [
        each["message"]
        for each in found
        if each["reason"] == reason and each["involvedObject"]["kind"] == "KVRemediation"
    ]


def message_of(world: World, name: str) -> str:
    """Return a condition's message."""
    return next(c["message"] for c in world.status()["conditions"] if c["type"] == name)
