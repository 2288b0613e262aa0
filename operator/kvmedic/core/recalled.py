"""A fleet before its KV cache was compressed, as a source of metrics recalls it.

The past is asked for once for each revision that turned a method on; the status keeps the answer, so that it
outlives the source's samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from kvmedic.core.figures import Figures
from kvmedic.core.revisions import Revision


@dataclass(frozen=True, slots=True)
class Alone:
    """What is sought of the past: when a ReplicaSet was last alone in its fleet."""

    replica_set: str
    others: tuple[str, ...]
    """Names of the fleet's other ReplicaSets: none of them had a replica."""
    window: timedelta
    """It was so for this long."""
    within: timedelta
    """How far back is looked."""


@dataclass(frozen=True, slots=True)
class Recalled:
    """A fleet before a revision turned a method on, or that the source knows nothing of it."""

    method: str
    revision: int
    """Number under which the method was turned on."""
    template: str
    """Hash of the pod template that turned it on."""
    previous: int
    """Number of the revision before."""
    source: str
    """Name of the metrics source."""
    asked_at: datetime
    figures: Figures
    """Of the revision before; all None: nothing is known."""
    seen_at: datetime | None = None
    """When the revision before was last alone, and the end of the look at it. None: not known."""
    replicas: int = 0
    """Of that look."""
    trouble: str = ""
    """Why nothing is known; empty where something is."""
    again_at: datetime | None = None
    """When the source is asked anew. None: never, the past does not come back."""

    def line(self) -> str:
        """Return whose figures these are, for a person."""
        if self.seen_at is None:
            return ""
        until = f"{self.seen_at:%Y-%m-%dT%H:%M:%SZ}"
        return f"revision {self.previous}, {self.replicas} replicas, before {until}"

    def holds(self, method: str, run: Sequence[Revision], source: str, at: datetime) -> bool:
        """Return whether this still answers for a method, so that nobody has to be asked.

        Args:
            method: that is on.
            run: the revisions up to the present one in which it is, one after the other.
            source: that would be asked. Another one may know what this one did not.
            at: the time.
        """
        mine = any((each.number, each.template) == (self.revision, self.template) for each in run)
        if self.method != method or not mine:
            return False
        if not self.trouble:
            return True
        return self.source == source and (self.again_at is None or at < self.again_at)
