"""What comes after a method of compression that saved nothing: the next fix that the spec allows.

One fix at a time, and only once it has proved itself on a trial pod: blocks come back, and the team's own
evaluation says that accuracy is kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from kvmedic.core.blocks import Keep
from kvmedic.core.bundle import BundleEdit
from kvmedic.core.compression import Setting
from kvmedic.core.compression_policy import Fix
from kvmedic.core.reasons import Reason
from kvmedic.core.trialling import Question


@dataclass(frozen=True, slots=True)
class FailedFix:
    """A fix that was no help, whatever else of the pod template changes; another spec is tried anew."""

    fix: Fix
    why: str
    generation: int
    """Of the spec."""


@dataclass(frozen=True, slots=True)
class TurnedOff:
    """The method that was turned off last because it saved nothing."""

    method: str
    wall: Reason
    """What was found."""
    at: datetime
    failed: tuple[FailedFix, ...] = ()
    """What was tried in its place since."""

    def spoken_of(self, fix: Fix, generation: int) -> FailedFix | None:
        """Return that a fix failed under a spec of some generation; None where it did not."""
        return next((each for each in self.failed if (each.fix, each.generation) == (fix, generation)), None)


@dataclass(frozen=True, slots=True)
class TurnOff:
    """A method that compresses the KV cache should be turned off, with all that turned it on."""

    method: str
    settings: tuple[Setting, ...]
    """In the order in which they turn it on."""
    reason: Reason
    message: str
    """One sentence with the numbers behind it."""
    undoes: Fix | None = None
    """The fix that turned it on; None: it was there before."""


@dataclass(frozen=True, slots=True)
class Try:
    """A trial pod should answer a question about a setting."""

    question: Question
    method: str
    tokens: int
    """To be generated; of prompts: of the longest."""
    keep: Keep
    """What the method keeps of a sequence; of no meaning for prompts."""
    limit: timedelta
    """After that the trial pod ends."""
    reason: Reason
    message: str
    """One sentence with what asks for it."""
    change: BundleEdit | None = None
    """What differs on the trial pod; None: the present setting is tried."""
    tried: str = ""
    """Hash of the pod template on the trial pod, where it differs."""
    off: tuple[Setting, ...] = ()
    """Settings of a method that is off on the trial pod, in the order in which they turn it on. Empty: the
    method is tried."""


@dataclass(frozen=True, slots=True)
class Evaluate:
    """A team's evaluation should score a setting on a trial pod."""

    subject: str
    change: BundleEdit | None
    """What differs on the trial pod; None: the present setting is evaluated."""
    tried: str
    """Hash of the pod template on the trial pod."""
    cron_job: str
    evaluation: str
    """Digest of its Job template."""
    budget: int | None
    """Tokens of a request beyond which the setting makes a difference; None: with the first."""
    cache_types: tuple[str, ...]
    """Beginnings of the types of which the trial pod's cache must have one; empty: any."""
    limit: timedelta
    reason: Reason
    message: str
    """One sentence with what asks for it."""


@dataclass(frozen=True, slots=True)
class TurnOn:
    """A bundle should take other values: one that proved itself on a trial pod comes, or a method goes."""

    fix: Fix
    method: str
    change: BundleEdit
    before: str
    after: str
    """Both for a person."""
    reason: Reason
    message: str
    """One sentence with what proved it."""
    undoes: Fix | None = None
    """The fix that had turned on what is turned off."""
