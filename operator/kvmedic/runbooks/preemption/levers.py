"""The levers of a thrashing fleet as a table, and which of them is turned next.

Each lever is one row: the knob, why it does not apply, the value that would be set, and what confirms it
afterwards. They are asked in the order of `spec.levers`; the first that applies gives the plan, so that a
run changes one setting. The levers of the devices' and the host's memory are in `memory_levers`, the cap and
the watermark in `cap`. A lever is left alone while the evidence is the one that it failed on: the pod
template (and with it the engine's version and every setting), the lengths of requests and the pool.

* The greatest length of a request, and the chunks of a prefill: where prefills are not chunked, a step must
  hold the longest request in one go, and the engine keeps memory for such a step. Where they are, an engine
  takes blocks as tokens come, and a lower limit frees nothing.
* The tokens of a step: at its start an engine runs one step of the most tokens that it may ever compute at
  once, and what that step leaves of the device's memory becomes the KV cache (`determine_available_memory`,
  vLLM v1/worker/gpu_worker.py 0.32). How much a smaller step frees is a matter of the model and is in no
  metric: the verdict measures what it brought.
* Shared prefixes: an engine that does not reuse them counts no hits either. What is known before is how
  much requests could share at most: no common beginning is longer than the shortest prompts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from math import ceil, inf
from typing import TypeAlias

from kvmedic.model.engine import Knob
from kvmedic.model.evidence import Inconclusive, Measured, Signal
from kvmedic.model.fleet import template_hash
from kvmedic.model.readings import gather_values, merge_histograms, pools
from kvmedic.model.reasons import Reason, Trait
from kvmedic.model.run import devices_of
from kvmedic.model.spec import LeverBound
from kvmedic.model.status import Attempt, FailedAttempt, Record, SizedCap
from kvmedic.runbooks.branches import Assignment, Evidence, NoChange, Setting, SettingAdvice, Supply
from kvmedic.runbooks.preemption.cap import cap_helps_more, cut_cap, growth_exceeds_watermark, keep_free
from kvmedic.runbooks.preemption.cap_size import tokens_per_step
from kvmedic.runbooks.preemption.memory_levers import (
    HOST_KNOBS,
    OFFLOADING,
    cannot_raise_share,
    cannot_use_host,
    host_terms,
    is_for_raising,
    lowest_oom_share,
    memory_in_use,
    memory_share,
    raise_share,
    size_host_cache,
)
from kvmedic.runbooks.preemption.pressure import POOLS_ALIKE, Case
from kvmedic.runbooks.preemption.scale_out import passes_on
from kvmedic.runbooks.workload import FIXES_THE_POOL, Workload
from kvmedic.verdict.vetoes import Confirmation

ManifestError: TypeAlias = Callable[[Case, Setting], NoChange | None]
Proposal: TypeAlias = Callable[[Case, Setting], SettingAdvice]


@dataclass(frozen=True, slots=True)
class Lever:
    """One thing that may be turned against thrash."""

    knob: Knob
    value: Proposal
    """What it would be set to, or why the gain is too small, where nothing refuses it."""
    expects: str
    """What it should bring and what it costs, for people, in one sentence."""
    unless: tuple[ManifestError, ...] = ()
    """Why it does not apply: the first one that says so is reported."""
    confirmed_by: Confirmation = Confirmation.FIGURES
    called: str = ""
    """Its name in a spec, where that is not the knob's."""
    turns: tuple[Knob, ...] = ()
    """What it may turn, where that is the engine's matter; empty: `knob`."""
    is_meant: Callable[[LeverBound], bool] = lambda _bound: True
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


LENGTHS_ALIKE = 2 / 3
"""Mean prompt (or output) length, the smaller over the larger, at least, for the lengths to be those of then.
Of sequences that are half as long again a third fewer fit, more than a right cap takes away; means of 100
requests of the widest shape that was simulated (relative deviation 1.3) differ by that once in 40 times."""


def present_setting(
    workload: Workload, levers: tuple[LeverBound, ...], record: Record, evidence: Evidence
) -> Setting:
    """Return what advice needs to know of the present setting; what cannot be read is unknown."""
    profile, tried = workload.engine.profile, record.failed_attempts
    revision = template_hash(workload.template)
    cap = workload.value_of(Knob.MAX_NUM_SEQS)
    cap = cap if isinstance(cap, int) else None
    default, steps = profile.flag(Knob.MAX_NUM_SEQS), profile.flag(Knob.MAX_NUM_BATCHED_TOKENS)
    used, unseen = memory_in_use(evidence)
    unknown = workload.unknown_knobs()
    # The switch on the command line counts; without one, what the running engines say of themselves.
    prefixes, is_given = workload.has_on(Knob.PREFIX_CACHING), workload.gives(Knob.PREFIX_CACHING)
    reported = {
        pod.pool.value.caches_prefixes if isinstance(pod.pool, Measured) else None
        for pod in evidence.burn.pods.values()
    }
    said = reported.pop() if len(reported) == 1 else None
    return Setting(
        max_num_seqs=cap,
        levers=levers,
        exhausted=exhausted_levers(tried, revision, evidence),
        given=workload.knobs(),
        most_sequences=cap if default is None or workload.gives(Knob.MAX_NUM_SEQS) else default.most,
        refused={knob: NoChange(Reason.FLAG_NOT_EDITABLE, why.message) for knob, why in unknown.items()},
        chunks_prefill=workload.has_on(Knob.CHUNKED_PREFILL),
        memory=memory_share(workload),
        gpus=devices_of(workload.template),
        supply=Supply(
            caches_prefixes=prefixes if is_given or said is None else said,
            leaves_prefixes=not is_given and said is False and prefixes is not False,
            memory_in_use=used,
            memory_unknown=unseen,
            oom_limit=lowest_oom_share(record.oom_shares, workload.template),
            raise_failed_before=bool(find_failed_attempts(Attempt.RAISE_MEMORY, tried, revision, evidence)),
            host=host_terms(workload),
        ),
        least_step_tokens=None if steps is None else steps.least,
        cap_rooms=_cap_rooms(record.sized, revision, evidence.burn.at),
        raise_limit=_raise_limit(levers, record.sized, revision, None if default is None else default.most),
        raise_failed=bool(find_failed_attempts(Attempt.RAISE_CAP, tried, revision, evidence)),
    )


def _cap_rooms(sized: SizedCap | None, revision: str, now: datetime) -> tuple[tuple[float, int], ...]:
    """Return the caps of ours on this revision, each change as what was there before and what came."""
    if sized is None or sized.revision != revision:
        return ()
    return tuple(
        ((now - change.at).total_seconds(), int(cap))
        for change in sized.changes
        for cap in (change.before, change.after)
        if cap
    )


def _raise_limit(
    levers: tuple[LeverBound, ...], sized: SizedCap | None, revision: str, default: int | None
) -> int | None:
    """Return how far the cap may be raised; None: not at all.

    An engine that may run more sequences needs more of its devices' memory for a step. What there was before
    a cap of ours is known to start; beyond that a person says how far.
    """
    bound = next((one for one in levers if one.knob is Knob.MAX_NUM_SEQS), None)
    if bound is None or bound.maximum is not None:
        return None if bound is None else round(bound.maximum or 0)
    if sized is None or sized.revision != revision:
        return None
    return int(sized.before) if sized.before else default


def exhausted_levers(tried: Sequence[FailedAttempt], revision: str, evidence: Evidence) -> frozenset[Knob]:
    """Return the levers that are not to be tried again on this evidence.

    A share of the devices' memory whose raise failed before may still be lowered: that is another trouble's
    lever (`raise_failed_before`).
    """
    failed = {one.key for one in find_failed_attempts(Attempt.TURN_LEVER, tried, revision, evidence)}
    return frozenset(knob for knob in Knob if knob in failed)


def find_failed_attempts(
    attempt: Attempt, tried: Sequence[FailedAttempt], revision: str, evidence: Evidence
) -> tuple[FailedAttempt, ...]:
    """Return the attempts of a kind that failed on this evidence: pod template, lengths of requests and pool.

    What cannot be read counts as unchanged: silence is no new evidence.
    """
    means, held = _mean_lengths(evidence), pools(evidence.sizing)
    known = () if isinstance(held, Inconclusive) else held.values()
    blocks = min((one.blocks for one in known), default=None)
    return tuple(
        one
        for one in tried
        if (one.attempt, one.template) == (attempt, revision)
        and (
            one.load is None or _agree((one.load.prompt_tokens, one.load.output_tokens), means, LENGTHS_ALIKE)
        )
        and _agree((one.blocks,), (blocks,), 1 - POOLS_ALIKE)
    )


def _agree(then: Iterable[float | None], now: Iterable[float | None], least: float) -> bool:
    """Return whether no two figures that are both known differ by more than a ratio."""
    pairs = [(a, b) for a, b in zip(then, now, strict=True) if a is not None and b is not None]
    return all(min(pair) >= least * max(pair) for pair in pairs)


def _mean_lengths(evidence: Evidence) -> tuple[float | None, ...]:
    """Return the mean prompt and output over the sizing window; None where they are not known."""
    lengths = (Signal.PROMPT_LENGTH, Signal.OUTPUT_LENGTH)
    found = gather_values(evidence.sizing, frozenset(lengths))
    if isinstance(found, Inconclusive):
        return (None, None)
    counted = [[one.histograms[signal] for one in found.values()] for signal in lengths]
    if any(len({one.bounds for one in each}) != 1 for each in counted):
        return (None, None)
    whole = [merge_histograms(each) for each in counted]
    return tuple(one.mean if one.count > 0 else None for one in whole)


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
    reach, given = case.reach, setting.whole(Knob.MAX_MODEL_LEN)
    present = given if given is not None and given > 0 else reach.counted_tokens
    bound = setting.bound(Knob.MAX_MODEL_LEN) or LeverBound(Knob.MAX_MODEL_LEN)
    desired = round(max(reach.request_tokens or inf, bound.minimum or 1))
    answers = max(reach.output_tokens, reach.limit_tokens or 0.0)
    longest = f"in the window prompts of up to {reach.prompt_tokens:.0f} and answers of up to {answers:.0f} "
    longest += "tokens were asked for"
    if desired > LEAST_CUT * present:
        text = f"{longest}, or the lever's min, leave too little of {present:.0f} tokens unused"
        return NoChange(Reason.TRAFFIC_UNSUITED, text)
    return Assignment(
        Knob.MAX_MODEL_LEN,
        desired,
        Reason.SETTING_ADJUSTED,
        f"{longest}; requests of over {desired} tokens will be refused; expected: a "
        f"step needs memory for {desired} tokens in place of {present:.0f}, and the rest goes to the KV "
        "cache",
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
    if fixed is not None or not setting.gives(Knob.MAX_NUM_BATCHED_TOKENS):
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
            "not every replica reports how long answers were allowed to become, so a lower limit might "
            "refuse what is asked for now",
        )
    if reach.request_tokens != inf:
        return None
    return NoChange(
        Reason.TRAFFIC_UNSUITED,
        f"requests of the window were over {reach.counted_tokens:.0f} tokens long, asked for answers of that "
        "length, or did not say how long",
    )


ROOM = 4.0
"""Tokens that a step may have, over those that it has on average: prefills come in bursts."""
STEP_TOKENS_GRAIN = 256
"""Budgets are multiples of this."""


def limit_step(case: Case, setting: Setting) -> SettingAdvice:
    """Return the least budget of a step that the engine accepts and the traffic fits, or why none is set."""
    present = setting.whole(Knob.MAX_NUM_BATCHED_TOKENS) or 0
    mean = tokens_per_step(case.strain, case.sequence, case.block_tokens)
    bound = setting.bound(Knob.MAX_NUM_BATCHED_TOKENS) or LeverBound(Knob.MAX_NUM_BATCHED_TOKENS)
    floors = [
        (ceil(ROOM * mean / STEP_TOKENS_GRAIN) * STEP_TOKENS_GRAIN, f"{ROOM:g} times the mean step"),
        (setting.most_sequences or 1, f"a token for each of {Knob.MAX_NUM_SEQS}"),
        (round(bound.minimum or 1), "the lever's min"),
    ]
    if not setting.chunks_prefill:
        whole = setting.whole(Knob.MAX_MODEL_LEN) or 1
        floors.append((whole, f"{Knob.MAX_MODEL_LEN}, as prefills are not known to be chunked"))
    least, why = max(floors)
    if least > LEAST_CUT * present:
        return NoChange(
            Reason.GAIN_WITHIN_NOISE,
            f"{least} tokens a step are needed ({why}), which is too near to {present} to free much memory",
        )
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
            "neither the command line nor the engine's version shows whether prefills are chunked",
        )
    if setting.chunks_prefill:
        return NoChange(Reason.LEVER_WITHOUT_EFFECT, "prefills are chunked already")
    fixed = pool_is_fixed(case, setting)
    if fixed is not None or not setting.gives(Knob.MAX_NUM_BATCHED_TOKENS):
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
            "neither the command line nor the engine's version shows whether prefixes are reused",
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


LEVERS = (
    Lever(
        Knob.MAX_NUM_SEQS,
        cut_cap,
        "Fewer sequences run at once, so that they fit: hardly a stall, longer waits before the first token.",
    ),
    Lever(
        Knob.WATERMARK,
        keep_free,
        "Each admitted request leaves room for the others to grow: fewer preemptions where prompts fill the "
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
        if lever.knob in setting.exhausted and not lever.remembers:
            advice: SettingAdvice = NoChange(
                Reason.LEVER_EXHAUSTED,
                f"{lever.name} was tried on this revision, these lengths and this pool and did not help; "
                "more KV cache or replicas may",
            )
        else:
            advice = setting.refused.get(lever.knob) or lever.propose(case, setting)
        if isinstance(advice, Assignment):
            return advice
        refusals.append((lever.name, advice))
    if setting.bound(Knob.MAX_NUM_SEQS) is None:
        # A cap that would help is named where it is not allowed; why there is none, where nothing else is.
        cap = cut_cap(case, setting)
        if isinstance(cap, NoChange) and (not refusals or cap.reason is Reason.LEVER_NOT_ALLOWED):
            refusals.append((Knob.MAX_NUM_SEQS, cap))
    return replace(_report_no_lever(refusals), passes_on=passes_on(case, setting))


def _report_no_lever(refusals: Sequence[tuple[str, NoChange]]) -> NoChange:
    if len(refusals) == 1:
        return refusals[0][1]
    harmless = all(Trait.NO_GAIN in refusal.reason.traits for _, refusal in refusals)
    text = "; ".join(
        f"({place}) {why.message if why.message.startswith(name) else f'{name}: {why.message}'}"
        for place, (name, why) in enumerate(refusals, start=1)
    )
    reason = refusals[0][1].reason if harmless else Reason.NO_LEVER_LEFT
    return NoChange(reason, f"none of the allowed levers would help now: {text}")
