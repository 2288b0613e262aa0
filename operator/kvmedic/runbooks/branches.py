"""Which branch of a runbook applies, and why: a pure ordered table, first match wins."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from math import inf
from typing import TypeAlias

from kvmedic.engines.engine_log import Start, Witness
from kvmedic.model.compression import BundleSetting, Figures, Keep, MethodClass, TokenEviction
from kvmedic.model.config_edits import LatestDeploy, NoDeploy, Revision
from kvmedic.model.devices import NodeHealth, Vital, Vitals
from kvmedic.model.edits import BundleEdit
from kvmedic.model.engine import Knob, Scalar
from kvmedic.model.evidence import Inconclusive, Observation, PastLengths, Reading, Signal
from kvmedic.model.plan import Goal
from kvmedic.model.reasons import Reason, Trait
from kvmedic.model.spec import (
    NOT_DECLARED,
    CompressionPolicy,
    Fix,
    LeverBound,
    Objectives,
    ScaleBound,
    Trigger,
)
from kvmedic.model.status import FailedAttempt, MethodBaseline, SizedCap
from kvmedic.model.trial import Answer, Growth, Question, Reclaim
from kvmedic.verdict.baseline import LeftOut

GIVEN = "spec.compression.baseline"
"""Where a user gives the fleet without the method."""


@dataclass(frozen=True, slots=True)
class Compressed:
    """A method that compresses the fleet's KV cache, as far as anything shows it."""

    name: str
    method_class: MethodClass | None
    """None: what it does to blocks is not known."""
    known_by: str
    """What says that it is on: the spec, a variable, a flag."""
    is_confirmed: bool = False
    """The engine itself says that it is on; a setting says only what somebody wants."""
    denied: str = ""
    """The phrase of its log by which the engine says that it does not run, though settings ask for it."""
    keep: Keep | None = None
    """What it keeps of a sequence; None: not known, or it keeps all."""
    keep_is_read: bool = True
    """The engine's settings, or the method itself, say what it keeps; not the spec alone."""
    cache_types: tuple[str, ...] = ()
    """Beginnings of the types in which it stores keys and values; empty: it does not change them."""
    asks_for_type: str = ""
    """The type that the pod template asks for; empty: none of those."""
    type_is_in_file: bool = False
    """It does so in a file, which may be another one than the engines read when they started."""
    without: Figures = field(default_factory=Figures)
    """The fleet without the method."""
    blocks_without: int | None = None
    """Usable blocks of a replica without it."""
    block_tokens_without: int | None = None
    """Tokens of one of these; None: as many as now."""
    pool_is_fixed: bool = False
    """The command line sizes the pool, whatever memory there is: a method makes it no larger."""
    settings: tuple[BundleSetting, ...] = ()
    """The bundle that turns it on; empty: not known."""
    fix: Fix | None = None
    """As which fix it was turned on; None: it was there before."""
    policy: CompressionPolicy = NOT_DECLARED
    answer: Answer | None = None
    """Of the newest trial of blocks on this very template; None: there was none."""
    grown: Answer | None = None
    """Of the newest trial of prompts on this very template; None: there was none."""
    grown_without: Answer | None = None
    """Of the newest one on this very template with the method off; None: there was none."""
    start_without: Answer | None = None
    """Of the newest start with the method off; None: there was none."""
    longest_request: int | None = None
    """Tokens of a request, at most, as the command line gives it; None: it does not."""
    baseline: MethodBaseline | None = None
    """The fleet as it was last healthy without the method; None: not on record."""
    no_baseline: str = ""
    """Why the record does not show it; empty where it does, or nobody needs it."""

    @property
    def shown(self) -> Reclaim | None:
        """Return what a trial showed of its blocks; None: nothing that counts.

        `InPart` is a ratio to what the method keeps: where the spec alone says that, a number that is too
        small would have a method turned off that works.
        """
        found = self.answer.reclaim if self.answer else None
        return None if found is Reclaim.IN_PART and not self.keep_is_read else found

    @property
    def is_unfused(self) -> bool:
        """Return whether device memory grows with the square of the prompt, and no trial denied that it is
        by the method.
        """
        return _is_square(self.grown) and not _is_square(self.grown_without)

    @property
    def without_from(self) -> str:
        """Return where `without` is from, for a person; empty: nothing is known of it."""
        given = GIVEN if self.policy.baseline != Figures() else ""
        is_used = self.baseline and not self.baseline.doubt and not self.policy.baseline.is_complete
        seen = self.baseline.line() if self.baseline and is_used else ""
        return f"{given}, the rest of {seen}" if given and seen else given or seen


def _is_square(answer: Answer | None) -> bool:
    return answer is not None and answer.growth is Growth.SQUARE


@dataclass(frozen=True, slots=True)
class TurnOff:
    """A method that compresses the KV cache should be turned off, with all that turned it on."""

    method: str
    settings: tuple[BundleSetting, ...]
    """In the order in which they turn it on."""
    reason: Reason
    message: str
    """One sentence with the numbers behind it."""
    undoes: Fix | None = None
    """The fix that turned it on; None: it was there before."""


@dataclass(frozen=True, slots=True)
class Try:
    """A trial pod should answer a question about a setting."""

    question: Question
    method: str
    tokens: int
    """To be generated; of prompts: of the longest."""
    keep: Keep
    """What the method keeps of a sequence; of no meaning for prompts."""
    limit: timedelta
    """After that the trial pod ends."""
    reason: Reason
    message: str
    """One sentence with what asks for it."""
    change: BundleEdit | None = None
    """What differs on the trial pod; None: the present setting is tried."""
    tried: str = ""
    """Hash of the pod template on the trial pod, where it differs."""
    off: tuple[BundleSetting, ...] = ()
    """Settings of a method that is off on the trial pod, in the order in which they turn it on. Empty: the
    method is tried."""


@dataclass(frozen=True, slots=True)
class Evaluate:
    """A team's evaluation should score a setting on a trial pod."""

    subject: str
    change: BundleEdit | None
    """What differs on the trial pod; None: the present setting is evaluated."""
    tried: str
    """Hash of the pod template on the trial pod."""
    cron_job: str
    evaluation: str
    """Digest of its Job template."""
    budget: int | None
    """Tokens of a request beyond which the setting makes a difference; None: with the first."""
    cache_types: tuple[str, ...]
    """Beginnings of the types of which the trial pod's cache must have one; empty: any."""
    limit: timedelta
    reason: Reason
    message: str
    """One sentence with what asks for it."""


@dataclass(frozen=True, slots=True)
class TurnOn:
    """A bundle should take other values: one that proved itself on a trial pod comes, or a method goes."""

    fix: Fix
    method: str
    change: BundleEdit
    before: str
    after: str
    """Both for a person."""
    reason: Reason
    message: str
    """One sentence with what proved it."""
    undoes: Fix | None = None
    """The fix that had turned on what is turned off."""


@dataclass(frozen=True, slots=True)
class Spent:
    """Every lever that is allowed was asked, and none is left that would help."""

    message: str
    """What each of them says."""
    may_scale: bool
    """Replicas may be added (spec.levers), and there are fewer than that allows."""


@dataclass(frozen=True, slots=True)
class Probation:
    """A cap of ours that may still be taken back, and how the fleet fares under it."""

    cap: SizedCap
    hour: Observation
    objectives: Objectives


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
    """The method that compresses the KV cache; None where nothing shows one, or nobody looked."""
    fix: Try | Evaluate | TurnOn | NoChange | None = None
    """What comes after a method that saved nothing; None: nothing, or nobody looked."""
    failed_fixes: tuple[FailedAttempt, ...] = ()
    """What was tried before that and failed."""
    unanswered: Inconclusive | None = None
    """Why the runbook on compression cannot go on at this look. None: it can, or nobody tried yet."""
    started: Mapping[str, Start] = field(default_factory=dict)
    """What engines logged when they started, by pod name; a pod is absent where nobody had to ask."""
    peaks: Mapping[str, Reading[float]] = field(default_factory=dict)
    """The most tokens per second that replicas were asked for over ten minutes of the last day, by pod name;
    a pod is absent where nobody looked."""
    past_lengths: tuple[PastLengths, ...] = ()
    """Of the fleet's requests, by half hours of the last day, oldest first, as far as that is reported."""
    probation: Probation | None = None
    """The cap that is on probation. None: none is, or nobody looked."""
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
    value: int | float | str | None
    """A text is a value as it stood on a command line. None: the flag is taken off it."""
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


GIB = 1 << 30
ROUNDING = 2
"""Bytes taken over bytes asked for, at most, on engines that allocate pinned tensors: torch rounds each up to
a power of two. 1.92 was measured on four GB200 GPUs (vLLM issue 53042)."""
KEPT_BY_ENGINE = 0.25
"""Share of a container's memory limit that stays with the engine at least. A choice, not a measurement: what
an engine itself takes of its host is in none of its metrics. Where the container's request is larger, and
under the limit, that counts."""


@dataclass(frozen=True, slots=True)
class HostTerms:
    """On which terms a replica's engines could keep KV blocks in the memory of their host."""

    knob: Knob | None
    """What sizes it: per engine over all its devices, or per device (swap space); None: nothing does."""
    why_not: str = ""
    """Why nothing does, in one clause; empty where something does."""
    devices: int = 1
    """Of one engine."""
    engines: int = 1
    """In one replica's pod."""
    limit_bytes: int | None = None
    """The container's memory limit; None: it has none."""
    request_bytes: int = 0
    """The container's memory request; 0: it has none."""
    shared_bytes: float | None = None
    """What `/dev/shm` may hold; infinite: as much as the limit allows. None: no more than by default."""
    uses_shared: bool = False
    """This release may keep the blocks in `/dev/shm`."""
    rounds_up: bool = False
    """This release may take up to `ROUNDING` times what it was given."""

    def value_for(self, gib: int) -> int:
        """Return what the flag says for a replica to take that much in all, rounded down (GiB)."""
        return max(0, gib // self._parts)

    def flag_bytes(self, value: float) -> int:
        """Return what all engines of a replica are to take, for a value of the flag."""
        return round(value * self._parts * GIB)

    def taken_bytes(self, value: float) -> int:
        """Return what they may take then, at most."""
        return self.flag_bytes(value) * (ROUNDING if self.rounds_up else 1)

    @property
    def free_bytes(self) -> int:
        """Return what the container's limit leaves beside the engine itself; 0 where there is no limit."""
        if self.limit_bytes is None:
            return 0
        kept = max(KEPT_BY_ENGINE * self.limit_bytes, self._asked_bytes)
        return max(0, int(self.limit_bytes - kept))

    @property
    def _asked_bytes(self) -> int:
        """Return the request where it says something: one that equals the limit does not."""
        limit = inf if self.limit_bytes is None else self.limit_bytes
        return self.request_bytes if self.request_bytes < limit else 0

    @property
    def _parts(self) -> int:
        """Return how many times a replica takes what the flag says."""
        return self.engines * (self.devices if self.knob is Knob.SWAP_SPACE else 1)


@dataclass(frozen=True, slots=True)
class Supply:
    """What is known of a fleet's present supply of KV cache."""

    caches_prefixes: bool | None = None
    """Whether the blocks of shared prefixes are reused; None: not known."""
    leaves_prefixes: bool = False
    """The engine itself chose not to, although no flag says so."""
    memory_in_use: float | None = None
    """Largest share of any device's memory that was in use over the trigger's window; None: not known."""
    memory_unknown: str = ""
    """Of which replicas that is not known, and what would show it; empty where it is known."""
    oom_limit: float | None = None
    """The lowest share of the devices' memory at which this template ran out of it; None: none is known."""
    raise_failed_before: bool = False
    """A larger share was tried on this evidence, and it did not help."""
    host: HostTerms | None = None
    """None: nobody looked at the pod template."""


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
    """Every knob that the command line gives, None for a value that comes from elsewhere; None where nobody
    knows all that it gives."""
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
    before_scaling: int | None = None
    """Replicas before the first were added for a while; None where none were."""
    gpus: int | None = None
    """GPUs of a replica; None: not known."""
    is_our_cap: bool = False
    """The present cap is one that was computed, kept and not corrected yet."""
    cap_rooms: tuple[tuple[float, int], ...] = ()
    """Caps of ours of the last day and those before them: how many seconds ago, and how many sequences."""
    raise_limit: int | None = None
    """The highest cap that may be set: the lever's max, or what there was before a cap of ours; None: none
    may be raised."""
    raise_failed: bool = False
    """The cap was raised on this evidence, and it did not help."""

    def bound(self, knob: Knob) -> LeverBound | None:
        """Return the bounds of a lever, or None where it is not allowed."""
        return next((one for one in self.levers if one.knob is knob), None)

    def gives(self, knob: Knob) -> bool:
        """Return whether the command line gives a knob, whether its value is known or not."""
        return self.given is not None and knob in self.given

    def whole(self, knob: Knob) -> int | None:
        """Return the whole number that the command line gives a knob; None where it gives none, or by a
        variable from elsewhere."""
        value = self.given.get(knob) if self.given else None
        return value if isinstance(value, int) and not isinstance(value, bool) else None


Found: TypeAlias = "tuple[Finding, ...] | Inconclusive | None"
"""What supports a branch; None: it does not apply."""
Judge: TypeAlias = Callable[[Evidence], Found]
Adviser: TypeAlias = Callable[[Evidence, Setting], Advice]


@dataclass(frozen=True, slots=True)
class Branch:
    """One row of a runbook's decision table.

    `when` returns the findings that fire the branch, None when it does not apply, or
    `Inconclusive` when its evidence is missing; the table stops at the first that is not None.
    """

    reason: Reason
    when: Judge
    then: Adviser | None
    """None: nothing is to be changed."""
    section: str
    """Where in the runbook this branch comes from."""
    signals: frozenset[Signal] = frozenset()
    vitals: frozenset[Vital] = frozenset()
    """What it looks at beside the engine's signals."""
    goal: Goal = Goal.RELIEF


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
        return f"{self.reason}: {self.reason.sentence} {facts}".rstrip()


Diagnosis: TypeAlias = Diagnosed | Inconclusive


def is_content(diagnosis: Diagnosis) -> bool:
    """Return whether a look found no trouble."""
    return isinstance(diagnosis, Diagnosed) and Trait.NO_TROUBLE in diagnosis.reason.traits


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
