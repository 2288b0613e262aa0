"""What steps have in common that leave the pod template as it is."""

from __future__ import annotations


class SameTemplate:
    """A step that begins and ends with one pod template, whose hash it has as a field."""

    __slots__ = ()
    template: str

    @property
    def before_template(self) -> str:
        """Return the hash of the pod template that the step begins with."""
        return self.template

    @property
    def after_template(self) -> str:
        """Return the hash of the pod template that the step ends with: the same."""
        return self.template
