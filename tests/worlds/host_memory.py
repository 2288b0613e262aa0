"""Levers that are turned one after the other, and host memory that is added for a while."""

from __future__ import annotations

from typing import Any

from worlds.world import World

LOOKS_SECONDS = 2.5
"""Two minutes of the fast clock: several looks with every gate open."""
OFTEN = {"cooldown": "30s", "maxRunsPerDay": 10}


def turned(world: World) -> list[str]:
    """Return the knobs of the closed runs, oldest first."""
    lines = [run["steps"][0] for run in reversed(world.status().get("history", []))]
    return [line.partition(": ")[2].partition(" ")[0] for line in lines]


PATIENCE_SECONDS = 300
"""A run takes seconds on a machine of one's own, and minutes beside others."""


def roomy(container: dict[str, Any], pod: dict[str, Any]) -> None:
    """Give a container 32 GiB of host memory, and shared memory without a limit of its own."""
    container["resources"].setdefault("limits", {})["memory"] = "32Gi"
    container["volumeMounts"] = [{"name": "shm", "mountPath": "/dev/shm"}]
    pod["volumes"] = [{"name": "shm", "emptyDir": {"medium": "Memory"}}]


def host_memory_spec(**more: Any) -> dict[str, Any]:
    """Return a spec that adds host memory, and restores it soon: one second of the fast clock."""
    lever = {"name": "cpuOffload", "maxGiB": 16, "restoreAfter": "1m"}
    return {"levers": [lever], "limits": {"cooldown": "1s", "maxRunsPerDay": 10}, **more}


def temporary_changes(world: World) -> list[dict[str, Any]]:
    """Return the temporary changes in the status."""
    return list(world.status().get("temporary") or [])
