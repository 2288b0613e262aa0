"""A real Prometheus (Debian's 2.42) that labels series as prometheus-operator does.

Alone, with targets that a test names and may change; or beside a real cluster, whose pods it finds. With
`history` it starts with a past. Debian builds Prometheus without its own Kubernetes discovery ("field
kubernetes_sd_configs not found"), so a thread of the lab watches the pods. As there, targets stay as they are
while the API server is away.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from lab.cluster.api import Api, Object, until
from lab.cluster.interface import Cluster
from lab.cluster.machine import BUILD, PROMETHEUS_PACKAGES, ensure_packages, free_ports, make_scratch, program
from lab.cluster.pki import Access
from lab.cluster.process import Component
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
    """Which pods are scraped."""

    access: Access
    scrapes: Sequence[PodScrape] = (PodScrape(),)

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
        return {"targets": [address], "labels": labels}


class PodWatch:
    """Keeps a file of targets current; made once, closed once."""

    def __init__(self, discovery: Discovery, file: Path) -> None:
        self._discovery = discovery
        self._file = file
        self._pods = Mirror(self._write)
        self._watches = Watches(discovery.access, {PODS: self._pods.handle})
        self._write({})
        self._watches.start()

    def close(self) -> None:
        self._watches.stop()

    def _write(self, pods: dict[str, Object]) -> None:
        content = json.dumps(self._discovery.targets(list(pods.values())))
        if self._file.exists() and self._file.read_text() == content:
            return
        fresh = self._file.with_suffix(".new")
        fresh.write_text(content)
        fresh.replace(self._file)


_RUNNING = ("Pending", "Running")


DIRECTORY = BUILD / "prometheus"
PORT = 26990
_IDENTITY = {"name": "lab-prometheus", "namespace": "kube-system"}
_TOKEN_SECONDS = 24 * 3600
_ANSWER_SECONDS = 10.0
Targets = Mapping[str, Mapping[str, str]]


@dataclass(kw_only=True)
class Prometheus:
    """A context manager.

    `static_targets` gives each address its labels: `{"127.0.0.1:8001": {"namespace": "serving", "pod": "a-1",
    "container": "vllm", "job": "lab/engines"}}`. `history` is OpenMetrics text with timestamps. It listens on
    `host`, on a free port unless `port` is given. Durations are Prometheus durations.
    """

    static_targets: Targets = field(default_factory=dict)
    discovery: Discovery | None = None
    scrape_interval: str = "2s"
    scrape_timeout: str = ""
    rules: Sequence[Mapping[str, Any]] = ()
    history: str = ""
    host: str = "127.0.0.1"
    port: int = 0
    flags: Sequence[str] = ()

    def __enter__(self) -> Prometheus:
        ensure_packages(PROMETHEUS_PACKAGES)
        self.directory = make_scratch(DIRECTORY)
        self.port = self.port or free_ports(1)[0]
        self._component = Component("prometheus", self._argv(), self.directory)
        self._watch: PodWatch | None = None
        try:
            self._configure()
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def url(self) -> str:
        """Its address; the same after a restart."""
        return f"http://{self.host}:{self.port}"

    def start(self) -> None:
        """Start it, with the data that it has; waits until it answers."""
        self._component.start()
        self._component.await_ready(self._is_ready)

    def stop(self, sig: signal.Signals = signal.SIGKILL) -> None:
        """End it; `start` brings it back."""
        self._component.stop(sig)

    def signal(self, sig: signal.Signals) -> None:
        """Send a signal, such as SIGSTOP and SIGCONT to hang it for a while."""
        os.kill(self._component.pid, sig)

    def close(self) -> None:
        if self._watch:
            self._watch.close()
        self._component.stop()
        shutil.rmtree(self.directory, ignore_errors=True)

    def set_targets(self, targets: Targets) -> None:
        """Replace the static targets; Prometheus sees the file change at once."""
        self.static_targets = targets
        groups = [{"targets": [address], "labels": dict(labels)} for address, labels in targets.items()]
        fresh = self.directory / "targets.new"
        fresh.write_text(json.dumps(groups))
        fresh.replace(self.directory / "targets.json")

    def query(self, expression: str) -> list[dict[str, Any]]:
        """An instant query's result vector; raises HTTPError for an expression that Prometheus refuses."""
        return list(self._get("/api/v1/query", query=expression)["data"]["result"])

    def query_range(self, expression: str, since: float, until: float, step: float) -> list[dict[str, Any]]:
        """What a graph of an expression shows between two Unix times: series with a value at each step."""
        moments = {"start": f"{since:.3f}", "end": f"{until:.3f}", "step": f"{step:g}"}
        return list(self._get("/api/v1/query_range", query=expression, **moments)["data"]["result"])

    def await_samples(
        self, expression: str, count: int = 1, timeout_seconds: float = 30
    ) -> list[dict[str, Any]]:
        """The result once the query gives at least `count` series."""

        def enough() -> list[dict[str, Any]]:
            found = self.query(expression)
            return found if len(found) >= count else []

        return until(enough, timeout_seconds, expression)

    def active_targets(self) -> list[dict[str, Any]]:
        """What it scrapes, with labels, health and last error."""
        return list(self._get("/api/v1/targets", state="active")["data"]["activeTargets"])

    def _get(self, path: str, **parameters: str) -> dict[str, Any]:
        url = f"{self.url}{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=_ANSWER_SECONDS) as answer:
            return dict(json.load(answer))

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=_ANSWER_SECONDS) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def _argv(self) -> list[str]:
        return [
            program("prometheus"),
            "--config.file=prometheus.yaml",
            "--storage.tsdb.path=data",
            "--storage.tsdb.retention.time=10y",
            f"--web.listen-address={self.host}:{self.port}",
            "--log.level=warn",
            *self.flags,
        ]

    def _configure(self) -> None:
        self.set_targets(self.static_targets)
        if self.discovery:
            self._watch = PodWatch(self.discovery, self.directory / "pods.json")
        (self.directory / "rules.yaml").write_text(yaml.safe_dump({"groups": list(self.rules)}))
        (self.directory / "prometheus.yaml").write_text(yaml.safe_dump(self._configuration()))
        self._promtool("check", "config", "prometheus.yaml")
        if self.history:
            (self.directory / "history.txt").write_text(self.history)
            self._promtool("tsdb", "create-blocks-from", "openmetrics", "history.txt", "data")

    def _configuration(self) -> dict[str, Any]:
        scrapes: list[dict[str, Any]] = [
            {"job_name": "static", "file_sd_configs": [{"files": ["targets.json"]}]}
        ]
        if self.discovery:
            scrapes.append({"job_name": "pods", "file_sd_configs": [{"files": ["pods.json"]}]})
        timing = {"scrape_interval": self.scrape_interval, "evaluation_interval": self.scrape_interval}
        timing["scrape_timeout"] = self.scrape_timeout or self.scrape_interval
        return {"global": timing, "rule_files": ["rules.yaml"], "scrape_configs": scrapes}

    def _promtool(self, *arguments: str) -> None:
        argv = [program("promtool"), *arguments]
        done = subprocess.run(argv, cwd=self.directory, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise ValueError(f"promtool {' '.join(arguments)}: {done.stdout}{done.stderr}")


def cluster_prometheus(
    cluster: Cluster,
    scrapes: Sequence[PodScrape] = (PodScrape(),),
    scrape_interval: str = "2s",
    rules: Sequence[Mapping[str, Any]] = (),
) -> Prometheus:
    """A Prometheus beside a real cluster: it scrapes pods, and pods reach it at `url`.

    Its own ServiceAccount finds pods and may do nothing else; its token lasts a day.
    """
    with Api(cluster.access) as api:
        api.apply(_RIGHTS)
        token = api.token_for(_IDENTITY["name"], _IDENTITY["namespace"], _TOKEN_SECONDS)
    access = Access(cluster.access.url, cluster.access.ca_file, token)
    discovery = Discovery(access, scrapes)
    return Prometheus(
        discovery=discovery,
        scrape_interval=scrape_interval,
        rules=rules,
        host=cluster.host_address,
        port=PORT,
    )


_ROLE = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": _IDENTITY["name"]}
_RIGHTS: list[dict[str, Any]] = [
    {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": _IDENTITY},
    {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": _IDENTITY["name"]},
        "rules": [
            {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]},
        ],
    },
    {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": _IDENTITY["name"]},
        "roleRef": _ROLE,
        "subjects": [{"kind": "ServiceAccount", **_IDENTITY}],
    },
]
