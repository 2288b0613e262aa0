"""The greatest length of a request, lowered where that frees memory and no request of the window needs it.

An engine takes blocks as tokens come, not by the greatest length: where prefills are chunked a lower limit
frees nothing. Where they are not, a step must hold the longest request in one go, and the engine keeps
memory for that.
"""

from __future__ import annotations

from math import inf

from kvmedic.core.diagnosis import Assignment, LeverBound, NoChange, Setting, SettingAdvice
from kvmedic.core.engine import Knob
from kvmedic.core.reasons import Reason
from kvmedic.runbooks.case import Case, Reach
from kvmedic.runbooks.step_memory import LEAST_CUT, without_effect


def shorten_requests(case: Case, setting: Setting) -> SettingAdvice:
    """Return the lowest limit that refuses no request like those of the window, or why none is set."""
    doubt = _inert(setting) or _in_use(case.reach)
    if doubt is not None:
        return doubt
    needed = case.reach.request_tokens or inf
    given = setting.whole(Knob.MAX_MODEL_LEN)
    present = given if given is not None and given > 0 else case.reach.counted_tokens
    bound = setting.bound(Knob.MAX_MODEL_LEN) or LeverBound(Knob.MAX_MODEL_LEN)
    wanted = round(max(needed, bound.minimum or 1))
    if wanted > LEAST_CUT * present:
        return NoChange(
            Reason.LENGTH_IN_USE,
            f"{_told(case.reach)}, or the lever's min, leave too little of {present:.0f} tokens unused",
        )
    return Assignment(
        Knob.MAX_MODEL_LEN,
        wanted,
        Reason.LENGTH_LIMIT_LOWERED,
        f"{_told(case.reach)}; requests of over {wanted} tokens will be refused; expected: a step needs "
        f"memory for {wanted} tokens in place of {present:.0f}, and the rest goes to the KV cache",
    )


def _inert(setting: Setting) -> NoChange | None:
    """Return why a lower limit would free no memory, or None where it would."""
    if setting.chunks_prefill:
        return NoChange(
            Reason.LEVER_WITHOUT_EFFECT,
            "the engine chunks prefills and takes blocks as tokens come, so a lower limit frees nothing and "
            "would only refuse longer requests",
        )
    fixed = without_effect(setting)
    if fixed is not None or setting.whole(Knob.MAX_NUM_BATCHED_TOKENS) is None:
        return fixed
    return NoChange(
        Reason.LEVER_WITHOUT_EFFECT,
        f"{Knob.MAX_NUM_BATCHED_TOKENS} is given, and the memory of a step follows from that",
    )


def _in_use(reach: Reach) -> NoChange | None:
    """Return why nobody can say what length goes unused, or None where it can be said."""
    if reach.limit_tokens is None:
        return NoChange(
            Reason.METRICS_MISSING,
            "not every replica tells how long answers were allowed to become, so a lower limit might refuse "
            "what is asked for now",
        )
    if reach.request_tokens != inf:
        return None
    return NoChange(
        Reason.LENGTH_IN_USE,
        f"requests of the window were over {reach.counted_tokens:.0f} tokens long, asked for answers of that "
        "length, or did not say how long",
    )


def _told(reach: Reach) -> str:
    """Return the longest request in one clause."""
    answers = max(reach.output_tokens, reach.limit_tokens or 0.0)
    return (
        f"in the window prompts of up to {reach.prompt_tokens:.0f} and answers of up to {answers:.0f} tokens "
        "were asked for"
    )
