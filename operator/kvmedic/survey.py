"""A look at a fleet without an open run: evidence, diagnosis, plan. Nothing is changed here."""

from __future__ import annotations

from dataclasses import replace

from kvmedic.core.diagnosis import Diagnosed, Diagnosis, Evidence, Inconclusive
from kvmedic.core.evidence import Look, Signal
from kvmedic.core.policy import Policy
from kvmedic.core.resource import Resource
from kvmedic.findings import Survey
from kvmedic.gathering import (
    expected,
    gather,
    silent_on_pools,
    vitals_of,
    with_drivers,
    with_logged_pools,
)
from kvmedic.last_good import unproved
from kvmedic.plans import due_in, judged, remarked, with_plan, with_return, with_shown_plan
from kvmedic.ports import Senses, View
from kvmedic.runbooks import RUNBOOKS
from kvmedic.runbooks.methods import eviction_of
from kvmedic.runbooks.planning import Workload
from kvmedic.versions import ask_versions, engine_of


async def survey(resource: Resource, policy: Policy, view: View, senses: Senses) -> Survey:
    """Return what a look at the target finds; the plan is made, never carried out.

    A glance at the triggers comes first: most of what a source computes for a whole look is
    histograms, and a calm fleet needs none of them.
    """
    glanced = await _glance(resource, policy, view, senses)
    if glanced is not None and due_in(glanced, resource, policy, senses.now or glanced.burn.at) is None:
        return with_shown_plan(glanced, resource, policy)
    return await examine(resource, policy, view, senses)


async def examine(resource: Resource, policy: Policy, view: View, senses: Senses) -> Survey:
    """Return what a whole look at the target finds, however calm it is."""
    history = resource.record.history if resource.record else ()
    evidence = await gather(policy, resource.namespace, view, senses, history)
    evidence = await _with_what_engines_tell(evidence, resource.namespace, policy, view, senses)
    runbook, diagnosis = judged(policy, evidence)
    found = Survey(view, evidence, diagnosis, runbook, None, None)
    held = due_in(found, resource, policy, senses.now or found.burn.at)
    if _asks_for_a_change(diagnosis) or held is not None:
        told = await ask_versions(resource.namespace, view, senses.metrics)
        found = replace(found, evidence=replace(evidence, versions=told))
    if held is not None:
        planned = with_return(found, resource, policy, held)
    else:
        planned = with_plan(remarked(found, resource, policy), resource, policy)
    return with_shown_plan(planned, resource, policy)


def _is_in_trouble(policy: Policy, evidence: Evidence) -> bool:
    """Return whether a branch beyond a runbook's first is asked: a calm fleet's health decides nothing."""
    return any(RUNBOOKS[runbook][0].when(evidence) is None for runbook in policy.runbooks)


async def _with_what_engines_tell(
    evidence: Evidence, namespace: str, policy: Policy, view: View, senses: Senses
) -> Evidence:
    """Return evidence in which settings, logs and drivers tell what no series does, as far as they may."""
    workload = engine_of(view, policy)
    if not isinstance(workload, Workload):
        return evidence
    evidence = replace(evidence, evicts=eviction_of(workload))
    if silent := silent_on_pools(evidence, view):
        evidence = await with_logged_pools(evidence, namespace, silent, workload, senses.logs)
    if not _is_in_trouble(policy, evidence):
        return evidence
    told = await with_drivers(evidence.vitals, namespace, expected(view), workload, senses.drivers)
    return replace(evidence, vitals=told)


def _asks_for_a_change(diagnosis: Diagnosis) -> bool:
    return isinstance(diagnosis, Diagnosed) and diagnosis.branch.then is not None


async def _glance(resource: Resource, policy: Policy, view: View, senses: Senses) -> Survey | None:
    """Return the survey where the first branch of each runbook decides, or None where more is needed.

    A runbook's first branch tells a calm fleet from any other, or says what it cannot see; either way
    no later branch is asked, so that a whole look would find the same.
    """
    firsts = [(runbook, RUNBOOKS[runbook][0]) for runbook in policy.runbooks]
    signals = frozenset[Signal]().union(*(branch.signals for _, branch in firsts), unproved(resource, view))
    asked = Look(policy.windows.trigger, policy.windows.hold, signals)
    seen = await senses.metrics.look(policy.source, expected(view), resource.namespace, asked)
    vitals = await vitals_of(seen, resource.namespace, view, senses.logs, {})
    evidence = Evidence(seen, seen, policy.trigger, vitals, policy.node_health)
    for runbook, branch in firsts:
        match branch.when(evidence):
            case None:
                return None
            case Inconclusive() as unknown:
                return Survey(view, evidence, unknown, str(runbook), None, None)
            case findings:
                calm = Diagnosed(branch, findings)
    return Survey(view, evidence, calm, str(runbook), None, None)
