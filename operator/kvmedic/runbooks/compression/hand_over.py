"""When one runbook leaves a fleet to the other, on which evidence, and whether that is the second time.

`CompressionWithoutSavings` is asked first. Where it asks for no change although a method is on, or cannot go
on, and the other runbook has a change in mind, that is a hand-over; where it has a plan again later, that is
the way back. Each is recorded once per digest of the evidence. Figures are no part of that: they move from
look to look.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from kvmedic.model.reasons import Reason
from kvmedic.model.spec import Runbook
from kvmedic.model.status import FailedFix, HandOver, TurnedOff
from kvmedic.model.trial import Answer, Scored
from kvmedic.runbooks.branches import Diagnosed, Diagnosis


@dataclass(frozen=True, slots=True)
class Grounds:
    """The evidence of a hand-over that stays until somebody edits something or a trial shows something."""

    generation: int
    """Of the spec."""
    template: str
    """Hash of the pod template."""
    method: str = ""
    """That is on; empty: none is known of."""
    answers: tuple[Answer, ...] = ()
    """Of trials, as far as they count."""
    scores: tuple[Scored, ...] = ()
    """Of evaluations."""
    turned_off: TurnedOff | None = None
    failed: tuple[FailedFix, ...] = ()
    """Fixes that were tried in vain, as far as this look knows; those on record are in `turned_off`."""
    kept: tuple[str, ...] = ()
    """Methods that were turned off or on, on this pod template, and had to be put back."""

    def digest(self, reason: Reason) -> str:
        """Return the identity of the evidence on which a branch left the fleet to the other runbook.

        16 hexadecimal digits over canonical JSON. What showed nothing is no evidence, nor is the same shown
        again.
        """
        off = self.turned_off
        body = {
            "generation": self.generation,
            "template": self.template,
            "method": self.method,
            "reason": reason,
            "answers": sorted({_answer_text(each) for each in self._telling}),
            "scores": sorted({_score_text(each) for each in self.scores if each.is_conclusive}),
            "turnedOff": [off.method, off.wall] if off else [],
            "failed": sorted(
                {(each.fix, each.generation) for each in (*self.failed, *(off.failed if off else ()))}
            ),
            "kept": sorted(set(self.kept)),
        }
        text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def line(self) -> str:
        """Return what a person would have to change for other evidence, as one line."""
        trials = ", ".join(dict.fromkeys(f"{each.question} {_verdict(each)}" for each in self._telling))
        parts = (
            f"spec generation {self.generation}",
            f"pod template {self.template}",
            f"method {self.method}" if self.method else "",
            f"{self.turned_off.method} turned off" if self.turned_off else "",
            f"trials: {trials or 'none that showed anything'}",
        )
        return ", ".join(part for part in parts if part)

    @property
    def _telling(self) -> tuple[Answer, ...]:
        """Answers that showed something."""
        return tuple(each for each in self.answers if each.is_conclusive or each.refused)


@dataclass(frozen=True, slots=True)
class Heard:
    """What the runbooks said at one look."""

    first: Diagnosis
    """What `CompressionWithoutSavings` said, or why it cannot go on."""
    runbook: str
    """The one that has the word."""
    diagnosis: Diagnosis
    """What that one said."""
    is_pressed: bool
    """A replica preempts beyond the trigger."""
    is_planned: bool
    """There is a plan."""


def hand_over_of(heard: Heard, grounds: Grounds, newest: HandOver | None, now: datetime) -> HandOver | None:
    """Return the hand-over that a look amounts to; None where it is none.

    The other runbook goes on where it asks for a change, or cannot judge a pressure that it found. The word
    goes back with a plan only: a fix that waits is told of while it is calm, and that takes nothing back.
    """
    if heard.runbook == Runbook.COMPRESSION_WITHOUT_SAVINGS:
        return _back(heard, grounds, newest, now)
    return _over(heard, grounds, now)


def _over(heard: Heard, grounds: Grounds, now: datetime) -> HandOver | None:
    first = heard.first
    if isinstance(first, Diagnosed) and first.branch.then is not None:
        return None
    if first.reason is Reason.NO_COMPRESSION or not _goes_on(heard):
        return None
    return HandOver(
        Runbook.COMPRESSION_WITHOUT_SAVINGS,
        heard.runbook,
        first.reason,
        grounds.digest(first.reason),
        f"{first.line()}; {heard.runbook} goes on: {heard.diagnosis.reason}",
        now,
    )


def _goes_on(heard: Heard) -> bool:
    if isinstance(heard.diagnosis, Diagnosed):
        return heard.diagnosis.branch.then is not None
    return heard.is_pressed


def _back(heard: Heard, grounds: Grounds, newest: HandOver | None, now: datetime) -> HandOver | None:
    is_over = newest is not None and newest.from_runbook == Runbook.COMPRESSION_WITHOUT_SAVINGS
    if newest is None or not is_over or not heard.is_planned:
        return None
    return HandOver(
        newest.to_runbook,
        newest.from_runbook,
        heard.diagnosis.reason,
        grounds.digest(newest.reason),
        f"{newest.from_runbook} has a plan again: {heard.diagnosis.line()}",
        now,
    )


def taken_back(
    found: HandOver, known: Sequence[HandOver], used: Callable[[HandOver], bool]
) -> HandOver | None:
    """Return the way back since a hand-over was made first, so that it is the second now; None: it is not.

    Args:
        found: the hand-over that a look amounts to.
        known: those on record, newest first.
        used: whether the runbook that a hand-over went to has changed something since. A way back on which
            nothing came took nothing back: load that comes and goes during a cooldown blocks nobody.
    """
    first = next((at for at, each in enumerate(known) if found.is_like(each)), None)
    since = known[:first] if first is not None else ()
    return next((each for each in since if found.takes_back(each) and used(each)), None)


def _verdict(answer: Answer) -> str:
    """Return what an answer shows that counts; of blocks alone, how many there are."""
    shown = answer.reclaim or answer.growth or f"{answer.blocks} blocks"
    return "refused" if answer.refused else str(shown)


def _answer_text(answer: Answer) -> tuple[str, str, str]:
    return answer.question, answer.template, _verdict(answer)


def _score_text(scored: Scored) -> tuple[str, str, str]:
    shown = f"{scored.score.accuracy:g}" if scored.score else "refused"
    return scored.configuration, scored.evaluation, shown
