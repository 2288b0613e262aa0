"""A fleet's figures over one window: what a change is judged against, and what it is judged by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

from kvmedic.core.complete import Complete, complete, number, total, total_if_told
from kvmedic.core.diagnosis import Inconclusive
from kvmedic.core.distribution import above, merged, quantile
from kvmedic.core.evidence import HISTOGRAMS, Histogram, Observation, Signal
from kvmedic.core.reasons import Reason
from kvmedic.core.sizing import STALL_SECONDS

TAIL_PER_REQUEST = 0.05
"""The tail of the gaps is the gap that one request in twenty exceeds once. A fixed quantile of gaps would
miss what it is for: with 434 tokens and 1.8 preemptions per request (recorded from vLLM 0.32.0 in
thrash) the p99 of all gaps is 0.02 s, the gap of one request in twenty 4.0 s."""
FEWEST_FINISHED = 50
"""Finished requests of the whole fleet, at least. Verdicts over simulated windows with 20 to 50 began to
be wrong (2 of 450 changes that did nothing looked better, 1 harmful cap recovered), with more none was."""

NEEDED = frozenset(
    {
        Signal.PREEMPTIONS,
        Signal.REQUESTS_FINISHED,
        Signal.REQUESTS_IN_FLIGHT_CHANGE,
        Signal.WAITING_MEAN,
        Signal.GENERATED_TOKENS,
        Signal.KV_CACHE_USAGE_MEAN,
        Signal.PROMPT_LENGTH,
        Signal.OUTPUT_LENGTH,
        Signal.INTER_TOKEN_SECONDS,
        Signal.TIME_TO_FIRST_TOKEN_SECONDS,
        Signal.E2E_SECONDS,
    }
)
"""Signals that a baseline and a verdict need of every replica."""
_PER_REQUEST = (
    Signal.PROMPT_LENGTH,
    Signal.OUTPUT_LENGTH,
    Signal.TIME_TO_FIRST_TOKEN_SECONDS,
    Signal.E2E_SECONDS,
)


@dataclass(frozen=True, slots=True)
class Baseline:
    """The fleet as it was before the change; written to the status."""

    window_seconds: float
    replicas: int
    preemptions_per_request: float
    requests_per_second: float
    """Arrivals of the whole fleet: (finished + aborted + change of running and waiting) / window."""
    prompt_tokens_mean: float
    output_tokens_mean: float
    generated_tokens_per_second: float
    """Of the whole fleet."""
    inter_token_p95_seconds: float
    inter_token_tail_seconds: float
    """The gap between two tokens that one request in twenty exceeds once: where stalls by preemption show."""
    stalls_per_request: float
    """Gaps of over 2 s between two tokens, per finished request."""
    time_to_first_token_p95_seconds: float
    end_to_end_p95_seconds: float
    kv_cache_usage_ratio: float
    waiting_mean: float
    """Waiting requests of the whole fleet, on average."""
    restarts: int
    models: tuple[str, ...] = ()
    """Names under which the replicas serve, sorted; empty: written by a version that did not say."""
    aborted_share: float | None = None
    """Requests that ended without an answer, of all that ended (0-1). None: a replica does not tell."""
    memory_free_mib: float | None = None
    """The least that was free on a GPU. None: no exporter tells."""
    running_mean: float | None = None
    """Running sequences of the whole fleet, on average. None: not measured, or written by a version that
    did not say."""
    up_seconds: float | None = None
    """How long the replicas had been there, together: `restarts` came in that time. None: not known."""
    ended_at_memory_limit: bool = False
    """A replica's engine had ended last at its container's memory limit."""

    @property
    def requests(self) -> float:
        """Return how many requests came in the window."""
        return self.requests_per_second * self.window_seconds


def baseline_of(observation: Observation, restarts: int) -> Baseline | Inconclusive:
    """Return a fleet's figures over one window, or what is missing for them.

    Args:
        observation: the look; every replica counts.
        restarts: restarts of the replicas' engine containers so far.
    """
    found = complete(observation, NEEDED)
    if isinstance(found, Inconclusive):
        return found
    doubt = _doubt(found, observation)
    return doubt or _figures(found, observation, restarts)


def _doubt(found: Mapping[str, Complete], observation: Observation) -> Inconclusive | None:
    """Return why complete readings still say too little, or None."""
    for name, readings in sorted(observation.pods.items()):
        started = number(readings, Signal.STARTED_SECONDS)
        age = inf if started is None else observation.at.timestamp() - started
        if age < observation.window_seconds:
            return Inconclusive(
                Reason.WINDOW_TOO_SHORT,
                f"{name} started {age:.0f} s ago, in the window of {observation.window_seconds:.0f} s; wait",
            )
    for signal in sorted(NEEDED & HISTOGRAMS):
        if len({one.histograms[signal].bounds for one in found.values()}) > 1:
            return Inconclusive(Reason.REPLICAS_DIFFER, f"the replicas count {signal} in different buckets")
    finished = min(total(found, Signal.REQUESTS_FINISHED), *(_counted(found, s).count for s in _PER_REQUEST))
    if finished >= FEWEST_FINISHED and _counted(found, Signal.INTER_TOKEN_SECONDS).count > 0:
        return None
    return Inconclusive(
        Reason.TOO_FEW_REQUESTS,
        f"{finished:.0f} requests finished in {observation.window_seconds:.0f} s, "
        f"{FEWEST_FINISHED} are needed; wait, or raise the window",
    )


def _figures(found: Mapping[str, Complete], observation: Observation, restarts: int) -> Baseline:
    window, finished = observation.window_seconds, total(found, Signal.REQUESTS_FINISHED)
    aborted = total_if_told(observation, Signal.REQUESTS_ABORTED)
    arrived = finished + (aborted or 0.0) + total(found, Signal.REQUESTS_IN_FLIGHT_CHANGE)
    gaps = _counted(found, Signal.INTER_TOKEN_SECONDS)
    return Baseline(
        window_seconds=window,
        replicas=len(found),
        preemptions_per_request=total(found, Signal.PREEMPTIONS) / finished,
        requests_per_second=max(0.0, arrived / window),
        prompt_tokens_mean=_counted(found, Signal.PROMPT_LENGTH).mean,
        output_tokens_mean=_counted(found, Signal.OUTPUT_LENGTH).mean,
        generated_tokens_per_second=total(found, Signal.GENERATED_TOKENS) / window,
        inter_token_p95_seconds=_quantile(gaps, 0.95),
        inter_token_tail_seconds=_quantile(gaps, max(0.0, 1 - TAIL_PER_REQUEST * finished / gaps.count)),
        stalls_per_request=above(gaps, STALL_SECONDS) / finished,
        time_to_first_token_p95_seconds=_quantile(_counted(found, Signal.TIME_TO_FIRST_TOKEN_SECONDS), 0.95),
        end_to_end_p95_seconds=_quantile(_counted(found, Signal.E2E_SECONDS), 0.95),
        kv_cache_usage_ratio=total(found, Signal.KV_CACHE_USAGE_MEAN) / len(found),
        waiting_mean=total(found, Signal.WAITING_MEAN),
        restarts=restarts,
        models=tuple(sorted({name for pod in observation.pods.values() for name in pod.model_names})),
        aborted_share=None if aborted is None else aborted / (aborted + finished),
        running_mean=total_if_told(observation, Signal.RUNNING_MEAN),
    )


def _counted(found: Mapping[str, Complete], signal: Signal) -> Histogram:
    return merged([one.histograms[signal] for one in found.values()])


def _quantile(counted: Histogram, share: float) -> float:
    """Return a quantile; the top bound stands for everything above it, so that the figure can be stored."""
    return min(quantile(counted, share), max(counted.bounds, default=counted.mean))
