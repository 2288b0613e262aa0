"""Somebody who is notified: a server that keeps what it is sent."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Inbox:
    """Takes every POST of JSON on a free port; a context manager."""

    def __init__(self, host: str) -> None:
        self.received: list[dict[str, Any]] = []
        """Bodies in the order in which they came."""
        self._server = ThreadingHTTPServer((host, 0), self._handler())
        self.host, self.port = host, self._server.server_port

    def __enter__(self) -> Inbox:
        self._thread = threading.Thread(target=self._server.serve_forever, name="inbox", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        """Where it gets notifications; a secret, as the URL of a real webhook is."""
        return f"http://{self.host}:{self.port}/hook-of-the-team"

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        received = self.received

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Nothing: what was received is kept."""

        return Handler
