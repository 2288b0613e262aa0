"""The alert rules fire on what they name and stay quiet otherwise, as Prometheus itself evaluates them."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from chart.generated import CHART, ROOT
from chart.metrics_reference import rules_of
from chart.rendering import render
from kvmedic.model.reasons import Trait, reasons_with
from kvmedic.record.telemetry import Telemetry

RULES = CHART / "files" / "alerts.yaml"
LEADING = {"a": "1+0x60", "b": "0+0x60"}
pytestmark = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool comes with prometheus")


def series(name: str, values: dict[str, str], **labels: str) -> list[dict[str, str]]:
    """Input series, one per instance; values in promtool's notation, one sample a minute."""
    more = "".join(f',{key}="{value}"' for key, value in labels.items())
    return [
        {"series": f'{name}{{instance="{instance}"{more}}}', "values": text}
        for instance, text in values.items()
    ]


def named(state: str, values: dict[str, str], **labels: str) -> list[dict[str, str]]:
    """Input series that name a resource while it is in a state; what is 0 is not there."""
    there = {instance: text.replace("0+0x", "_x") for instance, text in values.items()}
    who = {"resource_namespace": "serving", "resource_name": "chat"}
    return series("kvmedic_resource_info", there, state=state, **who, **labels)


def firing(alert: str, at: str, inputs: list[dict[str, str]], tmp_path: Path) -> bool:
    """Whether an alert fires at a time."""
    return not _holds({"alertname": alert, "eval_time": at, "exp_alerts": []}, inputs, tmp_path)


def labels(alert: str, at: str, inputs: list[dict[str, str]], tmp_path: Path, **expected: str) -> bool:
    """Whether exactly one alert of a name fires at a time, with these labels and its own texts."""
    rules = yaml.safe_load(RULES.read_text())["groups"][0]["rules"]
    texts = next(rule["annotations"] for rule in rules if rule["alert"] == alert)
    words = {"$value": "2", "$labels.resource_namespace": "serving", "$labels.resource_name": "chat"}
    annotations = dict(texts)
    for word, text in words.items():
        annotations = {name: each.replace("{{ " + word + " }}", text) for name, each in annotations.items()}
    fires = {"exp_labels": expected, "exp_annotations": annotations}
    return _holds({"alertname": alert, "eval_time": at, "exp_alerts": [fires]}, inputs, tmp_path)


def _holds(case: dict[str, Any], inputs: list[dict[str, str]], tmp_path: Path) -> bool:
    group = {"interval": "1m", "input_series": inputs, "alert_rule_test": [case]}
    file = tmp_path / "test.yaml"
    file.write_text(
        yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [group]})
    )
    done = subprocess.run(
        ["promtool", "test", "rules", str(file)], capture_output=True, text=True, check=False
    )
    output = done.stdout + done.stderr
    assert done.returncode == 0 or "got:" in output, output
    return done.returncode == 0


def test_the_rules_are_valid_and_use_only_metrics_that_the_operator_has():
    exported = {sample.name for metric in Telemetry().registry.collect() for sample in metric.samples} | {
        f"{metric.name}{suffix}"
        for metric in Telemetry().registry.collect()
        for suffix in ("", "_total", "_count")
    }

    checked = subprocess.run(["promtool", "check", "rules", str(RULES)], capture_output=True, check=False)

    assert checked.returncode == 0, checked.stdout
    rules = yaml.safe_load(RULES.read_text())["groups"][0]["rules"]
    used = {name for rule in rules for name in re.findall(r"kvmedic_\w+", rule["expr"])}
    assert used <= exported
    assert all(set(rule["annotations"]) == {"summary", "description", "runbook_url"} for rule in rules)


def test_every_alert_has_a_case_here_and_a_part_of_the_page_that_it_names():
    names = {rule["alert"]: rule["annotations"]["runbook_url"] for rule in rules_of(RULES)}
    page = ROOT / "docs" / "howto" / "when-an-alert-fires.md"

    assert set(names) == set(re.findall(r'"(Kvmedic\w+)"', Path(__file__).read_text()))
    assert {name: f"{page.relative_to(ROOT)}#{name.lower()}" for name in names} == names
    assert set(re.findall(r"^## (.+)$", page.read_text(), re.MULTILINE)) == set(names)


@pytest.mark.parametrize("base", ["", "https://docs.example/kvmedic", "https://docs.example/kvmedic/"])
def test_what_an_alert_links_to_follows_from_where_the_docs_are(base):
    values = {"monitoring": {"prometheusRule": {"enabled": True, "runbookBase": base}}}

    rules = render(values)["PrometheusRule", "kvmedic"]["spec"]["groups"][0]["rules"]

    before = f"{base.rstrip('/')}/" if base else ""
    links = [f"{before}{rule['annotations']['runbook_url']}" for rule in rules_of(RULES)]
    assert [rule["annotations"]["runbook_url"] for rule in rules] == links


def test_every_alert_has_a_severity_and_none_is_always_a_page():
    rules = yaml.safe_load(RULES.read_text())["groups"][0]["rules"]

    for rule in rules:
        fixed = rule.get("labels", {}).get("severity")
        by = re.search(r"by \(([^)]*)\)", rule["expr"])
        names = by[1].split(", ") if by else []
        assert fixed == "ticket" or (fixed is None and "severity" in names), rule["alert"]
        if "kvmedic_resource_info" in rule["expr"]:
            assert {"resource_namespace", "resource_name"} <= set(names), rule["alert"]
            assert {"namespace", "name"} <= set(rule["labels"]), rule["alert"]


def shards(count: int, *leading: str) -> list[dict[str, str]]:
    """Processes that lead, by their shards, and know of so many."""
    leaders = [series("kvmedic_leading", {f"i{i}": "1+0x60"}, shard=each) for i, each in enumerate(leading)]
    return [each for one in leaders for each in one] + series("kvmedic_shards", {"i0": f"{count}+0x60"})


@pytest.mark.parametrize(
    ("inputs", "at", "fires"),
    [
        (series("kvmedic_leading", LEADING), "30m", False),
        (series("kvmedic_leading", {"a": "0+0x60", "b": "0+0x60"}), "4m", False),
        (series("kvmedic_leading", {"a": "0+0x60", "b": "0+0x60"}), "6m", True),
        ([], "6m", True),
        (series("kvmedic_leading", {"a": "1+0x3 _x57"}), "30m", True),
        (shards(2, "0", "1"), "30m", False),
        (shards(2, "0"), "30m", True),
        (shards(2, "0", "0"), "30m", True),
    ],
    ids=[
        "one leads",
        "nobody for 4 min",
        "nobody for 6 min",
        "never scraped",
        "scraped no more",
        "two shards",
        "one shard has no pod",
        "two lead the same shard",
    ],
)
def test_nobody_leads(inputs, at, tmp_path, *, fires):
    assert firing("KvmedicNobodyLeads", at, inputs, tmp_path) is fires


@pytest.mark.parametrize(
    ("alert", "state"),
    [
        ("KvmedicActionRequired", "ActionRequired"),
        ("KvmedicStalled", "Stalled"),
        ("KvmedicMetricsUnavailable", "MetricsUnavailable"),
        ("KvmedicStormBreakerTripped", ""),
    ],
)
@pytest.mark.parametrize(
    ("counts", "fires"),
    [
        ({"a": "0+0x60", "b": "0+0x60"}, False),
        ({"a": "2+0x60", "b": "0+0x60"}, True),
        ({"a": "0+0x60", "b": "2+0x60"}, False),
        ({"a": "0+0x20 2+0x39", "b": "0+0x60"}, True),
        ({"a": "2+0x20 0+0x39", "b": "0+0x60"}, False),
    ],
    ids=["none", "the leader's count", "what a former leader last saw", "lately", "no more"],
)
def test_resources_in_trouble(alert, state, counts, tmp_path, *, fires):
    storm = series("kvmedic_storm_breaker_tripped", counts)
    inputs = series("kvmedic_leading", LEADING)
    inputs += named(state, counts, severity="ticket", reason="NoHeadroom") if state else storm

    assert firing(alert, "45m", inputs, tmp_path) is fires


@pytest.mark.parametrize(
    ("alert", "metric", "late"),
    [
        ("KvmedicFallsBehind", "kvmedic_oldest_look_age_seconds", 400),
        ("KvmedicLoopLags", "kvmedic_loop_lag_seconds", 6),
    ],
)
def test_what_comes_late_at_the_one_who_leads(alert, metric, late, tmp_path):
    inputs = series("kvmedic_leading", LEADING)
    slow = series(metric, {"a": f"{late}+0x60", "b": "0+0x60"})
    former = series(metric, {"a": "1+0x60", "b": f"{late}+0x60"})

    assert firing(alert, "45m", inputs + slow, tmp_path)
    assert not firing(alert, "45m", inputs + former, tmp_path)


@pytest.mark.parametrize(
    ("result", "count", "at", "fires"),
    [
        ("sent", "0+1x60", "45m", False),
        ("failed", "0x60", "45m", False),
        ("failed", "0x29 1x60", "45m", True),
        ("dropped", "0x29 1x60", "45m", True),
        ("failed", "0x9 1x60", "45m", False),
    ],
    ids=["all arrive", "none failed", "one failed", "one was dropped", "one failed long ago"],
)
def test_notifications_that_did_not_arrive(result, count, at, fires, tmp_path):
    inputs = series("kvmedic_notifications_total", {"a": count}, destination="oncall", result=result)

    assert firing("KvmedicNotificationsLost", at, inputs, tmp_path) is fires


@pytest.mark.parametrize("severity", ["page", "ticket"])
@pytest.mark.parametrize(
    ("alert", "state", "reason"),
    [
        ("KvmedicActionRequired", "ActionRequired", "NoHeadroom"),
        ("KvmedicStalled", "Stalled", "SpecInvalid"),
        ("KvmedicMetricsUnavailable", "MetricsUnavailable", "MetricsStale"),
        ("KvmedicGpuFault", "Diverted", "GpuFault"),
        ("KvmedicThermalEmergency", "Diverted", "ThermalEmergency"),
        ("KvmedicHostOutOfMemory", "Diverted", "HostOutOfMemory"),
    ],
)
def test_an_alert_names_the_fleet_and_has_the_severity_of_its_trouble(
    alert, state, reason, severity, tmp_path
):
    """A former leader still reports another severity."""
    other = "ticket" if severity == "page" else "page"
    inputs = series("kvmedic_leading", LEADING)
    inputs += named(state, {"a": "1+0x60"}, severity=severity, reason=reason)
    inputs += named(state, {"b": "1+0x60"}, severity=other, reason=reason)
    rules = yaml.safe_load(RULES.read_text())["groups"][0]["rules"]
    own = next(rule for rule in rules if rule["alert"] == alert)["labels"]
    who = {"namespace": "serving", "name": "chat", "resource_namespace": "serving", "resource_name": "chat"}

    assert labels(alert, "45m", inputs, tmp_path, severity=severity, **{**own, **who})


@pytest.mark.parametrize(
    ("page", "ticket", "at", "fires"),
    [
        ("0+0x60", "2+0x60", "45m", False),
        ("2+0x60", "0+0x60", "45m", True),
        ("0+0x30 2+0x29", "2+0x30 0+0x29", "30m", False),
        ("0+0x30 2+0x29", "2+0x30 0+0x29", "33m", True),
        ("2+0x30 0+0x29", "0+0x30 2+0x29", "45m", False),
    ],
    ids=["tickets alone", "pages", "just begun", "for a while", "no more"],
)
def test_a_breached_objective_pages_while_it_is_breached(page, ticket, at, tmp_path, *, fires):
    inputs = series("kvmedic_leading", LEADING)
    inputs += named("Troubled", {"a": page}, severity="page", reason="FleetWideDemand")
    inputs += named("Troubled", {"a": ticket, "b": "2+0x60"}, severity="ticket", reason="FleetWideDemand")

    assert firing("KvmedicObjectiveBreached", at, inputs, tmp_path) is fires


@pytest.mark.parametrize(
    ("alert", "reason"),
    [
        ("KvmedicGpuFault", "GpuFault"),
        ("KvmedicThermalEmergency", "ThermalEmergency"),
        ("KvmedicHostOutOfMemory", "HostOutOfMemory"),
        ("KvmedicCapacityExhausted", "CapacityExhausted"),
    ],
)
def test_trouble_that_another_runbook_is_for_is_reported_under_its_name(alert, reason, tmp_path):
    others = {each.value for each in reasons_with(Trait.DIVERTS)} - {reason}
    leading = series("kvmedic_leading", LEADING)
    own = named("Diverted", {"a": "1+0x60"}, reason=reason, severity="ticket")
    foreign = [
        s for other in others for s in named("Diverted", {"a": "1+0x60"}, reason=other, severity="ticket")
    ]

    assert firing(alert, "45m", leading + own, tmp_path)
    assert not firing(alert, "45m", leading + foreign, tmp_path)


@pytest.mark.parametrize(
    ("kind", "failures", "fires"),
    [("Unavailable", "0+6x60", True), ("Unavailable", "0+4x60", False), ("Conflict", "0+9x60", False)],
    ids=["six of ten", "four of ten", "conflicts are ordinary"],
)
def test_looks_fail(kind, failures, tmp_path, *, fires):
    inputs = series("kvmedic_tick_failures_total", {"a": failures}, kind=kind)
    inputs += series("kvmedic_tick_seconds_count", {"a": "0+10x60"})

    assert firing("KvmedicLooksFail", "40m", inputs, tmp_path) is fires
