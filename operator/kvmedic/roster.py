"""Which resources there are, as the watch tells: a hint, never the lock.

Two resources on one target would take turns on it. The claim on the target keeps them from acting at
once; this keeps the younger one from acting at all, and lets it say why. It also tells how many runs
are open, so that most of those that have to wait for one another need not ask the API server.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kvmedic.core.crowd import Peer
from kvmedic.core.resource import Key


@dataclass(frozen=True, slots=True)
class Entry:
    """One resource."""

    peer: Peer
    created_at: str
    """`metadata.creationTimestamp`: RFC 3339 in UTC, so its text sorts by time."""

    @property
    def target(self) -> str:
        """Return the name of its target, in its own namespace."""
        return self.peer.target


@dataclass(slots=True)
class Roster:
    """The resources that are known."""

    _entries: dict[Key, Entry] = field(default_factory=dict)

    def note(self, key: Key, entry: Entry) -> None:
        """Remember a resource as it is now."""
        self._entries[key] = entry

    def forget(self, key: Key) -> None:
        """Drop a resource that no longer exists."""
        self._entries.pop(key, None)

    def keys(self) -> tuple[Key, ...]:
        """Return which resources are known."""
        return tuple(self._entries)

    def elder(self, key: Key) -> Key | None:
        """Return the oldest resource of the same target, if that is another one."""
        own = self._entries.get(key)
        if own is None:
            return None
        peers = [
            k for k, e in self._entries.items() if (k.namespace, e.target) == (key.namespace, own.target)
        ]
        eldest = min(peers, key=lambda k: (self._entries[k].created_at, k.uid))
        return None if eldest == key else eldest

    def peers(self) -> tuple[Peer, ...]:
        """Return every known resource as the others see it."""
        # A copy: the operator's own metrics are served by a thread of their own.
        return tuple(entry.peer for entry in list(self._entries.values()))
