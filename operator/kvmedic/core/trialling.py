"""A test on a trial pod: how far it is, and what it came to.

The pod is a copy of the target's pod template that nobody leads requests to; the target is not touched.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from kvmedic.core.reclamation_probe import Sample


class Question(StrEnum):
    """What a trial pod is to show."""

    RECLAMATION = "Reclamation"
    """Whether blocks come back in the course of one long generation."""


@dataclass(frozen=True, slots=True)
class Underway:
    """A test that goes on."""

    tokens: int
    """Generated so far."""
    of: int


@dataclass(frozen=True, slots=True)
class Watched:
    """A generation that came to its end."""

    samples: tuple[Sample, ...]
    generated: int
    """Tokens that came."""
    block_tokens: int
    """Tokens of one block."""
    blocks: int
    """Usable blocks of the engine's pool."""


@dataclass(frozen=True, slots=True)
class Interrupted:
    """A test that tells nothing, and why."""

    why: str


Progress: TypeAlias = Underway | Watched | Interrupted
