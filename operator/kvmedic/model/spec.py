"""What a resource's owner wants, as plain values: the spec, free of wire formats and defaults.

`kvmedic.api.resource` fills it; everything that decides reads it. Durations are `timedelta`, ratios 0-1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, time, timedelta
from enum import StrEnum
from math import inf
from zoneinfo import ZoneInfo

from kvmedic.model.compression import BundleSetting, Figures, MethodClass
from kvmedic.model.devices import NodeHealth
from kvmedic.model.engine import Knob
from kvmedic.model.fleet import DEPLOYMENT, ObjectRef

SETTLE = timedelta(seconds=15)
"""Of 408 changes of endpoints that kube-proxy had to program on a busy node, 402 were there within 5 s."""

RESTORE_AFTER = timedelta(hours=1)
"""How long it must have been calm where the spec does not say: load that comes and goes within an hour
would cost a start of the model each time, which takes minutes of GPUs."""


@dataclass(frozen=True, slots=True)
class Trigger:
    """When a replica counts as pressured (spec.trigger)."""

    preemptions_per_request: float
    kv_cache_usage_ratio: float
    silent_seconds: float = 5.0
    """Seconds that a request waits in all, on average, beyond which its replica keeps users waiting. Of 136
    simulated fleets in which one request in ten came later than 10 s or hung, 5 s named 87 %, and no other;
    preemptions alone named 47 %."""
    stalls_per_request: float = 0.05
    """Long gaps between two tokens per request, beyond which answers hang. 0.05 named 84 % of the simulated
    fleets that a cap helps; preemptions alone named 60 %."""


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
class Objectives:
    """Service levels that the spec names; None where it names none."""

    inter_token_p95_seconds: float | None = None
    e2e_p95_seconds: float | None = None
    time_to_first_token_p95_seconds: float | None = None


DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
"""Days of the week, as `datetime.weekday` counts them."""
_AHEAD = range(-1, len(DAYS) + 1)
"""Days from today on which a window that matters can begin: yesterday's may still be open."""


@dataclass(frozen=True, slots=True)
class MaintenanceWindow:
    """A stretch of wall-clock time that comes again every week."""

    days: frozenset[str]
    """On which it begins, of `DAYS`."""
    start: time
    end: time
    """First time after it; on the next day where it is not after `start`."""
    zone: ZoneInfo

    def around(self, now: datetime) -> Iterator[tuple[datetime, datetime]]:
        """Yield begin and end (UTC) of its turns from yesterday to a week ahead.

        A time that a change to daylight-saving time skips counts as the time before the change says; of a
        time that comes twice the first one counts.
        """
        today = now.astimezone(self.zone).date()
        for ahead in _AHEAD:
            day = today + timedelta(days=ahead)
            if DAYS[day.weekday()] in self.days:
                last = day if self.end > self.start else day + timedelta(days=1)
                begins = datetime.combine(day, self.start, self.zone)
                ends = datetime.combine(last, self.end, self.zone)
                yield begins.astimezone(UTC), ends.astimezone(UTC)


class Fix(StrEnum):
    """What may be done where compression saves nothing; the values are those of the spec."""

    REVERT_BUNDLE = "RevertBundle"
    """Turn the method off again, with every setting that turned it on."""
    COMPACTING_METHOD = "CompactingMethod"
    """Turn another method on, one whose blocks come back (`spec.compression.replacement`)."""
    FP8_KV_CACHE = "Fp8KVCache"
    """Store keys and values in 8 bits."""
    DEMAND_CAPS = "DemandCaps"
    """Leave the fleet to the runbook that bounds demand."""


@dataclass(frozen=True, slots=True)
class ProbePolicy:
    """The long generation on a trial pod."""

    tokens: int = 16_384
    timeout: timedelta = timedelta(minutes=30)


@dataclass(frozen=True, slots=True)
class Replacement:
    """A method that is to take the place of one that saves nothing."""

    method: str
    keep_tokens: int | None = None
    """Tokens of a sequence that it keeps."""
    keep_share: float | None = None
    """The same as a share of all. Both None: that of the named method."""
    settings: tuple[BundleSetting, ...] = ()
    """The bundle that turns it on, in order; empty: that of the named method."""


@dataclass(frozen=True, slots=True)
class Reference:
    """Accuracy of the fleet without a method, as the spec gives it."""

    accuracy: float
    configuration: str
    """Hash of the pod template that it was measured with."""


@dataclass(frozen=True, slots=True)
class GatePolicy:
    """The evaluation that a changed cache policy must pass before it reaches the fleet."""

    cron_job: str
    """Name of the suspended CronJob whose Job evaluates, in the resource's namespace."""
    max_loss: float
    """Loss of accuracy that is accepted, 0 to 1."""
    timeout: timedelta = timedelta(hours=2)
    """Of the evaluation and its trial pod together."""
    reference: Reference | None = None
    """None: it is measured."""


@dataclass(frozen=True, slots=True)
class CompressionPolicy:
    """One spec's `compression` as the core reads it; its default is what a spec without says."""

    method: str = ""
    """Name of the method; empty: recognised from settings and logs."""
    method_class: MethodClass | None = None
    """None: that of the named method."""
    keep_tokens: int | None = None
    """Tokens of a sequence that the method keeps."""
    keep_share: float | None = None
    """The same as a share of all. Both None: that of the named method."""
    settings: tuple[BundleSetting, ...] = ()
    """The bundle that turns the method on, in order; empty: that of the named method."""
    baseline: Figures = field(default_factory=Figures)
    """The fleet without the method."""
    blocks: int | None = None
    """Usable KV-cache blocks of a replica without the method; None: not known."""
    attention_backend: str = ""
    """What computed attention without the method, as the engine named it; empty: not known. It is shown, and
    decides nothing."""
    probe: ProbePolicy = ProbePolicy()
    fixes: tuple[Fix, ...] = (Fix.REVERT_BUNDLE,)
    """In the order of trying."""
    replacement: Replacement | None = None
    """What `Fix.COMPACTING_METHOD` turns on."""
    gate: GatePolicy | None = None
    """None: a changed cache policy is only proposed."""
    close_by: datetime | None = None
    """From then on no better method is waited for."""


NOT_DECLARED = CompressionPolicy()
"""Of a spec that says nothing of compression."""


class Mode(StrEnum):
    """How far kvmedic may go."""

    OBSERVE = "Observe"
    """Diagnose and show the plan; change nothing."""
    APPROVE = "Approve"
    """Carry a plan out once a person approved it."""
    AUTO = "Auto"
    """Carry plans out."""


class Ownership(StrEnum):
    """What is done with a target that Helm, Argo CD, Flux or another applier owns."""

    RESPECT = "Respect"
    """Nothing of its template is changed: its owner is given the exact change."""
    APPLY = "Apply"
    """It is changed like any other: its owner leaves these fields alone, or a revert is fine."""


class Runbook(StrEnum):
    """A trouble that kvmedic knows how to look at."""

    PREEMPTION_THRASH = "PreemptionThrash"
    """More sequences run at once than the KV cache holds."""
    COMPRESSION_WITHOUT_SAVINGS = "CompressionWithoutSavings"
    """KV compression is on, and no memory is saved."""


class Spare(StrEnum):
    """Whether a rollout needs one replica more than the fleet has."""

    REQUIRED = "Required"
    """The spare comes first, so capacity in rotation never falls."""
    BEST_EFFORT = "BestEffort"
    """Without room the fleet is one replica short, where the others are predicted to carry the load."""
    NONE = "None"
    """None is made: the fleet is one replica short, whatever the load is."""


class Waves(StrEnum):
    """How many replicas a rollout replaces at once, after new ones were compared with old ones."""

    ONE_BY_ONE = "OneByOne"
    QUARTER = "Quarter"
    """A quarter of the fleet, as far as spares serve beside it."""


class RotationWay(StrEnum):
    """How a replica is taken out of rotation."""

    AUTO = "Auto"
    """By the rotation label where it takes a replica out of every Service; otherwise as an orphan."""
    LABEL = "Label"
    """By the rotation label alone."""
    ORPHAN = "Orphan"
    """Released from its ReplicaSet, then by the labels that lead requests to it."""


class OnDrainTimeout(StrEnum):
    """What happens to a replica that still has requests, or does not report them, when its drain times
    out."""

    HOLD = "Hold"
    """It goes back into rotation; when no other replica can go either, the run holds."""
    PROCEED = "Proceed"
    """It is let go; the engine's own graceful shutdown has to do the rest."""


class OnInconclusive(StrEnum):
    """What is done where the evidence allows no verdict."""

    HOLD = "Hold"
    """Keep looking; take the change back if there is no verdict in time."""
    KEEP = "Keep"
    """Keep looking; let the change stay if there is no verdict in time."""
    ROLL_BACK = "RollBack"
    """Take the change back at once."""


class SideBySide(StrEnum):
    """Whether new replicas are compared with old ones before the change reaches the rest of the fleet."""

    AUTO = "Auto"
    """Where both serve at the same time and get the same requests."""
    NEVER = "Never"
    """A change is judged by the fleet before and after it alone."""


def answer_to_no_verdict(asked: OnInconclusive, held: timedelta, at_most: timedelta) -> OnInconclusive:
    """Return what is done now about a window whose verdict has been due for so long, by what a spec asks."""
    if asked is OnInconclusive.ROLL_BACK:
        return asked
    if held <= at_most:
        return OnInconclusive.HOLD
    return OnInconclusive.KEEP if asked is OnInconclusive.KEEP else OnInconclusive.ROLL_BACK


@dataclass(frozen=True, slots=True)
class TargetRef:
    """The workload a resource looks after, in the resource's own namespace."""

    kind: str
    name: str
    container: str | None
    """The engine's container; None: the only one that runs a known engine."""
    engine: str | None = None
    """The engine that the container runs; None: its image's name or its command line shows it."""
    port: int | None = None
    """Where each replica serves its metrics; None: its command line or its pod template shows it."""
    ports: tuple[int, ...] = ()
    """Where each of the replica's engines serves its metrics; empty: one page has all of them, or an
    InferencePool names their ports."""

    @property
    def first_port(self) -> int | None:
        """Return the port that counts where one is asked; None: none is named."""
        return self.port or next(iter(self.ports), None)


@dataclass(frozen=True, slots=True)
class Windows:
    """How far back the looks go."""

    trigger: timedelta
    """Over which the trigger's rates are taken."""
    hold: timedelta
    """How long the trigger must have held without a gap; zero: one look is enough."""
    sizing: timedelta
    """Over which lengths and load are measured for sizing; never below `trigger`."""
    verify: timedelta
    """The sustained window after a change; never below `trigger`."""


@dataclass(frozen=True, slots=True)
class RotationLabel:
    """The pod label that takes a replica out of rotation.

    A serving replica has the value of the Deployment's own pod template, which the Services select. Only
    the other value is configured.
    """

    key: str
    draining: str
    """The value that no Service selects."""


@dataclass(frozen=True, slots=True)
class RolloutPolicy:
    """How a change may move through the fleet."""

    spare: Spare
    drain_timeout: timedelta
    """How long a replica out of rotation may finish its requests."""
    rotation_label: RotationLabel
    start_timeout: timedelta | None = None
    """How long a new replica may take to become Ready, at least; None: the spec does not say."""
    on_drain_timeout: OnDrainTimeout = OnDrainTimeout.HOLD
    waves: Waves = Waves.ONE_BY_ONE
    rotation: RotationWay = RotationWay.AUTO
    settle: timedelta = SETTLE
    """How long a released replica must have been out of rotation before its requests are counted."""
    spare_limit: timedelta | None = None
    """How long the spare may wait for a node; None: the spec does not say, and the operator's own counts."""
    routers: tuple[Mapping[str, str], ...] = ()
    """Labels by which routers find pods themselves, without a Service; one set for each router."""


@dataclass(frozen=True, slots=True)
class RollbackPolicy:
    """Whether a fleet may be taken back to its previous revision (lever revisionRollback)."""

    is_allowed: bool = False
    within: timedelta = timedelta(hours=1)
    """How long a revision counts as the latest deploy. It is looked at also where nothing is allowed."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What must be so before a run may be opened."""

    cooldown: timedelta
    """Least time between the end of a run and the start of the next."""
    max_runs_per_day: int
    """Runs started within any 24 hours."""
    min_healthy_replicas: int
    """Ready replicas below which nothing is begun."""
    windows: tuple[MaintenanceWindow, ...] = ()
    """When runs may be opened; none: always."""
    approval_max_age: timedelta = timedelta(hours=1)
    """How long an approval counts."""


@dataclass(frozen=True, slots=True)
class Policy:
    """One resource's spec as the core reads it."""

    target: TargetRef
    mode: Mode
    suspended: bool
    """No forward move; ways back stay open."""
    runbooks: tuple[Runbook, ...]
    source: str
    """Name of a metrics source in the operator's configuration."""
    objectives: Objectives
    trigger: Trigger
    windows: Windows
    node_health: NodeHealth
    levers: tuple[LeverBound, ...]
    """In the order of trying; a knob that is not here may not be turned."""
    rollout: RolloutPolicy
    on_inconclusive: OnInconclusive
    limits: Limits
    rollback: RollbackPolicy = RollbackPolicy()
    scale_out: ScaleBound | None = None
    """How far replicas may be added; None where they may not."""
    hold_at_most: timedelta = timedelta(hours=2)
    """How long a window without a verdict is held before `on_inconclusive` decides."""
    side_by_side: SideBySide = SideBySide.AUTO
    compression: CompressionPolicy = NOT_DECLARED
    ownership: Ownership = Ownership.RESPECT


@dataclass(frozen=True, slots=True)
class RunSpec:
    """The part of the spec that a run began with, so that it can be ended whatever becomes of the spec."""

    rotation_label: RotationLabel
    drain_timeout: timedelta
    on_drain_timeout: OnDrainTimeout = OnDrainTimeout.HOLD
    engine: str | None = None
    """The engine as `targetRef` names it."""
    port: int | None = None
    """The replicas' metrics port as `targetRef` names it."""
    ports: tuple[int, ...] = ()
    """The metrics ports of their engines as `targetRef` names them."""
    rotation: RotationWay = RotationWay.LABEL
    """How replicas leave rotation; a version that did not say knew of the label alone."""


NEVER = timedelta(0)


def run_spec_of(policy: Policy) -> RunSpec:
    """Return what is to be remembered of a spec, so that what is begun by it can be ended without it."""
    rollout, target = policy.rollout, policy.target
    drains = rollout.rotation_label, rollout.drain_timeout, rollout.on_drain_timeout
    return RunSpec(*drains, target.engine, target.port, target.ports, rollout.rotation)


def without_spec(target: TargetRef, run_spec: RunSpec) -> Policy:
    """Return a policy with which what was done to a target can be taken back, and nothing else."""
    return Policy(
        target=replace(target, engine=run_spec.engine, port=run_spec.port, ports=run_spec.ports),
        mode=Mode.OBSERVE,
        suspended=True,
        runbooks=(),
        source="",
        objectives=Objectives(),
        trigger=Trigger(inf, inf),
        windows=Windows(NEVER, NEVER, NEVER, NEVER),
        node_health=NodeHealth.REQUIRED,
        levers=(),
        rollout=RolloutPolicy(
            Spare.REQUIRED,
            run_spec.drain_timeout,
            run_spec.rotation_label,
            on_drain_timeout=run_spec.on_drain_timeout,
            rotation=run_spec.rotation,
        ),
        on_inconclusive=OnInconclusive.HOLD,
        limits=Limits(NEVER, 0, 0),
        hold_at_most=NEVER,
    )


def place_of(kind: str, name: str) -> str:
    """Return what distinguishes a target within its namespace: its name, with the kind if need be."""
    return name if kind == DEPLOYMENT else f"{kind}/{name}"


def target_at(place: str) -> ObjectRef:
    """Return the target that `place_of` names so."""
    kind, slash, name = place.rpartition("/")
    return ObjectRef(kind if slash else DEPLOYMENT, name)


def typed_place(place: str) -> str:
    """Return how kubectl and these commands name a target: `deploy/NAME`."""
    ref = target_at(place)
    return f"{'deploy' if ref.kind == DEPLOYMENT else ref.kind.lower()}/{ref.name}"
