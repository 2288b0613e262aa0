"""A look at a fleet without an open run: evidence, diagnosis, plan. Nothing is changed here."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from kvmedic.core.approval import stands
from kvmedic.core.diagnosis import (
    Diagnosed,
    Diagnosis,
    Evidence,
    Finding,
    Goal,
    Inconclusive,
    NoChange,
    Relief,
    Resize,
    RollBack,
    Setting,
    diagnose,
)
from kvmedic.core.edge import least_free_mib
from kvmedic.core.evidence import Look, Measured, Observation, Reading, Signal
from kvmedic.core.fleet import Fleet
from kvmedic.core.footprint import is_held
from kvmedic.core.moved import TRAFFIC, moves, traffic_of
from kvmedic.core.plan import ObjectRef, Plan, ReplaceStep, Step, gives_back
from kvmedic.core.policy import Mode, Policy
from kvmedic.core.preconditions import step_refusal
from kvmedic.core.reasons import Reason
from kvmedic.core.record import LastGood, Record
from kvmedic.core.resource import Resource
from kvmedic.core.run import Outcome
from kvmedic.core.verdict import Baseline, baseline_of
from kvmedic.core.vitals import Device
from kvmedic.engines import ENGINES
from kvmedic.gathering import expected, gather, silent_on_pools, vitals_of, with_logged_pools
from kvmedic.manifests.proposals import Proposal
from kvmedic.ports import Metrics, Senses, View
from kvmedic.runbooks import RUNBOOKS
from kvmedic.runbooks.capacity import spent_by
from kvmedic.runbooks.fleet_plans import (
    replaced_in_vain,
    replacement_of,
    resizing_of,
    returning_of,
    rollback_of,
    rolled_back_in_vain,
    scaled_in_vain,
)
from kvmedic.runbooks.outlook import fewer_replicas
from kvmedic.runbooks.planning import (
    Fault,
    Known,
    Workload,
    configured,
    proposal,
    setting,
    workload_of,
)


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
    outlook: str = ""
    """Whether fewer replicas would do, where some were added for a while and somebody asked."""

    @property
    def burn(self) -> Observation:
        """Return the look over the trigger's window."""
        return self.evidence.burn

    @property
    def goal(self) -> Goal:
        """Return by what a change would be judged."""
        steps = self.plan.steps if self.plan else ()
        if any(gives_back(step) for step in steps):
            return Goal.CALM
        return self.diagnosis.branch.goal if isinstance(self.diagnosis, Diagnosed) else Goal.RELIEF

    def baseline(self) -> Baseline | Inconclusive | None:
        """Return the fleet as it is now, to be compared with later; None where that is not needed.

        Restarts are those of the replicas that are still to be there then. Replicas that just restarted have
        no figures, and a change for them is not judged by figures.
        """
        return self.baseline_over(self.evidence.burn)

    def baseline_over(self, seen: Observation) -> Baseline | Inconclusive | None:
        """Return the same of another look at the same replicas."""
        steps = self.plan.steps if self.plan else ()
        going = {step.uid for step in steps if isinstance(step, ReplaceStep)}
        staying = [pod for pod in expected(self.view) if pod.uid not in going]
        found = baseline_of(seen, sum(pod.restarts for pod in staying))
        if isinstance(found, Inconclusive):
            return None if self.goal is not Goal.RELIEF else found
        return replace(found, memory_free_mib=least_free_mib(self._devices()))

    def _devices(self) -> tuple[Reading[tuple[Device, ...]], ...]:
        return tuple(vitals.devices for vitals in self.evidence.vitals.values())

    def blocks(self) -> int | None:
        """Return the smallest pool of the replicas (usable blocks), or None when one is not known."""
        pools = [readings.pool for readings in self.evidence.burn.pods.values()]
        known = [pool.value.blocks for pool in pools if isinstance(pool, Measured)]
        return min(known) if known and len(known) == len(pools) else None


async def survey(resource: Resource, policy: Policy, view: View, senses: Senses) -> Survey:
    """Return what a look at the target finds; the plan is made, never carried out.

    A glance at the triggers comes first: most of what a source computes for a whole look is
    histograms, and a calm fleet needs none of them.
    """
    glanced = await _glance(resource, policy, view, senses)
    if glanced is not None and not _is_due(glanced, resource, policy, senses):
        return _with_shown_plan(glanced, resource, policy)
    return await examine(resource, policy, view, senses)


async def examine(resource: Resource, policy: Policy, view: View, senses: Senses) -> Survey:
    """Return what a whole look at the target finds, however calm it is."""
    history = resource.record.history if resource.record else ()
    evidence = await gather(policy, resource.namespace, view, senses, history)
    if silent := silent_on_pools(evidence, view):
        workload = engine_of(view, policy)
        if isinstance(workload, Workload):
            evidence = await with_logged_pools(evidence, resource.namespace, silent, workload, senses.logs)
    runbook, diagnosis = judged(policy, evidence)
    diagnosis = _with_moves(diagnosis, resource, view, evidence.burn)
    found = Survey(view, evidence, diagnosis, runbook, None, None)
    planned = _returning(found, resource, policy) if _is_due(found, resource, policy, senses) else found
    return _with_shown_plan(_planned(planned, resource, policy), resource, policy)


def judged(policy: Policy, evidence: Evidence) -> tuple[str, Diagnosis]:
    """Return the first runbook that has something to say, and what it says."""
    for runbook in policy.runbooks:
        diagnosis = diagnose(RUNBOOKS[runbook], evidence)
        if isinstance(diagnosis, Inconclusive) or diagnosis.branch.then is not None:
            break
    return str(runbook), diagnosis


async def _glance(resource: Resource, policy: Policy, view: View, senses: Senses) -> Survey | None:
    """Return the survey where the first branch of each runbook decides, or None where more is needed.

    A runbook's first branch tells a calm fleet from any other, or says what it cannot see; either way
    no later branch is asked, so that a whole look would find the same.
    """
    firsts = [(runbook, RUNBOOKS[runbook][0]) for runbook in policy.runbooks]
    signals = frozenset[Signal]().union(*(branch.signals for _, branch in firsts), _proof(resource, view))
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
    known = _setting(workload, found, policy, resource.record or Record())
    plan = _plan(found, workload, known, resource, policy)
    if isinstance(plan, NoChange) and plan.passes_on and found.evidence.spent is None:
        return _planned(_passed_on(found, plan, known, resource, policy), resource, policy)
    if not isinstance(plan, Plan):
        return _hindered(found, plan.reason, plan.message)
    obstacle = obstacle_to(plan.steps[0], fleet, found.goal)
    return replace(found, plan=plan, obstacle=obstacle)


def _passed_on(found: Survey, why: NoChange, known: Setting, resource: Resource, policy: Policy) -> Survey:
    """Return the survey judged anew, once it is known that no lever is left."""
    spent = spent_by(why, known, found.view.fleet.replicas)
    evidence = replace(found.evidence, spent=spent)
    runbook, diagnosis = judged(policy, evidence)
    diagnosis = _with_moves(diagnosis, resource, found.view, evidence.burn)
    return replace(found, evidence=evidence, diagnosis=diagnosis, runbook=runbook)


def _is_due(found: Survey, resource: Resource, policy: Policy, senses: Senses) -> bool:
    """Return whether to ask if fewer replicas would do: it has been calm for long enough."""
    held = resource.record.footprint if resource.record else None
    calm = isinstance(found.diagnosis, Diagnosed) and found.diagnosis.reason is Reason.HEALTHY
    if held is None or not calm or not is_held(held, found.view.fleet):
        return False
    return held.is_due(policy.scale_out, senses.now or found.burn.at)


def _returning(found: Survey, resource: Resource, policy: Policy) -> Survey:
    """Return the survey of a calm fleet with the plan that gives replicas back, or why it has none."""
    record, fleet = resource.record or Record(), found.view.fleet
    held = record.footprint
    workload = engine_of(found.view, policy)
    if held is None or isinstance(workload, Fault):
        return found
    known = _setting(workload, found, policy, record)
    advice = fewer_replicas(found.evidence, held, known, fleet.revision)
    if isinstance(advice, NoChange):
        return replace(found, outlook=advice.message)
    plan = returning_of(fleet, held, advice, resource.generation)
    obstacle = obstacle_to(plan.steps[0], fleet, Goal.CALM)
    return replace(found, plan=plan, obstacle=obstacle, outlook=advice.message)


def _setting(workload: Workload | Fault, found: Survey, policy: Policy, record: Record) -> Setting:
    """Return what advice needs to know; of an engine that cannot be told, only what was tried."""
    fleet, known = found.view.fleet, Setting(None, policy.levers)
    if isinstance(workload, Workload):
        known = setting(workload, policy.levers, Known(record.levers, record.outgrown), found.evidence)
    return replace(
        known,
        replacing_failed=replaced_in_vain(record.replacements, fleet),
        rollback_allowed=policy.rollback.is_allowed,
        rollback_failed=rolled_back_in_vain(record.rollbacks, fleet),
        scale_out=policy.scale_out,
        scaling_failed=scaled_in_vain(record.scalings, fleet),
        before_scaling=record.footprint.fewest if record.footprint else None,
        is_our_cap=record.sized is not None and record.sized.is_open_on(fleet.revision),
    )


def _plan(
    found: Survey, workload: Workload | Fault, known: Setting, resource: Resource, policy: Policy
) -> Plan | Fault | NoChange:
    """Return the plan that the diagnosis leads to, or why there is none.

    A replica can be replaced whatever runs in it, and a revision rolled back; a setting needs an engine that
    is known.
    """
    if isinstance(found.diagnosis, Inconclusive) or found.diagnosis.branch.then is None:
        return NoChange(found.diagnosis.reason, "")
    advise = found.diagnosis.branch.then
    if isinstance(workload, Workload):
        advice = proposal(workload, advise, found.evidence, known, resource.generation)
    else:
        told = advise(found.evidence, known)
        unset = NoChange(workload.reason, workload.message)
        advice = told if isinstance(told, Relief | RollBack) else unset
    if isinstance(advice, RollBack):
        return rollback_of(policy.target, found.view.fleet, advice, resource.generation)
    if isinstance(advice, Relief):
        return replacement_of(policy.target, found.view.fleet, advice, resource.generation)
    if isinstance(advice, Resize):
        return resizing_of(policy.target, found.view.fleet, advice, resource.generation)
    return advice


def _with_shown_plan(found: Survey, resource: Resource, policy: Policy) -> Survey:
    """Return the survey with the plan that a person may be about to approve, while it stands.

    Evidence that says nothing for a moment does not take it away; it is not carried out then either.
    """
    shown = resource.record.plan if resource.record else None
    plan = shown.bound if shown else None
    if policy.mode is not Mode.APPROVE or plan is None:
        return found
    if found.plan is not None:
        return replace(found, plan=plan) if stands(plan, found.plan) else found
    if not isinstance(found.diagnosis, Inconclusive) or not _is_bound(plan, found.view, resource):
        return found
    return replace(found, plan=plan, obstacle=Outcome(found.diagnosis.reason, found.diagnosis.message))


def _is_bound(plan: Plan, view: View, resource: Resource) -> bool:
    """Return whether a plan was made for the target, its template and the spec as they are now."""
    made_for = (plan.target_uid, plan.template, plan.spec_generation)
    return made_for == (view.fleet.uid, view.fleet.revision, resource.generation)


def engine_of(view: View, policy: Policy) -> Workload | Fault:
    """Return the engine in the target's pod template, or why it cannot be told."""
    target = ObjectRef(policy.target.kind, policy.target.name)
    found = workload_of(target, view.fleet.uid, view.template, policy.target.container, ENGINES)
    return configured(found, view.config_maps)


def obstacle_to(step: Step, fleet: Fleet, goal: Goal) -> Outcome | None:
    """Return why a plan's first step cannot begin on the fleet as it is, or None.

    Only a change that is to relieve a fleet needs it whole (`kvmedic.core.preconditions.refusal`).
    """
    refused = step_refusal(fleet, step, whole=goal is Goal.RELIEF)
    return Outcome(refused.reason, refused.message) if refused else None


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


async def proved_good(
    found: Survey, resource: Resource, policy: Policy, metrics: Metrics, now: datetime
) -> LastGood | None:
    """Return the fleet's revision as a good one, with its traffic where it is not on record yet.

    That is one more look for each new revision, when it proves healthy.
    """
    good = healthy_revision(found, policy, now)
    known = resource.record.last_good if resource.record else None
    if good is None or (known is not None and known.revision == good.revision):
        return good
    asked = Look(policy.windows.trigger, signals=TRAFFIC)
    seen = await metrics.look(policy.source, expected(found.view), resource.namespace, asked)
    return replace(good, traffic=traffic_of(seen))


def _with_moves(diagnosis: Diagnosis, resource: Resource, view: View, burn: Observation) -> Diagnosis:
    """Return the diagnosis of a trouble with what is not as it was when the fleet was last healthy."""
    good = resource.record.last_good if resource.record else None
    if good is None or isinstance(diagnosis, Inconclusive) or diagnosis.branch.then is None:
        return diagnosis
    told = list(moves(good.traffic, traffic_of(burn)) if good.traffic else ())
    if good.revision != view.fleet.revision:
        told.append(f"pod template {good.revision} -> {view.fleet.revision}")
    if good.traffic is None and not told:
        return diagnosis
    moved = ", ".join(told) or "nothing that is recorded"
    text = f"moved since it was healthy ({good.recorded_at:%Y-%m-%dT%H:%M:%SZ}): {moved}"
    return Diagnosed(diagnosis.branch, (Finding("fleet", None, None, None, text), *diagnosis.findings))
