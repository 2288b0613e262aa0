"""The run that a plan becomes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from kvmedic.core.diagnosis import Goal
from kvmedic.core.fleet import Fleet
from kvmedic.core.plan import Plan
from kvmedic.core.run import Run, StepRecord
from kvmedic.core.spending import devices_of
from kvmedic.core.verdict import Baseline


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
