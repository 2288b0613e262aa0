"""Did a change do what it was for? One rule per goal and kind of step, then the vetoes.

* Relief: fewer preemptions and smoother answers, or clearly more served in time, or an objective met again.
  Where users waited and nothing else was wrong, they must wait less. One replica in ten hardly shows in the
  fleet's figures, so where one was replaced no replica may be beyond the trigger any more. What each replica
  gets changes by design with their number, so more replicas are judged by the fleet's sums.
* No worse: taking away what brought nothing helps nobody by itself, and must harm nobody either.
* Stays up: replicas that restart have no figures. No replica that runs the change may restart
  **while requests are served**: without traffic nothing runs out of memory, and nothing is proven.
* Calm: a fleet does with less, whatever the load is now, and breaks no objective that it met.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from kvmedic.model.evidence import Inconclusive, Signal
from kvmedic.model.plan import BundleStep, Change, FlagStep, Goal, ReplaceStep, ReplicasStep, RevisionStep
from kvmedic.model.readings import gather_values, number_or_none, total
from kvmedic.model.reasons import Reason
from kvmedic.model.run import Baseline, Judged, Verdict
from kvmedic.verdict.baseline import FEWEST_FINISHED, TAIL_PER_REQUEST, baseline_of
from kvmedic.verdict.comparison import QUEUED, Comparison, report_no_recovery, undecided_verdict
from kvmedic.verdict.served_in_time import first_token_limit
from kvmedic.verdict.vetoes import VETOES, VerdictInput, confirm_setting

STAYS_UP_SIGNALS = frozenset({Signal.REQUESTS_FINISHED})
"""Signals that show of every replica whether it serves."""
PRESSURE_SIGNALS = frozenset({Signal.PREEMPTIONS, Signal.REQUESTS_FINISHED})
"""Signals that show of every replica whether it is beyond the trigger."""


def judge(goal: Goal, step: Change, given: VerdictInput) -> Judged:
    """Return the verdict on a change: by the rule of its goal, then in view of each veto, in their order."""
    judged = next(rule for rule in RULES if goal is rule.goal and isinstance(step, rule.steps)).judge(given)
    for veto in VETOES:
        judged = veto(judged, given)
    return judged


def judge_relief(given: VerdictInput) -> Judged:
    """Return whether the fleet is better off, and whether what was turned is what helped."""
    change = _compare_windows(given)
    if isinstance(change, Judged):
        return change
    return confirm_setting(compare_for_relief(change), change, given)


def compare_for_relief(change: Comparison) -> Judged:
    """Return whether a fleet is better off with a change, by its figures before and after."""
    good = Verdict.IMPROVED if change.list_misses() else Verdict.RECOVERED
    gains = change.brings_within() or change.serves_clearly_more()
    is_gone = change.is_calm() and change.is_smooth()
    if not change.is_harmless():
        return change.conclude(Verdict.NOT_RECOVERED)
    if change.was_silence_alone() and not gains:
        if not change.shortens_silence():
            return change.conclude(Verdict.NOT_RECOVERED, "users wait about as long as before; ")
        if is_gone or change.serves_more_sooner():
            return change.conclude(good if is_gone else Verdict.IMPROVED)
        return change.conclude(Verdict.NOT_RECOVERED, "users wait less, but no more is served in time; ")
    if is_gone or change.brings_within():
        return change.conclude(good)
    return change.conclude(Verdict.IMPROVED if gains or change.is_better() else Verdict.NOT_RECOVERED)


def judge_no_worse(given: VerdictInput) -> Judged:
    """Return whether the fleet is no worse off."""
    change = _compare_windows(given)
    return change if isinstance(change, Judged) else compare_for_no_worse(change)


def compare_for_no_worse(change: Comparison) -> Judged:
    """Return whether a fleet is no worse off with a change, by its figures before and after."""
    if worse := change.find_worsening():
        return change.conclude(Verdict.NOT_RECOVERED, f"{worse}; ")
    return change.conclude(Verdict.RECOVERED, "no worse than before; ")


def judge_replacement(given: VerdictInput) -> Judged:
    """Return whether no replica is beyond the trigger any more, and what the fleet had is there still."""
    change = _compare_windows(given, "since the replacement")
    if isinstance(change, Judged):
        return change
    rates = {
        name: (number_or_none(pod, Signal.PREEMPTIONS) or 0.0)
        / max(1.0, number_or_none(pod, Signal.REQUESTS_FINISHED) or 0.0)
        for name, pod in sorted(given.looked.pods.items())
    }
    if hot := _replicas_over_trigger(rates, given):
        return change.conclude(Verdict.NOT_RECOVERED, f"beyond the trigger: {hot}; ")
    if not change.is_harmless():
        return change.conclude(Verdict.NOT_RECOVERED)
    verdict = Verdict.IMPROVED if change.list_misses() else Verdict.RECOVERED
    return change.conclude(verdict, "no replica is beyond the trigger; ")


def judge_more(given: VerdictInput) -> Judged:
    """Return whether more replicas helped, by the sums of the whole fleet."""
    change = _compare_windows(given, "since the number of replicas was raised")
    if isinstance(change, Judged):
        return change
    before, after = change.before, change.after
    found = compare_for_relief(replace(change, after=replace(after, replicas=before.replicas)))
    text = f"{before.replicas} -> {after.replicas} replicas, the fleet's figures: {found.message}"
    return replace(found, message=text, after=after)


def share_of(figures: Baseline, share: float) -> Baseline:
    """Return the figures of a part of a fleet; `share`: of its load, above 1 for a larger part."""
    return replace(
        figures,
        requests_per_second=share * figures.requests_per_second,
        generated_tokens_per_second=share * figures.generated_tokens_per_second,
        served_in_time_per_second=share * figures.served_in_time_per_second,
        waiting_mean=share * figures.waiting_mean,
    )


def judge_stays_up(given: VerdictInput) -> Judged:
    """Return whether replicas stay up with a change while they serve."""
    if down := _report_restarts(given):
        return down
    found = gather_values(given.looked, STAYS_UP_SIGNALS)
    if isinstance(found, Inconclusive):
        return undecided_verdict(found)
    finished = total(found, Signal.REQUESTS_FINISHED)
    seen = f"{finished:.0f} requests finished in {given.looked.window_seconds:.0f} s"
    if finished < FEWEST_FINISHED:
        text = f"{seen}, {FEWEST_FINISHED} are needed: without load nothing runs out of memory; wait"
        return Judged(Verdict.INCONCLUSIVE, Reason.TOO_FEW_REQUESTS, text)
    text = f"none of {len(found)} replicas restarted; {seen}"
    return Judged(Verdict.RECOVERED, Reason.RECOVERED, text)


def judge_fewer(given: VerdictInput) -> Judged:
    """Return whether it stays calm with fewer replicas; those that serve nothing are calm."""
    judged = _is_calm(given)
    if judged.verdict is not Verdict.NOT_RECOVERED:
        return judged
    return replace(judged, message=f"{len(given.looked.pods)} replicas are too few: {judged.message}")


def judge_without(given: VerdictInput) -> Judged:
    """Return whether it stays calm without a temporary setting, and answers do not hang again.

    Answers that hang are what host memory is used for. A fleet that hardly serves has none.
    """
    if down := _report_restarts(given):
        return down
    judged = _is_calm(given)
    after = _figures_after(given)
    if judged.verdict is not Verdict.RECOVERED or isinstance(after, Inconclusive):
        return judged
    stalls, had = after.stalls_per_request, given.before.stalls_per_request if given.before else 0.0
    text = f"{judged.message}; {stalls:.2f} stalls per request, {had:.2f} before"
    if stalls >= TAIL_PER_REQUEST and stalls > had:
        return report_no_recovery(f"answers hang again: {text}", after)
    return replace(judged, message=text, after=after)


@dataclass(frozen=True, slots=True)
class Rule:
    """By what one goal is judged, of some kinds of steps."""

    goal: Goal
    steps: tuple[type[Change], ...]
    judge: Callable[[VerdictInput], Judged]


_SETTING = (FlagStep,)
_TEMPLATE = (*_SETTING, BundleStep, RevisionStep)
_NUMBER = (ReplicasStep,)
_EVERY = (*_TEMPLATE, *_NUMBER, ReplaceStep)

RULES = (
    Rule(Goal.STAYS_UP, _EVERY, judge_stays_up),
    Rule(Goal.NO_WORSE, _EVERY, judge_no_worse),
    Rule(Goal.CALM, _SETTING, judge_without),
    Rule(Goal.CALM, _EVERY, judge_fewer),
    Rule(Goal.RELIEF, (ReplaceStep,), judge_replacement),
    Rule(Goal.RELIEF, _NUMBER, judge_more),
    Rule(Goal.RELIEF, _EVERY, judge_relief),
)
"""First match wins. Without figures of before, a goal that compares asks whether replicas stay up."""


def _compare_windows(
    given: VerdictInput, since: str = "of replicas that run the change"
) -> Comparison | Judged:
    """Return the figures before and after, or the verdict that needs none; `since`: which restarts count."""
    if given.before is None:
        return judge_stays_up(given)
    if down := _report_restarts(given, since):
        return down
    after = _figures_after(given)
    if isinstance(after, Inconclusive):
        return undecided_verdict(after)
    return Comparison(given.before, after, given.objectives, given.trigger)


def _figures_after(given: VerdictInput) -> Baseline | Inconclusive:
    """Return the figures of the window; what is in time is as before, also where the objective changed."""
    before = given.before
    limit = first_token_limit(given.objectives) if before is None else before.first_token_limit_seconds
    return baseline_of(given.looked, given.restarts, limit)


def _report_restarts(given: VerdictInput, since: str = "of replicas that run the change") -> Judged | None:
    return report_no_recovery(f"{given.restarts} restarts {since}") if given.restarts > 0 else None


def _is_calm(given: VerdictInput) -> Judged:
    """Return whether no replica is beyond the trigger over the whole window, and no objective is broken."""
    found = gather_values(given.looked, PRESSURE_SIGNALS)
    if isinstance(found, Inconclusive):
        return undecided_verdict(found)
    rates = {name: one.preemptions_per_request for name, one in found.items()}
    if hot := _replicas_over_trigger(rates, given):
        return report_no_recovery(f"beyond the trigger are {hot}")
    after = _figures_after(given)
    if given.before is not None and isinstance(after, Baseline):
        change = Comparison(given.before, after, given.objectives, given.trigger)
        if change.breaks_objective():
            return report_no_recovery(f"an objective is broken: {', '.join(change.list_misses())}", after)
    text = f"{len(found)} replicas have {max(rates.values()):.2f} preemptions per request at most"
    if queues := _queues_over_trigger(given):
        return report_no_recovery(f"users are kept waiting by {queues}")
    limit = given.trigger.preemptions_per_request
    return Judged(Verdict.RECOVERED, Reason.RECOVERED, f"{text}, limit {limit:g}")


def _queues_over_trigger(given: VerdictInput) -> str:
    """Return the replicas that keep users waiting beyond the trigger; empty where none is known to."""
    limit, found = given.trigger.silent_seconds, []
    for name, pod in sorted(given.looked.pods.items()):
        silent, waiting = (
            number_or_none(pod, one) for one in (Signal.SILENT_SECONDS_HELD, Signal.WAITING_MEAN)
        )
        if (waiting or 0.0) >= QUEUED and (silent or 0.0) > limit:
            found.append(f"{name} ({silent:.1f} s per request, limit {limit:g})")
    return ", ".join(found)


def _replicas_over_trigger(rates: dict[str, float], given: VerdictInput) -> str:
    """Return the replicas that preempt beyond the trigger over the whole window; empty where none does."""
    limit = given.trigger.preemptions_per_request
    return ", ".join(f"{name} ({rate:.2f} per request)" for name, rate in rates.items() if rate > limit)
