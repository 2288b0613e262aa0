"""A look at a fleet without an open run: evidence, diagnosis, plan. Nothing is changed here."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import datetime, timedelta

from kvmedic.core.diagnosis import Diagnosed, Diagnosis, Evidence, Inconclusive, NoChange, diagnose
from kvmedic.core.evidence import Measured, Observation, Signal
from kvmedic.core.fleet import Pod
from kvmedic.core.plan import ObjectRef, Plan
from kvmedic.core.policy import Policy
from kvmedic.core.preconditions import refusal
from kvmedic.core.reasons import Reason
from kvmedic.core.record import LastGood
from kvmedic.core.resource import Resource
from kvmedic.core.run import Outcome
from kvmedic.core.verdict import Baseline, baseline_of
from kvmedic.engines import ENGINES
from kvmedic.ports import Metrics, View
from kvmedic.runbooks import RUNBOOKS
from kvmedic.runbooks.planning import Fault, Workload, plan_of, setting, workload_of


@dataclass(frozen=True, slots=True)
class Survey:
    """What one look at a fleet found."""

    view: View
    evidence: Evidence
    diagnosis: Diagnosis
    runbook: str
    plan: Plan | None
    obstacle: Outcome | None
    """Why there is no plan although a branch applies, or why the plan cannot be carried out."""

    @property
    def burn(self) -> Observation:
        """Return the look over the trigger's window."""
        return self.evidence.burn

    def baseline(self) -> Baseline | Inconclusive:
        """Return the fleet as it is now, to be compared with later."""
        return baseline_of(self.evidence.burn, sum(pod.restarts for pod in expected(self.view)))

    def blocks(self) -> int | None:
        """Return the smallest pool of the replicas (usable blocks), or None when one is not known."""
        pools = [readings.pool for readings in self.evidence.burn.pods.values()]
        known = [pool.value.blocks for pool in pools if isinstance(pool, Measured)]
        return min(known) if known and len(known) == len(pools) else None


def expected(view: View) -> tuple[Pod, ...]:
    """Return the pods that should serve: every one that is not terminating, by name."""
    return tuple(sorted((p for p in view.fleet.pods if not p.terminating), key=lambda p: p.name))


async def gather(policy: Policy, namespace: str, view: View, metrics: Metrics) -> Evidence:
    """Return the evidence for one target: two looks at the same replicas."""
    pods = expected(view)
    windows = policy.windows
    burn, sizing = await asyncio.gather(
        metrics.observe(policy.source, pods, namespace, windows.trigger, windows.hold),
        metrics.observe(policy.source, pods, namespace, windows.sizing, timedelta(0)),
    )
    return Evidence(burn, sizing, policy.trigger)


async def survey(resource: Resource, policy: Policy, view: View, metrics: Metrics) -> Survey:
    """Return what a look at the target finds; the plan is made, never carried out."""
    evidence = await gather(policy, resource.namespace, view, metrics)
    runbook, diagnosis = judged(policy, evidence)
    found = Survey(view, evidence, diagnosis, runbook, None, None)
    return _planned(found, resource, policy)


def judged(policy: Policy, evidence: Evidence) -> tuple[str, Diagnosis]:
    """Return the first runbook that has something to say, and what it says."""
    for runbook in policy.runbooks:
        diagnosis = diagnose(RUNBOOKS[runbook], evidence)
        if isinstance(diagnosis, Inconclusive) or diagnosis.branch.then is not None:
            break
    return str(runbook), diagnosis


def _planned(found: Survey, resource: Resource, policy: Policy) -> Survey:
    """Return the survey with the plan that its diagnosis leads to, or with what stands in the way."""
    diagnosis, fleet = found.diagnosis, found.view.fleet
    if isinstance(diagnosis, Inconclusive) or diagnosis.branch.then is None:
        return found
    workload = engine_of(found.view, policy)
    if isinstance(workload, Fault):
        return _hindered(found, workload.reason, workload.message)
    tried = resource.record.levers if resource.record else ()
    advice = diagnosis.branch.then(found.evidence, setting(workload, policy.levers, tried))
    if isinstance(advice, NoChange):
        return _hindered(found, advice.reason, advice.message)
    plan = plan_of(workload, advice, resource.generation)
    if isinstance(plan, Fault):
        return _hindered(found, plan.reason, plan.message)
    refused = refusal(fleet)
    obstacle = Outcome(refused.reason, refused.message) if refused else None
    return Survey(found.view, found.evidence, diagnosis, found.runbook, plan, obstacle)


def engine_of(view: View, policy: Policy) -> Workload | Fault:
    """Return the engine in the target's pod template, or why it cannot be told."""
    target = ObjectRef(policy.target.kind, policy.target.name)
    return workload_of(target, view.fleet.uid, view.template, policy.target.container, ENGINES)


def _hindered(found: Survey, reason: Reason, message: str) -> Survey:
    return Survey(found.view, found.evidence, found.diagnosis, found.runbook, None, Outcome(reason, message))


def healthy_revision(found: Survey, policy: Policy, now: datetime) -> LastGood | None:
    """Return the fleet's revision as a good one, when it is settled and proved healthy under traffic."""
    fleet = found.view.fleet
    healthy = isinstance(found.diagnosis, Diagnosed) and found.diagnosis.reason is Reason.HEALTHY
    one_revision = all(pod.revision == fleet.revision for pod in fleet.pods)
    if not healthy or not one_revision or not fleet.observed or fleet.ready != fleet.replicas:
        return None
    finished = [pod.number(Signal.REQUESTS_FINISHED) for pod in found.evidence.burn.pods.values()]
    if not finished or not all(isinstance(count, Measured) and count.value >= 1 for count in finished):
        return None
    workload = engine_of(found.view, policy)
    flags = {} if isinstance(workload, Fault) else workload.given_flags()
    return LastGood(fleet.revision, flags, fleet.replicas, found.blocks(), now)
