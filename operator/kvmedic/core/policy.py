"""What a resource's owner wants, as plain values: the spec, free of wire formats and defaults.

`kvmedic.api.convert` fills it; everything that decides reads it. All durations are `timedelta`, all
ratios 0-1.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from kvmedic.core.compression_policy import NOT_DECLARED, CompressionPolicy
from kvmedic.core.diagnosis import LeverBound, ScaleBound, Trigger
from kvmedic.core.maintenance import MaintenanceWindow
from kvmedic.core.verdict import Objectives
from kvmedic.core.vitals import NodeHealth


class Mode(StrEnum):
    """How far kvmedic may go."""

    OBSERVE = "Observe"
    """Diagnose and show the plan; change nothing."""
    APPROVE = "Approve"
    """Carry a plan out once a person approved it."""
    AUTO = "Auto"
    """Carry plans out."""


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
    """Where the spare cannot be scheduled, the fleet may be one replica short for a while."""


class OnDrainTimeout(StrEnum):
    """What becomes of a replica that still has requests, or does not tell, when its drain times out."""

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


def answer_to_no_verdict(asked: OnInconclusive, held: timedelta, at_most: timedelta) -> OnInconclusive:
    """Return what is done now about a window without a verdict.

    Args:
        asked: what the spec asks for.
        held: how long a verdict has been due.
        at_most: how long it is waited for.
    """
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

    A replica that serves carries the value of the Deployment's own pod template, which the Services
    select; only the other value is configured.
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
    compression: CompressionPolicy = NOT_DECLARED
