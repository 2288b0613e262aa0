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
    """One token of one container's command or args: before -> after.

    `before` None: the token is inserted at `index`, and what stood there moves up. `after` None:
    the token is removed.
    """

    container: str
    container_index: int
    field: Field
    index: int
    before: str | None
    after: str | None

    def __post_init__(self) -> None:
        """Refuse an edit that says nothing.

        Raises:
            ValueError: neither before nor after is given, or an index is negative.
        """
        if self.before is None and self.after is None:
            raise ValueError("an edit needs the token before it, after it, or both")
        if self.index < 0 or self.container_index < 0:
            raise ValueError("an edit counts tokens and containers from 0")

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
        here = tokens[self.index] if self.index < len(tokens) else None
        if self.after is not None and here == self.after:
            return EditState.AFTER
        if self.before is not None and here == self.before:
            return EditState.BEFORE
        if self.after is None:
            return EditState.AFTER if self.index <= len(tokens) else EditState.OTHER
        fits = self.before is None and self.index <= len(tokens)
        return EditState.BEFORE if fits else EditState.OTHER

    def apply(self, template: Mapping[str, object]) -> dict[str, object]:
        """Return a copy of a pod template with the edit in it; the same again if it is in already.

        Raises:
            ValueError: the template shows neither the token before nor after.
        """
        changed = deepcopy(dict(template))
        state = self.state(template)
        if state is EditState.OTHER:
            raise ValueError(f"{self._place()} is not what the edit expects")
        tokens = self._tokens(changed)
        if state is EditState.BEFORE and tokens is not None:
            stop = self.index if self.before is None else self.index + 1
            tokens[self.index : stop] = [] if self.after is None else [self.after]
        return changed

    def patch(self, template: Mapping[str, object]) -> tuple[PatchOperation, ...]:
        """Return the JSON patch that makes the edit on a Deployment whose pod template this is.

        Its tests hold the container's name and the whole list as read, because an index proves
        nothing about its neighbours: after a foreign edit the same token may belong to another
        flag. Only the patch on its way to the API server has the list.

        Raises:
            ValueError: the template does not show the token before.
        """
        tokens = self._tokens(template)
        if tokens is None or self.state(template) is not EditState.BEFORE:
            raise ValueError(f"{self._place()} is not what the edit expects")
        container = f"/spec/template/spec/containers/{self.container_index}"
        path = f"{container}/{self.field}/{self.index}"
        return (
            PatchOperation("test", f"{container}/name", self.container),
            PatchOperation("test", f"{container}/{self.field}", tuple(tokens)),
            self._operation(path),
        )

    def _operation(self, path: str) -> PatchOperation:
        if self.after is None:
            return PatchOperation("remove", path)
        return PatchOperation("add" if self.before is None else "replace", path, self.after)

    def _tokens(self, template: Mapping[str, object]) -> list[str] | None:
        container = container_at(template, self.container_index)
        if container is None or container.get("name") != self.container:
            return None
        tokens = container.get(self.field)
        if not isinstance(tokens, list) or not _all_text(tokens):
            return None
        return tokens

    def _place(self) -> str:
        return f"{self.field}[{self.index}] of container {self.container}"


def container_at(template: Mapping[str, object], index: int) -> Mapping[str, object] | None:
    """Return one of a pod template's containers, or None where there is none of that index."""
    spec = template.get("spec")
    containers = spec.get("containers") if isinstance(spec, Mapping) else None
    if not isinstance(containers, list) or index >= len(containers):
        return None
    container = containers[index]
    return container if isinstance(container, Mapping) else None


def _all_text(tokens: Iterable[object]) -> bool:
    return all(isinstance(token, str) for token in tokens)
