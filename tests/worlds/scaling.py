"""A fleet that has too few replicas, and how its run is held in a phase."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from lab.cluster.simulation import behaviour
from worlds.phases import PATIENCE_SECONDS, drained, held_open
from worlds.world import World

START_SECONDS = 3
"""How long a replica takes to become Ready where the new one is to be caught before."""
REPLICAS = 2
MORE = 3
RESTORE_AFTER = "1m"
"""One second of the fast clock."""


class Phase(StrEnum):
    """Where a scaling stands when something happens to it."""

    START = "start"
    """The new replica was made and is not Ready."""
    VERIFY = "verify"
    """Every replica takes requests; the sustained window is open."""
    TURNED = "turned"
    """It did not help: the new replica is out of rotation and still has a request."""
    DRAIN = "drain"
    """It helped, and it is given back: the new replica is out of rotation and still has a request."""
    CHECKED = "checked"
    """It was given back; the sustained window is open."""


def spec(**more: Any) -> dict[str, Any]:
    """Return a spec that allows one replica more, and nothing else."""
    lever = {"name": "scaleOut", "maxReplicas": MORE, "restoreAfter": RESTORE_AFTER}
    return {"levers": [lever], "limits": {"cooldown": "1s", "maxRunsPerDay": 10}, **more}


def conditions(phase: Phase) -> dict[str, Any]:
    """Return what a fleet and its resource need to be held in a phase."""
    slow = behaviour(ready_after=f"{START_SECONDS}s") if phase is Phase.START else {}
    verified = phase in (Phase.VERIFY, Phase.CHECKED)
    return {"annotations": slow, **(held_open(**spec()) if verified else {"spec": spec()})}


def press(world: World, more: str = "recovered", count: int = MORE) -> None:
    """Let every replica thrash, and each be in another state where there are as many as counted."""
    world.rewrite(old="thrash", byCount={str(count): more}, inFlight=0)


def calm(world: World) -> None:
    """Let nobody send anything any more."""
    world.rewrite(old="idle", byCount={})


def held(world: World) -> dict[str, Any]:
    """Return what the status holds for a while; empty where nothing."""
    held = next(iter(world.status().get("temporary") or []), {})
    return {**held.get("step", {}), **held}


def grow(world: World, count: int = MORE) -> None:
    """Start the operator and wait until a replica is added, judged and kept; `count`: of all then."""
    press(world, count=count)
    world.start()
    world.wait(lambda: bool(held(world)) and "run" not in world.status(), PATIENCE_SECONDS, "it is kept")


def reach(world: World, phase: Phase) -> None:
    """Start the operator and wait until its run is in the phase; drains stay busy until `let_go`."""
    match phase:
        case Phase.START:
            press(world)
            world.start()
            world.wait(lambda: len(world.pods()) == MORE, PATIENCE_SECONDS, "the new replica is made")
        case Phase.VERIFY:
            press(world)
            world.start()
            world.wait(lambda: world.step_state() == "Verifying", PATIENCE_SECONDS, "the window opens")
        case Phase.TURNED:
            press(world, more="fewer requests, and thrash")
            world.rewrite(inFlight=1)
            world.start()
            world.wait(lambda: bool(drained(world)), PATIENCE_SECONDS, "the new replica is drained")
        case Phase.DRAIN:
            grow(world)
            world.rewrite(inFlight=1)
            calm(world)
            world.wait(lambda: bool(drained(world)), PATIENCE_SECONDS, "the new replica is drained")
        case Phase.CHECKED:
            grow(world)
            calm(world)
            world.wait(
                lambda: world.replicas() == REPLICAS and world.step_state() == "Verifying",
                PATIENCE_SECONDS,
                "the window opens",
            )
