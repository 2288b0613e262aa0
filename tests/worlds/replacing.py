"""A fleet in which one replica is pressured, and how its run is held in a phase."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from lab.cluster.simulation import behaviour
from worlds.phases import PATIENCE_SECONDS, drained, held_open
from worlds.world import World

SPARE_SECONDS = 3
"""How long a replica takes to become Ready where the spare is to be caught before."""


class Phase(StrEnum):
    """Where a replacement stands when something happens to it."""

    SPARE = "spare"
    """The spare was made and is not Ready."""
    DRAIN = "drain"
    """The pressured replica is out of rotation and still has a request."""
    VERIFY = "verify"
    """It was replaced; the sustained window is open."""


def conditions(phase: Phase) -> dict[str, Any]:
    """Return what a fleet and its resource need to be held in a phase."""
    slow = behaviour(ready_after=f"{SPARE_SECONDS}s") if phase is Phase.SPARE else {}
    return {"annotations": slow, **(held_open() if phase is Phase.VERIFY else {})}


def press_one(world: World) -> str:
    """Let the replica that comes first by name thrash and all others be calm; return its name."""
    name = min(names(world))
    world.rewrite(old="recovered", new="recovered", pods={name: "thrash"}, inFlight=0)
    return name


def reach(world: World, phase: Phase) -> str:
    """Start the operator and wait until its run is in the phase; return the pressured replica's name."""
    pressured, count = press_one(world), world.replicas()
    world.rewrite(inFlight=1 if phase is Phase.DRAIN else 0)
    world.start()
    match phase:
        case Phase.SPARE:
            world.wait(lambda: len(names(world)) == count + 1, PATIENCE_SECONDS, "the spare is made")
        case Phase.DRAIN:
            world.wait(lambda: drained(world) == [pressured], PATIENCE_SECONDS, "the replica is drained")
        case Phase.VERIFY:
            world.wait(lambda: world.step_state() == "Verifying", PATIENCE_SECONDS, "the window opens")
    return pressured


def names(world: World) -> set[str]:
    return {pod["metadata"]["name"] for pod in world.pods()}
