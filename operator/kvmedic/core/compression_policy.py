"""What a spec says of the compression of a fleet's KV cache: the method, the fleet without it, the fixes."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from kvmedic.core.compression import MethodClass, Setting
from kvmedic.core.figures import Figures


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
    drains_replica: bool = False
    """Where no node takes a trial pod, a replica may be drained and serve as one."""


@dataclass(frozen=True, slots=True)
class Replacement:
    """A method that is to take the place of one that saves nothing."""

    method: str
    keep_tokens: int | None = None
    """Tokens of a sequence that it keeps."""
    keep_share: float | None = None
    """The same as a share of all. Both None: that of the named method."""
    settings: tuple[Setting, ...] = ()
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
    settings: tuple[Setting, ...] = ()
    """The bundle that turns the method on, in order; empty: that of the named method."""
    baseline: Figures = field(default_factory=Figures)
    """The fleet without the method."""
    blocks: int | None = None
    """Usable KV-cache blocks of a replica without the method; None: not known."""
    attention_backend: str = ""
    """What computed attention without the method, as the engine named it; empty: not known. It is told, and
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
