"""One token of one container's command line, changed and changed back.

An edit holds the one token that changes and where it is; never the list around it, which may
contain secrets and would end up in a status. What must be known of the rest is read from the live
pod template when the edit is applied.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypeAlias

Json: TypeAlias = "str | int | float | bool | Sequence[Json] | Mapping[str, Json] | None"
"""A value as it travels in a JSON document."""


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
        row can't be told from one that says it once: compare whole templates where that matters.
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
            text = self._edited(_text_of(item))
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
        return PatchOperation("replace", value, self._edited(tokens[self.index]))

    def _edited(self, text: str) -> str:
        """Return an item's text with the token after in place of the one before."""
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
    """Return a token's text, or that of a variable's value; a variable from elsewhere has none."""
    return str(item.get("value", "")) if isinstance(item, Mapping) else str(item)


def _as_read(items: Iterable[object]) -> Json:
    """Return the items of a list as they travel to an API server."""
    return tuple(dict(item) if isinstance(item, Mapping) else str(item) for item in items)
