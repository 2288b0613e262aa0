"""From what a thrashing fleet does to the one cap that mends it, or why no cap does.

A cut that loses to doing nothing is the worst outcome: every refusal here comes before the lever's own
bounds, and none of them is a matter of taste.

The watermark bounds what is admitted, too: where prompts fill the cache, the one admitted last fills it to
the brim, and the growth of the others soon preempts somebody. Between two ends of requests, which make room
again, the running set grows by what one request generates, on average. A share kept free at admission takes
that growth up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, erfc, exp, floor, inf, log, sqrt

from kvmedic.model.engine import Knob
from kvmedic.model.evidence import PodReadings, Signal
from kvmedic.model.readings import number_or_none
from kvmedic.model.reasons import Reason
from kvmedic.runbooks.branches import Assignment, NoChange, Setting, SettingAdvice
from kvmedic.runbooks.preemption.cap_size import (
    BOLDEST_FIT,
    SAFEST_FIT,
    Effect,
    best_cap,
    cap_at,
    effect_of,
    fit_of,
    most_throughput,
    wave_cap,
)
from kvmedic.runbooks.preemption.pressure import Case
from kvmedic.runbooks.preemption.symptoms import QUEUED_BEHIND
from kvmedic.verdict.occupancy import correct_occupancy
from kvmedic.verdict.served_in_time import STALL_SECONDS

LEAST_GROWTH = 0.2
"""Growth share under which preemptions are cheap: the prompt, which most of a sequence is then, is
prefilled again in one go. Simulated: cuts at such lengths lost 1 to 19 % of goodput on public traces; of
99 drawn workloads two with very dear prefills would have gained 9 and 10 %."""
LEAST_GAIN = 0.05
"""Expected gain of goodput under which nothing is cut. With it none of 99 simulated workloads was cut
where idling was within 1 % of the best; a gain of 5 % is also what two windows of 10 minutes can show."""
FEWEST_SEQUENCES = 2
"""With room for fewer sequences than this the engine would serve one request after the other."""
FEW_SEQUENCES = 10
"""Room for fewer long sequences than this is a small pool: a cap still helps, more KV cache helps more
(a single sequence is then over a tenth of the pool)."""
MOSTLY_GROWTH = 0.5
"""Growth share from which what a sequence generates, not its prompt, fills the pool."""
NEAR_THE_CAP = 0.1
"""Relative difference up to which a given cap counts as the computed one: two looks at one fleet give caps
that differ by as much (`docs/decisions/0010-approvals-are-objects.md`)."""
DESIRED_LEFT = 0.1
"""Share of the preemptions that the watermark is made to leave. Every watermark that was simulated with it
was judged Recovered, which takes a quarter at most; goodput was 0.988 to 1.015 times that of before."""
MOST_LEFT = 0.5
"""Share of the preemptions up to which a smaller watermark is worth a rollout: more is no improvement."""
MOST_KEPT = 0.1
"""Share of the cache that is kept free at most: what is free serves nobody."""
WATERMARK_GRAIN = 0.001
"""Watermarks are multiples of this, as the lever's bound is."""

SEATS_FREE, MOST_FREE = 0.1, 0.25
"""Share of a cap's seats that may be free where it binds; the second one bounds the one that may always be.
vLLM's gauges are those after a step, when who finished in it is gone and nobody has followed yet: with 40
waiting behind a cap of 8, 7.9 run on average (vLLM 0.32.0, CPU build)."""
BINDING_SECONDS = 600.0
"""How long it must have bound: a shorter queue is gone before a replica has restarted."""
FEW_PREEMPTIONS = 0.05
"""Preemptions per request under which more sequences still fit."""
FREE_USAGE = 0.85
"""KV-cache usage under which there is room for more sequences."""
RAISE_FROM = 1.25
"""What the pool holds over the present cap, at least, for a raise. Over 30 simulated hours of chat by day and
reasoning by night it made 2.4 changes a day and lost 5 % to the best cap; 1.1 made 3.2 and lost 3 %."""
DAY_SECONDS, RETURN_SECONDS = 86_400.0, 3 * 3600.0
"""What the pool holds turns to and fro where it comes back within the second: then the most of the first
counts."""


@dataclass(frozen=True, slots=True)
class CapUse:
    """One engine under its cap, over the last `seconds`."""

    cap: int
    """The most that ran at once."""
    seconds: float
    running_low: float
    """Sequences that four of five moments had, or more."""
    waiting_mean: float
    preemptions_per_request: float
    kv_cache_usage_ratio: float

    @property
    def is_taken(self) -> bool:
        """Return whether the cap's seats were taken, for long enough to say so."""
        taken = self.cap - free_seats(self.cap)
        return self.seconds >= BINDING_SECONDS and self.running_low >= taken > 0

    def is_under(self, cap: int) -> bool:
        """Return whether so many may run: no more ever did, and hardly fewer."""
        return cap - free_seats(cap) <= self.cap <= cap

    @property
    def binds_beside_room(self) -> bool:
        """Return whether requests wait for the cap alone, while the cache has room for more."""
        return (
            self.is_taken
            and self.waiting_mean > QUEUED_BEHIND
            and self.preemptions_per_request < FEW_PREEMPTIONS
            and self.kv_cache_usage_ratio < FREE_USAGE
        )


def free_seats(cap: int) -> float:
    """Return how many of a cap's seats may be free at a moment at which it binds."""
    return min(ceil(SEATS_FREE * cap), MOST_FREE * cap)


@dataclass(frozen=True, slots=True)
class Room:
    """How many sequences the pool held, half of the time, by the lengths of then."""

    seconds_ago: float
    sequences: int


def lasting_room(room: int, rooms: Sequence[Room]) -> int:
    """Return how many sequences a cap should allow: the day's most where the mix of requests turns."""
    lately = sorted((each for each in rooms if each.seconds_ago <= RETURN_SECONDS), key=_ago, reverse=True)
    like_now = next((place for place, each in enumerate(lately) if _is_alike(each.sequences, room)), None)
    if like_now is None or all(_is_alike(each.sequences, room) for each in lately[like_now:]):
        return room
    return max(room, *(each.sequences for each in rooms if each.seconds_ago <= DAY_SECONDS))


def rooms_of(case: Case, setting: Setting, room: int) -> tuple[Room, ...]:
    """Return how many sequences the pool held at earlier times, by the caps that were set and by the lengths.

    `room`: how many it holds now.
    """
    by_caps = (Room(seconds_ago, sequences) for seconds_ago, sequences in setting.cap_rooms)
    by_lengths = (Room(seconds_ago, round(room / size)) for seconds_ago, size in case.sizes_then)
    return (*by_caps, *by_lengths)


def _ago(room: Room) -> float:
    return room.seconds_ago


def _is_alike(one: int, other: int) -> bool:
    return max(one, other) < RAISE_FROM * min(one, other)


def cut_cap(case: Case, setting: Setting) -> SettingAdvice:
    """Return the cap for a case, within the lever's bounds, or why none is set."""
    if setting.is_our_cap and case.measured is not None:
        case = replace(case, sequence=correct_occupancy(case.sequence, *case.measured))
    growth = case.sequence.growth_share
    if growth < LEAST_GROWTH:
        return NoChange(
            Reason.PREEMPTIONS_CHEAP,
            f"{growth:.0%} of a running sequence is its own output (a cut needs {LEAST_GROWTH:.0%}); "
            f"if stalls breach the objectives, admit less eagerly instead ({Knob.WATERMARK} 0.02)",
        )
    room = cap_of(case)
    desired = lasting_room(room, rooms_of(case, setting, room))
    if desired < FEWEST_SEQUENCES:
        return NoChange(
            Reason.POOL_TOO_SMALL,
            f"{_room(case)}, which is room for {desired} at a time; raise the KV cache or shorten requests",
        )
    lever, cap = setting.bound(Knob.MAX_NUM_SEQS), desired
    if lever is not None:
        cap = min(cap, cap if lever.maximum is None else round(lever.maximum))
        cap = max(cap, 1 if lever.minimum is None else round(lever.minimum))
    return _weigh_cap(case, setting, desired, cap)


def cap_of(case: Case) -> int:
    """Return the cap of the highest expected goodput; lower where requests of equal length end in waves.

    Where arrivals do not wait it is the boldest: what does not run waits for the first token. Where it
    would serve fewer tokens than are offered, the lowest bolder one that serves them, if any.
    """
    cap, waves = cap_at(case.blocks, case.sequence, BOLDEST_FIT), _waves_of(case)
    if case.offered.is_steady:
        cap = best_cap(case.strain, case.sequence, case.pool_size)
    if waves < cap:
        return floor(waves + case.spread * (cap - waves))
    boldest = max(cap, cap_at(case.blocks, case.sequence, BOLDEST_FIT))
    return next((one for one in range(cap, boldest + 1) if carries(case, one)), cap)


def room_of(case: Case) -> int:
    """Return how many sequences the pool holds; fewer where requests of equal length end in waves.

    By the boldest fit to which a cap is lowered where arrivals do not wait, and by the safest where the same
    clients send again: a cap that was lowered for these lengths is not raised on them.
    """
    fit = SAFEST_FIT if case.offered.is_steady else BOLDEST_FIT
    room, waves = cap_at(case.blocks, case.sequence, fit), _waves_of(case)
    return room if waves >= room else floor(waves + case.spread * (room - waves))


def _waves_of(case: Case) -> float:
    return wave_cap(case.blocks * case.block_tokens, case.prompt_tokens, case.output_tokens)


def carries(case: Case, cap: int) -> bool:
    """Return whether a cap serves what is offered at the peak, or as much as the present setting does."""
    least = case.offered.least(case.strain.stalls_per_request, case.spread)
    return most_throughput(case.strain, case.sequence, case.pool_size, cap) >= least


def _weigh_cap(case: Case, setting: Setting, desired: int, cap: int) -> SettingAdvice:
    """Return a cap if it helps; `desired` is what it would be without the lever's bounds."""
    most_allowed = inf if setting.max_num_seqs is None else setting.max_num_seqs
    ceiling, sizing = min(case.running_max, most_allowed), _sizing_clause(case, desired, cap)
    if not _is_cut(case, setting, cap):
        effect = effect_of(case.strain, case.sequence, case.pool_size, desired)
        if (
            _is_cut(case, setting, desired)
            and carries(case, desired)
            and effect.goodput_ratio >= 1 + LEAST_GAIN
        ):
            return NoChange(
                Reason.LEVER_NOT_ALLOWED,
                f"a cap of {desired} would help ({_gain_line(case, effect)}), and at most {ceiling:.0f} were "
                f"running or allowed: lower min of {Knob.MAX_NUM_SEQS} in spec.levers, which is {cap}",
            )
        text = f"{sizing}, and at most {ceiling:.0f} were running or allowed"
        return NoChange(Reason.CAP_WITHOUT_EFFECT, text)
    effect = effect_of(case.strain, case.sequence, case.pool_size, cap)
    if effect.goodput_ratio < 1 + LEAST_GAIN:
        gain = f"expected tokens/s without a stall x{effect.goodput_ratio:.2f}, under x{1 + LEAST_GAIN:.2f}"
        return NoChange(Reason.GAIN_WITHIN_NOISE, f"{sizing}; {gain}")
    if not carries(case, cap):
        return NoChange(
            Reason.CAP_BELOW_LOAD,
            f"{sizing}; {_load(case, cap)}, so requests would wait in front of the engine; more KV cache or "
            "replicas would help",
        )
    if setting.bound(Knob.MAX_NUM_SEQS) is None:
        return NoChange(
            Reason.LEVER_NOT_ALLOWED,
            f"a cap of {cap} would help ({_gain_line(case, effect)}); add {Knob.MAX_NUM_SEQS} to spec.levers",
        )
    message = f"{sizing}; expected: {_gain_line(case, effect)}; {_load(case, cap)}"
    if cap < FEW_SEQUENCES and case.sequence.growth_share > MOSTLY_GROWTH:
        message += "; the pool is small for these lengths: more KV cache or replicas would help more"
    return Assignment(Knob.MAX_NUM_SEQS, cap, Reason.CAP_RIGHT_SIZED, message)


def _is_cut(case: Case, setting: Setting, cap: int) -> bool:
    """Return whether fewer would run by a cap; two looks at one fleet differ by NEAR_THE_CAP."""
    given = setting.max_num_seqs
    return cap < case.running_max and (given is None or cap * (1 + NEAR_THE_CAP) < given)


def _room(case: Case) -> str:
    mean, deviation = case.sequence.mean_blocks, case.sequence.deviation_blocks
    evicted = f", of which {case.evicted_by} evicts tokens" if case.evicted_by else ""
    return f"{case.blocks:.0f} blocks for sequences of {mean:.1f} +- {deviation:.1f}{evicted}"


def _sizing_clause(case: Case, desired: int, cap: int) -> str:
    """Return where a cap comes from, in one clause."""
    fit = fit_of(case.blocks, case.sequence, desired)
    shown = f"{_room(case)} hold {desired} (they fit {erfc(-fit / sqrt(2)) / 2:.0%} of the time)"
    if case.spread < 1:
        shown += ", lowered as outputs of like length end in waves"
    if (now := cap_of(case)) < desired:
        shown = f"{_room(case)} hold {now}, and held {desired} within the last day: the mix of requests turns"
    return shown if cap == desired else f"{shown}, {cap} by the lever's bounds"


def _gain_line(case: Case, effect: Effect) -> str:
    """Return what a cap should bring and cost, in one clause."""
    return (
        f"stalls over {STALL_SECONDS:g} s per request {case.strain.stalls_per_request:.2f} -> "
        f"{effect.stalls_per_request:.2f}, tokens/s x{effect.throughput_ratio:.2f}, "
        f"served in time x{effect.goodput_ratio:.2f} while first tokens come in time, longer waits for them"
    )


def _load(case: Case, cap: int) -> str:
    """Return what a cap serves at most against what is offered, in one clause."""
    most = most_throughput(case.strain, case.sequence, case.pool_size, cap)
    offered, served, peak = case.offered, case.offered.served_per_second, case.offered.peak_per_second
    if served is None:
        return f"predicted at most x{most:.2f} of the tokens that are served now, offered x{offered.now:.2f}"
    prediction = f"predicted at most {most * served:.0f} tokens/s, served {served:.0f} and offered "
    prediction += f"{offered.now * served:.0f} now"
    return prediction if peak is None else f"{prediction} and {peak:.0f} at the last day's peak"


def refuse_over_calm(cap: Assignment, calm: Mapping[str, PodReadings]) -> NoChange | None:
    """Return that a cap for the pressured replicas would hold up one of the calm ones (by name), or None."""
    for name, readings in sorted(calm.items()):
        running = number_or_none(readings, Signal.RUNNING_MEAN)
        each = None if running is None else running / readings.engines
        if each is None or each > float(str(cap.value)):
            load = "nobody knows how many sequences it runs" if each is None else f"it runs {each:.0f}"
            text = f"a cap of {cap.value} would hold up {name}, which is calm: {load} on average"
            return NoChange(Reason.PARTIAL_PRESSURE, text)
    return None


def keep_free(case: Case, setting: Setting) -> SettingAdvice:
    """Return the watermark that takes up the growth between two ends of requests, or why it is too large."""
    bound = setting.bound(Knob.WATERMARK)
    most = min(MOST_KEPT, bound.maximum if bound and bound.maximum is not None else MOST_KEPT)
    desired = watermark_of(case)
    value = min(desired, most)
    left = preemption_share_at(case, value)
    if left > MOST_LEFT:
        return NoChange(
            Reason.GAIN_WITHIN_NOISE,
            f"{desired:g} of the cache would have to be kept free; {most:g}, the most that is allowed, would "
            f"leave {left:.0%} of the preemptions",
        )
    present = setting.given.get(Knob.WATERMARK) if setting.given else None
    if isinstance(present, int | float) and present >= value:
        return NoChange(Reason.LEVER_WITHOUT_EFFECT, f"{present:g} of the cache is kept free already")
    now = case.strain.preemptions_per_request
    return Assignment(
        Knob.WATERMARK,
        value,
        Reason.SETTING_ADJUSTED,
        f"between two ends of requests the running set grows by {case.output_tokens:.0f} tokens of the "
        f"{case.blocks * case.block_tokens:.0f} that the cache holds; expected: preemptions per request "
        f"{now:.2f} -> {now * left:.2f}, shorter gaps between tokens, tokens/s as before",
    )


def watermark_of(case: Case) -> float:
    """Return the watermark that leaves `DESIRED_LEFT` of the preemptions, rounded up."""
    kept = log(1 / DESIRED_LEFT) * case.output_tokens / (case.blocks * case.block_tokens)
    return round(ceil(kept / WATERMARK_GRAIN) * WATERMARK_GRAIN, 3)


def preemption_share_at(case: Case, watermark: float) -> float:
    """Return the share of the preemptions that a watermark leaves.

    A running set preempts when it grows by more than what is kept free before a request ends. Growth between
    two ends is spread exponentially around the tokens that one request generates. Simulated at watermarks
    of 1 and 2 %: 0.37 and 0.11 of the preemptions of Azure's conversations were left where this says 0.33 and
    0.11, of agents 0.31 and 0.07 where it says 0.29 and 0.08. Where outputs of equal length end in waves 0.62
    and 0.51 were left in place of 0.15 and 0.02.
    """
    return exp(-watermark * case.blocks * case.block_tokens / case.output_tokens)


def cap_helps_more(case: Case, setting: Setting) -> NoChange | None:
    """Return that a cap is free to be set and helps more, or None."""
    knob = Knob.MAX_NUM_SEQS
    if setting.bound(knob) is None or knob in setting.exhausted or knob in setting.refused:
        return None
    cap = cut_cap(case, setting)
    if isinstance(cap, NoChange):
        return None
    return NoChange(Reason.BETTER_LEVER, f"{knob} {cap.value} is expected to help more")


def growth_exceeds_watermark(case: Case, _setting: Setting) -> NoChange | None:
    """Return that sequences outgrow whatever is kept free, or None."""
    growth, why = case.sequence.growth_share, ""
    if growth > MOSTLY_GROWTH:
        why = (
            f"{growth:.0%} of a running sequence is its own output ({MOSTLY_GROWTH:.0%} at most): it "
            "outgrows whatever is kept free when it is admitted"
        )
    elif case.evicted_by:
        why = (
            f"{case.evicted_by} takes tokens from sequences while they run: nobody knows by how much they "
            "outgrow what is kept free"
        )
    elif case.spread < 1:
        why = (
            "outputs of like length end in waves: all sequences grow before the first one ends, and outgrow "
            "what is kept free"
        )
    return NoChange(Reason.LEVER_WITHOUT_EFFECT, why) if why else None


def is_capped(case: Case, setting: Setting) -> bool:
    """Return whether no more sequences are allowed at once than the KV cache holds.

    More than the given cap were seen running where it is not yet, or not at all, in effect.
    """
    given, desired = setting.max_num_seqs, cap_of(case)
    seen = case.strain.running_mean if case.running_max == inf else case.running_max
    return given is not None and seen <= given <= max(desired + 1, desired * (1 + NEAR_THE_CAP))
