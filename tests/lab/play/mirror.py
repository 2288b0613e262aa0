"""Objects of one kind as the API server tells of them: a list, then a watch that misses nothing."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import httpx

from lab.cluster.access import Access
from lab.cluster.api import Api, ApiError

Object = dict[str, Any]
Told = Callable[[dict[str, Object]], None]
"""Called with all objects by uid after each change; must be quick."""

WATCH_SECONDS = 120
RETRY_SECONDS = 0.5
GONE = 410


class Mirror(threading.Thread):
    """Follows one kind in one namespace until it is stopped; every state in between is told."""

    def __init__(self, access: Access, kind: str, namespace: str, told: Told | None = None) -> None:
        super().__init__(name=f"mirror {kind}", daemon=True)
        self._access, self._kind, self._namespace, self._told = access, kind, namespace, told
        self._objects: dict[str, Object] = {}
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._listed = threading.Event()

    def objects(self) -> list[Object]:
        """Return the objects as last told, in the order in which they were first seen."""
        with self._lock:
            return list(self._objects.values())

    def await_listed(self, seconds: float = 20) -> None:
        """Wait for the first list."""
        if not self._listed.wait(seconds):
            raise TimeoutError(f"no list of {self._kind} within {seconds} s")

    def stop(self) -> None:
        """End the watch soon; does not wait for it."""
        self._stopped.set()

    def run(self) -> None:
        """List and watch, again and again."""
        with Api(self._access, timeout_seconds=WATCH_SECONDS + 10) as api:
            while not self._stopped.is_set():
                try:
                    self._watch(api, self._list(api))
                except (httpx.HTTPError, ApiError, LookupError):
                    self._stopped.wait(RETRY_SECONDS)

    def _list(self, api: Api) -> str:
        found = api.request("GET", api.resource(self._kind).path(self._namespace))
        with self._lock:
            self._objects = {each["metadata"]["uid"]: each for each in found["items"]}
        self._tell()
        self._listed.set()
        return str(found["metadata"]["resourceVersion"])

    def _watch(self, api: Api, version: str) -> None:
        params = {"watch": "1", "resourceVersion": version, "timeoutSeconds": str(WATCH_SECONDS)}
        with api.http.stream("GET", api.resource(self._kind).path(self._namespace), params=params) as answer:
            for line in answer.iter_lines():
                if self._stopped.is_set() or not self._apply(json.loads(line)):
                    return

    def _apply(self, event: Object) -> bool:
        """Take one watch event; return whether the watch goes on."""
        if event["type"] == "ERROR":
            return False
        body = event["object"]
        with self._lock:
            if event["type"] == "DELETED":
                self._objects.pop(body["metadata"]["uid"], None)
            else:
                self._objects[body["metadata"]["uid"]] = body
        self._tell()
        return True

    def _tell(self) -> None:
        if self._told is not None:
            with self._lock:
                held = dict(self._objects)
            self._told(held)
