"""One target, one resource: which resources are known, and which of two on one target is to leave it alone.

The roster is fed by the watch, so it is a hint and never a lock: it keeps the younger of two resources on one
target from acting at all.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kvmedic.model.evidence import Blocked
from kvmedic.model.reasons import Reason
from kvmedic.model.spec import TargetRef
from kvmedic.model.status import Key, Resource
from kvmedic.rollout.gates.runs_at_once import Peer


@dataclass(slots=True)
class Roster:
    """The resources that are known, as the others see them."""

    _peers: dict[Key, Peer] = field(default_factory=dict)
    _keys: dict[tuple[str, str], set[Key]] = field(default_factory=dict)
    """By namespace and `place_of` the target."""

    def note(self, key: Key, peer: Peer) -> None:
        """Remember a resource as it is now."""
        self.forget(key)
        self._peers[key] = peer
        self._keys.setdefault((key.namespace, peer.target), set()).add(key)

    def forget(self, key: Key) -> None:
        """Drop a resource that no longer exists."""
        peer = self._peers.pop(key, None)
        if peer is not None:
            keys = self._keys[key.namespace, peer.target]
            keys.discard(key)
            if not keys:
                del self._keys[key.namespace, peer.target]

    def of_target(self, namespace: str, place: str) -> tuple[Key, ...]:
        """Return the resources that look after a target; `place`: see `place_of`."""
        return tuple(self._keys.get((namespace, place), ()))

    def has_open_run(self, key: Key) -> bool:
        """Return whether a resource has an open run, as far as the watch has reported."""
        peer = self._peers.get(key)
        return peer is not None and bool(peer.opened_at or peer.begun)

    def keys(self) -> tuple[Key, ...]:
        """Return which resources are known."""
        return tuple(self._peers)

    def find_older_resource(self, key: Key) -> Key | None:
        """Return the oldest resource of the same target, if that is another one."""
        own = self._peers.get(key)
        if own is None:
            return None
        peers = self.of_target(key.namespace, own.target)
        eldest = min(peers, key=lambda k: (self._peers[k].created_at, k.uid))
        return None if eldest == key else eldest

    def peers(self) -> tuple[Peer, ...]:
        """Return every known resource as the others see it."""
        return tuple(self._peers.values())  # a copy: metrics are served by a thread of their own


def find_older_claim(roster: Roster, resource: Resource, target: TargetRef) -> Blocked | None:
    """Return what tells the younger of two resources on one target to leave it alone."""
    older = roster.find_older_resource(Key(resource.namespace, resource.name, resource.uid))
    if older is None:
        return None
    return Blocked(
        Reason.TARGET_SHARED,
        f"KVRemediation {older.name} looks after {target.kind} {target.name} already: delete one of the two",
    )
