"""A proxy in front of an API server that sees every write of the operator, and may spoil it.

It speaks plain HTTP on loopback to the operator and HTTPS to the API server. What becomes of a write
is decided by a function; reads and watches pass.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from aiohttp import ClientError, ClientSession, ClientTimeout, TCPConnector, web

from lab.cluster.watch import run_and_cut
from lab.scripted.commands import Commands
from lab.scripted.listening import listening

REVIEWS = "/apis/authorization.k8s.io/"
"""Questions about rights, which are asked by a POST and stored nowhere."""
WRITES = frozenset({"POST", "PUT", "PATCH", "DELETE"})
DROPPED_HEADERS = frozenset({"host", "transfer-encoding", "content-length", "connection", "content-encoding"})


class Fate(Enum):
    """What becomes of a write."""

    PASS = "pass"
    KILL_BEFORE = "kill before it leaves"
    KILL_AFTER = "kill after it was committed, the answer withheld"
    WITHHOLD = "commit it and withhold the answer"
    TERMINATE = "commit it, and ask the process to end"
    FORBID = "answer 403"
    CONFLICT = "answer 409"
    INVALID = "answer 422"
    ERROR = "answer 500"


ANSWERS = {
    Fate.FORBID: (403, "Forbidden"),
    Fate.CONFLICT: (409, "Conflict"),
    Fate.INVALID: (422, "Invalid"),
    Fate.ERROR: (500, "InternalError"),
}
"""What is answered where a write is not sent on."""


@dataclass(frozen=True, slots=True)
class Write:
    """One write of the operator."""

    verb: str
    object: str
    """Kind and subresource: `deployments`, `kvremediations/status`."""
    step: str
    """The run's step state and last intent when it was sent."""

    def __str__(self) -> str:
        return f"{self.verb} {self.object} during {self.step}"


@dataclass(slots=True)
class Proxy:
    """The proxy, in a thread with its own event loop. `decide` is called for each write, in that thread."""

    upstream: str
    token: str
    decide: Callable[[Write], Fate]
    kill: Callable[[], None] = lambda: None
    end: Callable[[], None] = lambda: None
    """Asks the process to end."""
    committed: Callable[[Write], None] = lambda write: None
    """Called for each write that the API server has answered, before the operator learns it."""
    writes: list[Write] = field(default_factory=list)
    reads: list[str] = field(default_factory=list)
    """Paths of what was read, watches included."""
    url: str = ""
    broken: Callable[[], bool] = lambda: False
    """While true everything is answered with 500, reads included, and watches end."""
    mute: bool = False
    """Watches stay open and send nothing."""
    muted: int = 0
    """Chunks of watches that were dropped."""
    log: str | None = None
    """What every container wrote before it ended, since simulated pods have no log; None: the API server
    answers for itself."""
    commands: Commands | None = None
    """Runs commands in containers, since simulated pods run none; None: the API server does."""
    claims: list[tuple[float, str, int]] = field(default_factory=list)
    """When which claim on a Deployment was sent on, and the API server's answer."""
    _step: str = "no run"
    _loop: asyncio.AbstractEventLoop | None = None
    _thread: threading.Thread | None = None
    _ready: threading.Event = field(default_factory=threading.Event)
    _stop: asyncio.Event | None = None

    def __enter__(self) -> Proxy:
        self._thread = threading.Thread(target=lambda: run_and_cut(self._serve()), daemon=True)
        self._thread.start()
        assert self._ready.wait(10), "the proxy does not come up"
        return self

    def __exit__(self, *_: object) -> None:
        if self._loop is not None and self._stop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
        if self._thread is not None:
            self._thread.join(10)

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
        connector = TCPConnector(ssl=tls, limit=0)
        async with ClientSession(
            connector=connector, timeout=ClientTimeout(total=None), auto_decompress=False
        ) as up:

            async def handle(request: web.Request) -> web.StreamResponse:
                return await self._handle(request, up)

            app = web.Application(client_max_size=2**24)
            app.router.add_route("*", "/{path:.*}", handle)
            runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
            async with listening(runner) as port:
                self.url = f"http://127.0.0.1:{port}"
                self._ready.set()
                await self._stop.wait()

    async def _handle(self, request: web.Request, up: ClientSession) -> web.StreamResponse:
        body = await request.read()
        if self.broken():
            return _answer(Fate.ERROR)
        if request.method not in WRITES or "dryRun" in request.query or REVIEWS in request.path:
            self.reads.append(request.path)
            return await self._answer_read(request, body, up)
        write = self._seen(request, body)
        fate = self.decide(write)
        if fate is Fate.KILL_BEFORE:
            return self._killed(request)
        if fate in ANSWERS:
            return _answer(fate)
        if fate in (Fate.PASS, Fate.TERMINATE):
            response = await self._forward(request, body, up)
            self._report_write(write, body, response.status, fate)
            return response
        await self._commit(request, body, up)
        if fate is Fate.KILL_AFTER:
            return self._killed(request)
        if request.transport is not None:
            request.transport.close()
        return web.Response(status=500)

    async def _answer_read(self, request: web.Request, body: bytes, up: ClientSession) -> web.StreamResponse:
        if self.log is not None and request.path.endswith("/log"):
            return web.Response(text=await self._dated(request.path.removesuffix("/log"), self.log, up))
        if self.commands is not None and request.path.endswith("/exec"):
            return await self.commands.answer(request)
        return await self._forward(request, body, up)

    async def _dated(self, pod: str, log: str, up: ClientSession) -> str:
        """Return a log as the kubelet writes it with times: those of the end that the pod shows."""
        headers = {"Authorization": f"Bearer {self.token}"}
        async with up.get(self.upstream + pod, headers=headers) as answer:
            status = (await answer.json()).get("status", {}).get("containerStatuses", [{}])[0]
        ends = [status.get(place, {}).get("terminated") for place in ("state", "lastState")]
        at = next((end["finishedAt"] for end in ends if end), "2026-03-01T00:00:00Z")
        return "".join(f"{at} {line}\n" for line in log.splitlines())

    def _killed(self, request: web.Request) -> web.Response:
        self.kill()
        if request.transport is not None:
            request.transport.close()
        return web.Response(status=500)

    def _seen(self, request: web.Request, body: bytes) -> Write:
        parts = [part for part in request.path.split("/") if part]
        kinds = [p for p in parts if p in KINDS]
        kind = kinds[-1] if kinds else parts[-1]
        name = f"{kind}/status" if parts[-1] == "status" else kind
        if name == "kvremediations/status":
            self._step = _step_of(json.loads(body))
        write = Write(request.method, name, self._step)
        self.writes.append(write)
        return write

    def _report_write(self, write: Write, body: bytes, status: int, fate: Fate) -> None:
        """Report a write that the API server has answered."""
        self._note(write, body, status)
        self.committed(write)
        if fate is Fate.TERMINATE:
            self.end()

    def _note(self, write: Write, body: bytes, status: int) -> None:
        if write.object == "deployments" and write.verb == "PATCH":
            for operation in json.loads(body):
                if operation["op"] == "add" and operation["path"].endswith("kvmedic.io~1run"):
                    self.claims.append((time.monotonic(), operation["value"], status))

    async def _commit(self, request: web.Request, body: bytes, up: ClientSession) -> None:
        async with up.request(
            request.method, self.upstream + request.path_qs, **self._sent(request, body)
        ) as answer:
            await answer.read()

    async def _forward(self, request: web.Request, body: bytes, up: ClientSession) -> web.StreamResponse:
        try:
            async with up.request(
                request.method, self.upstream + request.path_qs, **self._sent(request, body)
            ) as answer:
                headers = {k: v for k, v in answer.headers.items() if k.lower() not in DROPPED_HEADERS}
                if "watch=true" not in request.query_string:
                    return web.Response(
                        status=answer.status, body=await answer.read(), headers=_coded(answer, headers)
                    )
                response = web.StreamResponse(status=answer.status, headers=_coded(answer, headers))
                await response.prepare(request)
                async for chunk in answer.content.iter_any():
                    if self.broken():
                        break
                    if self.mute:
                        self.muted += 1
                    else:
                        await response.write(chunk)
                return response
        except (ClientError, ConnectionError):
            return web.Response(status=502)

    def _sent(self, request: web.Request, body: bytes) -> dict[str, Any]:
        headers = {k: v for k, v in request.headers.items() if k.lower() not in DROPPED_HEADERS}
        headers["Authorization"] = f"Bearer {self.token}"
        headers.pop("Accept-Encoding", None)
        return {"data": body or None, "headers": headers}


KINDS = (
    "kvremediations",
    "deployments",
    "jobs",
    "pods",
    "events",
    "leases",
    "configmaps",
    "horizontalpodautoscalers",
    "scaledobjects",
)


def _coded(answer: Any, headers: dict[str, str]) -> dict[str, str]:
    coding = answer.headers.get("Content-Encoding")
    return {**headers, "Content-Encoding": coding} if coding else headers


def _step_of(body: dict[str, Any]) -> str:
    """Return where the run stands by the status that is being written."""
    run = (body.get("status") or {}).get("run")
    if not run:
        return "no run"
    intent = run.get("intent") or {}
    states = ",".join(step["state"] for step in run["steps"])
    draining = f"{len(run.get('drainingPods', []))} draining"
    return f"{states} #{intent.get('sequence', 0)} {intent.get('move', 'none')} {draining}"


def _answer(fate: Fate) -> web.Response:
    status, reason = ANSWERS[fate]
    body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": status}
    return web.json_response(body, status=status)
