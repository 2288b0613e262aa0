"""Text that remembers where each of its characters is written.

Kubernetes replaces `$(NAME)`, a shell replaces `$NAME` and takes quotes away, and what the engine gets
may come from several places of a container. Each character carries a mark, so that the piece of the
manifest that decides a value can be found again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kvmedic.core.edit import Field


class Spot(NamedTuple):
    """A piece of the text of one item of a container's command, args or env."""

    field: Field
    item: int
    start: int
    """The first character, counted from 0."""
    stop: int
    """The character behind the last one."""

    def holds(self, other: Spot) -> bool:
        """Return whether another spot lies within this one."""
        same = (self.field, self.item) == (other.field, other.item)
        return same and self.start <= other.start and other.stop <= self.stop


class Mark(NamedTuple):
    """What is known of one character."""

    origin: Spot | None = None
    """Where the character itself is written; None where the manifest does not have it."""
    site: Spot | None = None
    """What it stands for on the command line: the character itself, or the whole reference."""
    variables: tuple[str, ...] = ()
    """The variables that it came through."""
    unknown: str = ""
    """The variable whose value is not in the manifest; the character only stands for it."""


@dataclass(frozen=True, slots=True)
class Traced:
    """A text and the mark of each of its characters."""

    text: str = ""
    marks: tuple[Mark, ...] = ()

    def __add__(self, other: Traced) -> Traced:
        return Traced(self.text + other.text, self.marks + other.marks)

    def piece(self, start: int, stop: int) -> Traced:
        """Return a part of the text."""
        return Traced(self.text[start:stop], self.marks[start:stop])

    def through(self, variable: str, site: Spot | None) -> Traced:
        """Return the text as the value of a variable that is referred to at a place."""
        marks: list[Mark] = []
        before: tuple[str, ...] | None = None
        names: tuple[str, ...] = ()
        for mark in self.marks:
            if mark.variables is not before:
                before, names = mark.variables, (variable, *mark.variables)
            marks.append(Mark(mark.origin, site, names, mark.unknown))
        return Traced(self.text, tuple(marks))

    def standing_at(self, site: Spot | None) -> Traced:
        """Return the text as what stands for something else on the command line."""
        marks = (Mark(mark.origin, site, mark.variables, mark.unknown) for mark in self.marks)
        return Traced(self.text, tuple(marks))

    @property
    def variables(self) -> tuple[str, ...]:
        """Return the variables that any of the characters came through."""
        paths = dict.fromkeys(mark.variables for mark in self.marks)
        return tuple(dict.fromkeys(name for path in paths for name in path))

    @property
    def depth(self) -> int:
        """Return how many variables any of the characters came through."""
        return max((len(mark.variables) for mark in self.marks), default=0)

    @property
    def unknown(self) -> tuple[str, ...]:
        """Return the variables whose value is not in the manifest."""
        return tuple(dict.fromkeys(mark.unknown for mark in self.marks if mark.unknown))

    @property
    def origin(self) -> Spot | None:
        """Return the one unbroken piece that the text is written as, or None."""
        return joined(mark.origin for mark in self.marks)

    @property
    def site(self) -> Spot | None:
        """Return the stretch of the command line that the text stands in, or None over several items."""
        spots = [mark.site for mark in self.marks]
        first, last = (spots[0], spots[-1]) if spots else (None, None)
        if first is None or last is None or first[:2] != last[:2]:
            return None
        return first._replace(stop=max(first.stop, last.stop))


EMPTY = Traced()


def connected(pieces: Sequence[Traced]) -> Traced:
    """Return one text of several pieces."""
    if len(pieces) < 2:
        return pieces[0] if pieces else EMPTY
    marks = tuple(mark for piece in pieces for mark in piece.marks)
    return Traced("".join(piece.text for piece in pieces), marks)


def written(text: str, field: Field, index: int, start: int = 0) -> Traced:
    """Return a text as it is written in one item of a container."""
    spots = (Spot(field, index, at, at + 1) for at in range(start, start + len(text)))
    return Traced(text, tuple(Mark(spot, spot) for spot in spots))


def stand_in(text: str, name: str, site: Spot | None) -> Traced:
    """Return a text that stands for what is not known: the value of a variable, a command's output."""
    return Traced(text, (Mark(None, site, (name,), name),) * len(text))


def as_one(text: str, piece: Traced) -> Traced:
    """Return one character that is written as several: an escape, a doubled sign."""
    site = joined(mark.site for mark in piece.marks)
    last = piece.marks[-1]
    return Traced(text, (Mark(piece.origin, site, last.variables, last.unknown),))


def joined(spots: Iterable[Spot | None]) -> Spot | None:
    """Return the spot that adjoining spots make up, or None where they do not adjoin."""
    whole: Spot | None = None
    for spot in spots:
        if spot is None:
            return None
        if whole is not None and (spot[:2] != whole[:2] or spot.start != whole.stop):
            return None
        whole = spot if whole is None else whole._replace(stop=spot.stop)
    return whole
