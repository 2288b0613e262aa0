"""Edits of a pod template: one token, one variable, one reference to a ConfigMap, or a bundle of several.

An edit holds what changes and where it is; never the list around it, which may contain secrets and would end
up in a status. What must be known of the rest is read from the live pod template when the edit is applied.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Self, TypeAlias

Json: TypeAlias = "str | int | float | bool | Sequence[Json] | Mapping[str, Json] | None"
"""A value as it travels in a JSON document."""


DIGITS, EARLIER_DIGITS = 32, 16
"""Hexadecimal digits of an identity: 128 bits, so that nobody finds two contents with one. Up to 0.1.0 it had
half of them; anyone who may choose what is hashed finds two such after some 2^32 tries."""


class Digest(str):
    """The identity of something that was hashed: the first 128 bits of a SHA-256.

    One that an earlier version stored equals every one that begins with it, so that an upgrade in the
    middle of a run loses nothing. Two of today are equal only as a whole. In sets and as keys it finds
    digests and short texts only: a whole one that was read as a text is made a `Digest` first.
    """

    __slots__ = ()

    @classmethod
    def of(cls, body: object) -> Self:
        """Return the identity of a JSON document, by its canonical text."""
        text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return cls(hashlib.sha256(text.encode()).hexdigest()[:DIGITS])

    def __eq__(self, other: object) -> bool:
        """Return whether both name the same, as far as the shorter one goes."""
        if isinstance(other, str) and {len(self), len(other)} == {DIGITS, EARLIER_DIGITS}:
            return self[:EARLIER_DIGITS] == other[:EARLIER_DIGITS]
        return str.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        """Return whether they differ."""
        return not self == other

    def __hash__(self) -> int:
        """Return what equal ones have in common."""
        return hash(self[:EARLIER_DIGITS])


class Field(StrEnum):
    """The list of a container that a token is in."""

    COMMAND = "command"
    ARGS = "args"
    ENV = "env"
    """Of its entries the values count."""


COMMAND_LINE = (Field.COMMAND, Field.ARGS)
"""The lists that make up the process's command line, in order."""


class EditState(StrEnum):
    """What a pod template shows of an edit."""

    BEFORE = "before"
    """The edit can be applied."""
    AFTER = "after"
    """The edit has been applied."""
    OTHER = "other"
    """Neither: somebody else changed the list, or the template is not the one that was read."""


@dataclass(frozen=True, slots=True)
class FieldEdit:
    """Who set a field of the workload last, by the API server's notes."""

    manager: str
    at: str
    """RFC 3339, in whole seconds."""
    is_ours: bool

    def __str__(self) -> str:
        """Return who and when."""
        return f"{self.manager} at {self.at}"


@dataclass(frozen=True, slots=True)
class PatchOperation:
    """One operation of a JSON patch (RFC 6902)."""

    op: str
    path: str
    value: Json = None

    def as_json(self) -> dict[str, Json]:
        """Return the operation as it travels to an API server."""
        body: dict[str, Json] = {"op": self.op, "path": self.path}
        return body if self.op == "remove" else {**body, "value": self.value}


@dataclass(frozen=True, slots=True)
class TokenEdit:
    """One token of one container's command, args or env: before -> after.

    `before` None: the token is inserted at `index`, and what stood there moves up. `after` None:
    the token is removed. With `at` the token is a part of the item's text, which may be a whole shell
    script: it begins at that character, and insertion and removal are within the text. The text
    around it is never kept, as the list is not.
    """

    container: str
    container_index: int
    field: Field
    index: int
    before: str | None
    after: str | None
    at: int | None = None

    def __post_init__(self) -> None:
        """Refuse an edit that says nothing.

        Raises:
            ValueError: neither before nor after is given, an index is negative, or a whole variable
                would be inserted or removed.
        """
        if self.before is None and self.after is None:
            raise ValueError("an edit needs the token before it, after it, or both")
        if min(self.index, self.container_index, self.at or 0) < 0:
            raise ValueError("an edit counts tokens, containers and characters from 0")
        if self.field is Field.ENV and self.at is None and None in {self.before, self.after}:
            raise ValueError("an edit changes a variable's value; it adds and removes no variable")

    def inverse(self) -> TokenEdit:
        """Return the edit that puts the list back."""
        return replace(self, before=self.after, after=self.before)

    def state(self, template: Mapping[str, object]) -> EditState:
        """Return whether a pod template (the value of `spec.template`) has the token before or after.

        An insertion or a removal looks at one place only, so a list that says the same twice in a
        row looks the same as one that says it once: compare whole templates where that matters.
        """
        tokens = self._tokens(template)
        if tokens is None:
            return EditState.OTHER
        if self.at is not None:
            return self._state_within(tokens, self.at)
        here = tokens[self.index] if self.index < len(tokens) else None
        if self.after is not None and here == self.after:
            return EditState.AFTER
        if self.before is not None and here == self.before:
            return EditState.BEFORE
        if self.after is None:
            return EditState.AFTER if self.index <= len(tokens) else EditState.OTHER
        fits = self.before is None and self.index <= len(tokens)
        return EditState.BEFORE if fits else EditState.OTHER

    def _state_within(self, tokens: Sequence[str], at: int) -> EditState:
        """Return the state of a part of an item's text; the longer token may begin with the other."""
        if self.index >= len(tokens) or at > len(tokens[self.index]):
            return EditState.OTHER
        states = [(self.before or "", EditState.BEFORE), (self.after or "", EditState.AFTER)]
        states.sort(key=lambda state: -len(state[0]))
        fitting = (state for token, state in states if tokens[self.index].startswith(token, at))
        return next(fitting, EditState.OTHER)

    def apply(self, template: Mapping[str, object]) -> dict[str, object]:
        """Return a copy of a pod template with the edit in it; the same again if it is in already.

        Raises:
            ValueError: the template shows neither the token before nor after.
        """
        changed = deepcopy(dict(template))
        state = self.state(template)
        if state is EditState.OTHER:
            raise ValueError(f"{self._place()} is not what the edit expects")
        items = self._items(changed)
        if state is EditState.AFTER or items is None:
            return changed
        if self.before is None and self.at is None:
            items.insert(self.index, self.after)
        elif self.after is None and self.at is None:
            del items[self.index]
        else:
            item = items[self.index]
            text = self._edit_text(_text_of(item))
            items[self.index] = {**item, "value": text} if isinstance(item, Mapping) else text
        return changed

    def patch(self, template: Mapping[str, object]) -> tuple[PatchOperation, ...]:
        """Return the JSON patch that makes the edit on a Deployment whose pod template this is.

        Its tests hold the container's name and the whole list as read, because an index proves
        nothing about its neighbours: after a foreign edit the same token may belong to another
        flag. Only the patch on its way to the API server has the list.

        Raises:
            ValueError: the template does not show the token before.
        """
        tokens, items = self._tokens(template), self._items(template)
        if tokens is None or items is None or self.state(template) is not EditState.BEFORE:
            raise ValueError(f"{self._place()} is not what the edit expects")
        container = f"/spec/template/spec/containers/{self.container_index}"
        return (
            PatchOperation("test", f"{container}/name", self.container),
            PatchOperation("test", f"{container}/{self.field}", _as_read(items)),
            self._operation(f"{container}/{self.field}/{self.index}", tokens),
        )

    def _operation(self, path: str, tokens: Sequence[str]) -> PatchOperation:
        if self.at is None and self.after is None:
            return PatchOperation("remove", path)
        if self.at is None and self.before is None:
            return PatchOperation("add", path, self.after)
        value = f"{path}/value" if self.field is Field.ENV else path
        return PatchOperation("replace", value, self._edit_text(tokens[self.index]))

    def _edit_text(self, text: str) -> str:
        if self.at is None:
            return self.after or ""
        return text[: self.at] + (self.after or "") + text[self.at + len(self.before or "") :]

    def _tokens(self, template: Mapping[str, object]) -> list[str] | None:
        """Return the texts of the list, or None where it is not what the edit was made for."""
        items = self._items(template)
        if items is None:
            return None
        here = items[self.index] if self.index < len(items) else None
        if self.field is Field.ENV:
            literal = isinstance(here, Mapping) and isinstance(here.get("value"), str)
            return [_text_of(item) for item in items] if literal else None
        return [_text_of(item) for item in items] if all(isinstance(item, str) for item in items) else None

    def _items(self, template: Mapping[str, object]) -> list[object] | None:
        container = container_at(template, self.container_index)
        if container is None or container.get("name") != self.container:
            return None
        items = container.get(self.field)
        return items if isinstance(items, list) else None

    def _place(self) -> str:
        within = "" if self.at is None else f" from character {self.at}"
        return f"{self.field}[{self.index}]{within} of container {self.container}"


def containers_of(template: Mapping[str, object]) -> tuple[Mapping[str, object], ...]:
    """Return a pod template's containers, each at its index; one that is no object is empty."""
    spec = template.get("spec")
    containers = spec.get("containers") if isinstance(spec, Mapping) else None
    found = containers if isinstance(containers, list) else []
    return tuple(each if isinstance(each, Mapping) else {} for each in found)


def container_at(template: Mapping[str, object], index: int) -> Mapping[str, object] | None:
    """Return one of a pod template's containers, or None where there is none of that index."""
    found = containers_of(template)
    return found[index] if index < len(found) else None


def _text_of(item: object) -> str:
    return str(item.get("value", "")) if isinstance(item, Mapping) else str(item)


def _as_read(items: Iterable[object]) -> Json:
    return tuple(dict(item) if isinstance(item, Mapping) else str(item) for item in items)


@dataclass(frozen=True, slots=True)
class EnvEdit:
    """One literal variable of one container: before -> after; None where it is not given.

    The place is kept both ways, so a variable that was removed comes back to where it stood. Templates are
    taken as an API server keeps them: an empty value is left out, and so is an empty list.
    """

    container: str
    container_index: int
    name: str
    index: int
    """The variable's place in the list, or the one that it gets."""
    before: str | None
    after: str | None

    def __post_init__(self) -> None:
        """Refuse an edit that says nothing.

        Raises:
            ValueError: before and after are the same, the name is empty, or an index is negative.
        """
        if self.before == self.after:
            raise ValueError("an edit of a variable needs two values that differ; one of them may be none")
        if not self.name or min(self.index, self.container_index) < 0:
            raise ValueError("an edit names a variable, and counts variables and containers from 0")

    def inverse(self) -> EnvEdit:
        """Return the edit that puts the variable back."""
        return replace(self, before=self.after, after=self.before)

    def state(self, template: Mapping[str, object]) -> EditState:
        """Return whether a pod template (the value of `spec.template`) gives the variable as before or after.

        A variable that is given twice, or whose value comes from elsewhere, is somebody else's.
        """
        items = self._items(template)
        if items is None:
            return EditState.OTHER
        if self._shows(items, self.after):
            return EditState.AFTER
        return EditState.BEFORE if self._shows(items, self.before) else EditState.OTHER

    def apply(self, template: Mapping[str, object]) -> dict[str, object]:
        """Return a copy of a pod template with the edit in it; the same again if it is in already.

        Raises:
            ValueError: the template gives the variable neither as before nor as after.
        """
        changed = deepcopy(dict(template))
        state, items = self.state(template), self._items(changed)
        container = container_at(changed, self.container_index)
        if state is EditState.OTHER or items is None or not isinstance(container, dict):
            raise ValueError(f"{self._place()} is not what the edit expects")
        if state is EditState.AFTER:
            return changed
        if self.before is None:
            items.insert(self.index, self._item({}))
        elif self.after is None:
            del items[self.index]
        else:
            items[self.index] = self._item(items[self.index])
        container[Field.ENV.value] = items
        if not items:
            del container[Field.ENV.value]
        return changed

    def patch(self, template: Mapping[str, object]) -> tuple[PatchOperation, ...]:
        """Return the JSON patch that makes the edit on a Deployment whose pod template this is.

        Its tests hold the container's name and the whole list as read, which only the patch on its way to the
        API server has. A list that is not there cannot be tested; the Deployment's generation is.

        Raises:
            ValueError: the template does not give the variable as before.
        """
        items = self._items(template)
        if items is None or self.state(template) is not EditState.BEFORE:
            raise ValueError(f"{self._place()} is not what the edit expects")
        container = f"/spec/template/spec/containers/{self.container_index}"
        path = f"{container}/{Field.ENV}"
        tests = [PatchOperation("test", f"{container}/name", self.container)]
        if items:
            tests.append(PatchOperation("test", path, tuple(_read_variable(item) for item in items)))
        return (*tests, self._operation(path, items))

    def _operation(self, path: str, items: list[object]) -> PatchOperation:
        if self.after is None:
            return PatchOperation("remove", path if len(items) == 1 else f"{path}/{self.index}")
        if self.before is not None:
            return PatchOperation("replace", f"{path}/{self.index}", self._item(items[self.index]))
        if not items:
            return PatchOperation("add", path, (self._item({}),))
        return PatchOperation("add", f"{path}/{self.index}", self._item({}))

    def _item(self, item: object) -> dict[str, Json]:
        others = {key: value for key, value in _read_variable(item).items() if key != "value"}
        return {**others, "name": self.name, **({"value": self.after} if self.after else {})}

    def _shows(self, items: list[object], value: str | None) -> bool:
        given = [index for index, item in enumerate(items) if _name_of(item) == self.name]
        if value is None:
            return not given and self.index <= len(items)
        return given == [self.index] and literal_of(items[self.index]) == value

    def _items(self, template: Mapping[str, object]) -> list[object] | None:
        """Return the variables, none where the container has no list; None where it is another container."""
        container = container_at(template, self.container_index)
        if container is None or container.get("name") != self.container:
            return None
        items = container.get(Field.ENV)
        return [] if items is None else items if isinstance(items, list) else None

    def _place(self) -> str:
        return f"variable {self.name} of container {self.container}"


BundlePart: TypeAlias = TokenEdit | EnvEdit


@dataclass(frozen=True, slots=True)
class BundleEdit:
    """Several edits of a pod template that are only ever made together.

    Each part counts on what the parts before it made of the template, its places among others.
    """

    parts: tuple[BundlePart, ...]

    def __post_init__(self) -> None:
        """Refuse a bundle of nothing.

        Raises:
            ValueError: it has no parts.
        """
        if not self.parts:
            raise ValueError("a bundle has at least one part")

    def inverse(self) -> BundleEdit:
        """Return the bundle that puts everything back: the inverses, the last one first."""
        return BundleEdit(tuple(part.inverse() for part in reversed(self.parts)))

    def state(self, template: Mapping[str, object]) -> EditState:
        """Return whether a pod template shows the whole bundle before or after; a half of it is neither.

        An addition fits nearly everywhere, so where both would do the side counts that has a token to show.
        """
        forth, back = self._make_parts(template) is not None, self.inverse()._make_parts(template) is not None
        shown = any(part.before is not None for part in self.parts)
        if forth and (shown or not back):
            return EditState.BEFORE
        return EditState.AFTER if back else EditState.OTHER

    def apply(self, template: Mapping[str, object]) -> dict[str, object]:
        """Return a copy of a pod template with the bundle in it; the same again if it is in already.

        Raises:
            ValueError: the template shows the whole bundle neither before nor after.
        """
        state = self.state(template)
        made = self._make_parts(template) if state is EditState.BEFORE else None
        if state is EditState.OTHER:
            raise ValueError(f"{self._place()} are not what the bundle expects")
        return deepcopy(dict(template)) if made is None else made

    def patch(self, template: Mapping[str, object]) -> tuple[PatchOperation, ...]:
        """Return the one JSON patch that makes all edits on a Deployment whose pod template this is.

        Raises:
            ValueError: the template does not show the whole bundle before.
        """
        if self.state(template) is not EditState.BEFORE:
            raise ValueError(f"{self._place()} are not what the bundle expects")
        operations: list[PatchOperation] = []
        present = template
        for part in self.parts:
            operations += part.patch(present)
            present = part.apply(present)
        return tuple(operations)

    def _make_parts(self, template: Mapping[str, object]) -> dict[str, object] | None:
        """Return a copy of the template with all parts made; None where one of them is not as before."""
        present = deepcopy(dict(template))
        for part in self.parts:
            if part.state(present) is not EditState.BEFORE:
                return None
            present = part.apply(present)
        return present

    def _place(self) -> str:
        return f"{len(self.parts)} settings of container {self.parts[0].container}"


def literal_of(item: object) -> str | None:
    """Return the value of an entry of a container's variables; None where it comes from elsewhere."""
    if not isinstance(item, Mapping) or "valueFrom" in item:
        return None
    value = item.get("value", "")
    return value if isinstance(value, str) else None


def _name_of(item: object) -> object:
    return item.get("name") if isinstance(item, Mapping) else None


def _read_variable(item: object) -> dict[str, Json]:
    return dict(item) if isinstance(item, Mapping) else {}


@dataclass(frozen=True, slots=True)
class ReferenceEdit:
    """The ConfigMap that one volume of a pod template is filled from: before -> after."""

    volume: str
    """Name of the volume."""
    volume_index: int
    """Its place among the pod's volumes."""
    source: int | None
    """Place among the sources of a projected volume; None: the volume is the ConfigMap's alone."""
    before: str
    """Name of a ConfigMap."""
    after: str

    def inverse(self) -> ReferenceEdit:
        """Return the edit that puts the reference back."""
        return replace(self, before=self.after, after=self.before)

    def state(self, template: Mapping[str, object]) -> EditState:
        """Return whether a pod template refers to the ConfigMap before or after."""
        reference = self._reference(template)
        named = None if reference is None else reference.get("name")
        if named == self.after:
            return EditState.AFTER
        return EditState.BEFORE if named == self.before else EditState.OTHER

    def apply(self, template: Mapping[str, object]) -> dict[str, object]:
        """Return a copy of a pod template with the edit in it; the same again if it is in already.

        Raises:
            ValueError: the template refers to neither of the two ConfigMaps.
        """
        changed = deepcopy(dict(template))
        reference = self._reference(changed)
        if reference is None or self.state(template) is EditState.OTHER:
            raise ValueError(f"volume {self.volume} is not what the edit expects")
        reference["name"] = self.after
        return changed

    def patch(self, template: Mapping[str, object]) -> tuple[PatchOperation, ...]:
        """Return the JSON patch that makes the edit on a Deployment whose pod template this is.

        Its tests hold the volume's name and the ConfigMap's, because an index proves nothing.

        Raises:
            ValueError: the template does not refer to the ConfigMap before.
        """
        if self.state(template) is not EditState.BEFORE:
            raise ValueError(f"volume {self.volume} is not what the edit expects")
        volume = f"/spec/template/spec/volumes/{self.volume_index}"
        projected = "" if self.source is None else f"/projected/sources/{self.source}"
        name = f"{volume}{projected}/configMap/name"
        return (
            PatchOperation("test", f"{volume}/name", self.volume),
            PatchOperation("test", name, self.before),
            PatchOperation("replace", name, self.after),
        )

    def _reference(self, template: Mapping[str, object]) -> dict[str, object] | None:
        """Return the place of the ConfigMap's name, or None where the volume is another one."""
        volume = _item(_as_mapping(template, "spec").get("volumes"), self.volume_index)
        if volume.get("name") != self.volume:
            return None
        if self.source is not None:
            volume = _item(_as_mapping(volume, "projected").get("sources"), self.source)
        found = volume.get("configMap")
        return found if isinstance(found, dict) else None


TemplateEdit: TypeAlias = TokenEdit | ReferenceEdit | BundleEdit
"""What a frozen rollout carries: one place of a pod template changed and changed back, or several at once."""


def _as_mapping(body: Mapping[str, object], key: str) -> Mapping[str, object]:
    found = body.get(key)
    return found if isinstance(found, Mapping) else {}


def _item(items: object, index: int) -> Mapping[str, object]:
    found = items[index] if isinstance(items, list) and 0 <= index < len(items) else None
    return found if isinstance(found, Mapping) else {}
