"""The tokens of a container's command line, as the engine's process gets them.

Kubernetes joins `command` and `args`, and replaces `$(NAME)` by the container's environment before
the process starts (Kubernetes 1.36, `third_party/forked/golang/expansion`). Variables whose value is
not in the manifest stay as they are and are named.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from kvmedic.core.edit import COMMAND_LINE, Field
from kvmedic.manifests.refusal import Refusal, RefusalReason
from kvmedic.manifests.traced import EMPTY, Mark, Spot, Traced, as_one, written

_SERVICE_VARIABLE = re.compile(
    r"[A-Z0-9_]+_(?:SERVICE_HOST|SERVICE_PORT(?:_\w+)?|PORT(?:_\w+)?)|(?:KUBERNETES|LWS)_\w+"
)
"""Names that Kubernetes may set for the Services of the namespace, and LeaderWorkerSet for its pods
(LeaderWorkerSet 0.7, `pkg/utils/pod/pod_utils.go`)."""


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
    trace: Traced = field(default=EMPTY, compare=False, repr=False)
    """The text with where each of its characters is written."""


@dataclass(frozen=True, slots=True)
class Environment:
    """What a manifest says of a container's environment."""

    values: Mapping[str, str] = field(default_factory=dict)
    elsewhere: frozenset[str] = frozenset()
    """Variables whose value is taken from another object or from the pod itself."""
    open_ended: bool = False
    """Whether whole objects are taken in, so that any name may be set."""
    entries: Mapping[str, int] = field(default_factory=dict)
    """The places in `env` of the values that are written there just as they are."""

    def traced(self, name: str) -> Traced:
        """Return a variable's value with where it is written; empty where it is not known."""
        text = self.values.get(name, "")
        if name in self.entries:
            return written(text, Field.ENV, self.entries[name])
        return Traced(text, (Mark(),) * len(text))

    def knows_nothing_of(self, name: str) -> bool:
        """Return whether a variable is set, but not in the manifest."""
        if name in self.values:
            return False
        return name in self.elsewhere or self.open_ended or _SERVICE_VARIABLE.fullmatch(name) is not None


@dataclass(frozen=True, slots=True)
class Unquoted:
    """A scalar of a manifest's text that YAML does not read as a string."""

    text: str
    kind: str
    """What it reads as: `number`, `boolean` ..."""

    def __str__(self) -> str:
        return self.text


def tokens_of(container: Mapping[str, object]) -> tuple[Token, ...] | Refusal:
    """Return the tokens of command and args, in order."""
    environment = environment_of(container)
    found: list[Token] = []
    for name in COMMAND_LINE:
        items = container.get(name)
        if items is None:
            continue
        if not isinstance(items, list):
            return _not_text(f"{name} of container {container.get('name')} is not a list")
        for index, item in enumerate(items):
            if not isinstance(item, str):
                return _not_text(_item_message(Place(name, index), item))
            found.append(_token(item, Place(name, index), environment))
    return tuple(found)


def item_text(container: Mapping[str, object], name: Field, index: int) -> str:
    """Return the text of one item of command, args or env as the manifest has it."""
    items = container.get(name)
    item = items[index] if isinstance(items, list) and index < len(items) else ""
    return str(item.get("value", "")) if isinstance(item, Mapping) else str(item)


def environment_of(container: Mapping[str, object]) -> Environment:
    """Return the environment that a container's `env` and `envFrom` give."""
    items = container.get("env")
    values: dict[str, str] = {}
    elsewhere: set[str] = set()
    entries: dict[str, int] = {}
    open_ended = bool(container.get("envFrom"))
    for index, entry in enumerate(items if isinstance(items, list) else ()):
        if not isinstance(entry, Mapping) or not isinstance(entry.get("name"), str):
            continue
        name = entry["name"]
        known = Environment(values, frozenset(elsewhere), open_ended)
        raw = str(entry.get("value") or "")
        text = expand(raw, known)
        entries.pop(name, None)
        if "valueFrom" in entry or text.unresolved:
            elsewhere.add(name)
            values.pop(name, None)
            continue
        values[name] = text.text
        elsewhere.discard(name)
        if text.text == raw and isinstance(entry.get("value"), str):
            entries[name] = index
    return Environment(values, frozenset(elsewhere), open_ended, entries)


@dataclass(frozen=True, slots=True)
class Expanded:
    """A text with its variables replaced."""

    text: str
    variables: tuple[str, ...]
    unresolved: tuple[str, ...]


_REFERENCE = re.compile(r"\$(?:(?P<escape>\$)|\((?P<name>[^)]*)\))")


def expand(text: str, environment: Environment) -> Expanded:
    """Return a text with each `$(NAME)` replaced and each `$$` halved, as Kubernetes does it."""
    names: list[str] = []

    def replacement(match: re.Match[str]) -> str:
        if match["escape"]:
            return "$"
        names.append(match["name"])
        return environment.values.get(match["name"], match[0])

    result = _REFERENCE.sub(replacement, text)
    unresolved = tuple(name for name in names if environment.knows_nothing_of(name))
    return Expanded(result, tuple(names), unresolved)


def trace_of(raw: str, place: Place, environment: Environment) -> Traced:
    """Return a text with its variables replaced, and where each character is written."""
    whole, traced, done = written(raw, place.field, place.index), EMPTY, 0
    for match in _REFERENCE.finditer(raw):
        start, stop = match.span()
        traced += whole.piece(done, start)
        piece, name, done = whole.piece(start, stop), match["name"], stop
        if match["escape"]:
            traced += as_one("$", piece)
        elif name in environment.values:
            traced += environment.traced(name).through(name, Spot(place.field, place.index, start, stop))
        elif environment.knows_nothing_of(name):
            traced += Traced(
                piece.text, tuple(m._replace(variables=(name,), unknown=name) for m in piece.marks)
            )
        else:
            traced += piece
    return traced + whole.piece(done, len(raw))


def _token(raw: str, place: Place, environment: Environment) -> Token:
    expanded = expand(raw, environment)
    trace = trace_of(raw, place, environment)
    return Token(raw, expanded.text, place, expanded.variables, expanded.unresolved, trace)


def _item_message(place: Place, item: object) -> str:
    if item is None:
        return f"{place} is empty; Kubernetes takes strings only: remove it or quote it"
    kind = "a list or a mapping" if isinstance(item, list | Mapping) else f"the {_word(item)} {item}"
    return f"{place} is {kind}; Kubernetes takes strings only: quote it"


def _word(item: object) -> str:
    if isinstance(item, Unquoted):
        return item.kind
    return "boolean" if isinstance(item, bool) else "number"


def _not_text(message: str) -> Refusal:
    return Refusal(RefusalReason.NOT_TEXT, message)
