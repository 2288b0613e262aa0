"""What the sizing of a thrashing fleet rests on, and why its evidence may not suffice for that.

What happens now (preemptions, stalls, running sequences) is read from the pressured replicas over the
trigger's window; what requests look like from all replicas over the sizing window.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, inf, sqrt
from statistics import fmean
from types import MappingProxyType

from kvmedic.model.compression import Keep, TokenEviction
from kvmedic.model.evidence import (
    HISTOGRAMS,
    Histogram,
    Inconclusive,
    Observation,
    PastLengths,
    PodReadings,
    Pool,
    Reading,
    Signal,
)
from kvmedic.model.readings import (
    Complete,
    count_above,
    find_longest,
    gather_values,
    histogram,
    lower_bound,
    mean_below,
    merge_histograms,
    moments,
    number_or_none,
    pools,
    quantile,
    total,
    total_if_reported,
    total_reported,
)
from kvmedic.model.reasons import Reason
from kvmedic.runbooks.branches import Evidence
from kvmedic.runbooks.preemption.cap_size import Offered, Queue, Strain, peak_of, spread_weight
from kvmedic.verdict.occupancy import (
    RESIDENCE_QUANTILE,
    SHARED_PREFIXES,
    Occupancy,
    Passes,
    blocks_per_running,
    hit_share,
    occupancy,
    occupancy_under,
    with_evicted_tokens,
    with_shared_prefixes,
    with_windows,
)
from kvmedic.verdict.served_in_time import STALL_SECONDS

CALM_SHARE = 0.5
"""Share of the trigger up to which a peer of a pressured replica counts as calm. At the best setting 0.05
to 0.4 preemptions per request remain (measured on vLLM 0.32.0, CPU build): between a peer just under
the trigger and a replica just over it lies nothing that a new replica would change."""
FLEET_SHARE = 2 / 3
"""Share of the replicas that must be pressured before any setting of the fleet is changed: with one or two
replicas all of them, of three two. Replicas behind one Service see the same requests; under demand the
last one is near the trigger too, and where a third or more are calm the cause is not what they share."""
MOST_EVICTED = 0.75
"""Blocks in use per running sequence, over those that the lengths predict, above which a method that evicts
tokens counts as switched off, whatever settings say: the plugin may not be in the image, or not be loaded.
Simulated without one: 0.78 to 1.01."""
SHORTEST = 0.05
"""Share of the prompts that may be shorter than a common beginning: health checks and other strays."""
SMALLEST_GROUP = 10
"""Requests that a group needs so that its mean length says something about their spread: the deviation
of a mean of 10 is a third of a single one's."""

_NOTHING: Mapping[str, Reading[float]] = MappingProxyType({})

NOW = frozenset(
    {
        Signal.PREEMPTIONS,
        Signal.GENERATED_TOKENS,
        Signal.RUNNING_MEAN,
        Signal.KV_CACHE_USAGE_MEAN,
        Signal.INTER_TOKEN_SECONDS,
        Signal.WAITING_MEAN,
        Signal.REQUESTS_IN_FLIGHT_CHANGE,
    }
)
"""Needed of the pressured replicas over the trigger's window."""
REQUESTS = frozenset({Signal.PROMPT_LENGTH, Signal.OUTPUT_LENGTH, Signal.E2E_SECONDS})
"""Needed of every replica over the sizing window."""
HELPFUL = frozenset(
    {
        Signal.KV_CACHE_USAGE_DEVIATION,
        Signal.RUNNING_MAX,
        Signal.PREFILL_SECONDS,
        Signal.PREFIX_CACHE_QUERIES,
        Signal.PREFIX_CACHE_HITS,
        Signal.STARTED_SECONDS,
        Signal.OUTPUT_LIMIT,
        Signal.REQUESTS_ABORTED,
    }
)
"""Used where an engine exports them. Without them recomputation counts as free (fewer cuts), prefixes as
not shared (the pool's gauge then contradicts the lengths: no cut), replicas as old enough, any number of
sequences as possible, and nobody knows how long answers were allowed to become (no limit is lowered)."""


@dataclass(frozen=True, slots=True)
class Reach:
    """The longest requests of the sizing window (tokens, upper bounds of buckets; inf above the top one)."""

    prompt_tokens: float
    output_tokens: float
    limit_tokens: float | None
    """What they asked for at most (`max_tokens`); None where a replica does not report it."""
    counted_tokens: float
    """The top bound: the engine takes requests of at least this length, as it counts up to its own limit."""

    @property
    def request_tokens(self) -> float | None:
        """Return what a request of the window may have needed at most; None: not known."""
        limit = self.limit_tokens
        return None if limit is None else self.prompt_tokens + max(self.output_tokens, limit)


@dataclass(frozen=True, slots=True)
class Case:
    """What the sizing of one fleet rests on, per engine."""

    sequence: Occupancy
    strain: Strain
    blocks: float
    """The smallest pool of the fleet."""
    block_tokens: float
    """Tokens of a sequence that one of its blocks holds: those of its size, and where layers see a sliding
    window as many as the gauges show."""
    prompt_tokens: float
    """Of a request's own: those of a shared prefix are in the pool once."""
    output_tokens: float
    spread: float
    """How far the outputs are from ending in waves (0-1), see `sizing.spread_weight`. 1 where tokens are
    evicted: then all sequences come to about the same size, whatever their lengths."""
    running_max: float
    """Most sequences that any engine ran at once; infinite where nobody knows."""
    requests: float
    """Finished requests that the lengths come from."""
    reach: Reach
    """The longest of them."""
    offered: Offered
    """What it is asked for, against what it gives."""
    shortest_tokens: float = 0.0
    """Prompts of a request: nineteen in twenty have more. The lower bound of the bucket in which the shortest
    twentieth ends, so that no prompt is taken for longer than it is."""
    measured: tuple[float, float] | None = None
    """Blocks in use per running sequence on the pressured replicas, and their deviation over the root of the
    running sequences, by the gauges; None where an engine does not report them."""
    evicted_by: str = ""
    """Method that takes tokens from sequences while they run; empty where none does."""
    sizes_then: tuple[tuple[float, float], ...] = ()
    """Earlier times of the last day: how many seconds ago, and how large a sequence was by the lengths of
    then, over what it is now."""

    @property
    def step(self) -> tuple[Strain, Occupancy, float]:
        """Return what the price of a token in a step follows from."""
        return self.strain, self.sequence, self.block_tokens

    @property
    def pool_size(self) -> tuple[float, float]:
        """Return the blocks of the pool, and the tokens of one."""
        return self.blocks, self.block_tokens


@dataclass(frozen=True, slots=True)
class Seen:
    """The two looks with every needed value in place."""

    burn: Observation
    """Over the trigger's window, the pressured replicas only."""
    sizing: Observation
    now: Mapping[str, Complete]
    requests: Mapping[str, Complete]
    pools: Mapping[str, Pool]

    def sum_histogram(self, signal: Signal) -> Histogram:
        """Return a histogram of the whole fleet over the sizing window."""
        return merge_histograms([one.histograms[signal] for one in self.requests.values()])

    def gaps(self) -> Histogram:
        """Return the gaps between tokens on the pressured replicas."""
        return merge_histograms([one.histograms[Signal.INTER_TOKEN_SECONDS] for one in self.now.values()])


def most_of(replicas: int) -> int:
    """Return how many of some replicas are most of them."""
    return ceil(FLEET_SHARE * replicas)


def seen_of(evidence: Evidence, pressured: Iterable[str]) -> Seen | Inconclusive:
    """Return both looks with every needed value in place, or what is missing."""
    burn = evidence.burn.only(pressured)
    now = gather_values(burn, NOW)
    if isinstance(now, Inconclusive):
        return now
    requests = gather_values(evidence.sizing, REQUESTS)
    if isinstance(requests, Inconclusive):
        return requests
    held = pools(evidence.sizing)
    if isinstance(held, Inconclusive):
        return held
    return Seen(burn, evidence.sizing, now, requests, held)


def case_of(
    seen: Seen, evicts: TokenEviction | None = None, peaks: Mapping[str, Reading[float]] = _NOTHING
) -> Case:
    """Return what the sizing rests on; `doubt_of` must have found nothing in these looks.

    `evicts` is what settings say of a method that evicts tokens. It counts only where gauges show that
    sequences are smaller than their lengths. `peaks` are the most tokens per second asked for of late.
    """
    prompt, output = seen.sum_histogram(Signal.PROMPT_LENGTH), seen.sum_histogram(Signal.OUTPUT_LENGTH)
    engines = next(iter(seen.sizing.pods.values())).engines
    block_tokens = next(iter(seen.pools.values())).block_tokens
    hits = hit_share(seen.sizing)
    sequence = occupancy(moments(prompt), moments(output), block_tokens)
    shared = hits if hits > SHARED_PREFIXES else 0.0
    if shared:
        sequence = with_shared_prefixes(sequence, measured_blocks(seen), hits * prompt.mean / block_tokens)
    if evicts is not None and measured_blocks(seen) > MOST_EVICTED * sequence.mean_blocks:
        evicts = None
    held_tokens, by_lengths = float(block_tokens), sequence
    if evicts is not None:
        budgeted = None
        if evicts.budget is not None:
            passes = Passes(Keep(budget=evicts.budget), evicts.pattern, evicts.every)
            budgeted = occupancy_under(prompt, output, block_tokens, passes)
        sequence = with_evicted_tokens(sequence, measured_blocks(seen), budgeted)
    elif has_window(seen):
        sequence = with_windows(sequence, measured_blocks(seen))
        held_tokens = block_tokens * by_lengths.mean_blocks / sequence.mean_blocks
    most_running = [
        number_or_none(readings, Signal.RUNNING_MAX)
        for readings in (*seen.burn.pods.values(), *seen.sizing.pods.values())
    ]
    return Case(
        sequence=sequence,
        strain=_strain(seen, prompt.mean * (1 - hits), output.mean),
        blocks=min(pool.blocks for pool in seen.pools.values()) / engines,
        block_tokens=held_tokens,
        prompt_tokens=prompt.mean * (1 - shared),
        output_tokens=output.mean,
        spread=spread_weight(_groups(seen)) if evicts is None else 1.0,
        running_max=max(inf if most is None else most for most in most_running) / engines,
        requests=output.count,
        reach=_reach(seen, prompt, output),
        shortest_tokens=lower_bound(prompt, SHORTEST),
        measured=_measured_sequence(seen),
        offered=offered_of(seen, output.mean, peaks),
        evicted_by=evicts.name if evicts else "",
    )


def residence_seconds(seen: Seen) -> float:
    """Return how long requests stay (p99); infinite above the top bucket."""
    return quantile(seen.sum_histogram(Signal.E2E_SECONDS), RESIDENCE_QUANTILE)


def has_window(seen: Seen) -> bool:
    """Return whether layers of the model see a sliding window only."""
    return any(pool.has_window for pool in seen.pools.values())


def measured_blocks(seen: Seen) -> float:
    """Return blocks in use per running sequence on the pressured replicas, by the gauges."""
    return blocks_per_running(seen.now, seen.pools)


def _measured_sequence(seen: Seen) -> tuple[float, float] | None:
    """Return mean and deviation of a running sequence's blocks by the gauges; None where one is missing.

    The deviation of N independent sequences together is the root of N times that of one.
    """
    found = []
    for name, one in seen.now.items():
        deviation = number_or_none(seen.burn.pods[name], Signal.KV_CACHE_USAGE_DEVIATION)
        engines = seen.burn.pods[name].engines
        if deviation is None:
            return None
        running = max(1.0, one.numbers[Signal.RUNNING_MEAN] / engines)
        found.append(deviation * seen.pools[name].blocks / engines / sqrt(running))
    return measured_blocks(seen), fmean(found)


def _reach(seen: Seen, prompt: Histogram, output: Histogram) -> Reach:
    found = [histogram(readings, Signal.OUTPUT_LIMIT) for readings in seen.sizing.pods.values()]
    limits = [find_longest(one) for one in found if one is not None and one.count > 0]
    return Reach(
        prompt_tokens=find_longest(prompt),
        output_tokens=find_longest(output),
        limit_tokens=max(limits) if len(limits) == len(found) else None,
        counted_tokens=prompt.bounds[-1],
    )


def _strain(seen: Seen, prefill_tokens: float, output_tokens: float) -> Strain:
    gaps = seen.gaps()  # per request: per as many tokens as a request generates
    step = mean_below(gaps, STALL_SECONDS / 2)
    prefills = [histogram(readings, Signal.PREFILL_SECONDS) for readings in seen.burn.pods.values()]
    prefilled = sum(one.count for one in prefills if one is not None)
    seconds = sum(one.total for one in prefills if one is not None) / prefilled if prefilled > 0 else 0.0
    engines = sum(readings.engines for readings in seen.burn.pods.values())
    preempted = total(seen.now, Signal.PREEMPTIONS) / total(seen.now, Signal.GENERATED_TOKENS)
    return Strain(
        running_mean=max(1.0, total(seen.now, Signal.RUNNING_MEAN) / engines),
        preemptions_per_request=preempted * output_tokens,
        stalls_per_request=count_above(gaps, STALL_SECONDS) / gaps.count * output_tokens,
        step_seconds=step,
        prefill_extra_seconds=max(0.0, seconds - step),
        prefill_tokens=prefill_tokens,
        output_tokens=output_tokens,
    )


def offered_of(seen: Seen, output_tokens: float, peaks: Mapping[str, Reading[float]]) -> Offered:
    """Return what an engine is asked for: what is given, and what joined the queue or left it instead."""
    given, window = total(seen.now, Signal.GENERATED_TOKENS), seen.burn.window_seconds
    engines = sum(readings.engines for readings in seen.burn.pods.values())
    joined = total(seen.now, Signal.REQUESTS_IN_FLIGHT_CHANGE) + total_reported(
        seen.burn, Signal.REQUESTS_ABORTED
    )
    peak, queue, whole = peak_of(peaks), queue_of(seen.burn), queue_of(seen.sizing)
    return Offered(
        now=max(0.0, 1 + joined * output_tokens / given) if given > 0 else 1.0,
        served_per_second=given / window / engines if 0 < window < inf else None,
        peak_per_second=None if peak is None else peak * len(seen.burn.pods) / engines,
        is_full=queue.is_full or queue.grows,
        is_steady=queue.is_steady and whole.is_steady,
    )


def queue_of(looked: Observation) -> Queue:
    """Return the requests in some replicas' hands; one that wanders where a replica does not report it."""
    running, waiting, change = (
        total_if_reported(looked, signal)
        for signal in (Signal.RUNNING_MEAN, Signal.WAITING_MEAN, Signal.REQUESTS_IN_FLIGHT_CHANGE)
    )
    from_pages = any(readings.gauge_samples is not None for readings in looked.pods.values())
    return Queue(running or 0.0, waiting or 0.0, inf if change is None else change, from_pages)


def _groups(seen: Seen) -> list[Histogram]:
    """Return output lengths of disjoint groups: by replica, before and within the trigger's window."""
    groups: list[Histogram] = []
    for name, one in seen.requests.items():
        whole = one.histograms[Signal.OUTPUT_LENGTH]
        recent = histogram(seen.burn.pods[name], Signal.OUTPUT_LENGTH) if name in seen.burn.pods else None
        if recent is not None and recent.bounds == whole.bounds and recent.count >= SMALLEST_GROUP:
            counts = tuple(
                max(0.0, all_ - new) for all_, new in zip(whole.counts, recent.counts, strict=True)
            )
            before = whole.total - recent.total
            if sum(counts) >= SMALLEST_GROUP and before > 0:
                groups += [Histogram(whole.bounds, counts, before), recent]
                continue
        groups.append(whole)
    large = [group for group in groups if group.count >= SMALLEST_GROUP]
    return large or [seen.sum_histogram(Signal.OUTPUT_LENGTH)]


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
STEADY_BLOCKS = 0.15
"""By how much blocks per running sequence may differ between replicas and between windows, so that the gauges
of models with sliding windows count. Two halves of simulated runs: up to 9 %; a cap that is 15 % off costs
up to 8 % (`FEWEST_REQUESTS`)."""
LUCK = 2.0
"""Standard deviations by which gauges of few moments may lie beside their mean: 19 times in 20."""


def doubt_of(seen: Seen) -> Inconclusive | None:
    """Return the first reason why lengths and pools cannot be read off what was seen, or None."""
    doubts = (_doubt_replicas, _doubt_count, _doubt_residence)
    return next((found for doubt in doubts if (found := doubt(seen)) is not None), None)


def misfit_of(seen: Seen, case: Case) -> Inconclusive | None:
    """Return that the lengths do not explain what fills the pool, or None where they do."""
    noise = 1 + LUCK * _gauge_noise(seen, case)
    if has_window(seen) and not case.evicted_by:
        return _unsteady_blocks(seen, noise)
    measured, predicted = measured_blocks(seen), case.sequence.mean_blocks
    if LEAST_MISFIT / noise <= measured / predicted <= MOST_MISFIT * noise:
        return None
    return Inconclusive(
        Reason.LENGTHS_MISFIT,
        f"a running sequence takes {measured:.1f} blocks, its lengths predict {predicted:.1f}; "
        "a cap cannot be computed from lengths",
    )


def _unsteady_blocks(seen: Seen, noise: float) -> Inconclusive | None:
    """Return that blocks per running sequence are not the same everywhere and all the time, or None."""
    by_look = {
        f"{name} over {_window_text(look)}": blocks
        for look in (seen.burn, seen.sizing)
        for name, readings in sorted(look.pods.items())
        if (blocks := _blocks_of(readings, seen.pools[name])) is not None
    }
    if len(by_look) == len(seen.burn.pods) + len(seen.sizing.pods):
        least, most = min(by_look, key=by_look.__getitem__), max(by_look, key=by_look.__getitem__)
        if by_look[most] <= (1 + STEADY_BLOCKS) * noise * by_look[least]:
            return None
        found = f"{by_look[most]:.1f} on {most}, {by_look[least]:.1f} on {least}"
    else:
        found = "not known for every replica and window"
    return Inconclusive(
        Reason.LENGTHS_MISFIT,
        "layers of the model see a sliding window, so blocks do not follow from lengths; blocks per running "
        f"sequence: {found}; a cap is computed once they are within {STEADY_BLOCKS:.0%}",
    )


def _blocks_of(readings: PodReadings, pool: Pool) -> float | None:
    """Return the blocks that a running sequence of one replica takes, by its gauges; None: not reported."""
    usage = number_or_none(readings, Signal.KV_CACHE_USAGE_MEAN)
    running = number_or_none(readings, Signal.RUNNING_MEAN)
    return None if usage is None or not running else pool.blocks * usage / running


def size_fleet(evidence: Evidence, pressured: Iterable[str]) -> Case | Inconclusive:
    """Return what the sizing of a fleet rests on, or why its evidence does not suffice for that."""
    seen = seen_of(evidence, pressured)
    if isinstance(seen, Inconclusive):
        return seen
    doubt = doubt_of(seen)
    if doubt is not None:
        return doubt
    case = case_of(seen, evidence.evicts, evidence.peaks)
    case = replace(case, sizes_then=_sizes_then(seen, evidence.past_lengths))
    return misfit_of(seen, case) or case


def _sizes_then(seen: Seen, past: Sequence[PastLengths]) -> tuple[tuple[float, float], ...]:
    """Return how large a sequence was at earlier times, over what it is now, by the lengths of requests."""
    prompt, output = seen.sum_histogram(Signal.PROMPT_LENGTH), seen.sum_histogram(Signal.OUTPUT_LENGTH)
    block_tokens = next(iter(seen.pools.values())).block_tokens
    now, *then = (
        occupancy(moments(one), moments(other), block_tokens).mean_blocks
        for one, other in ((prompt, output), *((each.prompt, each.output) for each in past))
    )
    ages = ((seen.burn.at - each.at).total_seconds() for each in past)
    return tuple((age, size / now) for age, size in zip(ages, then, strict=True))


def _gauge_noise(seen: Seen, case: Case) -> float:
    """Return the relative deviation of blocks per running sequence by gauges of few moments.

    Each moment shows as many sequences as run, each somewhere between its first and its last token.
    """
    seats = 0.0
    for name, readings in seen.burn.pods.items():
        if readings.gauge_samples is None:
            return 0.0
        seats += readings.gauge_samples * seen.now[name].numbers[Signal.RUNNING_MEAN]
    return case.sequence.deviation_blocks / case.sequence.mean_blocks / sqrt(max(1.0, seats))


def _doubt_replicas(seen: Seen) -> Inconclusive | None:
    models = sorted({model for readings in seen.sizing.pods.values() for model in readings.model_names})
    if len(models) > 1:
        return Inconclusive(
            Reason.REPLICAS_DIFFER,
            f"the replicas serve {', '.join(models)}: their lengths are mixed; point one resource at each",
        )
    kinds = {(pool.block_tokens, pool.cache_dtype) for pool in seen.pools.values()}
    engines = {readings.engines for readings in seen.sizing.pods.values()}
    sizes = [pool.blocks for pool in seen.pools.values()]
    alike = min(sizes) >= (1 - POOLS_ALIKE) * max(sizes)
    # The bounds of a replica's buckets depend on the greatest length that it takes.
    counted = [(signal, one) for signal in REQUESTS & HISTOGRAMS for one in seen.requests.values()]
    counted += [(signal, one) for signal in NOW & HISTOGRAMS for one in seen.now.values()]
    bounds = {(signal, one.histograms[signal].bounds) for signal, one in counted}
    if alike and len(kinds) == len(engines) == 1 and len(bounds) == len({signal for signal, _ in counted}):
        return None
    shown = ", ".join(f"{n}: {p.blocks} x {p.block_tokens} tokens" for n, p in seen.pools.items())
    return Inconclusive(
        Reason.REPLICAS_DIFFER,
        f"the replicas' pools, engines or greatest lengths differ ({shown}): no cap is right for all",
    )


def _doubt_count(seen: Seen) -> Inconclusive | None:
    lengths = [seen.sum_histogram(signal) for signal in (Signal.PROMPT_LENGTH, Signal.OUTPUT_LENGTH)]
    finished = min(one.count if one.total > 0 else 0.0 for one in lengths)
    if finished < FEWEST_REQUESTS:
        return Inconclusive(
            Reason.TOO_FEW_REQUESTS,
            f"{finished:.0f} requests finished in {_window_text(seen.sizing)} and {FEWEST_REQUESTS} are "
            "needed; wait, or raise spec.sizing.window",
        )
    if min(total(seen.now, Signal.GENERATED_TOKENS), seen.gaps().count) <= 0:
        return Inconclusive(
            Reason.TOO_FEW_REQUESTS,
            f"no token was generated in {_window_text(seen.burn)} on the pressured replicas",
        )
    return None


def _window_text(look: Observation) -> str:
    return f"{look.window_seconds:.0f} s" if look.window_seconds < inf else "a time that nobody knows"


def _doubt_residence(seen: Seen) -> Inconclusive | None:
    """Return that the window, or a replica's age, misses requests that stay for long."""
    if seen.sum_histogram(Signal.E2E_SECONDS).count <= 0:
        return Inconclusive(Reason.TOO_FEW_REQUESTS, "no finished request shows how long requests stay")
    residence, window = residence_seconds(seen), seen.sizing.window_seconds
    if residence > window:
        text = (
            f"requests stay {residence:.0f} s (p99) and the window looks back {window:.0f} s; "
            "raise spec.sizing.window"
        )
        if residence == inf:
            top = max(seen.sum_histogram(Signal.E2E_SECONDS).bounds, default=0.0)
            text = (
                f"requests stay longer (p99) than the {top:.0f} s up to which this engine counts, so nobody "
                "knows whether the window holds them; shorten requests, or run a version that counts further"
            )
        return Inconclusive(Reason.TOO_FEW_REQUESTS, text)
    for name, readings in sorted(seen.sizing.pods.items()):
        started = number_or_none(readings, Signal.STARTED_SECONDS)
        age = inf if started is None else seen.sizing.at.timestamp() - started
        if age < residence:
            return Inconclusive(
                Reason.TOO_FEW_REQUESTS,
                f"{name} started {age:.0f} s ago and requests stay {residence:.0f} s (p99): "
                "its long requests have not finished yet; wait",
            )
    return None
