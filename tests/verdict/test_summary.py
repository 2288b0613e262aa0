"""The run that a plan becomes, and what is said of it at its end."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone

import pytest

from kvmedic.model.plan import Goal, Plan
from kvmedic.model.reasons import Reason
from kvmedic.model.run import CostSoFar, Judged, Outcome, Run, Shift, StepState, Summary, Verdict
from kvmedic.verdict.summary import Measure, run_of, summary_of
from run_builder import BASELINE, NOW, a_fleet, a_run, an_intent

AFTER = replace(
    BASELINE,
    replicas=2,
    preemptions_per_request=0.1,
    stalls_per_request=0.0,
    inter_token_tail_seconds=0.3,
    generated_tokens_per_second=800,
    served_in_time_per_second=800,
    time_to_first_token_p95_seconds=1.5,
    end_to_end_p95_seconds=13.0,
)
COST_SO_FAR = CostSoFar(NOW, 0, 120.04, most_changed=3, fewest_unchanged=0)
GOOD = Judged(Verdict.RECOVERED, Reason.RECOVERED, "better", AFTER)
BAD = Outcome(Reason.NOT_RECOVERED, "worse")


def verified(cost_so_far: CostSoFar | None = COST_SO_FAR, gpus: int | None = 4) -> Run:
    return replace(a_run(StepState.VERIFYING, an_intent()), cost_so_far=cost_so_far, gpus=gpus)


def summarise_run(run: Run, outcome: Outcome = BAD) -> Summary:
    found = summary_of(run, outcome, NOW)
    assert found is not None
    return found


def test_a_kept_change_is_reported_with_what_it_brought_and_what_it_cost() -> None:
    found = summarise_run(verified().keep_step(GOOD), Outcome(Reason.RECOVERED, "better"))

    assert (found.run, found.at, found.outcome) == ("20260301-025500", NOW, Reason.RECOVERED)
    assert found.changed == ("Deployment/llm: maxNumSeqs 64 -> 16: Kept",)
    assert {shift.name: (shift.before, shift.after) for shift in found.brought} == {
        "servedInTimePerSecondAndReplica": (344, 400),
        "preemptionsPerRequest": (2.5, 0.1),
        "stallsPerRequest": (0.1, 0.0),
        "interTokenTailSeconds": (2.0, 0.3),
        "interTokenP95Seconds": (0.08, 0.08),
        "endToEndP95Seconds": (14.0, 13.0),
        "tokensPerSecondAndReplica": (380, 400),
    }
    assert found.cost.time_to_first_token_p95_seconds == Shift("timeToFirstTokenP95Seconds", 1.0, 1.5)
    assert (found.cost.replicas_started, found.cost.spare_replica_seconds) == (3, 120.0)
    assert found.cost.spare_gpu_seconds == 480.2
    assert found.sentence == (
        "Deployment/llm: maxNumSeqs 64 -> 16: Kept (Recovered): tokens/s and replica served in time 344 -> "
        "400, preemptions per request 2.5 -> 0.1, longest gap of one request in twenty 2 -> 0.3 s, "
        "tokens/s and replica 380 -> 400, whole request p95 14 -> 13 s; cost: first token p95 1 -> 1.5 s, "
        "replicas started 3, 480 GPU-seconds of spares."
    )


def test_a_change_that_was_taken_back_is_reported_with_the_restarts_of_both_ways() -> None:
    found = summarise_run(verified().turn_step_back(BAD, Verdict.NOT_RECOVERED, AFTER).end_reverted())

    assert found.changed == ("Deployment/llm: maxNumSeqs 64 -> 16: Reverted",)
    assert found.brought[:2] == (
        Shift("servedInTimePerSecondAndReplica", 344.0, 400.0),
        Shift("preemptionsPerRequest", 2.5, 0.1),
    )
    assert found.cost.replicas_started == 3 + 3


def test_a_canary_that_failed_cost_one_start_and_brought_nothing_that_was_measured() -> None:
    canary = CostSoFar(NOW, 0, 90, most_changed=1, fewest_unchanged=3)
    run = replace(a_run(StepState.ROLLING_OUT, an_intent()), cost_so_far=canary)

    found = summarise_run(run.turn_step_back(Outcome(Reason.CANARY_FAILED, "no"), None).end_reverted())

    assert (found.brought, found.cost.replicas_started) == ((), 1)
    assert found.cost.time_to_first_token_p95_seconds is None
    assert (
        "(NotRecovered): what it brought was not measured; cost: replicas started 1, 90 replica-seconds"
        in (found.sentence)
    )


@pytest.mark.parametrize("cost_so_far", [None, COST_SO_FAR])
def test_without_gpus_in_the_template_replicas_are_what_is_counted(cost_so_far: CostSoFar | None) -> None:
    found = summarise_run(verified(cost_so_far, gpus=None).keep_step(GOOD))

    assert found.cost.spare_gpu_seconds is None
    assert f"{found.cost.spare_replica_seconds:.0f} replica-seconds of spares" in found.sentence


def test_a_run_that_touched_nothing_has_no_summary() -> None:
    assert summary_of(a_run(), Outcome(Reason.STOPPED, ""), NOW) is None


def test_a_change_that_was_judged_without_figures_of_before_brought_nothing_to_report() -> None:
    run = verified().keep_step(replace(GOOD, after=None))

    assert summarise_run(run).brought == ()


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
