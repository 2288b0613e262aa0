"""The tokens of a container's command line as the engine gets them, with where each character is written.

Kubernetes joins `command` and `args`, and replaces `$(NAME)` by the container's environment (Kubernetes 1.36,
`third_party/forked/golang/expansion`). Variables whose value is not in the manifest stay and are named.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kvmedic.manifests.refusal import LONGEST_WORD, WORD_STEPS, Budget, Refusal, RefusalReason, TooLargeError
from kvmedic.model.edits import COMMAND_LINE, Field
from kvmedic.model.engine import Kind, Option, Scalar


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
        return join_spots(mark.origin for mark in self.marks)

    @property
    def site(self) -> Spot | None:
        """Return the stretch of the command line that the text stands in, or None over several items."""
        spots = [mark.site for mark in self.marks]
        first, last = (spots[0], spots[-1]) if spots else (None, None)
        if first is None or last is None or first[:2] != last[:2]:
            return None
        return first._replace(stop=max(first.stop, last.stop))


EMPTY = Traced()


def connect_pieces(pieces: Sequence[Traced]) -> Traced:
    """Return one text of several pieces."""
    if len(pieces) < 2:
        return pieces[0] if pieces else EMPTY
    marks = tuple(mark for piece in pieces for mark in piece.marks)
    return Traced("".join(piece.text for piece in pieces), marks)


def write_text(text: str, field: Field, index: int, start: int = 0) -> Traced:
    """Return a text as it is written in one item of a container."""
    spots = (Spot(field, index, at, at + 1) for at in range(start, start + len(text)))
    return Traced(text, tuple(Mark(spot, spot) for spot in spots))


def stand_in(text: str, name: str, site: Spot | None) -> Traced:
    """Return a text that stands for what is not known: the value of a variable, a command's output."""
    return Traced(text, (Mark(None, site, (name,), name),) * len(text))


def as_one(text: str, piece: Traced) -> Traced:
    """Return one character that is written as several: an escape, a doubled sign."""
    site = join_spots(mark.site for mark in piece.marks)
    last = piece.marks[-1]
    return Traced(text, (Mark(piece.origin, site, last.variables, last.unknown),))


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
    """What sets each of the unresolved ones, by object and key; empty where nothing tells it."""
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

    def traced(self, name: str) -> Traced:
        """Return a variable's value with where it is written; empty where it is not known."""
        text = self.values.get(name, "")
        if name in self.entries:
            return write_text(text, Field.ENV, self.entries[name])
        return Traced(text, (Mark(),) * len(text))

    def knows_nothing_of(self, name: str) -> bool:
        """Return whether a variable is set, but not in the manifest."""
        if name in self.values:
            return False
        if name in self.elsewhere or self.objects:
            return True
        return len(name) <= _LONGEST_SERVICE_VARIABLE and _SERVICE_VARIABLE.fullmatch(name) is not None

    def source_of(self, name: str) -> str:
        """Return what sets a variable whose value is not in the manifest; empty where nothing tells it.

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
) -> tuple[Token, ...] | Refusal:
    """Return the tokens of command and args, in order."""
    found: list[Token] = []
    for name in COMMAND_LINE:
        items = container.get(name)
        if items is None:
            continue
        if not isinstance(items, list):
            message = f"{name} of container {container.get('name')} is not a list"
            return Refusal(RefusalReason.NOT_TEXT, message)
        for index, item in enumerate(items):
            place = Place(name, index)
            if not isinstance(item, str):
                advice = "remove it or quote it" if item is None else "quote it"
                message = f"{place} is {_kind_of(item)}; Kubernetes takes strings only: {advice}"
                return Refusal(RefusalReason.NOT_TEXT, message)
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


def environment_of(container: Mapping[str, object], budget: Budget) -> Environment | Refusal:
    """Return the environment that a container's `env` and `envFrom` give."""
    budget.enter_container(container)
    try:
        return read_environment(container, budget)
    except TooLargeError as error:
        return error.refusal()


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
        WholeObject(_named(each, _WHOLE) or "envFrom", str(each.get("prefix") or ""))
        for each in entries
        if isinstance(each, Mapping)
    )


def _source(value_from: object) -> str:
    """Return where a variable's `valueFrom` takes its value; empty where it says that in no known way."""
    if not isinstance(value_from, Mapping):
        return ""
    if named := _named(value_from, _KEYS):
        keys = (section.get("key") for section in map(value_from.get, _KEYS) if isinstance(section, Mapping))
        return f"key {str(next(keys, ''))[:_LONGEST_SOURCE]} of {named}"
    for kind, (part, said) in _FIELDS.items():
        section = value_from.get(kind)
        if isinstance(section, Mapping):
            return f"{said} {str(section.get(part))[:_LONGEST_SOURCE]}"
    return ""


def _named(entry: Mapping[str, object], kinds: Mapping[str, str]) -> str:
    """Return kind and name of the object that an entry refers to; empty where it is of no known kind."""
    for field_name, kind in kinds.items():
        section = entry.get(field_name)
        if isinstance(section, Mapping):
            return f"{kind} {str(section.get('name'))[:_LONGEST_SOURCE]}"
    return ""


BY_SCRIPT = "the script"
"""The source of a variable that the container's own script sets, as in a branch, which is not followed."""


def told_source(token: Token) -> str:
    """Return where the unresolved variables of a token are set, to be read after "is" or a comma."""
    if is_set_by_script(token):
        return "set by the script in a way that is not followed (in a branch, a loop or by a command)"
    told = " and ".join(each for each in dict.fromkeys(token.sources) if each not in ("", BY_SCRIPT))
    return f"set outside of the manifest by {told}" if told else "set outside of the manifest"


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
            pieces.append(environment.traced(name).through(name, site))
        elif environment.knows_nothing_of(name):
            marks = (mark._replace(variables=(name,), unknown=name) for mark in piece.marks)
            pieces.append(Traced(piece.text, tuple(marks)))
        else:
            pieces.append(piece)
    return connect_pieces([*pieces, whole.piece(done, len(raw))])


_SUFFIXED = re.compile(r"(?P<number>\d+(?P<fraction>\.\d+)?)(?P<suffix>[kKmMgGtT])")
_DECIMAL = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
"""vLLM 0.32, `human_readable_int` in utils/argparse_utils.py."""


@dataclass(frozen=True, slots=True)
class Malformed:
    """The engine does not accept a text; why, in its own words where these are known."""

    message: str


LARGEST = 2**63 - 1
"""The largest whole number that an engine can hold: its tensors and its allocator count in int64."""
_LONGEST = 100
"""Characters of a value that a message quotes."""


def _quote_text(text: str) -> str:
    return repr(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…")


def read_value(option: Option, text: str) -> Scalar | Malformed:
    """Return the value that an option takes from a text."""
    if option.nullable and text in {"", "None"}:
        return None
    value = _typed_value(option.kind, text)
    if option.choices and not isinstance(value, Malformed) and str(value) not in option.choices:
        listed = ", ".join(repr(choice) for choice in option.choices)
        return Malformed(f"invalid choice: {_quote_text(text)} (choose from {listed})")
    return value


def _typed_value(kind: Kind, text: str) -> Scalar | Malformed:
    match kind:
        case Kind.INT:
            return _integer(text, "int")
        case Kind.HUMAN_INT:
            return _human(text)
        case Kind.HUMAN_INT_OR_AUTO:
            return -1 if text.strip() == "-1" or text.strip().lower() == "auto" else _human(text)
        case Kind.FLOAT:
            return _decimal(text)
        case Kind.TRUTH | Kind.SWITCH | Kind.PRESENCE:
            return _truth(text)
        case Kind.TEXT | Kind.HELP:
            return text


def _integer(text: str, kind: str) -> int | Malformed:
    try:
        return _bounded_whole(int(text), text)
    except ValueError:
        return Malformed(f"invalid {kind} value: {_quote_text(text)}")


def _bounded_whole(value: float, text: str) -> int | Malformed:
    """Return a whole number as it is, where an engine can hold it."""
    if abs(value) > LARGEST:
        return Malformed(f"{_quote_text(text)} is more than an engine can hold: at most {LARGEST}")
    return int(value)


def _human(text: str) -> int | Malformed:
    match = _SUFFIXED.fullmatch(text.strip())
    if match is None:
        return _integer(text, "human_readable_int")
    number, suffix = match["number"], match["suffix"]
    if suffix in _DECIMAL:
        return _bounded_whole(float(number) * _DECIMAL[suffix], text)
    if match["fraction"] is None:
        whole = _integer(number, "human_readable_int")
        return whole if isinstance(whole, Malformed) else _bounded_whole(whole * _BINARY[suffix], text)
    return Malformed(
        f"Decimals are not allowed with binary suffixes like {suffix}. "
        f"Did you mean to use {number}{suffix.lower()} instead?"
    )


def _decimal(text: str) -> float | Malformed:
    try:
        value = float(text)
    except ValueError:
        return Malformed(f"invalid float value: {_quote_text(text)}")
    return value if math.isfinite(value) else Malformed(f"not a finite number: {_quote_text(text)}")


def _truth(text: str) -> bool | Malformed:
    if text.lower() in {"true", "false"}:
        return text.lower() == "true"
    return Malformed(f"invalid boolean value: {_quote_text(text)}; expected true or false")
