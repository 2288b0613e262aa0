"""The tokens of one engine step, lowered to what the traffic needs."""

from __future__ import annotations

from math import ceil

from kvmedic.core.diagnosis import Assignment, LeverBound, NoChange, Setting, SettingAdvice
from kvmedic.core.engine import Knob
from kvmedic.core.reasons import Reason
from kvmedic.core.sizing import tokens_per_step
from kvmedic.runbooks.case import Case
from kvmedic.runbooks.step_memory import LEAST_CUT, without_effect

ROOM = 4.0
"""Tokens that a step may have, over those that it has on average: prefills come in bursts."""
GRAIN = 256
"""Budgets are multiples of this."""


def shorten_steps(case: Case, setting: Setting) -> SettingAdvice:
    """Return the least budget of a step that the engine accepts and the traffic fits, or why none is set."""
    doubt = without_effect(setting) or _unknown(setting)
    if doubt is not None:
        return doubt
    present = setting.whole(Knob.MAX_NUM_BATCHED_TOKENS) or 0
    least, why = max(_floors(case, setting))
    if least > LEAST_CUT * present:
        return NoChange(
            Reason.GAIN_WITHIN_NOISE,
            f"{least} tokens a step are needed ({why}), which is too near to {present} to free much memory",
        )
    mean = tokens_per_step(case.strain, case.sequence, case.block_tokens)
    return Assignment(
        Knob.MAX_NUM_BATCHED_TOKENS,
        least,
        Reason.STEP_BUDGET_LOWERED,
        f"steps have {mean:.0f} tokens on average and may have {present}; {least} are enough ({why}); "
        f"expected: memory for {present - least} tokens of a step goes to the KV cache, long prompts take "
        "more steps",
    )


def _unknown(setting: Setting) -> NoChange | None:
    """Return which present value nobody knows, or None where all that matter are known."""
    if setting.whole(Knob.MAX_NUM_BATCHED_TOKENS) is None:
        return NoChange(
            Reason.PRESENT_VALUE_UNKNOWN,
            "it is not on the command line and its default depends on the device, so no value is known to be "
            "lower",
        )
    if not setting.chunks_prefill and (setting.whole(Knob.MAX_MODEL_LEN) or 0) <= 0:
        return NoChange(
            Reason.PRESENT_VALUE_UNKNOWN,
            f"a step may have to hold the longest request in one go, and {Knob.MAX_MODEL_LEN} is not on the "
            "command line",
        )
    return None if setting.most_sequences is not None else _no_cap()


def _no_cap() -> NoChange:
    return NoChange(
        Reason.PRESENT_VALUE_UNKNOWN,
        f"a step must hold a token of each running sequence, and nobody knows {Knob.MAX_NUM_SEQS}",
    )


def _floors(case: Case, setting: Setting) -> list[tuple[int, str]]:
    """Return every number of tokens that a step must be able to hold, with its reason."""
    bound = setting.bound(Knob.MAX_NUM_BATCHED_TOKENS) or LeverBound(Knob.MAX_NUM_BATCHED_TOKENS)
    mean = tokens_per_step(case.strain, case.sequence, case.block_tokens)
    floors = [
        (ceil(ROOM * mean / GRAIN) * GRAIN, f"{ROOM:g} times the mean step"),
        (setting.most_sequences or 1, f"a token for each of {Knob.MAX_NUM_SEQS}"),
        (round(bound.minimum or 1), "the lever's min"),
    ]
    if not setting.chunks_prefill:
        whole = setting.whole(Knob.MAX_MODEL_LEN) or 1
        floors.append((whole, f"{Knob.MAX_MODEL_LEN}, as prefills are not known to be chunked"))
    return floors
