"""How a play must end, as a part of a scenario's file."""

from __future__ import annotations

from dataclasses import fields
from enum import StrEnum
from typing import Any, Literal, TypeAlias, get_args

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from kvmedic.model.engine import Knob
from kvmedic.model.plan import Step
from kvmedic.model.reasons import Reason
from lab.play.figures import Figures

KINDS = tuple(kind.__name__ for kind in get_args(Step))
"""Every kind of step that the operator can take."""
FIGURES = tuple(field.name for field in fields(Figures))
"""Figures of a window; each may be bounded as after over before."""
Written: TypeAlias = str | tuple[float, float]


class Writes(StrEnum):
    """What may be written to the Deployment and its pods by others than their owner and Kubernetes."""

    ANY = "any"
    NONE = "none"
    """No field manager of others ever appears, and the Deployment ends as its owner wrote it."""
    UNTOUCHED = "untouched"
    """Nobody at all writes: the same resourceVersions at the end as at the beginning."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class Move(_Part):
    """One step of a run, or of a plan that is shown."""

    kind: str = "FlagStep"
    """Kind of the step."""
    knob: Knob | None = None
    """The lever, where the step has one."""
    after: Written | None = None
    """The value that it sets: a text, or the least and the greatest number."""

    @field_validator("kind")
    @classmethod
    def _known(cls, kind: str) -> str:
        if kind not in KINDS:
            raise ValueError(f"there is no step {kind}: use one of {', '.join(KINDS)}")
        return kind

    def is_met_by(self, step: dict[str, Any]) -> bool:
        if step.get("kind") != self.kind or (self.knob and step.get("knob") != self.knob):
            return False
        written = str(step.get("after", ""))
        if isinstance(self.after, tuple):
            return _is_number(written) and self.after[0] <= float(written) <= self.after[1]
        return self.after is None or self.after == written

    def __str__(self) -> str:
        low_high = "{:g} to {:g}".format(*self.after) if isinstance(self.after, tuple) else self.after
        return " ".join(filter(None, (self.kind, self.knob, low_high and f"-> {low_high}")))


class Bound(_Part):
    """Bounds of a figure after the change over the same before; at least one of the two."""

    at_least: float | None = None
    at_most: float | None = None

    @model_validator(mode="after")
    def _bounded(self) -> Bound:
        if self.at_least is None and self.at_most is None:
            raise ValueError("give at_least or at_most")
        return self

    def holds(self, ratio: float) -> bool:
        """Return whether a ratio lies within; NaN does not."""
        low = -float("inf") if self.at_least is None else self.at_least
        high = float("inf") if self.at_most is None else self.at_most
        return low <= ratio <= high

    def __str__(self) -> str:
        given = (("at least", self.at_least), ("at most", self.at_most))
        return " and ".join(f"{word} {value:g}" for word, value in given if value is not None)


class Expectation(_Part):
    """How the play must end. What is left out of it may be as it likes."""

    branch: Reason
    """Reason of the diagnosis that must be found: that of the first run, else the one at the end."""
    held: Reason | None = None
    """Reason of a condition at the end: why no run was opened, or what a person is asked to do."""
    plan: tuple[Move, ...] = ()
    """Steps of the plan that is shown at the end and not carried out."""
    moves: tuple[Move, ...] = ()
    """Steps of all runs that were opened, in their order; empty: no run at all."""
    verdicts: tuple[Reason | tuple[Reason, ...], ...] = ()
    """How each run ended, oldest first; of several reasons any will do."""
    writes: Writes = Writes.ANY
    """any, none, or untouched."""
    template: Literal["any", "same"] = "any"
    """same: at the end the Deployment is what it was, also where it was changed meanwhile."""
    failed_requests: int | Literal["any"] = 0
    """Requests that failed or were cut, at most. any: the incident itself makes requests fail."""
    min_in_rotation: int | Literal["all", "any"] = "all"
    """Replicas in rotation at every moment, at least. all: as many as the fleet has."""
    restarts_per_replica: float | None = None
    """How often each replica was swapped or restarted, at most."""
    ratios: dict[str, Bound] = Field(default_factory=dict)
    """Bounds of figures after the change over before it."""
    measured_change: int = Field(default=1, ge=1)
    """Which of the changes that settle begins the figures of after, from 1."""
    told: tuple[Reason, ...] = ()
    """Reasons that a condition gave at some time of the play."""
    says: tuple[str, ...] = ()
    """Texts that stand in a condition, a plan or a closed run at the end."""

    @field_validator("ratios")
    @classmethod
    def _figures(cls, ratios: dict[str, Bound]) -> dict[str, Bound]:
        for name in ratios:
            if name not in FIGURES:
                raise ValueError(f"there is no figure {name}: use one of {', '.join(FIGURES)}")
        return ratios

    @model_validator(mode="after")
    def _agrees(self) -> Expectation:
        if self.verdicts and not self.moves:
            raise ValueError("verdicts are of runs, and moves names none: add the moves, or remove verdicts")
        if self.moves and not self.verdicts:
            raise ValueError("moves are of runs, and verdicts does not say how they end: add verdicts")
        if self.ratios and not self.verdicts:
            raise ValueError("ratios compare before and after a run: add verdicts, or remove ratios")
        if self.moves and self.writes is not Writes.ANY:
            raise ValueError("moves are writes: remove moves, or use writes: any")
        return self

    @property
    def runs(self) -> int:
        """Return how many runs must be closed before the play ends."""
        return len(self.verdicts)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
