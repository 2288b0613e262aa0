"""Runbook "KV-cache OOM / preemption thrash": which branch applies, and what to do about it.

What users feel is the trigger: preemptions per finished request, answers that hang, and silence before the
first token. An engine that does not report the last two is judged by the first alone. KV-cache usage is
reported beside them and alone decides nothing: it saw-tooths below 1 in thrash and reaches 0.97 on a healthy
replica (measured on vLLM 0.32.0, CPU build).
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil

from kvmedic.model.engine import Knob
from kvmedic.model.evidence import Inconclusive, Signal
from kvmedic.model.plan import Goal
from kvmedic.model.readings import gather_values
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
from kvmedic.runbooks.preemption.cap import refuse_over_calm
from kvmedic.runbooks.preemption.deploy_correlation import (
    HISTORY,
    find_updated_replicas,
    roll_back,
    since_deploy,
)
from kvmedic.runbooks.preemption.levers import first_that_applies
from kvmedic.runbooks.preemption.memory_levers import lower_share
from kvmedic.runbooks.preemption.pressure import CALM_SHARE, HELPFUL, NOW, REQUESTS, most_of, size_fleet
from kvmedic.runbooks.preemption.probation import find_harm, take_cap_back
from kvmedic.runbooks.preemption.queueing import HELD_BY, cap_too_low, is_queued, raise_cap
from kvmedic.runbooks.preemption.scale_out import (
    add_replicas,
    all_levers_tried,
    capacity,
    divert_to_disaggregation,
)
from kvmedic.runbooks.preemption.symptoms import (
    FELT,
    TRIGGER,
    find_pressure,
    held_preemptions,
    partial_pressure,
    preempting_replicas,
    preemption_rate,
    pressure_findings,
    pressured_replicas,
    waiting_replicas,
)

CONTRAST = TRIGGER | {Signal.REQUESTS_FINISHED, Signal.KV_CACHE_USAGE_MEAN}
"""Needed of every replica to distinguish one pressured replica from calm peers, and these from idle ones."""
SIZING = TRIGGER | FELT | NOW | REQUESTS | HELPFUL
CAP_SHARE, CAP_LEAST = 1 / 4, 2
"""Share and number of the replicas that must be pressured for a cap on sequences: a cap over what the calm
ones run costs them nothing. One alone is another branch's; of fewer than a quarter the cause is their own."""


def find_no_pressure(evidence: Evidence) -> Found:
    """No replica preempts, hangs or keeps users waiting beyond the trigger, and none ran out of memory.

    A replica that cannot be read is never taken for a calm one. A fleet without traffic is healthy.
    """
    if is_of_interest(evidence):
        return None
    held = held_preemptions(evidence)
    if isinstance(held, Inconclusive):
        return held
    return None if pressured_replicas(held, evidence) or waiting_replicas(evidence) else ()


def cap_harms(evidence: Evidence) -> Found:
    """Users are worse off than before a cap of ours, over an hour with as much work as then."""
    return None if evidence.probation is None else find_harm(evidence.probation, evidence.trigger)


def demand(evidence: Evidence) -> Found:
    """Several replicas preempt or hang beyond the trigger, and a lever may be left against it."""
    if evidence.spent is not None:
        return None
    return find_pressure(evidence, lambda replicas: min(replicas, max(CAP_LEAST, ceil(CAP_SHARE * replicas))))


def deploy_correlated(evidence: Evidence) -> Found:
    """Most replicas preempt beyond the trigger, and did not before the latest revision, at no lighter load.

    What a revision changed holds for all its replicas, so a minority of pressured ones has another cause; and
    so has the trouble of replicas that still run the revision before.
    """
    held = held_preemptions(evidence)
    if isinstance(held, Inconclusive):
        return held
    pressured, running = preempting_replicas(held, evidence), find_updated_replicas(evidence)
    if not pressured or not running.issuperset(pressured):
        return None
    if len(pressured) < most_of(len(running)):
        return None
    found = since_deploy(evidence)
    return (*found, *pressure_findings(held, pressured, evidence)) if isinstance(found, tuple) else found


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
    held = held_preemptions(evidence)
    if isinstance(held, Inconclusive):
        return held
    pressured = preempting_replicas(held, evidence)
    if len(pressured) != 1 or len(held) == 1 or pressured != pressured_replicas(held, evidence):
        return None
    found = gather_values(evidence.burn, CONTRAST)
    if isinstance(found, Inconclusive):
        return found
    limit = CALM_SHARE * evidence.trigger.preemptions_per_request
    peers = {name: one for name, one in found.items() if name != pressured[0]}
    idle = [name for name, one in peers.items() if one.numbers[Signal.REQUESTS_FINISHED] < 1]
    if idle:
        why = f"{', '.join(idle)} finished no request: see why, as a new replica may get none either"
        return partial_pressure(held, pressured, evidence, why)
    rates = {name: preemption_rate(one) for name, one in peers.items()}
    worst, uneasy = max(rates.values()), [name for name, rate in rates.items() if rate > limit]
    if uneasy:
        why = f"{', '.join(uneasy)} came near it too (over {limit:g}), so it is not that one alone"
        return partial_pressure(held, pressured, evidence, why)
    others = f"{len(peers)} peers serve and have" if len(peers) > 1 else "other one serves and has"
    contrast = Finding("fleet", Signal.PREEMPTIONS, worst, limit, f"the {others} {worst:.2f} at most")
    return (*pressure_findings(held, pressured, evidence), contrast)


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
    held = held_preemptions(evidence)
    if isinstance(held, Inconclusive):
        return NoChange(held.reason, held.message)
    pressured = pressured_replicas(held, evidence)
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


NODE_HEALTH = "Runbook 1, step 1: node health"
OUT_OF_MEMORY = "Runbook 1, step 2: out of memory"

PREEMPTION_BRANCHES = (
    Branch(Reason.HEALTHY, find_no_pressure, None, "Runbook 1, symptoms", TRIGGER | FELT, ENDS),
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
        goal=Goal.STAYS_UP,
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
