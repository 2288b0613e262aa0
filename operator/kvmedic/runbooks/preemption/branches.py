"""Runbook "KV-cache OOM / preemption thrash": which branch applies, and what to do about it.

What users feel is the trigger: preemptions per finished request, answers that hang, and silence before the
first token. An engine that does not tell the last two is judged by the first alone. KV-cache usage is
reported beside them and alone decides nothing: it saw-tooths below 1 in thrash and reaches 0.97 on a healthy
replica (measured on vLLM 0.32.0, CPU build).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import ceil

from kvmedic.model.engine import Knob
from kvmedic.model.evidence import Inconclusive, Signal
from kvmedic.model.plan import Goal
from kvmedic.model.readings import Complete, complete, number_or_none
from kvmedic.model.reasons import Reason
from kvmedic.runbooks.branches import (
    Advice,
    Assignment,
    Branch,
    Evidence,
    Finding,
    Found,
    NoChange,
    Relief,
    RollBack,
    Setting,
    SettingAdvice,
)
from kvmedic.runbooks.node_health import (
    ENDS,
    GPU_SIGNS,
    THERMAL_SIGNS,
    device_memory,
    divert_to_gpu_fault,
    divert_to_host_memory,
    divert_to_thermal_emergency,
    gpu_fault,
    host_memory,
    is_of_interest,
    thermal_emergency,
)
from kvmedic.runbooks.preemption.cap import disaggregation, more_replicas, refuse_over_calm, seats_of
from kvmedic.runbooks.preemption.deploy import HISTORY, roll_back, running_it, since_deploy
from kvmedic.runbooks.preemption.levers import first_that_applies
from kvmedic.runbooks.preemption.memory_levers import lower_share
from kvmedic.runbooks.preemption.pressure import (
    CALM_SHARE,
    HELPFUL,
    NOW,
    REQUESTS,
    Case,
    most_of,
    size_fleet,
)
from kvmedic.runbooks.preemption.probation import find_harm, take_cap_back
from kvmedic.runbooks.preemption.queueing import (
    HELD_BY,
    WAITS,
    cap_too_low,
    find_queue,
    is_queued,
    queue_needs_replicas,
    raise_cap,
    seats_taken,
    waiting_replicas,
)

TRIGGER = frozenset({Signal.PREEMPTIONS_PER_REQUEST_HELD, Signal.PREEMPTIONS})
"""Needed of every replica to tell a calm fleet from a pressured one: the ratio, and the counter behind it,
which must not contradict it."""
CONTRAST = TRIGGER | {Signal.REQUESTS_FINISHED, Signal.KV_CACHE_USAGE_MEAN}
"""Needed of every replica to tell one pressured replica from calm peers, and these from idle ones."""
FELT = WAITS | {Signal.STALLS_PER_REQUEST_HELD}
"""What users feel, of the engines that tell it."""
SIZING = TRIGGER | FELT | NOW | REQUESTS | HELPFUL
CAP_SHARE, CAP_LEAST = 1 / 4, 2
"""Share and number of the replicas that must be pressured for a cap on sequences: a cap over what the calm
ones run costs them nothing. One alone is another branch's; of fewer than a quarter the cause is their own."""


def healthy(evidence: Evidence) -> Found:
    """No replica preempts, hangs or keeps users waiting beyond the trigger, and none ran out of memory.

    A replica that cannot be read is never taken for a calm one. A fleet without traffic is healthy.
    """
    if is_of_interest(evidence):
        return None
    held = _held_preemptions(evidence)
    if isinstance(held, Inconclusive):
        return held
    return None if _pressured_replicas(held, evidence) or waiting_replicas(evidence) else ()


def cap_harms(evidence: Evidence) -> Found:
    """Users are worse off than before a cap of ours, over an hour with as much work as then."""
    return None if evidence.probation is None else find_harm(evidence.probation, evidence.trigger)


def demand(evidence: Evidence) -> Found:
    """Several replicas preempt or hang beyond the trigger, and a lever may be left against it."""
    if evidence.spent is not None:
        return None
    return _pressure_on(evidence, lambda replicas: min(replicas, max(CAP_LEAST, ceil(CAP_SHARE * replicas))))


def _pressure_on(evidence: Evidence, enough: Callable[[int], int]) -> Found:
    """Return the pressured replicas where there are enough of them, and what sizing rests on is there."""
    held = _held_preemptions(evidence)
    if isinstance(held, Inconclusive):
        return held
    pressured = _pressured_replicas(held, evidence)
    if not pressured:
        return None
    if len(pressured) < enough(len(held)):
        why = "the others are calm, so a setting that all share is not the cause"
        return _partial(held, pressured, evidence, why)
    case = size_fleet(evidence, pressured)
    return case if isinstance(case, Inconclusive) else _findings(held, pressured, evidence)


def deploy_correlated(evidence: Evidence) -> Found:
    """Most replicas preempt beyond the trigger, and did not before the latest revision, at no lighter load.

    What a revision changed holds for all its replicas, so a minority of pressured ones has another cause; and
    so has the trouble of replicas that still run the revision before.
    """
    held = _held_preemptions(evidence)
    if isinstance(held, Inconclusive):
        return held
    pressured, running = _preempting_replicas(held, evidence), running_it(evidence)
    if not pressured or not running.issuperset(pressured):
        return None
    if len(pressured) < most_of(len(running)):
        return None
    found = since_deploy(evidence)
    return (*found, *_findings(held, pressured, evidence)) if isinstance(found, tuple) else found


def roll_back_or_right_size(evidence: Evidence, setting: Setting) -> Advice:
    """Return that the fleet goes back to its previous revision; what demand calls for where it may not."""
    advice = roll_back(evidence, setting)
    if isinstance(advice, RollBack):
        return advice
    instead = right_size(evidence, setting)
    if isinstance(instead, NoChange):
        return NoChange(advice.reason, f"{advice.message}; nor is there another remedy: {instead.message}")
    return replace(instead, message=f"{instead.message}; {advice.message}")


def one_replica(evidence: Evidence) -> Found:
    """One of several replicas preempts beyond the trigger; all others serve requests and are calm.

    A peer that serves nothing says nothing: the requests are led past it, and would be led past a new
    replica too.
    """
    held = _held_preemptions(evidence)
    if isinstance(held, Inconclusive):
        return held
    pressured = _preempting_replicas(held, evidence)
    if len(pressured) != 1 or len(held) == 1 or pressured != _pressured_replicas(held, evidence):
        return None
    found = complete(evidence.burn, CONTRAST)
    if isinstance(found, Inconclusive):
        return found
    limit = CALM_SHARE * evidence.trigger.preemptions_per_request
    peers = {name: one for name, one in found.items() if name != pressured[0]}
    idle = [name for name, one in peers.items() if one.numbers[Signal.REQUESTS_FINISHED] < 1]
    if idle:
        why = f"{', '.join(idle)} finished no request: see why, as a new replica may get none either"
        return _partial(held, pressured, evidence, why)
    rates = {name: _rate(one) for name, one in peers.items()}
    worst, uneasy = max(rates.values()), [name for name, rate in rates.items() if rate > limit]
    if uneasy:
        why = f"{', '.join(uneasy)} came near it too (over {limit:g}), so it is not that one alone"
        return _partial(held, pressured, evidence, why)
    told = f"{len(peers)} peers serve and have" if len(peers) > 1 else "other one serves and has"
    contrast = Finding("fleet", Signal.PREEMPTIONS, worst, limit, f"the {told} {worst:.2f} at most")
    return (*_findings(held, pressured, evidence), contrast)


def replace_replica(evidence: Evidence, setting: Setting) -> Advice:
    """Return that the pressured replica should be replaced, or why it should not."""
    found = one_replica(evidence)
    if found is None or isinstance(found, Inconclusive):
        reason = found.reason if found else Reason.PARTIAL_PRESSURE
        return NoChange(reason, found.message if found else "not one replica alone is pressured any more")
    pod = found[0].subject
    if setting.replacing_failed:
        return NoChange(
            Reason.LEVER_EXHAUSTED,
            f"a replica of this fleet was replaced for the same trouble and it did not help; look at what "
            f"leads requests to {pod}",
        )
    return Relief(pod, Reason.ONE_REPLICA_PRESSURED, f"{pod}: {found[0].text}; {found[-1].text}")


def right_size(evidence: Evidence, setting: Setting) -> SettingAdvice:
    """Return what the first allowed lever that applies would be set to, or why none applies.

    Where only some replicas are pressured that is a cap, and one that the calm ones are under.
    """
    held = _held_preemptions(evidence)
    if isinstance(held, Inconclusive):
        return NoChange(held.reason, held.message)
    pressured = _pressured_replicas(held, evidence)
    case = size_fleet(evidence, pressured)
    if isinstance(case, Inconclusive):
        return NoChange(case.reason, case.message)
    if len(pressured) >= most_of(len(held)):
        return _pass_on_queue(evidence, setting, first_that_applies(case, setting))
    caps = tuple(bound for bound in setting.levers if bound.knob is Knob.MAX_NUM_SEQS)
    advice = first_that_applies(case, replace(setting, levers=caps))
    if not isinstance(advice, Assignment):
        return advice
    calm = {name: pod for name, pod in evidence.burn.pods.items() if name not in pressured}
    return refuse_over_calm(advice, calm) or advice


def _pass_on_queue(evidence: Evidence, setting: Setting, advice: SettingAdvice) -> SettingAdvice:
    """Return advice that asks for more replicas where they may be added, no lever helps and users wait."""
    if not isinstance(advice, NoChange) or setting.scale_out is None or not is_queued(evidence):
        return advice
    return replace(advice, passes_on=True)


def capacity(evidence: Evidence) -> Found:
    """Most replicas are beyond the trigger, and more replicas alone help, or are the last that may.

    Either every other lever was asked, or requests wait for a full cache, which no setting makes larger.
    """
    if evidence.spent is not None:
        return _spent_levers(evidence, may_scale=True)
    return queue_needs_replicas(evidence)


def add_replicas(evidence: Evidence, setting: Setting) -> Advice:
    """Return how many replicas there should be for a while, or why there should not be more."""
    if setting.scaling_failed:
        text = "more replicas were tried on this template and did not help"
        return NoChange(Reason.LEVER_EXHAUSTED, text)
    case = pressured_case(evidence)
    if not isinstance(case, Inconclusive):
        return more_replicas(evidence, seats_of(case, setting), setting)
    held = _held_preemptions(evidence)
    if evidence.spent or isinstance(held, Inconclusive) or _pressured_replicas(held, evidence):
        return NoChange(case.reason, case.message)
    # A full engine tells by itself how many it holds, whatever their lengths are.
    return more_replicas(evidence, seats_taken(evidence), setting)


def all_levers_tried(evidence: Evidence) -> Found:
    """Most replicas are beyond the trigger, every lever was asked, and replicas may not be added."""
    return _spent_levers(evidence, may_scale=False)


def divert_to_disaggregation(evidence: Evidence, setting: Setting) -> Advice:
    """Return that nothing is changed, and the numbers for serving prompts and answers apart."""
    case = pressured_case(evidence)
    if isinstance(case, Inconclusive):
        return NoChange(case.reason, case.message)
    return disaggregation(evidence, case, setting)


def pressured_case(evidence: Evidence) -> Case | Inconclusive:
    """Return what sizing rests on for the replicas beyond the trigger, or what is missing."""
    held = _held_preemptions(evidence)
    if isinstance(held, Inconclusive):
        return held
    return size_fleet(evidence, _pressured_replicas(held, evidence) or waiting_replicas(evidence))


def _spent_levers(evidence: Evidence, *, may_scale: bool) -> Found:
    spent = evidence.spent
    if spent is None or spent.may_scale is not may_scale:
        return None
    found = _pressure_on(evidence, most_of)
    if found is None:
        found = find_queue(evidence)
    if found is None or isinstance(found, Inconclusive):
        return found
    return (*found, Finding("fleet", None, None, None, spent.message))


def _held_preemptions(evidence: Evidence) -> dict[str, float] | Inconclusive:
    """Return the preemptions per request that each replica held, by pod name."""
    found = complete(evidence.burn, TRIGGER)
    if isinstance(found, Inconclusive):
        return found
    return {name: one.numbers[Signal.PREEMPTIONS_PER_REQUEST_HELD] for name, one in found.items()}


def _preempting_replicas(held: dict[str, float], evidence: Evidence) -> tuple[str, ...]:
    limit = evidence.trigger.preemptions_per_request
    return tuple(name for name, value in held.items() if value > limit)


def _pressured_replicas(held: dict[str, float], evidence: Evidence) -> tuple[str, ...]:
    """Return the replicas that preempt beyond the trigger, or whose answers hang, as far as they tell."""
    preempting, limit = _preempting_replicas(held, evidence), evidence.trigger.stalls_per_request
    return tuple(name for name in held if name in preempting or _stalls(evidence, name) > limit)


def _stalls(evidence: Evidence, name: str) -> float:
    return number_or_none(evidence.burn.pods[name], Signal.STALLS_PER_REQUEST_HELD) or 0.0


def _rate(replica: Complete) -> float:
    """Return a replica's preemptions per request over the whole window, or at its best moment if more."""
    return max(replica.preemptions_per_request, replica.numbers[Signal.PREEMPTIONS_PER_REQUEST_HELD])


def _partial(
    held: dict[str, float], pressured: tuple[str, ...], evidence: Evidence, why: str
) -> Inconclusive:
    limit = evidence.trigger.preemptions_per_request
    preempting = _preempting_replicas(held, evidence)
    hot = ", ".join(f"{name} ({held[name]:.2f} per request)" for name in pressured if name in preempting)
    hang = ", ".join(
        f"{name} ({_describe_stalls(evidence, name)})" for name in pressured if name not in preempting
    )
    beyond = f"preempt beyond {limit:g} per request" if not hang else "are beyond the trigger"
    named = ", ".join(filter(None, (hot, hang)))
    text = f"{len(pressured)} of {len(held)} replicas {beyond}: {named}; {why}"
    return Inconclusive(Reason.PARTIAL_PRESSURE, text)


def _describe_stalls(evidence: Evidence, name: str) -> str:
    limit = evidence.trigger.stalls_per_request
    return f"{_stalls(evidence, name):.2f} long gaps between tokens per request, limit {limit:g}"


def _findings(held: dict[str, float], pressured: tuple[str, ...], evidence: Evidence) -> tuple[Finding, ...]:
    """Return each pressured replica, and how full their caches are: that corroborates and decides nothing."""
    limit, signal = evidence.trigger.preemptions_per_request, Signal.PREEMPTIONS_PER_REQUEST_HELD
    preempting, most = _preempting_replicas(held, evidence), evidence.trigger.stalls_per_request
    stalls = Signal.STALLS_PER_REQUEST_HELD
    found = tuple(
        Finding(name, signal, held[name], limit, f"{held[name]:.2f} preemptions per request, limit {limit:g}")
        if name in preempting
        else Finding(name, stalls, _stalls(evidence, name), most, _describe_stalls(evidence, name))
        for name in pressured
    )
    pods = [evidence.burn.pods[name] for name in pressured]
    usage = [each for pod in pods if (each := number_or_none(pod, Signal.KV_CACHE_USAGE_MEAN)) is not None]
    if not usage:
        return found
    mean, limit = sum(usage) / len(usage), evidence.trigger.kv_cache_usage_ratio
    text = f"KV-cache usage {mean:.2f} on average, {'over' if mean > limit else 'not over'} {limit:g}"
    return (*found, Finding("fleet", Signal.KV_CACHE_USAGE_MEAN, mean, limit, text))


NODE_HEALTH = "Runbook 1, step 1: node health"
OUT_OF_MEMORY = "Runbook 1, step 2: out of memory"

PREEMPTION_BRANCHES = (
    Branch(Reason.HEALTHY, healthy, None, "Runbook 1, symptoms", TRIGGER | FELT, ENDS),
    Branch(Reason.GPU_FAULT, gpu_fault, divert_to_gpu_fault, NODE_HEALTH, vitals=GPU_SIGNS),
    Branch(
        Reason.THERMAL_EMERGENCY,
        thermal_emergency,
        divert_to_thermal_emergency,
        NODE_HEALTH,
        vitals=THERMAL_SIGNS | GPU_SIGNS,
    ),
    Branch(Reason.HOST_OUT_OF_MEMORY, host_memory, divert_to_host_memory, OUT_OF_MEMORY, vitals=ENDS),
    Branch(
        Reason.CUDA_OUT_OF_MEMORY,
        device_memory,
        lower_share,
        OUT_OF_MEMORY,
        vitals=ENDS,
        goal=Goal.STEADINESS,
    ),
    Branch(Reason.CAP_HARMS, cap_harms, take_cap_back, "Runbook 1, step 3: cap demand", TRIGGER | FELT),
    Branch(
        Reason.DEPLOY_CORRELATED,
        deploy_correlated,
        roll_back_or_right_size,
        "Runbook 1: deploy-correlated",
        TRIGGER | HISTORY,
    ),
    Branch(
        Reason.ONE_REPLICA_PRESSURED, one_replica, replace_replica, "Runbook 1: one replica only", CONTRAST
    ),
    Branch(Reason.FLEET_WIDE_DEMAND, demand, right_size, "Runbook 1, step 3: cap demand", SIZING),
    Branch(Reason.CAP_TOO_LOW, cap_too_low, raise_cap, "Runbook 1, step 3: cap demand", SIZING | HELD_BY),
    Branch(Reason.CAPACITY_SHORT, capacity, add_replicas, "Runbook 1, step 5: capacity", SIZING | HELD_BY),
    Branch(
        Reason.CAPACITY_EXHAUSTED,
        all_levers_tried,
        divert_to_disaggregation,
        "Runbook 1, step 6: no lever left",
        SIZING,
    ),
)
"""First match wins; the order is the runbook's."""
