"""The tokens of a container's command line as the engine gets them, with where each character is written."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

from kvmedic.model.edits import Field


class Spot(NamedTuple):
    """A piece of the text of one item of a container's command, args or env."""

    field: Field
    item: int
    start: int
    """The first character, counted from 0."""
    stop: int
    """The character behind the last one."""

    def contains(self, other: Spot) -> bool:
        """Return whether another spot lies within this one."""
        same = (self.field, self.item) == (other.field, other.item)
        return same and self.start <= other.start and other.stop <= self.stop

    def piece(self, start: int, stop: int) -> Spot:
        """Return a part of it, counted from its own start."""
        return Spot(self.field, self.item, self.start + start, self.start + stop)


class Stretch(NamedTuple):
    """Characters beside one another of which the same is known."""

    length: int
    origin: Spot | None = None
    """Where they are written, one for one; a single character may be written as several. None where the
    manifest does not have them."""
    site: Spot | None = None
    """What they stand for on the command line: each for itself, or all of them for one reference."""
    shares_site: bool = False
    """Whether all of them stand for one reference."""
    variables: tuple[str, ...] = ()
    """The variables that they came through."""
    unknown: str = ""
    """The variable whose value is not in the manifest; the characters only stand for it."""

    def piece(self, start: int, stop: int) -> Stretch:
        """Return a part of the characters."""
        if stop - start == self.length:
            return self
        origin = self.origin and self.origin.piece(start, stop)
        site = self.site if self.shares_site else self.site and self.site.piece(start, stop)
        return Stretch(stop - start, origin, site, self.shares_site, self.variables, self.unknown)

    def through(self, variable: str, site: Spot | None) -> Stretch:
        """Return the characters as those of a variable that is referred to at a place."""
        return Stretch(self.length, self.origin, site, True, (variable, *self.variables), self.unknown)


@dataclass(frozen=True, slots=True)
class Traced:
    """A text and what is known of its characters, by stretches: most texts are a single one."""

    text: str = ""
    stretches: tuple[Stretch, ...] = ()
    _stops: tuple[int, ...] = field(init=False, compare=False, repr=False)
    """Where each stretch ends, so that a piece is found without a walk over what is before it."""

    def __post_init__(self) -> None:
        """Note where each stretch ends: a single one where the text does."""
        is_one = len(self.stretches) == 1
        stops = (len(self.text),) if is_one else tuple(accumulate([each.length for each in self.stretches]))
        object.__setattr__(self, "_stops", stops)

    def __add__(self, other: Traced) -> Traced:
        return Traced(self.text + other.text, self.stretches + other.stretches)

    def piece(self, start: int, stop: int) -> Traced:
        """Return a part of the text."""
        stop = min(stop, len(self.text))
        if start >= stop:
            return EMPTY
        found: list[Stretch] = []
        for index in range(bisect_right(self._stops, start), len(self.stretches)):
            whole = self.stretches[index]
            begin = self._stops[index] - whole.length
            if begin >= stop:
                break
            found.append(whole.piece(max(start - begin, 0), min(stop - begin, whole.length)))
        return Traced(self.text[start:stop], tuple(found))

    def through(self, variable: str, site: Spot | None) -> Traced:
        """Return the text as the value of a variable that is referred to at a place."""
        return Traced(self.text, tuple(each.through(variable, site) for each in self.stretches))

    def with_site(self, site: Spot | None) -> Traced:
        """Return the text as what stands for something else on the command line."""
        return Traced(self.text, tuple(each._replace(site=site, shares_site=True) for each in self.stretches))

    @property
    def variables(self) -> tuple[str, ...]:
        """Return the variables that any of the characters came through."""
        return tuple(dict.fromkeys(name for each in self.stretches for name in each.variables))

    @property
    def depth(self) -> int:
        """Return how many variables any of the characters came through."""
        return max((len(each.variables) for each in self.stretches), default=0)

    @property
    def unknown(self) -> tuple[str, ...]:
        """Return the variables whose value is not in the manifest."""
        return tuple(dict.fromkeys(each.unknown for each in self.stretches if each.unknown))

    @property
    def origin(self) -> Spot | None:
        """Return the one unbroken piece that the text is written as, or None."""
        return join_spots(each.origin for each in self.stretches)

    @property
    def site(self) -> Spot | None:
        """Return the stretch of the command line that the text stands in, or None over several items."""
        if not self.stretches:
            return None
        first, last = self.stretches[0].piece(0, 1).site, self.stretches[-1].site
        if first is None or last is None or first[:2] != last[:2]:
            return None
        return first._replace(stop=max(first.stop, last.stop))

    def hide_unknown(self) -> str:
        """Return the text with a question mark for each character that only stands for something."""
        ends = zip(self.stretches, self._stops, strict=True)
        return "".join(
            "?" * each.length if each.unknown else self.text[end - each.length : end] for each, end in ends
        )


EMPTY = Traced()


def connect_pieces(pieces: Sequence[Traced]) -> Traced:
    """Return one text of several pieces."""
    if len(pieces) < 2:
        return pieces[0] if pieces else EMPTY
    stretches = tuple(each for piece in pieces for each in piece.stretches)
    return Traced("".join(piece.text for piece in pieces), stretches)


def trace_unwritten_text(text: str) -> Traced:
    """Return a text that the manifest does not have."""
    return Traced(text, (Stretch(len(text)),) if text else ())


def write_text(text: str, field: Field, index: int) -> Traced:
    """Return a text as it is written in one item of a container."""
    spot = Spot(field, index, 0, len(text))
    return Traced(text, (Stretch(len(text), spot, spot),) if text else ())


def stand_in(text: str, name: str, site: Spot | None) -> Traced:
    """Return a text that stands for what is not known: the value of a variable, a command's output."""
    return Traced(text, (Stretch(len(text), None, site, True, (name,), name),) if text else ())


def as_one(text: str, piece: Traced) -> Traced:
    """Return one character that is written as several: an escape, a doubled sign."""
    shared = (each.shares_site and each.length > 1 for each in piece.stretches)
    site = None if any(shared) else join_spots(each.site for each in piece.stretches)
    last = piece.stretches[-1]
    return Traced(text, (Stretch(1, piece.origin, site, False, last.variables, last.unknown),))


def join_spots(spots: Iterable[Spot | None]) -> Spot | None:
    """Return the spot that adjoining spots make up, or None where they do not adjoin."""
    whole: Spot | None = None
    for spot in spots:
        if spot is None:
            return None
        if whole is not None and (spot[:2] != whole[:2] or spot.start != whole.stop):
            return None
        whole = spot if whole is None else whole._replace(stop=spot.stop)
    return whole


@dataclass(frozen=True, slots=True)
class Place:
    """Where a token stands in its container."""

    field: Field
    index: int
    at: int | None = None
    """The token's first character where it is a part of the item: a word of a shell's script."""
    line: int = 0
    """The line of the item that it stands on, counted from 1; 0 where the item has only one."""
    file: str = ""
    """The configuration file that it stands in instead."""

    def __str__(self) -> str:
        if self.file:
            return f"{self.file} line {self.line}"
        return f"{self.field}[{self.index}]" + (f" line {self.line}" if self.line else "")


@dataclass(frozen=True, slots=True)
class Token:
    """One token of a command line."""

    raw: str
    """As the manifest has it."""
    text: str
    """As the process gets it; `$(NAME)` stays where the value is not in the manifest."""
    place: Place
    variables: tuple[str, ...] = ()
    """The variables that the token refers to."""
    unresolved: tuple[str, ...] = ()
    """Those of them whose value is not in the manifest but set elsewhere."""
    sources: tuple[str, ...] = field(default=(), compare=False)
    """What sets each of the unresolved ones, by object and key; empty where nothing says it."""
    trace: Traced = field(default=EMPTY, compare=False, repr=False)
    """The text with where each of its characters is written."""


@dataclass(frozen=True, slots=True)
class Unquoted:
    """A scalar of a manifest's text that YAML does not read as a string."""

    text: str
    kind: str
    """What it reads as: `number`, `boolean` ..."""

    def __str__(self) -> str:
        return self.text


def item_text(container: Mapping[str, object], name: Field, index: int) -> str:
    """Return the text of one item of command, args or env as the manifest has it."""
    items = container.get(name)
    item = items[index] if isinstance(items, list) and index < len(items) else ""
    return str(item.get("value", "")) if isinstance(item, Mapping) else str(item)


BY_SCRIPT = "the script"
"""The source of a variable that the container's own script sets, as in a branch, which is not followed."""


def variable_source(token: Token) -> str:
    """Return where the unresolved variables of a token are set, to be read after "is" or a comma."""
    if is_set_by_script(token):
        return "set by the script in a way that is not followed (in a branch, a loop or by a command)"
    sources = " and ".join(each for each in dict.fromkeys(token.sources) if each not in ("", BY_SCRIPT))
    return f"set outside of the manifest by {sources}" if sources else "set outside of the manifest"


def is_set_by_script(token: Token) -> bool:
    """Return whether the container's own script sets all unresolved variables of a token."""
    return bool(token.sources) and set(token.sources) == {BY_SCRIPT}
