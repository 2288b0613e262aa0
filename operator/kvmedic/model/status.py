"""What is written down about one resource: everything that its status holds.

The status is the only memory. `kvmedic.api` turns a `Record` into the wire form and back;
`kvmedic.record.store` writes it with the loaded resourceVersion.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum, StrEnum

from kvmedic.model.compression import Figures
from kvmedic.model.engine import Knob
from kvmedic.model.evidence import Blocked
from kvmedic.model.plan import FlagStep, Plan, ReplicasStep
from kvmedic.model.reasons import Reason, Trait
from kvmedic.model.run import Approved, Baseline, Run, Summary
from kvmedic.model.spec import Fix, Policy, RunSpec
from kvmedic.model.trial import Answer, EvaluationResult


class Wish(Enum):
    """What the resource's owner asks of an open run."""

    NONE = "none"
    ROLL_BACK = "roll back"
    KEEP = "let the change stay without a verdict"
    DELETE = "delete, and roll back first"
    ABANDON = "delete, and leave the change in place"


@dataclass(frozen=True, slots=True)
class TurnedOff:
    """The method that was turned off last because it saved nothing."""

    method: str
    wall: Reason
    """What was found."""
    at: datetime


@dataclass(frozen=True, slots=True)
class Load:
    """What a replica carried, on average, when replicas had to be added."""

    running: float
    """Sequences that ran at once."""
    tokens_per_second: float
    """Generated."""
    prompt_tokens: float
    output_tokens: float


@dataclass(frozen=True, slots=True)
class TemporaryChange:
    """A temporary change, restored once the fleet can do without it."""

    step: ReplicasStep | FlagStep
    """The step: the value to restore (`before`; absent: the flag is removed) and the value set last
    (`after`)."""
    run: str
    """The run that made it."""
    target_uid: str
    """UID of the Deployment. A Deployment created again has another."""
    at: datetime
    """When the change was judged and kept."""
    fewest: int = 0
    """Replicas before the change; 0 if no replica was added."""
    load: Load | None = None
    """Load of a replica without the change, when that load was too much. Absent if it was not measured;
    another measure decides then."""
    run_spec: RunSpec | None = None
    """The rollout settings for the restore if the spec cannot be followed."""
    calm_since: datetime | None = None
    """Since when no replica is beyond the trigger; absent while one is, or while it is unknown."""
    outlook: str = ""
    """Whether the fleet could do without it, by the newest look, for people."""
    looked_at: datetime | None = None
    """When that was."""

    @property
    def adds_replicas(self) -> bool:
        """Return whether it is a number of replicas, and not a setting."""
        return isinstance(self.step, ReplicasStep)

    @property
    def knob(self) -> Knob | None:
        """Return which setting it is; None: a number of replicas."""
        return self.step.knob if isinstance(self.step, FlagStep) else None

    def is_due(self, restore_after: timedelta, now: datetime) -> bool:
        """Return whether it has been calm for long enough to ask whether the fleet would do without it."""
        return self.calm_since is not None and now - self.calm_since >= restore_after

    def line(self) -> str:
        """Return the change in one clause."""
        step = self.step
        what: str = "replicas"
        if isinstance(step, FlagStep):
            what = step.knob
        elif step.holder is not None:
            what = f"minimum of {step.number_in.kind}"
        before = "(engine default)" if step.before is None else step.before
        return f"{what} {before} -> {step.after} since {self.at:%Y-%m-%dT%H:%M:%SZ} (run {self.run})"


@dataclass(frozen=True, slots=True)
class RunbookSwitch:
    """One runbook handed a fleet to the other: once each way per pod template and spec."""

    from_runbook: str
    to_runbook: str
    reason: Reason
    """Reason of the branch of `CompressionWithoutSavings`, which is asked first and decides both ways; or
    why it cannot continue."""
    message: str
    template: str
    """Hash of the pod template."""
    generation: int
    """Of the spec."""
    at: datetime

    def is_like(self, other: RunbookSwitch) -> bool:
        """Return whether both are the same way for the same pod template and spec."""
        return self._way == other._way and self._is_for_the_same(other)

    def takes_back(self, other: RunbookSwitch) -> bool:
        """Return whether both are opposite ways for the same pod template and spec."""
        return self._way == other._way[::-1] and self._is_for_the_same(other)

    def line(self) -> str:
        """Return which way it is, as one line for a person."""
        place = f"pod template {self.template}, spec generation {self.generation}"
        return f"{self.from_runbook} -> {self.to_runbook} on {place}"

    def _is_for_the_same(self, other: RunbookSwitch) -> bool:
        return (self.template, self.generation) == (other.template, other.generation)

    @property
    def _way(self) -> tuple[str, str]:
        return self.from_runbook, self.to_runbook


@dataclass(frozen=True, slots=True)
class Traffic:
    """What clients send to a whole fleet, over one window."""

    requests_per_second: float | None = None
    """Arrivals: (finished + change of running and waiting) / window."""
    prompt_tokens: float | None = None
    """Mean prompt length of finished requests, in tokens."""
    output_tokens: float | None = None
    limit_tokens: float | None = None
    """Mean `max_tokens` that requests asked for."""


class Severity(StrEnum):
    """How soon a person must act: `page` or `ticket`."""

    PAGE = "page"
    """Now: an objective is breached, or too few requests are served in time where the spec names none."""
    TICKET = "ticket"
    """Within the working day."""


SERVED_IN_TIME = "servedInTime"
"""What is breached where the spec names no objective."""


@dataclass(frozen=True, slots=True)
class Urgency:
    """How urgent the trouble of a fleet is, and by what."""

    severity: Severity
    message: str
    since: datetime
    """Since when it has this severity."""
    breached: tuple[str, ...] = ()
    """The breached objectives, by their names in the spec; `servedInTime` where it names none."""


HISTORY_LENGTH = 10
"""Closed runs that are kept; the cooldown and the day's budget are counted from them, so
`spec.limits.maxRunsPerDay` cannot be larger."""


class ConditionType(StrEnum):
    """Type of the condition, after the Kubernetes API conventions and kstatus."""

    READY = "Ready"
    """The spec is valid and the target was found; stays True during an incident."""
    ELIGIBLE = "Eligible"
    """Whether a change could begin, looked at while there is no plan; all that stands in its way."""
    METRICS_AVAILABLE = "MetricsAvailable"
    DIAGNOSED = "Diagnosed"
    """True: the reason names the branch. False: healthy. Unknown: why nothing can be said."""
    PROGRESSING = "Progressing"
    """True while a run is open; the reason is what it does."""
    REMEDIATED = "Remediated"
    """How the last run ended."""
    ACTION_REQUIRED = "ActionRequired"
    """True: what a person must do."""
    STALLED = "Stalled"
    """True: nothing goes on by itself (kstatus: failed)."""


class Truth(StrEnum):
    """A condition's status."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition."""

    type: ConditionType
    status: Truth
    reason: Reason
    message: str
    changed_at: datetime
    """When `status` last changed."""
    observed_generation: int


REFRESH_LAST_GOOD = timedelta(days=1)
"""How old the figures of a healthy fleet may get. Load has the rhythm of days, and each record is a write."""


@dataclass(frozen=True, slots=True)
class LastGood:
    """The newest revision that proved healthy under load; recorded once per revision and day."""

    revision: str
    """Hash of the pod template."""
    flags: Mapping[str, str]
    """The engine's known knobs as given on its command line, by knob; nothing else of the list."""
    replicas: int
    blocks: int | None
    """Usable KV-cache blocks of a replica."""
    recorded_at: datetime
    traffic: Traffic | None = None
    """What clients sent at that time. Absent if it was not measured."""
    method: str = ""
    """The method that compressed the KV cache at that time. Empty if none was known."""
    figures: Figures | None = None
    """Figures of the fleet over one trigger window. Absent if a replica was too young for them."""

    def is_outdated(self, window: timedelta, now: datetime) -> bool:
        """Return whether it is to be recorded anew; `window` is the trigger's."""
        age = now - self.recorded_at
        return age >= REFRESH_LAST_GOOD or (self.figures is None and age >= window)


@dataclass(frozen=True, slots=True)
class MethodBaseline:
    """The fleet as it was last healthy before its compression method was turned on."""

    method: str
    """The method that was turned on since."""
    revision: str
    """Hash of the pod template without it."""
    figures: Figures
    seen_at: datetime
    """End of the window that the figures cover."""
    doubt: str = ""
    """Why the figures cannot be compared with. Empty if they can."""

    def line(self) -> str:
        """Return whose figures these are, for a person."""
        replicas = f"{self.figures.replicas or 0:.0f} replicas"
        return f"pod template {self.revision}, {replicas}, at {self.seen_at:%Y-%m-%dT%H:%M:%SZ}"


@dataclass(frozen=True, slots=True)
class ShownDiagnosis:
    """The diagnosis as people see it."""

    reason: Reason
    message: str
    runbook: str
    at: datetime
    findings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ShownPlan:
    """The plan as people see it while it is not being carried out."""

    digest: str
    reason: Reason
    message: str
    steps: tuple[str, ...]
    at: datetime
    """Since when this plan is shown."""
    exact: Plan | None = None
    """The exact plan, which an approval binds to. Absent if an older version wrote it."""

    @property
    def bound(self) -> Plan | None:
        """Return the plan itself; None where there is none, or it is not the one that the digest names."""
        return self.exact if self.exact is not None and self.exact.digest == self.digest else None


class Attempt(StrEnum):
    """The kind of attempt, by a run or by an offline check."""

    TURN_LEVER = "TurnLever"
    """Key: the knob."""
    RAISE_MEMORY = "RaiseMemory"
    """A larger share of the devices' memory, which may still be lowered. Key: the knob."""
    RAISE_CAP = "RaiseCap"
    """A higher cap on running sequences, which may still be lowered. Key: the knob."""
    REPLACE_REPLICA = "ReplaceReplica"
    """Key: replicas of the fleet; the same load falls on another number otherwise."""
    ROLL_BACK_REVISION = "RollBackRevision"
    """No key: the pod template that the fleet was taken back from says all."""
    SWITCH_METHOD = "SwitchMethod"
    """A method of compression was turned off or on. Key: the method."""
    ADD_REPLICAS = "AddReplicas"
    """Key: replicas of the fleet before."""
    GIVE_BACK = "GiveBack"
    """A setting that was there for a while was put back. Key: the knob."""
    FIX = "Fix"
    """A fix in the place of a method that was turned off. Key: the fix. Counts on every pod template."""


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    """An attempt that did not help, with the evidence at that time."""

    attempt: Attempt
    key: str
    """What was tried. It distinguishes attempts of one kind."""
    template: str
    """Hash of the pod template before the attempt. Another template is other evidence. Empty: it counts for
    every template."""
    change: str
    """What was changed, for people."""
    why: str
    """How it ended: a reason, or one sentence."""
    at: datetime
    generation: int = 0
    """Generation of the spec; an attempt is repeated under another one. 0: it counts for every generation."""
    blocks: int | None = None
    """Usable KV-cache blocks of a replica at that time. Absent if unknown."""
    load: Load | None = None
    """Load of a replica at that time. Absent if it was not measured; it then counts as unchanged."""

    def is_like(self, other: FailedAttempt) -> bool:
        """Return whether both are the same attempt on the same pod template."""
        return (self.attempt, self.key, self.template) == (other.attempt, other.key, other.template)


def failed_fix(fix: Fix, why: str, generation: int, at: datetime) -> FailedAttempt:
    """Return a fix that was no help on any pod template; another spec is tried anew."""
    return FailedAttempt(Attempt.FIX, str(fix), "", str(fix), why, at, generation)


def find_failure(
    failed: Iterable[FailedAttempt], attempt: Attempt, key: object, template: str = "", generation: int = 0
) -> FailedAttempt | None:
    """Return the failure on record of the same attempt, or None where it may be made."""
    asked = (attempt, str(key), template, generation)
    return next(
        (one for one in failed if (one.attempt, one.key, one.template, one.generation) == asked), None
    )


@dataclass(frozen=True, slots=True)
class OomShare:
    """A share of GPU memory at which a replica ran out of memory. No run sets it again."""

    share: float
    """Ratio 0-1."""
    body: str
    """Hash of the pod template without command lines and variables, which decides how much memory there
    is."""
    at: datetime


@dataclass(frozen=True, slots=True)
class CapChange:
    """One change of the cap on running sequences that was kept."""

    before: str
    """Empty: the engine's default."""
    after: str
    at: datetime


@dataclass(frozen=True, slots=True)
class SizedCap:
    """The cap on running sequences that a run computed and kept last."""

    revision: str
    """Hash of the pod template with the cap; another template is another setting."""
    cap: str
    at: datetime
    is_corrected: bool = False
    """It is the second cap in a row that was lowered. There is no third."""
    before: str = ""
    """The cap before the first one in a row. Empty: the engine's default, or an older version wrote it."""
    changes: tuple[CapChange, ...] = ()
    """This change and those of the day before it, newest first. They show a mix of requests that turns."""
    figures: Baseline | None = None
    """The fleet before the change, while the cap is on probation: it is taken back where less is served in
    time than then. Absent: a person kept it, or it was taken back once and that did not help."""

    def is_open_on(self, revision: str) -> bool:
        """Return whether the cap is in force on a revision and may be corrected."""
        return self.revision == revision and not self.is_corrected


@dataclass(frozen=True, slots=True)
class ConfigCopy:
    """A copy of a ConfigMap that a run made and that something may still use."""

    name: str
    template: str
    """Hash of the pod template that refers to it."""


@dataclass(frozen=True, slots=True)
class ClosedRun:
    """A run that ended."""

    id: str
    reason: Reason
    """The branch that was found."""
    outcome: Reason
    message: str
    steps: tuple[str, ...]
    started_at: datetime
    ended_at: datetime
    approval: Approved | None = None
    """The approval that opened the run. Absent if the mode needed none."""
    template: str = ""
    """Hash of the pod template before the run. Empty if an older version wrote it."""
    on_trial_pod: bool = False
    """The run used its own trial pod: nothing of the fleet was changed."""
    template_after: str = ""
    """Hash of the pod template that the run changed and kept. Empty if it kept no change of the template."""
    owner_patch: str = ""
    """What the owner of the Deployment needs so that the change stays: a value or a patch. Empty if nobody
    else owns it, or nothing was kept."""

    @property
    def costs_nothing(self) -> bool:
        """Return whether nothing need cool down after it, and no budget pays for it."""
        return self.on_trial_pod or self.outcome is Reason.TRIAL_ANSWERED


@dataclass(frozen=True, slots=True)
class Record:
    """Everything that one resource's status holds."""

    observed_generation: int = 0
    conditions: tuple[Condition, ...] = ()
    diagnosis: ShownDiagnosis | None = None
    plan: ShownPlan | None = None
    last_good: LastGood | None = None
    run: Run | None = None
    failed_attempts: tuple[FailedAttempt, ...] = ()
    """What was tried and did not help, newest first: at most `HISTORY_LENGTH` of each kind."""
    answers: tuple[Answer, ...] = ()
    """What trials showed, newest first."""
    copies: tuple[ConfigCopy, ...] = ()
    oom_shares: tuple[OomShare, ...] = ()
    temporary: tuple[TemporaryChange, ...] = ()
    """What stays for a while after its run: replicas that were added first, then settings."""
    history: tuple[ClosedRun, ...] = field(default=())
    """Newest first, at most `HISTORY_LENGTH`."""
    urgency: Urgency | None = None
    """None: no trouble."""
    sized: SizedCap | None = None
    """None: no cap was kept."""
    summary: Summary | None = None
    """Of the last run that touched anything."""
    scores: tuple[EvaluationResult, ...] = ()
    """What evaluations showed, newest first."""
    turned_off: TurnedOff | None = None
    """The method that was turned off because it saved nothing. None: none, or something took its place."""
    baseline: MethodBaseline | None = None
    """The fleet before its KV cache was compressed. None: it was never seen healthy without a method."""
    runbook_switches: tuple[RunbookSwitch, ...] = ()
    """Between the runbooks, newest first, each once per evidence."""

    @property
    def failed_fixes(self) -> tuple[FailedAttempt, ...]:
        """Return the fixes that failed since a method was turned off; empty where none is off."""
        return tuple(one for one in self.failed_attempts if one.attempt is Attempt.FIX)

    @property
    def added_replicas(self) -> TemporaryChange | None:
        """Return the replicas that were added for a while; None while there are none."""
        return next((each for each in self.temporary if each.adds_replicas), None)

    def condition(self, of: ConditionType) -> Condition | None:
        """Return the condition of a type, if it was ever written."""
        return next((c for c in self.conditions if c.type is of), None)


@dataclass(frozen=True, slots=True)
class Key:
    """One resource by name and identity: made again under its name, it is another."""

    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class Resource:
    """A resource at one resourceVersion."""

    namespace: str
    name: str
    uid: str
    resource_version: str
    generation: int
    wish: Wish
    finalized: bool
    """Our finalizer is on it."""
    policy: Policy | None
    """None where the spec cannot be followed; `problem` says why."""
    problem: Blocked | None
    """Why the spec or the record cannot be used."""
    record: Record | None
    """None where the stored run cannot be read: nothing is done then, not even from the start."""
    salvage: Record | None = None
    """What the record says beside a run that somebody damaged; None where nobody did."""
    retried: str = ""
    """A run that was reverted by somebody else, after which a person wants it tried again."""
    is_stand_in: bool = False
    """It stands in memory for a resource that is gone, until what that one froze is given back."""


def phase(record: Record) -> str:
    """Return one word for the printer column; nothing reads it back."""
    stalled = record.condition(ConditionType.STALLED)
    ready = record.condition(ConditionType.READY)
    action = record.condition(ConditionType.ACTION_REQUIRED)
    for applies, word in (
        (stalled is not None and stalled.status is Truth.TRUE, "Stalled"),
        (ready is not None and ready.status is not Truth.TRUE, "NotReady"),
        (record.run is not None, _run_phase(record)),
        (action is not None and Trait.ASKS_APPROVAL in action.reason.traits, "AwaitingApproval"),
        (action is not None and action.status is Truth.TRUE, "ActionRequired"),
        (record.plan is not None, "Planned"),
    ):
        if applies:
            return word
    return "Watching"


def _run_phase(record: Record) -> str:
    run = record.run
    progressing = record.condition(ConditionType.PROGRESSING)
    if progressing is not None and progressing.reason in (Reason.SUSPENDED, Reason.STOPPED, Reason.HOLDING):
        return "Holding"
    return str(run.current.state) if run is not None else "Watching"
