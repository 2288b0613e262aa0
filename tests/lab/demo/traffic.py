"""The clients: the lab's load generator in a process of its own, and what it has written so far."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from lab.cluster.paths import ROOT
from lab.loadgen.record import Record

from .scenario import MODEL, Load

LONGEST_SECONDS = 1500.0
"""Ends the load whatever becomes of the demo; longer than all its limits together."""
GRACE_SECONDS = 90.0
"""For what is under way at the end: a few times the longest answer."""
REQUEST_SECONDS = 180.0


class Traffic:
    """A closed loop of clients; each request is one line of a file as soon as it has ended."""

    def __init__(self, url: str, load: Load, directory: Path) -> None:
        self._file = directory / "requests.jsonl"
        self._file.write_text("", encoding="utf-8")
        self._log = directory / "clients.log"
        self._argv = _argv(url, load, self._file)
        self._read = 0
        self._records: list[Record] = []
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Begin to send."""
        env = {**os.environ, "PYTHONPATH": str(ROOT / "tests")}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(self._argv, stdout=log, stderr=log, env=env, cwd=ROOT)

    def end(self) -> None:
        """Send nothing more, wait for what is under way, end the process."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(GRACE_SECONDS + 10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def kill(self) -> None:
        """End the process now; what is under way is cancelled."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def require_alive(self) -> None:
        """Raise RuntimeError when the clients ended by themselves."""
        if self._process is not None and self._process.poll() is not None:
            tail = self._log.read_text(encoding="utf-8")[-600:]
            raise RuntimeError(f"the load generator ended with exit code {self._process.returncode}: {tail}")

    def records(self) -> list[Record]:
        """Return every request that has ended so far."""
        with self._file.open("rb") as file:
            file.seek(self._read)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._read += len(line)
                self._records.append(Record.from_line(line.decode()))
        return self._records


def _argv(url: str, load: Load, file: Path) -> list[str]:
    options = {
        "--url": url,
        "--model": MODEL,
        "--lengths": load.lengths,
        "--clients": load.clients,
        "--seed": load.seed,
        "--seconds": LONGEST_SECONDS,
        "--grace": GRACE_SECONDS,
        "--timeout": REQUEST_SECONDS,
        "--out": file,
    }
    given = [str(part) for pair in options.items() for part in pair]
    return [sys.executable, "-m", "lab.loadgen", *given]
