"""Why the evidence of a thrashing fleet does not do for sizing it: the first doubt that applies."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf, sqrt

from kvmedic.core.complete import number
from kvmedic.core.diagnosis import Evidence, Inconclusive
from kvmedic.core.evidence import HISTOGRAMS, Histogram, Signal
from kvmedic.core.reasons import Reason
from kvmedic.runbooks.case import (
    NOW,
    REQUESTS,
    Case,
    Seen,
    case_of,
    measured_blocks,
    residence_seconds,
    seen_of,
)

FEWEST_REQUESTS = 100
"""Requests that must have finished over the window, in the whole fleet, before their lengths count.

Source: caps computed from random draws of the request shapes in `docs/explanation/right-sizing.md`. With
100 requests the cap lies within 20 % of the true one in 9 of 10 draws of most shapes, with 50 within
23 %, with 30 within 28 %; a cap that is 20 % off costs up to 10 % of goodput in the same simulations."""
POOLS_ALIKE = 0.05
"""Relative difference up to which pools count as the same: a cap is proportional to the pool, and 5 % of
a cap is within the noise of `FEWEST_REQUESTS`. Profiling at start-up leaves some blocks more or less."""
LEAST_MISFIT = 0.6
"""Blocks in use per running sequence, over those that the lengths predict, at least. Below, something
else decides what a sequence keeps (evicted tokens, sliding windows). Simulated: 0.78 to 1.01."""
MOST_MISFIT = 1.3
"""The same, at most. Above, requests that never finish in the window fill the pool, or the pool is not
what it seems."""
LUCK = 2.0
"""Standard deviations by which gauges of few moments may lie beside their mean: 19 times in 20."""


def doubt_of(seen: Seen) -> Inconclusive | None:
    """Return why lengths and pools cannot be told from what was seen, or None."""
    doubts = (_several_models, _replicas_differ, _too_few, _too_short, _too_young)
    return next((found for doubt in doubts if (found := doubt(seen)) is not None), None)


def misfit_of(seen: Seen, case: Case) -> Inconclusive | None:
    """Return that the lengths do not explain what fills the pool, or None where they do."""
    measured, predicted = measured_blocks(seen), case.sequence.mean_blocks
    noise = 1 + LUCK * _gauge_noise(seen, case)
    if LEAST_MISFIT / noise <= measured / predicted <= MOST_MISFIT * noise:
        return None
    return Inconclusive(
        Reason.LENGTHS_MISFIT,
        f"a running sequence takes {measured:.1f} blocks, its lengths predict {predicted:.1f}; "
        "a cap cannot be computed from lengths",
    )


def sized(evidence: Evidence, pressured: Iterable[str]) -> Case | Inconclusive:
    """Return what the sizing of a fleet rests on, or why its evidence does not do for it.

    Args:
        evidence: both looks.
        pressured: the pods of which what happens now is read.
    """
    seen = seen_of(evidence, pressured)
    if isinstance(seen, Inconclusive):
        return seen
    doubt = doubt_of(seen)
    if doubt is not None:
        return doubt
    case = case_of(seen, evidence.evicts, evidence.peaks)
    return misfit_of(seen, case) or case


def _gauge_noise(seen: Seen, case: Case) -> float:
    """Return the relative deviation of blocks per running sequence as gauges of few moments tell it.

    Each moment shows as many sequences as run, each somewhere between its first and its last token.
    """
    seats = 0.0
    for name, readings in seen.burn.pods.items():
        if readings.gauge_samples is None:
            return 0.0
        seats += readings.gauge_samples * seen.now[name].numbers[Signal.RUNNING_MEAN]
    return case.sequence.deviation_blocks / case.sequence.mean_blocks / sqrt(max(1.0, seats))


def _several_models(seen: Seen) -> Inconclusive | None:
    models = sorted({model for readings in seen.sizing.pods.values() for model in readings.model_names})
    if len(models) <= 1:
        return None
    return Inconclusive(
        Reason.SEVERAL_MODELS,
        f"the replicas serve {', '.join(models)}: their lengths are mixed; point one resource at each",
    )


def _replicas_differ(seen: Seen) -> Inconclusive | None:
    kinds = {(pool.block_tokens, pool.cache_dtype) for pool in seen.pools.values()}
    engines = {readings.engines for readings in seen.sizing.pods.values()}
    sizes = [pool.blocks for pool in seen.pools.values()]
    alike = min(sizes) >= (1 - POOLS_ALIKE) * max(sizes)
    if alike and len(kinds) == 1 and len(engines) == 1 and _bounds_agree(seen):
        return None
    shown = ", ".join(f"{n}: {p.blocks} x {p.block_tokens} tokens" for n, p in seen.pools.items())
    return Inconclusive(
        Reason.REPLICAS_DIFFER,
        f"the replicas' pools, engines or greatest lengths differ ({shown}): no cap is right for all",
    )


def _bounds_agree(seen: Seen) -> bool:
    """Return whether the replicas count in the same buckets; their bounds depend on the greatest length."""
    counted = [(signal, one) for signal in REQUESTS & HISTOGRAMS for one in seen.requests.values()]
    counted += [(signal, one) for signal in NOW & HISTOGRAMS for one in seen.now.values()]
    bounds = {(signal, one.histograms[signal].bounds) for signal, one in counted}
    return len(bounds) == len({signal for signal, _ in counted})


def _too_few(seen: Seen) -> Inconclusive | None:
    finished = min(_finished(seen.counted(s)) for s in (Signal.PROMPT_LENGTH, Signal.OUTPUT_LENGTH))
    if finished < FEWEST_REQUESTS:
        return Inconclusive(
            Reason.TOO_FEW_REQUESTS,
            f"{finished:.0f} requests finished in {_shown(seen.sizing.window_seconds)} and "
            f"{FEWEST_REQUESTS} are needed; wait, or raise spec.sizing.window",
        )
    if min(seen.total(Signal.GENERATED_TOKENS), seen.gaps().count) <= 0:
        return Inconclusive(
            Reason.TOO_FEW_REQUESTS,
            f"no token was generated in {_shown(seen.burn.window_seconds)} on the pressured replicas",
        )
    return None


def _shown(seconds: float) -> str:
    """Return how long a look covers; infinite stands for unknown."""
    return f"{seconds:.0f} s" if seconds < inf else "a time that nobody knows"


def _finished(lengths: Histogram) -> float:
    """Return how many requests a histogram of lengths counted; none when they had no length."""
    return lengths.count if lengths.total > 0 else 0.0


def _too_short(seen: Seen) -> Inconclusive | None:
    if seen.counted(Signal.E2E_SECONDS).count <= 0:
        return Inconclusive(Reason.TOO_FEW_REQUESTS, "no finished request tells how long requests stay")
    residence, window = residence_seconds(seen), seen.sizing.window_seconds
    if residence <= window:
        return None
    if residence == inf:
        top = max(seen.counted(Signal.E2E_SECONDS).bounds, default=0.0)
        return Inconclusive(
            Reason.WINDOW_TOO_SHORT,
            f"requests stay longer (p99) than the {top:.0f} s up to which this engine counts, so nobody "
            "knows whether the window holds them; shorten requests, or run a version that counts further",
        )
    return Inconclusive(
        Reason.WINDOW_TOO_SHORT,
        f"requests stay {residence:.0f} s (p99) and the window looks back {window:.0f} s; "
        "raise spec.sizing.window",
    )


def _too_young(seen: Seen) -> Inconclusive | None:
    residence = residence_seconds(seen)
    for name, readings in sorted(seen.sizing.pods.items()):
        started = number(readings, Signal.STARTED_SECONDS)
        age = inf if started is None else seen.sizing.at.timestamp() - started
        if age < residence:
            return Inconclusive(
                Reason.WINDOW_TOO_SHORT,
                f"{name} started {age:.0f} s ago and requests stay {residence:.0f} s (p99): "
                "its long requests have not finished yet; wait",
            )
    return None
