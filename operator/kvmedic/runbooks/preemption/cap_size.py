"""How many sequences a KV cache holds, and what a cap on them would bring.

Pure arithmetic on measured numbers. Blocks and sequences are those of one engine. Every constant was
fitted on simulated runs of the V1 scheduler; `docs/explanation/right-sizing.md` has the workloads,
the table and the regrets.

What a cap must still serve: arrivals that do not wait pile up in front of a cap that serves fewer tokens
than are offered, and no preemption shows it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import erfc, exp, floor, isfinite, sqrt

from kvmedic.model.evidence import Histogram, Measured, Reading
from kvmedic.model.readings import is_concentrated, merge_histograms
from kvmedic.verdict.occupancy import Occupancy
from kvmedic.verdict.served_in_time import WORST_STALLS

BOLDEST_FIT = 0.0
"""Fewest standard deviations by which the running set must fit the pool: half of the time. At this fit a
quarter of the preemptions is left, the most that counts as recovered. Best static caps of simulated
workloads lie between -0.6 and 1.6; bolder ones than 0 gain under 1 % there."""
SAFEST_FIT = 1.28
"""Most standard deviations by which the running set is made to fit the pool: 90 % of the time. Beyond
it throughput is paid for stalls that hardly occur any more."""
AS_GOOD = 0.99
"""Expected goodput over the best one, from which a safer cap is preferred."""
LEAST_LEFT = 0.5
"""Preemptions that a cap leaves over are, as a share of those without a cap, the probability p
of the running set not to fit, times the larger of this and p. Simulated medians of share over p: 0.51 at
a fit of 0, 0.40 at 0.5, 0.37 at 1.25; where the set does not fit (fits of -1 and -2) 0.61 and 0.84."""
STALLS_LEFT, STALLS_FALL, STALLS_CROWDED = 0.45, 1.5, 8
"""Stalls go away faster than preemptions, as a preempted one waits less for its turn: of those without a
cap the first times p to the second power is left. Simulated medians of the share: 0.30 at a fit of -1, 0.09
at 0, 0.05 at 0.6, 0.006 at 1.4. Where the running set hardly ever fits, all of them are left: the first
grows to 1 with p to the third power."""
LOST_SHARE = 0.36
"""Tokens that a preempted sequence computes again, as a share of the mean running sequence: it is the
youngest that is preempted, and freed blocks are often still cached. Simulated: 0.16 to 0.74, median 0.36."""
BURST = 2.6
"""Requests and resumed sequences are admitted in bursts, and their prefills share steps: tokens computed from
a request's admission to its first token, as a multiple of its own and its share of the recomputed ones.
Simulated: 2.1 to 4.5 (1st to 9th decile), median 2.6."""
MOST_PREFILL = 0.75
"""Share of a step that tokens can explain, at most; the rest is its fixed part. Bounds what the prefill times
of crowded engines suggest. Simulated shares: 0.03 to 0.9, median 0.46."""
WAVE_MARGIN = 0.55
"""Requests of equal length end together, in waves; of N sequences the last starts about 0.55/sqrt(N) of
its output behind the first. Simulated for lengths from 64 + 512 to 1024 + 1024 and N from 7 to 66."""
WIDE_SPREAD = 0.1
"""Relative standard deviation of the output length from which waves dissolve. Simulated with outputs
spread evenly by 2, 5, 10 and 20 % to either side."""
UNKNOWN_SPREAD_WEIGHT = 0.5
"""Where the lengths lie in one bucket and nothing shows their spread: half way between waves and none."""
CONCENTRATED_SHARE = 0.9
"""Share of the outputs in one bucket, or in two adjacent ones, from which their spread cannot be read off the
buckets."""


_EXACT = 1e-6
"""Relative difference under which two means are the same: far above the rounding of floats, far under
the deviation of any mean of lengths that vary."""


@dataclass(frozen=True, slots=True)
class Strain:
    """One engine under thrash, as measured."""

    running_mean: float
    preemptions_per_request: float
    stalls_per_request: float
    """Gaps over `STALL_SECONDS` between two tokens, per request."""
    step_seconds: float
    """Mean gap between two tokens of a request that is not stalled; 0 where every gap is a stall."""
    prefill_extra_seconds: float
    """By how much the step of a request's prefill is longer than the mean one; 0 where not measured."""
    prefill_tokens: float
    """Prompt tokens of a request that are computed, not found in the prefix cache."""
    output_tokens: float


@dataclass(frozen=True, slots=True)
class Effect:
    """What a cap is expected to bring, against leaving things as they are."""

    throughput_ratio: float
    goodput_ratio: float
    """Tokens of requests without a stall, after over before."""
    stalls_per_request: float


def cap_at(pool_blocks: float, sequence: Occupancy, fit: float) -> int:
    """Return the most sequences that fit a pool by a number of standard deviations; 0 where not one does."""
    m, s = sequence.mean_blocks, fit * sequence.deviation_blocks
    return floor(((sqrt(s**2 + 4 * m * pool_blocks) - s) / (2 * m)) ** 2)


def fit_of(pool_blocks: float, sequence: Occupancy, cap: float) -> float:
    """Return by how many standard deviations a number of sequences fits a pool."""
    return (pool_blocks - cap * sequence.mean_blocks) / (sequence.deviation_blocks * sqrt(cap))


def effect_of(strain: Strain, sequence: Occupancy, pool_tokens: tuple[float, float], cap: int) -> Effect:
    """Return what a cap is expected to bring; `pool_tokens`: blocks of the pool, and tokens per block."""
    unfit = _overflow_share(sequence, pool_tokens[0], cap)
    throughput = _throughput(strain, sequence, pool_tokens[1], (min(float(cap), strain.running_mean), unfit))
    stalls = min(strain.stalls_per_request, WORST_STALLS)
    share = STALLS_LEFT + (1 - STALLS_LEFT) * unfit**STALLS_CROWDED
    stalls_left = stalls * share * unfit**STALLS_FALL
    return Effect(throughput, throughput * exp(stalls - stalls_left), stalls_left)


def most_throughput(strain: Strain, sequence: Occupancy, pool_tokens: tuple[float, float], cap: int) -> float:
    """Return the tokens per second at a cap that is always full, over those that the engine gives now."""
    unfit = _overflow_share(sequence, pool_tokens[0], cap)
    return _throughput(strain, sequence, pool_tokens[1], (float(cap), unfit))


def _overflow_share(sequence: Occupancy, blocks: float, cap: int) -> float:
    """Return the share of the time (0-1) in which so many sequences do not fit the pool."""
    return erfc(fit_of(blocks, sequence, cap) / sqrt(2)) / 2


def _throughput(
    strain: Strain, sequence: Occupancy, block_tokens: float, running_unfit: tuple[float, float]
) -> float:
    """Return tokens per second with so many running, which do not fit for some share, over those of now.

    Fewer sequences make fewer tokens a step, and shorter steps: those of the sequences, of their
    prefills, and of recomputation, at the price of a token that the prefills show.
    """
    running, unfit = running_unfit
    again = tokens_again(strain, sequence, block_tokens)
    left = again * unfit * max(LEAST_LEFT, unfit)
    before = tokens_per_step(strain, sequence, block_tokens)
    after = running * (1 + (strain.prefill_tokens + left) / strain.output_tokens)
    saved = _token_seconds(strain, again, before) * (before - after)
    step_ratio = 1 - saved / strain.step_seconds if strain.step_seconds > 0 else 1.0
    return running / strain.running_mean / step_ratio


def tokens_again(strain: Strain, sequence: Occupancy, block_tokens: float) -> float:
    """Return the tokens that preemptions have computed again, per request."""
    whole = sequence.mean_blocks if sequence.whole_blocks is None else sequence.whole_blocks
    return strain.preemptions_per_request * LOST_SHARE * whole * block_tokens


def tokens_per_step(strain: Strain, sequence: Occupancy, block_tokens: float) -> float:
    """Return the tokens of a step as it is now, on average: generated, prefilled and computed again."""
    prefilled = strain.prefill_tokens + tokens_again(strain, sequence, block_tokens)
    return strain.running_mean * (1 + prefilled / strain.output_tokens)


def token_share(strain: Strain, sequence: Occupancy, block_tokens: float) -> float:
    """Return which share of a step its tokens explain; the most that it can be where nothing shows it."""
    tokens, again = (each(strain, sequence, block_tokens) for each in (tokens_per_step, tokens_again))
    if strain.step_seconds <= 0 or strain.prefill_extra_seconds <= 0:
        return MOST_PREFILL
    return min(MOST_PREFILL, _token_seconds(strain, again, tokens) * tokens / strain.step_seconds)


def _token_seconds(strain: Strain, again: float, tokens: float) -> float:
    """Return what one more token in a step costs, by the prefills.

    `again` are the tokens computed again per request, `tokens` those of a step.
    """
    prefilled = BURST * (strain.prefill_tokens + again)
    per_token = strain.prefill_extra_seconds / prefilled if prefilled > 0 else 0.0
    return min(per_token, MOST_PREFILL * strain.step_seconds / tokens)


def best_cap(strain: Strain, sequence: Occupancy, pool_tokens: tuple[float, float]) -> int:
    """Return the safest cap that is as good as the best one, between the safest and the boldest fit.

    Where few requests stall, throughput decides and the bolder cap wins; where most do, the safer one.
    """
    lowest = max(1, cap_at(pool_tokens[0], sequence, SAFEST_FIT))
    highest = max(lowest, cap_at(pool_tokens[0], sequence, BOLDEST_FIT))
    expected = {
        cap: effect_of(strain, sequence, pool_tokens, cap).goodput_ratio for cap in range(lowest, highest + 1)
    }
    return min(cap for cap, goodput in expected.items() if goodput >= AS_GOOD * max(expected.values()))


def wave_cap(pool_tokens: float, prompt_tokens: float, output_tokens: float) -> float:
    """Return how many sequences of equal length fit, when they start and end together.

    Not all end at the same moment: see `WAVE_MARGIN`.
    """
    together = pool_tokens / (prompt_tokens + output_tokens)
    margin = min(1.0, WAVE_MARGIN / sqrt(together))
    return pool_tokens / (prompt_tokens + output_tokens * (1 - margin))


def spread_weight(groups: Sequence[Histogram]) -> float:
    """Return how far outputs are from ending in waves: 0 for equal lengths, 1 for lengths that vary.

    Lengths over more than two buckets vary. Within that, buckets are too coarse to tell 512 tokens from
    300 to 700. The exact means of several groups of requests do: they differ by the deviation over the
    root of the group's size. Two groups can only prove a spread; with a single one, a mean that is a
    whole number proves equal lengths. The groups are disjoint, and none of them is empty.
    """
    whole = merge_histograms(groups)
    if not is_concentrated(whole, CONCENTRATED_SHARE, buckets=2):
        return 1.0
    mean = whole.mean
    scatter = sum(group.count * (group.mean - mean) ** 2 for group in groups)
    deviation = sqrt(scatter / max(1, len(groups) - 1)) / mean  # of single values, by the means
    if len(groups) >= 3:
        return min(1.0, deviation / WIDE_SPREAD)
    if not is_concentrated(whole, CONCENTRATED_SHARE, buckets=1):
        return 1.0
    if deviation >= UNKNOWN_SPREAD_WEIGHT * WIDE_SPREAD:
        return min(1.0, deviation / WIDE_SPREAD)
    equal = deviation < _EXACT if len(groups) > 1 else abs(mean - round(mean)) < _EXACT * mean
    return 0.0 if equal else UNKNOWN_SPREAD_WEIGHT


MARGIN = 0.05
"""By how much the tokens per second that a cap is predicted to serve must exceed what it has to serve. From
gauges of thrashing engines that was 4 % too high to 13 % too low on simulated workloads whose cuts bring
something, and up to 12 % too high on those with cheap prefills, whose cuts bring nothing."""
KEEPING_UP = 0.06
"""What is added where the engine keeps up: what a full one gives is then extrapolated, up to 15 % too high
(simulated), and little is lost by leaving it alone. 0.1 refused two helpful caps more of 14, and no harmful
one more (`make bench-verdict`, 279 lower caps in open worlds)."""
WAVES_MARGIN = 0.2
"""What is added where outputs are of one length: their admissions come in waves, which makes prefills
look dear and the cut better than it is. Simulated: 22 % too high at worst."""
SHORT, OF_SHORT = 1.05, 0.86
"""From how much more is offered than a full engine gives it is short of capacity as it is set, and how much
of what it gives a cap must then be predicted to serve: what its stalls spoil is worth more than what the
prediction errs by, which is up to 20 % too low there. Of 300 drawn fleets these margins refused 161 of 167
harmful caps and none of 8 helpful ones."""
FEW_STALLS = 0.2
"""Stalls per request under which they spoil too little for that: all that is given must be served. Of drawn
workloads that were short with fewer stalls, caps that were predicted to serve x1.01 or more brought up to
x1.75 in time, and one of x0.99 brought x0.32 (`make bench-sizing WORKLOADS=open`)."""
FULL = 0.25
"""Waiting requests per running one, from which an engine gives all that it can as it is set. Simulated:
engines that keep up have 0 to 0.27, those that do not 1 to 21."""
STEADY, STEADY_REQUESTS = 0.1, 2.0
"""By how much of the requests in the fleet's hands, and by how many at least, their number may have changed
over each look for the same clients to be sending, each once it is answered. Replicas are scraped at different
moments, hence not 0. With arrivals that do not wait the number wanders by its own size."""
STEADY_PAGES = 1.0
"""The same where only two moments are known, in requests: two may be alike by chance."""
ENOUGH = 0.85
"""What a cap must serve, over what is given now, where the same clients send again and again: they adapt to
it. Predicted tokens per second of such fleets were up to 13 % too low (simulated)."""
MANY_STALLS, OF_HANGING = 0.7, 0.65
"""Stalls per request from which half of the requests hang: what is given then is not served. And how much of
it a cap must be predicted to serve where more is offered than a full engine gives: predictions are 20 % too
low there (median of 23 simulated engines), as most is computed again. Of 600 drawn fleets this let in four
helpful caps more of 34, and one harmful one of 173."""


@dataclass(frozen=True, slots=True)
class Offered:
    """What an engine is asked for over one look, as multiples of the tokens that it gives."""

    now: float
    """Requests that arrive times the mean output, over what is given."""
    served_per_second: float | None = None
    """Tokens that one engine gives; None: nobody knows how long the look was."""
    peak_per_second: float | None = None
    """The most that one engine was asked for over ten minutes of the last day; None: no history."""
    is_full: bool = False
    """It gives all that it can as it is set: requests wait, or their number grows."""
    is_steady: bool = False
    """The same clients seem to send, each once it is answered: what is offered is what is given."""

    @property
    def peak(self) -> float:
        """Return the most that was asked for of late, over what is given now."""
        if self.peak_per_second is None or not self.served_per_second:
            return self.now
        return max(self.now, self.peak_per_second / self.served_per_second)

    def least(self, stalls: float, spread: float) -> float:
        """Return what a cap must serve at most, over what is given now, to keep nobody waiting for it.

        As much as is offered at the peak, or as much as is given now where that is all that the present
        setting can; less where that is short and stalls spoil a part of it. Where the same clients send again
        and again they adapt to what is served, and where most of their answers hang nothing is lost with the
        tokens. `stalls`: per request, now; `spread`: how far outputs are from ending in waves (0-1).
        """
        hangs = stalls >= MANY_STALLS
        if self.is_full and self.is_steady:
            return 0.0 if hangs else ENOUGH
        is_short = self.is_full and self.now >= SHORT
        if is_short and hangs:
            return OF_HANGING
        waves = WAVES_MARGIN * (1 - spread)
        if is_short:
            return max(OF_SHORT + waves, 1.0 if stalls < FEW_STALLS else 0.0)
        if self.is_full:
            return 1 + MARGIN + waves
        return max(1.0, self.peak) * (1 + MARGIN + waves + KEEPING_UP)


@dataclass(frozen=True, slots=True)
class Queue:
    """Requests in a fleet's hands over one look."""

    running: float
    waiting: float
    change: float
    """Running and waiting at its end, less the same at its start."""
    is_from_saved_pages: bool = False
    """Only a few moments are known."""

    @property
    def is_steady(self) -> bool:
        """Return whether as many were there at the end as at the start."""
        wandering = max(STEADY_REQUESTS, STEADY * (self.running + self.waiting))
        return abs(self.change) <= (STEADY_PAGES if self.is_from_saved_pages else wandering)

    @property
    def is_full(self) -> bool:
        """Return whether more are there than the engines can take on."""
        return self.waiting >= FULL * self.running

    @property
    def grows(self) -> bool:
        """Return whether more were there at the end than at the start."""
        return self.change > 0 and not self.is_steady


def peak_of(peaks: Mapping[str, Reading[float]]) -> float | None:
    """Return the most that a replica was asked for, on average over the replicas of which that is known."""
    measured = [one.value for one in peaks.values() if isinstance(one, Measured)]
    known = [value for value in measured if isfinite(value) and value > 0]
    return sum(known) / len(known) if known else None
