"""One KVRemediation as it was loaded."""

from __future__ import annotations

from dataclasses import dataclass

from kvmedic.core.decide import Wish
from kvmedic.core.policy import Policy
from kvmedic.core.record import Record
from kvmedic.core.run import Outcome


@dataclass(frozen=True, slots=True)
class Key:
    """One resource by name and identity: made again under its name, it is another."""

    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class Resource:
    """A resource at one resourceVersion."""

    namespace: str
    name: str
    uid: str
    resource_version: str
    generation: int
    wish: Wish
    finalized: bool
    """Our finalizer is on it."""
    policy: Policy | None
    """None where the spec cannot be followed; `problem` says why."""
    problem: Outcome | None
    """Why the spec or the record cannot be used."""
    record: Record | None
    """None where the stored run cannot be read: nothing is done then, not even from the start."""
    salvage: Record | None = None
    """What the record says beside a run that somebody damaged; None where nobody did."""
    retried: str = ""
    """A run that was reverted by somebody else, after which a person wants it tried again."""
    is_stand_in: bool = False
    """It stands in memory for a resource that is gone, until what that one froze is given back."""
