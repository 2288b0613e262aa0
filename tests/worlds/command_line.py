"""The command `kvmedic` as a person runs it against the cluster of a world."""

from __future__ import annotations

import subprocess
import sys

from worlds.world import World


def kvmedic(world: World, command: str, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "kvmedic", command, "-n", world.namespace, *arguments]
    chosen = env or {"KUBECONFIG": str(world.cluster.kubeconfig)}
    environment = {"PYTHONPATH": "operator:tests", **chosen}
    return subprocess.run(argv, capture_output=True, text=True, env=environment, check=False)
