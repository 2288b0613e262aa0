"""A run of each kind that people may meet: the fleet that it needs, and how it is held in a phase."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from worlds import phases, replacing, scaling
from worlds.configured import configure
from worlds.deploying import ALLOWED, deploy
from worlds.phases import PATIENCE_SECONDS
from worlds.world import World, remediation


def nothing(world: World) -> None:
    """A fleet is ready for the run as it is made."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of run, by what it changes.

    `replicas`: of the fleet. `conditions`: what both need to be held in a phase. `prepare`: what
    is done before the operator starts. `reach`: starts it and returns the pod that the run is about, if any.
    """

    replicas: int
    conditions: Callable[[Any], dict[str, Any]]
    reach: Callable[[World, Any], str | None]
    prepare: Callable[[World], None] = nothing
    is_second: Callable[[Any], bool] = lambda _: False
    """Whether the run of a phase is the second: the first added what it gives back."""
    short: int = 0
    """Replicas that are missing while it walks."""

    def hold(self, world: World, phase: StrEnum) -> str:
        """Start the operator, wait until its run is in the phase, and let it be the last of the day."""
        pod = self.reach(world, phase)
        limits = {"spec": {"limits": {"cooldown": "24h"}}}
        world.cluster.api.patch("KVRemediation", "llm", limits, world.namespace)
        return pod or ""

    def outcomes(self, world: World, phase: StrEnum) -> set[str]:
        """Return what came of the run of the phase, and of any that followed."""
        found = world.outcomes()
        return set(found[: len(found) - self.is_second(phase)])

    def end(self, world: World, phase: StrEnum) -> None:
        """Wait until the run is closed, only what is kept for a while is left, and all is rolled out."""
        runs = 2 if self.is_second(phase) else 1

        def is_over() -> bool:
            over = len(world.outcomes()) >= runs and "run" not in world.status()
            return over and (bool(scaling.held(world)) or world.is_closed())

        world.wait(is_over, PATIENCE_SECONDS, f"{runs} runs close")
        world.wait(world.is_settled, PATIENCE_SECONDS, "the rollout is complete")


def _deployed(phase: phases.Phase) -> dict[str, Any]:
    return phases.held_open(**ALLOWED)


def _short(phase: phases.Phase) -> dict[str, Any]:
    given = phases.conditions(phase)
    return {**given, "spec": {**given.get("spec", {}), **SHORT_SPEC}}


def recreate(world: World) -> None:
    """Have the fleet's Deployment end every replica at once where its template changes."""
    strategy = {"strategy": {"type": "Recreate", "rollingUpdate": None}}
    world.cluster.api.patch("Deployment", "llm", {"spec": strategy}, world.namespace)


SHORT_SPEC = {"rollout": {**remediation()["spec"]["rollout"], "spare": "None"}}
"""No spare is made."""

FLAG = Kind(3, phases.conditions, phases.reach)
SHORT = Kind(3, _short, phases.reach, short=1)
RECREATED = Kind(3, phases.conditions, phases.reach, recreate)
FILE = Kind(2, phases.conditions, phases.reach, lambda world: configure(world, history=0))
REVISION = Kind(2, _deployed, phases.reach, deploy)
REPLACEMENT = Kind(3, replacing.conditions, replacing.reach)
SCALING = Kind(
    scaling.REPLICAS,
    scaling.conditions,
    scaling.reach,
    is_second=lambda phase: phase in (scaling.Phase.DRAIN, scaling.Phase.CHECKED),
)
