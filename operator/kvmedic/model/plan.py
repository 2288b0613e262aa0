"""What exactly would be set, on which object, and how it is taken back.

A plan is a tuple of steps. A step is one member of a tagged union; each names its target object, an
absolute assignment and its inverse. A plan holds no live data and no whole lists of arguments:
those may contain secrets, and the plan is written to the resource's status.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import ClassVar, Literal, Self, TypeAlias

from kvmedic.model.compression import Keep
from kvmedic.model.config_edits import FileEdit, OwnerField, Revision, TemplateChange, TemplateSwap
from kvmedic.model.edits import BundleEdit, Digest, ReferenceEdit, TemplateEdit, TokenEdit
from kvmedic.model.engine import Knob
from kvmedic.model.fleet import ObjectRef
from kvmedic.model.reasons import Reason
from kvmedic.model.spec import Fix
from kvmedic.model.trial import Question


class Goal(StrEnum):
    """By what a change is judged."""

    RELIEF = "Relief"
    """Fewer preemptions and smoother answers than before, at comparable load."""
    STAYS_UP = "StaysUp"
    """No replica that runs it restarts while requests are served."""
    CALM = "Calm"
    """No replica is beyond the trigger, whatever the load is: fewer replicas do as well."""
    ANSWER = "Answer"
    """Nothing is changed: a trial answers a question."""
    NO_WORSE = "NoWorse"
    """The fleet is not worse off than before, at comparable load."""


COMPARED = frozenset({Goal.RELIEF, Goal.NO_WORSE})
"""Goals that need the figures of before the change."""


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
class Shown:
    """What a step changes, for a person."""

    what: str
    """A knob, a method of compression, or one of the words below."""
    before: str | None
    """None: not given, so the engine's default."""
    after: str | None


REPLICA = "replica"
REVISION = "revision"
REPLICAS = "replicas"
MINIMUM = "minimum of replicas"
TRIAL = "trial pod"
A_NEW_ONE = "a new one"


class AnyStep(ABC):
    """What the rest of the program may ask of every kind of step, and the usual answers.

    A kind that differs says so in its own class.
    """

    __slots__ = ()
    is_revocable: ClassVar[bool] = True
    """It can still be taken back once it settled."""
    is_on_trial: ClassVar[bool] = False
    """It asks a pod of its own, so that nothing of the fleet is touched."""
    is_a_number: ClassVar[bool] = False
    """It is another number of replicas, so it counts on the number as long as its run is open."""
    keeps_pool: ClassVar[bool] = True
    """A replica with the change has about as many KV-cache blocks as one without."""

    @property
    def template_change(self) -> TemplateChange | None:
        """Return what the step changes of the pod template; None: nothing."""
        return None

    @property
    def file_of(self) -> FileEdit | None:
        """Return what differs in the copy of a ConfigMap; None: the step makes no copy."""
        return None

    @property
    def holder(self) -> MinimumHolder | None:
        """Return the autoscaler that the step goes through; None: none."""
        return None

    @property
    def through(self) -> OwnerField | None:
        """Return the field of the owner's object that the step goes through; None: none."""
        return None

    @property
    def gives_back(self) -> bool:
        """Return whether the step takes away what an earlier one added for a while."""
        return False

    @property
    def counts_on(self) -> int | None:
        """Return the number of replicas that the Deployment must have when the step begins; None: any."""
        return None

    @property
    def most_replicas(self) -> int:
        """Return how many replicas there are at most because of the step; 0: it makes none beside others."""
        return 0

    @property
    @abstractmethod
    def shown(self) -> Shown:
        """Return the step as people see it in a report."""


class SameTemplate(AnyStep):
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


@dataclass(frozen=True, slots=True)
class SettingStep(AnyStep):
    """Settings of the pod template take other values; a part of every step that edits the template in place.

    `before` and `after` are for a person, None where a setting is not given; what is put back is in the edit.
    The two hashes are of the whole pod template, so that anybody else's change is recognised.
    """

    target: ObjectRef
    container: str
    """The engine's container."""
    edit: TemplateEdit
    before: str | None
    after: str | None
    before_template: str
    after_template: str
    reason: Reason

    @property
    def template_change(self) -> TemplateEdit:
        """Return what the step changes of the pod template."""
        return self.edit

    def inverse(self) -> Self:
        """Return the step that puts the recorded values back."""
        return replace(
            self,
            edit=self.edit.inverse(),
            before=self.after,
            after=self.before,
            before_template=self.after_template,
            after_template=self.before_template,
            reason=Reason.ROLLING_BACK,
        )


@dataclass(frozen=True, slots=True)
class FlagStep(SettingStep):
    """One engine flag takes another value, on the command line or in a mounted configuration file.

    A file's ConfigMap is never changed: the copy with the new value is made first, then the pod template
    refers to it, by the same rollout. The inverse lets the template refer to the ConfigMap again; the copy
    goes when nothing refers to it any more.
    """

    edit: TokenEdit | ReferenceEdit
    knob: Knob
    file_of: FileEdit | None = None
    """What differs in the copy of the file's ConfigMap, the same in the inverse; None: the flag is on the
    command line."""
    through: OwnerField | None = None
    """The field that the owner's controller renders the token from; None: nobody renders the template."""
    kind: Literal["FlagStep"] = "FlagStep"

    def __post_init__(self) -> None:
        """Refuse a reference to a copy that nobody would make, and a copy that nothing would refer to.

        Raises:
            ValueError: the edit is of a command line and a file is named, or the other way round.
        """
        if isinstance(self.edit, ReferenceEdit) != (self.file_of is not None):
            raise ValueError("a flag in a file is changed by the reference to the file's ConfigMap")

    def inverse(self) -> FlagStep:
        """Return the step that puts the recorded values back, in the owner's object as well."""
        back = SettingStep.inverse(self)
        return replace(back, through=self.through.inverse()) if self.through else back

    @property
    def gives_back(self) -> bool:
        """Return whether the flag was set for a while, and its value from before is put back."""
        return self.reason is Reason.HOST_MEMORY_GIVEN_BACK

    @property
    def shown(self) -> Shown:
        """Return the flag's values."""
        return Shown(str(self.knob), self.before, self.after)

    def line(self) -> str:
        """Return the step as one line for a person."""
        before, after = self.before or "(engine default)", self.after or "(engine default)"
        file = self.file_of
        where = f" (ConfigMap/{file.config_map}, {file.key})" if file else ""
        where = f" ({self.through})" if self.through else where
        return f"{self.target.kind}/{self.target.name}: {self.knob} {before} -> {after}{where}"


@dataclass(frozen=True, slots=True)
class BundleStep(SettingStep):
    """All settings of one method of compression take other values, in one pod template and one rollout."""

    edit: BundleEdit
    before: str
    after: str
    method: str
    fix: Fix = Fix.REVERT_BUNDLE
    """Which of those that the spec allows; that one turns a method off, the others turn one on."""
    undoes: Fix | None = None
    """The fix that had turned on what is turned off."""
    kind: Literal["BundleStep"] = "BundleStep"
    keeps_pool: ClassVar[bool] = False

    @property
    def shown(self) -> Shown:
        """Return the method, off or on."""
        return Shown(self.method, self.before, self.after)

    def line(self) -> str:
        """Return the step as one line for a person."""
        return f"{self.target.kind}/{self.target.name}: {self.method} {self.before} -> {self.after}"


@dataclass(frozen=True, slots=True)
class RevisionStep(AnyStep):
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
    keeps_pool: ClassVar[bool] = False

    @property
    def before_template(self) -> str:
        """Return the hash of the pod template that the step begins with."""
        return self.before.template

    @property
    def after_template(self) -> str:
        """Return the hash of the pod template that the step ends with."""
        return self.after.template

    @property
    def template_change(self) -> TemplateSwap:
        """Return what the step changes of the pod template."""
        return TemplateSwap(self.before, self.after)

    def inverse(self) -> RevisionStep:
        """Return the step that puts the recorded revision back."""
        return replace(self, before=self.after, after=self.before, reason=Reason.ROLLING_BACK)

    @property
    def shown(self) -> Shown:
        """Return the revisions' numbers."""
        return Shown(REVISION, str(self.before.number), str(self.after.number))

    def line(self) -> str:
        """Return the step as one line for a person."""
        return (
            f"{self.target.kind}/{self.target.name}: pod template of revision {self.before.number} -> "
            f"of revision {self.after.number}"
        )


class PodToRemove(StrEnum):
    """Which replica goes when the spare has come and the recorded number is put back."""

    NAMED = "Named"
    """The one that the step names."""
    SPARE = "Spare"
    """The one that came last, so that the named one stays."""


@dataclass(frozen=True, slots=True)
class ReplaceStep(SameTemplate):
    """One replica of the target makes room for a new one of the same pod template.

    Absolute: afterwards there are `replicas` replicas again, and one of those that were there for a
    while is gone: `pod_to_remove` says which. The template is not touched. Once the named replica is gone
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
    pod_to_remove: PodToRemove = PodToRemove.NAMED
    kind: Literal["ReplaceStep"] = "ReplaceStep"
    is_revocable: ClassVar[bool] = False

    @property
    def counts_on(self) -> int:
        """Return the number of replicas before and after."""
        return self.replicas

    @property
    def most_replicas(self) -> int:
        """Return the number of replicas with the spare."""
        return self.replicas + 1

    def inverse(self) -> ReplaceStep:
        """Return the step after which the other one of the two replicas is there."""
        other = PodToRemove.SPARE if self.pod_to_remove is PodToRemove.NAMED else PodToRemove.NAMED
        return replace(self, pod_to_remove=other, reason=Reason.ROLLING_BACK)

    @property
    def shown(self) -> Shown:
        """Return which replica goes."""
        return Shown(REPLICA, self.pod, A_NEW_ONE)

    def line(self) -> str:
        """Return the step as one line for a person."""
        end = "-> a new one" if self.pod_to_remove is PodToRemove.NAMED else "stays"
        return f"{self.target.kind}/{self.target.name}: replica {self.pod} {end}"


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
    is_a_number: ClassVar[bool] = True

    @property
    def counts_on(self) -> int | None:
        """Return the number to begin with; None where an autoscaler has it."""
        return None if self.holder else self.before

    @property
    def most_replicas(self) -> int:
        """Return the desired number of replicas."""
        return self.after

    @property
    def gives_back(self) -> bool:
        """Return whether the step takes away what an earlier one added."""
        return self.after < self.before

    @property
    def number_in(self) -> ObjectRef:
        """Return the object that has the number."""
        return self.holder.object if self.holder else self.target

    @property
    def holder_uid(self) -> str:
        """Return the uid of the autoscaler that has the number; empty where none has."""
        return self.holder.uid if self.holder else ""

    @property
    def leaves_number(self) -> bool:
        """Return whether the number stands in its object afterwards, instead of the object's own default."""
        return self.holder is None or self.holder.is_given or not self.gives_back

    def inverse(self) -> ReplicasStep:
        """Return the step that puts the recorded number back."""
        return replace(self, before=self.after, after=self.before, reason=Reason.ROLLING_BACK)

    @property
    def shown(self) -> Shown:
        """Return the numbers."""
        return Shown(MINIMUM if self.holder else REPLICAS, str(self.before), str(self.after))

    def line(self) -> str:
        """Return the step as one line for a person."""
        change = f"minimum {self.before} -> {self.after} replicas"
        if self.holder is None:
            change = f"replicas {self.before} -> {self.after}"
        return f"{self.number_in.kind}/{self.number_in.name}: {change}"


def asked_text(question: Question, tokens: int, method: str, without: bool) -> str:  # noqa: FBT001 - as recorded
    """Return what a trial pod is asked, for a person; `without`: the method is off."""
    sent = {
        Question.RECLAMATION: f"{tokens} tokens",
        Question.PROMPTS: f"prompts of up to {tokens} tokens",
        Question.START: "a start",
    }[question]
    return f"{sent} {'without' if without else 'with'} {method}"


@dataclass(frozen=True, slots=True)
class PodStep(SameTemplate):
    """A trial pod is asked something; a part of every step that does. The target is not touched.

    The pod is a copy of the target's pod template that nobody leads requests to. It goes when the run ends.
    """

    target: ObjectRef
    container: str
    """The engine's container."""
    template: str
    """Hash of the target's pod template, before and after."""
    limit_seconds: int
    """After that the pod ends, whatever became of everybody else."""
    reason: Reason
    is_revocable: ClassVar[bool] = False
    is_on_trial: ClassVar[bool] = True

    def inverse(self) -> Self:
        """Return the step itself: it leaves nothing behind."""
        return self


@dataclass(frozen=True, slots=True)
class TrialStep(PodStep):
    """A trial pod answers a question about a setting."""

    question: Question
    method: str
    """What compresses the KV cache."""
    tokens: int
    """To be generated; of prompts: of the longest. Of a start 1, of no meaning."""
    keep: Keep
    """What the method keeps of a sequence; of meaning for a long generation alone."""
    change: BundleEdit | None = None
    """What differs on the trial pod; None: the target's present setting is tried."""
    tried: str = ""
    """Hash of the pod template on the trial pod, where it differs; empty: that of the target."""
    source: str = ""
    """The metrics source for the trial pod's devices; empty: none is asked."""
    without: bool = False
    """The method is off on the trial pod: what it shows is the other half of a comparison."""
    kind: Literal["TrialStep"] = "TrialStep"

    @property
    def on_trial(self) -> str:
        """Return the hash of the pod template on the trial pod."""
        return self.tried or self.template

    @property
    def answer_template(self) -> str:
        """Return the hash of the pod template that an answer is about.

        That a trial pod computes prompts whole is no part of the setting under test.
        """
        whole = self.question is Question.PROMPTS and not self.without
        return self.template if whole else self.on_trial

    @property
    def shown(self) -> Shown:
        """Return what the trial pod is asked."""
        return Shown(TRIAL, None, asked_text(self.question, self.tokens, self.method, self.without))

    def line(self) -> str:
        """Return the step as one line for a person."""
        does = {
            Question.RECLAMATION: f"generates {self.tokens} tokens",
            Question.PROMPTS: f"computes prompts of up to {self.tokens} tokens",
            Question.START: "starts",
        }[self.question]
        with_it = "without" if self.without else "with"
        return f"{self.target.kind}/{self.target.name}: a trial pod {does} {with_it} {self.method}"


@dataclass(frozen=True, slots=True)
class EvaluationStep(PodStep):
    """A team's own Job evaluates a trial pod, which nobody else leads requests to."""

    subject: str
    """What is evaluated, for a person."""
    change: BundleEdit | None
    """What differs on the trial pod; None: the target's present setting is evaluated."""
    tried: str
    """Hash of the pod template on the trial pod."""
    cron_job: str
    """Name of the CronJob, in the target's namespace."""
    evaluation: str
    """Digest of its Job template: another one would be another evaluation."""
    budget: int | None
    """Tokens of a request beyond which the setting makes a difference; None: with the first."""
    cache_types: tuple[str, ...]
    """Beginnings of the types of which the trial pod's cache must have one; empty: any."""
    kind: Literal["EvaluationStep"] = "EvaluationStep"

    @property
    def shown(self) -> Shown:
        """Return which Job evaluates what."""
        return Shown(TRIAL, None, f"CronJob/{self.cron_job} with {self.subject}")

    def line(self) -> str:
        """Return the step as one line for a person."""
        name = f"{self.target.kind}/{self.target.name}"
        return f"{name}: CronJob/{self.cron_job} evaluates a trial pod with {self.subject}"


Change: TypeAlias = FlagStep | ReplaceStep | RevisionStep | ReplicasStep | BundleStep
"""Every kind of step that changes something of a fleet."""

OnTrial: TypeAlias = TrialStep | EvaluationStep
"""Every kind of step that makes a trial pod and changes nothing of a fleet."""

Step: TypeAlias = Change | OnTrial
"""Every kind of step. What each kind does is one row of the table in `rollout/steps.py`."""


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
    def digest(self) -> Digest:
        """Return the plan's identity.

        The message is not part of it: wording may change, the assignment may not.
        """
        body = {
            "steps": [asdict(step) for step in self.steps],
            "targetUid": self.target_uid,
            "template": self.template,
            "specGeneration": self.spec_generation,
        }
        return Digest.of(body)
