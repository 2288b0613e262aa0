"""A fleet to which somebody deployed a revision that thrashes, and how its run is held in a phase."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from lab.cluster.simulation import behaviour
from worlds.world import World

CALM_CAP, RAISED_CAP = "--max-num-seqs=64", "--max-num-seqs=256"
CAP = {"name": "maxNumSeqs", "min": 1}
ROLLBACK = {"name": "revisionRollback", "within": "24h"}
"""The operator's clock runs fast beside the API server's, by which a revision came."""
ALLOWED: dict[str, Any] = {"levers": [ROLLBACK, CAP]}
SETTLING_SECONDS = 60


def deploy(world: World, *, image: str = "", **script: Any) -> None:
    """Have a person raise the cap of a calm fleet, which thrashes then; return when that is rolled out.

    Args:
        world: the fleet.
        image: that comes with it; empty: it stays.
        script: of the load, beside that.
    """
    args = [RAISED_CAP if arg == CALM_CAP else arg for arg in world.args()]
    engine = "/spec/template/spec/containers/0"
    patch = [{"op": "replace", "path": f"{engine}/args", "value": args}]
    patch += [{"op": "replace", "path": f"{engine}/image", "value": image}] if image else []
    world.kubectl("patch", "deployment", "llm", "--type=json", "-p", json.dumps(patch))
    settle(world)
    state = {"old": "thrash", "new": "recovered", "before": "recovered", "revision": world.revision()}
    world.write_script(**{**state, **script})


def patch_args(world: World, change: Callable[[list[str]], list[str]]) -> None:
    path = "/spec/template/spec/containers/0/args"
    patch = [{"op": "replace", "path": path, "value": change(world.args())}]
    world.kubectl("patch", "deployment", "llm", "--type=json", "-p", json.dumps(patch))


def settle(world: World) -> None:
    """Wait until every replica runs the present template and those of the one before are gone."""
    world.kubectl("rollout", "status", "deployment/llm", f"--timeout={SETTLING_SECONDS}s")
    world.wait(lambda: world.is_settled() and not _going(world), SETTLING_SECONDS, "the deploy is complete")


def _going(world: World) -> bool:
    """Return whether a replica is still terminating."""
    return len(world.cluster.api.list("Pod", world.namespace, "app=llm")) > len(world.pods())


def cap(world: World) -> str:
    return next(arg for arg in world.args() if arg.startswith("--max-num-seqs="))


def numbers(world: World) -> dict[str, int]:
    """Return the revision number of each ReplicaSet, by name."""
    key = "deployment.kubernetes.io/revision"
    sets = world.cluster.api.list("ReplicaSet", world.namespace, "app=llm")
    return {rs["metadata"]["name"]: int(rs["metadata"]["annotations"][key]) for rs in sets}


def earlier(world: World) -> str:
    """Return the name of the ReplicaSet that the fleet would be taken back to."""
    found = numbers(world)
    return sorted(found, key=lambda name: found[name])[-2]


def break_earlier(world: World) -> None:
    """Let replicas of the earlier revision crash from now on, as if its image had gone bad."""
    patch = {"spec": {"template": {"metadata": {"annotations": behaviour(mode="crash")}}}}
    world.cluster.api.patch("ReplicaSet", earlier(world), patch, world.namespace)
