"""A real Prometheus on loopback, for tests of the metrics adapter."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lab.cluster.machine import free_ports
from lab.cluster.process import Component


class PrometheusServer:
    """Debian's Prometheus over a directory that may hold backfilled blocks.

    It scrapes its targets every 200 ms, or as a configuration says.
    """

    def __init__(
        self,
        directory: Path,
        targets: Sequence[tuple[str, dict[str, str]]] = (),
        config: Mapping[str, object] | None = None,
    ) -> None:
        self.directory = directory
        self.port = free_ports(1)[0]
        self.url = f"http://127.0.0.1:{self.port}"
        file = directory / "prometheus.json"
        file.write_text(json.dumps(config or _config(targets)))
        self._process = Component("prometheus", self._argv(file), directory)

    def __enter__(self) -> PrometheusServer:
        self._process.start()
        self._process.await_ready(lambda: self._answers("/-/ready"), 30)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.stop()

    def stop(self) -> None:
        self._process.stop()

    def wait_for(self, query: str, seconds: float = 15) -> None:
        """Wait until a query has a result."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self.results(query):
                return
            time.sleep(0.1)
        raise TimeoutError(f"no result for {query} within {seconds} s")

    def results(self, query: str) -> list[Any]:
        """Return the series of a query's answer as the API gives them."""
        path = f"/api/v1/query?query={urllib.request.quote(query)}"
        with urllib.request.urlopen(self.url + path, timeout=5) as answer:
            found: list[Any] = json.load(answer)["data"]["result"]
            return found

    def _answers(self, path: str) -> bool:
        try:
            with urllib.request.urlopen(self.url + path, timeout=2) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def _argv(self, config: Path) -> list[str]:
        return [
            "prometheus",
            f"--config.file={config}",
            f"--storage.tsdb.path={self.directory}",
            "--storage.tsdb.retention.time=30d",
            f"--web.listen-address=127.0.0.1:{self.port}",
        ]


def _config(targets: Sequence[tuple[str, dict[str, str]]]) -> dict[str, object]:
    return {
        "global": {"scrape_interval": "200ms", "scrape_timeout": "200ms"},
        "scrape_configs": [
            {
                "job_name": "vllm",
                "static_configs": [{"targets": [target], "labels": labels} for target, labels in targets],
            }
        ]
        if targets
        else [],
    }
