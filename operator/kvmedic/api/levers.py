"""What may be turned: one entry of `spec.levers`, and which bounds each lever takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated

from pydantic import Field

from kvmedic.api.quantities import DURATION_LENGTH
from kvmedic.api.rules import Rule, Wire, duration, whole


class LeverName(StrEnum):
    """A thing that may be turned, in the words of the resource."""

    MAX_NUM_SEQS = "maxNumSeqs"
    WATERMARK = "watermark"
    MAX_MODEL_LEN = "maxModelLen"
    MAX_NUM_BATCHED_TOKENS = "maxNumBatchedTokens"
    GPU_MEMORY_UTILIZATION = "gpuMemoryUtilization"
    PREFIX_CACHING = "prefixCaching"
    CHUNKED_PREFILL = "chunkedPrefill"
    CPU_OFFLOAD = "cpuOffload"
    SCALE_OUT = "scaleOut"
    REVISION_ROLLBACK = "revisionRollback"


@dataclass(frozen=True, slots=True)
class Range:
    """The values that a lever's bound may have, both ends included."""

    low: float
    high: float
    is_whole: bool = False

    def holds(self, value: float) -> bool:
        """Return whether a value lies in the range."""
        return self.low <= value <= self.high and (not self.is_whole or value == int(value))

    def cel(self, field: str) -> str:
        """Return the same condition for the API server."""
        within = f"self.{field} >= {float(self.low)} && self.{field} <= {float(self.high)}"
        return f"{within} && self.{field} == double(int(self.{field}))" if self.is_whole else within

    def words(self) -> str:
        """Return the range for a message."""
        return f"a {'whole ' if self.is_whole else ''}number from {self.low:.10g} to {self.high:.10g}"


SEQUENCES = Range(1, 65536, is_whole=True)
"""From the least with which an engine serves to 64 times the largest default of vLLM 0.32 (1024)."""

TOKENS = Range(1, 16777216, is_whole=True)
"""To 16 times the longest context that vLLM 0.32 knows a model for (1 Mi tokens)."""

UTILIZATION = Range(0.1, 1)
"""vLLM 0.32 takes (0, 1]; under a tenth of the device no model serves."""

LEVERS: Mapping[LeverName, Mapping[str, Range | None]] = MappingProxyType(
    {
        LeverName.MAX_NUM_SEQS: {"min": SEQUENCES},
        LeverName.WATERMARK: {"max": Range(0.001, 0.5)},
        LeverName.MAX_MODEL_LEN: {"min": TOKENS},
        LeverName.MAX_NUM_BATCHED_TOKENS: {"min": TOKENS},
        LeverName.GPU_MEMORY_UTILIZATION: {"min": UTILIZATION, "max": UTILIZATION, "step": Range(0.001, 0.1)},
        LeverName.PREFIX_CACHING: {},
        LeverName.CHUNKED_PREFILL: {},
        LeverName.CPU_OFFLOAD: {"maxGiB": None, "restoreAfter": None},
        LeverName.SCALE_OUT: {
            "maxReplicas": None,
            "step": Range(1, 100, is_whole=True),
            "restoreAfter": None,
        },
        LeverName.REVISION_ROLLBACK: {"within": None},
    }
)
"""The bounds that each lever takes, by field. None: the field's own bounds are enough."""


def _belongs(field: str) -> Rule[LeverSpec]:
    owners = [name for name, bounds in LEVERS.items() if field in bounds]
    return Rule(
        cel=f"!has(self.{field}) || self.name in {[str(name) for name in owners]}",
        message=f"{field} belongs to {', '.join(owners)}: remove it from this lever",
        holds=lambda lever: field not in lever.bounds() or lever.name in owners,
        path=f".{field}",
        forbids=True,
    )


def _ranges(name: LeverName, field: str, allowed: Range) -> Rule[LeverSpec]:
    return Rule(
        cel=f"self.name != '{name}' || !has(self.{field}) || ({allowed.cel(field)})",
        message=f"{field} of {name}: use {allowed.words()}",
        holds=lambda lever: lever.name is not name or allowed.holds(lever.bounds().get(field, allowed.low)),
        path=f".{field}",
    )


def _lever_rules() -> tuple[Rule[LeverSpec], ...]:
    fields = dict.fromkeys(field for bounds in LEVERS.values() for field in bounds)
    return (
        *(_belongs(field) for field in fields),
        *(
            _ranges(name, field, allowed)
            for name, bounds in LEVERS.items()
            for field, allowed in bounds.items()
            if allowed is not None
        ),
        Rule(
            cel="!has(self.min) || !has(self.max) || self.min <= self.max",
            message="min must not exceed max: lower min or raise max",
            holds=lambda lever: (
                lever.minimum is None or lever.maximum is None or lever.minimum <= lever.maximum
            ),
            path=".min",
        ),
    )


class LeverSpec(Wire):
    """A lever that is allowed, and how far it may be moved. Each lever takes its own bounds only."""

    rules = _lever_rules()

    name: Annotated[LeverName, Field(json_schema_extra={"maxLength": max(map(len, LeverName))})]
    """What may be turned."""
    minimum: Annotated[float, Field(strict=True)] | None = Field(default=None, alias="min")
    """Least value, for maxNumSeqs (1 to 65536), maxModelLen and maxNumBatchedTokens (1 to 16777216) and
    gpuMemoryUtilization (0.1 to 1). Absent: no bound beyond the engine's own."""
    maximum: Annotated[float, Field(strict=True)] | None = Field(default=None, alias="max")
    """Greatest value, for watermark (0.001 to 0.5) and gpuMemoryUtilization (0.1 to 1), which is raised only
    where a max is given. The other levers with a value are only ever lowered."""
    step: Annotated[float, Field(strict=True)] | None = None
    """Greatest change at once, for gpuMemoryUtilization (0.001 to 0.1) and scaleOut (1 to 100 replicas;
    absent: 1)."""
    max_gib: Annotated[int, Field(strict=True), whole(1, 65536)] | None = Field(default=None, alias="maxGiB")
    """Host memory for KV blocks per replica, over all its engines and GPUs (GiB), for cpuOffload. From 1 to
    65536. It is refused unless the container's memory limit covers it."""
    max_replicas: Annotated[int, Field(strict=True), whole(1, 10000)] | None = None
    """Replicas, at most, for scaleOut. From 1 to 10000. Absent: one step more than there were."""
    restore_after: Annotated[str, Field(max_length=DURATION_LENGTH), duration("1m", "168h")] | None = None
    """How long it must have been calm before replicas or host memory are given back, for scaleOut and
    cpuOffload. From 1m to 168h. Absent: 1h."""

    within: Annotated[str, Field(max_length=DURATION_LENGTH), duration("5m", "24h")] | None = None
    """How long after a revision came it may be rolled back, for revisionRollback. From 5m to 24h. Absent: 1h,
    in which ten replicas that take five minutes to start are rolled out and the trigger can hold."""

    def bounds(self) -> dict[str, float]:
        """Return the bounds that are given, by field; a duration counts as 0."""
        written = self.model_dump(by_alias=True, exclude_none=True, exclude={"name"})
        return {field: v if isinstance(v, int | float) else 0 for field, v in written.items()}
