"""Carries out what a scenario says that happens: by the API server, and by the exporter of the GPUs.

The exporter is the DCGM exporter of GPUs that are not there: it reports of each replica's GPU what a scenario
says.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Any, TypeAlias

import httpx
from prometheus_client import CollectorRegistry, Metric, start_http_server
from prometheus_client.core import GaugeMetricFamily

from lab.cluster.api import Api, ApiError
from lab.engine.server import DEVICE, SLOWDOWN
from lab.installation import NAMESPACE, RELEASE, install_again, roll_back, take_away, upgrade
from lab.play import schema
from lab.play.files import merged
from lab.play.manifests import PORT, workload
from lab.play.registry import Registry
from lab.play.schema import (
    FLEET,
    Apply,
    Approve,
    Crash,
    Create,
    Devices,
    Flag,
    Fleet,
    Incident,
    Kill,
    On,
    Patch,
    Release,
    ReleaseAction,
    Restart,
    Resume,
    Slow,
    Stop,
)
from lab.play.witness import EDITOR

LABELS = {"job": "dcgm", "namespace": "monitoring", "pod": "dcgm-exporter-lab", "container": "exporter"}
"""Labels of the exporter's own pod, as prometheus-operator sets them. `pod` and `namespace` of its series are
others; Prometheus renames those to `exported_pod` and `exported_namespace`."""


GPU_LABELS = ("gpu", "UUID", "namespace", "pod")


class Exporter:
    """Serves `/metrics` on a free port of an address; a context manager."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._series: dict[tuple[str, str], dict[str, float]] = {}
        self._measured: dict[str, Mapping[str, Mapping[str, float]]] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> Exporter:
        registry = CollectorRegistry()
        registry.register(self)
        self._server, self._thread = start_http_server(0, self._host, registry)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def address(self) -> str:
        return f"{self._host}:{self._server.server_port}"

    def meet(self, namespace: str, pods: Sequence[str], series: Mapping[str, float]) -> None:
        """Report the GPUs of these pods of a namespace and of no others; what is reported already stays."""
        with self._lock:
            for key in [key for key in self._series if key[0] == namespace and key[1] not in pods]:
                del self._series[key]
            for pod in pods:
                self._series.setdefault((namespace, pod), dict(series))

    def set_series(self, namespace: str, pod: str, series: Mapping[str, float]) -> None:
        """Give some series of a pod's GPU another value."""
        with self._lock:
            self._series.setdefault((namespace, pod), {}).update(series)

    def measure(self, namespace: str, pods: Mapping[str, Mapping[str, float]]) -> None:
        """Report these series of a namespace's pods beside all others, in place of earlier ones."""
        with self._lock:
            self._measured[namespace] = pods

    def measured(self, namespace: str) -> Mapping[str, Mapping[str, float]]:
        """Return the series that were measured of the GPUs of a namespace's pods, by pod."""
        with self._lock:
            return self._measured.get(namespace, {})

    def collect(self) -> Iterable[Metric]:
        """Return what is reported now, as the registry asks for it."""
        families: dict[str, GaugeMetricFamily] = {}
        with self._lock:
            measured = {
                (space, pod): each for space, pods in self._measured.items() for pod, each in pods.items()
            }
            for (namespace, pod), series in (*self._series.items(), *measured.items()):
                for name, value in series.items():
                    family = families.setdefault(name, GaugeMetricFamily(name, name, labels=GPU_LABELS))
                    family.add_metric(["0", f"GPU-{pod}", namespace, pod], value)
        return families.values()


USED, FREE = "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_FREE"
MIB = 1 << 20
"""Their unit, in whole numbers (dcgm-exporter before 4.9.0)."""
INTERVAL_SECONDS = 2.0
"""The pause between two scrapes of a play: a number that is younger nobody sees."""
TIMEOUT_SECONDS = 5.0
"""As for the engine's metrics."""

Addresses: TypeAlias = Callable[[], Mapping[str, str]]
Memory: TypeAlias = Mapping[str, Mapping[str, float]]
"""Series with their value, by pod name."""


class Meter(threading.Thread):
    """Asks every engine again and again; a context manager, after which nothing is reported any more.

    Of an engine that does not answer the last number stays, and of one that never did there is none.
    """

    def __init__(self, addresses: Addresses, port: int, on_memory: Callable[[Memory], None]) -> None:
        super().__init__(name="memory", daemon=True)
        self._addresses, self._port, self._on_memory = addresses, port, on_memory
        self._known: dict[str, Mapping[str, float]] = {}
        self._stopped = threading.Event()

    def __enter__(self) -> Meter:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self.join()
        self._on_memory({})

    def run(self) -> None:
        """Ask and report until it is stopped; a cluster that does not answer is asked again."""
        with httpx.Client(timeout=TIMEOUT_SECONDS, trust_env=False) as http:
            while not self._stopped.is_set():
                with suppress(ApiError, httpx.HTTPError):
                    self._measure(http, self._addresses())
                self._stopped.wait(INTERVAL_SECONDS)

    def _measure(self, http: httpx.Client, addresses: Mapping[str, str]) -> None:
        self._known = {pod: memory for pod, memory in self._known.items() if pod in addresses}
        for pod, address in addresses.items():
            with suppress(httpx.HTTPError):
                self._known[pod] = _read(http, f"http://{address}:{self._port}{DEVICE}")
        self._on_memory(MappingProxyType(dict(self._known)))


def addresses_of(api: Api, namespace: str) -> dict[str, str]:
    """Return the addresses of all pods of a namespace that have one, by name."""
    pods = api.list("Pod", namespace)
    found = {str(pod["metadata"]["name"]): str(pod.get("status", {}).get("podIP", "")) for pod in pods}
    return {pod: address for pod, address in found.items() if address}


def _read(http: httpx.Client, url: str) -> Mapping[str, float]:
    answer = http.get(url)
    answer.raise_for_status()
    memory = answer.json()
    used = round(memory["used"] / MIB)
    return {USED: used, FREE: round(memory["total"] / MIB) - used}


STOP: dict[str, Any] = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "kvmedic-stop"}}
"""While it exists in the operator's namespace no forward move is made anywhere (the chart's default name)."""
OPERATOR = f"app.kubernetes.io/instance={RELEASE}"
"""Selects the operator's pods (the chart's labels)."""
ANSWER_SECONDS = 10.0
"""A thrashing engine on a busy machine answers within a second or two."""


class Hands:
    """Everybody but the operator: the fleet's owner, people at a terminal, the hardware."""

    def __init__(
        self,
        api: Api,
        namespace: str,
        fleet: Fleet,
        image: str,
        exporter: Exporter,
        registry: Registry | None = None,
    ) -> None:
        self._api, self._namespace, self._image = api, namespace, image
        self._fleet, self._exporter, self._registry = fleet, exporter, registry
        self._first: tuple[str, ...] = ()
        self._uninstalled: dict[str, Any] | None = None

    def meet(self, pods: Sequence[str]) -> None:
        """Note the replicas by age: what happens to the first one happens to the same one to the end."""
        self._first = tuple(pods)

    def add_devices(self, pods: Sequence[str]) -> None:
        """Give the GPU of each pod that has none yet what the file says of all."""
        if self._fleet.devices is not None:
            self._exporter.meet(self._namespace, pods, self._fleet.devices)

    def device_memory(self) -> dict[str, float]:
        """Return the MiB that each pod's GPU has in use, by its name; empty where nobody measures."""
        return {pod: series[USED] for pod, series in self._exporter.measured(self._namespace).items()}

    def carry_out(self, incident: Incident, digest: str) -> str:
        """Make it happen; return it in one line.

        Raises:
            ApiError: the API server refused.
            HTTPError: an engine did not answer.
        """
        act: dict[type, Callable[[Any], str]] = {
            Devices: self._set_series,
            Slow: self._slow,
            Kill: self._kill,
            Patch: self._patch,
            Apply: self._apply,
            Create: self._create,
            Approve: lambda _: self._approve(digest),
            Stop: self._stop,
            Resume: self._resume,
            Crash: self._crash,
            Restart: self._restart,
            Release: self._change_release,
            schema.Registry: self._refuse,
        }
        return act[type(incident)](incident)

    def _stop(self, _: Stop) -> str:
        self._api.apply(STOP, NAMESPACE, manager=EDITOR)
        return "the operator is stopped as a whole"

    def _resume(self, _: Resume) -> str:
        self.resume()
        return "the operator-wide stop is taken away"

    def resume(self) -> None:
        """Take the operator-wide stop away; nothing to do where there is none."""
        self._api.delete("ConfigMap", STOP["metadata"]["name"], NAMESPACE)

    def _crash(self, _: Crash) -> str:
        """Kill it with SIGKILL, so that it ends in the middle of whatever it does."""
        self._api.patch("Deployment", RELEASE, {"spec": {"replicas": 0}}, NAMESPACE)
        path = self._api.resource("Pod").path(NAMESPACE)
        self._api.request("DELETE", path, params={"labelSelector": OPERATOR}, json={"gracePeriodSeconds": 0})
        return "the operator is killed, and nobody starts it again"

    def _restart(self, _: Restart) -> str:
        self.start_operator()
        return "the operator is started again"

    def _change_release(self, incident: Release) -> str:
        match incident.action:
            case ReleaseAction.UPGRADE:
                upgrade()
            case ReleaseAction.ROLL_BACK:
                roll_back()
            case ReleaseAction.UNINSTALL:
                self._uninstalled = take_away()
            case ReleaseAction.INSTALL:
                self.start_operator()
        return f"the operator's release: helm {incident.action.replace('-', '')}"

    def start_operator(self) -> None:
        """Have it run; nothing to do where it does."""
        if self._uninstalled is not None:
            install_again(self._uninstalled)
            self._uninstalled = None
        self._api.patch("Deployment", RELEASE, {"spec": {"replicas": 1}}, NAMESPACE)

    def _refuse(self, incident: schema.Registry) -> str:
        if self._registry is not None:
            self._registry.refuse(self._image, refuses=incident.refuses)
        return "the registry refuses to answer" if incident.refuses else "the registry answers again"

    def _chosen(self, on: On) -> tuple[str, ...]:
        return {On.FIRST: self._first[:1], On.OTHERS: self._first[1:], On.ALL: self._first}[on]

    def _set_series(self, incident: Devices) -> str:
        for pod in self._chosen(incident.on):
            self._exporter.set_series(self._namespace, pod, incident.series)
        values = ", ".join(f"{name} {value:g}" for name, value in incident.series.items())
        return f"GPU of {incident.on}: {values}"

    def _slow(self, incident: Slow) -> str:
        for name in self._chosen(incident.on):
            address = self._api.get("Pod", name, self._namespace)["status"]["podIP"]
            url = f"http://{address}:{PORT}{SLOWDOWN}"
            answer = httpx.post(url, content=str(incident.factor), timeout=ANSWER_SECONDS, trust_env=False)
            answer.raise_for_status()
        return f"engines on {incident.on} replicas take {incident.factor:g} times as long for each step"

    def _kill(self, incident: Kill) -> str:
        gone = self._chosen(incident.on)
        for pod in gone:
            self._api.delete("Pod", pod, self._namespace)
        return f"pods deleted: {', '.join(gone)}"

    def _create(self, incident: Create) -> str:
        self._api.create(copy.deepcopy(incident.object), self._namespace)
        return f"{incident.object['kind']} is created"

    def _patch(self, incident: Patch) -> str:
        path = self._api.resource(incident.kind).path(self._namespace, incident.name)
        headers = {"Content-Type": "application/merge-patch+json"}
        params = {"fieldManager": EDITOR}
        self._api.request("PATCH", path, json=incident.patch, headers=headers, params=params)
        return f"{incident.kind}/{incident.name} is edited by hand"

    def _apply(self, incident: Apply) -> str:
        flags: Mapping[str, Flag] = merged(self._fleet.flags, incident.flags)
        self._fleet = self._fleet.model_copy(update={"flags": flags})
        made = workload(self._fleet, self._image)
        self._api.apply(made, self._namespace, manager=incident.manager)
        return f"{made['kind']}/{FLEET} is applied by {incident.manager}"

    def _approve(self, digest: str) -> str:
        if not digest:
            return "no plan is shown that could be approved"
        approval = {
            "apiVersion": "kvmedic.io/v1alpha1",
            "kind": "KVApproval",
            "metadata": {"generateName": f"{FLEET}-"},
            "spec": {"remediation": FLEET, "digest": digest},
        }
        self._api.create(approval, self._namespace)
        return f"plan {digest} is approved"
