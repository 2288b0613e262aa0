"""Progress on standard error: what the lab is doing now, and how long each step took."""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

QUIET_SECONDS = 5.0
STILL_SECONDS = 30.0
"""Between two lines of a step that takes long, such as a build of nine minutes."""


def say(text: str) -> None:
    """Print one line for the person who waits."""
    print(f"[lab] {text}", file=sys.stderr, flush=True)


@contextmanager
def step(text: str) -> Iterator[None]:
    """Announce `text` if it takes longer than five seconds, that it still goes on, and its duration."""
    started, over = time.monotonic(), threading.Event()
    threading.Thread(target=_accompany, args=(text, over), daemon=True).start()
    try:
        yield
    except BaseException:
        say(f"{text}: failed after {time.monotonic() - started:.1f} s")
        raise
    finally:
        over.set()
    say(f"{text}: {time.monotonic() - started:.1f} s")


def _accompany(text: str, over: threading.Event) -> None:
    started = time.monotonic()
    if over.wait(QUIET_SECONDS):
        return
    say(f"{text} ...")
    while not over.wait(STILL_SECONDS):
        say(f"{text}: {time.monotonic() - started:.0f} s so far")


@dataclass
class Stopwatch:
    """Seconds since it was made."""

    started: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started
