"""A share of the cache that an admission must leave free: for fleets that a cap would hurt.

Where prompts fill the cache, whoever is admitted last fills it to the brim, and the growth of the others soon
preempts somebody. Between two ends of requests, which make room again, the running set grows by what one
request generates, on average. A share kept free at admission takes that growth up.
"""

from __future__ import annotations

from math import ceil, exp, log

from kvmedic.core.diagnosis import Assignment, NoChange, Setting, SettingAdvice
from kvmedic.core.engine import Knob
from kvmedic.core.reasons import Reason
from kvmedic.runbooks.case import Case
from kvmedic.runbooks.cut import MOSTLY_GROWTH, cut

WANTED_LEFT = 0.1
"""Share of the preemptions that the watermark is made to leave. Every watermark that was simulated with it
was judged Recovered, which takes a quarter at most; goodput was 0.988 to 1.015 times that of before."""
MOST_LEFT = 0.5
"""Share of the preemptions up to which a smaller watermark is worth a rollout: more is no improvement."""
MOST_KEPT = 0.1
"""Share of the cache that is kept free at most: what is free serves nobody."""
GRAIN = 0.001
"""Watermarks are multiples of this, as the lever's bound is."""


def keep_free(case: Case, setting: Setting) -> SettingAdvice:
    """Return the watermark that takes up the growth between two ends of requests, or why none is set."""
    doubt = _better_lever(case, setting) or _out_of_reach(case)
    if doubt is not None:
        return doubt
    bound = setting.bound(Knob.WATERMARK)
    most = min(MOST_KEPT, bound.maximum if bound and bound.maximum is not None else MOST_KEPT)
    wanted = watermark_of(case)
    value = min(wanted, most)
    left = left_at(case, value)
    if left > MOST_LEFT:
        return NoChange(
            Reason.GAIN_WITHIN_NOISE,
            f"{wanted:g} of the cache would have to be kept free; {most:g}, the most that is allowed, would "
            f"leave {left:.0%} of the preemptions",
        )
    present = setting.given.get(Knob.WATERMARK) if setting.given else None
    if isinstance(present, int | float) and present >= value:
        return NoChange(Reason.LEVER_WITHOUT_EFFECT, f"{present:g} of the cache is kept free already")
    return Assignment(Knob.WATERMARK, value, Reason.WATERMARK_RAISED, _outlook(case, value))


def watermark_of(case: Case) -> float:
    """Return the watermark that leaves `WANTED_LEFT` of the preemptions, rounded up."""
    kept = log(1 / WANTED_LEFT) * case.output_tokens / (case.blocks * case.block_tokens)
    return round(ceil(kept / GRAIN) * GRAIN, 3)


def left_at(case: Case, watermark: float) -> float:
    """Return the share of the preemptions that a watermark leaves.

    A running set preempts when it grows by more than what is kept free before a request ends. Growth between
    two ends is spread exponentially around the tokens that one request generates. Simulated at watermarks
    of 1 and 2 %: 0.37 and 0.11 of the preemptions of Azure's conversations were left where this says 0.33 and
    0.11, of agents 0.31 and 0.07 where it says 0.29 and 0.08. Where outputs of equal length end in waves 0.62
    and 0.51 were left in place of 0.15 and 0.02.
    """
    return exp(-watermark * case.blocks * case.block_tokens / case.output_tokens)


def _better_lever(case: Case, setting: Setting) -> NoChange | None:
    """Return that a cap is free to be set and helps more, or None."""
    free = setting.bound(Knob.MAX_NUM_SEQS) is not None
    free = free and Knob.MAX_NUM_SEQS not in setting.exhausted and Knob.MAX_NUM_SEQS not in setting.refused
    cap = cut(case, setting) if free else None
    if not isinstance(cap, Assignment):
        return None
    return NoChange(Reason.BETTER_LEVER, f"{Knob.MAX_NUM_SEQS} {cap.value} is expected to help more")


def _out_of_reach(case: Case) -> NoChange | None:
    """Return that sequences outgrow whatever is kept free, or None."""
    growth = case.sequence.growth_share
    if growth > MOSTLY_GROWTH:
        return NoChange(
            Reason.LEVER_WITHOUT_EFFECT,
            f"{growth:.0%} of a running sequence is its own output ({MOSTLY_GROWTH:.0%} at most): it "
            "outgrows whatever is kept free when it is admitted",
        )
    if case.evicted_by:
        return NoChange(
            Reason.LEVER_WITHOUT_EFFECT,
            f"{case.evicted_by} takes tokens from sequences while they run: nobody knows by how much they "
            "outgrow what is kept free",
        )
    if case.spread < 1:
        return NoChange(
            Reason.LEVER_WITHOUT_EFFECT,
            "outputs of like length end in waves: all sequences grow before the first one ends, and outgrow "
            "what is kept free",
        )
    return None


def _outlook(case: Case, value: float) -> str:
    """Return what a watermark should bring, in one clause."""
    now = case.strain.preemptions_per_request
    return (
        f"between two ends of requests the running set grows by {case.output_tokens:.0f} tokens of the "
        f"{case.blocks * case.block_tokens:.0f} that the cache holds; expected: preemptions per request "
        f"{now:.2f} -> {now * left_at(case, value):.2f}, shorter gaps between tokens, tokens/s as before"
    )
