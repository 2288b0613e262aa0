"""What kills the operator at its writes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from lab.scripted.proxy import Fate, Write

UNBOUNDED = frozenset({"leases"})
"""Objects that are written for as long as the process lives."""


class Killer:
    """Decides for each write.

    Args:
        fates: what becomes of a kind of write at its first sight, at its second, and so on; then it passes.
        objects: at whose writes alone; none: at all.
    """

    def __init__(self, *fates: Fate, objects: Collection[str] = ()) -> None:
        self._objects = objects
        self.kills: Counter[Write] = Counter()
        self._fates = fates or (Fate.KILL_AFTER,)

    def decide(self, write: Write) -> Fate:
        if write.object in UNBOUNDED or (self._objects and write.object not in self._objects):
            return Fate.PASS
        self.kills[write] += 1
        seen = self.kills[write]
        return self._fates[seen - 1] if seen <= len(self._fates) else Fate.PASS

    def words(self) -> set[str]:
        """Return the states, moves and victims at whose writes the process was killed."""
        return {word for write in self.kills for word in write.step.split()}

    def report(self) -> str:
        most = len(self._fates)
        lines = [f"  {min(count, most)} kills at {write}" for write, count in self.kills.items()]
        return f"{len(lines)} kinds of write:\n" + "\n".join(lines)
