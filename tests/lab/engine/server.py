"""The API server: vLLM's endpoints over one live engine, and its ways to stop."""

import asyncio
import json
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from itertools import count

from lab.engine import openai
from lab.engine.arguments import VERSION
from lab.engine.config import EngineConfig
from lab.engine.live import LiveEngine
from lab.engine.logs import log
from lab.engine.metrics import EngineMetrics
from lab.engine.requests import Request

MAX_HEAD_BYTES = 64 * 1024
MAX_BODY_BYTES = 16 * 1024 * 1024
"""Limits of one request; beyond them the connection is answered 431 or 413 and closed."""


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """One request, complete with its body."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def keeps_alive(self) -> bool:
        """Whether the client wants to go on using the connection."""
        return self.headers.get("connection", "").lower() != "close"


class Connection(asyncio.Protocol):
    """One client connection.

    Args:
        answer: called with each request; it must call `respond` or `start_stream` … `end_stream`, now or
            later. It may set `on_lost`, called if the client goes before that, and `on_answered`, called with
            the status at the end.
        connections: the set of open connections, kept up to date.
    """

    def __init__(
        self, answer: Callable[["Connection", HttpRequest], None], connections: set["Connection"]
    ) -> None:
        self._answer = answer
        self._connections = connections
        self._buffer = b""
        self._request: HttpRequest | None = None
        self.transport: asyncio.Transport | None = None
        self.on_lost: Callable[[], None] | None = None
        self.on_answered: Callable[[int], None] | None = None
        self._status = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection and notify what streams to it."""
        self.transport = None
        self._connections.discard(self)
        if self.on_lost is not None:
            self.on_lost()
        self._report_answered()

    def data_received(self, data: bytes) -> None:
        """Collect a request; answer it once it is complete and no other is under way."""
        self._buffer += data
        self._next_request()

    def respond(self, status: int, body: bytes, content_type: str = "application/json") -> None:
        head = self._head(status, f"content-length: {len(body)}\r\ncontent-type: {content_type}\r\n")
        self._write(head + body)
        self._done()

    def start_stream(self) -> None:
        fields = "content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n"
        self._write(self._head(200, fields))

    def send(self, event: bytes) -> None:
        """Send one event of a stream, framing it as a chunk."""
        if self.transport is not None:
            self.transport.write(b"%x\r\n%b\r\n" % (len(event), event))

    def end_stream(self) -> None:
        self._write(b"0\r\n\r\n")
        self._done()

    def cut(self) -> None:
        """Close the connection without ending what is under way."""
        if self.transport is not None:
            self.transport.close()

    @property
    def is_busy(self) -> bool:
        return self._request is not None

    def _head(self, status: int, fields: str) -> bytes:
        self._status = status
        connection = "keep-alive" if self._request is None or self._request.keeps_alive else "close"
        reason = HTTPStatus(status).phrase
        return f"HTTP/1.1 {status} {reason}\r\nconnection: {connection}\r\n{fields}\r\n".encode()

    def _write(self, data: bytes) -> None:
        if self.transport is not None:
            self.transport.write(data)

    def _done(self) -> None:
        self.on_lost = None
        self._report_answered()
        request, self._request = self._request, None
        if self.transport is None:
            return
        if request is None or not request.keeps_alive:
            self.transport.close()
        elif self._buffer:
            self._next_request()

    def _report_answered(self) -> None:
        """Report the status of the request that has just ended, however it ended."""
        if self.on_answered is not None and self._request is not None:
            self.on_answered(self._status)
        self.on_answered = None

    def _next_request(self) -> None:
        if self._request is not None:
            return
        head, separator, rest = self._buffer.partition(b"\r\n\r\n")
        if not separator:
            if len(self._buffer) > MAX_HEAD_BYTES:
                self.respond(431, b"")
            return
        try:
            method, path, headers = parse_head(head)
            length = int(headers.get("content-length", "0"))
        except ValueError:
            self.respond(400, b"")
            return
        if length > MAX_BODY_BYTES:
            self.respond(413, b"")
        elif len(rest) >= length:
            self._buffer = rest[length:]
            self._request = HttpRequest(method, path, headers, rest[:length])
            self._answer(self, self._request)


def parse_head(head: bytes) -> tuple[str, str, dict[str, str]]:
    """Return (method, path without query, headers in lower case)."""
    request_line, *fields = head.decode("latin-1").split("\r\n")
    method, target, version = request_line.split(" ")
    if not version.startswith("HTTP/1."):
        raise ValueError(f"not HTTP/1: {request_line!r}")
    headers = {}
    for line in fields:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    if version == "HTTP/1.0":
        headers.setdefault("connection", "close")
    return method, target.partition("?")[0], headers


TEARDOWN_SECONDS = 1.2
"""Between the abort and the exit: a real process was gone 1.5-2.1 s after SIGTERM (measured on 0.32.0)."""

SLOWDOWN = "/lab/slowdown"
"""Path that vLLM has not: POST a number, and each step takes so many times as long on this replica."""
DEVICE = "/lab/device"
"""Bytes of the device's memory in use and in all, as a DCGM exporter would report them."""
QUIET = {"/health", "/metrics", "/ping", "/version", "/load", SLOWDOWN, DEVICE}
"""Handlers that vLLM's HTTP instrumentation leaves out."""


class Answer:
    """Writes one request's tokens to its connection, as a stream or at the end."""

    def __init__(self, connection: Connection, writer: openai.Writer, *, cut_when_dead: bool) -> None:
        self.request: Request | None = None
        self._connection = connection
        self._writer = writer
        self._streams = writer.generation.streams
        self._tokens: list[int] = []
        self._cut_when_dead = cut_when_dead

    def start(self) -> None:
        if self._streams:
            self._connection.start_stream()
            self._send(self._writer.first_event())

    def on_token(self, token: int, finish_reason: str | None) -> None:
        self._tokens.append(token)
        if self._streams:
            self._connection.send(self._writer.token_event(token, finish_reason))
        if finish_reason is not None:
            self._finish(finish_reason)

    def refuse(self) -> None:
        """Answer with 0 tokens and finish reason `abort`, as a draining vLLM does."""
        if self._streams:
            self._send(self._writer.abort_event())
        self._finish("abort")

    def on_dead(self) -> None:
        """End with an error event or a cut body: clients of a real vLLM saw both."""
        error = openai.error_body(openai.ENGINE_DEAD, "InternalServerError", 500)
        if not self._streams:
            self._connection.respond(500, error)
        elif self._cut_when_dead:
            self._connection.cut()
        else:
            self._send(b"data: " + error + b"\n\n")
            self._send(openai.DONE)
            self._connection.end_stream()

    def _finish(self, finish_reason: str) -> None:
        if not self._streams:
            self._connection.respond(200, self._writer.body(self._tokens, finish_reason))
            return
        self._send(self._writer.usage_event(len(self._tokens)))
        self._send(openai.DONE)
        self._connection.end_stream()

    def _send(self, event: bytes) -> None:
        if event:
            self._connection.send(event)


class ApiServer:
    """All connections of one engine process."""

    def __init__(self, config: EngineConfig, engine: LiveEngine, metrics: EngineMetrics) -> None:
        self.config = config
        self.engine = engine
        self.metrics = metrics
        self.is_draining = False
        self.connections: set[Connection] = set()
        self._numbers = count(1)
        self._server: asyncio.Server | None = None
        self._routes = {
            ("GET", "/health"): lambda connection: connection.respond(200, b""),
            ("GET", "/ping"): lambda connection: connection.respond(200, b""),
            ("GET", "/version"): lambda connection: connection.respond(
                200, b'{"version":"%b"}' % VERSION.encode()
            ),
            ("GET", "/load"): lambda connection: connection.respond(200, b'{"server_load":0}'),
            ("GET", "/metrics"): self._metrics,
            ("GET", "/v1/models"): self._models,
            ("GET", DEVICE): self._device,
        }

    async def listen(self) -> int:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: Connection(self.answer, self.connections),
            self.config.host,
            self.config.port,
            backlog=2048,
        )
        return int(self._server.sockets[0].getsockname()[1])

    def answer(self, connection: Connection, request: HttpRequest) -> None:
        if request.path not in QUIET:
            connection.on_answered = partial(self._count, request, time.monotonic())
        if not self._admits(request):
            connection.respond(401, b'{"error":"Unauthorized"}')
        elif (request.method, request.path) in self._routes:
            self._routes[request.method, request.path](connection)
        elif (request.method, request.path) == ("POST", SLOWDOWN):
            self._slow_down(connection, request)
        elif request.method == "POST" and request.path in ("/v1/completions", "/v1/chat/completions"):
            self._generate(connection, request)
        else:
            connection.respond(404, b'{"detail":"Not Found"}')

    def _admits(self, request: HttpRequest) -> bool:
        """Return whether a request shows a key where one is needed (`entrypoints/openai/server_utils.py`)."""
        keys = self.config.api_keys
        if not keys or not request.path.startswith("/v1"):
            return True
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and key in keys

    def _slow_down(self, connection: Connection, request: HttpRequest) -> None:
        try:
            self.engine.slow_down(float(request.body))
        except ValueError:
            connection.respond(400, b'{"detail":"send a number, such as 3"}')
        else:
            connection.respond(200, b"")

    def _count(self, request: HttpRequest, started: float, status: int) -> None:
        seconds = time.monotonic() - started
        self.metrics.record_http(request.method, request.path, status, seconds, len(request.body))

    def _generate(self, connection: Connection, request: HttpRequest) -> None:
        is_chat = request.path.endswith("/chat/completions")
        length = self.config.limits.max_model_len
        try:
            generation = openai.parse_generation(
                request.body, self.config.served_name, length, is_chat=is_chat
            )
        except openai.BadRequestError as error:
            connection.respond(400, openai.error_body(str(error), "BadRequestError", 400))
        except openai.UnknownModelError as error:
            connection.respond(404, openai.error_body(str(error), "NotFoundError", 404))
        else:
            self._admit(connection, generation)

    def _admit(self, connection: Connection, generation: openai.Generation) -> None:
        if self._overflows():
            error = openai.error_body("The request queue is full.", "ServiceUnavailableError", 503)
            connection.respond(503, error)
        else:
            self._begin(connection, generation)

    def _begin(self, connection: Connection, generation: openai.Generation) -> None:
        number = next(self._numbers)
        prefix = "chatcmpl" if generation.is_chat else "cmpl"
        writer = openai.Writer(generation, f"{prefix}-{number:032x}")
        answer = Answer(connection, writer, cut_when_dead=number % 2 == 1)
        answer.start()
        if self.is_draining:
            self.metrics.record_abort()
            answer.refuse()
            return
        request = self.engine.submit(generation.tokens, generation.max_tokens, answer)
        connection.on_lost = partial(self.engine.abort, request)

    def _overflows(self) -> bool:
        """Return whether a queue limit refuses one more request, and count the refusal."""
        reqs, tokens = self.config.max_num_queued_reqs, self.config.max_num_queued_tokens
        if reqs is not None and self.engine.unfinished + 1 > reqs:
            self.metrics.record_rejection("max_num_queued_reqs")
            return True
        if tokens is not None and self.engine.queued_tokens >= tokens:
            self.metrics.record_rejection("max_num_queued_tokens")
            return True
        return False

    def _metrics(self, connection: Connection) -> None:
        text = self.metrics.text() if self.config.log_stats else ""
        connection.respond(200, text.encode(), "text/plain; version=0.0.4; charset=utf-8")

    def _device(self, connection: Connection) -> None:
        memory = self.engine.memory
        connection.respond(200, json.dumps({"used": memory.used, "total": memory.total}).encode())

    def _models(self, connection: Connection) -> None:
        limits = self.config.limits
        body = openai.model_list(self.config.served_name, self.config.model, limits.max_model_len)
        connection.respond(200, body)

    async def shut_down(self) -> None:
        """Stop as vLLM does on SIGTERM: abort at once, or drain for `--shutdown-timeout` seconds."""
        timeout = self.config.shutdown_timeout
        log("APIServer", "launcher.py:254", "[shutdown] API server: shutdown triggered")
        mode = "drain" if timeout else "abort"
        log("EngineCore", "core.py:1635", f"[shutdown] EngineCore: start mode={mode} timeout={timeout}s")
        if timeout:
            await self._drain(timeout)
        self.close()
        log("APIServer", "launcher.py:282", "[shutdown] API server: signalling HTTP server shutdown")
        await asyncio.sleep(TEARDOWN_SECONDS)

    async def _drain(self, seconds: float) -> None:
        """Let what is under way finish; new requests are refused, `/health` and `/metrics` go on."""
        self.is_draining = True
        requests = self.engine.unfinished
        if requests:
            text = f"[shutdown] EngineCore: draining in-flight requests count={requests} timeout={seconds}s"
            log("EngineCore", "core.py:1660", text)
        with suppress(TimeoutError):
            await asyncio.wait_for(self.engine.idle.wait(), seconds)

    def close(self) -> None:
        """Stop to listen, end all requests, close idle connections."""
        if self._server is not None:
            self._server.close()
        self.engine.stop()
        for connection in list(self.connections):
            if not connection.is_busy:
                connection.cut()
