"""What Events report when a record changes."""

from dataclasses import replace
from datetime import timedelta

import pytest

from kvmedic.model.reasons import Reason
from kvmedic.model.run import ComparisonState, Outcome, ReplicaComparison, Run, StepState
from kvmedic.model.status import (
    ClosedRun,
    ConditionType,
    Record,
    RunbookSwitch,
    Severity,
    ShownDiagnosis,
    Urgency,
)
from kvmedic.record.events import notes
from kvmedic.record.runs import report_decision
from run_builder import NOW, a_run, an_intent

HEALTHY = ShownDiagnosis(Reason.HEALTHY, "all calm", "PreemptionThrash", NOW)
DEMAND = ShownDiagnosis(Reason.FLEET_WIDE_DEMAND, "all preempt", "PreemptionThrash", NOW)


ROLLING = a_run(StepState.ROLLING_OUT, an_intent())
C = ComparisonState


def comparing(state: ComparisonState, message: str) -> Run:
    """A run in which new replicas are, or were, compared with old ones."""
    found = ReplicaComparison(NOW, ("new-0",), state, message)
    return ROLLING.with_step(replace(ROLLING.current, comparison=found))


def reasons(before: Record | None, after: Record) -> list[Reason]:
    return [note.reason for note in notes(before, after)]


def test_the_diagnosis_that_a_run_is_opened_on_is_reported_before_the_plan():
    opened = Record(diagnosis=DEMAND, run=a_run(StepState.PENDING))

    assert reasons(Record(diagnosis=HEALTHY), opened) == [Reason.FLEET_WIDE_DEMAND, Reason.PLANNED]
    assert reasons(Record(diagnosis=DEMAND), opened) == [Reason.PLANNED]


def test_a_diagnosis_is_reported_once_however_often_it_is_made():
    again = Record(diagnosis=replace(DEMAND, message="other numbers"))

    assert reasons(None, Record(diagnosis=DEMAND)) == [Reason.FLEET_WIDE_DEMAND]
    assert reasons(Record(diagnosis=DEMAND), again) == []


def test_a_run_reports_each_state_once():
    rolling = Record(diagnosis=DEMAND, run=a_run(StepState.ROLLING_OUT, an_intent()))

    assert reasons(Record(diagnosis=DEMAND, run=a_run(StepState.PENDING)), rolling) == [Reason.ROLLING_OUT]
    assert reasons(rolling, rolling) == []


def test_that_a_rollout_goes_on_after_replicas_were_compared_is_reported_once_with_the_figures():
    waiting, gone_on, without = (
        Record(diagnosis=DEMAND, run=comparing(state, message))
        for state, message in ((C.WATCHING, "3 of 150"), (C.GO_ON, "x 1.2"), (C.NOT_COMPARABLE, "by keys"))
    )

    assert reasons(Record(diagnosis=DEMAND, run=ROLLING), waiting) == []
    assert reasons(waiting, gone_on) == [Reason.REPLICAS_COMPARED]
    assert reasons(waiting, without) == [Reason.NOT_COMPARABLE]
    assert reasons(gone_on, gone_on) == []
    assert "x 1.2" in notes(waiting, gone_on)[0].message


def test_the_figures_of_a_comparison_are_said_anew_while_it_goes_on():
    shown = report_decision(Record(run=ROLLING), Outcome(Reason.COMPARING_REPLICAS, "1 min"), 1, NOW)
    later = NOW + timedelta(minutes=1)

    renewed = report_decision(shown, Outcome(Reason.COMPARING_REPLICAS, "2 min"), 1, later)
    same = report_decision(renewed, Outcome(Reason.COMPARING_REPLICAS, "2 min"), 1, later)

    condition = renewed.condition(ConditionType.PROGRESSING)
    assert condition is not None
    assert (condition.message, condition.changed_at) == ("2 min", NOW)
    assert same == renewed


LATE = Urgency(Severity.PAGE, "whole request p95 40 s, objective 30 s", NOW, ("e2eP95",))
CALMER = Urgency(Severity.TICKET, "every objective of the spec is met", NOW)


def test_a_page_is_reported_when_it_begins_and_when_it_ends_while_there_is_trouble():
    rolling = Record(diagnosis=DEMAND, run=a_run(StepState.ROLLING_OUT, an_intent()), urgency=CALMER)
    paged = replace(rolling, urgency=LATE)

    assert reasons(rolling, paged) == [Reason.OBJECTIVE_BREACHED]
    assert reasons(paged, paged) == []
    assert reasons(paged, rolling) == [Reason.OBJECTIVES_MET]
    assert reasons(paged, replace(paged, urgency=None)) == []
    assert reasons(None, Record(diagnosis=DEMAND, urgency=LATE)) == [
        Reason.FLEET_WIDE_DEMAND,
        Reason.OBJECTIVE_BREACHED,
    ]


def test_a_page_without_objectives_is_reported_by_what_is_served():
    late = replace(LATE, message="40% over 5 min", breached=("servedInTime",))
    rolling = Record(diagnosis=DEMAND, urgency=CALMER)
    paged = replace(rolling, urgency=late)

    assert reasons(rolling, paged) == [Reason.SERVED_TOO_LATE]
    assert reasons(paged, rolling) == [Reason.SERVED_IN_TIME]


def test_a_page_that_begins_is_a_warning_with_its_numbers_and_one_that_ends_is_none():
    begun, ended = (
        notes(Record(urgency=one), Record(urgency=other))[0]
        for one, other in ((CALMER, LATE), (LATE, CALMER))
    )

    assert (begun.warning, ended.warning) == (True, False)
    assert LATE.message in begun.message
    assert CALMER.message in ended.message


def test_every_note_has_the_severity_of_the_trouble_that_it_is_about():
    opened = Record(diagnosis=DEMAND, run=a_run(StepState.PENDING), urgency=LATE)
    healed = Record(diagnosis=HEALTHY)

    assert {note.severity for note in notes(Record(), opened)} == {Severity.PAGE}
    assert [note.severity for note in notes(Record(diagnosis=DEMAND), healed)] == [None]


@pytest.mark.parametrize(
    ("outcome", "warns"),
    [
        (Reason.RECOVERED, False),
        (Reason.TRIAL_ANSWERED, False),
        (Reason.TRIAL_UNANSWERED, True),
        (Reason.NOT_RECOVERED, True),
    ],
)
def test_an_end_is_a_warning_where_somebody_may_want_to_look(outcome, warns):
    open_run = a_run(StepState.VERIFYING, an_intent())
    ended = ClosedRun(open_run.id, Reason.FLEET_WIDE_DEMAND, outcome, "", (), NOW, NOW)

    (note,) = notes(Record(diagnosis=DEMAND, run=open_run), Record(diagnosis=DEMAND, history=(ended,)))

    assert (note.reason, note.warning) == (outcome, warns)


OVER = RunbookSwitch(
    "CompressionWithoutSavings",
    "PreemptionThrash",
    Reason.PRESSED_THOUGH_COMPRESSED,
    "blocks come back",
    "e" * 16,
    3,
    NOW,
)


def test_a_switch_of_runbooks_is_reported_once_also_where_a_run_is_opened_on_it():
    before, seen = Record(diagnosis=HEALTHY), Record(diagnosis=DEMAND, runbook_switches=(OVER,))
    opened = replace(seen, run=a_run(StepState.PENDING))

    assert reasons(before, seen) == [Reason.RUNBOOK_SWITCHED, Reason.FLEET_WIDE_DEMAND]
    assert reasons(before, opened) == [Reason.RUNBOOK_SWITCHED, Reason.FLEET_WIDE_DEMAND, Reason.PLANNED]
    assert reasons(seen, opened) == [Reason.PLANNED]
    assert reasons(seen, replace(seen, runbook_switches=())) == []


def test_a_switch_of_runbooks_says_which_way_and_why():
    note = notes(Record(), Record(runbook_switches=(OVER,)))[0]

    assert note.message == (
        f"CompressionWithoutSavings -> PreemptionThrash on pod template {OVER.template}, spec generation 3: "
        "blocks come back"
    )
    assert (note.warning, note.on_target, note.run) == (False, False, "")


def test_the_way_back_and_another_template_are_reported_too():
    back = replace(OVER, from_runbook=OVER.to_runbook, to_runbook=OVER.from_runbook)
    seen = Record(diagnosis=DEMAND, runbook_switches=(OVER,))

    assert reasons(seen, replace(seen, runbook_switches=(back, OVER))) == [Reason.RUNBOOK_SWITCHED]
    assert reasons(seen, replace(seen, runbook_switches=(replace(OVER, template="0"), OVER))) == [
        Reason.RUNBOOK_SWITCHED
    ]
