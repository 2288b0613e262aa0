"""How many runs may be open at once, over all resources.

It is decided from what the resources' own statuses say, so that it is the same after a restart and for each
leader.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from kvmedic.model.evidence import Blocked
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
