"""A thin client over the `kubernetes` package: JSON in, JSON out, a time-out on every call, bounded in pace.

It never retries: a caller that gets `Unavailable` looks at the world anew in its next tick. It
never logs a body.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol, Self
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass
from weakref import WeakSet

import aiohttp
from kubernetes.aio.client import ApiClient, Configuration
from kubernetes.aio.client.rest import RESTResponse
from kubernetes.aio.config import ConfigException
from kubernetes.aio.stream.ws_client import get_websocket_url

from kvmedic import __version__
from kvmedic.kube.clock import ServerClock, loop_seconds
from kvmedic.kube.errors import NOT_FOUND, ApiError, Call, Expired, Unavailable, error_for
from kvmedic.kube.kubeconfig import load_configuration, unreadable_certificate
from kvmedic.kube.objects import FIELD_MANAGER, JsonObject, Preconditions, Propagation, Ref, Resource, section
from kvmedic.model.edits import PatchOperation

TURNS = 3
"""Turns of the event loop that an aborted TLS connection needs to be gone: one to notify the connection,
one to notify what is over TLS, one to close the socket (asyncio of Python 3.11 to 3.14)."""


class Connections(aiohttp.TCPConnector):
    """A pool that leaves no socket open behind it.

    aiohttp 3.14 hands a TLS connection whose request was cancelled to asyncio for a graceful end, which
    waits up to 30 s for the peer and which closing the pool does not wait for.
    """

    def __init__(self, **options: Any) -> None:
        """Prepare; takes what `aiohttp.TCPConnector` takes."""
        super().__init__(**options)
        self._opened: WeakSet[asyncio.Transport] = WeakSet()

    async def _create_connection(self, *arguments: Any) -> Any:
        """Open a connection and remember it: what every connector of aiohttp has to provide."""
        protocol = await super()._create_connection(*arguments)
        if protocol.transport is not None:
            self._opened.add(protocol.transport)
        return protocol

    async def close_all(self) -> None:
        """Close the pool and cut what is still open; a request under way fails."""
        await self.close()
        for transport in list(self._opened):
            transport.abort()
        for _ in range(TURNS):
            await asyncio.sleep(0)


class Pace:
    """At most `per_second` requests in the long run and `burst` at once.

    Readers wait for their turn; writers are counted and never wait, because a write that waits in a
    queue is carried out on an older look at the world than it was decided on. Each write follows
    several reads, so the bound holds all the same.
    """

    def __init__(self, per_second: float, burst: int) -> None:
        """Start with the whole burst available.

        Raises:
            ValueError: a bound is not positive.
        """
        if per_second <= 0 or burst < 1:
            raise ValueError(
                f"need more than 0 requests a second and a burst of 1, got {per_second}, {burst}"
            )
        self._interval = 1 / per_second
        self._slack = (burst - 1) * self._interval
        self._booked_until = 0.0

    def spend(self, now: float) -> float:
        """Book one request and return for how many seconds it should wait.

        Args:
            now: any clock in seconds that never goes back.
        """
        start = max(self._booked_until, now)
        self._booked_until = start + self._interval
        return max(0.0, start - now - self._slack)

    async def await_turn(self, method: str) -> None:
        """Book a request; a reading one waits until it may be sent."""
        delay = self.spend(loop_seconds())
        if delay > 0 and method == "GET":
            await asyncio.sleep(delay)


SILENCE = timedelta(seconds=150)
"""After which a watch that reports nothing is taken for dead: two bookmarks are missing."""
EVENT_BYTES = 8 << 20
"""Size of one event of a watch, at most: etcd takes objects of 1.5 MiB, as JSON they are larger."""

PAGE = 100
"""Objects per page of a list: fewer than kubectl's 500, as a whole page is in memory while it is read."""

JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
JSON = "application/json"
ANYTHING = "*/*"
CLOSE_SECONDS = 1.0
"""How long the other side may take to say that a WebSocket is closed. Nobody waits for what it says."""
MESSAGE_BYTES = 1 << 20
"""Size of one message of a WebSocket, at most. A kubelet sends what a command prints in pieces of 32 KiB."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one process may ask of the API server."""

    connect_seconds: float = 5.0
    """Until a connection stands. A server in the same cluster needs milliseconds; a lost SYN is
    repeated after 1 and 3 s (Linux), so one loss is forgiven."""
    total_seconds: float = 20.0
    """Until the whole answer is there. Between the 15 and 30 s that suit a controller: an overloaded
    server queues a request for up to a minute (API priority and fairness) and is better asked again."""
    per_second: float = 20.0
    """Requests a second in the long run (the default of controller-runtime)."""
    burst: int = 60
    """Requests at once: one look at ten fleets."""


@dataclass(frozen=True, slots=True)
class _Request:
    method: str
    call: Call
    query: tuple[tuple[str, str], ...] = ()
    body: object = None
    content_type: str = JSON
    accept: str = JSON
    path: str = ""
    """Where it is sent, if not to what it is about."""


class Reader(Protocol):
    """Where objects are read from: an API server, or documents that stand for one."""

    async def get(self, ref: Ref) -> JsonObject | None:
        """Return an object as it is now, or None when it does not exist."""

    async def list(
        self, resource: Resource, namespace: str, label_selector: str = "", fields: str = ""
    ) -> list[JsonObject]:
        """Return all objects of a kind in a namespace at one moment; an empty namespace means all."""

    def read_each(
        self, resource: Resource, namespace: str, label_selector: str = "", fields: str = ""
    ) -> AsyncIterator[JsonObject]:
        """Yield the same one by one, so that thousands are never in memory together."""


class Client:
    """Calls to one API server. Every method can be cancelled, and raises an `ApiError`."""

    def __init__(self, configuration: Configuration, limits: Limits) -> None:
        """Prepare; the first call connects."""
        self._api = ApiClient(configuration)
        rest = self._api.rest_client
        self._connections = Connections(limit=rest.maxsize, ssl=rest.ssl_context)
        # Of the environment only the proxy counts: aiohttp 3.14, left to ask it, reads ~/.netrc for each
        # request too, and sends nothing where both that and the token say who asks.
        rest.proxy = rest.proxy or _proxy_for(configuration.host)
        configuration.client_session_kwargs = {"connector": self._connections, "trust_env": False}
        self._api.user_agent = f"kvmedic/{__version__}"
        self._limits = limits
        self._timeout = aiohttp.ClientTimeout(
            total=limits.total_seconds, connect=limits.connect_seconds, sock_connect=limits.connect_seconds
        )
        self._pace = Pace(limits.per_second, limits.burst)
        self.clock = ServerClock()
        """The time of the server that answers."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections; nothing is left open, also not of a call that was cancelled."""
        await self._api.close()  # type: ignore[no-untyped-call]
        await self._connections.close_all()

    async def get(self, ref: Ref) -> JsonObject | None:
        """Return an object as it is now, or None when it does not exist.

        No resourceVersion is sent, so the answer is a consistent read, never one from a cache that lags.
        """
        request = _Request("GET", Call("get", ref.path))
        status, body = await self._send(request)
        if status == NOT_FOUND:
            return None
        return _check_status(request, status, body)

    async def text(self, ref: Ref, subresource: str, query: Sequence[tuple[str, str]]) -> str:
        """Return what a subresource answers as text, such as a pod's log.

        Raises:
            Refused: there is no such object, or nothing of the kind about it.
        """
        request = _subresource(ref, subresource, query)
        status, body = await self._read_answer(request)
        if not 200 <= status < 300:
            raise error_for(request.call, status, _parse_body(body))
        return body.decode(errors="replace")

    @asynccontextmanager
    async def socket(
        self, ref: Ref, subresource: str, query: Sequence[tuple[str, str]], protocol: str
    ) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        """Open a WebSocket to a subresource, such as a command in a pod; it is closed in the end.

        Unlike every other call it has no time-out of its own: the caller sets one.

        Raises:
            Refused: there is no such object, or nothing of the kind about it.
            Unavailable: it could not be opened, or broke.
        """
        request = _subresource(ref, subresource, query)
        await self._pace.await_turn(request.method)
        rest = self._api.rest_client
        options = {"proxy": rest.proxy, "proxy_headers": rest.proxy_headers, "max_msg_size": MESSAGE_BYTES}
        try:
            _, address, headers, _, _ = await self._serialize_request(request)
            url = get_websocket_url(address)  # type: ignore[no-untyped-call]
            async with aiohttp.ClientSession(
                connector=self._connections, connector_owner=False, trust_env=False
            ) as session:
                opened = await session.ws_connect(url, headers=headers, protocols=(protocol,), **options)
                try:
                    yield opened
                finally:
                    await _close_socket(opened)
        except aiohttp.WSServerHandshakeError as error:
            raise error_for(request.call, error.status, {}) from error
        except (aiohttp.ClientError, ConnectionError, ConfigException) as error:
            raise Unavailable(request.call, None, f"no answer: {type(error).__name__}") from error

    async def pages(
        self, resource: Resource, namespace: str, label_selector: str = "", fields: str = ""
    ) -> AsyncIterator[tuple[list[JsonObject], str]]:
        """Yield the same page by page, each with the version of the list, from which a watch goes on."""
        token = ""
        while True:
            query = (
                ("limit", str(PAGE)),
                ("labelSelector", label_selector),
                ("fieldSelector", fields),
                ("continue", token),
            )
            page = await self._call(_Request("GET", Call("list", resource.path(namespace)), query))
            metadata = page.get("metadata") or {}
            yield page.get("items") or [], str(metadata.get("resourceVersion", ""))
            token = metadata.get("continue", "")
            if not token:
                return

    async def list(
        self, resource: Resource, namespace: str, label_selector: str = "", fields: str = ""
    ) -> list[JsonObject]:
        """Return all objects of a kind in a namespace at one moment; an empty namespace means all.

        Args:
            resource: the kind.
            namespace: the namespace.
            label_selector: of the objects; empty: all.
            fields: a field selector; empty: all.

        Raises:
            Unavailable: also when a page expired in the middle.
        """
        return [body async for body in self.read_each(resource, namespace, label_selector, fields)]

    async def read_each(
        self, resource: Resource, namespace: str, label_selector: str = "", fields: str = ""
    ) -> AsyncIterator[JsonObject]:
        """Yield the same one by one; only a page of them is in memory."""
        async for page, _ in self.pages(resource, namespace, label_selector, fields):
            for body in page:
                yield body

    @asynccontextmanager
    async def watch(
        self, resource: Resource, namespace: str, version: str, lasts: timedelta
    ) -> AsyncIterator[AsyncIterator[JsonObject]]:
        """Open a watch: it reports what changes of a kind after a version, until the server ends it.

        Each event has a `type` and an `object`. A `BOOKMARK` says that there was nothing else up to its
        version; an API server sends one about every minute (Kubernetes 1.36, `allowWatchBookmarks`).

        Args:
            resource: the kind.
            namespace: the namespace; empty: all.
            version: of a list, or of the last event.
            lasts: after which time the server shall end it.

        Raises:
            Expired: it cannot go on from the version, or reported nothing for `SILENCE`: list anew.
            Unavailable: it broke.
            Refused: we may not.
        """
        query = (
            ("watch", "true"),
            ("allowWatchBookmarks", "true"),
            ("resourceVersion", version),
            ("timeoutSeconds", str(round(lasts.total_seconds()))),
        )
        request = _Request("GET", Call("watch", resource.path(namespace)), query)
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=self._limits.connect_seconds, sock_read=SILENCE.total_seconds()
        )
        await self._pace.await_turn(request.method)
        try:
            method, url, sent, _, _ = await self._serialize_request(request)
            answer = await self._api.call_api(method, url, header_params=sent, _request_timeout=timeout)
            response: aiohttp.ClientResponse = answer.response
            with closing(response):
                self.clock.note_date(response.headers.get("Date"))
                if not 200 <= response.status < 300:
                    raise _watch_error(request, response.status, _parse_body(await response.read()))
                yield (_event_of(request, line) async for line in _lines(response))
        except TimeoutError as error:
            raise Expired(request.call, None, f"nothing came for {SILENCE.seconds} s") from error
        except (aiohttp.ClientError, OSError, ConfigException) as error:
            raise Unavailable(request.call, None, f"it broke: {type(error).__name__}") from error

    async def serves(self, resource: Resource) -> bool:
        """Return whether discovery names a kind: `/apis` its group's version, and that version its plural."""
        group, _, _ = resource.group_version.partition("/")
        groups = await self._call(_Request("GET", Call("get", "/apis")))
        named = {each.get("name"): each.get("versions") or [] for each in groups.get("groups") or []}
        if resource.group_version not in {each.get("groupVersion") for each in named.get(group, [])}:
            return False
        request = _Request("GET", Call("get", f"/apis/{resource.group_version}"))
        status, body = await self._send(request)
        if status == NOT_FOUND:
            return False
        kinds = _check_status(request, status, body).get("resources") or []
        return resource.plural in {each.get("name") for each in kinds}

    async def json_patch(
        self, ref: Ref, operations: Sequence[PatchOperation], *, dry_run: bool = False
    ) -> JsonObject:
        """Apply a JSON patch (RFC 6902) and return the object as it is then; `dry_run`: as it would be.

        A dry run passes admission as the patch itself does, and stores nothing.

        Raises:
            Conflict: a `test` among the operations does not hold.
        """
        query = (*_AS_US, ("dryRun", "All")) if dry_run else _AS_US
        body = [operation.as_json() for operation in operations]
        return await self._call(_Request("PATCH", Call("patch", ref.path), query, body, JSON_PATCH))

    async def merge_patch(self, ref: Ref, patch: Mapping[str, Any]) -> JsonObject:
        """Apply a merge patch (RFC 7386). With `metadata.resourceVersion` in it, only onto that version."""
        return await self._call(_Request("PATCH", Call("patch", ref.path), _AS_US, dict(patch), MERGE_PATCH))

    async def put(self, ref: Ref, body: JsonObject) -> JsonObject:
        """Replace an object that was loaded before.

        Raises:
            Conflict: it changed since.
            ValueError: the body has no `metadata.resourceVersion`, so the write would be unchecked.
        """
        return await self._replace(ref.path, body)

    async def put_status(self, ref: Ref, body: JsonObject) -> JsonObject:
        """Replace the status of an object that was loaded before. Raises like `put`."""
        return await self._replace(f"{ref.path}/status", body)

    async def _replace(self, path: str, body: JsonObject) -> JsonObject:
        if not (body.get("metadata") or {}).get("resourceVersion"):
            raise ValueError("an update needs metadata.resourceVersion as it was loaded")
        return await self._call(_Request("PUT", Call("update", path), _AS_US, body))

    async def create(self, ref: Ref, body: JsonObject) -> JsonObject:
        """Create an object. Raises Conflict when one of that name exists."""
        into = ref.resource.path(ref.namespace)
        return await self._call(_Request("POST", Call("create", ref.path), _AS_US, body, path=into))

    async def delete(
        self, ref: Ref, preconditions: Preconditions, propagation: Propagation = Propagation.DEFAULT
    ) -> None:
        """Delete an object with its own grace period; one that is gone already is a success.

        Raises:
            Conflict: it is not what the preconditions say.
        """
        body: JsonObject = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": preconditions.uid, "resourceVersion": preconditions.resource_version},
        }
        if propagation is not Propagation.DEFAULT:
            body["propagationPolicy"] = propagation.value
        request = _Request("DELETE", Call("delete", ref.path), (), body)
        status, answer = await self._send(request)
        if status != NOT_FOUND:
            _check_status(request, status, answer)

    async def _call(self, request: _Request) -> JsonObject:
        status, body = await self._send(request)
        return _check_status(request, status, body)

    async def _send(self, request: _Request) -> tuple[int, JsonObject]:
        status, body = await self._read_answer(request)
        return status, _parse_body(body)

    async def _read_answer(self, request: _Request) -> tuple[int, bytes]:
        """Return the answer's code and text; whatever keeps an answer away is Unavailable."""
        await self._pace.await_turn(request.method)
        try:
            method, url, sent, _, _ = await self._serialize_request(request)
            response: RESTResponse = await self._api.call_api(
                method, url, header_params=sent, body=request.body, _request_timeout=self._timeout
            )
            text = await response.read()  # type: ignore[no-untyped-call]
            self.clock.note_date(response.headers.get("Date"))
        except TimeoutError as error:
            limit = self._limits.total_seconds
            raise Unavailable(request.call, None, f"no answer within {limit:g} s") from error
        except (aiohttp.ClientError, OSError, ConfigException) as error:
            raise Unavailable(request.call, None, f"no answer: {type(error).__name__}") from error
        return response.status, text

    async def _serialize_request(self, request: _Request) -> Any:
        """Return method, URL and headers of a request as the `kubernetes` package writes them."""
        query = [(key, value) for key, value in request.query if value]
        headers = {"Accept": request.accept, "Content-Type": request.content_type}
        return await self._api.param_serialize(
            request.method,
            request.path or request.call.path,
            query_params=query,
            header_params=headers,
            auth_settings=["BearerToken"],
        )


async def connect(kubeconfig: Path | str | None, limits: Limits, context: str = "") -> Client:
    """Return a client for a kubeconfig, or for the cluster that this process is a pod of.

    In a pod the service account's token is read from its file anew at most a minute after it was
    rotated (kubernetes 37.0.2, aio/config/incluster_config.py).

    Args:
        kubeconfig: one path, or several that are merged, as in KUBECONFIG; None: the pod's own cluster.

    Raises:
        NoCluster: the configuration is missing or incomplete.
    """
    configuration = await load_configuration(None if kubeconfig is None else str(kubeconfig), context)
    try:
        return Client(configuration, limits)
    except OSError as error:
        raise unreadable_certificate(configuration, error) from error


_AS_US = (("fieldManager", FIELD_MANAGER),)


def _proxy_for(address: str) -> str | None:
    """Return the proxy that the environment names for an API server; None where it names none."""
    url = urlsplit(address)
    bypassed = proxy_bypass(url.hostname or "")
    return None if bypassed else getproxies().get(url.scheme)


async def _close_socket(socket: aiohttp.ClientWebSocketResponse) -> None:
    """Close a WebSocket; cut it where the other side does not agree in time.

    aiohttp's own limit is on each message, so that one who goes on talking would be listened to for ever.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(CLOSE_SECONDS):
            await socket.close()


def _subresource(ref: Ref, subresource: str, query: Sequence[tuple[str, str]]) -> _Request:
    return _Request("GET", Call("get", f"{ref.path}/{subresource}"), tuple(query), accept=ANYTHING)


def _parse_body(text: bytes) -> JsonObject:
    """Return an answer's JSON object; an empty one where something else answered than an API server."""
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return body if isinstance(body, dict) else {}


async def _lines(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """Yield the lines of an answer as they come; aiohttp's own reader of lines ends at 128 KiB."""
    rest = bytearray()
    async for chunk in response.content.iter_any():
        *lines, last = chunk.split(b"\n")
        for line in lines:
            yield bytes(rest + line)
            rest.clear()
        rest += last
        if len(rest) > EVENT_BYTES:
            raise aiohttp.ClientPayloadError("an event is too large")


def _event_of(request: _Request, line: bytes) -> JsonObject:
    """Return one event. Raises `Expired` or `Unavailable` where it is an error, or none can be read."""
    event = _parse_body(line)
    if event.get("type") == "ERROR" or not isinstance(event.get("object"), dict):
        status = section(event, "object")
        code = status.get("code")
        raise _watch_error(request, code if isinstance(code, int) else 500, status)
    return event


def _watch_error(request: _Request, code: int, status: JsonObject) -> ApiError:
    """Return what a refused or ended watch means.

    410: the version is compacted. 504: it is one that etcd has not reached (Kubernetes 1.36,
    `Too large resource version`), as after a restore from a snapshot.
    """
    if code in (410, 504):
        return Expired(request.call, code, str(status.get("reason") or "no reason given"))
    return error_for(request.call, code, status)


def _check_status(request: _Request, status: int, body: JsonObject) -> JsonObject:
    """Return the body of a success, or raise what the answer means."""
    if not 200 <= status < 300:
        raise error_for(request.call, status, body)
    if not body:
        raise Unavailable(request.call, status, "the answer is not a JSON object")
    return body
