"""Do blocks come back on the fleet, once a method was turned on that is to give them back?

A trial pod showed it of one long request. Here live traffic is asked, with what a running sequence takes of
the pool: about what its length says where nothing comes back, about what the method keeps where blocks do.
Traffic of short requests, shared prefixes and missing signals tell neither, and never make a verdict worse.

How many blocks a running sequence takes, and how many it would: by the gauges, and by what a method keeps.

Gauges see what runs and nothing of why; what a method keeps follows from the lengths of finished requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf, isfinite, sqrt

from kvmedic.model.compression import PASS_TOKENS, Keep, Pattern, used_blocks
from kvmedic.model.evidence import HISTOGRAMS, Histogram, Inconclusive, Measured, Observation, Pool, Signal
from kvmedic.model.readings import (
    Complete,
    above,
    complete,
    merge_histograms,
    moments,
    pools,
    quantile,
    total,
    total_of_told,
)
from kvmedic.model.run import Judged
from kvmedic.verdict.baseline import FEWEST_FINISHED
from kvmedic.verdict.comparison import not_recovered
from kvmedic.verdict.sizing import Evicted, Occupancy, occupancy, occupancy_under

SHARED_PREFIXES = 0.05
"""Share of the looked-up tokens found in the prefix cache from which shared blocks matter: at 5 % of the
prompts the mean sequence is at most 5 % smaller."""
RESIDENCE_QUANTILE = 0.99
"""The residence time that a window must cover, so that the lengths of its finished requests count: of 99 in
100. A shorter window counts the short requests and misses the long ones that fill the pool."""


@dataclass(frozen=True, slots=True)
class Passes:
    """What a method does to a sequence while it runs."""

    keep: Keep
    """What each pass leaves of it."""
    pattern: Pattern
    """Where survivors are."""
    every: int = PASS_TOKENS
    """Generated tokens from one pass to the next."""

    def taken(self, tokens: int, block_tokens: int) -> float:
        """Return the blocks of a sequence of so many tokens, half way from one pass to the next."""
        kept = Keep(budget=self.keep.tokens_of(tokens) + self.every // 2)
        return used_blocks(tokens, block_tokens, kept, self.pattern)


def occupancy_between(prompt: Histogram, output: Histogram, block_tokens: int, passes: Passes) -> Occupancy:
    """Return what a running sequence takes by the tokens that a method keeps.

    Args:
        prompt: lengths of finished requests' prompts.
        output: lengths of their outputs.
        block_tokens: tokens per block.
        passes: what the method does.
    """
    evicted = Evicted(block_tokens, passes.every, lambda tokens: passes.taken(tokens, block_tokens))
    return occupancy_under(prompt, output, evicted)


def blocks_per_running(found: Mapping[str, Complete], pools: Mapping[str, Pool]) -> float:
    """Return blocks in use per running sequence, by the gauges.

    Args:
        found: usage and running sequences of replicas, by pod name.
        pools: pools of at least these.
    """
    in_use = sum(pools[name].blocks * one.numbers[Signal.KV_CACHE_USAGE_MEAN] for name, one in found.items())
    return in_use / max(1.0, total(found, Signal.RUNNING_MEAN))


def hit_share(observation: Observation) -> float:
    """Return the share of prompt tokens found in the prefix cache; 0 where the engine does not tell."""
    queries = total_of_told(observation, Signal.PREFIX_CACHE_QUERIES)
    hits = total_of_told(observation, Signal.PREFIX_CACHE_HITS)
    return min(1.0, hits / queries) if queries > 0 else 0.0


TOLD_APART = 0.5
"""Blocks of a sequence where they come back, over those where none does, at most, for gauges to tell the two
apart at their geometric middle. Where none comes back gauges read down to 0.75 of what lengths say (under
thrash, see `sizing.THRASH_READS`), and two windows differ by 5 %: down to 0.71 of it, just above the middle,
which is at the root of 0.5 at most. A method that works would have to read 1.41 times what it keeps."""
FEWEST_MOMENTS = 50.0
"""Sequences that gauges must have seen, moments times running ones, where moments are few. Each is somewhere
between its first and its last token, by as much as its mean at most: the mean of 50 is off by 14 %, and twice
that is less than the 1.41 above."""
FEWEST_RUNNING = 1.0
"""Running sequences of the whole fleet, on average, without which blocks per sequence say nothing."""

_NEEDED = frozenset(
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
class Expectation:
    """What a method that was turned on is to do for sequences, and what shows it."""

    method: str
    passes: Passes | None
    """None: what it keeps is not known any more."""
    trial: str
    """What a trial pod showed of it, in a sentence; empty: that is not on record any more."""
    length: int
    """Generated tokens of the request that the spec has tried (`spec.compression.probe.tokens`)."""


@dataclass(frozen=True, slots=True)
class NotShown:
    """Live traffic does not tell, and why."""

    why: str


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
    """Return a verdict that is no recovery where live traffic shows that no blocks come back.

    Args:
        judged: the verdict by the fleet's figures, a good one.
        looked: the look over the sustained window, at replicas that run the change only.
        expected: what the method is to do.
    """
    found = measure_blocks(looked, expected.passes)
    told = f"{_traffic_text(found, expected)}; {_long_ones(looked, expected.length)}{judged.message}"
    if isinstance(found, NotShown) or found.are_returned:
        return replace(judged, message=told)
    return not_recovered(told, judged.after)


def measure_blocks(looked: Observation, passes: Passes | None) -> BlocksTaken | NotShown:
    """Return what a running sequence takes and would take, or why live traffic does not tell.

    Args:
        looked: the look over the sustained window.
        passes: what the method does; None: not known.
    """
    if passes is None:
        return NotShown("what the method keeps is not known any more")
    found = complete(looked, _NEEDED)
    if isinstance(found, Inconclusive):
        return NotShown(found.message)
    held = pools(looked)
    if isinstance(held, Inconclusive):
        return NotShown(held.message)
    doubt = _differ(found, held) or _too_little(found, looked) or _hidden(found, looked)
    return NotShown(doubt) if doubt else _compare_occupancy(found, held, passes)


def _differ(found: Mapping[str, Complete], held: Mapping[str, Pool]) -> str:
    """Return that replicas cannot be added up; empty where they can."""
    counted = sorted(_NEEDED & HISTOGRAMS)
    shapes = {tuple(one.histograms[signal].bounds for signal in counted) for one in found.values()}
    if len(shapes) > 1 or len({pool.block_tokens for pool in held.values()}) > 1:
        return "the replicas count lengths or blocks differently"
    return ""


def _too_little(found: Mapping[str, Complete], looked: Observation) -> str:
    """Return what there was too little of; empty where there was enough."""
    counted = [_counted_blocks(found, signal) for signal in sorted(_NEEDED & HISTOGRAMS)]
    finished = min(one.count if one.total > 0 else 0.0 for one in counted)
    if finished < FEWEST_FINISHED:
        return f"{finished:.0f} requests finished, {FEWEST_FINISHED} are needed"
    running = total(found, Signal.RUNNING_MEAN)
    if not running >= FEWEST_RUNNING:
        return f"{running:.1f} requests ran on average, {FEWEST_RUNNING:g} are needed"
    moments_seen = [pod.gauge_samples for pod in looked.pods.values() if pod.gauge_samples is not None]
    seen = running * min(moments_seen, default=inf)
    if seen < FEWEST_MOMENTS:
        return f"gauges saw {seen:.0f} running requests, {FEWEST_MOMENTS:g} are needed"
    return ""


def _hidden(found: Mapping[str, Complete], looked: Observation) -> str:
    """Return what else makes sequences seem larger or smaller; empty where nothing does."""
    if quantile(_counted_blocks(found, Signal.E2E_SECONDS), RESIDENCE_QUANTILE) > looked.window_seconds:
        return (
            f"over one request in a hundred stays longer than the window of {looked.window_seconds:.0f} s: "
            "raise spec.verify.for"
        )
    shared = hit_share(looked)
    if shared > SHARED_PREFIXES:
        return f"{shared:.0%} of the looked-up tokens were found in the prefix cache: sequences share blocks"
    return ""


def _compare_occupancy(
    found: Mapping[str, Complete], held: Mapping[str, Pool], passes: Passes
) -> BlocksTaken | NotShown:
    prompt, output = (
        _counted_blocks(found, Signal.PROMPT_LENGTH),
        _counted_blocks(found, Signal.OUTPUT_LENGTH),
    )
    block_tokens = next(iter(held.values())).block_tokens
    taken = BlocksTaken(
        measured=blocks_per_running(found, held),
        returning=occupancy_between(prompt, output, block_tokens, passes).mean_blocks,
        whole=occupancy(moments(prompt), moments(output), block_tokens).mean_blocks,
    )
    if not isfinite(taken.measured):
        return NotShown("the gauges are no numbers")
    if taken.returning > TOLD_APART * taken.whole:
        return NotShown(
            f"requests are too short: a running sequence would take {taken.returning:.1f} blocks with it and "
            f"{taken.whole:.1f} without, told apart up to {TOLD_APART * taken.whole:.1f}"
        )
    return taken


def _traffic_text(found: BlocksTaken | NotShown, expected: Expectation) -> str:
    """Return in a sentence what live traffic shows of a method."""
    if isinstance(found, NotShown):
        shown = expected.trial or "what it showed is not on record any more"
        return (
            f"live traffic does not show whether blocks of {expected.method} come back ({found.why}); "
            f"the trial with this very pod template did: {shown}"
        )
    numbers = (
        f"a running sequence takes {found.measured:.1f} blocks, by its length {found.returning:.1f} are "
        f"expected where they come back and {found.whole:.1f} where none does"
    )
    if found.are_returned:
        return f"blocks come back on the fleet: {numbers}"
    return f"blocks do not come back on the fleet: {numbers}"


def _long_ones(looked: Observation, length: int) -> str:
    """Return how many answers were longer than the one that was tried; empty where the counts do not tell."""
    readings = [pod.histogram(Signal.OUTPUT_LENGTH) for pod in looked.pods.values()]
    counted = [each.value for each in readings if isinstance(each, Measured)]
    if len(counted) < len(readings) or len({one.bounds for one in counted}) != 1:
        return ""
    whole = merge_histograms(counted)
    if whole.counts[-1] > 0 and length > whole.bounds[-1]:
        return ""
    longer = above(whole, length)
    if longer < 1:
        return f"no answer of over {length} tokens came in this window; "
    about = "" if length in whole.bounds else "about "
    return f"{about}{longer:.0f} answers of over {length} tokens were completed; "


def _counted_blocks(found: Mapping[str, Complete], signal: Signal) -> Histogram:
    return merge_histograms([one.histograms[signal] for one in found.values()])
