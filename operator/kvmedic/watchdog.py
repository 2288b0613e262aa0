"""The answer to the kubelet whether this process is to be restarted, from a thread beside the event loop.

The loop beats once a second, between all that it does. While it is merely busy its beats come late, and the
thread still answers that it lives: a restart would only cost what it was about to end. A loop that does not
beat for `HUNG_SECONDS` never comes back by itself, whatever it hangs in, and one that beats but looks at
nothing has lost its work. Both are reported as they are, so that the kubelet restarts the container.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

HUNG_SECONDS = 60.0
"""A loop that has not beaten for so long hangs. All that runs on it is bounded: the most costly pod template
takes about a second of CPU, and a container that is throttled to a tenth of a core ten times as long."""
BEAT_SECONDS = 1.0
LAG_SECONDS = 60.0
"""Over which the worst lag is reported: longer than what commonly lies between two scrapes."""
READINESS = "/readyz"
PATIENCE_SECONDS = 5
"""How long is waited for a question that somebody began to send."""


@dataclass(slots=True)
class Watchdog:
    """What the loop reported last of itself."""

    problem: Callable[[], str]
    """Returns why the loop, though it beats, has to be started anew; empty where it has not."""
    clock: Callable[[], float] = time.monotonic
    refusal: Callable[[], str] = str
    """Returns why this process, though it works, does not act; empty where it may."""
    _beaten_at: float = field(default=0.0, init=False)
    _lags: deque[float] = field(
        default_factory=lambda: deque([0.0], maxlen=int(LAG_SECONDS / BEAT_SECONDS)), init=False
    )

    def __post_init__(self) -> None:
        """Count from now on."""
        self._beaten_at = self.clock()

    async def beat(self) -> None:
        """Beat until cancelled."""
        while True:
            self._beaten_at = self.clock()
            await asyncio.sleep(BEAT_SECONDS)
            self._lags.append(self._measure_lateness())

    def _measure_lateness(self) -> float:
        """Return for how many seconds a beat is due."""
        return max(0.0, self.clock() - self._beaten_at - BEAT_SECONDS)

    def lag_seconds(self) -> float:
        """Return by how much the loop came late at worst to what was due in the last minute or is due now."""
        return max(*self._lags, self._measure_lateness())

    def diagnose(self) -> str:
        """Return why this process is to be restarted; empty where it is not. Any thread may ask."""
        silent = self.clock() - self._beaten_at
        if silent > HUNG_SECONDS:
            return f"the event loop hangs: no beat for {silent:.0f} s, at most {HUNG_SECONDS:g} s"
        return self.problem()

    def explain_unready(self) -> str:
        """Return why this process is not Ready; empty where it is. One that waits for its turn to lead is."""
        return self.diagnose() or self.refusal()

    def answer_at(self, url: str) -> ThreadingHTTPServer:
        """Answer at an address, such as `http://0.0.0.0:8080/healthz`, until the server is shut down.

        Beside it, at `/readyz`, it answers whether the process may act.

        Raises:
            OSError: the port is taken.
        """
        parts = urlsplit(url)
        answers = {parts.path or "/": self.diagnose, READINESS: self.explain_unready}

        class Answer(BaseHTTPRequestHandler):
            """One question of the kubelet."""

            timeout = PATIENCE_SECONDS

            def do_GET(self) -> None:
                """Answer 200 while the process works, 503 where it is to be restarted, or is not Ready."""
                answer = answers.get(self.path.partition("?")[0])
                problem = answer() if answer else f"ask at {' or '.join(answers)}"
                status = HTTPStatus.SERVICE_UNAVAILABLE if problem else HTTPStatus.OK
                status = status if answer else HTTPStatus.NOT_FOUND
                body = (problem or "working").encode()
                self.send_response(status)
                self.send_header("Content-Type", "text/plain; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Log nothing: the kubelet asks every ten seconds."""

        server = ThreadingHTTPServer((parts.hostname or "0.0.0.0", parts.port or 80), Answer)  # noqa: S104 - the kubelet asks from the node
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, name="watchdog", daemon=True).start()
        return server
