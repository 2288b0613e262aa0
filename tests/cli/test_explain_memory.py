"""What `kvmedic explain` shows of changes that did not help, and what it says to type."""

from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from api.records import full_record, holding_record
from kvmedic.cli.explain import Place, explain_resource
from kvmedic.model.reasons import LOOK, Reason
from kvmedic.model.run import (
    ComparisonState,
    Cost,
    CostSoFar,
    DrainingPod,
    ReplicaComparison,
    StepState,
    Summary,
    TimedOut,
)
from kvmedic.model.status import (
    Attempt,
    Condition,
    ConditionType,
    ConfigCopy,
    OomShare,
    Record,
    Resource,
    Severity,
    ShownDiagnosis,
    Truth,
    Urgency,
    Wish,
)
from run_builder import CONFIG, NOW, OLD, REPLACE, ROLLBACK, UID, a_failure, a_run, an_intent
from worlds.api_double import a_command_line, a_resource

PLACE = Place("kvmedic-system", "kvmedic-stop")


def lines(record: Record) -> list[str]:
    resource = Resource(
        namespace="serving",
        name="llm",
        uid=UID,
        resource_version="1",
        generation=1,
        wish=Wish.NONE,
        finalized=False,
        policy=None,
        problem=None,
        record=record,
    )
    return list(explain_resource(resource, PLACE))


ENDS = {
    Attempt.TURN_LEVER: "with this template, these lengths and this pool.",
    Attempt.RAISE_MEMORY: "with this template, these lengths and this pool.",
    Attempt.RAISE_CAP: "with this template, these lengths and this pool.",
    Attempt.REPLACE_REPLICA: "with this template and as many replicas.",
    Attempt.ROLL_BACK_REVISION: "from this template.",
    Attempt.SWITCH_METHOD: "on this template.",
    Attempt.ADD_REPLICAS: "from as many replicas with this template.",
    Attempt.GIVE_BACK: "before a clearly lighter load, other lengths or another template.",
}


@pytest.mark.parametrize("attempt", ENDS)
def test_what_did_not_help_is_shown_with_what_it_rests_on(attempt):
    said = lines(Record(failed_attempts=(a_failure(attempt, change="replica llm-a -> a new one"),)))

    assert (
        f"replica llm-a -> a new one was tried (2026-03-01T03:00:00Z, pod template {OLD}): NotRecovered; not "
        f"tried again {ENDS[attempt]}"
    ) in said


def test_a_share_that_was_too_much_and_what_is_temporary_are_shown():
    record = Record(
        oom_shares=(OomShare(0.92, OLD, NOW),),
        temporary=holding_record().temporary[1:],
    )

    said = lines(record)

    assert any("A GPU ran out of memory at a share of 0.92" in line for line in said)
    assert (
        "Temporary change: kvOffloadingSize (engine default) -> 32 since 2026-03-01T00:00:00Z (run "
        "20260301-000000); calm since 2026-03-01T02:00:00Z." in said
    )
    assert any(line.startswith("  Could the fleet do without it (2026-03-01T03:00:00Z)? ") for line in said)


def test_an_open_replacement_names_the_replica():
    assert any("replica a -> a new one: Pending" in line for line in lines(Record(run=a_run(step=REPLACE))))


@pytest.mark.parametrize(
    ("state", "offers_keep"),
    [(ComparisonState.WATCHING, True), (ComparisonState.GO_ON, False)],
)
def test_replicas_that_are_compared_are_shown_with_how_to_go_on(state, offers_keep):
    run = a_run(StepState.ROLLING_OUT, an_intent())
    found = ReplicaComparison(NOW, ("new-0",), state, "x 0.97 of the old replicas")

    said = lines(Record(run=run.with_step(replace(run.current, comparison=found))))

    expected = f"  beside old replicas since 2026-03-01T03:00:00Z: {state}. x 0.97 of the old replicas"
    assert any(line.endswith(expected) for line in said)
    assert any("kvmedic keep " in line for line in said) is offers_keep


def test_replicas_that_a_run_moves_are_shown_in_a_table():
    run = a_run(StepState.ROLLING_OUT, an_intent())
    beside = replace(run.current, comparison=ReplicaComparison(NOW, ("llm-new",)))
    moved = replace(
        run.with_step(beside),
        cost_so_far=CostSoFar(NOW, 0, 0.0, 1, 2),
        draining_pods=(DrainingPod("llm-a", "uid-a", NOW), DrainingPod("llm-b", "uid-b", NOW, NOW)),
        timed_out=(TimedOut("llm-c", "uid-c", timedelta(minutes=10)),),
    )

    said = lines(Record(run=moved))

    at = said.index("  changed 1 of 3 replicas")
    assert said[at + 1 : at + 5] == [
        "    llm-a    taken out of rotation since 2026-03-01T03:00:00Z",
        "    llm-b    out of rotation since 2026-03-01T03:00:00Z, finishes its requests",
        "    llm-c    back in rotation, as its drain timed out after 10m",
        "    llm-new  new, looked at beside old ones",
    ]


def test_how_urgent_it_is_and_what_the_last_run_came_to_are_shown():
    late = Urgency(Severity.PAGE, "whole request p95 40 s, objective 30 s", NOW, ("e2eP95",))
    cost = Cost(3, 120.0, 480.0)
    summary = Summary(
        "20260301-025500", NOW, Reason.RECOVERED, "16 was better; cost: 480 GPU-seconds.", (), cost
    )
    seen = ShownDiagnosis(Reason.FLEET_WIDE_DEMAND, "all preempt", "PreemptionThrash", NOW)

    said = lines(Record(diagnosis=seen, urgency=late, summary=summary))

    assert "That is a page since 2026-03-01T03:00:00Z: whole request p95 40 s, objective 30 s." in said
    assert "Result of run 20260301-025500: 16 was better; cost: 480 GPU-seconds." in said


def test_a_fleet_without_trouble_is_no_page_and_no_ticket():
    calm = ShownDiagnosis(Reason.HEALTHY, "calm", "PreemptionThrash", NOW)

    assert not [line for line in lines(Record(diagnosis=calm)) if "page" in line or "ticket" in line]


def test_an_open_rollback_names_both_revisions():
    said = lines(Record(run=a_run(step=ROLLBACK)))

    assert any("pod template of revision 7 -> of revision 6: Pending" in line for line in said)


def test_a_change_in_a_file_names_the_file_and_a_copy_that_is_left_is_shown():
    said = lines(Record(run=a_run(step=CONFIG), copies=(ConfigCopy("limits-0123456789", OLD),)))

    assert any("maxNumSeqs 64 -> 16 (ConfigMap/limits, engine.yaml): Pending" in line for line in said)
    assert any(line.startswith("ConfigMap limits-0123456789 is kvmedic's own copy") for line in said)


def test_what_is_held_for_a_while_is_shown_with_what_it_waits_for():
    said = lines(replace(holding_record(), run=None))

    assert (
        "Temporary change: replicas 3 -> 4 since 2026-03-01T01:00:00Z (run 20260301-020000); calm since "
        "2026-03-01T02:00:00Z." in said
    )
    outlook = "3 replicas would run 9.1 sequences each."
    assert f"  Would fewer replicas suffice (2026-03-01T03:00:00Z)? {outlook}" in said
    assert any(line.startswith("replicas 4 -> 5 was tried") for line in said)


def test_what_is_held_and_was_never_calm_says_so():
    record = holding_record()
    first, *_ = record.temporary

    said = lines(replace(record, temporary=(replace(first, calm_since=None, outlook=""),)))

    assert any(line.endswith("; not calm yet.") for line in said)
    assert not any("Would fewer replicas suffice" in line for line in said)


AT = datetime(2026, 1, 1, tzinfo=UTC)
NAMES = {"name": "chat", "namespace": "serving"}


def advice(condition: ConditionType, status: Truth, reason: Reason) -> list[str]:
    """Return the lines with something to type for a resource of which one condition is known."""
    record = Record(conditions=(Condition(condition, status, reason, "", AT, 1),))
    resource = Resource("serving", "chat", "1", "7", 1, Wish.NONE, False, None, None, record)
    return [line for line in explain_resource(resource, PLACE) if line.startswith("To ")]


ROWS = [
    (ConditionType.DIAGNOSED, Truth.UNKNOWN, Reason.METRICS_MISSING, "/serving/pods/POD:8000/proxy"),
    (ConditionType.PROGRESSING, Truth.FALSE, Reason.STOPPED, "-n kvmedic-system delete configmap"),
    (ConditionType.PROGRESSING, Truth.FALSE, Reason.OBSERVE_ONLY, """-p '{"spec":{"mode":"Auto"}}'"""),
    (ConditionType.ACTION_REQUIRED, Truth.TRUE, Reason.TARGET_SHARED, "-n serving delete kvr chat"),
]


@pytest.mark.parametrize(("condition", "status", "reason", "typed"), ROWS, ids=[str(row[2]) for row in ROWS])
def test_a_reason_comes_with_what_to_type(condition, status, reason, typed):
    first, last = advice(condition, status, reason)

    assert typed in first
    assert LOOK.write_command(NAMES) in last


def test_a_remedy_that_is_a_look_is_said_once():
    assert len(advice(ConditionType.DIAGNOSED, Truth.UNKNOWN, Reason.PARTIAL_PRESSURE)) == 1


def test_a_condition_that_says_nothing_asks_for_nothing():
    assert len(advice(ConditionType.DIAGNOSED, Truth.FALSE, Reason.HEALTHY)) == 1


def test_the_command_shows_the_state_first_and_what_did_not_help_where_it_is_asked_for(tmp_path):
    record = replace(full_record(), answers=(), scores=())
    with ExitStack() as stack:
        kvmedic = a_command_line(stack, tmp_path, NOW, (a_resource("chat", record),))
        brief, whole = (kvmedic("explain", "chat", *flags).stdout for flags in ((), ("-v",)))

    assert brief.startswith("KVRemediation serving/chat: RollingOut.\nRun 20260301-025500 is open ")
    assert "With -v also: changes that did not help." in brief
    assert ("was tried (" in brief, "was tried (" in whole) == (False, True)
    assert (
        brief.splitlines()[-1]
        == whole.splitlines()[-1]
        == f"To look again right now:  {LOOK.write_command(NAMES)}"
    )
