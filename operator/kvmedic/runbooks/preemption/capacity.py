"""Demand is capped and no setting is left: how many more replicas, and what a person may do without any.

More replicas cost GPUs for as long as they are there, so they come last and for a while, however early
`scaleOut` stands among the levers.
"""

from __future__ import annotations

from math import ceil, exp, inf

from kvmedic.model.engine import Knob
from kvmedic.model.evidence import Observation, Signal
from kvmedic.model.readings import histogram, total_of_told
from kvmedic.model.reasons import Reason
from kvmedic.runbooks.branches import Evidence, NoChange, Resize, Setting, Spent
from kvmedic.runbooks.preemption.cap import LEAST_GAIN, cap_of, cut_cap
from kvmedic.runbooks.preemption.pressure import Case
from kvmedic.verdict.sizing import MOST_STALLS

NEAR_THE_CAP = 0.1
"""Relative difference up to which a given cap counts as the computed one: two looks at one fleet give caps
that differ by as much (`docs/decisions/0010-approvals-are-objects.md`)."""

NO_TROUBLE = frozenset({Reason.PREEMPTIONS_CHEAP, Reason.GAIN_WITHIN_NOISE, Reason.CAP_WITHOUT_EFFECT})
"""What is said of a cut where the fleet is hardly worse off for its preemptions."""


def is_capped(case: Case, setting: Setting) -> bool:
    """Return whether no more sequences are allowed at once than the KV cache holds.

    More than the given cap were seen running where it is not yet, or not at all, in effect.
    """
    given, wanted = setting.max_num_seqs, cap_of(case)
    seen = case.strain.running_mean if case.running_max == inf else case.running_max
    if given is None or seen > given:
        return False
    return given <= max(wanted + 1, wanted * (1 + NEAR_THE_CAP))


def is_worth_it(case: Case) -> bool:
    """Return whether goodput would gain more than noise if no request stalled any more."""
    return exp(min(case.strain.stalls_per_request, MOST_STALLS)) >= 1 + LEAST_GAIN


def passes_on(case: Case, setting: Setting) -> bool:
    """Return whether the trouble is real and no setting is left for it.

    Asked once every lever of the spec has declined, those of demand and those of supply alike. So it is
    where demand is capped as the lengths and the pool ask for, or was and it did not help. Where a cut that
    would help is not allowed, or cannot be made, or another lever was tried in vain, a person is told so;
    replicas are added instead only where the spec allows that.
    """
    if not is_worth_it(case):
        return False
    if Knob.MAX_NUM_SEQS in setting.exhausted or is_capped(case, setting):
        return True
    if setting.scale_out is None:
        return False
    advice = cut_cap(case, setting)
    harmless = isinstance(advice, NoChange) and advice.reason in NO_TROUBLE
    in_vain = bool(setting.exhausted) or setting.supply.raised_in_vain
    return in_vain or not harmless


def spent_by(why: NoChange, setting: Setting, replicas: int) -> Spent:
    """Return what is known once no lever is left.

    Args:
        why: what the levers say.
        setting: the present setting.
        replicas: of the fleet.
    """
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


def more_replicas(evidence: Evidence, case: Case, setting: Setting) -> Resize | NoChange:
    """Return how many replicas there should be, within the lever's bounds, or why not more.

    As many as hold what runs and waits at once, at the computed cap; one where nobody can tell.
    """
    bound, replicas = setting.scale_out, evidence.replicas
    if bound is None:
        return NoChange(Reason.LEVER_NOT_ALLOWED, "more replicas would help; add scaleOut to spec.levers")
    most = bound.limit(setting.before_scaling or replicas)
    if replicas >= most:
        return NoChange(Reason.LEVER_AT_BOUND, f"{replicas} replicas are there and scaleOut allows {most}")
    room = seats_of(case, setting) * _engines(evidence.burn)
    demand = sum(total_of_told(evidence.burn, each) for each in (Signal.RUNNING_MEAN, Signal.WAITING_MEAN))
    enough = max(replicas + 1, ceil(demand / room))
    wanted = min(most, enough, replicas + bound.step)
    minutes = bound.restore_after.total_seconds() / 60
    return Resize(
        wanted,
        Reason.REPLICAS_ADDED,
        f"{demand:.0f} sequences run or wait at once and a replica has room for {room}, so {enough} replicas "
        f"would do; {replicas} -> {wanted} now (scaleOut allows {most}, {bound.step} at once); given back "
        f"after {minutes:.0f} minutes of calm, once fewer are predicted to carry the load",
    )


def seats_of(case: Case, setting: Setting) -> int:
    """Return how many sequences an engine holds at once: by its pool, and by its own cap."""
    room = max(1, cap_of(case))
    return room if setting.max_num_seqs is None else min(room, setting.max_num_seqs)


def disaggregation(evidence: Evidence, case: Case, setting: Setting) -> NoChange:
    """Return the advice to serve prompts and answers apart, with the numbers that speak for a split."""
    replicas = evidence.replicas
    lengths = f"prompts of {case.prompt_tokens:.0f} and answers of {case.output_tokens:.0f} tokens on average"
    gpus = "" if setting.gpus is None else f" with {setting.gpus} GPU{'s' if setting.gpus > 1 else ''} each"
    return NoChange(
        Reason.CAPACITY_EXHAUSTED,
        f"open the runbook 'disaggregate prefill and decode': {_shares(evidence.sizing, setting, replicas)}"
        f"{lengths}; {replicas} replicas{gpus}, room for {seats_of(case, setting)} sequences in each engine; "
        "more GPUs, a smaller KV cache per token, or fewer requests help too",
    )


def _shares(sizing: Observation, setting: Setting, replicas: int) -> str:
    """Return how requests' time on the engines divides, and the GPUs with it, as the start of a clause."""
    share = prefill_share(sizing)
    if share is None:
        return "this engine does not tell how long it prefills; "
    told = f"prefill takes {share:.0%} and decode {1 - share:.0%} of the time that requests are served; "
    gpus = replicas * (setting.gpus or 0)
    if gpus < 2:
        return told
    prefill = min(gpus - 1, max(1, round(share * gpus)))
    return f"{told}of {gpus} GPUs that is {prefill} for prefill and {gpus - prefill} for decode; "


def prefill_share(seen: Observation) -> float | None:
    """Return the share of requests' time on the engines that goes into prefill; None where nobody tells.

    Requests are decoded from their first token to their last.
    """
    totals = [_seconds(seen, signal) for signal in _TIMES]
    whole, first, prefill = totals
    if whole is None or first is None or prefill is None or prefill <= 0:
        return None
    return prefill / (prefill + max(0.0, whole - first))


_TIMES = (Signal.E2E_SECONDS, Signal.TIME_TO_FIRST_TOKEN_SECONDS, Signal.PREFILL_SECONDS)


def _seconds(seen: Observation, signal: Signal) -> float | None:
    found = [histogram(pod, signal) for pod in seen.pods.values()]
    known = [one.total for one in found if one is not None]
    return sum(known) if known and len(known) == len(found) else None


def _engines(seen: Observation) -> int:
    return max(1, min((pod.engines for pod in seen.pods.values()), default=1))
