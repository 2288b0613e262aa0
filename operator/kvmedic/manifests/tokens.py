"""The tokens of a container's command line, as the engine's process gets them.

Kubernetes joins `command` and `args`, and replaces `$(NAME)` by the container's environment before
the process starts (Kubernetes 1.36, `third_party/forked/golang/expansion`). Variables whose value is
not in the manifest stay as they are and are named.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from kvmedic.core.edit import COMMAND_LINE, Field
from kvmedic.manifests.budget import LONGEST_WORD, WORD_STEPS, Budget, TooLargeError
from kvmedic.manifests.refusal import Refusal, RefusalReason
from kvmedic.manifests.traced import EMPTY, Mark, Spot, Traced, as_one, connected, written

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
        if name in self.elsewhere or self.open_ended:
            return True
        return len(name) <= _LONGEST_SERVICE_VARIABLE and _SERVICE_VARIABLE.fullmatch(name) is not None


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
    """Return the tokens of command and args, in order.

    Raises:
        TooLargeError: the budget is spent.
    """
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
            found.append(_token(item, Place(name, index), environment, budget))
    return tuple(found)


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
    """Return the environment that a container's `env` and `envFrom` give.

    Raises:
        TooLargeError: the budget is spent.
    """
    items = container.get("env")
    values: dict[str, str] = {}
    elsewhere: set[str] = set()
    entries: dict[str, int] = {}
    open_ended = bool(container.get("envFrom"))
    for index, entry in enumerate(items if isinstance(items, list) else ()):
        if not isinstance(entry, Mapping) or not isinstance(entry.get("name"), str):
            continue
        name, raw = entry["name"], str(entry.get("value") or "")
        budget.enter_field(f"env[{index}] ({name})")
        budget.spend(1 + (len(elsewhere) // _NAMES_IN_A_STEP if "$" in raw else 0))
        known = Environment(values, frozenset(elsewhere), open_ended) if "$" in raw else _NOTHING
        text = expand(raw, known, budget)
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
_ESCAPE = re.compile(r"\$(?:(?P<escape>\$)|(?P<name>(?!)))")


def expand(text: str, environment: Environment, budget: Budget) -> Expanded:
    """Return a text with each `$(NAME)` replaced and each `$$` halved, as Kubernetes does it.

    A text without references costs nothing: it may be a file that a program gets in a variable.

    Raises:
        TooLargeError: the budget is spent.
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
    """Return a text with its variables replaced, and where each character is written.

    Raises:
        TooLargeError: the budget is spent.
    """
    budget.spend_text(len(raw))
    whole, done = written(raw, place.field, place.index), 0
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
    return connected([*pieces, whole.piece(done, len(raw))])


def _token(raw: str, place: Place, environment: Environment, budget: Budget) -> Token:
    budget.enter_field(str(place))
    budget.spend(WORD_STEPS)
    expanded = expand(raw, environment, budget)
    trace = trace_of(raw, place, environment, budget)
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
