"""A Deployment that somebody else writes, and what a patch would make of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from worlds.world import World, deployment


def annotated(**marks: str) -> Callable[[World], None]:
    def mark(world: World) -> None:
        named = {name.replace("__", "/").replace("_", "-"): text for name, text in marks.items()}
        world.cluster.api.patch("Deployment", "llm", {"metadata": {"annotations": named}}, world.namespace)

    return mark


def patched(world: World, patch: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what the API server would make of a JSON patch on the Deployment, without making it."""
    arguments = ("patch", "deployment", "llm", "--type=json", "--dry-run=server", "-o", "json")
    return dict(json.loads(world.kubectl(*arguments, "-p", json.dumps(patch))))


def applied_once(world: World, manager: str = "helm") -> None:
    """Apply the fleet's manifest as it was, as an upgrade does whose values lack the change.

    It has no progress deadline, as most have none: with one the API server refuses it while the rollout is
    frozen.
    """
    manifest = deployment(world.replicas())
    del manifest["spec"]["progressDeadlineSeconds"]
    world.cluster.api.apply(manifest, world.namespace, manager)
