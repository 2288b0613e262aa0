"""Whose turn it is between the two runbooks: what is handed over at a look, and where that ends; pure."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from kvmedic.core.compressed import standing_answers
from kvmedic.core.diagnosis import Goal, diagnose
from kvmedic.core.hand_overs import Grounds, HandOver, Heard, hand_over_of, taken_back
from kvmedic.core.onset import pressured
from kvmedic.core.plan import OnTrial, Plan
from kvmedic.core.policy import Policy, Runbook
from kvmedic.core.reasons import Reason
from kvmedic.core.record import ClosedRun, Record
from kvmedic.core.resource import Resource
from kvmedic.core.run import Outcome
from kvmedic.findings import Survey
from kvmedic.runbooks import RUNBOOKS

UNTRIED = frozenset({Reason.TRIAL_ANSWERED, Reason.TRIAL_UNANSWERED, Reason.SPARE_UNSCHEDULABLE})
"""Ends of runs that changed nothing of the fleet: where there is no room for a change it is taken back."""


def with_turn(found: Survey, resource: Resource, policy: Policy, now: datetime) -> Survey:
    """Return the survey with the hand-over that it amounts to; without its plan where it is the second one.

    A trial is never in the way: it changes nothing, and what it shows is new evidence.
    """
    if Runbook.COMPRESSION_WITHOUT_SAVINGS not in policy.runbooks:
        return found
    record = resource.record or Record()
    grounds = _grounds(found, resource, record, now)
    given = hand_over_of(_heard(found), grounds, next(iter(record.hand_overs), None), now)
    if given is None:
        return found
    back = taken_back(given, record.hand_overs, lambda each: _is_used(each, record.history))
    if back is None or found.plan is None or isinstance(found.plan.steps[0], OnTrial):
        return replace(found, hand_over=given)
    return replace(found, plan=None, obstacle=_twice(given, back, found.plan, grounds), hand_over=given)


def _twice(given: HandOver, back: HandOver, plan: Plan, grounds: Grounds) -> Outcome:
    """Return why a plan is not carried out: what both runbooks want, and what is the same."""
    steps = "; ".join(step.line() for step in plan.steps)
    text = (
        f"{given.to_runbook} wants {steps} and had the word before; {back.to_runbook} had it since "
        f"{back.at:%Y-%m-%dT%H:%MZ} ({back.reason}), and what both know is the same: {grounds.line()} "
        f"(evidence {given.evidence}). An edit of the spec or of the pod template, or another answer of a "
        "trial, starts anew"
    )
    return Outcome(Reason.HANDED_OVER_TWICE, text)


def _heard(found: Survey) -> Heard:
    return Heard(
        first=found.evidence.unanswered
        or diagnose(RUNBOOKS[Runbook.COMPRESSION_WITHOUT_SAVINGS], found.evidence),
        runbook=found.runbook,
        diagnosis=found.diagnosis,
        is_pressed=bool(pressured(found.burn, found.evidence.trigger)),
        is_planned=found.plan is not None,
    )


def _grounds(found: Survey, resource: Resource, record: Record, now: datetime) -> Grounds:
    evidence, template = found.evidence, found.view.fleet.revision
    return Grounds(
        generation=resource.generation,
        template=template,
        method=evidence.compression.name if evidence.compression else "",
        answers=standing_answers(record.answers, resource.generation, now),
        scores=record.scores,
        turned_off=record.turned_off,
        failed=evidence.failed_fixes,
        kept=tuple(each.method for each in record.bundles if each.revision == template),
    )


def _is_used(given: HandOver, history: tuple[ClosedRun, ...]) -> bool:
    """Return whether the runbook that got the word has changed something of the fleet since."""
    branches = RUNBOOKS.get(given.to_runbook, ())
    changing = {each.reason for each in branches if each.then is not None and each.goal is not Goal.ANSWER}
    return any(
        run.started_at >= given.at
        and run.reason in changing
        and not run.on_trial_pod
        and run.outcome not in UNTRIED
        for run in history
    )
