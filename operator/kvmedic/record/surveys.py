"""How a look at a fleet without an open run changes the record; pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from kvmedic.model.evidence import Blocked, Inconclusive
from kvmedic.model.plan import Plan
from kvmedic.model.reasons import Reason, Trait
from kvmedic.model.status import (
    ConditionType,
    FailedAttempt,
    Record,
    RunbookSwitch,
    ShownDiagnosis,
    ShownPlan,
    Truth,
)
from kvmedic.record.runs import Claim, action, refresh_messages, with_conditions, with_failed_attempts
from kvmedic.rollout.gates.approval import is_plan_current
from kvmedic.runbooks.branches import Compressed, Diagnosis, is_content
from kvmedic.runbooks.severity import unmeasured_urgency

REFRESH = timedelta(minutes=10)
"""How old the shown numbers of a lasting trouble may get before they are written anew. Ten minutes
are two of the default trigger windows: newer numbers would say the same at the price of a write."""

RUNBOOK_SWITCHES_LENGTH = 4
"""Switches that are kept: there and back for the present pod template, and for the one before."""

UNREADY = "the resource is not Ready, so its objectives are not checked"


def record_diagnosis(
    record: Record, diagnosis: Diagnosis, runbook: str, generation: int, now: datetime
) -> Record:
    """Return the record with a diagnosis in it; equal to the old one when nothing worth a write changed."""
    claims = (
        Claim(ConditionType.READY, Truth.TRUE, Reason.TARGET_FOUND),
        _metrics(diagnosis),
        _diagnosed_condition(diagnosis),
        Claim(ConditionType.STALLED, Truth.FALSE, Reason.NOTHING_TO_DO),
    )
    shown = _refresh_diagnosis(record.diagnosis, diagnosis, runbook, now)
    fresh = replace(record, diagnosis=shown, observed_generation=generation)
    return with_conditions(fresh, claims, generation, now)


def record_plan(
    record: Record, plan: Plan | None, why: Blocked | None, generation: int, now: datetime
) -> Record:
    """Return the record with the plan that is shown, and why it is not carried out."""
    reason = why.reason if why else Reason.NO_RUN
    message = why.message if why else ""
    act = action(reason, message) if why else action(Reason.NOTHING_TO_DO, "")
    claims = (Claim(ConditionType.PROGRESSING, Truth.FALSE, reason, message), act)
    shown = replace(record, plan=_refresh_plan(record.plan, plan, now))
    updated = with_conditions(shown, claims, generation, now)
    return refresh_messages(updated, claims) if _digest(shown.plan) != _digest(record.plan) else updated


def with_failed_fixes(record: Record, failed: Sequence[FailedAttempt]) -> Record:
    """Return the record with what failed in the place of a method that was turned off."""
    new = [one for one in failed if one not in record.failed_attempts]
    return record if record.turned_off is None or not new else with_failed_attempts(record, new)


def with_baseline(record: Record, method: Compressed | None) -> Record:
    """Return the record with how the fleet was without its method; equal where it is there."""
    return replace(record, baseline=method.baseline) if method and method.baseline else record


def with_runbook_switch(record: Record, switch: RunbookSwitch | None) -> Record:
    """Return the record with a switch between the runbooks; equal where it is there already."""
    if switch is None or any(switch.is_like(each) for each in record.runbook_switches):
        return record
    return replace(record, runbook_switches=(switch, *record.runbook_switches)[:RUNBOOK_SWITCHES_LENGTH])


def with_problem(record: Record, problem: Blocked, generation: int, now: datetime) -> Record:
    """Return the record with conditions that report why nothing can be done."""
    stalled = Trait.STALLS in problem.reason.traits
    truth = Truth.UNKNOWN if problem.reason is Reason.INTERNAL_ERROR else Truth.FALSE
    claims = (
        Claim(ConditionType.READY, truth, problem.reason, problem.message),
        action(problem.reason, problem.message),
        Claim(
            ConditionType.STALLED,
            Truth.TRUE if stalled else Truth.FALSE,
            problem.reason if stalled else Reason.NOTHING_TO_DO,
            problem.message if stalled else "",
        ),
    )
    updated = replace(record, observed_generation=generation)
    if problem.reason is not Reason.INTERNAL_ERROR:
        updated = replace(updated, urgency=unmeasured_urgency(UNREADY, now, record.urgency))
    return with_conditions(updated, claims, generation, now)


def _metrics(diagnosis: Diagnosis) -> Claim:
    if isinstance(diagnosis, Inconclusive) and Trait.NO_METRICS in diagnosis.reason.traits:
        return Claim(ConditionType.METRICS_AVAILABLE, Truth.FALSE, diagnosis.reason, diagnosis.message)
    return Claim(ConditionType.METRICS_AVAILABLE, Truth.TRUE, Reason.METRICS_FOUND)


def _diagnosed_condition(diagnosis: Diagnosis) -> Claim:
    if isinstance(diagnosis, Inconclusive):
        return Claim(ConditionType.DIAGNOSED, Truth.UNKNOWN, diagnosis.reason, diagnosis.message)
    return Claim(
        ConditionType.DIAGNOSED, Truth.FALSE if is_content(diagnosis) else Truth.TRUE, diagnosis.reason
    )


def _refresh_diagnosis(
    old: ShownDiagnosis | None, diagnosis: Diagnosis, runbook: str, now: datetime
) -> ShownDiagnosis:
    if isinstance(diagnosis, Inconclusive):
        fresh = ShownDiagnosis(diagnosis.reason, diagnosis.message, runbook, now)
    else:
        findings = tuple(f"{f.subject}: {f.text}" for f in diagnosis.findings)
        fresh = ShownDiagnosis(diagnosis.reason, diagnosis.line(), runbook, now, findings)
    if old is None or old.reason is not fresh.reason or old.runbook != runbook:
        return fresh
    if Trait.NO_TROUBLE in fresh.reason.traits:
        # Where all is well, what is noticed is written down once: figures that move are no news.
        return fresh if fresh.findings and not old.findings else old
    return fresh if now - old.at >= REFRESH else old


def _digest(shown: ShownPlan | None) -> str:
    return shown.digest if shown else ""


def _refresh_plan(old: ShownPlan | None, plan: Plan | None, now: datetime) -> ShownPlan | None:
    if plan is None:
        return None
    steps = tuple(step.line() for step in plan.steps)
    fresh = ShownPlan(plan.digest, plan.reason, plan.message, steps, now, plan)
    bound = old.bound if old else None
    if old is None or bound is None:
        return fresh
    is_old = old.digest == plan.digest or (is_plan_current(bound, plan) and now - old.at < REFRESH)
    return old if is_old else fresh
