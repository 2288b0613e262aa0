"""Long prompts spread over several steps, where an engine prefills each in one go.

Then a step must hold the longest request that is allowed, and the engine keeps memory for such a step. Where
prefills are chunked, a step holds no more than the engine's own budget, and the rest goes to the KV cache.
"""

from __future__ import annotations

from kvmedic.core.diagnosis import Assignment, NoChange, Setting, SettingAdvice
from kvmedic.core.engine import Knob
from kvmedic.core.reasons import Reason
from kvmedic.runbooks.case import Case
from kvmedic.runbooks.step_memory import LEAST_CUT, without_effect


def spread_prefills(case: Case, setting: Setting) -> SettingAdvice:
    """Return that prefills should be chunked, or why that would give the KV cache nothing."""
    doubt = _inert(setting)
    if doubt is not None:
        return doubt
    given = setting.whole(Knob.MAX_MODEL_LEN)
    longest = given if given is not None and given > 0 else round(case.reach.counted_tokens)
    budget = setting.least_step_tokens or longest
    if budget > LEAST_CUT * longest:
        return NoChange(
            Reason.GAIN_WITHIN_NOISE,
            f"a step holds the longest request, {longest} tokens, and {budget} or more with chunks: too "
            "little less to free much memory",
        )
    return Assignment(
        Knob.CHUNKED_PREFILL,
        True,
        Reason.PREFILL_CHUNKED,
        f"a step must hold the longest request in one go, {longest} tokens; with chunks the engine's own "
        f"budget is enough ({budget} or more, by its device); expected: memory for the rest goes to the KV "
        "cache, and no prefill holds the others up for long",
    )


def _inert(setting: Setting) -> NoChange | None:
    """Return why chunks would free no memory, or None where they would."""
    if setting.chunks_prefill is None:
        return NoChange(
            Reason.PRESENT_VALUE_UNKNOWN,
            "neither the command line nor the engine's version tells whether prefills are chunked",
        )
    if setting.chunks_prefill:
        return NoChange(Reason.LEVER_WITHOUT_EFFECT, "prefills are chunked already")
    fixed = without_effect(setting)
    if fixed is not None or setting.whole(Knob.MAX_NUM_BATCHED_TOKENS) is None:
        return fixed
    return NoChange(
        Reason.LEVER_WITHOUT_EFFECT,
        f"{Knob.MAX_NUM_BATCHED_TOKENS} is given, and the memory of a step follows from that: switch "
        f"{Knob.CHUNKED_PREFILL} on by hand together with a lower one",
    )
