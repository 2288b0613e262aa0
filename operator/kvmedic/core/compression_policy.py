"""What a spec says of the compression of a fleet's KV cache: the method, the fleet without it, the fixes."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum

from kvmedic.core.compression import MethodClass, Setting
from kvmedic.core.figures import Figures


class Fix(StrEnum):
    """What may be done where compression saves nothing; the values are those of the spec."""

    REVERT_BUNDLE = "RevertBundle"
    """Turn the method off again, with every setting that turned it on."""
    COMPACTING_METHOD = "CompactingMethod"
    FP8_KV_CACHE = "Fp8KVCache"
    DEMAND_CAPS = "DemandCaps"


@dataclass(frozen=True, slots=True)
class ProbePolicy:
    """The long generation on a trial pod."""

    tokens: int = 16_384
    timeout: timedelta = timedelta(minutes=30)


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
    probe: ProbePolicy = ProbePolicy()
    fixes: tuple[Fix, ...] = (Fix.REVERT_BUNDLE,)
    """In the order of trying."""


NOT_DECLARED = CompressionPolicy()
"""Of a spec that says nothing of compression."""
