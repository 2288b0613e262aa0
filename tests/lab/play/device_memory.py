"""Memory of a fleet's GPUs as a DCGM exporter tells it: what each engine says that it holds of its own.

The exporter tells of whoever has a GPU, so pods that no Service leads to are told of as replicas are.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import MappingProxyType, TracebackType
from typing import TypeAlias

import httpx

from lab.cluster.api import Api, ApiError
from lab.engine.server import DEVICE

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

    Args:
        addresses: returns the addresses of the pods that are there, by name.
        port: of the engines.
        told: gets the memory of all of them, each time anew.
    """

    def __init__(self, addresses: Addresses, port: int, told: Callable[[Memory], None]) -> None:
        super().__init__(name="memory", daemon=True)
        self._addresses, self._port, self._told = addresses, port, told
        self._known: dict[str, Mapping[str, float]] = {}
        self._stopped = threading.Event()

    def __enter__(self) -> Meter:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
