"""The lever `cpuOffload`: KV blocks kept in the host's memory, so that who was preempted is not computed
again.

It makes no room on the device and prevents no preemption; it makes each one cheaper. So it is worth a try
only where preempted requests hang, it stays only if answers come more smoothly, and it is meant for a time.
"""

from __future__ import annotations

from kvmedic.core.baseline import TAIL_PER_REQUEST
from kvmedic.core.diagnosis import Assignment, LeverBound, NoChange, Setting, SettingAdvice
from kvmedic.core.engine import Knob
from kvmedic.core.reasons import Reason
from kvmedic.core.supply import GIB, HostTerms
from kvmedic.runbooks.case import Case

NAME = "cpuOffload"
"""The lever's name in a spec; which flag it turns is the engine's matter."""
KNOBS = (Knob.KV_OFFLOADING_SIZE, Knob.SWAP_SPACE)
"""What it may turn."""


def use_host(case: Case, setting: Setting) -> SettingAdvice:
    """Return the host memory that is to be used for KV blocks, or why none is."""
    terms = setting.supply.host
    if terms is None:
        return NoChange(
            Reason.PRESENT_VALUE_UNKNOWN, "how much memory the container has is not known; give its manifest"
        )
    if terms.knob is None:
        return NoChange(Reason.LEVER_WITHOUT_EFFECT, terms.why_not)
    bound = setting.bound(KNOBS[0])
    if bound is None or bound.maximum is None:
        return NoChange(
            Reason.LEVER_NOT_ALLOWED,
            f"lever {NAME} needs maxGiB: write {{name: {NAME}, maxGiB: 32}} in spec.levers",
        )
    return _tried(terms.knob, setting) or _smooth(case) or _sized(terms, terms.knob, bound, setting)


def _tried(knob: Knob, setting: Setting) -> NoChange | None:
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


def _sized(terms: HostTerms, knob: Knob, bound: LeverBound, setting: Setting) -> SettingAdvice:
    value = terms.value_for(round(bound.maximum or 0))
    present = setting.given.get(knob) if setting.given else None
    if value < 1:
        return NoChange(
            Reason.LEVER_AT_BOUND,
            f"{bound.maximum:g} GiB are less than 1 GiB for each of {terms.engines * terms.devices} shares "
            f"of a replica: raise maxGiB of {NAME}",
        )
    if isinstance(present, int | float) and present >= value:
        return NoChange(Reason.LEVER_AT_BOUND, f"{knob} is {present:g} already, maxGiB asks for {value}")
    short = _short(terms, value)
    if short is not None:
        return short
    return Assignment(knob, value, Reason.HOST_MEMORY_LENT, _outlook(terms, knob, value))


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


def _outlook(terms: HostTerms, knob: Knob, value: int) -> str:
    of = "each GPU" if knob is Knob.SWAP_SPACE else "each engine over all its GPUs"
    return (
        f"{value} GiB of host memory for {of}, {terms.told_bytes(value) / GIB:.0f} GiB per replica in all; "
        "expected: who was preempted is fetched and not computed again; it stays only if answers come more "
        "smoothly"
    )
