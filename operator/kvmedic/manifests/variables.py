"""A container's environment variables, and what `$(NAME)` in its command line becomes by them.

Kubernetes replaces `$(NAME)` by the container's environment (Kubernetes 1.36,
`third_party/forked/golang/expansion`). Variables whose value is not in the manifest stay and are named.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from kvmedic.manifests.errors import ManifestError
from kvmedic.manifests.size_limits import LONGEST_WORD, Budget, TooLargeError
from kvmedic.manifests.tokens import (
    Place,
    Spot,
    Traced,
    as_one,
    connect_pieces,
    trace_unwritten_text,
    write_text,
)
from kvmedic.model.edits import Field

_SERVICE_VARIABLE = re.compile(
    r"[A-Z0-9_]+_(?:SERVICE_HOST|SERVICE_PORT(?:_\w+)?|PORT(?:_\w+)?)|(?:KUBERNETES|LWS)_\w+"
)
"""Names that Kubernetes may set for the Services of the namespace, and LeaderWorkerSet for its pods
(LeaderWorkerSet 0.7, `pkg/utils/pod/pod_utils.go`)."""
_LONGEST_SERVICE_VARIABLE = 253
"""Characters of such a name, at most: a Service's has 63, a LeaderWorkerSet's variable 24."""


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
