"""The tokens of a container's command line as the engine gets them, with where each character is written.

Kubernetes joins `command` and `args`, and replaces `$(NAME)` by the container's environment (Kubernetes 1.36,
`third_party/forked/golang/expansion`). Variables whose value is not in the manifest stay and are named.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

from kvmedic.manifests.errors import ErrorReason, ManifestError
from kvmedic.manifests.size_limits import LONGEST_WORD, WORD_STEPS, Budget, TooLargeError
from kvmedic.model.edits import COMMAND_LINE, Field


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


_SERVICE_VARIABLE = re.compile(
    r"[A-Z0-9_]+_(?:SERVICE_HOST|SERVICE_PORT(?:_\w+)?|PORT(?:_\w+)?)|(?:KUBERNETES|LWS)_\w+"
)
"""Names that Kubernetes may set for the Services of the namespace, and LeaderWorkerSet for its pods
(LeaderWorkerSet 0.7, `pkg/utils/pod/pod_utils.go`)."""
_LONGEST_SERVICE_VARIABLE = 253
"""Characters of such a name, at most: a Service's has 63, a LeaderWorkerSet's variable 24."""


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


_MOST_OBJECTS = 8
"""Objects that a message names, at most."""


class WholeObject(NamedTuple):
    """An object each of whose keys becomes a variable."""

    name: str
    """With its kind: `ConfigMap settings`."""
    prefix: str = ""
    """What stands before each key in the variable's name."""


@dataclass(frozen=True, slots=True)
class Environment:
    """What a manifest says of a container's environment."""

    values: Mapping[str, str] = field(default_factory=dict)
    elsewhere: Mapping[str, str] = field(default_factory=dict)
    """Variables whose value is taken from another object or from the pod itself, and where it is there."""
    objects: tuple[WholeObject, ...] = ()
    """Objects that are taken in whole, so that any name may be set."""
    entries: Mapping[str, int] = field(default_factory=dict)
    """The places in `env` of the values that are written there just as they are."""

    def trace_value(self, name: str) -> Traced:
        """Return a variable's value with where it is written; empty where it is not known."""
        text = self.values.get(name, "")
        if name in self.entries:
            return write_text(text, Field.ENV, self.entries[name])
        return trace_unwritten_text(text)

    def knows_nothing_of(self, name: str) -> bool:
        """Return whether a variable is set, but not in the manifest."""
        if name in self.values:
            return False
        if name in self.elsewhere or self.objects:
            return True
        return len(name) <= _LONGEST_SERVICE_VARIABLE and _SERVICE_VARIABLE.fullmatch(name) is not None

    def source_of(self, name: str) -> str:
        """Return what sets a variable whose value is not in the manifest; empty where nothing says it.

        Only names of objects and keys: what they hold is never read here.
        """
        if name in self.elsewhere:
            return self.elsewhere[name]
        places = (
            f"{each.name} (key {name.removeprefix(each.prefix)})" if each.prefix else each.name
            for each in self.objects[:_MOST_OBJECTS]
            if name.startswith(each.prefix)
        )
        return " or ".join(dict.fromkeys(places))


_NOTHING = Environment()
_NAMES_IN_A_STEP = 64
"""Names that are copied in the time of one step (measured)."""


@dataclass(frozen=True, slots=True)
class Unquoted:
    """A scalar of a manifest's text that YAML does not read as a string."""

    text: str
    kind: str
    """What it reads as: `number`, `boolean` ..."""

    def __str__(self) -> str:
        return self.text


def tokens_of(
    container: Mapping[str, object], environment: Environment, budget: Budget
) -> tuple[Token, ...] | ManifestError:
    """Return the tokens of command and args, in order."""
    found: list[Token] = []
    for name in COMMAND_LINE:
        items = container.get(name)
        if items is None:
            continue
        if not isinstance(items, list):
            message = f"{name} of container {container.get('name')} is not a list"
            return ManifestError(ErrorReason.NOT_TEXT, message)
        for index, item in enumerate(items):
            place = Place(name, index)
            if not isinstance(item, str):
                advice = "remove it or quote it" if item is None else "quote it"
                message = f"{place} is {_kind_of(item)}; Kubernetes takes strings only: {advice}"
                return ManifestError(ErrorReason.NOT_TEXT, message)
            budget.enter_field(str(place))
            budget.spend(WORD_STEPS)
            expanded = expand(item, environment, budget)
            trace = trace_of(item, place, environment, budget)
            sources = tuple(environment.source_of(name) for name in expanded.unresolved)
            variables = expanded.variables, expanded.unresolved, sources
            found.append(Token(item, expanded.text, place, *variables, trace))
    return tuple(found)


def _kind_of(item: object) -> str:
    match item:
        case None:
            return "empty"
        case list() | Mapping():
            return "a list or a mapping"
        case Unquoted():
            return f"the {item.kind} {item}"
        case _:
            return f"the {'boolean' if isinstance(item, bool) else 'number'} {item}"


def item_text(container: Mapping[str, object], name: Field, index: int) -> str:
    """Return the text of one item of command, args or env as the manifest has it."""
    items = container.get(name)
    item = items[index] if isinstance(items, list) and index < len(items) else ""
    return str(item.get("value", "")) if isinstance(item, Mapping) else str(item)


def environment_of(container: Mapping[str, object], budget: Budget) -> Environment | ManifestError:
    """Return the environment that a container's `env` and `envFrom` give."""
    budget.enter_container(container)
    try:
        return read_environment(container, budget)
    except TooLargeError as error:
        return error.as_manifest_error()


def read_environment(container: Mapping[str, object], budget: Budget) -> Environment:
    """Return the environment that a container's `env` and `envFrom` give."""
    items = container.get("env")
    values: dict[str, str] = {}
    elsewhere: dict[str, str] = {}
    entries: dict[str, int] = {}
    objects = _whole_objects(container.get("envFrom"))
    for index, entry in enumerate(items if isinstance(items, list) else ()):
        if not isinstance(entry, Mapping) or not isinstance(entry.get("name"), str):
            continue
        name, raw = entry["name"], str(entry.get("value") or "")
        budget.enter_field(f"env[{index}] ({name})")
        budget.spend(1 + (len(elsewhere) // _NAMES_IN_A_STEP if "$" in raw else 0))
        known = Environment(values, elsewhere, objects) if "$" in raw else _NOTHING
        text = expand(raw, known, budget)
        entries.pop(name, None)
        if "valueFrom" in entry or text.unresolved:
            elsewhere[name] = (
                _source(entry["valueFrom"])
                if "valueFrom" in entry
                else next(filter(None, map(known.source_of, text.unresolved)), "")
            )
            values.pop(name, None)
            continue
        values[name] = text.text
        elsewhere.pop(name, None)
        if text.text == raw and isinstance(entry.get("value"), str):
            entries[name] = index
    return Environment(values, elsewhere, objects, entries)


_LONGEST_SOURCE = 253
"""Characters of an object's name, and of a key, at most (Kubernetes 1.36, `validation.IsConfigMapKey`)."""
_KEYS = {"configMapKeyRef": "ConfigMap", "secretKeyRef": "Secret"}
_WHOLE = {"configMapRef": "ConfigMap", "secretRef": "Secret"}
_FIELDS = {
    "fieldRef": ("fieldPath", "the pod's own field"),
    "resourceFieldRef": ("resource", "the container's own"),
}


def _whole_objects(entries: object) -> tuple[WholeObject, ...]:
    """Return the objects that `envFrom` takes in; one of another kind by the field's name alone."""
    if not isinstance(entries, list):
        return (WholeObject("envFrom"),) if entries else ()
    return tuple(
        WholeObject(_name_object(each, _WHOLE) or "envFrom", str(each.get("prefix") or ""))
        for each in entries
        if isinstance(each, Mapping)
    )


def _source(value_from: object) -> str:
    """Return where a variable's `valueFrom` takes its value; empty where it says that in no known way."""
    if not isinstance(value_from, Mapping):
        return ""
    if named := _name_object(value_from, _KEYS):
        keys = (section.get("key") for section in map(value_from.get, _KEYS) if isinstance(section, Mapping))
        return f"key {str(next(keys, ''))[:_LONGEST_SOURCE]} of {named}"
    for kind, (part, said) in _FIELDS.items():
        section = value_from.get(kind)
        if isinstance(section, Mapping):
            return f"{said} {str(section.get(part))[:_LONGEST_SOURCE]}"
    return ""


def _name_object(entry: Mapping[str, object], kinds: Mapping[str, str]) -> str:
    """Return kind and name of the object that an entry refers to; empty where it is of no known kind."""
    for field_name, kind in kinds.items():
        section = entry.get(field_name)
        if isinstance(section, Mapping):
            return f"{kind} {str(section.get('name'))[:_LONGEST_SOURCE]}"
    return ""


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


@dataclass(frozen=True, slots=True)
class Expanded:
    """A text with its variables replaced."""

    text: str
    variables: tuple[str, ...]
    unresolved: tuple[str, ...]


_REFERENCE = re.compile(r"\$(?:(?P<escape>\$)|\((?P<name>[^)]*)\))")
_ESCAPE = re.compile(r"\$(?:(?P<escape>\$)|(?P<name>(?!)))")


def expand(text: str, environment: Environment, budget: Budget) -> Expanded:
    """Return a text with each `$(NAME)` replaced and each `$$` halved, as Kubernetes does it.

    A text without references costs nothing: it may be a file that a program gets in a variable.
    """
    if "$" not in text:
        return Expanded(text, (), ())
    pieces: list[str] = []
    names: list[str] = []
    length, done = len(text), 0
    for match in _references(text):
        name = match["name"]
        piece = "$" if match["escape"] else environment.values.get(name, match[0])
        budget.spend(2)
        length += len(piece) - len(match[0])
        if length > LONGEST_WORD:
            break
        pieces += [text[done : match.start()], piece]
        names += [] if match["escape"] else [name]
        done = match.end()
    budget.spend_text(length)
    unresolved = tuple(name for name in names if environment.knows_nothing_of(name))
    return Expanded("".join([*pieces, text[done:]]), tuple(names), unresolved)


def _references(text: str) -> Iterator[re.Match[str]]:
    """Yield each `$(NAME)` and `$$` of a text; one that is not closed is none."""
    closed = text.rfind(")") + 1
    yield from _REFERENCE.finditer(text, 0, closed)
    yield from _ESCAPE.finditer(text, closed)


def trace_of(raw: str, place: Place, environment: Environment, budget: Budget) -> Traced:
    """Return a text with its variables replaced, and where each character is written."""
    budget.spend_text(len(raw))
    whole, done = write_text(raw, place.field, place.index), 0
    pieces: list[Traced] = []
    for match in _references(raw):
        start, stop = match.span()
        piece, name = whole.piece(start, stop), match["name"]
        pieces.append(whole.piece(done, start))
        done = stop
        if match["escape"]:
            pieces.append(as_one("$", piece))
        elif name in environment.values:
            budget.spend_text(len(environment.values[name]))
            site = Spot(place.field, place.index, start, stop)
            pieces.append(environment.trace_value(name).through(name, site))
        elif environment.knows_nothing_of(name):
            unknown = (each._replace(variables=(name,), unknown=name) for each in piece.stretches)
            pieces.append(Traced(piece.text, tuple(unknown)))
        else:
            pieces.append(piece)
    return connect_pieces([*pieces, whole.piece(done, len(raw))])
