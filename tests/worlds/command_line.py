"""The command `kvmedic` as a person runs it against the cluster of a world."""

from __future__ import annotations

import os
import subprocess

from lab.scripted.command_line import run_command
from worlds.world import World


def kvmedic(
    world: World, command: str, *arguments: str, typed: str = os.devnull, **env: str
) -> subprocess.CompletedProcess[str]:
    """Run the command; `typed` is the terminal or file that it reads, `env` where it finds the cluster."""
    chosen = env or {"KUBECONFIG": str(world.cluster.kubeconfig)}
    return run_command([command, "-n", world.namespace, *arguments], chosen, typed)
