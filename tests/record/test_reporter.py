"""What the operator's own gauges say of its resources."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from prometheus_client import generate_latest

from kvmedic.metrics.prometheus import Spent
from kvmedic.model.reasons import Reason, Trait, reasons_with
from kvmedic.model.status import (
    Condition,
    ConditionType,
    Record,
    Resource,
    Severity,
    ShownDiagnosis,
    Truth,
    Urgency,
    Wish,
)
from kvmedic.record.events import Note
from kvmedic.record.telemetry import MOST_NAMED, Reporter, SourceCosts, Telemetry
from run_builder import a_run

BY_SEVERITY = ("kvmedic_action_required", "kvmedic_stalled", "kvmedic_metrics_unavailable")
NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Discarded:
    """An Event sink that keeps nothing."""

    async def publish(self, resource: Resource, note: Note) -> None:
        """Drop it."""


def a_resource(record: Record | None, uid: str = "1") -> Resource:
    return Resource("serving", "chat", uid, "7", 1, Wish.NONE, False, None, None, record)


def saying(*claims: tuple[ConditionType, Truth]) -> Record:
    return Record(conditions=tuple(Condition(t, s, Reason.HEALTHY, "", NOW, 1) for t, s in claims))


def gauge(reporter: Reporter, name: str, **labels: str) -> float | None:
    return reporter.telemetry.registry.get_sample_value(name, labels)


def gauges(reporter: Reporter, severity: str = "ticket") -> tuple[float | None, ...]:
    counted = (gauge(reporter, name, severity=severity) for name in BY_SEVERITY)
    return (gauge(reporter, "kvmedic_open_runs"), *counted)


@pytest.mark.parametrize(
    ("record", "counted"),
    [
        (saying(), (0, 0, 0, 0)),
        (saying((ConditionType.ACTION_REQUIRED, Truth.TRUE)), (0, 1, 0, 0)),
        (saying((ConditionType.ACTION_REQUIRED, Truth.FALSE)), (0, 0, 0, 0)),
        (saying((ConditionType.STALLED, Truth.TRUE)), (0, 0, 1, 0)),
        (saying((ConditionType.METRICS_AVAILABLE, Truth.FALSE)), (0, 0, 0, 1)),
        (saying((ConditionType.METRICS_AVAILABLE, Truth.TRUE)), (0, 0, 0, 0)),
        (None, (1, 1, 1, 0)),
    ],
    ids=["nothing said", "waits", "waits no more", "stalled", "blind", "sees", "unreadable record"],
)
def test_a_resource_counts_as_it_was_loaded(record, counted):
    reporter = Reporter(Discarded(), Telemetry())

    reporter.count_resource(a_resource(record))

    assert gauges(reporter) == counted
    assert gauges(reporter, "page") == (counted[0], 0, 0, 0)


@pytest.mark.parametrize(
    ("urgency", "page", "ticket"),
    [
        (Urgency(Severity.PAGE, "late", NOW, ("e2eP95",)), 1, 0),
        (Urgency(Severity.TICKET, "met", NOW), 0, 1),
        (None, 0, 0),
    ],
    ids=["page", "ticket", "no trouble"],
)
def test_trouble_counts_under_its_severity(urgency, page, ticket):
    reporter = Reporter(Discarded(), Telemetry())
    waits = saying((ConditionType.ACTION_REQUIRED, Truth.TRUE), (ConditionType.STALLED, Truth.TRUE))

    reporter.count_resource(a_resource(replace(waits, urgency=urgency)))

    assert gauge(reporter, "kvmedic_troubled", severity="page") == page
    assert gauge(reporter, "kvmedic_troubled", severity="ticket") == ticket
    assert gauges(reporter, "page")[1:] == (page, page, 0)
    assert gauges(reporter, "ticket")[1:] == (1 - page, 1 - page, 0)


@pytest.mark.parametrize("reason", sorted(reasons_with(Trait.DIVERTS)))
def test_a_diagnosis_for_another_runbook_counts_under_its_reason(reason):
    reporter = Reporter(Discarded(), Telemetry())
    shown = ShownDiagnosis(reason, "who", "PreemptionThrash", NOW)
    late = Urgency(Severity.PAGE, "late", NOW, ("e2eP95",))
    reporter.count_resource(a_resource(Record(diagnosis=shown, urgency=late), "1"))
    reporter.count_resource(a_resource(Record(diagnosis=shown), "4"))
    reporter.count_resource(a_resource(Record(diagnosis=shown, run=a_run()), "2"))
    reporter.count_resource(
        a_resource(Record(diagnosis=replace(shown, reason=Reason.FLEET_WIDE_DEMAND)), "3")
    )

    for severity in Severity:
        counts = {
            each: gauge(reporter, "kvmedic_diverted", reason=each, severity=severity)
            for each in reasons_with(Trait.DIVERTS)
        }
        assert counts == {each: float(each is reason) for each in reasons_with(Trait.DIVERTS)}


async def test_a_save_moves_a_resource_and_a_forgotten_one_counts_nowhere():
    reporter = Reporter(Discarded(), Telemetry())
    waits = saying((ConditionType.ACTION_REQUIRED, Truth.TRUE))
    reporter.count_resource(a_resource(waits, "1"))
    reporter.count_resource(a_resource(waits, "2"))

    await reporter.report_changes(a_resource(waits, "1"), waits, saying())
    assert gauges(reporter) == (0, 1, 0, 0)
    reporter.forget("2")
    assert gauges(reporter) == (0, 0, 0, 0)


def test_no_series_says_when_another_was_created():
    telemetry = Telemetry()
    telemetry.failures.labels(kind="Conflict").inc()

    page = generate_latest(telemetry.registry).decode()

    assert "kvmedic_tick_failures_total" in page
    assert "_created" not in page


def test_what_a_source_took_and_what_we_took_are_counted_apart():
    telemetry = Telemetry()
    telemetry.registry.register(SourceCosts({"default": Spent(3, 700, 1.5, 0.25)}))

    sample = telemetry.registry.get_sample_value
    assert sample("kvmedic_source_queries_total", {"source": "default"}) == 3
    assert sample("kvmedic_source_received_bytes_total", {"source": "default"}) == 700
    assert sample("kvmedic_source_seconds_total", {"source": "default", "by": "source"}) == 1.5
    assert sample("kvmedic_source_seconds_total", {"source": "default", "by": "kvmedic"}) == 0.25


def info(reporter: Reporter) -> list[dict[str, str]]:
    samples = [sample for family in reporter.telemetry.registry.collect() for sample in family.samples]
    return [dict(each.labels) for each in samples if each.name == "kvmedic_resource_info"]


def test_who_may_need_a_look_is_named_and_who_is_calm_is_not():
    reporter = Reporter(Discarded(), Telemetry())
    late = Urgency(Severity.PAGE, "late", NOW, ("e2eP95",))
    shown = ShownDiagnosis(Reason.FLEET_WIDE_DEMAND, "who", "PreemptionThrash", NOW)
    reporter.count_resource(a_resource(Record(), "calm"))
    reporter.count_resource(a_resource(Record(diagnosis=shown, urgency=late, run=a_run()), "sick"))

    who = {"resource_namespace": "serving", "resource_name": "chat", "severity": "page"}
    assert info(reporter) == [
        {**who, "state": "Troubled", "reason": "FleetWideDemand"},
        {**who, "state": "OpenRun", "reason": a_run().reason.value},
    ]
    reporter.forget("sick")
    assert info(reporter) == []


def test_in_a_storm_pages_are_named_first_and_the_rest_is_counted():
    reporter = Reporter(Discarded(), Telemetry())
    waits = saying((ConditionType.ACTION_REQUIRED, Truth.TRUE))
    for number in range(MOST_NAMED):
        reporter.count_resource(a_resource(waits, f"ticket-{number}"))
    late = Urgency(Severity.PAGE, "late", NOW, ("e2eP95",))
    reporter.count_resource(a_resource(replace(waits, urgency=late), "page"))

    rows = info(reporter)
    assert len(rows) == MOST_NAMED
    assert [each["state"] for each in rows if each["severity"] == "page"] == ["Troubled", "ActionRequired"]
    assert gauge(reporter, "kvmedic_resource_info_left_out") == 2
