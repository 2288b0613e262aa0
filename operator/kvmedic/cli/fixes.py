"""What is on record of the fix after the method: what was turned off, what failed since, what was scored."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from kvmedic.core.fixing import FailedFix, TurnedOff
from kvmedic.core.record import Record
from kvmedic.core.scored import Scored
from kvmedic.core.sentences import SENTENCES


@dataclass(frozen=True, slots=True)
class ShownFixes:
    """The record of the fix after the method, as far as there is one."""

    turned_off: TurnedOff | None
    scores: tuple[Scored, ...]
    template: str
    """Hash of the target's present pod template; empty: not known."""
    generation: int
    """Of the spec as it is now."""

    def as_text(self) -> Iterator[str]:
        """Yield it line by line; nothing where nothing is on record."""
        off = self.turned_off
        if off is not None:
            yield f"{off.method} was turned off ({_at(off.at)}): {off.wall}: {SENTENCES[off.wall]}"
            yield from (f"  {self._failure(each)}" for each in off.failed)
        yield from (self._score(each) for each in self.scores)

    def turned_off_as_json(self) -> dict[str, Any] | None:
        """Return what was turned off for a program, with the fixes that failed since; None: nothing was."""
        off = self.turned_off
        if off is None:
            return None
        failed = [
            {"fix": str(each.fix), "why": each.why, "isOfPresentSpec": each.generation == self.generation}
            for each in off.failed
        ]
        return {"method": off.method, "wall": str(off.wall), "at": _at(off.at), "failed": failed}

    def scores_as_json(self) -> list[dict[str, Any]]:
        """Return every score on record for a program, the newest first."""
        return [self._score_as_json(each) for each in self.scores]

    def _failure(self, failed: FailedFix) -> str:
        is_over = failed.generation != self.generation
        when = "; the spec was edited since, so it may be tried anew" if is_over else ""
        return f"{failed.fix} failed: {failed.why}{when}."

    def _score(self, scored: Scored) -> str:
        found = scored.score
        shown = f"{found.accuracy:.3f} over {found.samples} samples" if found else "not shown"
        return f"Accuracy {shown} on {self._whose(scored)} ({_at(scored.at)}): {scored.message}."

    def _whose(self, scored: Scored) -> str:
        if not self.template:
            return f"pod template {scored.configuration}"
        return "this pod template" if scored.configuration == self.template else "another pod template"

    def _score_as_json(self, scored: Scored) -> dict[str, Any]:
        found = scored.score
        return {
            "at": _at(scored.at),
            "template": scored.configuration,
            "isOfPresentTemplate": scored.configuration == self.template if self.template else None,
            "evaluation": scored.evaluation,
            "accuracy": found.accuracy if found else None,
            "samples": found.samples if found else None,
            "refused": scored.refused,
            "message": scored.message,
        }


def fixes_of(record: Record | None, template: str, generation: int) -> ShownFixes:
    """Return what a record tells of the fix after the method.

    Args:
        record: of the resource; None: there is none yet.
        template: hash of the target's present pod template; empty: not known.
        generation: of the spec as it is now.
    """
    known = record or Record()
    scores = tuple(sorted(known.scores, key=lambda each: each.at, reverse=True))
    return ShownFixes(known.turned_off, scores, template, generation)


def _at(moment: datetime) -> str:
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}"
