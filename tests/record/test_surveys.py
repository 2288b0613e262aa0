"""What a look at a fleet leaves in the record about its plan."""

from dataclasses import replace
from datetime import timedelta

import pytest

from kvmedic.model.evidence import Blocked
from kvmedic.model.plan import Plan
from kvmedic.model.reasons import Reason
from kvmedic.model.status import ConditionType, Record, RunbookSwitch, phase
from kvmedic.record.surveys import (
    REFRESH,
    RUNBOOK_SWITCHES_LENGTH,
    record_diagnosis,
    record_plan,
    with_runbook_switch,
)
from kvmedic.runbooks.branches import Diagnosed, Finding
from kvmedic.runbooks.preemption.branches import PREEMPTION_BRANCHES as BRANCHES
from run_builder import NOW, OLD, STEP

SECOND = timedelta(seconds=1)
PLAN = Plan((STEP,), "uid-1", OLD, 3, Reason.CAP_RIGHT_SIZED, "16 fit")
ASK = Blocked(Reason.AWAITING_APPROVAL, f"plan {PLAN.digest} waits for approval: kvmedic approve …")


def to(cap: int) -> Plan:
    return replace(PLAN, steps=(replace(STEP, after=str(cap)),))


def first(plan: Plan = PLAN) -> Record:
    return record_plan(Record(), plan, ASK, 3, NOW)


def test_the_plan_is_kept_whole_so_that_an_approval_can_bind_to_it():
    shown = first().plan

    assert (shown.digest, shown.at, shown.bound) == (PLAN.digest, NOW, PLAN)


def test_a_plan_that_is_not_the_one_of_its_digest_binds_nothing():
    shown = first().plan

    assert shown is not None
    assert replace(shown, exact=to(15)).bound is None
    assert replace(shown, exact=None).bound is None


def test_the_same_plan_is_shown_since_it_was_first_shown():
    again = record_plan(first(), PLAN, ASK, 3, NOW + timedelta(days=1))

    assert again == first()


@pytest.mark.parametrize(
    ("cap", "after", "is_new"),
    [(17, REFRESH - SECOND, False), (17, REFRESH, True), (20, SECOND, True)],
    ids=["noise is not worth a write", "noise of long ago is", "another plan is at once"],
)
def test_another_plan_takes_its_place(cap, after, is_new):
    then = record_plan(first(), to(cap), ASK, 3, NOW + after).plan

    assert then.digest == (to(cap) if is_new else PLAN).digest
    assert then.at == (NOW + after if is_new else NOW)


def test_a_record_of_a_version_that_kept_no_plan_gets_one():
    old = first()
    assert old.plan is not None

    then = record_plan(replace(old, plan=replace(old.plan, exact=None)), PLAN, ASK, 3, NOW + SECOND).plan

    assert (then.bound, then.at) == (PLAN, NOW + SECOND)


def test_what_a_person_has_to_type_is_written_anew_when_it_changes():
    blocked = Blocked(Reason.AWAITING_APPROVAL, "plan ffff waits for approval")

    record = record_plan(first(), to(20), blocked, 3, NOW + SECOND)

    for kind in (ConditionType.PROGRESSING, ConditionType.ACTION_REQUIRED):
        condition = record.condition(kind)
        assert condition.message == blocked.message
        assert condition.changed_at == NOW, "it waits for as long as before"


def test_numbers_that_changed_are_not():
    blocked = record_plan(Record(), PLAN, Blocked(Reason.IN_COOLDOWN, "until 03:10"), 3, NOW)

    assert record_plan(blocked, PLAN, Blocked(Reason.IN_COOLDOWN, "until 03:11"), 3, NOW + SECOND) == blocked


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        (Reason.AWAITING_APPROVAL, "AwaitingApproval"),
        (Reason.APPROVAL_EXPIRED, "AwaitingApproval"),
        (Reason.APPROVALS_UNREADABLE, "ActionRequired"),
        (Reason.RUNBOOK_SWITCHED_TWICE, "ActionRequired"),
        (Reason.IN_COOLDOWN, "Planned"),
    ],
)
def test_one_word_says_that_a_person_is_waited_for(reason, expected):
    assert phase(record_plan(Record(), PLAN, Blocked(reason, "why"), 3, NOW)) == expected


def seen(*findings: str, after: timedelta = timedelta(0), record: Record | None = None) -> Record:
    listed = tuple(Finding("fleet", None, None, None, text) for text in findings)
    return record_diagnosis(
        record or Record(), Diagnosed(BRANCHES[0], listed), "PreemptionThrash", 3, NOW + after
    )


def test_what_is_noticed_of_a_calm_fleet_is_written_down_once():
    noticed = seen("usage 0.3", record=seen())

    assert noticed.diagnosis.findings == ("fleet: usage 0.3",)
    assert seen("usage 0.4", after=2 * REFRESH, record=noticed) == noticed
    assert seen(after=2 * REFRESH, record=noticed) == noticed


OVER = RunbookSwitch(
    "CompressionWithoutSavings", "PreemptionThrash", Reason.PRESSED_THOUGH_COMPRESSED, "why", "e" * 16, 3, NOW
)
BACK = replace(OVER, from_runbook=OVER.to_runbook, to_runbook=OVER.from_runbook)


def with_switches(*given: RunbookSwitch | None) -> Record:
    record = Record()
    for each in given:
        record = with_runbook_switch(record, each)
    return record


def test_a_switch_of_runbooks_is_written_down_once_each_way():
    again = replace(OVER, message="other figures", at=NOW + REFRESH)

    assert with_switches(None) == Record()
    assert with_switches(OVER, again) == with_switches(OVER) == Record(runbook_switches=(OVER,))
    assert with_switches(OVER, BACK, again, replace(BACK, message="more")).runbook_switches == (BACK, OVER)


def test_the_newest_switch_comes_first_and_the_oldest_goes():
    given = [replace(OVER, template=f"{at:016d}") for at in range(RUNBOOK_SWITCHES_LENGTH + 1)]

    assert with_switches(*given).runbook_switches == tuple(reversed(given[1:]))
