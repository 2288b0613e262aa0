"""From what a thrashing fleet does to the one cap that mends it, or why no cap does.

A cut that loses to doing nothing is the worst outcome: every refusal here comes before the lever's
own bounds, and none of them is a matter of taste.
"""

from __future__ import annotations

from dataclasses import replace
from math import erfc, floor, inf, sqrt

from kvmedic.model.engine import Knob
from kvmedic.model.reasons import Reason
from kvmedic.model.spec import LeverBound
from kvmedic.runbooks.branches import Assignment, NoChange, Setting, SettingAdvice
from kvmedic.runbooks.preemption.pressure import Case
from kvmedic.verdict.sizing import (
    BOLDEST_FIT,
    STALL_SECONDS,
    Effect,
    best_cap,
    cap_at,
    correct_occupancy,
    effect_of,
    fit_of,
    most_throughput,
    wave_cap,
)

LEAST_GROWTH = 0.2
"""Growth share under which preemptions are cheap: the prompt, which most of a sequence is then, is
prefilled again in one go. Simulated: cuts at such lengths lost 1 to 19 % of goodput on public traces; of
99 drawn workloads two with very dear prefills would have gained 9 and 10 %."""
LEAST_GAIN = 0.05
"""Expected gain of goodput under which nothing is cut. With it none of 99 simulated workloads was cut
where idling was within 1 % of the best; a gain of 5 % is also what two windows of 10 minutes can tell."""
FEWEST_SEQUENCES = 2
"""With room for fewer sequences than this the engine would serve one request after the other."""
FEW_SEQUENCES = 10
"""Room for fewer long sequences than this is a small pool: a cap still helps, more KV cache helps more
(a single sequence is then over a tenth of the pool)."""
MOSTLY_GROWTH = 0.5
"""Growth share from which what a sequence generates, not its prompt, fills the pool."""


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
    cap = cap_of(case)
    if cap < FEWEST_SEQUENCES:
        return NoChange(
            Reason.POOL_TOO_SMALL,
            f"{_room(case)}, which is room for {cap} at a time; raise the KV cache or shorten requests",
        )
    return _within_lever(case, setting, cap)


def cap_of(case: Case) -> int:
    """Return the cap of the highest expected goodput; lower where requests of equal length end in waves.

    Where it would serve fewer tokens than are offered, the lowest bolder one that serves them, if any.
    """
    cap = best_cap(case.strain, case.sequence, (case.blocks, case.block_tokens))
    waves = wave_cap(case.blocks * case.block_tokens, case.prompt_tokens, case.output_tokens)
    if waves < cap:
        return floor(waves + case.spread * (cap - waves))
    boldest = max(cap, cap_at(case.blocks, case.sequence, BOLDEST_FIT))
    return next((one for one in range(cap, boldest + 1) if carries(case, one)), cap)


def carries(case: Case, cap: int) -> bool:
    """Return whether a cap serves what is offered at the peak, or as much as the present setting does."""
    least = case.offered.least(case.strain.stalls_per_request, case.spread)
    return most_throughput(case.strain, case.sequence, (case.blocks, case.block_tokens), cap) >= least


def _within_lever(case: Case, setting: Setting, wanted: int) -> SettingAdvice:
    lever = setting.bound(Knob.MAX_NUM_SEQS)
    cap = wanted if lever is None else _bound_cap(wanted, lever)
    ceiling = min(case.running_max, inf if setting.max_num_seqs is None else setting.max_num_seqs)
    if cap >= ceiling:
        return _forbidden(case, wanted, cap, ceiling) or NoChange(
            Reason.CAP_WITHOUT_EFFECT,
            f"{_sizing_clause(case, wanted, cap)}, and at most {ceiling:.0f} were running or allowed",
        )
    effect = effect_of(case.strain, case.sequence, (case.blocks, case.block_tokens), cap)
    if effect.goodput_ratio < 1 + LEAST_GAIN:
        return NoChange(
            Reason.GAIN_WITHIN_NOISE,
            f"{_sizing_clause(case, wanted, cap)}; expected goodput x{effect.goodput_ratio:.2f}, "
            f"under x{1 + LEAST_GAIN:.2f}",
        )
    if not carries(case, cap):
        return NoChange(
            Reason.CAP_BELOW_LOAD,
            f"{_sizing_clause(case, wanted, cap)}; {_load(case, cap)}, so requests would wait in front of "
            "the engine; more KV cache or replicas would help",
        )
    if lever is None:
        return NoChange(
            Reason.LEVER_NOT_ALLOWED,
            f"a cap of {cap} would help ({_expected(case, effect)}); add {Knob.MAX_NUM_SEQS} to spec.levers",
        )
    reason = Reason.CAP_RIGHT_SIZED if cap == wanted else Reason.CAP_AT_BOUND
    expected = f"{_expected(case, effect)}; {_load(case, cap)}{_warning_clause(case, cap)}"
    message = f"{_sizing_clause(case, wanted, cap)}; expected: {expected}"
    return Assignment(Knob.MAX_NUM_SEQS, cap, reason, message)


def _forbidden(case: Case, wanted: int, bound: int, ceiling: float) -> NoChange | None:
    """Return that a cut which would help is under the lever's bound, or None where the bound is not why."""
    if wanted >= ceiling or not carries(case, wanted):
        return None
    effect = effect_of(case.strain, case.sequence, (case.blocks, case.block_tokens), wanted)
    if effect.goodput_ratio < 1 + LEAST_GAIN:
        return None
    return NoChange(
        Reason.LEVER_NOT_ALLOWED,
        f"a cap of {wanted} would help ({_expected(case, effect)}), and at most {ceiling:.0f} were running "
        f"or allowed: lower min of {Knob.MAX_NUM_SEQS} in spec.levers, which is {bound}",
    )


def _bound_cap(cap: int, lever: LeverBound) -> int:
    lowest = 1 if lever.minimum is None else round(lever.minimum)
    highest = cap if lever.maximum is None else round(lever.maximum)
    return max(lowest, min(cap, highest))


def _room(case: Case) -> str:
    mean, deviation = case.sequence.mean_blocks, case.sequence.deviation_blocks
    evicted = f", of which {case.evicted_by} evicts tokens" if case.evicted_by else ""
    return f"{case.blocks:.0f} blocks for sequences of {mean:.1f} +- {deviation:.1f}{evicted}"


def _sizing_clause(case: Case, wanted: int, cap: int) -> str:
    """Return where a cap comes from, in one clause."""
    fit = fit_of(case.blocks, case.sequence, wanted)
    shown = f"{_room(case)} hold {wanted} (they fit {erfc(-fit / sqrt(2)) / 2:.0%} of the time)"
    if case.spread < 1:
        shown += ", lowered as outputs of like length end in waves"
    return shown if cap == wanted else f"{shown}, {cap} by the lever's bounds"


def _expected(case: Case, effect: Effect) -> str:
    """Return what a cap should bring and cost, in one clause."""
    return (
        f"stalls over {STALL_SECONDS:g} s per request {case.strain.stalls_per_request:.2f} -> "
        f"{effect.stalls_per_request:.2f}, tokens/s x{effect.throughput_ratio:.2f}, "
        "longer waits before the first token"
    )


def _load(case: Case, cap: int) -> str:
    """Return what a cap serves at most against what is offered, in one clause."""
    most = most_throughput(case.strain, case.sequence, (case.blocks, case.block_tokens), cap)
    offered, served = case.offered, case.offered.served_per_second
    if served is None:
        return f"predicted at most x{most:.2f} of the tokens that are served now, offered x{offered.now:.2f}"
    told = f"predicted at most {most * served:.0f} tokens/s, served {served:.0f} and offered "
    told += f"{offered.now * served:.0f} now"
    peak = offered.peak_per_second
    return told if peak is None else f"{told} and {peak:.0f} at the last day's peak"


def _warning_clause(case: Case, cap: int) -> str:
    if cap >= FEW_SEQUENCES or case.sequence.growth_share <= MOSTLY_GROWTH:
        return ""
    return "; the pool is small for these lengths: more KV cache or replicas would help more"
