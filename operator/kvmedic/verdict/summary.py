"""The run that a plan becomes; and what it changed, brought and cost, said once when it is over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from kvmedic.model.fleet import Fleet
from kvmedic.model.plan import Goal, Plan
from kvmedic.model.run import Baseline, Cost, Outcome, Run, Shift, StepRecord, StepState, Summary, devices_of


def summary_of(run: Run, outcome: Outcome, now: datetime) -> Summary | None:
    """Return what there is to say about a run that ends, or None where it never touched anything."""
    if run.intent is None:
        return None
    before = run.baseline
    after = next((step.after for step in reversed(run.steps) if step.after is not None), None)
    brought: tuple[Shift, ...] = ()
    first, gains, waits = None, "what it brought was not measured", ""
    if before is not None and after is not None:
        figures = [_shown_figures(each) for each in (before, after)]
        brought = tuple(Shift(name, then, figures[1][name]) for name, then in figures[0].items())
        texts = {shift.name: f"{shift.before:.3g} -> {shift.after:.3g}" for shift in brought}
        gains = (
            f"tokens/s and replica served in time {texts['servedInTimePerSecondAndReplica']}, "
            f"preemptions per request {texts['preemptionsPerRequest']}, longest gap of one request in twenty "
            f"{texts['interTokenTailSeconds']} s, tokens/s and replica "
            f"{texts['tokensPerSecondAndReplica']}, whole request p95 {texts['endToEndP95Seconds']} s"
        )
        late = before.time_to_first_token_p95_seconds, after.time_to_first_token_p95_seconds
        first = Shift("timeToFirstTokenP95Seconds", *late)
        waits = f"first token p95 {late[0]:.3g} -> {late[1]:.3g} s, "
    cost = _cost(run, first)
    gpus, seconds = cost.spare_gpu_seconds, cost.spare_replica_seconds
    spare = f"{seconds:.0f} replica-seconds" if gpus is None else f"{gpus:.0f} GPU-seconds"
    changed = tuple(f"{step.step.line()}: {step.state}" for step in run.steps)
    price = f"{waits}replicas started {cost.replicas_started}, {spare} of spares"
    sentence = f"{'; '.join(changed)} ({outcome.reason}): {gains}; cost: {price}."
    return Summary(run.id, now, outcome.reason, sentence, changed, cost, brought)


def _shown_figures(of: Baseline) -> dict[str, float]:
    return {
        "servedInTimePerSecondAndReplica": of.served_in_time_per_second / of.replicas,
        "preemptionsPerRequest": of.preemptions_per_request,
        "stallsPerRequest": of.stalls_per_request,
        "interTokenTailSeconds": of.inter_token_tail_seconds,
        "interTokenP95Seconds": of.inter_token_p95_seconds,
        "endToEndP95Seconds": of.end_to_end_p95_seconds,
        "tokensPerSecondAndReplica": of.generated_tokens_per_second / of.replicas,
    }


def _cost(run: Run, first_token: Shift | None) -> Cost:
    cost_so_far = run.cost_so_far
    if cost_so_far is None:
        return Cost(0, 0.0, None, first_token)
    back = any(step.state in (StepState.REVERTED, StepState.ROLLING_BACK) for step in run.steps)
    again = run.replicas - cost_so_far.fewest_unchanged if back else 0
    seconds = cost_so_far.replica_seconds
    return Cost(
        replicas_started=cost_so_far.most_changed + again,
        spare_replica_seconds=round(seconds, 1),
        spare_gpu_seconds=None if run.gpus is None else round(seconds * run.gpus, 1),
        time_to_first_token_p95_seconds=first_token,
    )


@dataclass(frozen=True, slots=True)
class Measure:
    """By what the change of a run will be judged."""

    goal: Goal
    baseline: Baseline | None = None
    """The fleet before the change; None where the goal does not need it."""
    blocks: int | None = None
    """Usable KV-cache blocks of a replica; None when unknown."""


def run_of(plan: Plan, fleet: Fleet, template: Mapping[str, object], measure: Measure, now: datetime) -> Run:
    """Return the run that carries a plan out, with the fleet as it is before the first effect.

    `template` is the target's pod template. The time names the run.
    """
    return Run(
        id=now.astimezone(UTC).strftime("%Y%m%d-%H%M%S"),
        target_uid=fleet.uid,
        digest=plan.digest,
        reason=plan.reason,
        message=plan.message,
        spec_generation=plan.spec_generation,
        started_at=now,
        steps=tuple(StepRecord(step) for step in plan.steps),
        recorded=fleet.fields,
        replicas=fleet.replicas,
        in_rotation=fleet.in_rotation,
        blocks=measure.blocks,
        baseline=measure.baseline,
        goal=measure.goal,
        gpus=devices_of(template),
    )
