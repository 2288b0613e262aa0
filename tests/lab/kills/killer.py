"""Who kills the operator's process: at a write that was drawn, or at a moment that was drawn."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from lab.scripted.proxy import Fate, Write

UNBOUNDED = frozenset({"leases"})
"""Objects that are written for as long as the process lives."""
AT_A_MOMENT = 0.4
"""Share of the kills that no write is asked about."""
SPREAD = 1.3
"""How far one kill may be from the one before, in even shares of a run: a run that ends before its last kill
was drawn too wide, and one that has all of them in its first half too narrow."""


@dataclass(slots=True)
class RandomKiller:
    """Kills so many times; what it draws is spread over a run as it goes undisturbed."""

    random: Random
    kills: int
    writes: int
    """Of an undisturbed run."""
    seconds: float
    """That an undisturbed run takes."""
    kill: Callable[[], bool] = lambda: False
    """Kills the process and says whether there was one."""
    at_writes: list[str] = field(default_factory=list)
    at_moments: int = 0
    _left: int = -1
    """Writes that pass before the next one is killed; below 0: a moment was drawn instead."""
    _timer: threading.Timer | None = None

    def begin(self) -> None:
        """Draw the first kill, and the next one after each."""
        if self._timer is not None:
            self._timer.cancel()
        self._left = -1
        if self.count() >= self.kills:
            return
        if self.random.random() < AT_A_MOMENT:
            self._timer = threading.Timer(
                self.random.uniform(0.0, SPREAD * self.seconds / self.kills), self._at_a_moment
            )
            self._timer.daemon = True
            self._timer.start()
        else:
            self._left = self.random.randrange(max(1, round(SPREAD * self.writes / self.kills)))

    def end(self) -> None:
        """Kill nobody any more."""
        self.kills = 0
        self.begin()

    def count(self) -> int:
        """Return the kills until now."""
        return len(self.at_writes) + self.at_moments

    def decide(self, write: Write) -> Fate:
        """Say what becomes of a write."""
        if write.object in UNBOUNDED or self._left < 0:
            return Fate.PASS
        self._left -= 1
        if self._left >= 0:
            return Fate.PASS
        fate = self.random.choice((Fate.KILL_BEFORE, Fate.KILL_AFTER))
        self.at_writes.append(f"{fate.value}: {write}")
        self.begin()
        return fate

    def _at_a_moment(self) -> None:
        self.at_moments += self.kill()
        self.begin()
