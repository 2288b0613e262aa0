"""The levers of a thrashing fleet as a table, and which of them is turned next.

Each lever is one row: the knob, why it does not apply, the value that would be set, and what confirms it
afterwards. They are asked in the order of `spec.levers`; the first that applies gives the plan, so that a
run changes one setting. The levers of the devices' and the host's memory are in `memory_levers`, the cap in
`cap`.

* The greatest length of a request, and the chunks of a prefill: where prefills are not chunked, a step must
  hold the longest request in one go, and the engine keeps memory for such a step. Where they are, an engine
  takes blocks as tokens come, and a lower limit frees nothing.
* The tokens of a step: at its start an engine runs one step of the most tokens that it may ever compute at
  once, and what that step leaves of the device's memory becomes the KV cache (`determine_available_memory`,
  vLLM v1/worker/gpu_worker.py 0.32). How much a smaller step frees is a matter of the model and is in no
  metric: the verdict measures what it brought.
* Shared prefixes: an engine that does not reuse them counts no hits either. What can be told before is how
  much requests could share at most: no common beginning is longer than the shortest prompts.
* The watermark: where prompts fill the cache, whoever is admitted last fills it to the brim, and the growth
  of the others soon preempts somebody. Between two ends of requests, which make room again, the running set
  grows by what one request generates, on average. A share kept free at admission takes that growth up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil, exp, inf, log
from typing import TypeAlias

from kvmedic.model.engine import Knob
from kvmedic.model.reasons import Reason, Trait
from kvmedic.model.spec import LeverBound
from kvmedic.runbooks.branches import Assignment, NoChange, Setting, SettingAdvice
from kvmedic.runbooks.preemption.cap import MOSTLY_GROWTH, cut_cap, passes_on
from kvmedic.runbooks.preemption.memory_levers import (
    HOST_KNOBS,
    OFFLOADING,
    cannot_raise_share,
    cannot_use_host,
    is_for_raising,
    raise_share,
    size_host_cache,
)
from kvmedic.runbooks.preemption.pressure import Case, Reach
from kvmedic.runbooks.workload import FIXES_THE_POOL
from kvmedic.verdict.sizing import tokens_per_step
from kvmedic.verdict.vetoes import Confirmation

Refusal: TypeAlias = Callable[[Case, Setting], NoChange | None]
Proposal: TypeAlias = Callable[[Case, Setting], SettingAdvice]


def _always(_bound: LeverBound) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Lever:
    """One thing that may be turned against thrash."""

    knob: Knob
    value: Proposal
    """What it would be set to, or why the gain is too small, where nothing refuses it."""
    expects: str
    """What it should bring and what it costs, for people, in one sentence."""
    unless: tuple[Refusal, ...] = ()
    """Why it does not apply: the first that says so is told."""
    confirmed_by: Confirmation = Confirmation.FIGURES
    called: str = ""
    """Its name in a spec, where that is not the knob's."""
    turns: tuple[Knob, ...] = ()
    """What it may turn, where that is the engine's matter; empty: `knob`."""
    is_meant: Callable[[LeverBound], bool] = _always
    """Whether an entry of `spec.levers` is about this lever: another branch turns some knobs back."""
    remembers: bool = False
    """It knows by itself what was tried; otherwise a knob that was tried is left alone."""

    @property
    def name(self) -> str:
        """Return its name in a spec."""
        return self.called or str(self.knob)

    def propose(self, case: Case, setting: Setting) -> SettingAdvice:
        """Return the value that would be set, or the first reason why none is."""
        doubts = (refuse(case, setting) for refuse in self.unless)
        return next((why for why in doubts if why is not None), None) or self.value(case, setting)


LEAST_CUT = 0.75
"""Tokens of a step afterwards over before, at most. What a step takes grows with its tokens, so a smaller cut
frees under a quarter of a part of the memory that is itself small beside the cache."""


def pool_is_fixed(_case: Case, setting: Setting) -> NoChange | None:
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


def limit_length(case: Case, setting: Setting) -> SettingAdvice:
    """Return the lowest limit that refuses no request like those of the window, or why none is set."""
    needed = case.reach.request_tokens or inf
    given = setting.whole(Knob.MAX_MODEL_LEN)
    present = given if given is not None and given > 0 else case.reach.counted_tokens
    bound = setting.bound(Knob.MAX_MODEL_LEN) or LeverBound(Knob.MAX_MODEL_LEN)
    wanted = round(max(needed, bound.minimum or 1))
    if wanted > LEAST_CUT * present:
        return NoChange(
            Reason.TRAFFIC_UNSUITED,
            f"{_longest_request_text(case.reach)}, or the lever's min, leave too little of {present:.0f} "
            "tokens unused",
        )
    return Assignment(
        Knob.MAX_MODEL_LEN,
        wanted,
        Reason.SETTING_ADJUSTED,
        f"{_longest_request_text(case.reach)}; requests of over {wanted} tokens will be refused; expected: a "
        f"step needs memory for {wanted} tokens in place of {present:.0f}, and the rest goes to the KV cache",
    )


def length_frees_nothing(case: Case, setting: Setting) -> NoChange | None:
    """Return why a lower limit would free no memory, or None where it would."""
    if setting.chunks_prefill:
        return NoChange(
            Reason.LEVER_WITHOUT_EFFECT,
            "the engine chunks prefills and takes blocks as tokens come, so a lower limit frees nothing and "
            "would only refuse longer requests",
        )
    fixed = pool_is_fixed(case, setting)
    if fixed is not None or setting.whole(Knob.MAX_NUM_BATCHED_TOKENS) is None:
        return fixed
    return NoChange(
        Reason.LEVER_WITHOUT_EFFECT,
        f"{Knob.MAX_NUM_BATCHED_TOKENS} is given, and the memory of a step follows from that",
    )


def length_is_used(case: Case, _setting: Setting) -> NoChange | None:
    """Return why nobody can say what length goes unused, or None where it can be said."""
    reach = case.reach
    if reach.limit_tokens is None:
        return NoChange(
            Reason.METRICS_MISSING,
            "not every replica tells how long answers were allowed to become, so a lower limit might refuse "
            "what is asked for now",
        )
    if reach.request_tokens != inf:
        return None
    return NoChange(
        Reason.TRAFFIC_UNSUITED,
        f"requests of the window were over {reach.counted_tokens:.0f} tokens long, asked for answers of that "
        "length, or did not say how long",
    )


def _longest_request_text(reach: Reach) -> str:
    """Return the longest request in one clause."""
    answers = max(reach.output_tokens, reach.limit_tokens or 0.0)
    return (
        f"in the window prompts of up to {reach.prompt_tokens:.0f} and answers of up to {answers:.0f} tokens "
        "were asked for"
    )


ROOM = 4.0
"""Tokens that a step may have, over those that it has on average: prefills come in bursts."""
STEP_TOKENS_GRAIN = 256
"""Budgets are multiples of this."""


def limit_step(case: Case, setting: Setting) -> SettingAdvice:
    """Return the least budget of a step that the engine accepts and the traffic fits, or why none is set."""
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
        Reason.SETTING_ADJUSTED,
        f"steps have {mean:.0f} tokens on average and may have {present}; {least} are enough ({why}); "
        f"expected: memory for {present - least} tokens of a step goes to the KV cache, long prompts take "
        "more steps",
    )


def step_is_unknown(_case: Case, setting: Setting) -> NoChange | None:
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
    if setting.most_sequences is not None:
        return None
    return NoChange(
        Reason.PRESENT_VALUE_UNKNOWN,
        f"a step must hold a token of each running sequence, and nobody knows {Knob.MAX_NUM_SEQS}",
    )


def _floors(case: Case, setting: Setting) -> list[tuple[int, str]]:
    """Return every number of tokens that a step must be able to hold, with its reason."""
    bound = setting.bound(Knob.MAX_NUM_BATCHED_TOKENS) or LeverBound(Knob.MAX_NUM_BATCHED_TOKENS)
    mean = tokens_per_step(case.strain, case.sequence, case.block_tokens)
    floors = [
        (ceil(ROOM * mean / STEP_TOKENS_GRAIN) * STEP_TOKENS_GRAIN, f"{ROOM:g} times the mean step"),
        (setting.most_sequences or 1, f"a token for each of {Knob.MAX_NUM_SEQS}"),
        (round(bound.minimum or 1), "the lever's min"),
    ]
    if not setting.chunks_prefill:
        whole = setting.whole(Knob.MAX_MODEL_LEN) or 1
        floors.append((whole, f"{Knob.MAX_MODEL_LEN}, as prefills are not known to be chunked"))
    return floors


def chunk_prefills(case: Case, setting: Setting) -> SettingAdvice:
    """Return that prefills should be chunked, or why that would give the KV cache nothing."""
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
        Reason.SETTING_ADJUSTED,
        f"a step must hold the longest request in one go, {longest} tokens; with chunks the engine's own "
        f"budget is enough ({budget} or more, by its device); expected: memory for the rest goes to the KV "
        "cache, and no prefill holds the others up for long",
    )


def chunks_free_nothing(case: Case, setting: Setting) -> NoChange | None:
    """Return why chunks would free no memory, or None where they would."""
    if setting.chunks_prefill is None:
        return NoChange(
            Reason.PRESENT_VALUE_UNKNOWN,
            "neither the command line nor the engine's version tells whether prefills are chunked",
        )
    if setting.chunks_prefill:
        return NoChange(Reason.LEVER_WITHOUT_EFFECT, "prefills are chunked already")
    fixed = pool_is_fixed(case, setting)
    if fixed is not None or setting.whole(Knob.MAX_NUM_BATCHED_TOKENS) is None:
        return fixed
    return NoChange(
        Reason.LEVER_WITHOUT_EFFECT,
        f"{Knob.MAX_NUM_BATCHED_TOKENS} is given, and the memory of a step follows from that: switch "
        f"{Knob.CHUNKED_PREFILL} on by hand together with a lower one",
    )


LEAST_SAVED = 0.3
"""Share of the KV cache that would be free if all prompts began alike, at least. Simulated: see
`docs/explanation/supply.md`."""


def prefixes_are_reused(_case: Case, setting: Setting) -> NoChange | None:
    """Return that prefixes are reused, or are not on purpose; None where they could be."""
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
    return None


def reuse_prefixes(case: Case, _setting: Setting) -> SettingAdvice:
    """Return that prefixes should be reused, or why that would free too little."""
    saved = saved_at_most(case)
    if saved < LEAST_SAVED:
        return NoChange(
            Reason.TRAFFIC_UNSUITED,
            f"one prompt in twenty has {case.shortest_tokens:.0f} tokens or less, so a common beginning "
            f"would free {saved:.0%} of the KV cache at most ({LEAST_SAVED:.0%} are needed)",
        )
    return Assignment(
        Knob.PREFIX_CACHING,
        True,
        Reason.SETTING_ADJUSTED,
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


WANTED_LEFT = 0.1
"""Share of the preemptions that the watermark is made to leave. Every watermark that was simulated with it
was judged Recovered, which takes a quarter at most; goodput was 0.988 to 1.015 times that of before."""
MOST_LEFT = 0.5
"""Share of the preemptions up to which a smaller watermark is worth a rollout: more is no improvement."""
MOST_KEPT = 0.1
"""Share of the cache that is kept free at most: what is free serves nobody."""
WATERMARK_GRAIN = 0.001
"""Watermarks are multiples of this, as the lever's bound is."""


def keep_free(case: Case, setting: Setting) -> SettingAdvice:
    """Return the watermark that takes up the growth between two ends of requests, or why it is too large."""
    bound = setting.bound(Knob.WATERMARK)
    most = min(MOST_KEPT, bound.maximum if bound and bound.maximum is not None else MOST_KEPT)
    wanted = watermark_of(case)
    value = min(wanted, most)
    left = left_at(case, value)
    if left > MOST_LEFT:
        return NoChange(
            Reason.GAIN_WITHIN_NOISE,
            f"{wanted:g} of the cache would have to be kept free; {most:g}, the most that is allowed, would "
            f"leave {left:.0%} of the preemptions",
        )
    present = setting.given.get(Knob.WATERMARK) if setting.given else None
    if isinstance(present, int | float) and present >= value:
        return NoChange(Reason.LEVER_WITHOUT_EFFECT, f"{present:g} of the cache is kept free already")
    return Assignment(Knob.WATERMARK, value, Reason.SETTING_ADJUSTED, _expected_of_watermark(case, value))


def watermark_of(case: Case) -> float:
    """Return the watermark that leaves `WANTED_LEFT` of the preemptions, rounded up."""
    kept = log(1 / WANTED_LEFT) * case.output_tokens / (case.blocks * case.block_tokens)
    return round(ceil(kept / WATERMARK_GRAIN) * WATERMARK_GRAIN, 3)


def left_at(case: Case, watermark: float) -> float:
    """Return the share of the preemptions that a watermark leaves.

    A running set preempts when it grows by more than what is kept free before a request ends. Growth between
    two ends is spread exponentially around the tokens that one request generates. Simulated at watermarks
    of 1 and 2 %: 0.37 and 0.11 of the preemptions of Azure's conversations were left where this says 0.33 and
    0.11, of agents 0.31 and 0.07 where it says 0.29 and 0.08. Where outputs of equal length end in waves 0.62
    and 0.51 were left in place of 0.15 and 0.02.
    """
    return exp(-watermark * case.blocks * case.block_tokens / case.output_tokens)


def cap_helps_more(case: Case, setting: Setting) -> NoChange | None:
    """Return that a cap is free to be set and helps more, or None."""
    free = setting.bound(Knob.MAX_NUM_SEQS) is not None
    free = free and Knob.MAX_NUM_SEQS not in setting.exhausted and Knob.MAX_NUM_SEQS not in setting.refused
    cap = cut_cap(case, setting) if free else None
    if not isinstance(cap, Assignment):
        return None
    return NoChange(Reason.BETTER_LEVER, f"{Knob.MAX_NUM_SEQS} {cap.value} is expected to help more")


def growth_exceeds_watermark(case: Case, _setting: Setting) -> NoChange | None:
    """Return that sequences outgrow whatever is kept free, or None."""
    growth = case.sequence.growth_share
    if growth > MOSTLY_GROWTH:
        return NoChange(
            Reason.LEVER_WITHOUT_EFFECT,
            f"{growth:.0%} of a running sequence is its own output ({MOSTLY_GROWTH:.0%} at most): it "
            "outgrows whatever is kept free when it is admitted",
        )
    if case.evicted_by:
        return NoChange(
            Reason.LEVER_WITHOUT_EFFECT,
            f"{case.evicted_by} takes tokens from sequences while they run: nobody knows by how much they "
            "outgrow what is kept free",
        )
    if case.spread < 1:
        return NoChange(
            Reason.LEVER_WITHOUT_EFFECT,
            "outputs of like length end in waves: all sequences grow before the first one ends, and outgrow "
            "what is kept free",
        )
    return None


def _expected_of_watermark(case: Case, value: float) -> str:
    """Return what a watermark should bring, in one clause."""
    now = case.strain.preemptions_per_request
    return (
        f"between two ends of requests the running set grows by {case.output_tokens:.0f} tokens of the "
        f"{case.blocks * case.block_tokens:.0f} that the cache holds; expected: preemptions per request "
        f"{now:.2f} -> {now * left_at(case, value):.2f}, shorter gaps between tokens, tokens/s as before"
    )


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
        unless=(cap_helps_more, growth_exceeds_watermark),
    ),
    Lever(
        Knob.MAX_MODEL_LEN,
        limit_length,
        "Where prompts are prefilled in one go, memory for a shorter one is enough and the rest goes to the "
        "cache; longer requests are refused.",
        unless=(length_frees_nothing, length_is_used),
    ),
    Lever(
        Knob.MAX_NUM_BATCHED_TOKENS,
        limit_step,
        "A step computes fewer tokens at once, so it takes less memory, which goes to the cache, and holds "
        "others up for a shorter time; a long prompt takes more steps to its first token.",
        unless=(pool_is_fixed, step_is_unknown),
    ),
    Lever(
        Knob.GPU_MEMORY_UTILIZATION,
        raise_share,
        "The KV cache grows by one step of the GPU's memory, as far as that was seen to stay free under "
        "load; less is left for what the engine does not plan with.",
        unless=(cannot_raise_share,),
        confirmed_by=Confirmation.MORE_SERVED,
        is_meant=is_for_raising,
        remembers=True,
    ),
    Lever(
        Knob.PREFIX_CACHING,
        reuse_prefixes,
        "What prompts begin with in common is kept once, so more run at once; it stays on only if hits "
        "confirm it.",
        unless=(prefixes_are_reused,),
        confirmed_by=Confirmation.PREFIX_HITS,
    ),
    Lever(
        Knob.CHUNKED_PREFILL,
        chunk_prefills,
        "A step need not hold the longest request any more, so it takes less memory, which goes to the "
        "cache; long prompts take more steps to their first token.",
        unless=(chunks_free_nothing,),
        confirmed_by=Confirmation.MORE_SERVED,
    ),
    Lever(
        Knob.KV_OFFLOADING_SIZE,
        size_host_cache,
        "Who was preempted is fetched from the host's memory and not computed again; it prevents no "
        "preemption, and stays only if answers come more smoothly.",
        unless=(cannot_use_host,),
        confirmed_by=Confirmation.SMOOTHER_ANSWERS,
        turns=HOST_KNOBS,
        called=OFFLOADING,
        remembers=True,
    ),
)
"""By the runbook's order; the order of trying is that of `spec.levers`."""


def confirmation_of(knob: Knob) -> Confirmation:
    """Return what must confirm a knob that was turned; one of no lever is judged by the fleet's figures."""
    rows = (lever.confirmed_by for lever in LEVERS if knob in (lever.turns or (lever.knob,)))
    return next(rows, Confirmation.FIGURES)


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
    return setting.refused.get(lever.knob) or lever.propose(case, setting)


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
    harmless = all(Trait.NO_GAIN in refusal.reason.traits for _, refusal in refusals)
    told = "; ".join(f"({place}) {_name_levers(*each)}" for place, each in enumerate(refusals, start=1))
    reason = refusals[0][1].reason if harmless else Reason.NO_LEVER_LEFT
    return NoChange(reason, f"none of the allowed levers would help now: {told}")


def _name_levers(name: str, refusal: NoChange) -> str:
    return refusal.message if refusal.message.startswith(name) else f"{name}: {refusal.message}"
