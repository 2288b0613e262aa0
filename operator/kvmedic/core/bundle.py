"""Several tokens and variables of one container, changed together and changed back together.

Half a bundle is a setting that nobody ever ran, so there is one JSON patch for all of it, and a pod template
shows either the whole bundle before, the whole bundle after, or something else.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from kvmedic.core.compression_policy import Fix
from kvmedic.core.edit import EditState, Field, Json, PatchOperation, TokenEdit, container_at
from kvmedic.core.object_ref import ObjectRef
from kvmedic.core.reasons import Reason


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
            tests.append(PatchOperation("test", path, tuple(_as_read(item) for item in items)))
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
        """Return an entry of the list with the value after."""
        others = {key: value for key, value in _as_read(item).items() if key != "value"}
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
        forth, back = self._made(template) is not None, self.inverse()._made(template) is not None
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
        made = self._made(template) if state is EditState.BEFORE else None
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

    def _made(self, template: Mapping[str, object]) -> dict[str, object] | None:
        """Return a copy of the template with all parts made; None where one of them is not as before."""
        present = deepcopy(dict(template))
        for part in self.parts:
            if part.state(present) is not EditState.BEFORE:
                return None
            present = part.apply(present)
        return present

    def _place(self) -> str:
        return f"{len(self.parts)} settings of container {self.parts[0].container}"


@dataclass(frozen=True, slots=True)
class BundleStep:
    """All settings of one method of compression take other values, in one pod template and one rollout.

    `before` and `after` are for a person; what is put back is in the edit.
    """

    target: ObjectRef
    container: str
    """The engine's container."""
    method: str
    edit: BundleEdit
    before: str
    after: str
    before_template: str
    after_template: str
    reason: Reason
    fix: Fix = Fix.REVERT_BUNDLE
    """Which of those that the spec allows; that one turns a method off, the others turn one on."""
    undoes: Fix | None = None
    """The fix that had turned on what is turned off."""
    kind: Literal["BundleStep"] = "BundleStep"

    def inverse(self) -> BundleStep:
        """Return the step that puts all recorded values back."""
        return replace(
            self,
            edit=self.edit.inverse(),
            before=self.after,
            after=self.before,
            before_template=self.after_template,
            after_template=self.before_template,
            reason=Reason.ROLLING_BACK,
        )

    def line(self) -> str:
        """Return the step as one line for a person."""
        return f"{self.target.kind}/{self.target.name}: {self.method} {self.before} -> {self.after}"


def literal_of(item: object) -> str | None:
    """Return the value of an entry of a container's variables; None where it comes from elsewhere."""
    if not isinstance(item, Mapping) or "valueFrom" in item:
        return None
    value = item.get("value", "")
    return value if isinstance(value, str) else None


def _name_of(item: object) -> object:
    return item.get("name") if isinstance(item, Mapping) else None


def _as_read(item: object) -> dict[str, Json]:
    return dict(item) if isinstance(item, Mapping) else {}
