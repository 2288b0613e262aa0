"""What one resource's stored status says to the others; what cannot be read counts on the safe side."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from kvmedic.api.status import record_to_wire
from kvmedic.model.reasons import Reason
from kvmedic.model.run import Outcome, StepState
from kvmedic.model.status import ClosedRun, Record
from kvmedic.record.runs import report_decision
from kvmedic.record.store import LONG_AGO, peer_of
from kvmedic.rollout.gates.runs_at_once import BadEnd
from run_builder import NOW, a_run, an_intent

BODY = {
    "metadata": {"namespace": "serving", "name": "chat", "uid": "u"},
    "spec": {"targetRef": {"kind": "Deployment", "name": "llm"}},
}


def body(record: Record | None = None, **status: Any) -> dict[str, Any]:
    wire = record_to_wire(record, "") if record else {}
    return {**BODY, "status": {**wire, **status}}


def closed(outcome: Reason, minutes_ago: float) -> ClosedRun:
    end = NOW - timedelta(minutes=minutes_ago)
    return ClosedRun("1", Reason.FLEET_WIDE_DEMAND, outcome, "", (), end, end)


def test_a_resource_without_a_status_has_no_run():
    found = peer_of(BODY)

    assert (str(found), found.uid, found.target) == ("serving/chat", "u", "llm")
    assert (found.opened_at, found.begun, found.bad_ends) == (None, False, ())


@pytest.mark.parametrize(
    ("run", "begun"), [(a_run(), False), (a_run(StepState.ROLLING_OUT, an_intent()), True)]
)
def test_an_open_run_has_begun_once_an_assignment_is_written_down(run, begun):
    found = peer_of(body(Record(run=run)))

    assert (found.opened_at, found.begun) == (run.started_at, begun)


@pytest.mark.parametrize(
    ("state", "reason", "takes_a_place"),
    [
        (StepState.VERIFYING, Reason.VERIFYING, True),
        (StepState.VERIFYING, Reason.TOO_FEW_REQUESTS, False),
        (StepState.ROLLING_OUT, Reason.AWAITING_REPLICA, True),
        (StepState.ROLLING_BACK, Reason.TOO_FEW_REQUESTS, True),
    ],
    ids=["its window is open", "its verdict is waited for", "it walks", "it walks back"],
)
def test_a_run_that_waits_for_a_verdict_takes_no_place(state, reason, *, takes_a_place):
    run = a_run(state, an_intent())
    record = report_decision(Record(run=run), Outcome(reason, ""), 1, NOW)

    found = peer_of(body(record))

    assert (found.opened_at is not None) is takes_a_place
    assert found.begun


@pytest.mark.parametrize(
    "run", [{"id": "1"}, {"startedAt": "soon"}, {"startedAt": "2026-03-01T03:00:00"}, "x"]
)
def test_a_run_that_cannot_be_read_keeps_its_place(run):
    found = peer_of(body(run=run))

    assert (found.opened_at, found.begun) == (LONG_AGO, True)


def test_only_bad_ends_are_kept_and_unknown_ones_are_passed_over():
    history = (closed(Reason.RECOVERED, 1), closed(Reason.NOT_RECOVERED, 2), closed(Reason.FLAG_DRIFTED, 3))
    record = replace(Record(), history=history)
    stored = body(record)
    stored["status"]["history"] += [{"outcome": "Transcended", "endedAt": "2026-03-01T03:00:00Z"}]
    stored["status"]["history"] += [{"outcome": "NotRecovered", "endedAt": None}]

    found = peer_of(stored)

    assert found.bad_ends == (BadEnd("serving", "chat", Reason.NOT_RECOVERED, NOW - timedelta(minutes=2)),)
