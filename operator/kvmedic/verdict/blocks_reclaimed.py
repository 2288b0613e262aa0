"""Do blocks of the KV cache come back on the fleet, once a method was turned on that is to give them back?

A trial pod showed it of one long request. Live traffic is asked with what a running sequence takes of the
pool: about what its length says where nothing comes back, about what the method keeps where blocks do.
Short requests, shared prefixes and missing signals show neither, and never make a verdict worse.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf, isfinite, sqrt

from kvmedic.model.evidence import HISTOGRAMS, Inconclusive, Measured, Observation, Signal
from kvmedic.model.readings import (
    Complete,
    count_above,
    gather_values,
    merge_histograms,
    moments,
    pools,
    quantile,
    total,
)
from kvmedic.model.reasons import Reason
from kvmedic.model.run import Judged
from kvmedic.verdict.baseline import FEWEST_FINISHED, counts_of
from kvmedic.verdict.comparison import report_no_recovery
from kvmedic.verdict.occupancy import (
    RESIDENCE_QUANTILE,
    SHARED_PREFIXES,
    Passes,
    blocks_per_running,
    hit_share,
    occupancy,
    occupancy_under,
)


@dataclass(frozen=True, slots=True)
class Expectation:
    """What a method that was turned on is to do for sequences, and what shows it."""

    method: str
    passes: Passes | None
    """None: what it keeps is not known any more."""
    trial: str
    """What a trial pod showed of it, in a sentence; empty: that is not on record any more."""
    length: int
    """Generated tokens of the request that the spec has tried (`spec.compression.probe.tokens`)."""


DISTINGUISHABLE = 0.5
"""Blocks of a sequence where they come back, over those where none does, at most, for gauges to tell the two
apart at their geometric middle. Where none comes back gauges read down to 0.75 of what lengths say (under
thrash, see `occupancy.THRASH_READS`), and two windows differ by 5 %: down to 0.71 of it, just above the
middle, which is at the root of 0.5 at most. A method that works would have to read 1.41 times its own."""
FEWEST_MOMENTS = 50.0
"""Sequences that gauges must have seen, moments times running ones, where moments are few. Each is somewhere
between its first and its last token, by as much as its mean at most: the mean of 50 is off by 14 %, and twice
that is less than the 1.41 above."""
FEWEST_RUNNING = 1.0
"""Running sequences of the whole fleet, on average, without which blocks per sequence say nothing."""


BLOCKS_NEEDED = frozenset(
    {
        Signal.PROMPT_LENGTH,
        Signal.OUTPUT_LENGTH,
        Signal.E2E_SECONDS,
        Signal.KV_CACHE_USAGE_MEAN,
        Signal.RUNNING_MEAN,
        Signal.PREFIX_CACHE_QUERIES,
        Signal.PREFIX_CACHE_HITS,
    }
)


@dataclass(frozen=True, slots=True)
class BlocksTaken:
    """Blocks per running sequence, on average over the window."""

    measured: float
    """By the gauges."""
    returning: float
    """By the lengths of finished requests, where blocks come back as the method has it."""
    whole: float
    """By these lengths, where none comes back."""

    @property
    def are_returned(self) -> bool:
        """Return whether what is measured is nearer, as a ratio, to where blocks come back."""
        return self.measured <= sqrt(self.returning * self.whole)


def judge_blocks(judged: Judged, looked: Observation, expected: Expectation) -> Judged:
    """Return a good verdict as no recovery where live traffic shows that no blocks come back."""
    found = measure_blocks(looked, expected.passes)
    text = f"{_traffic_text(found, expected)}; {_long_answers_text(looked, expected.length)}{judged.message}"
    if isinstance(found, Inconclusive) or found.are_returned:
        return replace(judged, message=text)
    return report_no_recovery(text, judged.after)


def measure_blocks(looked: Observation, passes: Passes | None) -> BlocksTaken | Inconclusive:
    """Return what a running sequence takes and would take, or why live traffic does not show it.

    The look must be at replicas that run the change only. `passes` is what the method does; None: not known.
    """
    if passes is None:
        return Inconclusive(Reason.METHOD_UNKNOWN, "what the method keeps is not known any more")
    found, held = gather_values(looked, BLOCKS_NEEDED), pools(looked)
    if isinstance(found, Inconclusive):
        return found
    if isinstance(held, Inconclusive):
        return held
    counted = sorted(BLOCKS_NEEDED & HISTOGRAMS)
    shapes = {tuple(one.histograms[signal].bounds for signal in counted) for one in found.values()}
    if len(shapes) > 1 or len({pool.block_tokens for pool in held.values()}) > 1:
        return Inconclusive(Reason.REPLICAS_DIFFER, "the replicas count lengths or blocks differently")
    if doubt := _doubt_traffic(found, looked):
        return Inconclusive(Reason.TOO_FEW_REQUESTS, doubt)
    prompt, output = (counts_of(found, each) for each in (Signal.PROMPT_LENGTH, Signal.OUTPUT_LENGTH))
    block_tokens = next(iter(held.values())).block_tokens
    taken = BlocksTaken(
        measured=blocks_per_running(found, held),
        returning=occupancy_under(prompt, output, block_tokens, passes).mean_blocks,
        whole=occupancy(moments(prompt), moments(output), block_tokens).mean_blocks,
    )
    if not isfinite(taken.measured):
        return Inconclusive(Reason.METRICS_MISSING, "the gauges are no numbers")
    if taken.returning > DISTINGUISHABLE * taken.whole:
        return Inconclusive(
            Reason.TRAFFIC_UNSUITED,
            f"requests are too short: a running sequence would take {taken.returning:.1f} blocks with it and "
            f"{taken.whole:.1f} without, distinguished up to {DISTINGUISHABLE * taken.whole:.1f}",
        )
    return taken


def _doubt_traffic(found: Mapping[str, Complete], looked: Observation) -> str:
    """Return what there was too little of, or what hides the size of sequences; empty: neither."""
    counted = [counts_of(found, signal) for signal in sorted(BLOCKS_NEEDED & HISTOGRAMS)]
    finished = min(one.count if one.total > 0 else 0.0 for one in counted)
    if finished < FEWEST_FINISHED:
        return f"{finished:.0f} requests finished, {FEWEST_FINISHED} are needed"
    running = total(found, Signal.RUNNING_MEAN)
    if not running >= FEWEST_RUNNING:
        return f"{running:.1f} requests ran on average, {FEWEST_RUNNING:g} are needed"
    samples = [pod.gauge_samples for pod in looked.pods.values() if pod.gauge_samples is not None]
    seen = running * min(samples, default=inf)
    if seen < FEWEST_MOMENTS:
        return f"gauges saw {seen:.0f} running requests, {FEWEST_MOMENTS:g} are needed"
    if quantile(counts_of(found, Signal.E2E_SECONDS), RESIDENCE_QUANTILE) > looked.window_seconds:
        return (
            f"over one request in a hundred stays longer than the window of {looked.window_seconds:.0f} s: "
            "raise spec.verify.for"
        )
    shared = hit_share(looked)
    if shared > SHARED_PREFIXES:
        return f"{shared:.0%} of the looked-up tokens were found in the prefix cache: sequences share blocks"
    return ""


def _traffic_text(found: BlocksTaken | Inconclusive, expected: Expectation) -> str:
    """Return in a sentence what live traffic shows of a method."""
    if isinstance(found, Inconclusive):
        shown = expected.trial or "what it showed is not on record any more"
        return (
            f"live traffic does not show whether blocks of {expected.method} come back ({found.message}); "
            f"the trial with this very pod template did: {shown}"
        )
    return (
        f"blocks {'come' if found.are_returned else 'do not come'} back on the fleet: a running sequence "
        f"takes {found.measured:.1f} blocks, by its length {found.returning:.1f} are expected where they "
        f"come back and {found.whole:.1f} where none does"
    )


def _long_answers_text(looked: Observation, length: int) -> str:
    """Return how many answers were longer than the one that was tried; empty where the counts do not say."""
    readings = [pod.histogram(Signal.OUTPUT_LENGTH) for pod in looked.pods.values()]
    counted = [each.value for each in readings if isinstance(each, Measured)]
    if len(counted) < len(readings) or len({one.bounds for one in counted}) != 1:
        return ""
    whole = merge_histograms(counted)
    if whole.counts[-1] > 0 and length > whole.bounds[-1]:
        return ""
    longer = count_above(whole, length)
    if longer < 1:
        return f"no answer of over {length} tokens came in this window; "
    about = "" if length in whole.bounds else "about "
    return f"{about}{longer:.0f} answers of over {length} tokens were completed; "
