"""A record with everything in it."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from kvmedic.core.engine import Knob
from kvmedic.core.plan import Plan
from kvmedic.core.reasons import Reason
from kvmedic.core.record import (
    ClosedRun,
    Condition,
    ConditionType,
    LastGood,
    Record,
    ShownDiagnosis,
    ShownPlan,
    TriedLever,
    Truth,
)
from kvmedic.core.run import Approved, Outcome, StepState
from kvmedic.core.verdict import Verdict
from run_builder import NOW, OLD, STEP, a_run, an_intent


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
        levers=(TriedLever(Knob.MAX_NUM_SEQS, OLD, 149, Verdict.NOT_RECOVERED, NOW),),
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
