"""How much may change at once, over all resources: budgets, and the breaker that a storm of bad ends trips.

All of it is decided from what the resources' own statuses say, so that it is the same after a restart
and for each leader. How one resource names its target to all others is here too: see `place_of`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from kvmedic.model.evidence import Blocked
from kvmedic.model.fleet import DEPLOYMENT, ObjectRef
from kvmedic.model.readings import list_first
from kvmedic.model.reasons import Reason

NAMED = 3
"""Runs that a message names; the rest is counted, so that it fits in a condition."""
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Budgets:
    """How many runs may be open at once."""

    runs: int
    """Of this operator."""
    runs_per_namespace: int
    fleet_share: float
    """Of all targets that this operator looks after (ratio 0-1); one run may always be open."""


@dataclass(frozen=True, slots=True)
class Breaker:
    """How many bad ends within which time keep new runs from being opened, and for how long."""

    runs: int
    window: timedelta
    lasts: timedelta


@dataclass(frozen=True, slots=True)
class BadEnd:
    """A run that ended badly."""

    namespace: str
    name: str
    """Of its resource."""
    reason: Reason
    at: datetime

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name} {self.reason}"


@dataclass(frozen=True, slots=True)
class Peer:
    """One resource as all others see it."""

    namespace: str
    name: str
    uid: str
    target: str
    """Its target in its own namespace, as `place_of` names it."""
    opened_at: datetime | None = None
    """Since when it has a run open; None: it has none."""
    begun: bool = False
    """An assignment of that run was written down, so its target may have been changed."""
    bad_ends: tuple[BadEnd, ...] = ()
    created_at: str = ""
    """`metadata.creationTimestamp`: RFC 3339 in UTC, so its text sorts by time."""
    deployment: str = ""
    """Uid of the Deployment of its open run; empty: none is open."""
    is_unclear: bool = False
    """Its open run does not say which Deployment it is about."""

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def place_of(kind: str, name: str) -> str:
    """Return what distinguishes a target within its namespace: its name, with the kind if need be."""
    return name if kind == DEPLOYMENT else f"{kind}/{name}"


def target_at(place: str) -> ObjectRef:
    """Return the target that `place_of` names so."""
    kind, slash, name = place.rpartition("/")
    return ObjectRef(kind if slash else DEPLOYMENT, name)


def typed_place(place: str) -> str:
    """Return how kubectl and these commands name a target: `deploy/NAME`."""
    ref = target_at(place)
    return f"{'deploy' if ref.kind == DEPLOYMENT else ref.kind.lower()}/{ref.name}"


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


def find_full_budget(budgets: Budgets, peers: Sequence[Peer], uid: str) -> Blocked | None:
    """Return which budget has no place for a run of a resource, and who has it, or None.

    Places go to runs that have begun, then by the time at which they were opened, then by uid. A
    resource without a run asks for a place behind all of them; one whose run was opened and has not
    begun may find that it has none after all. Runs of one namespace never keep those of another waiting:
    one tenant could stop all the others with them.
    """
    own = next((peer for peer in peers if peer.uid == uid), None)
    if own is not None and own.begun:
        return None
    ahead = sorted((p for p in peers if p.uid != uid and _is_before(p, own)), key=_place_in_line)
    near = [peer for peer in ahead if own is not None and peer.namespace == own.namespace]
    if ahead and not near and own is not None and len({peer.namespace for peer in ahead}) == 1:
        return None
    targets = len({(peer.namespace, peer.target) for peer in peers})
    share = max(1, int(budgets.fleet_share * targets + _ROUNDING))
    for holders, places, budget in (
        (near, budgets.runs_per_namespace, f"budgets.runsPerNamespace is {budgets.runs_per_namespace}"),
        (ahead, budgets.runs, f"budgets.runs is {budgets.runs}"),
        (ahead, share, f"budgets.fleetShare is {budgets.fleet_share:g}, {share} of {targets} targets"),
    ):
        if len(holders) >= places:
            return Blocked(Reason.RUNS_AT_LIMIT, f"{_name_holders(holders)}; the operator's {budget}")
    return None


def _is_before(peer: Peer, own: Peer | None) -> bool:
    if peer.opened_at is None:
        return False
    return own is None or own.opened_at is None or _place_in_line(peer) < _place_in_line(own)


def _place_in_line(peer: Peer) -> tuple[bool, float, str]:
    since = peer.opened_at.timestamp() if peer.opened_at else 0.0
    return not peer.begun, since, peer.uid


def _name_holders(holders: Sequence[Peer]) -> str:
    names = list_first([str(peer) for peer in holders], NAMED)
    return f"{names} {'has a run' if len(holders) == 1 else 'have runs'} open"


def trip(
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


def any_trip(breaker: Breaker, peers: Sequence[Peer], over_at: datetime | None, now: datetime) -> Trip | None:
    """Return a trip that keeps runs of some namespace from being opened, or None."""
    namespaces = sorted({peer.namespace for peer in peers if peer.bad_ends})
    found = (trip(breaker, peers, over_at, now, namespace) for namespace in namespaces)
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


def stormy(found: Trip, over: str) -> Blocked:
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
