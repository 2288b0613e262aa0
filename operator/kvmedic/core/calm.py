"""What is there for a while, and what is known of whether it may go: since when it is calm, the outlook."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TypeVar


@dataclass(frozen=True, slots=True, kw_only=True)
class Temporary:
    """Something that was added or lent for a while."""

    calm_since: datetime | None = None
    """Since when no replica is beyond the trigger; None while one is, or nobody can tell."""
    outlook: str = ""
    """Whether the fleet would do without it by the newest look, for people."""
    looked_at: datetime | None = None

    def is_due(self, restore_after: timedelta, now: datetime) -> bool:
        """Return whether it has been calm for long enough to ask whether the fleet would do without it."""
        return self.calm_since is not None and now - self.calm_since >= restore_after


HeldT = TypeVar("HeldT", bound=Temporary)


def in_calm(held: HeldT, since: datetime | None) -> HeldT:
    """Return it with since when it is calm: the earlier of what is known; None: it is not."""
    if since is None:
        return held if held.calm_since is None else replace(held, calm_since=None, outlook="", looked_at=None)
    return held if held.calm_since is not None else replace(held, calm_since=since)


def with_outlook(held: HeldT, outlook: str, now: datetime, refresh: timedelta) -> HeldT:
    """Return it with the newest outlook, where the one that is told is older than `refresh`."""
    fresh = held.looked_at is not None and now - held.looked_at < refresh
    return held if fresh or not outlook else replace(held, outlook=outlook, looked_at=now)
