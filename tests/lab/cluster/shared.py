"""One light cluster for all workers of a test session.

A control plane takes 2.6 % of a processor while nothing happens, and 12 s of one until it serves: with one
for each of six workers that was a tenth of all that the tests took. The first worker that needs the cluster
starts a process that holds it, and that ends it once the session is over, however that came.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import time
from pathlib import Path

from lab.cluster.api import Api
from lab.cluster.light import DIRECTORY, LightCluster
from lab.cluster.machine import locked
from lab.cluster.process import ComponentDiedError, let_go

START_SECONDS = 240
"""Three attempts of a control plane on a busy machine."""
POLL_SECONDS = 0.2


def join_light(session: str, owner: int, **options: int | bool) -> LightCluster:
    """Return the session's cluster, started by the first one that asks.

    Args:
        session: what all that share it call it.
        owner: the process with which the cluster ends.
        options: of `LightCluster`.

    Raises:
        ComponentDiedError: it does not come up.
    """
    place = DIRECTORY / f"shared-{session}"
    with locked(place.with_suffix(".lock")):
        if not place.exists():
            _start(place, owner, options)
    cluster = LightCluster(**options)  # type: ignore[arg-type]
    cluster.directory, cluster.plane = pickle.loads(place.read_bytes())
    cluster.api = Api(cluster.access)
    cluster.components = {}  # nobody's who joins: they end with the session
    return cluster


def _start(place: Path, owner: int, options: dict[str, int | bool]) -> None:
    argv = [sys.executable, "-m", "lab.cluster.shared", str(place), str(owner), json.dumps(options)]
    log = place.with_suffix(".log")
    with log.open("wb") as out:
        holder = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    let_go(holder)
    deadline = time.monotonic() + START_SECONDS
    while not place.exists():
        if holder.poll() is not None or time.monotonic() > deadline:
            holder.kill()
            raise ComponentDiedError(f"the shared cluster does not come up:\n{log.read_text()[-4000:]}")
        time.sleep(POLL_SECONDS)


def hold(place: Path, owner: int, options: dict[str, int | bool]) -> None:
    """Keep a cluster up until the owner is gone."""
    try:
        with LightCluster(**options) as cluster:  # type: ignore[arg-type]
            fresh = place.with_suffix(".new")
            with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
                file.write(
                    pickle.dumps((cluster.directory, cluster.plane))
                )  # the administrator's token is in it
            fresh.replace(place)
            while Path(f"/proc/{owner}").exists():
                time.sleep(POLL_SECONDS)
    finally:
        for suffix in ("", ".lock", ".log"):
            place.with_suffix(suffix).unlink(missing_ok=True)


if __name__ == "__main__":
    hold(Path(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3]))
