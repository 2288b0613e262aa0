"""What exactly would be set, on which object, and how it is taken back.

A plan is a tuple of steps. A step is one member of a tagged union; each names its target object, an
absolute assignment and its inverse. A plan holds no live data and no whole lists of arguments:
those may contain secrets, and the plan is written to the resource's status.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from typing import Literal, TypeAlias

from kvmedic.core.edit import TokenEdit
from kvmedic.core.engine import Knob
from kvmedic.core.reasons import Reason


@dataclass(frozen=True, slots=True)
class ObjectRef:
    """One Kubernetes object in the resource's own namespace."""

    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class FlagStep:
    """One engine flag of the target takes another value.

    `before` and `after` are the values as a person reads them; `before` is None when the flag was
    not given. `before_template` and `after_template` are hashes of the whole pod template without
    and with the edit, so that anybody else's change is recognised.
    """

    target: ObjectRef
    knob: Knob
    edit: TokenEdit
    before: str | None
    after: str | None
    before_template: str
    after_template: str
    reason: Reason
    kind: Literal["FlagStep"] = "FlagStep"

    def inverse(self) -> FlagStep:
        """Return the step that puts the recorded value back."""
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
        before, after = self.before or "(engine default)", self.after or "(engine default)"
        return f"{self.target.kind}/{self.target.name}: {self.knob} {before} -> {after}"


Step: TypeAlias = FlagStep
"""Every kind of step. A new kind joins here, and mypy then names every place that must know it."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps that would be taken, bound to what they were computed from."""

    steps: tuple[Step, ...]
    target_uid: str
    template: str
    """Hash of the target's pod template when the plan was made."""
    spec_generation: int
    reason: Reason
    message: str = ""
    """One sentence with the numbers behind the plan."""

    @property
    def digest(self) -> str:
        """Return the plan's identity: 16 hexadecimal digits over its canonical JSON.

        The message is not part of it: wording may change, the assignment may not.
        """
        body = {
            "steps": [asdict(step) for step in self.steps],
            "targetUid": self.target_uid,
            "template": self.template,
            "specGeneration": self.spec_generation,
        }
        text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]
