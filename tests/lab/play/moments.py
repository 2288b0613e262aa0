"""When something of a scenario is due: so long after one of a few things that happen in every play."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from kvmedic.api.rules import parse_duration


class Cue(StrEnum):
    """What a moment is counted from. Each happens once in a play, or never."""

    START = "start"
    """The fleet is whole, and the play begins."""
    BRANCH = "branch"
    """The operator has found the branch that is expected."""
    PLAN = "plan"
    """A plan is shown, or a run was opened."""
    SETTLED = "settled"
    """Every replica runs what the first step changed."""
    CLOSED = "closed"
    """The first run is closed."""


_MOMENT = re.compile(rf"(?P<cue>{'|'.join(Cue)})(?:\s*\+\s*(?P<after>\S+))?")
_HELP = f"write a duration such as 30s, or one of {', '.join(Cue)}, with or without one: plan+5s"


@dataclass(frozen=True, slots=True)
class Moment:
    """So many seconds after a cue."""

    cue: Cue
    seconds: float

    def at(self, cues: Mapping[Cue, float]) -> float | None:
        """Return when it is, in the seconds of the given cues; None while its cue has not come."""
        began = cues.get(self.cue)
        return None if began is None else began + self.seconds

    def __str__(self) -> str:
        after = f"{self.seconds:g}s"
        return after if self.cue is Cue.START else f"{self.cue}+{after}"


def moment(text: object) -> Moment:
    """Return the moment that a file names: `30s`, `plan`, `plan+5s`.

    Raises:
        ValueError: it names none; the message says how to.
    """
    if isinstance(text, Moment):
        return text
    told = str(text).strip()
    named = _MOMENT.fullmatch(told)
    try:
        if named is None:
            return Moment(Cue.START, seconds(told))
        return Moment(Cue(named["cue"]), seconds(named["after"] or "0s"))
    except ValueError:
        raise ValueError(f"{told!r} is no moment: {_HELP}") from None


def seconds(text: object) -> float:
    """Return a duration of a file, such as `90s` or `2m`, in seconds.

    Raises:
        ValueError: it is none; the message says how to write one.
    """
    return parse_duration(text).total_seconds() if isinstance(text, str) else _refused(text)


def _refused(value: object) -> float:
    raise ValueError(f"{value!r} has no unit: write a duration such as 90s or 2m")
