"""A whole pod template put in place of another, by name and hash.

The templates themselves are in nobody's record: they may contain secrets. The one that is put is read from
its ReplicaSet when that happens, and its hash must be the recorded one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from kvmedic.core.reference import TemplateEdit
from kvmedic.core.revisions import Revision


@dataclass(frozen=True, slots=True)
class TemplateSwap:
    """The pod template of one revision takes the place of another's."""

    before: Revision
    after: Revision

    def inverse(self) -> TemplateSwap:
        """Return the swap that puts the other template back."""
        return TemplateSwap(self.after, self.before)


TemplateChange: TypeAlias = TemplateEdit | TemplateSwap
"""What turns one pod template into another."""


@dataclass(frozen=True, slots=True)
class EditedTemplate:
    """A pod template that is put as a whole: the live one with a run's change taken out of it.

    It may hold secrets: it goes from the look into the patch, and is nowhere else.
    """

    template: Mapping[str, object] = field(repr=False)
