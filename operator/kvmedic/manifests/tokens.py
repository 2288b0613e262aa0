"""The tokens of a container's command line, as the engine's process gets them.

Kubernetes joins `command` and `args`, and replaces `$(NAME)` by the container's environment before
the process starts (Kubernetes 1.36, `third_party/forked/golang/expansion`). Variables whose value is
not in the manifest stay as they are and are named.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from kvmedic.core.edit import Field
from kvmedic.manifests.refusal import Refusal, RefusalReason

_SERVICE_VARIABLE = re.compile(
    r"[A-Z0-9_]+_(?:SERVICE_HOST|SERVICE_PORT(?:_\w+)?|PORT(?:_\w+)?)|KUBERNETES_\w+"
)
"""Names that Kubernetes may set for the Services of the namespace."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a token stands in its container."""

    field: Field
    index: int

    def __str__(self) -> str:
        return f"{self.field}[{self.index}]"


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


@dataclass(frozen=True, slots=True)
class Environment:
    """What a manifest says of a container's environment."""

    values: Mapping[str, str] = field(default_factory=dict)
    elsewhere: frozenset[str] = frozenset()
    """Variables whose value is taken from another object or from the pod itself."""
    open_ended: bool = False
    """Whether whole objects are taken in, so that any name may be set."""

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
    for name in Field:
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


def environment_of(container: Mapping[str, object]) -> Environment:
    """Return the environment that a container's `env` and `envFrom` give."""
    entries = container.get("env")
    values: dict[str, str] = {}
    elsewhere: set[str] = set()
    open_ended = bool(container.get("envFrom"))
    for entry in entries if isinstance(entries, list) else ():
        if not isinstance(entry, Mapping) or not isinstance(entry.get("name"), str):
            continue
        name = entry["name"]
        known = Environment(values, frozenset(elsewhere), open_ended)
        text = expand(str(entry.get("value") or ""), known)
        if "valueFrom" in entry or text.unresolved:
            elsewhere.add(name)
            values.pop(name, None)
        else:
            values[name] = text.text
            elsewhere.discard(name)
    return Environment(values, frozenset(elsewhere), open_ended)


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


def _token(raw: str, place: Place, environment: Environment) -> Token:
    expanded = expand(raw, environment)
    return Token(raw, expanded.text, place, expanded.variables, expanded.unresolved)


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
