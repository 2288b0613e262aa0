"""The levers of a thrashing fleet, and which of them is turned next.

Each lever is one pure function from what was seen to a proposal, or to the reason why it does not apply. They
are asked in the order of `spec.levers`; the first that applies gives the plan, so that a run changes one
setting. A new lever is a module with such a function and one row in `LEVERS`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from kvmedic.model.engine import Knob
from kvmedic.model.reasons import Reason
from kvmedic.model.spec import LeverBound
from kvmedic.runbooks.branches import Assignment, NoChange, Setting, SettingAdvice
from kvmedic.runbooks.preemption.cap import cut_cap, passes_on
from kvmedic.runbooks.preemption.host_memory import OFFLOADING, use_host
from kvmedic.runbooks.preemption.memory_levers import is_for_raising, step_up
from kvmedic.runbooks.preemption.pressure import Case
from kvmedic.runbooks.preemption.traffic_levers import (
    keep_free,
    reuse_prefixes,
    shorten_requests,
    shorten_steps,
    spread_prefills,
)

Turn: TypeAlias = Callable[[Case, Setting], SettingAdvice]


def _always(_bound: LeverBound) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Lever:
    """One thing that may be turned against thrash."""

    knob: Knob
    turn: Turn
    expects: str
    """What it should bring and what it costs, for people, in one sentence."""
    called: str = ""
    """Its name in a spec, where that is not the knob's."""
    is_meant: Callable[[LeverBound], bool] = _always
    """Whether an entry of `spec.levers` is about this lever: another branch turns some knobs back."""
    remembers: bool = False
    """Its function knows by itself what was tried; otherwise a knob that was tried is left alone."""

    @property
    def name(self) -> str:
        """Return its name in a spec."""
        return self.called or str(self.knob)


LEVERS = (
    Lever(
        Knob.MAX_NUM_SEQS,
        cut_cap,
        "Fewer sequences run at once, so that they fit: hardly a stall, longer waits before the first token.",
    ),
    Lever(
        Knob.WATERMARK,
        keep_free,
        "Whoever is admitted leaves room for the others to grow: fewer preemptions where prompts fill the "
        "cache, somewhat longer waits before the first token.",
    ),
    Lever(
        Knob.MAX_MODEL_LEN,
        shorten_requests,
        "Where prompts are prefilled in one go, memory for a shorter one is enough and the rest goes to the "
        "cache; longer requests are refused.",
    ),
    Lever(
        Knob.MAX_NUM_BATCHED_TOKENS,
        shorten_steps,
        "A step computes fewer tokens at once, so it takes less memory, which goes to the cache, and holds "
        "others up for a shorter time; a long prompt takes more steps to its first token.",
    ),
    Lever(
        Knob.GPU_MEMORY_UTILIZATION,
        step_up,
        "The KV cache grows by one step of the GPU's memory, as far as that was seen to stay free under "
        "load; less is left for what the engine does not plan with.",
        is_meant=is_for_raising,
        remembers=True,
    ),
    Lever(
        Knob.PREFIX_CACHING,
        reuse_prefixes,
        "What prompts begin with in common is kept once, so more run at once; it stays on only if hits "
        "confirm it.",
    ),
    Lever(
        Knob.CHUNKED_PREFILL,
        spread_prefills,
        "A step need not hold the longest request any more, so it takes less memory, which goes to the "
        "cache; long prompts take more steps to their first token.",
    ),
    Lever(
        Knob.KV_OFFLOADING_SIZE,
        use_host,
        "Who was preempted is fetched from the host's memory and not computed again; it prevents no "
        "preemption, and stays only if answers come more smoothly.",
        called=OFFLOADING,
        remembers=True,
    ),
)
"""By the runbook's order; the order of trying is that of `spec.levers`."""

HARMLESS = frozenset(
    {
        Reason.PREEMPTIONS_CHEAP,
        Reason.GAIN_WITHIN_NOISE,
        Reason.CAP_WITHOUT_EFFECT,
        Reason.LEVER_WITHOUT_EFFECT,
        Reason.LENGTH_IN_USE,
        Reason.PREFIXES_NOT_SHARED,
    }
)
"""Reasons after which nobody has to do anything: the lever is free, and nothing would be gained."""


def first_that_applies(case: Case, setting: Setting, levers: Sequence[Lever] = LEVERS) -> SettingAdvice:
    """Return the proposal of the first allowed lever that applies, or why none does."""
    by_knob = {lever.knob: lever for lever in levers}
    refusals: list[tuple[str, NoChange]] = []
    for bound in setting.levers:
        lever = by_knob.get(bound.knob)
        if lever is None or not lever.is_meant(bound):
            continue
        advice = _ask_lever(lever, case, setting)
        if isinstance(advice, Assignment):
            return advice
        refusals.append((lever.name, advice))
    why = _none_left([*refusals, *_missed_cap(case, setting, refusals)])
    return replace(why, passes_on=passes_on(case, setting))


def _ask_lever(lever: Lever, case: Case, setting: Setting) -> SettingAdvice:
    if lever.knob in setting.exhausted and not lever.remembers:
        return NoChange(
            Reason.LEVER_EXHAUSTED,
            f"{lever.name} was tried on this revision, these lengths and this pool and did not help; "
            "more KV cache or replicas may",
        )
    return setting.refused.get(lever.knob) or lever.turn(case, setting)


def _missed_cap(
    case: Case, setting: Setting, refusals: Sequence[tuple[str, NoChange]]
) -> list[tuple[str, NoChange]]:
    """Return the cap that would help where it is not allowed, or why there is none where nothing is."""
    if setting.bound(Knob.MAX_NUM_SEQS) is not None:
        return []
    advice = cut_cap(case, setting)
    told = isinstance(advice, NoChange) and (not refusals or advice.reason is Reason.LEVER_NOT_ALLOWED)
    return [(Knob.MAX_NUM_SEQS, advice)] if isinstance(advice, NoChange) and told else []


def _none_left(refusals: Sequence[tuple[str, NoChange]]) -> NoChange:
    if len(refusals) == 1:
        return refusals[0][1]
    harmless = all(refusal.reason in HARMLESS for _, refusal in refusals)
    told = "; ".join(f"({place}) {_name_levers(*each)}" for place, each in enumerate(refusals, start=1))
    reason = refusals[0][1].reason if harmless else Reason.NO_LEVER_LEFT
    return NoChange(reason, f"none of the allowed levers would help now: {told}")


def _name_levers(name: str, refusal: NoChange) -> str:
    return refusal.message if refusal.message.startswith(name) else f"{name}: {refusal.message}"
