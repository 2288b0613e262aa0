"""The greatest length of a request, lowered where that frees memory and no request of the window needs it.

An engine takes blocks as tokens come, not by the greatest length: where prefills are chunked a lower limit
frees nothing. Where they are not, a step must hold the longest request in one go, and the engine keeps
memory for that.

The tokens of one engine step, lowered to what the traffic needs.

The memory that an engine keeps for one step: what two levers can hand to the KV cache.

At its start an engine runs one step of the most tokens that it may ever compute at once, and what that step
leaves of the device's memory becomes the KV cache (`determine_available_memory`, vLLM
v1/worker/gpu_worker.py 0.32). How much a smaller step frees is a matter of the model and is in no metric: the
verdict measures what it brought.

Long prompts spread over several steps, where an engine prefills each in one go.

Then a step must hold the longest request that is allowed, and the engine keeps memory for such a step. Where
prefills are chunked, a step holds no more than the engine's own budget, and the rest goes to the KV cache.

Blocks of shared prefixes held once, where an engine does not do so by itself.

An engine that does not reuse prefixes counts no hits either, so whether requests begin alike cannot be told
before it is switched on. What can be told is how much they could share at most: no common beginning is longer
than the shortest prompts. Whether they do is asked afterwards, of hits over queries
(`kvmedic.verdict.vetoes`).

A share of the cache that an admission must leave free: for fleets that a cap would hurt.

Where prompts fill the cache, whoever is admitted last fills it to the brim, and the growth of the others soon
preempts somebody. Between two ends of requests, which make room again, the running set grows by what one
request generates, on average. A share kept free at admission takes that growth up.
"""

from __future__ import annotations

from math import ceil, exp, inf, log

from kvmedic.model.engine import Knob
from kvmedic.model.reasons import Reason
from kvmedic.model.spec import LeverBound
from kvmedic.runbooks.branches import Assignment, NoChange, Setting, SettingAdvice
from kvmedic.runbooks.preemption.cap import MOSTLY_GROWTH, cut_cap
from kvmedic.runbooks.preemption.pressure import Case, Reach
from kvmedic.runbooks.workload import FIXES_THE_POOL
from kvmedic.verdict.sizing import tokens_per_step

LEAST_CUT = 0.75
"""Tokens of a step afterwards over before, at most. What a step takes grows with its tokens, so a smaller cut
frees under a quarter of a part of the memory that is itself small beside the cache."""


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


def shorten_requests(case: Case, setting: Setting) -> SettingAdvice:
    """Return the lowest limit that refuses no request like those of the window, or why none is set."""
    doubt = _refuse_inert_length(setting) or _in_use(case.reach)
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
            f"{_longest_request_text(case.reach)}, or the lever's min, leave too little of {present:.0f} "
            "tokens unused",
        )
    return Assignment(
        Knob.MAX_MODEL_LEN,
        wanted,
        Reason.LENGTH_LIMIT_LOWERED,
        f"{_longest_request_text(case.reach)}; requests of over {wanted} tokens will be refused; expected: a "
        f"step needs memory for {wanted} tokens in place of {present:.0f}, and the rest goes to the KV cache",
    )


def _refuse_inert_length(setting: Setting) -> NoChange | None:
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
        (ceil(ROOM * mean / STEP_TOKENS_GRAIN) * STEP_TOKENS_GRAIN, f"{ROOM:g} times the mean step"),
        (setting.most_sequences or 1, f"a token for each of {Knob.MAX_NUM_SEQS}"),
        (round(bound.minimum or 1), "the lever's min"),
    ]
    if not setting.chunks_prefill:
        whole = setting.whole(Knob.MAX_MODEL_LEN) or 1
        floors.append((whole, f"{Knob.MAX_MODEL_LEN}, as prefills are not known to be chunked"))
    return floors


def spread_prefills(case: Case, setting: Setting) -> SettingAdvice:
    """Return that prefills should be chunked, or why that would give the KV cache nothing."""
    doubt = _refuse_inert_chunks(setting)
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


def _refuse_inert_chunks(setting: Setting) -> NoChange | None:
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
    """Return the watermark that takes up the growth between two ends of requests, or why none is set."""
    doubt = _better_lever(case, setting) or _out_of_reach(case)
    if doubt is not None:
        return doubt
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
    return Assignment(Knob.WATERMARK, value, Reason.WATERMARK_RAISED, _expected_of_watermark(case, value))


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


def _better_lever(case: Case, setting: Setting) -> NoChange | None:
    """Return that a cap is free to be set and helps more, or None."""
    free = setting.bound(Knob.MAX_NUM_SEQS) is not None
    free = free and Knob.MAX_NUM_SEQS not in setting.exhausted and Knob.MAX_NUM_SEQS not in setting.refused
    cap = cut_cap(case, setting) if free else None
    if not isinstance(cap, Assignment):
        return None
    return NoChange(Reason.BETTER_LEVER, f"{Knob.MAX_NUM_SEQS} {cap.value} is expected to help more")


def _out_of_reach(case: Case) -> NoChange | None:
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
