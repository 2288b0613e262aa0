"""Two clocks that nobody sets: how long this process has seen something, and the API server's time.

What a run waits for is counted by the monotonic clock of the process that watches, from the moment at which
it first saw what it waits for; a successor counts anew. Moments that are stored are the API server's, so that
all processes agree on them, whatever their machines' clocks show. A step or skew of a clock costs delay then.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

TOLERANCE = timedelta(seconds=2)
"""How far the header may be from what is expected: it is in whole seconds, and an answer takes a while."""


def loop_seconds() -> float:
    """Return the time of the running event loop, in seconds: it never goes back and is never set."""
    return asyncio.get_running_loop().time()


class Stopwatch:
    """How long this process has seen each of the things that its runs wait for.

    Nothing here has to survive: a process that starts anew waits longer, and does nothing earlier.
    """

    def __init__(self, seconds: Callable[[], float] = time.monotonic) -> None:
        """Start with nothing seen.

        Args:
            seconds: a clock that never goes back and is never set.
        """
        self._seconds = seconds
        self._began: dict[str, tuple[str, dict[Hashable, float]]] = {}

    def measure_wait(self, resource: str, run: str, *what: Hashable) -> timedelta:
        """Return how long something about a run has been seen; zero at the first time.

        Args:
            resource: uid of the run's resource; what was seen of its earlier runs is forgotten.
            what: distinguishes it from everything else about the run, an earlier time of the same included.
        """
        known, began = self._began.get(resource, ("", {}))
        if known != run:
            began = {}
            self._began[resource] = run, began
        now = self._seconds()
        return timedelta(seconds=now - began.setdefault(what, now))

    def forget(self, resource: str) -> None:
        """Forget what was seen of a resource's run."""
        self._began.pop(resource, None)

    def forget_all(self) -> None:
        """Forget everything: another process may act meanwhile."""
        self._began.clear()


class ServerClock:
    """The API server's time, by the `Date` of its answers and by this process's monotonic clock since."""

    def __init__(self, seconds: Callable[[], float] = time.monotonic) -> None:
        """Know nothing yet; until the first answer the machine's own clock has to do."""
        self._seconds = seconds
        self._base: tuple[datetime, float] | None = None

    def note_date(self, date: str | None) -> None:
        """Take note of an answer's `Date`; one that cannot be read is left out."""
        try:
            reported = parsedate_to_datetime(date or "")
        except ValueError:
            return
        reported = reported if reported.tzinfo else reported.replace(tzinfo=UTC)
        if self._base is None or abs(self.now() - reported) > TOLERANCE:
            self._base = reported.astimezone(UTC), self._seconds()

    def now(self) -> datetime:
        """Return the API server's time as far as it is known."""
        if self._base is None:
            return datetime.now(UTC)
        at, seconds = self._base
        return at + timedelta(seconds=self._seconds() - seconds)
