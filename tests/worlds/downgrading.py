"""What an operator of another version may have written, which this one does not read."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from lab.cluster.api import ApiError, read_manifests
from worlds.world import CRD, World

LATER = {"rollout": {"spare": "Shared"}}
"""What a later version may do, and this one does not know."""


def permissive() -> dict[str, Any]:
    """Return a definition that takes any spec and any status, as that of another version may."""
    (made,) = read_manifests(CRD)
    for version in made["spec"]["versions"]:
        schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        version["schema"] = {"openAPIV3Schema": schema}
    return made


def as_another_version(world: World, write: Callable[[], None], took: Callable[[], bool]) -> None:
    """Write something that only another version's definition allows; then this version's is back."""
    ours = read_manifests(CRD)

    def written() -> bool:
        with suppress(ApiError):
            write()
        return took()

    try:
        world.cluster.apply(permissive())
        world.wait(written, 20, "another version's definition takes what this one does not")
    finally:
        world.cluster.apply(ours)
        world.wait(
            lambda: is_readable(world), 20, "the API server reads the resource by the definition again"
        )


def holds(now: Any, expected: Any) -> bool:
    """Return whether a field has a value, or at least all that a mapping has."""
    return (now or {}).items() >= expected.items() if isinstance(expected, dict) else now == expected


def is_readable(world: World) -> bool:
    """Return whether the API server has taken a changed definition in; until then it answers 429."""
    try:
        return bool(world.resource())
    except ApiError:
        return False


def downgrade(world: World, spec: dict[str, Any]) -> None:
    patch = {"spec": spec}

    def took() -> bool:
        now = world.resource()["spec"]
        return all(holds(now.get(field), value) for field, value in spec.items())

    write = lambda: world.cluster.api.patch("KVRemediation", "llm", patch, world.namespace)  # noqa: E731
    as_another_version(world, write, took)
