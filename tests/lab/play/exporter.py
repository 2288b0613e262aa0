"""The DCGM exporter of GPUs that are not there: tells of each replica's GPU what a scenario says."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import MappingProxyType
from typing import TypeAlias

import httpx

from lab.cluster.api import Api, ApiError
from lab.engine.server import DEVICE

LABELS = {"job": "dcgm", "namespace": "monitoring", "pod": "dcgm-exporter-lab", "container": "exporter"}
"""Labels of the exporter's own pod, as prometheus-operator sets them. `pod` and `namespace` of its series are
others; Prometheus renames those to `exported_pod` and `exported_namespace`."""


class Exporter:
    """Serves `/metrics` on a free port of an address; a context manager."""

    def __init__(self, host: str) -> None:
        self._told: dict[tuple[str, str], dict[str, float]] = {}
        self._measured: dict[str, Mapping[str, Mapping[str, float]]] = {}
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer((host, 0), _handler(self))
        self._thread = threading.Thread(target=self._server.serve_forever, name="exporter", daemon=True)

    def __enter__(self) -> Exporter:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def address(self) -> str:
        host, port = self._server.server_address[:2]
        return f"{host!s}:{port}"

    def meet(self, namespace: str, pods: Sequence[str], series: Mapping[str, float]) -> None:
        """Tell of the GPUs of these pods of a namespace and of no others; what is told already stays."""
        with self._lock:
            known = {key: told for key, told in self._told.items() if key[0] == namespace}
            for key in known.keys() - {(namespace, pod) for pod in pods}:
                del self._told[key]
            for pod in pods:
                self._told.setdefault((namespace, pod), dict(series))

    def tell(self, namespace: str, pod: str, series: Mapping[str, float]) -> None:
        """Give some series of a pod's GPU another value."""
        with self._lock:
            self._told.setdefault((namespace, pod), {}).update(series)

    def measure(self, namespace: str, pods: Mapping[str, Mapping[str, float]]) -> None:
        """Tell these series of the GPUs of a namespace's pods beside all others, in place of earlier ones."""
        with self._lock:
            self._measured[namespace] = pods

    def measured(self, namespace: str) -> Mapping[str, Mapping[str, float]]:
        """Return the series that were measured of the GPUs of a namespace's pods, by pod."""
        with self._lock:
            return self._measured.get(namespace, {})

    def page(self) -> str:
        """Return what is told now, in the exposition format."""
        with self._lock:
            rows = sorted(
                (name, namespace, pod, value)
                for (namespace, pod), series in (*self._told.items(), *self._measured_by_pod())
                for name, value in series.items()
            )
        lines = []
        for name in sorted({row[0] for row in rows}):
            lines.append(f"# TYPE {name} gauge")
            lines += [
                f'{name}{{gpu="0",UUID="GPU-{pod}",namespace="{namespace}",pod="{pod}"}} {value:g}'
                for series, namespace, pod, value in rows
                if series == name
            ]
        return "\n".join([*lines, ""])

    def _measured_by_pod(self) -> Iterator[tuple[tuple[str, str], Mapping[str, float]]]:
        for namespace, pods in self._measured.items():
            yield from (((namespace, pod), series) for pod, series in pods.items())


def _handler(exporter: Exporter) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = exporter.page().encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            with suppress(ConnectionError):  # whoever asked may have given up by now
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's own name
            """Say nothing."""

    return Handler


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
    """Asks every engine again and again; a context manager, after which nothing is told any more.

    Of an engine that does not answer the last number stays, and of one that never did there is none.
    """

    def __init__(self, addresses: Addresses, port: int, told: Callable[[Memory], None]) -> None:
        super().__init__(name="memory", daemon=True)
        self._addresses, self._port, self._told = addresses, port, told
        self._known: dict[str, Mapping[str, float]] = {}
        self._stopped = threading.Event()

    def __enter__(self) -> Meter:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self.join()
        self._told({})

    def run(self) -> None:
        """Ask and tell until it is stopped; a cluster that does not answer is asked again."""
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
        self._told(MappingProxyType(dict(self._known)))


def addresses_of(api: Api, namespace: str) -> dict[str, str]:
    """Return the addresses of all pods of a namespace that have one, by name."""
    pods = api.list("Pod", namespace)
    found = {str(pod["metadata"]["name"]): str(pod.get("status", {}).get("podIP", "")) for pod in pods}
    return {pod: address for pod, address in found.items() if address}


def _read(http: httpx.Client, url: str) -> Mapping[str, float]:
    answer = http.get(url)
    answer.raise_for_status()
    told = answer.json()
    used = round(told["used"] / MIB)
    return {USED: used, FREE: round(told["total"] / MIB) - used}
