"""A person asks the operator to take an open run back, as the page on rolling back by hand says."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from lab.cluster.toolchain import Tool, binary
from worlds.command_line import kvmedic
from worlds.world import Eye

PAGE = (Path(__file__).parents[2] / "docs" / "howto" / "roll-back-by-hand.md").read_text()


def commands(namespace: str) -> str:
    found = re.search(r"<!-- tested: ask -->\n```bash\n(.*?)```", PAGE, re.DOTALL)
    assert found
    return re.sub(r"\bNAME\b", "llm", re.sub(r"\bNS\b", namespace, found.group(1)))


def type_in(world, script: str) -> None:
    """Run a shell script with the lab's kubectl."""
    shell = 'set -eu; kubectl() { "$KUBE" kubectl "$@"; }; ' + script
    env = {**os.environ, "KUBE": str(binary(Tool.KUBE)), "KUBECONFIG": str(world.cluster.kubeconfig)}
    subprocess.run(["bash", "-c", shell], env=env, check=True, capture_output=True, timeout=60)


def test_a_suspended_run_is_taken_back_when_a_person_asks_for_it(a_world):
    world = a_world(replicas=2)
    before = world.deployment()["spec"]

    with Eye(world.cluster, world.namespace, 2) as eye:
        world.start()
        world.wait(lambda: world.args()[2] == "--max-num-seqs=14", 30, "the change is on its way")
        assert kvmedic(world, "suspend", "llm").returncode == 0
        type_in(world, commands(world.namespace))
        world.wait(world.is_closed, 60, "the run closes")

    assert [run["outcome"] for run in world.status()["history"]] == ["RolledBackByHand"]
    assert world.deployment()["spec"] == before
    assert eye.lost == []
    assert eye.fewest >= 2
