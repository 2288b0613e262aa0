"""A small client for tests: objects by kind, server-side apply, waiting. Not the operator's client."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import httpx
import yaml

from lab.cluster.pki import Access

T = TypeVar("T")
Object = dict[str, Any]
_DISCOVERY = "application/json;v=v2;g=apidiscovery.k8s.io;as=APIGroupDiscoveryList"
_POLL_SECONDS = 0.05
_ACCOUNT_SECONDS = 60
"""Until controllers have made a namespace's ServiceAccount: over 10 s were seen where several control planes
start at once on two cores."""


INITIALIZING = "storage is (re)initializing"
"""Answered with 429 for a moment after somebody else on the same cluster changed the kind's definition."""
INITIALIZING_SECONDS = 10.0


class ApiError(RuntimeError):
    """The API server refused; `code` is the HTTP status, the message is the server's."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


class Resource(NamedTuple):
    """Where the objects of a kind are."""

    prefix: str
    plural: str
    namespaced: bool

    def path(self, namespace: str | None, name: str = "") -> str:
        """The request path of one object, or of the collection without a name."""
        where = f"/namespaces/{namespace}" if self.namespaced and namespace else ""
        return f"{self.prefix}{where}/{self.plural}" + (f"/{name}" if name else "")


class Api:
    """Requests to one API server with one identity; close it, or use it as a context manager.

    Each thread has connections of its own. Of a connection that another thread was just given httpcore 1.0.9
    may find that it is idle, then that there is something to be read (the answer to that thread), take the
    two for the server's farewell, and close it: `ReadError: Bad file descriptor` in the thread that waits.
    """

    def __init__(self, access: Access, timeout_seconds: float = 15) -> None:
        self.access = access
        self._timeout_seconds = timeout_seconds
        self._of_this_thread = threading.local()
        self._clients: list[httpx.Client] = []
        self._resources: dict[str, Resource] = {}

    @property
    def http(self) -> httpx.Client:
        client: httpx.Client | None = getattr(self._of_this_thread, "client", None)
        if client is None:
            client = httpx.Client(
                base_url=self.access.url,
                headers=self.access.headers(),
                verify=self.access.ssl_context(),
                timeout=self._timeout_seconds,
                trust_env=False,
            )
            self._of_this_thread.client = client
            self._clients.append(client)
        return client

    def __enter__(self) -> Api:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for client in self._clients:
            client.close()

    def is_ready(self) -> bool:
        try:
            return self.http.get("/readyz", timeout=2).status_code == httpx.codes.OK
        except httpx.HTTPError:
            return False

    def request(self, method: str, path: str, **arguments: Any) -> Object:
        deadline = time.monotonic() + INITIALIZING_SECONDS
        while (response := self.http.request(method, path, **arguments)).is_error:
            message = _message(response)
            if INITIALIZING not in message or time.monotonic() > deadline:
                raise ApiError(response.status_code, message)
            time.sleep(0.2)
        return dict(response.json())

    def apply(
        self, manifest: str | Object | Iterable[Object], namespace: str = "default", manager: str = "lab"
    ) -> list[Object]:
        """Server-side apply of one object, several, or a YAML text with any number of documents.

        Conflicts are forced. Objects without a namespace land in `namespace`. Returns what the server stored.
        """
        return [self._apply_one(document, namespace, manager) for document in documents(manifest)]

    def _apply_one(self, document: Object, namespace: str, manager: str) -> Object:
        metadata = document["metadata"]
        path = self.resource(document["kind"], document["apiVersion"]).path(
            metadata.get("namespace", namespace), metadata["name"]
        )
        return self.request(
            "PATCH",
            path,
            params={"fieldManager": manager, "force": "true"},
            headers={"Content-Type": "application/apply-patch+yaml"},
            # JSON is YAML, and ours takes a third of a second to be written as anything else.
            content=json.dumps(document),
        )

    def create(self, document: Object, namespace: str = "default") -> Object:
        """POST one object; `generateName` works."""
        resource = self.resource(document["kind"], document["apiVersion"])
        return self.request(
            "POST", resource.path(document["metadata"].get("namespace", namespace)), json=document
        )

    def get(self, kind: str, name: str, namespace: str | None = "default") -> Object:
        """One object; raises ApiError with code 404 when it is not there."""
        return self.request("GET", self.resource(kind).path(namespace, name))

    def list(self, kind: str, namespace: str | None = "default", selector: str = "") -> list[Object]:
        """Objects of a kind, in one namespace or with None in all."""
        params = {"labelSelector": selector} if selector else {}
        return list(self.request("GET", self.resource(kind).path(namespace), params=params)["items"])

    def patch(
        self,
        kind: str,
        name: str,
        patch: Mapping[str, Any],
        namespace: str = "default",
        subresource: str = "",
    ) -> Object:
        """JSON merge patch, of the object or of a subresource such as `status` or `scale`."""
        path = self.resource(kind).path(namespace, name) + (f"/{subresource}" if subresource else "")
        return self.request(
            "PATCH", path, json=patch, headers={"Content-Type": "application/merge-patch+json"}
        )

    def delete(self, kind: str, name: str, namespace: str = "default") -> None:
        """Delete in the background; an object that is already gone is fine."""
        try:
            self.request("DELETE", self.resource(kind).path(namespace, name))
        except ApiError as error:
            if error.code != httpx.codes.NOT_FOUND:
                raise

    def delete_all(self, kind: str, namespace: str) -> None:
        """Delete every object of a kind in a namespace at once, whatever finalizer holds it."""
        path = self.resource(kind).path(namespace)
        at_once = {"propagationPolicy": "Background", "gracePeriodSeconds": 0}
        for held in self.request("DELETE", path, json=at_once).get("items", ()):
            if held["metadata"].get("finalizers"):
                with suppress(ApiError):
                    self.patch(kind, held["metadata"]["name"], {"metadata": {"finalizers": None}}, namespace)

    def token_for(self, service_account: str, namespace: str = "default", seconds: int = 3600) -> str:
        """A token of a ServiceAccount, from the TokenRequest API."""
        path = self.resource("ServiceAccount").path(namespace, service_account) + "/token"
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest"}
        answer = self.request("POST", path, json={**body, "spec": {"expirationSeconds": seconds}})
        return str(answer["status"]["token"])

    def resource(self, kind: str, api_version: str = "") -> Resource:
        """Where a kind is served; kinds of several groups need the version, or to be `apps/v1/Deployment`."""
        key = f"{api_version}/{kind}" if api_version else kind
        if key not in self._resources:
            self._discover()
        if key not in self._resources:
            raise LookupError(f"the API server serves no {key}; is the CRD installed?")
        return self._resources[key]

    def serves(self, kind: str, api_version: str = "") -> bool:
        """Whether it serves a kind by now."""
        with suppress(LookupError):
            return bool(self.resource(kind, api_version))
        return False

    def _discover(self) -> None:
        for root in ("/api", "/apis"):
            for group in self.request("GET", root, headers={"Accept": _DISCOVERY})["items"]:
                for version in group["versions"]:
                    self._learn(root, group["metadata"].get("name", ""), version)

    def _learn(self, root: str, group: str, version: Object) -> None:
        api_version = f"{group}/{version['version']}" if group else version["version"]
        for entry in version.get("resources", ()):
            kind = entry["responseKind"]["kind"]
            found = Resource(f"{root}/{api_version}", entry["resource"], entry["scope"] == "Namespaced")
            self._resources.setdefault(f"{api_version}/{kind}", found)
            self._resources.setdefault(kind, found)


def documents(manifest: str | Object | Iterable[Object]) -> list[Object]:
    """The objects of a YAML text, one object, or several; empty documents are dropped."""
    if isinstance(manifest, str):
        return [document for document in yaml.load_all(manifest, Loader=yaml.CSafeLoader) if document]
    return [manifest] if isinstance(manifest, dict) else list(manifest)


def read_manifests(path: Path) -> list[Object]:
    return documents(path.read_text())


def until(probe: Callable[[], T], timeout_seconds: float = 30, what: str = "") -> T:
    """Call `probe` until its answer is true and return it; an ApiError counts as not yet."""
    deadline = time.monotonic() + timeout_seconds
    while True:
        last: object
        try:
            answer = probe()
            if answer:
                return answer
            last = answer
        except ApiError as error:
            last = error
        if time.monotonic() > deadline:
            name = what or getattr(probe, "__name__", "condition")
            raise TimeoutError(f"{name}: not within {timeout_seconds:g} s; last: {last!r}")
        time.sleep(_POLL_SECONDS)


def create_namespace(
    api: Api, name: str, labels: Mapping[str, str] | None = None, *, has_controllers: bool = True
) -> str:
    """A namespace that is ready for pods: its controllers have made its default ServiceAccount."""
    api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels or {}}})
    if has_controllers:
        until(lambda: api.get("ServiceAccount", "default", name), _ACCOUNT_SECONDS, f"account of {name}")
    return name


AT_WORK = ("KVRemediation", "HorizontalPodAutoscaler", "CronJob", "Job", "StatefulSet", "Deployment")
"""Kinds of a namespace for which something would go on working, in the order in which they have to go."""
TAKE_ROOM = ("ReplicaSet", "Pod", "Service")
"""Kinds of which a cluster holds only so many: a node has GPUs, and a range has addresses."""


def abandon_namespace(api: Api, name: str) -> None:
    """Delete what works or takes room in a namespace; the rest of it goes with its cluster.

    The end of a namespace takes some hundred requests, as each kind is deleted and listed: they were 37 % of
    all that an API server was asked for by tests of the operator.
    """
    for kind in (*AT_WORK, *TAKE_ROOM):
        if api.serves(kind):
            with suppress(ApiError):
                api.delete_all(kind, name)


def is_rolled_out(deployment: Object) -> bool:
    """Whether the controller has seen the newest spec and every replica is updated and available."""
    replicas, status = deployment["spec"].get("replicas", 1), deployment.get("status", {})
    return bool(
        status.get("observedGeneration") == deployment["metadata"]["generation"]
        and status.get("replicas", 0) == replicas
        and status.get("updatedReplicas", 0) == replicas
        and status.get("availableReplicas", 0) == replicas
    )


def _message(response: httpx.Response) -> str:
    try:
        return str(response.json()["message"])
    except (ValueError, KeyError):
        return response.text[:500]
