"""The levers of memory: the share of its devices' that an engine takes, down and up, and the host's.

What an engine leaves of its devices is for what it did not plan with. How much of that is never used shows
under load alone, and a share at which memory ran out once is never gone back to.

KV blocks in the host's memory make no room on the device and prevent no preemption; they make each one
cheaper. So that is worth a try only where preempted requests hang, and it is meant for a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import floor

from kvmedic.model.engine import Knob
from kvmedic.model.reasons import Reason
from kvmedic.model.spec import LeverBound
from kvmedic.runbooks.branches import (
    GIB,
    Advice,
    Assignment,
    Evidence,
    HostTerms,
    MemoryShare,
    NoChange,
    Setting,
    SettingAdvice,
)
from kvmedic.runbooks.preemption.pressure import Case
from kvmedic.verdict.baseline import TAIL_PER_REQUEST

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
    return _step_share(share.ratio, share, bounds)


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


def _step_share(ratio: float, share: MemoryShare, bounds: _Bounds) -> SettingAdvice:
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


def lower_share(_evidence: Evidence, setting: Setting) -> Advice:
    """Return the share of the GPU's memory one bounded step down, or why there is none."""
    return step_down(setting)


TAKEN = 0.5
"""Share of what stayed free that one step may take. A choice, not a measurement: the window need not have
held the worst moment, so as much again is left for it."""
_DUST = 1e-9
LEAST_STEP = 0.5
"""Share of the lever's `step` under which the rest of the way is not worth a restart of the fleet."""


@dataclass(frozen=True, slots=True)
class _Way:
    """How far the share may go, and what stops it there."""

    end: float
    why: NoChange


def is_for_raising(bound: LeverBound) -> bool:
    """Return whether an entry of `spec.levers` is about raising the share at all: one with a `max` is."""
    return bound.maximum is not None


def cannot_raise_share(_case: Case, setting: Setting) -> NoChange | None:
    """Return why a larger share would change nothing, is not allowed, or nobody knows whether it is there."""
    share, bound = setting.memory, setting.bound(KNOB)
    if share is None:
        return NoChange(Reason.PRESENT_VALUE_UNKNOWN, f"raise {KNOB}: give the manifest for the value")
    if bound is None or bound.maximum is None or bound.step is None:
        example = f"{{name: {KNOB}, max: 0.95, step: 0.02}}"
        return NoChange(
            Reason.LEVER_NOT_ALLOWED,
            f"lever {KNOB} needs max and step before it is raised: write {example} in spec.levers",
        )
    if share.fixed_by:
        return NoChange(
            Reason.LEVER_WITHOUT_EFFECT,
            f"{share.fixed_by} fixes the size of the KV cache, so a larger share would change nothing: raise "
            f"{share.fixed_by}, or remove it",
        )
    if setting.supply.raised_in_vain:
        return NoChange(
            Reason.LEVER_EXHAUSTED,
            "a larger share was tried on this revision and these lengths and did not help",
        )
    if setting.supply.memory_in_use is None:
        why = setting.supply.memory_unknown or "nobody looked at the GPUs"
        return NoChange(
            Reason.HEADROOM_UNKNOWN, f"how much of the GPUs' memory stays free under load is not known: {why}"
        )
    return unknown_share(share) if share.ratio is None or share.unread else None


def raise_share(_case: Case, setting: Setting) -> SettingAdvice:
    """Return the share one step higher, within its bounds and what stayed free, or why it is not raised."""
    share, bound = setting.memory, setting.bound(KNOB)
    if share is None or share.ratio is None or bound is None or bound.step is None:
        return NoChange(
            Reason.PRESENT_VALUE_UNKNOWN, f"raise {KNOB}: the present value or the step is not known"
        )
    ratio, step, used = share.ratio, bound.step, setting.supply.memory_in_use or 0.0
    way = min(_ways(ratio, setting, step), key=lambda each: each.end)
    value = floor_share(min(ratio + step, way.end))
    if value - ratio < LEAST_STEP * step:
        return way.why
    origin = "" if share.is_given else " (the engine's default)"
    return Assignment(
        KNOB,
        value,
        Reason.MEMORY_STEPPED_UP,
        f"{KNOB} from {ratio:g}{origin} to {value:g}: at most {used:.1%} of any GPU's memory was in use over "
        f"the window, and half of the rest may be taken; expected: {value - ratio:.1%} of a GPU's memory "
        "goes to the KV cache",
    )


def _ways(ratio: float, setting: Setting, step: float) -> list[_Way]:
    """Return every end of the way up: the lever's, that of free memory, that of a share that was too much."""
    bound = setting.bound(KNOB) or LeverBound(KNOB)
    used = setting.supply.memory_in_use or 0.0
    maximum = 1.0 if bound.maximum is None else bound.maximum
    ways = [
        _Way(
            maximum,
            NoChange(
                Reason.LEVER_AT_BOUND, f"{KNOB} is {ratio:g}, spec.levers allows no more than {maximum:g}"
            ),
        ),
        _Way(
            ratio + _room(used, step),
            NoChange(
                Reason.HEADROOM_SHORT,
                f"{used:.1%} of a GPU's memory was in use over the window; half of the rest is under half a "
                f"step of {step:g}",
            ),
        ),
    ]
    outgrown = setting.supply.outgrown
    if outgrown is None:
        return ways
    told = (
        f"a GPU ran out of memory at {outgrown:g} with this pod template; it is left a step of {step:g} below"
    )
    return [*ways, _Way(outgrown - step, NoChange(Reason.LEVER_AT_BOUND, f"{KNOB} is {ratio:g}: {told}"))]


def _room(used: float, step: float) -> float:
    """Return how far free memory allows to go, in whole halves of a step.

    What is measured is never twice the same; so a plan does not change while somebody is about to approve it.
    """
    half = LEAST_STEP * step
    return half * floor(TAKEN * max(0.0, 1.0 - used) / half + _DUST)


def floor_share(value: float) -> float:
    """Return a share cut to the decimals that are written; the dust of binary fractions does not count."""
    scale = 10.0**DIGITS
    return float(floor(round(value * scale, 3)) / scale)


OFFLOADING = "cpuOffload"
"""The lever's name in a spec; which flag it turns is the engine's matter."""
HOST_KNOBS = (Knob.KV_OFFLOADING_SIZE, Knob.SWAP_SPACE)
"""What it may turn."""


def cannot_use_host(case: Case, setting: Setting) -> NoChange | None:
    """Return why an engine cannot, or need not, keep KV blocks in its host's memory."""
    terms, bound = setting.supply.host, setting.bound(HOST_KNOBS[0])
    if terms is None:
        return NoChange(
            Reason.PRESENT_VALUE_UNKNOWN, "how much memory the container has is not known; give its manifest"
        )
    if terms.knob is None:
        return NoChange(Reason.LEVER_WITHOUT_EFFECT, terms.why_not)
    if bound is None or bound.maximum is None:
        return NoChange(
            Reason.LEVER_NOT_ALLOWED,
            f"lever {OFFLOADING} needs maxGiB: write {{name: {OFFLOADING}, maxGiB: 32}} in spec.levers",
        )
    return _refuse_if_tried(terms.knob, setting) or _smooth(case)


def _refuse_if_tried(knob: Knob, setting: Setting) -> NoChange | None:
    """Return that the flag which this engine has was tried, or cannot be set; None where it may be."""
    if knob in setting.exhausted:
        return NoChange(
            Reason.LEVER_EXHAUSTED,
            f"{knob} was tried on this revision, these lengths and this pool and did not help; more replicas "
            "may",
        )
    return setting.refused.get(knob)


def _smooth(case: Case) -> NoChange | None:
    """Return that hardly anybody hangs, so that no latency could confirm it; None where somebody does."""
    stalls = case.strain.stalls_per_request
    if stalls >= TAIL_PER_REQUEST:
        return None
    return NoChange(
        Reason.GAIN_WITHIN_NOISE,
        f"{stalls:.2f} stalls per request ({TAIL_PER_REQUEST} are needed): hardly anybody hangs, and nothing "
        "could confirm it",
    )


def size_host_cache(_case: Case, setting: Setting) -> SettingAdvice:
    """Return the host memory that is to be used for KV blocks, or why it does not suffice."""
    terms, bound = setting.supply.host, setting.bound(HOST_KNOBS[0])
    if terms is None or terms.knob is None or bound is None:
        return NoChange(Reason.PRESENT_VALUE_UNKNOWN, "how much memory the container has is not known")
    knob, value = terms.knob, terms.value_for(round(bound.maximum or 0))
    present = setting.given.get(knob) if setting.given else None
    if value < 1:
        return NoChange(
            Reason.LEVER_AT_BOUND,
            f"{bound.maximum:g} GiB are less than 1 GiB for each of {terms.engines * terms.devices} shares "
            f"of a replica: raise maxGiB of {OFFLOADING}",
        )
    if isinstance(present, int | float) and present >= value:
        return NoChange(Reason.LEVER_AT_BOUND, f"{knob} is {present:g} already, maxGiB asks for {value}")
    short = _short(terms, value)
    if short is not None:
        return short
    return Assignment(knob, value, Reason.HOST_MEMORY_USED, _expected_of_host(terms, knob, value))


def _short(terms: HostTerms, value: int) -> NoChange | None:
    """Return that the host memory which a container has does not hold that much, or None where it does."""
    taken, told = terms.taken_bytes(value), terms.told_bytes(value)
    if terms.limit_bytes is None:
        return NoChange(
            Reason.HOST_MEMORY_SHORT,
            f"the container has no memory limit, so nobody knows whether its node has {taken / GIB:.0f} GiB "
            "to spare: set resources.limits.memory",
        )
    if taken > terms.free_bytes:
        return NoChange(
            Reason.HOST_MEMORY_SHORT,
            f"up to {taken / GIB:.0f} GiB would be taken, and of the container's limit of "
            f"{terms.limit_bytes / GIB:.1f} GiB {terms.free_bytes / GIB:.1f} GiB are free beside the engine: "
            "raise resources.limits.memory, or lower maxGiB",
        )
    if terms.uses_shared and (terms.shared_bytes is None or terms.shared_bytes < told):
        return NoChange(
            Reason.HOST_MEMORY_SHORT,
            f"this engine keeps the blocks in /dev/shm, which must hold {told / GIB:.0f} GiB: mount an "
            f"emptyDir with medium: Memory there, without sizeLimit or with one of at least "
            f"{told / GIB:.0f}Gi",
        )
    return None


def _expected_of_host(terms: HostTerms, knob: Knob, value: int) -> str:
    of = "each GPU" if knob is Knob.SWAP_SPACE else "each engine over all its GPUs"
    return (
        f"{value} GiB of host memory for {of}, {terms.told_bytes(value) / GIB:.0f} GiB per replica in all; "
        "expected: who was preempted is fetched and not computed again; it stays only if answers come more "
        "smoothly"
    )
