"""Progress on standard error: what the lab is doing now, and how long each step took."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

QUIET_SECONDS = 5.0


def say(text: str) -> None:
    """Print one line for the person who waits."""
    print(f"[lab] {text}", file=sys.stderr, flush=True)


@contextmanager
def step(text: str) -> Iterator[None]:
    """Announce `text` at once if it takes longer than five seconds, and its duration when it is over."""
    started = time.monotonic()
    slow = threading.Timer(QUIET_SECONDS, say, (f"{text} ...",))
    slow.daemon = True
    slow.start()
    try:
        yield
    except BaseException:
        say(f"{text}: failed after {time.monotonic() - started:.1f} s")
        raise
    finally:
        slow.cancel()
    say(f"{text}: {time.monotonic() - started:.1f} s")


@dataclass
class Stopwatch:
    """Seconds since it was made."""

    started: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        """Elapsed wall-clock seconds."""
        return time.monotonic() - self.started
