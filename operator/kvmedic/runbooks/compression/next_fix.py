"""The next fix after a method of compression that saved nothing: proved on a trial pod, then turned on.

One fix at a time, and only once it has proved itself on a trial pod: blocks come back, and the team's own
evaluation says that accuracy is kept. Each look finds the same place again from what is on record, whatever
died in between: answers of trials and scores of evaluations stand under the hash of the pod template that
they are of.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TypeAlias

from kvmedic.engines.kv_methods import EIGHT_BITS, find_method
from kvmedic.model.compression import BundleSetting, Keep, Method, MethodClass
from kvmedic.model.edits import BundleEdit
from kvmedic.model.evidence import Blocked
from kvmedic.model.fleet import template_hash
from kvmedic.model.reasons import Reason
from kvmedic.model.spec import CompressionPolicy, Fix, GatePolicy
from kvmedic.model.status import Attempt, FailedAttempt, TurnedOff, failed_fix, find_failure
from kvmedic.model.trial import (
    AGAIN,
    Answer,
    EvaluationResult,
    Question,
    Reclaim,
    Score,
    find_refused_result,
    find_result,
)
from kvmedic.runbooks.branches import Compressed, Evaluate, NoChange, Try, TurnOn
from kvmedic.runbooks.compression.accuracy import (
    NotPassed,
    NotYetKnown,
    can_show,
    compare_scores,
    samples_needed,
)
from kvmedic.runbooks.compression.bundle import edit_settings, reversed_of
from kvmedic.runbooks.compression.methods import answer_for, replacement_of
from kvmedic.runbooks.compression.trial_plans import reclamation_of
from kvmedic.runbooks.workload import Workload

BEHIND_THE_GATE = frozenset({Fix.COMPACTING_METHOD, Fix.FP8_KV_CACHE})
"""Fixes that change what the cache keeps."""


@dataclass(frozen=True, slots=True)
class Case:
    """All that the next fix depends on."""

    workload: Workload
    policy: CompressionPolicy
    turned_off: TurnedOff | None
    method: Compressed | None
    """The method that is on; None: none is known of."""
    answers: Sequence[Answer]
    """Of trials, as far as they count."""
    scores: Sequence[EvaluationResult]
    failed: Sequence[FailedAttempt]
    """What did not help."""
    evaluation: str | Blocked | None
    """Digest of the team's evaluation, or why there is none; None: nobody looked."""
    generation: int
    """Of the spec."""
    now: datetime

    @property
    def template(self) -> str:
        """Return the hash of the present pod template."""
        return template_hash(self.workload.template)


@dataclass(frozen=True, slots=True)
class Next:
    """What comes after a method that saved nothing."""

    move: Try | Evaluate | TurnOn | NoChange | None
    """None: no fix is asked for."""
    failed: tuple[FailedAttempt, ...]
    """What was tried and failed."""


@dataclass(frozen=True, slots=True)
class _Failed:
    """A fix that is no help here."""

    why: str


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A fix, and what it would change."""

    fix: Fix
    method: str
    settings: tuple[BundleSetting, ...]
    keep: Keep | None
    """None: it keeps every token."""
    cache_types: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Change:
    """A candidate with the edits that turn it on."""

    candidate: _Candidate
    edit: BundleEdit
    before: str
    after: str
    tried: str
    """Hash of the pod template with it."""


_Stage: TypeAlias = Try | Evaluate | TurnOn | NoChange | _Failed


def fixes_behind_gate(
    policy: CompressionPolicy, turned_off: TurnedOff | None, method: Compressed | None
) -> list[Fix]:
    """Return the fixes behind the gate that may be due, in order; empty where nothing asks for one."""
    allowed = [fix for fix in policy.fixes if fix in BEHIND_THE_GATE]
    if turned_off is not None and (method is None or method.method_class is MethodClass.QUANTIZATION):
        return allowed
    return [fix for fix in allowed if fix is Fix.FP8_KV_CACHE and _wants_fewer_bits(policy, method)]


def _wants_fewer_bits(policy: CompressionPolicy, method: Compressed | None) -> bool:
    """Return whether fewer bits are declared and nowhere asked for, or pages are only selected."""
    if method is not None and method.method_class is MethodClass.PAGE_SELECTION:
        return True
    known = find_method(policy.method)
    declared = policy.method_class or (known.method_class if known else None)
    asks = method is not None and bool(method.asks_for_type or method.is_confirmed)
    return declared is MethodClass.QUANTIZATION and not asks


def next_fix(case: Case) -> Next:
    """Return what is next, or why nothing is."""
    failed: list[FailedAttempt] = []
    is_closed = case.policy.close_by is not None and case.now >= case.policy.close_by
    for fix in fixes_behind_gate(case.policy, case.turned_off, case.method):
        known = find_failure(case.failed, Attempt.FIX, fix, generation=case.generation)
        if known is not None:
            # Maybe on another pod template: the next cap makes it no better.
            failed.append(known)
            continue
        found = _stage(fix, case)
        if fix is Fix.COMPACTING_METHOD and is_closed and not isinstance(found, TurnOn | _Failed):
            found = _Failed("it was not ready at spec.compression.closeBy")
        if not isinstance(found, _Failed):
            return Next(found, tuple(failed))
        failed.append(failed_fix(fix, found.why, case.generation, case.now))
    if not failed or Fix.DEMAND_CAPS in case.policy.fixes:
        return Next(None, tuple(failed))
    reasons = "; ".join(f"{each.key}: {each.why}" for each in failed)
    return Next(NoChange(Reason.FIXES_EXHAUSTED, reasons), tuple(failed))


def _stage(fix: Fix, case: Case) -> _Stage:
    """Return how far a fix is."""
    candidate = _candidate(fix, case)
    if not isinstance(candidate, _Candidate):
        return candidate
    change = _change(candidate, case)
    if not isinstance(change, _Change):
        return change
    return _find_trial_refusal(change, case) or _ask_about_blocks(change, case) or _next_of_gate(change, case)


def _find_trial_refusal(change: _Change, case: Case) -> _Failed | None:
    """Return that the engine said on a trial pod that a change is not supported here; None: it did not."""
    result = find_refused_result(case.scores, change.tried, case.generation, case.now)
    if result is not None:
        return _Failed(result.message)
    answer = answer_for(case.answers, change.tried)
    refused = answer is not None and answer.refused
    return _Failed(f"{change.candidate.method}: {answer.message}") if answer and refused else None


def _candidate(fix: Fix, case: Case) -> _Candidate | NoChange | _Failed:
    method = replacement_of(case.policy)
    if fix is Fix.FP8_KV_CACHE:
        return _Candidate(fix, EIGHT_BITS.name, EIGHT_BITS.settings, None, EIGHT_BITS.cache_dtypes)
    if method is None:
        text = "which method is to be turned on is not known: name it in spec.compression.replacement"
        return NoChange(Reason.METHOD_UNKNOWN, text)
    known = find_method(method.name)
    if why := _why_no_help(method, known, case):
        return _Failed(why)
    if not method.settings or method.keep is None:
        lacks = "settings" if not method.settings else "keepTokens or keepRatio"
        text = f"{method.name} needs spec.compression.replacement.{lacks}: give them"
        return NoChange(Reason.METHOD_UNKNOWN, text)
    if known is not None and (lacking := _lacking_variables(known, method.settings, case.workload)):
        return NoChange(
            Reason.METHOD_UNKNOWN,
            f"{known.name} does not run without {', '.join(lacking)}, which the pod template lacks and only "
            f"you can say: add {{env: {lacking[0]}, after: VALUE}} to spec.compression.replacement.settings",
        )
    return _Candidate(fix, method.name, method.settings, method.keep)


def _why_no_help(method: Compressed, known: Method | None, case: Case) -> str:
    """Return why a method is no help here; empty where it may be one."""
    if method.method_class is not None and method.method_class is not MethodClass.COMPACTING_EVICTION:
        return f"{method.name} gives no blocks back: {method.method_class.frees}"
    is_walled = case.turned_off is not None and case.turned_off.wall is Reason.EAGER_FALLBACK
    if known is not None and known.needs_scores and is_walled:
        return f"{known.name} needs attention scores, with which attention falls back once more"
    return ""


def _lacking_variables(method: Method, settings: Sequence[BundleSetting], workload: Workload) -> list[str]:
    """Return the variables that a method demands and nobody gives."""
    env = workload.container.get("env")
    given = {
        str(each.get("name"))
        for each in (env if isinstance(env, list) else ())
        if isinstance(each, dict) and (each.get("value") or each.get("valueFrom"))
    }
    given |= {each.env for each in settings if each.on}
    older = dict(method.older_names)
    return [name for name in method.demands if name not in given and older.get(name) not in given]


def _change(candidate: _Candidate, case: Case) -> _Change | NoChange | _Failed:
    """Return the edits that turn a candidate on: the settings of its bundle, the other way round."""
    method, workload = candidate.method, case.workload
    found = edit_settings(workload, reversed_of(candidate.settings))
    if isinstance(found, Blocked):
        return NoChange(found.reason, f"{method} cannot be turned on as a whole: {found.message}")
    if found is None:
        return _Failed(f"{method} is on already, as far as its settings show")
    if find_failure(case.failed, Attempt.SWITCH_METHOD, method, case.template):
        return _Failed(f"{method} was turned on on this pod template, and had to be turned off again")
    before, after = (", ".join(each) for each in (found.before, found.after))
    tried = template_hash(found.change.apply(workload.template))
    return _Change(candidate, found.change, before or "off", f"on ({after})" if after else "on", tried)


def _ask_about_blocks(change: _Change, case: Case) -> Try | NoChange | _Failed | None:
    """Return what is left to show of the blocks that a method gives back; None: nothing."""
    keep, method = change.candidate.keep, change.candidate.method
    if keep is None:
        return None
    answer = answer_for(case.answers, change.tried, Question.RECLAMATION)
    if answer is None:
        longest, why = case.workload.longest_request(), "whether its blocks come back is to be shown first"
        asked = reclamation_of(method, keep, case.policy.probe, longest, why)
        return (
            asked if isinstance(asked, NoChange) else replace(asked, change=change.edit, tried=change.tried)
        )
    if answer.reclaim is None:
        return NoChange(Reason.TRIAL_UNANSWERED, f"{method}: {answer.message}; {_again(answer.at)}")
    return None if answer.reclaim is Reclaim.RECLAIMS else _Failed(answer.message)


def _next_of_gate(change: _Change, case: Case) -> _Stage:
    """Return what is left to show of accuracy, or that the fix may be turned on."""
    gate, evaluation = case.policy.gate, case.evaluation
    if gate is None:
        return NoChange(
            Reason.GATE_MISSING,
            f"{change.candidate.method} changes what the cache keeps: give the evaluation that it must pass "
            "in spec.compression.accuracyGate",
        )
    if evaluation is None or isinstance(evaluation, Blocked):
        why = evaluation.message if evaluation else "not looked at yet"
        return NoChange(Reason.GATE_MISSING, f"CronJob/{gate.cron_job}: {why}")
    mine = _score_of(case, change.tried, evaluation)
    reference = _reference(case, gate, evaluation, mine)
    if reference is None:
        return _evaluate(None, gate, evaluation, case)
    if isinstance(reference, NoChange):
        return reference
    if mine is None:
        return _first_score(change, reference, gate, evaluation, case)
    return (
        _without_score(mine)
        if mine.score is None
        else _judge_score(change, reference, mine.score, gate, mine.at)
    )


def _first_score(
    change: _Change, reference: Score, gate: GatePolicy, evaluation: str, case: Case
) -> Evaluate | NoChange:
    """Return that a change is to be scored; or that it would show nothing, by the present setting's score."""
    asked = _evaluate(change, gate, evaluation, case)
    if reference.samples <= 1:
        return asked
    needs = (
        f"; at {reference.accuracy:.3f} without it, a maxLoss of {gate.max_loss:g} needs about "
        f"{samples_needed(reference, gate.max_loss)} samples ({reference.samples} now), fewer where each "
        "sample's result is reported"
    )
    if can_show(reference, gate.max_loss):
        return replace(asked, message=f"{asked.message}{needs}")
    return NoChange(
        Reason.ACCURACY_NOT_YET_KNOWN,
        f"{reference.samples} samples can never show a maxLoss of {gate.max_loss:g}{needs}: give "
        f"CronJob/{gate.cron_job} more samples; an edited one is scored anew",
    )


def _judge_score(
    change: _Change, reference: Score, score: Score, gate: GatePolicy, at: datetime
) -> TurnOn | NoChange | _Failed:
    found = compare_scores(reference, score, gate.max_loss)
    if isinstance(found, NotYetKnown):
        text = f"{change.candidate.method}: {found.why}; or let the evaluation report each sample's result"
        return NoChange(Reason.ACCURACY_NOT_YET_KNOWN, text)
    if isinstance(found, NotPassed):
        return _Failed(f"{change.candidate.method} did not pass the accuracy gate: {found.why}")
    return TurnOn(
        change.candidate.fix,
        change.candidate.method,
        change.edit,
        change.before,
        change.after,
        Reason.FIX_TURNED_ON,
        f"{change.candidate.method} comes: {found.message} ({at:%Y-%m-%dT%H:%MZ})",
    )


def _reference(
    case: Case, gate: GatePolicy, evaluation: str, mine: EvaluationResult | None
) -> Score | NoChange | None:
    """Return the score without the fix, as given or measured; None: it is to be measured."""
    given = gate.reference
    if given is not None and given.configuration == case.template:
        samples = mine.score.samples if mine is not None and mine.score is not None else 1
        return Score(given.accuracy, samples)
    measured = _score_of(case, case.template, evaluation)
    if measured is None:
        return None
    return measured.score if measured.score is not None else _without_score(measured)


def _score_of(case: Case, configuration: str, evaluation: str) -> EvaluationResult | None:
    return find_result(case.scores, configuration, evaluation, case.generation, case.now)


def _without_score(outcome: EvaluationResult) -> NoChange:
    return NoChange(Reason.TRIAL_UNANSWERED, f"{outcome.message}; {_again(outcome.at)}")


def _again(at: datetime) -> str:
    return f"tried again after {at + AGAIN:%Y-%m-%dT%H:%MZ}, or at once where the spec is edited"


def _evaluate(change: _Change | None, gate: GatePolicy, evaluation: str, case: Case) -> Evaluate:
    """Return that the team's evaluation is to score a change, or the present setting."""
    candidate = change.candidate if change else None
    subject = candidate.method if candidate else "the present setting"
    keep = candidate.keep if candidate else None
    given, stale = gate.reference, ""
    if given is not None and given.configuration != case.template:
        stale = (
            f"; spec.compression.baseline.accuracy is of {given.configuration}, and this is {case.template}"
        )
    return Evaluate(
        subject=subject,
        change=change.edit if change else None,
        tried=change.tried if change else case.template,
        cron_job=gate.cron_job,
        evaluation=evaluation,
        budget=keep.budget if keep else None,
        cache_types=candidate.cache_types if candidate else (),
        limit=gate.timeout,
        reason=Reason.ACCURACY_EVALUATED,
        message=f"CronJob/{gate.cron_job} is to score {subject} on a trial pod{stale}",
    )
