"""How a run changes the record: opened, reported, closed; and the conditions that follow. Pure.

A condition changes only with its status or its reason: a message whose numbers differ is not worth a write,
and a healthy fleet's status is never written at all. Where the plan that is shown becomes another, its
conditions say so too, since they may hold the very change for a person to make.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TypeVar

from kvmedic.model.engine import Knob
from kvmedic.model.evidence import Blocked
from kvmedic.model.fleet import Fleet, body_hash
from kvmedic.model.plan import BundleStep, FlagStep, Goal, Step
from kvmedic.model.reasons import Reason, Trait
from kvmedic.model.run import Outcome, Run, StepRecord, StepState, Verdict
from kvmedic.model.spec import Fix
from kvmedic.model.status import (
    HISTORY_LENGTH,
    Attempt,
    CapChange,
    ClosedRun,
    Condition,
    ConditionType,
    FailedAttempt,
    OomShare,
    Record,
    SizedCap,
    Truth,
    TurnedOff,
    failed_fix,
)
from kvmedic.model.trial import Answer, EvaluationResult
from kvmedic.rollout import row_of
from kvmedic.runbooks.preemption.restore import load_of
from kvmedic.verdict.summary import summary_of

A_DAY = timedelta(days=1)
"""How long the changes of a cap are kept: the day's most counts where the mix of requests turns."""
ORDER = tuple(ConditionType)
"""The order in which conditions are listed."""
MESSAGE_BYTES = 1000
"""Bytes of a message, at most: an Event's note takes 1,024 (events.k8s.io/v1)."""
LIVE_MESSAGES = frozenset({Trait.ASKS_APPROVAL, Trait.SHOWS_FIGURES})
"""Traits of reasons whose message is written whenever it changes."""


@dataclass(frozen=True, slots=True)
class Claim:
    """What one condition should say."""

    type: ConditionType
    status: Truth
    reason: Reason
    message: str = ""


def with_conditions(record: Record, claims: tuple[Claim, ...], generation: int, now: datetime) -> Record:
    """Return the record with some conditions set; the others stay as they are."""
    kept = {condition.type: condition for condition in record.conditions}
    for claim in claims:
        kept[claim.type] = _condition(kept.get(claim.type), claim, generation, now)
    return replace(record, conditions=tuple(kept[t] for t in ORDER if t in kept))


def refresh_messages(record: Record, claims: tuple[Claim, ...]) -> Record:
    """Return the record with the messages of some conditions said anew, although nothing else changed."""
    messages = {claim.type: claim.message or claim.reason.sentence for claim in claims}
    conditions = (replace(each, message=messages.get(each.type, each.message)) for each in record.conditions)
    return replace(record, conditions=tuple(conditions))


def _condition(old: Condition | None, claim: Claim, generation: int, now: datetime) -> Condition:
    message = claim.message or claim.reason.sentence
    same = old is not None and old.status is claim.status and old.reason is claim.reason
    if old is not None and not claim.reason.traits.isdisjoint(LIVE_MESSAGES):
        same = same and old.message == message
    if old is not None and same and old.observed_generation == generation:
        return old
    changed_at = old.changed_at if old is not None and old.status is claim.status else now
    return Condition(claim.type, claim.status, claim.reason, message, changed_at, generation)


T = TypeVar("T")


def action(reason: Reason, message: str) -> Claim:
    """Return the ActionRequired condition that goes with a reason."""
    if Trait.NEEDS_A_PERSON in reason.traits:
        return Claim(ConditionType.ACTION_REQUIRED, Truth.TRUE, reason, message)
    return Claim(ConditionType.ACTION_REQUIRED, Truth.FALSE, Reason.NOTHING_TO_DO)


def open_run(record: Record, run: Run, generation: int, now: datetime) -> Record:
    """Return the record with a run opened: planned, and nothing of it done yet."""
    return report_decision(replace(record, run=run), Outcome(Reason.PLANNED, run.message), generation, now)


def report_decision(
    record: Record, decision: Outcome, generation: int, now: datetime, problem: Blocked | None = None
) -> Record:
    """Return the record with the open run's present decision in its conditions."""
    progressing = Claim(ConditionType.PROGRESSING, Truth.TRUE, decision.reason, decision.message)
    claims = (progressing, *_usability(record.run, decision, problem))
    fresh = replace(record, plan=None, observed_generation=generation)
    return with_conditions(fresh, claims, generation, now)


def _usability(run: Run | None, decision: Outcome, problem: Blocked | None) -> tuple[Claim, ...]:
    if problem is None:
        return (
            Claim(ConditionType.READY, Truth.TRUE, Reason.TARGET_FOUND),
            action(decision.reason, decision.message),
            Claim(ConditionType.STALLED, Truth.FALSE, Reason.NOTHING_TO_DO),
        )
    stalled = Claim(ConditionType.STALLED, Truth.TRUE, problem.reason, problem.message)
    ends = run is not None and run.ending is not None
    return (
        Claim(ConditionType.READY, Truth.FALSE, problem.reason, problem.message),
        action(problem.reason, problem.message),
        Claim(ConditionType.STALLED, Truth.FALSE, Reason.NOTHING_TO_DO) if ends else stalled,
    )


def close_run(record: Record, run: Run, outcome: Outcome, generation: int, now: datetime) -> Record:
    """Return the record with the run closed: in the history, and what did not help remembered."""
    message = _with_owner_patch(run, outcome)
    entry = ClosedRun(
        id=run.id,
        reason=run.reason,
        outcome=outcome.reason,
        message=message,
        steps=tuple(f"{step.step.line()}: {step.state}" for step in run.steps),
        started_at=run.started_at,
        ended_at=now,
        approval=run.approval,
        template=run.steps[0].step.before_template,
        on_trial_pod=run.steps[0].step.is_on_trial,
        template_after=_kept_template(run),
        owner_patch=run.owner_patch if Trait.KEPT in outcome.reason.traits else "",
    )
    truth = Truth.TRUE if Trait.HELPED in outcome.reason.traits else Truth.FALSE
    remediated = Claim(ConditionType.REMEDIATED, truth, outcome.reason, message)
    claims = (
        Claim(ConditionType.PROGRESSING, Truth.FALSE, Reason.NO_RUN),
        *(() if run.goal is Goal.ANSWER else (remediated,)),
        action(outcome.reason, message),
    )
    done = replace(
        record,
        run=None,
        history=_keep_history((entry, *record.history)),
        summary=summary_of(run, outcome, now) or record.summary,
        sized=_remember_cap(record.sized, run, outcome, now),
        turned_off=_remember_switch_off(record.turned_off, run, outcome, now),
    )
    if done.turned_off != record.turned_off:
        others = (one for one in record.failed_attempts if one.attempt is not Attempt.FIX)
        done = replace(done, failed_attempts=tuple(others))
    done = with_failed_attempts(done, failed_attempts(run, outcome, now))
    return with_conditions(done, claims, generation, now)


def _with_owner_patch(run: Run, outcome: Outcome) -> str:
    """Return how a run ended, with what keeps its change where somebody else owns the target."""
    if not run.owner_patch or Trait.KEPT not in outcome.reason.traits:
        return outcome.message
    whole = f"{outcome.message}; so that it stays, {run.owner_patch}"
    if len(whole.encode()) <= MESSAGE_BYTES:
        return whole
    return f"{outcome.message}; what its owner needs so that it stays is in .status.history[0].ownerPatch"


def _kept_template(run: Run) -> str:
    """Return the hash of the pod template that a run changed and kept; empty where it kept none."""
    changed = (one.step for one in run.steps if _is_kept(one) and one.step.template_change is not None)
    return next(reversed([step.after_template for step in changed]), "")


def _keep_history(history: tuple[ClosedRun, ...]) -> tuple[ClosedRun, ...]:
    """Return the closed runs that are kept: of too many those go first that only asked a trial pod."""
    over = len(history) - HISTORY_LENGTH
    asked = [run.id for run in reversed(history) if run.costs_nothing]
    dropped = set(asked[: max(0, over)])
    return tuple(run for run in history if run.id not in dropped)[:HISTORY_LENGTH]


def _remember_switch_off(
    before: TurnedOff | None, run: Run, outcome: Outcome, now: datetime
) -> TurnedOff | None:
    for step in _kept_switches(run, outcome):
        return TurnedOff(step.method, run.reason, now) if step.fix is Fix.REVERT_BUNDLE else None
    return before


def _kept_switches(run: Run, outcome: Outcome) -> tuple[BundleStep, ...]:
    kept = (record.step for record in run.steps if record.state is StepState.KEPT)
    return tuple(
        step for step in kept if isinstance(step, BundleStep) and Trait.KEPT in outcome.reason.traits
    )


def with_score(record: Record, result: EvaluationResult) -> Record:
    """Return the record with what an evaluation showed: the newest of each configuration."""
    kept = _newest_of_each(result, record.scores, lambda one: (one.configuration, one.evaluation))
    return replace(record, scores=kept)


def with_answer(record: Record, answer: Answer) -> Record:
    """Return the record with what a trial showed: the newest of each question on each pod template."""
    kept = _newest_of_each(answer, record.answers, lambda one: (one.question, one.template))
    return replace(record, answers=kept)


def _remember_cap(before: SizedCap | None, run: Run, outcome: Outcome, now: datetime) -> SizedCap | None:
    """Return the cap of ours that is in force once a run is closed, and on probation unless a person kept it.

    One that was taken back is ours no more, and nothing is left where that is what a person had. Where
    taking it back did not help, or somebody else undid it, it stays for good.
    """
    for record in run.steps:
        step = record.step
        if not isinstance(step, FlagStep) or step.knob is not Knob.MAX_NUM_SEQS:
            continue
        ours = before if before is not None and before.revision == step.before_template else None
        taken_back = step.reason is Reason.CAP_TAKEN_BACK
        if record.state is not StepState.KEPT:
            fails = record.state is StepState.LEFT or Trait.RESTORE_FAILED in outcome.reason.traits
            return replace(ours, figures=None) if ours is not None and taken_back and fails else before
        first = ours.before if ours else step.before or ""
        if step.after is None or (taken_back and step.after == first):
            return None
        is_second = ours is not None and step.reason is not Reason.CAP_RAISED
        older = (each for each in (ours.changes if ours else ()) if now - each.at < A_DAY)
        changes = (CapChange(step.before or "", step.after, now), *older)[:HISTORY_LENGTH]
        figures = None if taken_back or outcome.reason is Reason.KEPT_BY_HAND else run.baseline
        return SizedCap(step.after_template, step.after, now, is_second, first, changes, figures)
    return before


def _newest_of_each(new: T, before: tuple[T, ...], what: Callable[[T], object]) -> tuple[T, ...]:
    """Return what was shown, newest first and bounded; `what` distinguishes one from another."""
    return (new, *(old for old in before if what(old) != what(new)))[:HISTORY_LENGTH]


def with_failed_attempts(record: Record, failed: Sequence[FailedAttempt]) -> Record:
    """Return the record with attempts that failed: the newest of each, as many of a kind as runs are kept."""
    older = (old for old in record.failed_attempts if not any(old.is_like(one) for one in failed))
    kept: list[FailedAttempt] = []
    for one in (*failed, *older):
        if sum(each.attempt is one.attempt for each in kept) < HISTORY_LENGTH:
            kept.append(one)
    return replace(record, failed_attempts=tuple(kept))


def failed_attempts(run: Run, outcome: Outcome, now: datetime) -> tuple[FailedAttempt, ...]:
    """Return what a run that is being closed tried and is not to try again on the same evidence."""
    found: list[FailedAttempt] = []
    for record in run.steps:
        step = record.step
        attempt = row_of(step).attempt(run)
        if attempt is not None and (why := _why_it_failed(record, outcome)):
            change = step.line().partition(": ")[2]
            template = step.before_template
            found.append(FailedAttempt(*attempt, template, change, why, now, 0, run.blocks, load_of(run)))
        if isinstance(step, FlagStep) and step.reason is Reason.CAP_TAKEN_BACK and _is_kept(record):
            found.append(_failed_cap(step, run, now))
    for switch in _kept_switches(run, outcome):
        if switch.undoes and switch.fix is Fix.REVERT_BUNDLE:
            why = f"{switch.method} was turned on, and had to be turned off again: {run.message}"
            found.append(failed_fix(switch.undoes, why, run.spec_generation, now))
    return tuple(found)


def _is_kept(record: StepRecord) -> bool:
    return record.state is StepState.KEPT


def _failed_cap(taken_back: FlagStep, run: Run, now: datetime) -> FailedAttempt:
    """Return the cap that was taken back: it is not set again where it was set, for the same lengths."""
    back = taken_back.inverse()
    raised = (back.before or "").isdigit() and int(back.after or 0) > int(back.before or 0)
    kind = Attempt.RAISE_CAP if raised else Attempt.TURN_LEVER
    change, why = back.line().partition(": ")[2], str(run.reason)
    return FailedAttempt(
        kind, str(back.knob), back.before_template, change, why, now, 0, run.blocks, load_of(run)
    )


def _why_it_failed(record: StepRecord, outcome: Outcome) -> str:
    stays = record.step.template_change is None
    if record.verdict is Verdict.NOT_RECOVERED and (stays or record.state is StepState.REVERTED):
        return str(Reason.NOT_RECOVERED)
    against = Trait.RESTORE_FAILED if record.step.gives_back else Trait.FAILED
    failed = record.state is StepState.REVERTED and not stays and against in outcome.reason.traits
    return str(outcome.reason) if failed else ""


_DUST = 1e-9


def with_oom_share(record: Record, share: float, template: Mapping[str, object], now: datetime) -> Record:
    """Return the record with a share of the devices' memory that was too much for a pod template.

    Of one template the lowest counts; equal to the old record where that is known already.
    """
    body = body_hash(template)
    if any(one.body == body and one.share <= share + _DUST for one in record.oom_shares):
        return record
    others = tuple(one for one in record.oom_shares if one.body != body)
    return replace(record, oom_shares=(OomShare(share, body, now), *others)[:HISTORY_LENGTH])


def after_trouble(
    record: Record, run: Run, fleet: Fleet, template: Mapping[str, object], now: datetime
) -> Record:
    """Return the record as a change begins to be taken back.

    Where replicas restarted that had just been given more of their devices' memory, that share is not tried
    again, whatever ended them.
    """
    step = run.current.step
    share = raised_share(step)
    ended = any(pod.ends for pod in fleet.pods if pod.revision == step.after_template)
    return record if share is None or not ended else with_oom_share(record, share, template, now)


def raised_share(step: Step) -> float | None:
    """Return the share of the devices' memory that a step raises, or None where it raises none."""
    if not isinstance(step, FlagStep) or step.reason is not Reason.MEMORY_STEPPED_UP:
        return None
    return None if step.after is None else float(step.after)
