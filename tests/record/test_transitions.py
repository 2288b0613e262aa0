"""What people are told when a record changes."""

from __future__ import annotations

from dataclasses import replace

from kvmedic.core.reasons import Reason
from kvmedic.core.record import Record, ShownDiagnosis
from kvmedic.core.run import StepState
from kvmedic.record.transitions import notes
from run_builder import NOW, a_run, an_intent

HEALTHY = ShownDiagnosis(Reason.HEALTHY, "all calm", "PreemptionThrash", NOW)
DEMAND = ShownDiagnosis(Reason.FLEET_WIDE_DEMAND, "all preempt", "PreemptionThrash", NOW)


def told(before: Record | None, after: Record) -> list[Reason]:
    return [note.reason for note in notes(before, after)]


def test_the_diagnosis_that_a_run_is_opened_on_is_told_before_the_plan() -> None:
    opened = Record(diagnosis=DEMAND, run=a_run(StepState.PENDING))

    assert told(Record(diagnosis=HEALTHY), opened) == [Reason.FLEET_WIDE_DEMAND, Reason.PLANNED]
    assert told(Record(diagnosis=DEMAND), opened) == [Reason.PLANNED]


def test_a_diagnosis_is_told_once_however_often_it_is_made() -> None:
    again = Record(diagnosis=replace(DEMAND, message="other numbers"))

    assert told(None, Record(diagnosis=DEMAND)) == [Reason.FLEET_WIDE_DEMAND]
    assert told(Record(diagnosis=DEMAND), again) == []


def test_a_run_tells_each_state_once() -> None:
    rolling = Record(diagnosis=DEMAND, run=a_run(StepState.ROLLING_OUT, an_intent()))

    assert told(Record(diagnosis=DEMAND, run=a_run(StepState.PENDING)), rolling) == [Reason.ROLLING_OUT]
    assert told(rolling, rolling) == []
