"""What exactly would be set, on which object, and how it is taken back.

A plan is a tuple of steps. A step is one member of a tagged union; each names its target object, an
absolute assignment and its inverse. A plan holds no live data and no whole lists of arguments:
those may contain secrets, and the plan is written to the resource's status.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Literal, TypeAlias, assert_never

from kvmedic.model.config_edits import FileEdit, Revision, TemplateSwap
from kvmedic.model.edits import BundleStep, ReferenceEdit, TokenEdit
from kvmedic.model.engine import Knob
from kvmedic.model.fleet import ObjectRef
from kvmedic.model.reasons import Reason
from kvmedic.model.trial import GateStep, SameTemplate, TrialStep


class Goal(StrEnum):
    """By what a change is judged."""

    RELIEF = "Relief"
    """Fewer preemptions and smoother answers than before, at comparable load."""
    STEADINESS = "Steadiness"
    """No replica that runs it restarts while requests are served."""
    CALM = "Calm"
    """No replica is beyond the trigger, whatever the load is: fewer replicas do as well."""
    ANSWER = "Answer"
    """Nothing is changed: a trial answers a question."""
    PARITY = "Parity"
    """The fleet is not worse off than before, at comparable load."""


COMPARED = frozenset({Goal.RELIEF, Goal.PARITY})
"""Goals that need the figures of before the change."""


__all__ = [
    "BundleStep",
    "FlagStep",
    "GateStep",
    "Goer",
    "MinimumHolder",
    "ObjectRef",
    "OnTrial",
    "Plan",
    "ReplaceStep",
    "ReplicasStep",
    "RevisionStep",
    "Step",
    "gives_back",
    "is_revocable",
    "template_before",
]


@dataclass(frozen=True, slots=True)
class FlagStep:
    """One engine flag takes another value, on the command line or in a mounted configuration file.

    A file's ConfigMap is never changed: the copy with the new value is made first, then the pod template
    refers to it, by the same rollout. The inverse lets the template refer to the ConfigMap again; the copy
    goes when nothing refers to it any more.

    `before` and `after` are the values as a person reads them, None where the flag is not given.
    `before_template` and `after_template` are hashes of the whole pod template without and with the edit, so
    that anybody else's change is recognised.
    """

    target: ObjectRef
    container: str
    """The engine's container."""
    knob: Knob
    edit: TokenEdit | ReferenceEdit
    before: str | None
    after: str | None
    before_template: str
    after_template: str
    reason: Reason
    file_of: FileEdit | None = None
    """What differs in the copy of the file's ConfigMap, the same in the inverse; None: the flag is on the
    command line."""
    kind: Literal["FlagStep"] = "FlagStep"

    def __post_init__(self) -> None:
        """Refuse a reference to a copy that nobody would make, and a copy that nothing would refer to.

        Raises:
            ValueError: the edit is of a command line and a file is named, or the other way round.
        """
        if isinstance(self.edit, ReferenceEdit) != (self.file_of is not None):
            raise ValueError("a flag in a file is changed by the reference to the file's ConfigMap")

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
        file = self.file_of
        where = f" (ConfigMap/{file.config_map}, {file.key})" if file else ""
        return f"{self.target.kind}/{self.target.name}: {self.knob} {before} -> {after}{where}"


class Goer(StrEnum):
    """Which replica goes when the spare has come and the recorded number is put back."""

    NAMED = "Named"
    """The one that the step names."""
    SPARE = "Spare"
    """The one that came last, so that the named one stays."""


@dataclass(frozen=True, slots=True)
class ReplaceStep(SameTemplate):
    """One replica of the target makes room for a new one of the same pod template.

    Absolute: afterwards there are `replicas` replicas again, and one of those that were there for a
    while is gone: `goes` says which. The template is not touched. Once the named replica is gone
    nothing brings it back, so the inverse counts only until then.
    """

    target: ObjectRef
    container: str | None
    """The engine's container; None: the only one that runs a known engine."""
    pod: str
    uid: str
    """Of the pod: another of the same name is another replica."""
    replicas: int
    """As they were, and as they are to be afterwards."""
    template: str
    """Hash of the pod template, before and after."""
    reason: Reason
    goes: Goer = Goer.NAMED
    kind: Literal["ReplaceStep"] = "ReplaceStep"

    def inverse(self) -> ReplaceStep:
        """Return the step after which the other one of the two replicas is there."""
        goes = Goer.SPARE if self.goes is Goer.NAMED else Goer.NAMED
        return replace(self, goes=goes, reason=Reason.ROLLING_BACK)

    def line(self) -> str:
        """Return the step as one line for a person."""
        end = "-> a new one" if self.goes is Goer.NAMED else "stays"
        return f"{self.target.kind}/{self.target.name}: replica {self.pod} {end}"


@dataclass(frozen=True, slots=True)
class RevisionStep:
    """The target runs the whole pod template of another of its revisions.

    Absolute: `after` is the ReplicaSet that keeps the template, with the template's hash. The template
    itself is in no record, as it may contain secrets.
    """

    target: ObjectRef
    container: str | None
    """The engine's container; None: the only one that runs a known engine."""
    before: Revision
    after: Revision
    reason: Reason
    kind: Literal["RevisionStep"] = "RevisionStep"

    @property
    def before_template(self) -> str:
        """Return the hash of the pod template that the step begins with."""
        return self.before.template

    @property
    def after_template(self) -> str:
        """Return the hash of the pod template that the step ends with."""
        return self.after.template

    @property
    def swap(self) -> TemplateSwap:
        """Return the change of the pod template."""
        return TemplateSwap(self.before, self.after)

    def inverse(self) -> RevisionStep:
        """Return the step that puts the recorded revision back."""
        return replace(self, before=self.after, after=self.before, reason=Reason.ROLLING_BACK)

    def line(self) -> str:
        """Return the step as one line for a person."""
        return (
            f"{self.target.kind}/{self.target.name}: pod template of revision {self.before.number} -> "
            f"of revision {self.after.number}"
        )


@dataclass(frozen=True, slots=True)
class MinimumHolder:
    """An autoscaler that decides the target's number of replicas, by whose minimum it is changed."""

    object: ObjectRef
    """The HorizontalPodAutoscaler or ScaledObject."""
    uid: str
    """Another of the same name is somebody else's decision."""
    is_given: bool
    """The minimum stood in the object before; otherwise it is removed where it is put back."""


@dataclass(frozen=True, slots=True)
class ReplicasStep(SameTemplate):
    """The target has another number of replicas for a while. The pod template is not touched.

    Absolute, both ways: `after` above `before` adds replicas, below it gives them back. They are the number
    on the Deployment itself, and each replica that goes is drained. Where an autoscaler decides the number
    they are its minimum: it makes the replicas and takes them away, and the Deployment's number is never
    touched.
    """

    target: ObjectRef
    container: str | None
    """The engine's container; None: the only one that runs a known engine."""
    before: int
    after: int
    template: str
    """Hash of the pod template, before and after."""
    reason: Reason
    holder: MinimumHolder | None = None
    """None: the Deployment itself has the number."""
    kind: Literal["ReplicasStep"] = "ReplicasStep"

    @property
    def gives_back(self) -> bool:
        """Return whether the step takes away what an earlier one added."""
        return self.after < self.before

    @property
    def number_in(self) -> ObjectRef:
        """Return the object that has the number."""
        return self.holder.object if self.holder else self.target

    @property
    def leaves_number(self) -> bool:
        """Return whether the number stands in its object afterwards, instead of the object's own default."""
        return self.holder is None or self.holder.is_given or not self.gives_back

    def inverse(self) -> ReplicasStep:
        """Return the step that puts the recorded number back."""
        return replace(self, before=self.after, after=self.before, reason=Reason.ROLLING_BACK)

    def line(self) -> str:
        """Return the step as one line for a person."""
        change = f"minimum {self.before} -> {self.after} replicas"
        if self.holder is None:
            change = f"replicas {self.before} -> {self.after}"
        return f"{self.number_in.kind}/{self.number_in.name}: {change}"


Change: TypeAlias = FlagStep | ReplaceStep | RevisionStep | ReplicasStep | BundleStep
"""Every kind of step that changes something of a fleet."""

OnTrial: TypeAlias = TrialStep | GateStep
"""Every kind of step that makes a trial pod and changes nothing of a fleet."""

Step: TypeAlias = Change | OnTrial
"""Every kind of step. A new kind joins here, and mypy then names every place that must know it."""


def template_before(step: Step) -> str:
    """Return the hash of the pod template that a step was planned on."""
    match step:
        case BundleStep() | FlagStep() | RevisionStep():
            return step.before_template
        case ReplaceStep() | ReplicasStep() | TrialStep() | GateStep():
            return step.template
        case _:
            assert_never(step)


def file_copied_by(step: Step) -> FileEdit | None:
    """Return what a step changes in the copy of a ConfigMap; None: it makes no copy."""
    return step.file_of if isinstance(step, FlagStep) else None


def holder_of(step: Step) -> MinimumHolder | None:
    """Return the autoscaler that a step goes through; None: none."""
    return step.holder if isinstance(step, ReplicasStep) else None


def is_beside_fleet(step: Step) -> bool:
    """Return whether a step asks a pod of its own, so that nothing of the fleet is touched."""
    return isinstance(step, OnTrial)


def gives_back(step: Step) -> bool:
    """Return whether a step takes away what an earlier one added or lent for a while."""
    match step:
        case ReplicasStep():
            return step.gives_back
        case FlagStep():
            return step.reason is Reason.HOST_MEMORY_GIVEN_BACK
        case BundleStep() | ReplaceStep() | RevisionStep() | TrialStep() | GateStep():
            return False
        case _:
            assert_never(step)


def is_revocable(step: Step) -> bool:
    """Return whether a step that settled can still be taken back."""
    match step:
        case BundleStep() | FlagStep() | RevisionStep() | ReplicasStep():
            return True
        case ReplaceStep() | TrialStep() | GateStep():
            return False
        case _:
            assert_never(step)


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
