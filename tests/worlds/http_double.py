"""Small HTTP servers on loopback that keep state: a scripted exporter, and a proxy that may misbehave."""

from __future__ import annotations

import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self


@dataclass
class Request:
    """What was asked."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        """What was asked, in the path or as a form."""
        return f"{self.path} {self.body.decode(errors='replace')}"


@dataclass
class Reply:
    """What is answered."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


class HangUpError(Exception):
    """Close the connection without an answer."""


class Server:
    """Answers with a function; use it in a `with` statement."""

    def __init__(
        self, answer: Callable[[Request], Reply], port: int = 0, context: ssl.SSLContext | None = None
    ) -> None:
        self.requests: list[Request] = []
        self.connections = 0
        self.released = threading.Event()
        """Set when the server ends, so that an answer that waits for it does not outlive the test."""
        self._answer = answer
        self._http = ThreadingHTTPServer(("127.0.0.1", port), self._handler())
        self._http.daemon_threads = True
        self._scheme = "http"
        if context is not None:
            self._scheme = "https"
            self._http.socket = context.wrap_socket(
                self._http.socket, server_side=True, do_handshake_on_connect=False
            )
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True)

    @property
    def port(self) -> int:
        return self._http.server_address[1]

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"{self._scheme}://{self.address}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.released.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def _answer_to(self, request: Request) -> Reply:
        if self.released.is_set():
            raise HangUpError
        self.requests.append(request)
        return self._answer(request)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                server.connections += 1
                super().setup()

            def do_GET(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                request = Request(self.command, self.path, dict(self.headers), self.rfile.read(length))
                try:
                    reply = server._answer_to(request)
                except HangUpError:
                    self.close_connection = True
                    return
                if "Date" in reply.headers:
                    self.send_response_only(reply.status)
                else:
                    self.send_response(reply.status)
                chunked = "Transfer-Encoding" in reply.headers
                length_of_body = {} if chunked else {"Content-Length": str(len(reply.body))}
                for name, value in {**length_of_body, **reply.headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(reply.body)

            do_POST = do_PATCH = do_DELETE = do_GET  # noqa: N815 - http.server's names

            def log_message(self, *_: object) -> None:
                pass

        return Handler


def forwarded(request: Request, upstream: str) -> Reply:
    """What a real server answers to the same request."""
    sent = urllib.request.Request(upstream + request.path, data=request.body, method=request.method)
    try:
        with urllib.request.urlopen(sent, timeout=20) as answer:
            return Reply(answer.status, answer.read(), {"Content-Type": "application/json"})
    except urllib.error.HTTPError as error:
        return Reply(error.code, error.read(), {"Content-Type": "application/json"})
