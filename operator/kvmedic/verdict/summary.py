"""What a run changed, what it brought and what it cost: told once, when it is over.

The run that a plan becomes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from kvmedic.model.fleet import Fleet
from kvmedic.model.plan import Goal, Plan
from kvmedic.model.run import Baseline, Cost, Outcome, Run, Shift, StepRecord, StepState, Summary, devices_of


def summary_of(run: Run, outcome: Outcome, now: datetime) -> Summary | None:
    """Return what there is to say about a run that ends, or None where it never touched anything."""
    if run.intent is None:
        return None
    after = next((step.after for step in reversed(run.steps) if step.after is not None), None)
    judged = (run.baseline, after) if run.baseline is not None and after is not None else None
    brought = tuple(_brought(*judged)) if judged else ()
    cost = _cost(run, _first_token(*judged) if judged else None)
    changed = tuple(f"{step.step.line()}: {step.state}" for step in run.steps)
    sentence = f"{'; '.join(changed)} ({outcome.reason}): {_gains(brought)}; cost: {_price(cost)}."
    return Summary(run.id, now, outcome.reason, sentence, changed, cost, brought)


def _brought(before: Baseline, after: Baseline) -> Iterator[Shift]:
    for name, then, now in (
        ("preemptionsPerRequest", before.preemptions_per_request, after.preemptions_per_request),
        ("stallsPerRequest", before.stalls_per_request, after.stalls_per_request),
        ("interTokenTailSeconds", before.inter_token_tail_seconds, after.inter_token_tail_seconds),
        ("interTokenP95Seconds", before.inter_token_p95_seconds, after.inter_token_p95_seconds),
        ("endToEndP95Seconds", before.end_to_end_p95_seconds, after.end_to_end_p95_seconds),
        (
            "tokensPerSecondAndReplica",
            before.generated_tokens_per_second / before.replicas,
            after.generated_tokens_per_second / after.replicas,
        ),
    ):
        yield Shift(name, then, now)


def _first_token(before: Baseline, after: Baseline) -> Shift:
    name = "timeToFirstTokenP95Seconds"
    return Shift(name, before.time_to_first_token_p95_seconds, after.time_to_first_token_p95_seconds)


def _cost(run: Run, first_token: Shift | None) -> Cost:
    spending = run.spending
    if spending is None:
        return Cost(0, 0.0, None, first_token)
    back = any(step.state in (StepState.REVERTED, StepState.ROLLING_BACK) for step in run.steps)
    again = run.replicas - spending.fewest_unchanged if back else 0
    seconds = spending.replica_seconds
    return Cost(
        replicas_started=spending.most_changed + again,
        spare_replica_seconds=round(seconds, 1),
        spare_gpu_seconds=None if run.gpus is None else round(seconds * run.gpus, 1),
        time_to_first_token_p95_seconds=first_token,
    )


def _gains(brought: tuple[Shift, ...]) -> str:
    if not brought:
        return "what it brought was not measured"
    told = {shift.name: f"{shift.before:.3g} -> {shift.after:.3g}" for shift in brought}
    return (
        f"preemptions per request {told['preemptionsPerRequest']}, longest gap of one request in twenty "
        f"{told['interTokenTailSeconds']} s, tokens/s and replica {told['tokensPerSecondAndReplica']}, whole "
        f"request p95 {told['endToEndP95Seconds']} s"
    )


def _price(cost: Cost) -> str:
    first = cost.time_to_first_token_p95_seconds
    waits = f"first token p95 {first.before:.3g} -> {first.after:.3g} s, " if first else ""
    spare = (
        f"{cost.spare_replica_seconds:.0f} replica-seconds"
        if cost.spare_gpu_seconds is None
        else f"{cost.spare_gpu_seconds:.0f} GPU-seconds"
    )
    return f"{waits}replicas started {cost.replicas_started}, {spare} of spares"


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

    Args:
        plan: what is to be done.
        fleet: the target.
        template: its pod template.
        measure: by what the change will be judged.
        now: the time; it names the run.
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
