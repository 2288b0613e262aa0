"""A small HTTP/1.1 server: just what the engine's API needs, at a few microseconds per streamed token.

One `asyncio.Protocol` per connection; requests on one connection are answered one after the other
(keep-alive); streams use chunked transfer encoding, one chunk per event.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus

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
        """Forget the connection and tell whoever streams to it."""
        self.transport = None
        self._connections.discard(self)
        if self.on_lost is not None:
            self.on_lost()
        self._tell_answered()

    def data_received(self, data: bytes) -> None:
        """Collect a request; answer it once it is complete and no other is under way."""
        self._buffer += data
        self._next_request()

    def respond(self, status: int, body: bytes, content_type: str = "application/json") -> None:
        head = self._head(status, f"content-length: {len(body)}\r\ncontent-type: {content_type}\r\n")
        self._write(head + body)
        self._done()

    def start_stream(self) -> None:
        """Begin a stream of server-sent events."""
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
        self._tell_answered()
        request, self._request = self._request, None
        if self.transport is None:
            return
        if request is None or not request.keeps_alive:
            self.transport.close()
        elif self._buffer:
            self._next_request()

    def _tell_answered(self) -> None:
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
    """Return (method, path without query, headers in lower case).

    Raises:
        ValueError: not an HTTP/1 request.
    """
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
