"""Did the change help? Compares two looks at a fleet at like load."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from kvmedic.core.reasons import Reason


class Verdict(StrEnum):
    """The judgement of one step over its sustained window."""

    RECOVERED = "Recovered"
    IMPROVED = "Improved"
    NOT_RECOVERED = "NotRecovered"
    INCONCLUSIVE = "Inconclusive"


@dataclass(frozen=True, slots=True)
class Baseline:
    """The fleet as it was before the change, per replica and second where a rate is meant; written to the status."""

    window_seconds: float
    replicas: int
    preemptions_per_request: float
    requests_per_second: float
    """Arrivals of the whole fleet: (finished + change of running and waiting) / window."""
    prompt_tokens_mean: float
    output_tokens_mean: float
    generated_tokens_per_second: float
    """Of the whole fleet."""
    inter_token_p95_seconds: float
    inter_token_tail_seconds: float
    """p99 of the gap between two tokens: where stalls by preemption show."""
    time_to_first_token_p95_seconds: float
    kv_cache_usage_ratio: float
    restarts: int


@dataclass(frozen=True, slots=True)
class Objectives:
    """Service levels that the spec names; None where it names none."""

    inter_token_p95_seconds: float | None = None
    e2e_p95_seconds: float | None = None
    time_to_first_token_p95_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Judged:
    """A verdict with its reason and the numbers in one sentence."""

    verdict: Verdict
    reason: Reason
    message: str
