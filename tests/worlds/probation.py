"""A cap that a run set, judged and kept, and what comes of it hours later."""

from __future__ import annotations

from typing import Any

from worlds.world import World

PATIENCE_SECONDS = 300
AN_HOUR_LATER = 3700
"""By how many seconds the operator's clock jumps: a cap is looked at from an hour on."""


def keep_cap(world: World) -> None:
    """Start the operator and wait until a cap was set, judged and kept; its figures are on record."""
    world.start()
    world.wait(
        lambda: world.outcomes() == ["Recovered"] and world.is_closed(), PATIENCE_SECONDS, "the cap is kept"
    )
    sized = world.status()["sized"]
    assert (sized["cap"], sized["figures"]["preemptionsPerRequest"]) == ("14", 2.0)


def later(world: World, **script: Any) -> None:
    """Let an hour pass, after which replicas fare as the script says."""
    world.rewrite(clock=AN_HOUR_LATER, **script)
