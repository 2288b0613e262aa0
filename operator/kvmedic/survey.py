"""A look at a fleet without an open run: evidence, diagnosis, plan. Nothing is changed here."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import datetime, timedelta

from kvmedic.core.diagnosis import Diagnosed, Diagnosis, Evidence, Inconclusive, NoChange, diagnose
from kvmedic.core.evidence import Look, Measured, Observation, Signal
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
from kvmedic.manifests.proposals import Proposal
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
    proposal: Proposal | None = None
    """What to give to the owner of the target, who makes the change instead of us."""

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
    """Return what a look at the target finds; the plan is made, never carried out.

    A glance at the triggers comes first: most of what a source computes for a whole look is
    histograms, and a calm fleet needs none of them.
    """
    glanced = await _glance(resource, policy, view, metrics)
    return glanced or await examine(resource, policy, view, metrics)


async def examine(resource: Resource, policy: Policy, view: View, metrics: Metrics) -> Survey:
    """Return what a whole look at the target finds, however calm it is."""
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


async def _glance(resource: Resource, policy: Policy, view: View, metrics: Metrics) -> Survey | None:
    """Return the survey where the first branch of each runbook decides, or None where more is needed.

    A runbook's first branch tells a calm fleet from any other, or says what it cannot see; either way
    no later branch is asked, so that a whole look would find the same.
    """
    firsts = [(runbook, RUNBOOKS[runbook][0]) for runbook in policy.runbooks]
    signals = frozenset[Signal]().union(*(branch.signals for _, branch in firsts), _proof(resource, view))
    asked = Look(policy.windows.trigger, policy.windows.hold, signals)
    seen = await metrics.look(policy.source, expected(view), resource.namespace, asked)
    evidence = Evidence(seen, seen, policy.trigger)
    for runbook, branch in firsts:
        match branch.when(evidence):
            case None:
                return None
            case Inconclusive() as unknown:
                return Survey(view, evidence, unknown, str(runbook), None, None)
            case findings:
                calm = Diagnosed(branch, findings)
    return Survey(view, evidence, calm, str(runbook), None, None)


def _proof(resource: Resource, view: View) -> frozenset[Signal]:
    """Return what proves a revision good, where that is not on record yet."""
    good = resource.record.last_good if resource.record else None
    known = good is not None and good.revision == view.fleet.revision
    return frozenset() if known else frozenset({Signal.REQUESTS_FINISHED})


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
