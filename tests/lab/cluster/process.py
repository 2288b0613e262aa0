"""One server process of the lab: start, wait until it serves, end; its log lies beside its data.

This file is also a program, the reaper: it ends the servers when the process that started them is gone,
however it died. Linux's parent-death signal is tied to the *thread* that forked, so a server that a worker
thread restarted would die with that thread. The reaper holds the reading end of a pipe instead: when the
owner dies the kernel closes the writing end, and every process group still on the list is killed.
"""

import atexit
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO


class Reaper:
    """The owner's end of the pipe; started with the first group, one per owning process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pipe: IO[bytes] | None = None
        self._owner = 0
        self._process: subprocess.Popen[bytes] | None = None

    def watch(self, group: int) -> None:
        """Kill the process group when this process dies."""
        self._send(f"+{group}\n")

    def forget(self, group: int) -> None:
        """The group was ended in an orderly way; its number may be used again by others."""
        self._send(f"-{group}\n")

    def _send(self, line: str) -> None:
        with self._lock:
            if self._pipe is None or self._owner != os.getpid():
                self._start()
            assert self._pipe is not None
            self._pipe.write(line.encode())
            self._pipe.flush()

    def _start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-SP", __file__], stdin=subprocess.PIPE, start_new_session=True, cwd="/"
        )
        self._pipe = self._process.stdin
        self._owner = os.getpid()
        atexit.register(self._close)

    def _close(self) -> None:
        if self._pipe and self._process and self._owner == os.getpid():
            self._pipe.close()
            self._process.wait()


def reap() -> None:
    """Read group numbers until the owner closes the pipe, then kill what is left."""
    groups: set[int] = set()
    for line in sys.stdin:
        group = int(line[1:])
        (groups.add if line[0] == "+" else groups.discard)(group)
    for group in groups:
        with suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)


REAPER = Reaper()


POLL_SECONDS = 0.02
# As klog, zap and Go's runtime begin a line that says why a server gave up.
_ERROR = re.compile(r'^[EF]\d{4} |^Error|^panic:|"level":"(error|fatal|panic)"|level=(error|fatal)')
_DETACHED: list[subprocess.Popen[bytes]] = []


@atexit.register
def _let_go() -> None:
    """Keep Popen's destructor from warning about processes that are meant to outlive this one."""
    for process in _DETACHED:
        process.returncode = 0


def let_go(process: subprocess.Popen[bytes]) -> None:
    """Have a process outlive this one without a warning of the interpreter's when it ends."""
    _DETACHED.append(process)


class ComponentDiedError(RuntimeError):
    """A server ended before it was ready, or did not get ready in time; carries the tail of its log."""


@dataclass
class Component:
    """A server with its own process group.

    With `outlives_owner` unset the reaper ends the group when this Python process dies; the native cluster
    sets it, because `lab-up` returns and the cluster stays.
    """

    name: str
    argv: list[str]
    directory: Path
    env: Mapping[str, str] = field(default_factory=dict)
    outlives_owner: bool = False
    process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        """Standard output and error of all its runs."""
        return self.directory / f"{self.name}.log"

    @property
    def pid(self) -> int:
        """Process id, which is also its group; raises when it was never started."""
        if self.process is None:
            raise RuntimeError(f"{self.name} was not started")
        return self.process.pid

    def start(self) -> None:
        """Start the process; harmless when it is running."""
        if self.is_alive():
            return
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.directory,
                env={**os.environ, **self.env},
                start_new_session=True,
            )
        if self.outlives_owner:
            let_go(self.process)
        else:
            REAPER.watch(self.pid)

    def is_alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def stop(self, sig: signal.Signals = signal.SIGKILL, timeout_seconds: float = 30) -> None:
        """Signal the whole group and wait until it is gone; kills it after `timeout_seconds`."""
        if self.process is None:
            return
        self._signal(sig)
        try:
            self.process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGKILL)
            self.process.wait()
        if not self.outlives_owner:
            REAPER.forget(self.pid)
        self.process = None

    def _signal(self, sig: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, sig)

    def await_ready(self, ready: Callable[[], bool], timeout_seconds: float = 60) -> None:
        """Poll `ready` until it is true."""
        deadline = time.monotonic() + timeout_seconds
        while not ready():
            if not self.is_alive():
                raise ComponentDiedError(f"{self.name} ended while starting:\n{self.log_tail()}")
            if time.monotonic() > deadline:
                raise ComponentDiedError(
                    f"{self.name} is not ready after {timeout_seconds:g} s:\n{self.log_tail()}"
                )
            time.sleep(POLL_SECONDS)

    def log_tail(self, count: int = 8) -> str:
        """The last errors in the log and its last lines, for error messages."""
        if not self.log.exists():
            return "(no log)"
        lines = self.log.read_text(errors="replace").splitlines()
        errors = [line for line in lines[:-count] if _ERROR.search(line)]
        return "\n".join([*errors[-count:], *lines[-count:]])


if __name__ == "__main__":
    reap()
