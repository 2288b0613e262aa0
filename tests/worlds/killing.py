"""What kills the operator at its writes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection
from dataclasses import replace

from lab.scripted.proxy import Fate, Write

UNBOUNDED = frozenset({"leases"})
"""Objects that are written for as long as the process lives."""
CLAIM = re.compile(r" #\d+ ")
"""The number of a claim, in what the proxy says of a write's step."""


class Killer:
    """Decides for each write.

    Args:
        fates: what becomes of a kind of write at its first sight, at its second, and so on; then it passes.
        objects: at whose writes alone; none: at all.
        each_replica: also where only the number of the claim makes a write differ from an earlier replica's.
            The pure worlds (`tests/rollout`) are killed at all of them; here a kill takes a new process.
    """

    def __init__(self, *fates: Fate, objects: Collection[str] = (), each_replica: bool = False) -> None:
        self._objects = objects
        self._each_replica = each_replica
        self.kills: Counter[Write] = Counter()
        self._fates = fates or (Fate.KILL_AFTER,)

    def decide(self, write: Write) -> Fate:
        if write.object in UNBOUNDED or (self._objects and write.object not in self._objects):
            return Fate.PASS
        if not self._each_replica:
            write = replace(write, step=CLAIM.sub(" ", write.step))
        self.kills[write] += 1
        seen = self.kills[write]
        return self._fates[seen - 1] if seen <= len(self._fates) else Fate.PASS

    def words(self) -> set[str]:
        """Return the states, moves and draining pods at whose writes the process was killed."""
        return {word for write in self.kills for word in write.step.split()}

    def report(self) -> str:
        most = len(self._fates)
        lines = [f"  {min(count, most)} kills at {write}" for write, count in self.kills.items()]
        return f"{len(lines)} kinds of write:\n" + "\n".join(lines)
