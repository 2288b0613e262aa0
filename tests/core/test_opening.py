from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from kvmedic.model.plan import Goal, Plan
from kvmedic.model.run import StepState
from kvmedic.verdict.summary import Measure, run_of
from run_builder import a_fleet, a_run

AT = datetime(2026, 3, 1, 1, 30, tzinfo=timezone(timedelta(hours=2)))


def a_plan() -> Plan:
    step = a_run().current.step
    return Plan((step,), "uid", "template", 3, step.reason, "because")


def test_a_run_is_named_by_its_start_wherever_the_clock_is():
    run = run_of(a_plan(), a_fleet(), {}, Measure(Goal.CALM), AT)

    assert (run.id, run.started_at) == ("20260228-233000", AT.astimezone(UTC))


def test_a_run_begins_with_the_plan_and_with_the_fleet_as_it_was():
    plan, fleet = a_plan(), a_fleet()

    run = run_of(plan, fleet, {}, Measure(Goal.CALM, blocks=7), AT)

    assert [(each.step, each.state) for each in run.steps] == [(plan.steps[0], StepState.PENDING)]
    assert (run.digest, run.spec_generation, run.message) == (plan.digest, 3, "because")
    assert (run.recorded, run.replicas, run.target_uid) == (fleet.fields, fleet.replicas, fleet.uid)
    assert (run.blocks, run.intent, run.gpus) == (7, None, None)


def test_a_run_that_is_to_relieve_needs_figures_of_before():
    with pytest.raises(ValueError, match="needs the baseline"):
        run_of(a_plan(), a_fleet(), {}, Measure(Goal.RELIEF), AT)
