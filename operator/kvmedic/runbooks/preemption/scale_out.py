"""More replicas once no setting is left, and what to do where these may not be added either.

One finds here when the levers are spent, how many replicas there should be then, why there should not be
more, and the advice to serve prompts and answers apart, which is the last word of the runbook. More replicas
cost GPUs for as long as they are there, so they come last and for a while, however early `scaleOut` stands
among the levers.
"""

from __future__ import annotations

from math import ceil, exp

from kvmedic.model.engine import Knob
from kvmedic.model.evidence import Inconclusive, Observation, Signal
from kvmedic.model.readings import histogram, total_reported
from kvmedic.model.reasons import Reason, Trait
from kvmedic.runbooks.branches import Advice, Evidence, Finding, Found, NoChange, Resize, Setting, Spent
from kvmedic.runbooks.preemption.cap import LEAST_GAIN, cap_of, cut_cap, is_capped
from kvmedic.runbooks.preemption.pressure import Case, most_of
from kvmedic.runbooks.preemption.queueing import find_queue, queue_needs_replicas, seats_taken
from kvmedic.runbooks.preemption.symptoms import (
    find_pressure,
    held_preemptions,
    pressured_case,
    pressured_replicas,
)
from kvmedic.verdict.served_in_time import WORST_STALLS


def capacity(evidence: Evidence) -> Found:
    """Most replicas are beyond the trigger, and more replicas alone help, or are the last that may.

    Either every other lever was asked, or requests wait for a full cache, which no setting makes larger.
    """
    if evidence.spent is not None:
        return _find_pressure_past_levers(evidence, may_scale=True)
    return queue_needs_replicas(evidence)


def add_replicas(evidence: Evidence, setting: Setting) -> Advice:
    """Return how many replicas there should be for a while, or why there should not be more."""
    if setting.scaling_failed:
        text = "more replicas were tried on this template and did not help"
        return NoChange(Reason.LEVER_EXHAUSTED, text)
    case = pressured_case(evidence)
    if not isinstance(case, Inconclusive):
        return more_replicas(evidence, seats_of(case, setting), setting)
    held = held_preemptions(evidence)
    if evidence.spent or isinstance(held, Inconclusive) or pressured_replicas(held, evidence):
        return NoChange(case.reason, case.message)
    # A full engine shows how many it holds, whatever their lengths are.
    return more_replicas(evidence, seats_taken(evidence), setting)


def all_levers_tried(evidence: Evidence) -> Found:
    """Most replicas are beyond the trigger, every lever was asked, and replicas may not be added."""
    return _find_pressure_past_levers(evidence, may_scale=False)


def divert_to_disaggregation(evidence: Evidence, setting: Setting) -> Advice:
    """Return that nothing is changed, and the numbers for serving prompts and answers apart."""
    case = pressured_case(evidence)
    if isinstance(case, Inconclusive):
        return NoChange(case.reason, case.message)
    return disaggregation(evidence, case, setting)


def _find_pressure_past_levers(evidence: Evidence, *, may_scale: bool) -> Found:
    spent = evidence.spent
    if spent is None or spent.may_scale is not may_scale:
        return None
    found = find_pressure(evidence, most_of)
    if found is None:
        found = find_queue(evidence)
    if found is None or isinstance(found, Inconclusive):
        return found
    return (*found, Finding("fleet", None, None, None, spent.message))


def is_worth_it(case: Case) -> bool:
    """Return whether goodput would gain more than noise if no request stalled any more."""
    return exp(min(case.strain.stalls_per_request, WORST_STALLS)) >= 1 + LEAST_GAIN


def passes_on(case: Case, setting: Setting) -> bool:
    """Return whether the trouble is real and no setting is left for it.

    Asked once every lever of the spec has declined, those of demand and those of supply alike. So it is
    where demand is capped as the lengths and the pool ask for, or was and it did not help. Where a cut that
    would help is not allowed, or cannot be made, or another lever previously failed, a person sees that;
    replicas are added instead only where the spec allows that.
    """
    if not is_worth_it(case):
        return False
    if Knob.MAX_NUM_SEQS in setting.exhausted or is_capped(case, setting):
        return True
    if setting.scale_out is None:
        return False
    advice = cut_cap(case, setting)
    harmless = isinstance(advice, NoChange) and Trait.CHEAP in advice.reason.traits
    return bool(setting.exhausted) or setting.supply.raise_failed_before or not harmless


def report_spent_levers(why: NoChange, setting: Setting, replicas: int) -> Spent:
    """Return what is known once no lever is left; `why` is what the levers say."""
    bound = setting.scale_out
    if bound is None:
        return Spent(f"{why.message}; scaleOut is not in spec.levers", may_scale=False)
    most = bound.limit(setting.before_scaling or replicas)
    if replicas >= most:
        text = f"{why.message}; {replicas} replicas are there and scaleOut allows {most}"
        return Spent(text, may_scale=False)
    if setting.scaling_failed:
        text = f"{why.message}; more replicas were tried on this template and did not help"
        return Spent(text, may_scale=False)
    return Spent(why.message, may_scale=True)


def more_replicas(evidence: Evidence, seats: int, setting: Setting) -> Resize | NoChange:
    """Return how many replicas there should be, within the lever's bounds, or why not more.

    As many as hold what runs and waits at once; `seats`: sequences that an engine holds.
    """
    bound, replicas, burn = setting.scale_out, evidence.replicas, evidence.burn
    engines = max(1, min((pod.engines for pod in burn.pods.values()), default=1))
    room = seats * engines
    demand = sum(total_reported(burn, each) for each in (Signal.RUNNING_MEAN, Signal.WAITING_MEAN))
    enough = max(replicas + 1, ceil(demand / room))
    need = (
        f"{demand:.0f} sequences run or wait at once and a replica has room for {room}, so {enough} replicas "
    )
    need += "would do"
    if bound is None:
        return NoChange(Reason.LEVER_NOT_ALLOWED, f"{need}: add scaleOut to spec.levers, or add them by hand")
    most = bound.limit(setting.before_scaling or replicas)
    if replicas >= most:
        text = f"{need}; {replicas} are there and scaleOut allows {most}"
        return NoChange(Reason.LEVER_AT_BOUND, text)
    desired = min(most, enough, replicas + bound.step)
    minutes = bound.restore_after.total_seconds() / 60
    return Resize(
        desired,
        Reason.REPLICAS_ADDED,
        f"{need}; {replicas} -> {desired} now (scaleOut allows {most}, {bound.step} at once); given back "
        f"after {minutes:.0f} minutes of calm, once fewer are predicted to carry the load",
    )


def seats_of(case: Case, setting: Setting) -> int:
    """Return how many sequences an engine holds at once: by its pool, and by its own cap."""
    room = max(1, cap_of(case))
    return room if setting.max_num_seqs is None else min(room, setting.max_num_seqs)


def disaggregation(evidence: Evidence, case: Case, setting: Setting) -> NoChange:
    """Return the advice to serve prompts and answers apart, with the numbers that speak for a split."""
    replicas, share = evidence.replicas, prefill_share(evidence.sizing)
    whole = replicas * (setting.gpus or 0)
    split = "this engine does not report how long it prefills; "
    if share is not None:
        split = f"prefill takes {share:.0%} and decode {1 - share:.0%} of the time that requests are served; "
        if whole >= 2:
            prefill = min(whole - 1, max(1, round(share * whole)))
            split += f"of {whole} GPUs that is {prefill} for prefill and {whole - prefill} for decode; "
    gpus = "" if setting.gpus is None else f" with {setting.gpus} GPU{'s' if setting.gpus > 1 else ''} each"
    return NoChange(
        Reason.CAPACITY_EXHAUSTED,
        f"open the runbook 'disaggregate prefill and decode': {split}"
        f"prompts of {case.prompt_tokens:.0f} and answers of {case.output_tokens:.0f} tokens on average; "
        f"{replicas} replicas{gpus}, room for {seats_of(case, setting)} sequences in each engine; "
        "more GPUs, a smaller KV cache per token, or fewer requests help too",
    )


def prefill_share(seen: Observation) -> float | None:
    """Return the share of requests' time on the engines that goes into prefill; None: not reported.

    Requests are decoded from their first token to their last.
    """
    totals = []
    for signal in (Signal.E2E_SECONDS, Signal.TIME_TO_FIRST_TOKEN_SECONDS, Signal.PREFILL_SECONDS):
        counted = [histogram(pod, signal) for pod in seen.pods.values()]
        known = [one.total for one in counted if one is not None]
        if not known or len(known) < len(counted):
            return None
        totals.append(sum(known))
    whole, first, prefill = totals
    return prefill / (prefill + max(0.0, whole - first)) if prefill > 0 else None
