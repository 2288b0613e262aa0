"""Holding a run in a phase, so that something can happen to it just there."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from lab.cluster.simulation import behaviour
from worlds.world import DRAINING, World


class Phase(StrEnum):
    """Where a run stands when something happens to it."""

    CANARY = "canary"
    """The changed replica was made and is not Ready."""
    COMPARE = "compare"
    """The changed replica serves beside all old ones, and the walk waits."""
    DRAIN = "drain"
    """An old replica is out of rotation and still has a request."""
    VERIFY = "verify"
    """Every replica runs the change; the sustained window is open."""
    WAY_BACK = "way back"
    """A change that did not help is being taken back; a replica is out of rotation."""


PATIENCE_SECONDS = 120
"""How long a phase may take to come on a machine that is busy with other things: a run whose every write is
spoiled took 21 s alone, and 62 s beside three others on two cores that were shared with strangers."""
CANARY_SECONDS = 3
"""How long a replica takes to become Ready where the canary is to be caught before."""
SLOW = 20.0
"""Speed of the operator's clock where the sustained window is to stay open. The scripted replicas show the
same numbers in every window, so that a longer window would be less load, and another verdict."""
VERIFY_WINDOW = "2m"
"""Six seconds of that clock."""
LONG_WINDOW = "10m"
"""Half a minute of that clock: for what takes longer than six seconds on a busy machine."""

BESIDE = {"verify": {"for": "1m", "sideBySide": "Auto"}}
"""What a resource says whose first new replica is compared with the old ones. That takes twelve minutes: as
many seconds of the operator's clock."""


def conditions(phase: Phase, window: str = VERIFY_WINDOW) -> dict[str, Any]:
    """Return what a fleet and its resource need to be held in a phase; `window` is how long they verify."""
    slow = behaviour(ready_after=f"{CANARY_SECONDS}s") if phase is Phase.CANARY else {}
    verify = held_open(window) if phase is Phase.VERIFY else {}
    beside = {"spec": BESIDE} if phase is Phase.COMPARE else {}
    return {"annotations": slow, **verify, **beside}


def held_open(window: str = VERIFY_WINDOW, **spec: Any) -> dict[str, Any]:
    """Return what a fleet and its resource need for a sustained window in which something can happen."""
    return {"spec": {**spec, "verify": {"for": window, "sideBySide": "Never"}}, "speed": SLOW}


def reach(world: World, phase: Phase) -> None:
    """Start the operator and wait until its run is in the phase; drains stay busy until `let_go`."""
    new = "worse" if phase is Phase.WAY_BACK else "recovered"
    world.rewrite(new=new, inFlight=1 if phase is Phase.DRAIN else 0)
    world.start()
    match phase:
        case Phase.CANARY:
            world.wait(lambda: _has_canary(world), PATIENCE_SECONDS, "the canary is made")
        case Phase.COMPARE:
            world.wait(lambda: is_comparing(world), PATIENCE_SECONDS, "new replicas are compared")
        case Phase.DRAIN:
            world.wait(lambda: bool(drained(world)), PATIENCE_SECONDS, "an old replica is drained")
        case Phase.VERIFY:
            world.wait(
                lambda: world.step_state() == "Verifying", PATIENCE_SECONDS, "the sustained window opens"
            )
        case Phase.WAY_BACK:
            world.wait(
                lambda: world.step_state() == "Verifying", PATIENCE_SECONDS, "the sustained window opens"
            )
            world.rewrite(inFlight=1)
            world.wait(lambda: _turns_back(world), PATIENCE_SECONDS, "a replica is drained on the way back")


def let_go(world: World) -> None:
    """Let drains end."""
    world.rewrite(inFlight=0)


def drained(world: World) -> list[str]:
    """Return the names of the pods that are out of rotation."""
    return [p["metadata"]["name"] for p in world.pods() if p["metadata"]["labels"]["serving"] == DRAINING]


def is_comparing(world: World) -> bool:
    """Return whether the walk waits until new replicas were compared with old ones."""
    return world.condition("Progressing") == ("True", "ComparingReplicas")


def _has_canary(world: World) -> bool:
    return world.step_state() == "RollingOut" and len(world.pods()) == world.replicas() + 1


def _turns_back(world: World) -> bool:
    return world.step_state() == "RollingBack" and bool(drained(world))
