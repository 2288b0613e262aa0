"""What neighbours cost with as many objects: the barest kopf operator, and an idle KEDA.

    python -m lab.bench.scale_peers 200 [--seconds 90]

Read its table beside that of `lab.bench.scale`, whose fleets these are. The kopf operator has a timer of 30 s
that does nothing (`bare_timer.py`): what is over that is kvmedic's own. KEDA has one ScaledObject for each
Deployment, with one query that a Prometheus answers at once, asked every 30 s, and never a reason to scale.
CPU seconds, bytes and requests are what counts: walls are those of the machine.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

from lab.bench import bare_timer
from lab.bench.scale import ROUND_SECONDS, populated, requests_of, say
from lab.bench.scale_fleets import ScaleFleet, fleets
from lab.cluster import usage
from lab.cluster.api import Api, Object
from lab.cluster.light import LightCluster
from lab.cluster.machine import step
from lab.keda import installation as keda

START_SECONDS = 900.0
"""For a neighbour to take in all objects; how many it has is said then."""
ANSWER = b'{"status":"success","data":{"resultType":"vector","result":[{"metric":{},"value":[0,"1"]}]}}'
THRESHOLD = "100"
"""A hundred times the answer: one replica would do, and none is added."""


class Prometheus(BaseHTTPRequestHandler):
    """Answers every query with 1."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(ANSWER)))
        self.end_headers()
        self.wfile.write(ANSWER)

    def log_message(self, *_: object) -> None:
        """Say nothing of what was asked."""


@contextmanager
def prometheus() -> Iterator[str]:
    """Yield the address of a server that answers as Prometheus does."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Prometheus) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def scaled(fleet: ScaleFleet, url: str) -> Object:
    """Return the ScaledObject of a fleet's Deployment."""
    asked = {"serverAddress": url, "query": f'up{{service="{fleet.name}"}}', "threshold": THRESHOLD}
    return {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": {"name": fleet.name, "namespace": fleet.namespace},
        "spec": {
            "scaleTargetRef": {"name": fleet.name},
            "pollingInterval": int(ROUND_SECONDS),
            "minReplicaCount": fleet.replicas,
            "maxReplicaCount": 2 * fleet.replicas,
            "triggers": [{"type": "prometheus", "metadata": asked}],
        },
    }


def count(api: Api, path: str, holds: Callable[[Object], bool]) -> int:
    """Return how many objects of a list are as they should be."""
    return sum(map(holds, api.request("GET", path)["items"]))


def measure(
    name: str, cluster: LightCluster, pids: Collection[int], taken_in: Callable[[], int], seconds: float
) -> None:
    """Print what processes used until they had taken in all objects, and what they use then."""
    began, expected = time.monotonic(), len(cluster.api.list("KVRemediation", None))
    while (found := taken_in()) < expected and time.monotonic() - began < START_SECONDS:
        time.sleep(1)
    took = f"{time.monotonic() - began:.0f}" if found == expected else f"> {START_SECONDS:.0f} ({found})"
    say(f"{name}: s until all are taken in", took)
    say(f"{name}: CPU s until then", f"{sum(map(usage.cpu_seconds, pids)):.1f}")
    time.sleep(ROUND_SECONDS)
    spent, asked = sum(map(usage.cpu_seconds, pids)), answered(cluster)
    time.sleep(seconds)
    requests = {what: n - asked[what] for what, n in answered(cluster).items() if n > asked[what]}
    rate = "; ".join(
        f"{what} {n / seconds:.2f}" for what, n in sorted(requests.items(), key=lambda item: -item[1])[:6]
    )
    say(f"{name}: cores used", f"{(sum(map(usage.cpu_seconds, pids)) - spent) / seconds:.3f}")
    say(f"{name}: API requests per second", f"{sum(requests.values()) / seconds:.2f}: {rate}")
    held = (sum(map(each, pids)) / 1e6 for each in (usage.resident_bytes, usage.peak_bytes))
    say(f"{name}: RSS, now / peak (MB)", " / ".join(f"{each:.0f}" for each in held))


def answered(cluster: LightCluster) -> Counter[str]:
    return requests_of(cluster.api.http.get("/metrics", timeout=60).text)


def measure_bare_timer(cluster: LightCluster, seconds: float) -> None:
    argv = [sys.executable, "-m", "kopf", "run", "--standalone", "--all-namespaces", "--quiet"]
    env = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig)}
    operator = subprocess.Popen([*argv, str(Path(bare_timer.__file__))], env=env)
    path = "/apis/kvmedic.io/v1alpha1/kvremediations"
    try:
        # A timer needs a finalizer, so that each resource is written once.
        measure(
            "kopf timer",
            cluster,
            [operator.pid],
            lambda: count(cluster.api, path, lambda each: "finalizers" in each["metadata"]),
            seconds,
        )
    finally:
        operator.kill()
        operator.wait()


def measure_keda(cluster: LightCluster, all_fleets: list[ScaleFleet], seconds: float) -> None:
    keda.ensure(cluster.access, cluster.directory)
    pids = keda.processes_of(cluster.directory)
    try:
        with prometheus() as url:
            with step(f"{len(all_fleets)} ScaledObjects are written"):
                cluster.apply(scaled(fleet, url) for fleet in all_fleets)
            path = "/apis/autoscaling/v2/horizontalpodautoscalers"
            measure(
                "KEDA",
                cluster,
                pids,
                lambda: count(cluster.api, path, lambda _: True),
                seconds,
            )
    finally:
        keda.end(cluster.directory)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("fleets", type=int)
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=90.0)
    chosen = parser.parse_args()
    all_fleets = fleets(chosen.fleets, chosen.replicas)
    with populated(all_fleets) as cluster:
        measure_bare_timer(cluster, chosen.seconds)
        measure_keda(cluster, all_fleets, chosen.seconds)


if __name__ == "__main__":
    main()
