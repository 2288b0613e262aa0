"""Finds the pods of a cluster for Prometheus, as file_sd targets labelled as prometheus-operator does.

Debian builds Prometheus without its own Kubernetes discovery ("field kubernetes_sd_configs not found"), so a
thread of the lab watches the pods. As there, targets stay as they are while the API server is away.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.cluster.api import Object
from lab.cluster.pki import Access
from lab.cluster.watch import Mirror, Watches

PODS = "/api/v1/pods"


@dataclass(frozen=True)
class PodScrape:
    """What a PodMonitor says: scrape the container port of this name on every pod that has one."""

    port: str = "http"
    job: str = "lab/engines"
    path: str = "/metrics"


@dataclass(frozen=True)
class Discovery:
    """Which pods are scraped, and whether through the API server because no route leads to them."""

    access: Access
    scrapes: Sequence[PodScrape] = (PodScrape(),)
    through_api_server: bool = False

    def targets(self, pods: Sequence[Object]) -> list[dict[str, Any]]:
        """file_sd target groups of the pods that run, one for each matching container port."""
        running = (pod for pod in pods if pod["status"].get("podIP") and pod["status"]["phase"] in _RUNNING)
        return [self._target(pod, *found) for pod in running for found in self._ports(pod)]

    def _ports(self, pod: Object) -> Iterator[tuple[PodScrape, str, int]]:
        for container in pod["spec"]["containers"]:
            for port in container.get("ports", ()):
                for scrape in self.scrapes:
                    if port.get("name") == scrape.port:
                        yield scrape, container["name"], port["containerPort"]

    def _target(self, pod: Object, scrape: PodScrape, container: str, port: int) -> dict[str, Any]:
        metadata = pod["metadata"]
        address = f"{pod['status']['podIP']}:{port}"
        labels = {
            "namespace": metadata["namespace"],
            "pod": metadata["name"],
            "container": container,
            "job": scrape.job,
            "endpoint": scrape.port,
            "instance": address,
            "__metrics_path__": scrape.path,
        }
        if self.through_api_server:
            address = self.access.url.removeprefix("https://")
            pod_path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}:{port}"
            labels |= {"__scheme__": "https", "__metrics_path__": f"{pod_path}/proxy{scrape.path}"}
        return {"targets": [address], "labels": labels}


class PodWatch:
    """Keeps a file of targets current; made once, closed once."""

    def __init__(self, discovery: Discovery, file: Path) -> None:
        self._discovery = discovery
        self._file = file
        self._pods = Mirror(self._write)
        self._watches = Watches(discovery.access, {PODS: self._pods.tell})
        self._write({})
        self._watches.start()

    def close(self) -> None:
        """End the watch."""
        self._watches.stop()

    def _write(self, pods: dict[str, Object]) -> None:
        content = json.dumps(self._discovery.targets(list(pods.values())))
        if self._file.exists() and self._file.read_text() == content:
            return
        fresh = self._file.with_suffix(".new")
        fresh.write_text(content)
        fresh.replace(self._file)


_RUNNING = ("Pending", "Running")
