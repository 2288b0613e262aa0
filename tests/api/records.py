"""A record with everything in it."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from kvmedic.model.compression import Figures
from kvmedic.model.engine import Knob
from kvmedic.model.plan import Goal, Plan
from kvmedic.model.reasons import Reason
from kvmedic.model.run import Approved, CostSoFar, Outcome, StepState
from kvmedic.model.spec import RotationLabel, RunSpec
from kvmedic.model.status import (
    Attempt,
    CapChange,
    ClosedRun,
    Condition,
    ConditionType,
    LastGood,
    Load,
    MethodBaseline,
    Record,
    RunbookSwitch,
    Severity,
    ShownDiagnosis,
    ShownPlan,
    SizedCap,
    TemporaryChange,
    Truth,
    Urgency,
)
from run_builder import NEW, NOW, OLD, SCALE, STEP, a_failure, a_run, a_scaling, an_intent


def approved_record() -> Record:
    """Return a record of mode Approve: a plan as approvals bind to it, and runs that were opened on one."""
    record, used = full_record(), Approved("chat-x7", "11111111-2222-3333-4444-555555555555")
    plan = Plan((STEP,), "uid-1", OLD, 3, Reason.CAP_RIGHT_SIZED, "16 fit")
    assert record.run is not None
    return replace(
        record,
        plan=ShownPlan(plan.digest, plan.reason, plan.message, (STEP.line(),), NOW, plan),
        run=replace(record.run, approval=used),
        history=tuple(replace(run, approval=used) for run in record.history),
    )


def holding_record() -> Record:
    """Return a record that holds replicas for a while, with a run that gives them back."""
    run_spec = RunSpec(RotationLabel("serving", "draining"), timedelta(minutes=10))
    held = TemporaryChange(
        step=replace(SCALE, template=OLD),
        run="20260301-020000",
        target_uid="uid-1",
        at=NOW - timedelta(hours=2),
        fewest=3,
        load=Load(20.0, 380.0, 64.0, 190.0),
        run_spec=run_spec,
        calm_since=NOW - timedelta(hours=1),
        outlook="3 replicas would run 9.1 sequences each",
        looked_at=NOW,
    )
    run = a_run(StepState.ROLLING_OUT, a_scaling(2, 4, 3), step=SCALE.inverse())
    step = replace(STEP, knob=Knob.KV_OFFLOADING_SIZE, before=None, after="32", after_template=OLD)
    setting = TemporaryChange(
        step=replace(step, reason=Reason.HOST_MEMORY_USED),
        run="20260301-000000",
        target_uid="uid-1",
        at=NOW - timedelta(hours=3),
        load=Load(20.0, 380.0, 64.0, 190.0),
        run_spec=run_spec,
        calm_since=NOW - timedelta(hours=1),
        outlook="without it 3 replicas would run 9.1 sequences each",
        looked_at=NOW,
    )
    then, load = NOW - timedelta(hours=2), Load(9.0, 200.0, 64.0, 190.0)
    tried = (
        a_failure(Attempt.ADD_REPLICAS, 4, change="replicas 4 -> 5"),
        a_failure(Attempt.GIVE_BACK, setting.knob, change="kvOffloadingSize 32 -> None", at=then, load=load),
    )
    return replace(
        full_record(),
        run=replace(run, goal=Goal.CALM, baseline=None, run_spec=run_spec),
        temporary=(held, setting),
        failed_attempts=tried,
    )


def full_record() -> Record:
    run = replace(
        a_run(StepState.ROLLING_OUT, an_intent(2, "Pulse")),
        ending=Outcome(Reason.NOT_RECOVERED, "3.1 preemptions per request, 2.5 before"),
    )
    return Record(
        observed_generation=3,
        conditions=(
            Condition(ConditionType.READY, Truth.TRUE, Reason.TARGET_FOUND, "found", NOW, 3),
            Condition(ConditionType.DIAGNOSED, Truth.TRUE, Reason.FLEET_WIDE_DEMAND, "3 of 3", NOW, 3),
        ),
        diagnosis=ShownDiagnosis(
            Reason.FLEET_WIDE_DEMAND, "3 of 3 replicas", "PreemptionThrash", NOW, ("llm-a: 2.5 per request",)
        ),
        plan=ShownPlan("0123456789abcdef", Reason.CAP_RIGHT_SIZED, "fits", (STEP.line(),), NOW),
        last_good=LastGood(OLD, {"maxNumSeqs": "64"}, 3, 149, NOW),
        run=run,
        failed_attempts=(
            a_failure(Attempt.TURN_LEVER, "maxNumSeqs", change="maxNumSeqs 64 -> 16", blocks=149),
        ),
        history=(
            ClosedRun(
                id="1",
                reason=Reason.FLEET_WIDE_DEMAND,
                outcome=Reason.RECOVERED,
                message="0.2 preemptions per request",
                steps=(f"{STEP.line()}: Kept",),
                started_at=NOW - timedelta(hours=1),
                ended_at=NOW,
            ),
        ),
    )


def urgent_record() -> Record:
    """Return a record with an urgency, and a run whose cost was counted."""
    record = full_record()
    assert record.run.baseline is not None
    figures = replace(record.run.baseline, models=("chat",), aborted_share=0.01, memory_free_mib=4000)
    figures = replace(figures, peak_tokens_per_second=900.0)
    step = replace(record.run.steps[0], after=figures)
    spent = CostSoFar(NOW, 1, 120.5, 2, 1)
    return replace(
        record,
        run=replace(record.run, baseline=figures, steps=(step,), gpus=4, cost_so_far=spent),
        sized=SizedCap(OLD, "16", NOW, True, "64", (CapChange("64", "16", NOW),), figures),
        urgency=Urgency(Severity.PAGE, "whole request p95 40 s, objective 30 s", NOW, ("e2eP95",)),
    )


def baseline_record() -> Record:
    """Return a record with the fleet before its KV cache was compressed."""
    figures = Figures(20.0, 3800.0, 0.1, 0.9, e2e_p95=9.5)
    record = full_record()
    assert record.last_good is not None
    good = replace(record.last_good, method="TriAttention", figures=figures)
    return replace(record, last_good=good, baseline=MethodBaseline("TriAttention", NEW, figures, NOW))


def doubtful_record() -> Record:
    """Return a record that says why figures of before say nothing of the method."""
    baseline = MethodBaseline("TriAttention", NEW, Figures(), NOW, "more changed than TriAttention")
    return replace(full_record(), baseline=baseline)


def switched_record() -> Record:
    """Return a record in which one runbook handed the fleet to the other."""
    given = RunbookSwitch(
        "CompressionWithoutSavings",
        "PreemptionThrash",
        Reason.PRESSED_THOUGH_COMPRESSED,
        "blocks come back; PreemptionThrash goes on: FleetWideDemand",
        "0123456789abcdef",
        3,
        NOW,
    )
    return replace(full_record(), runbook_switches=(given,))
