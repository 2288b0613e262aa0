"""The lever `gpuMemoryUtilization`, downwards: one bounded step, from a value that is known.

Pure; knows nothing of the branch that asks.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvmedic.core.diagnosis import Assignment, MemoryShare, NoChange, Setting, SettingAdvice
from kvmedic.core.engine import Knob
from kvmedic.core.reasons import Reason

KNOB = Knob.GPU_MEMORY_UTILIZATION
DIGITS = 4
"""Decimals of the value that is set: ten times finer than the smallest step that a spec may have (0.001)."""


@dataclass(frozen=True, slots=True)
class _Bounds:
    lowest: float
    step: float


def step_down(setting: Setting) -> SettingAdvice:
    """Return the share one step of `spec.levers` lower, never under its `min`, or why it is not lowered."""
    share = setting.memory
    if share is None:
        return NoChange(Reason.PRESENT_VALUE_UNKNOWN, f"lower {KNOB}: give the manifest for the value")
    if share.fixed_by:
        return NoChange(
            Reason.LEVER_WITHOUT_EFFECT,
            f"{share.fixed_by} fixes the size of the KV cache, so {KNOB} would change nothing: lower "
            f"{share.fixed_by}, or remove it",
        )
    bounds = _bounds(setting)
    if isinstance(bounds, NoChange):
        return bounds
    if share.ratio is None or share.unread:
        return unknown_share(share)
    return _stepped(share.ratio, share, bounds)


def _bounds(setting: Setting) -> _Bounds | NoChange:
    """Return how far the lever may go, or why it may not be moved."""
    wanted = f"{{name: {KNOB}, min: 0.80, step: 0.02}}"
    lever = next((one for one in setting.levers if one.knob is KNOB), None)
    if lever is None:
        return NoChange(Reason.LEVER_NOT_ALLOWED, f"a lower {KNOB} would help: add {wanted} to spec.levers")
    if lever.minimum is None or lever.step is None:
        return NoChange(
            Reason.LEVER_NOT_ALLOWED,
            f"lever {KNOB} needs min and step before it is lowered: write {wanted} in spec.levers",
        )
    if KNOB in setting.exhausted:
        return NoChange(
            Reason.LEVER_EXHAUSTED,
            f"{KNOB} was lowered on this revision and did not help; shorten what the model may be asked, or "
            "give it more GPU memory",
        )
    return _Bounds(lever.minimum, lever.step)


def unknown_share(share: MemoryShare) -> NoChange:
    """Return that no value is known to be a step away from the present share, and why."""
    why = (
        f"the engine also reads {share.unread}, which may set it"
        if share.unread
        else "it is not on the command line and the engine's version, which has its default, is not known"
    )
    return NoChange(
        Reason.PRESENT_VALUE_UNKNOWN, f"the present {KNOB} is not known: {why}; write it on the command line"
    )


def _stepped(ratio: float, share: MemoryShare, bounds: _Bounds) -> SettingAdvice:
    lower = round(max(bounds.lowest, ratio - bounds.step), DIGITS)
    if lower >= ratio:
        return NoChange(
            Reason.LEVER_AT_BOUND, f"{KNOB} is {ratio:g}, spec.levers allows no less than {bounds.lowest:g}"
        )
    origin = "" if share.is_given else " (the engine's default)"
    return Assignment(
        KNOB,
        lower,
        Reason.MEMORY_STEPPED_DOWN,
        f"{KNOB} from {ratio:g}{origin} to {lower:g}: what is left free is for what the engine did not plan "
        "with; the KV cache shrinks by as much",
    )
