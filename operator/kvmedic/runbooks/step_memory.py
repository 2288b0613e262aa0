"""The memory that an engine keeps for one step: what two levers can hand to the KV cache.

At its start an engine runs one step of the most tokens that it may ever compute at once, and what that step
leaves of the device's memory becomes the KV cache (`determine_available_memory`, vLLM
v1/worker/gpu_worker.py 0.32). How much a smaller step frees is a matter of the model and is in no metric: the
verdict measures what it brought.
"""

from __future__ import annotations

from kvmedic.core.diagnosis import NoChange, Setting
from kvmedic.core.engine import Knob
from kvmedic.core.reasons import Reason

LEAST_CUT = 0.75
"""Tokens of a step afterwards over before, at most. What a step takes grows with its tokens, so a smaller cut
frees under a quarter of a part of the memory that is itself small beside the cache."""
FIXES_THE_POOL = (Knob.NUM_GPU_BLOCKS_OVERRIDE, Knob.KV_CACHE_MEMORY_BYTES)
"""Knobs with which the cache's size does not depend on what a step takes."""


def without_effect(setting: Setting) -> NoChange | None:
    """Return why memory for smaller steps would not go to the cache, or None where it would."""
    if setting.given is None:
        return NoChange(
            Reason.PRESENT_VALUE_UNKNOWN,
            "what the engine's command line gives is not known; give its manifest, or put the flags there",
        )
    fixed = next((knob for knob in FIXES_THE_POOL if knob in setting.given), None)
    if fixed is None:
        return None
    return NoChange(
        Reason.LEVER_WITHOUT_EFFECT,
        f"{fixed} is given and fixes the KV cache, so memory that a smaller step leaves goes unused",
    )
