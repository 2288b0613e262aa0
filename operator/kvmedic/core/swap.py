"""A whole pod template put in place of another, by name and hash.

The templates themselves are in nobody's record: they may contain secrets. The one that is put is read from
its ReplicaSet when that happens, and its hash must be the recorded one.
"""

from __future__ import annotations

from dataclasses import dataclass
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
