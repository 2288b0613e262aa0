"""One reference of a pod template to a ConfigMap, pointed to another ConfigMap and back."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import TypeAlias

from kvmedic.core.bundle import BundleEdit
from kvmedic.core.edit import EditState, PatchOperation, TokenEdit


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
        volume = _item(_mapping(template, "spec").get("volumes"), self.volume_index)
        if volume.get("name") != self.volume:
            return None
        if self.source is not None:
            volume = _item(_mapping(volume, "projected").get("sources"), self.source)
        found = volume.get("configMap")
        return found if isinstance(found, dict) else None


TemplateEdit: TypeAlias = TokenEdit | ReferenceEdit | BundleEdit
"""What a frozen rollout carries: one place of a pod template changed and changed back, or several at once."""


def _mapping(body: Mapping[str, object], key: str) -> Mapping[str, object]:
    found = body.get(key)
    return found if isinstance(found, Mapping) else {}


def _item(items: object, index: int) -> Mapping[str, object]:
    found = items[index] if isinstance(items, list) and 0 <= index < len(items) else None
    return found if isinstance(found, Mapping) else {}
