"""Blocks of shared prefixes held once, where an engine does not do so by itself.

An engine that does not reuse prefixes counts no hits either, so whether requests begin alike cannot be told
before it is switched on. What can be told is how much they could share at most: no common beginning is longer
than the shortest prompts. Whether they do is asked afterwards, of hits over queries (`kvmedic.core.confirm`).
"""

from __future__ import annotations

from kvmedic.core.diagnosis import Assignment, NoChange, Setting, SettingAdvice
from kvmedic.core.engine import Knob
from kvmedic.core.reasons import Reason
from kvmedic.runbooks.case import Case

LEAST_SAVED = 0.3
"""Share of the KV cache that would be free if all prompts began alike, at least. Simulated: see
`docs/explanation/supply.md`."""


def reuse_prefixes(case: Case, setting: Setting) -> SettingAdvice:
    """Return that prefixes should be reused, or why they are, or why that would free too little."""
    supply = setting.supply
    if supply.caches_prefixes is None:
        return NoChange(
            Reason.PRESENT_VALUE_UNKNOWN,
            "neither the command line nor the engine's version tells whether prefixes are reused",
        )
    if supply.caches_prefixes:
        return NoChange(Reason.LEVER_WITHOUT_EFFECT, "the engine reuses prefixes already")
    if supply.leaves_prefixes:
        return NoChange(
            Reason.LEVER_WITHOUT_EFFECT,
            "the engine itself chose not to reuse prefixes, as it does for models that keep more than "
            "attention's keys and values; if the model's makers say otherwise, switch it on by hand",
        )
    saved = saved_at_most(case)
    if saved < LEAST_SAVED:
        return NoChange(
            Reason.PREFIXES_NOT_SHARED,
            f"one prompt in twenty has {case.shortest_tokens:.0f} tokens or less, so a common beginning "
            f"would free {saved:.0%} of the KV cache at most ({LEAST_SAVED:.0%} are needed)",
        )
    return Assignment(
        Knob.PREFIX_CACHING,
        True,
        Reason.PREFIXES_REUSED,
        f"nineteen prompts in twenty have over {case.shortest_tokens:.0f} tokens, {case.prompt_tokens:.0f} "
        f"on average; whether they begin alike shows only once it is on; expected if they do: up to "
        f"{saved:.0%} of the KV cache is free for more; it stays on only if hits confirm that",
    )


def saved_at_most(case: Case) -> float:
    """Return the share of the cache that is free once the shortest prompts' worth of tokens is held once.

    Whole blocks alone are shared, and one sequence must hold them.
    """
    blocks = case.shortest_tokens // case.block_tokens
    return max(0.0, case.strain.running_mean - 1) * blocks / case.blocks
