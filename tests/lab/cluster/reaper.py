"""A tiny process that ends the lab's servers when the process that started them is gone, however it died.

Linux's parent-death signal is tied to the *thread* that forked, so a server that a worker thread restarted
would die with that thread. The reaper holds the reading end of a pipe instead: when the owner dies the kernel
closes the writing end, and every process group still on the list is killed.
"""

import atexit
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
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
            [sys.executable, "-S", __file__], stdin=subprocess.PIPE, start_new_session=True, cwd="/"
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

if __name__ == "__main__":
    reap()
