"""The breaker that a storm of bad ends trips: no new run is opened for a while.

It is decided from what the resources' own statuses say, so that it is the same after a restart and for each
leader.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from kvmedic.model.evidence import Blocked
from kvmedic.model.reasons import Reason
from kvmedic.rollout.gates.runs_at_once import NAMED, BadEnd, Peer


@dataclass(frozen=True, slots=True)
class Breaker:
    """How many bad ends within which time keep new runs from being opened, and for how long."""

    runs: int
    window: timedelta
    lasts: timedelta


@dataclass(frozen=True, slots=True)
class Trip:
    """The breaker has tripped."""

    at: datetime
    until: datetime
    ends: tuple[BadEnd, ...]
    """The bad ends that tripped it, in the order of time."""

    @property
    def namespaces(self) -> frozenset[str]:
        """Where they were: one of them is kept back alone, several keep every fleet back."""
        return frozenset(end.namespace for end in self.ends)


def find_trip(
    breaker: Breaker, peers: Iterable[Peer], over_at: datetime | None, now: datetime, namespace: str
) -> Trip | None:
    """Return the trip that still keeps new runs of a namespace from being opened, or None.

    Bad ends of its own trip the breaker for a namespace. For all of them it takes bad ends in two
    namespaces: those of one tenant say nothing about the fleets of another.

    Args:
        breaker: the operator's.
        peers: every resource that it looks after.
        over_at: when an administrator last said that it is over; bad ends up to then do not count.
        now: the time of asking.
        namespace: of the resource that asks.
    """
    counted = [end for peer in peers for end in peer.bad_ends if over_at is None or end.at > over_at]
    ends = sorted(counted, key=lambda end: (end.at, end.namespace, end.name))
    own = _latest_trip(breaker, [end for end in ends if end.namespace == namespace], now)
    if own is not None:
        return own
    return _latest_trip(breaker, ends, now, namespaces=2)


def find_any_trip(
    breaker: Breaker, peers: Sequence[Peer], over_at: datetime | None, now: datetime
) -> Trip | None:
    """Return a trip that keeps runs of some namespace from being opened, or None."""
    namespaces = sorted({peer.namespace for peer in peers if peer.bad_ends})
    found = (find_trip(breaker, peers, over_at, now, namespace) for namespace in namespaces)
    return next((each for each in found if each is not None), None)


def _latest_trip(breaker: Breaker, ends: Sequence[BadEnd], now: datetime, namespaces: int = 1) -> Trip | None:
    """Return the trip by the latest bad ends that are of so many namespaces at least."""
    for last in range(len(ends) - 1, breaker.runs - 2, -1):
        until = ends[last].at + breaker.lasts
        if now >= until:
            return None
        group = _group(breaker, ends[: last + 1], namespaces)
        if group:
            return Trip(ends[last].at, until, group)
    return None


def _group(breaker: Breaker, ends: Sequence[BadEnd], namespaces: int) -> tuple[BadEnd, ...]:
    near = [end for end in ends if ends[-1].at - end.at <= breaker.window]
    for first in range(len(near) - breaker.runs, -1, -1):
        group = near[first:]
        if len({end.namespace for end in group}) >= namespaces:
            return tuple(group)
    return ()


def report_trip(found: Trip, over: str) -> Blocked:
    """Return why a trip keeps a run from being opened."""
    shown = ", ".join(str(end) for end in found.ends[-NAMED:])
    where = f" of namespace {min(found.namespaces)}" if len(found.namespaces) == 1 else ""
    more = f" and {len(found.ends) - NAMED} before" if len(found.ends) > NAMED else ""
    minutes = (found.ends[-1].at - found.ends[0].at).total_seconds() / 60
    return Blocked(
        Reason.STORM_BREAKER_TRIPPED,
        f"{len(found.ends)} runs ended badly within {minutes:.0f} min ({shown}{more}): "
        f"no run{where} is opened before {found.until:%Y-%m-%d %H:%M:%SZ}; "
        f"find out why, and go on earlier with: {over}",
    )
