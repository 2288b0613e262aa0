"""Runbook "KV-cache OOM / preemption thrash": which branch applies, and what to do about it.

Preemptions per finished request are the trigger. KV-cache usage is reported beside them and decides
nothing: it saw-tooths below 1 in thrash and reaches 0.97 on a healthy replica (measured on vLLM
0.32.0, CPU build).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from kvmedic.model.evidence import Inconclusive, PodReadings, Signal
from kvmedic.model.plan import Goal
from kvmedic.model.readings import Complete, complete, number_or_none
from kvmedic.model.reasons import Reason
from kvmedic.runbooks.branches import (
    Advice,
    Branch,
    Evidence,
    Finding,
    NoChange,
    Relief,
    RollBack,
    Setting,
    SettingAdvice,
    Spent,
)
from kvmedic.runbooks.fleet_plans import cap_over_calm, enough_for_a_cap, most_of
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
from kvmedic.runbooks.preemption.cap import disaggregation, more_replicas
from kvmedic.runbooks.preemption.deploy import HISTORY, roll_back, running_it, since_deploy
from kvmedic.runbooks.preemption.levers import first_that_applies
from kvmedic.runbooks.preemption.memory_levers import lower_share
from kvmedic.runbooks.preemption.pressure import CALM_SHARE, HELPFUL, NOW, REQUESTS, Case, size_fleet

TRIGGER = frozenset({Signal.PREEMPTIONS_PER_REQUEST_HELD, Signal.PREEMPTIONS})
"""Needed of every replica to tell a calm fleet from a pressured one: the ratio, and the counter behind it,
which must not contradict it."""
CONTRAST = TRIGGER | {Signal.PREEMPTIONS, Signal.REQUESTS_FINISHED, Signal.KV_CACHE_USAGE_MEAN}
"""Needed of every replica to tell one pressured replica from calm peers, and these from idle ones."""


SHARED = "the others are calm, so a setting that all share is not the cause"


def healthy(evidence: Evidence) -> tuple[Finding, ...] | Inconclusive | None:
    """No replica preempts beyond the trigger, and none ran out of memory inside its window.

    A replica that cannot be read is never taken for a calm one. A fleet without traffic is healthy.
    """
    if is_of_interest(evidence):
        return None
    held = _held_preemptions(evidence)
    if isinstance(held, Inconclusive):
        return held
    return None if _pressured_replicas(held, evidence) else ()


def demand(evidence: Evidence) -> tuple[Finding, ...] | Inconclusive | None:
    """Several replicas preempt beyond the trigger, and a lever may be left against it."""
    return _beyond(evidence, enough_for_a_cap) if evidence.spent is None else None


def fleet_wide(evidence: Evidence) -> tuple[Finding, ...] | Inconclusive | None:
    """Most replicas preempt beyond the trigger: more runs at once than the KV cache holds."""
    return _beyond(evidence, most_of)


def _beyond(evidence: Evidence, enough: Callable[[int], int]) -> tuple[Finding, ...] | Inconclusive | None:
    held = _held_preemptions(evidence)
    if isinstance(held, Inconclusive):
        return held
    pressured = _pressured_replicas(held, evidence)
    if not pressured:
        return None
    if len(pressured) < enough(len(held)):
        return _partial(held, pressured, evidence, SHARED)
    case = size_fleet(evidence, pressured)
    return case if isinstance(case, Inconclusive) else _findings(held, pressured, evidence)


def deploy_correlated(evidence: Evidence) -> tuple[Finding, ...] | Inconclusive | None:
    """Most replicas preempt beyond the trigger, and did not before the latest revision, at no lighter load.

    What a revision changed holds for all its replicas, so a minority of pressured ones has another cause; and
    so has the trouble of replicas that still run the revision before.
    """
    held = _held_preemptions(evidence)
    if isinstance(held, Inconclusive):
        return held
    pressured, running = _pressured_replicas(held, evidence), running_it(evidence)
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


def one_replica(evidence: Evidence) -> tuple[Finding, ...] | Inconclusive | None:
    """One of several replicas preempts beyond the trigger; all others serve requests and are calm.

    A peer that serves nothing says nothing: the requests are led past it, and would be led past a new
    replica too.
    """
    held = _held_preemptions(evidence)
    if isinstance(held, Inconclusive):
        return held
    pressured = _pressured_replicas(held, evidence)
    if len(pressured) != 1 or len(held) == 1:
        return None
    found = complete(evidence.burn, CONTRAST)
    if isinstance(found, Inconclusive):
        return found
    doubt = _crowd(found, pressured[0], evidence)
    if doubt:
        return _partial(held, pressured, evidence, doubt)
    worst = max(_rate(one) for name, one in found.items() if name != pressured[0])
    limit = CALM_SHARE * evidence.trigger.preemptions_per_request
    peers = f"{len(held) - 1} peers serve and have" if len(held) > 2 else "other one serves and has"
    calm = f"the {peers} {worst:.2f} at most"
    contrast = Finding("fleet", Signal.PREEMPTIONS, worst, limit, calm)
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
    case = pressured_case(evidence)
    if isinstance(case, Inconclusive):
        return NoChange(case.reason, case.message)
    calm, replicas = _calm_replicas(evidence), len(evidence.burn.pods)
    if replicas - len(calm) >= most_of(replicas):
        return first_that_applies(case, setting)
    return cap_over_calm(case, setting, calm)


def _calm_replicas(evidence: Evidence) -> Mapping[str, PodReadings]:
    """Return the replicas that do not preempt beyond the trigger."""
    held = _held_preemptions(evidence)
    pressured = frozenset(() if isinstance(held, Inconclusive) else _pressured_replicas(held, evidence))
    return {name: readings for name, readings in evidence.burn.pods.items() if name not in pressured}


def capacity(evidence: Evidence) -> tuple[Finding, ...] | Inconclusive | None:
    """Most replicas preempt beyond the trigger, every other lever was asked, and replicas may be added."""
    spent = evidence.spent
    return _spent_levers(evidence, spent) if spent is not None and spent.may_scale else None


def add_replicas(evidence: Evidence, setting: Setting) -> Advice:
    """Return how many replicas there should be for a while, or why there should not be more."""
    case = pressured_case(evidence)
    if isinstance(case, Inconclusive):
        return NoChange(case.reason, case.message)
    return more_replicas(evidence, case, setting)


def all_levers_tried(evidence: Evidence) -> tuple[Finding, ...] | Inconclusive | None:
    """Most replicas preempt beyond the trigger, every lever was asked, and replicas may not be added."""
    spent = evidence.spent
    return _spent_levers(evidence, spent) if spent is not None and not spent.may_scale else None


def divert_to_disaggregation(evidence: Evidence, setting: Setting) -> Advice:
    """Return that nothing is changed, and the numbers for serving prompts and answers apart."""
    case = pressured_case(evidence)
    if isinstance(case, Inconclusive):
        return NoChange(case.reason, case.message)
    return disaggregation(evidence, case, setting)


def pressured_case(evidence: Evidence) -> Case | Inconclusive:
    """Return what sizing rests on for the replicas beyond the trigger, or what is missing."""
    held = _held_preemptions(evidence)
    return (
        held if isinstance(held, Inconclusive) else size_fleet(evidence, _pressured_replicas(held, evidence))
    )


def _spent_levers(evidence: Evidence, spent: Spent) -> tuple[Finding, ...] | Inconclusive | None:
    found = fleet_wide(evidence)
    if found is None or isinstance(found, Inconclusive):
        return found
    return (*found, Finding("fleet", None, None, None, spent.message))


def _held_preemptions(evidence: Evidence) -> dict[str, float] | Inconclusive:
    """Return the preemptions per request that each replica held, by pod name."""
    found = complete(evidence.burn, TRIGGER)
    if isinstance(found, Inconclusive):
        return found
    return {name: one.numbers[Signal.PREEMPTIONS_PER_REQUEST_HELD] for name, one in found.items()}


def _pressured_replicas(held: dict[str, float], evidence: Evidence) -> tuple[str, ...]:
    limit = evidence.trigger.preemptions_per_request
    return tuple(name for name, value in held.items() if value > limit)


def _crowd(found: Mapping[str, Complete], pressured: str, evidence: Evidence) -> str:
    """Return why the peers of a pressured replica are no calm ones; empty where they are."""
    limit = CALM_SHARE * evidence.trigger.preemptions_per_request
    peers = {name: one for name, one in found.items() if name != pressured}
    idle = [name for name, one in peers.items() if one.numbers[Signal.REQUESTS_FINISHED] < 1]
    if idle:
        return f"{', '.join(idle)} finished no request: see why, as a new replica may get none either"
    uneasy = [name for name, one in peers.items() if _rate(one) > limit]
    if uneasy:
        return f"{', '.join(uneasy)} came near it too (over {limit:g}), so it is not that one alone"
    return ""


def _rate(replica: Complete) -> float:
    """Return a replica's preemptions per request over the whole window, or at its best moment if more."""
    return max(replica.preemptions_per_request, replica.numbers[Signal.PREEMPTIONS_PER_REQUEST_HELD])


def _partial(
    held: dict[str, float], pressured: tuple[str, ...], evidence: Evidence, why: str
) -> Inconclusive:
    limit = evidence.trigger.preemptions_per_request
    hot = ", ".join(f"{name} ({held[name]:.2f} per request)" for name in pressured)
    return Inconclusive(
        Reason.PARTIAL_PRESSURE,
        f"{len(pressured)} of {len(held)} replicas preempt beyond {limit:g} per request: {hot}; {why}",
    )


def _findings(held: dict[str, float], pressured: tuple[str, ...], evidence: Evidence) -> tuple[Finding, ...]:
    limit = evidence.trigger.preemptions_per_request
    preempting = tuple(
        Finding(
            name,
            Signal.PREEMPTIONS_PER_REQUEST_HELD,
            held[name],
            limit,
            f"{held[name]:.2f} preemptions per request, limit {limit:g}",
        )
        for name in pressured
    )
    return preempting + _usage(pressured, evidence)


def _usage(pressured: tuple[str, ...], evidence: Evidence) -> tuple[Finding, ...]:
    """Return how full the pressured replicas' caches are; it corroborates and decides nothing."""
    pods = [evidence.burn.pods[name] for name in pressured]
    found = [usage for pod in pods if (usage := number_or_none(pod, Signal.KV_CACHE_USAGE_MEAN)) is not None]
    mean, limit = sum(found) / len(found), evidence.trigger.kv_cache_usage_ratio
    text = f"KV-cache usage {mean:.2f} on average, {'over' if mean > limit else 'not over'} {limit:g}"
    return (Finding("fleet", Signal.KV_CACHE_USAGE_MEAN, mean, limit, text),)


PREEMPTION_BRANCHES = (
    Branch(
        Reason.HEALTHY,
        section="Runbook 1, symptoms",
        signals=TRIGGER,
        when=healthy,
        then=None,
        vitals=ENDS,
    ),
    Branch(
        Reason.GPU_FAULT,
        section="Runbook 1, step 1: node health",
        signals=frozenset(),
        when=gpu_fault,
        then=divert_to_gpu_fault,
        vitals=GPU_SIGNS,
    ),
    Branch(
        Reason.THERMAL_EMERGENCY,
        section="Runbook 1, step 1: node health",
        signals=frozenset(),
        when=thermal_emergency,
        then=divert_to_thermal_emergency,
        vitals=THERMAL_SIGNS | GPU_SIGNS,
    ),
    Branch(
        Reason.HOST_OUT_OF_MEMORY,
        section="Runbook 1, step 2: out of memory",
        signals=frozenset(),
        when=host_memory,
        then=divert_to_host_memory,
        vitals=ENDS,
    ),
    Branch(
        Reason.CUDA_OUT_OF_MEMORY,
        section="Runbook 1, step 2: out of memory",
        signals=frozenset(),
        when=device_memory,
        then=lower_share,
        vitals=ENDS,
        goal=Goal.STEADINESS,
    ),
    Branch(
        Reason.DEPLOY_CORRELATED,
        section="Runbook 1: deploy-correlated",
        signals=TRIGGER | HISTORY,
        when=deploy_correlated,
        then=roll_back_or_right_size,
    ),
    Branch(
        Reason.ONE_REPLICA_PRESSURED,
        section="Runbook 1: one replica only",
        signals=CONTRAST,
        when=one_replica,
        then=replace_replica,
    ),
    Branch(
        Reason.FLEET_WIDE_DEMAND,
        section="Runbook 1, step 3: cap demand",
        signals=TRIGGER | NOW | REQUESTS | HELPFUL,
        when=demand,
        then=right_size,
    ),
    Branch(
        Reason.CAPACITY_SHORT,
        section="Runbook 1, step 5: capacity",
        signals=TRIGGER | NOW | REQUESTS | HELPFUL,
        when=capacity,
        then=add_replicas,
    ),
    Branch(
        Reason.CAPACITY_EXHAUSTED,
        section="Runbook 1, step 6: no lever left",
        signals=TRIGGER | NOW | REQUESTS | HELPFUL,
        when=all_levers_tried,
        then=divert_to_disaggregation,
    ),
)
"""First match wins; the order is the runbook's."""
