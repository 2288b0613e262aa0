"""Which branch of a runbook applies, and why: a pure ordered table, first match wins."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import TypeAlias

from kvmedic.core.compressed import Compressed
from kvmedic.core.compression import TokenEviction
from kvmedic.core.engine import Knob, Scalar
from kvmedic.core.evidence import Observation, Reading, Signal
from kvmedic.core.fixing import Evaluate, FailedFix, Try, TurnOff, TurnOn
from kvmedic.core.quorum import LeftOut
from kvmedic.core.reasons import Reason
from kvmedic.core.revisions import LatestDeploy, NoDeploy, Revision
from kvmedic.core.sentences import SENTENCES
from kvmedic.core.started import Start
from kvmedic.core.supply import Supply
from kvmedic.core.told_version import Witness
from kvmedic.core.vitals import NodeHealth, Vital, Vitals

RESTORE_AFTER = timedelta(hours=1)
"""How long it must have been calm where the spec does not say: load that comes and goes within an hour
would cost a start of the model each time, which takes minutes of GPUs."""


@dataclass(frozen=True, slots=True)
class Trigger:
    """When a replica counts as pressured (spec.trigger)."""

    preemptions_per_request: float
    kv_cache_usage_ratio: float


@dataclass(frozen=True, slots=True)
class Spent:
    """Every lever that is allowed was asked, and none is left that would help."""

    message: str
    """What each of them says."""
    may_scale: bool
    """Replicas may be added (spec.levers), and there are fewer than that allows."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that a diagnosis rests on.

    Both looks cover the same replicas: every pod of the target that should serve, but for those left out.
    """

    burn: Observation
    """Over `spec.trigger.window`, held for `spec.trigger.for`."""
    sizing: Observation
    """Over `spec.sizing.window`."""
    trigger: Trigger
    vitals: Mapping[str, Vitals] = field(default_factory=dict)
    """By pod name; a pod is absent where nobody looked."""
    node_health: NodeHealth = NodeHealth.IF_AVAILABLE
    """What unknown node health means (spec.nodeHealth)."""
    deploy: LatestDeploy = field(default_factory=NoDeploy)
    """What of the pod template changed of late. No deploy also where nobody looked."""
    spent: Spent | None = None
    """What came of asking every lever; None: nobody asked yet, or one is left."""
    versions: tuple[Witness, ...] = ()
    """What replicas say of their engine's version; empty also where nobody asked."""
    evicts: TokenEviction | None = None
    """What takes tokens from sequences while they run; None where nothing is known of."""
    compression: Compressed | None = None
    """The method that compresses the KV cache; None where nothing tells of one, or nobody looked."""
    fix: Try | Evaluate | TurnOn | NoChange | None = None
    """What comes after a method that saved nothing; None: nothing, or nobody looked."""
    failed_fixes: tuple[FailedFix, ...] = ()
    """What was tried before that in vain."""
    unanswered: Inconclusive | None = None
    """Why the runbook on compression cannot go on at this look. None: it can, or nobody tried yet."""
    started: Mapping[str, Start] = field(default_factory=dict)
    """What engines logged when they started, by pod name; a pod is absent where nobody had to ask."""
    peaks: Mapping[str, Reading[float]] = field(default_factory=dict)
    """The most tokens per second that replicas were asked for over ten minutes of the last day, by pod name;
    a pod is absent where nobody looked."""
    left_out: Mapping[str, LeftOut] = field(default_factory=dict)
    """Replicas that should serve and are in neither look, as nothing can be judged by them."""

    @property
    def replicas(self) -> int:
        """Return how many replicas should serve."""
        return len(self.burn.pods) + len(self.left_out)


@dataclass(frozen=True, slots=True)
class Finding:
    """One fact that supports a branch: what was observed, against which limit."""

    subject: str
    """A pod's name, or "fleet"."""
    signal: Signal | Vital | None
    """None: the fact is no single reading."""
    observed: float | None
    limit: float | None
    text: str
    """The fact in one clause, with its numbers."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """A knob should take an absolute value."""

    knob: Knob
    value: int | float | str
    """A text is a value as it stood on a command line."""
    reason: Reason
    message: str
    """One sentence with the numbers behind the value."""


@dataclass(frozen=True, slots=True)
class NoChange:
    """The branch applies and the best move is none; the reason says why."""

    reason: Reason
    message: str
    passes_on: bool = False
    """The trouble is real and no lever is left for it: the branches for that are asked."""


@dataclass(frozen=True, slots=True)
class Relief:
    """One replica should make room for a new one with the same setting."""

    pod: str
    reason: Reason
    message: str
    """One sentence with the numbers behind it."""


@dataclass(frozen=True, slots=True)
class RollBack:
    """The fleet should run the revision again that it ran before."""

    before: Revision
    after: Revision
    reason: Reason
    message: str
    """One sentence with the numbers behind it, and how long it will take."""


@dataclass(frozen=True, slots=True)
class Resize:
    """The fleet should have another number of replicas."""

    replicas: int
    reason: Reason
    message: str
    """One sentence with the numbers behind it."""


SettingAdvice: TypeAlias = Assignment | NoChange
"""What a lever says."""

Beyond: TypeAlias = Relief | RollBack | Resize | TurnOff | Try | Evaluate | TurnOn
"""Advice that is no matter of one setting."""

Advice: TypeAlias = SettingAdvice | Beyond


@dataclass(frozen=True, slots=True)
class LeverBound:
    """One entry of spec.levers: the knob may be turned, within these bounds (None: unbounded)."""

    knob: Knob
    minimum: float | None = None
    maximum: float | None = None
    """Of host memory: GiB of a whole replica."""
    step: float | None = None
    restore_after: timedelta = RESTORE_AFTER
    """Of host memory: how long it must have been calm before it is given back."""


@dataclass(frozen=True, slots=True)
class ScaleBound:
    """How far replicas may be added (spec.levers, scaleOut)."""

    most: int | None = None
    """Replicas, at most; None: one `step` above what there was before."""
    step: int = 1
    """Replicas that are added at once, at most."""
    restore_after: timedelta = RESTORE_AFTER
    """How long it must have been calm before they are given back."""

    def limit(self, before: int) -> int:
        """Return the replicas that there may be, at most, of a fleet that had some before."""
        return before + self.step if self.most is None else self.most


@dataclass(frozen=True, slots=True)
class MemoryShare:
    """The share of its devices' memory that an engine takes, as its command line has it."""

    ratio: float | None
    """As given, else the engine's default for its version; None where neither is known."""
    is_given: bool
    """It stands on the command line."""
    fixed_by: str = ""
    """The flag that sizes the KV cache whatever the share is; empty where none does."""
    unread: str = ""
    """The configuration file that may give the share too; empty without one."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What is known of the engine's present setting when advice is sought."""

    max_num_seqs: int | None
    """The cap as given on the command line; None when the engine's default applies."""
    levers: tuple[LeverBound, ...]
    """Allowed levers in the order of trying."""
    exhausted: frozenset[Knob] = frozenset()
    """Levers that were tried on this evidence and did not help."""
    memory: MemoryShare | None = None
    """What the engine takes of its devices' memory; None: nobody looked at its command line."""
    given: Mapping[Knob, Scalar] | None = None
    """Every knob that the command line gives; None where nobody knows all that it gives."""
    most_sequences: int | None = None
    """The cap as given, else the largest that an engine takes by itself; None: not known."""
    chunks_prefill: bool | None = None
    """Whether a long prompt is spread over several steps; None: not known."""
    refused: Mapping[Knob, NoChange] = field(default_factory=dict)
    """Levers that this engine's command line does not let be set, with the reason."""
    replacing_failed: bool = False
    """A replica was replaced on this evidence, and it did not help."""
    rollback_allowed: bool = False
    """The fleet may be taken back to its previous revision."""
    rollback_failed: bool = False
    """It was, from this very revision, and it did not help."""
    supply: Supply = field(default_factory=Supply)
    """What is known of the memory that the KV cache has, and could have."""
    least_step_tokens: int | None = None
    """The fewest tokens of a step that an engine takes by itself; None: not known."""
    scale_out: ScaleBound | None = None
    """How far replicas may be added; None where they may not."""
    scaling_failed: bool = False
    """Replicas were added on this evidence, and it did not help."""
    kept_on: frozenset[str] = frozenset()
    """Methods of compression that were turned off on this pod template, which did harm."""
    before_scaling: int | None = None
    """Replicas before the first were added for a while; None where none were."""
    gpus: int | None = None
    """GPUs of a replica; None: not known."""
    is_our_cap: bool = False
    """The present cap is one that was computed, kept and not corrected yet."""

    def bound(self, knob: Knob) -> LeverBound | None:
        """Return the bounds of a lever, or None where it is not allowed."""
        return next((one for one in self.levers if one.knob is knob), None)

    def whole(self, knob: Knob) -> int | None:
        """Return the whole number that the command line gives a knob, or None where it gives none."""
        value = self.given.get(knob) if self.given else None
        return value if isinstance(value, int) and not isinstance(value, bool) else None


Judge: TypeAlias = Callable[[Evidence], "tuple[Finding, ...] | Inconclusive | None"]
Adviser: TypeAlias = Callable[[Evidence, Setting], Advice]


class Goal(StrEnum):
    """By what a change is judged."""

    RELIEF = "Relief"
    """Fewer preemptions and smoother answers than before, at like load."""
    STEADINESS = "Steadiness"
    """No replica that runs it restarts while requests are served."""
    CALM = "Calm"
    """No replica is beyond the trigger, whatever the load is: fewer replicas do as well."""
    ANSWER = "Answer"
    """Nothing is changed: a trial answers a question."""
    PARITY = "Parity"
    """The fleet is not worse off than before, at like load."""


COMPARED = frozenset({Goal.RELIEF, Goal.PARITY})
"""Goals that need the figures of before the change."""


@dataclass(frozen=True, slots=True)
class Branch:
    """One row of a runbook's decision table.

    `when` returns the findings that fire the branch, None when it does not apply, or
    `Inconclusive` when its evidence is missing; the table stops at the first that is not None.
    """

    reason: Reason
    section: str
    """Where in the runbook this branch comes from."""
    signals: frozenset[Signal]
    when: Judge
    then: Adviser | None
    """None: nothing is to be changed."""
    vitals: frozenset[Vital] = frozenset()
    """What it looks at beside the engine's signals."""
    goal: Goal = Goal.RELIEF


@dataclass(frozen=True, slots=True)
class Inconclusive:
    """No branch can be named: what is missing, and what would provide it."""

    reason: Reason
    message: str

    def line(self) -> str:
        """Return the diagnosis as one line for a person."""
        return f"inconclusive: {self.reason}: {self.message}"


@dataclass(frozen=True, slots=True)
class Diagnosed:
    """One branch applies."""

    branch: Branch
    findings: tuple[Finding, ...]

    @property
    def reason(self) -> Reason:
        """Return the branch's reason."""
        return self.branch.reason

    def line(self) -> str:
        """Return the diagnosis as one line for a person."""
        facts = "; ".join(f"{f.subject}: {f.text}" for f in self.findings)
        return f"{self.reason}: {SENTENCES[self.reason]} {facts}".rstrip()


Diagnosis: TypeAlias = Diagnosed | Inconclusive

CONTENT = frozenset(
    {Reason.HEALTHY, Reason.NO_COMPRESSION, Reason.COMPRESSION_UNDOUBTED, Reason.COMPRESSION_SAVES}
)
"""What is found where there is no trouble."""


def is_content(diagnosis: Diagnosis) -> bool:
    """Return whether a look found no trouble."""
    return isinstance(diagnosis, Diagnosed) and diagnosis.reason in CONTENT


def diagnose(branches: tuple[Branch, ...], evidence: Evidence) -> Diagnosis:
    """Return the first branch that applies, or why none can be named.

    Raises:
        ValueError: the table has no closing branch that always applies.
    """
    found = first_match(branches, evidence)
    if found is None:
        raise ValueError("a runbook's table ends with a branch that always applies")
    return found


def first_match(branches: tuple[Branch, ...], evidence: Evidence) -> Diagnosis | None:
    """Return the first of some branches that applies, or why none can be named; None where none applies."""
    for branch in branches:
        match branch.when(evidence):
            case None:
                continue
            case Inconclusive() as unknown:
                return unknown
            case findings:
                return Diagnosed(branch, findings)
    return None
