"""The alert rules fire on what they name and stay quiet otherwise, as Prometheus itself evaluates them."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from chart.generated import CHART
from kvmedic.record.runs import DIVERTS
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


def firing(alert: str, at: str, inputs: list[dict[str, str]], tmp_path: Path) -> bool:
    """Whether an alert fires at a time."""
    return not _holds({"alertname": alert, "eval_time": at, "exp_alerts": []}, inputs, tmp_path)


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


def test_the_rules_are_valid_and_use_only_metrics_that_the_operator_has() -> None:
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
    assert all(set(rule["annotations"]) == {"summary", "description"} for rule in rules)


@pytest.mark.parametrize(
    ("inputs", "at", "fires"),
    [
        (series("kvmedic_leading", LEADING), "30m", False),
        (series("kvmedic_leading", {"a": "0+0x60", "b": "0+0x60"}), "4m", False),
        (series("kvmedic_leading", {"a": "0+0x60", "b": "0+0x60"}), "6m", True),
        ([], "6m", True),
        (series("kvmedic_leading", {"a": "1+0x3 _x57"}), "30m", True),
    ],
    ids=["one leads", "nobody for 4 min", "nobody for 6 min", "never scraped", "scraped no more"],
)
def test_nobody_leads(inputs: list[dict[str, str]], at: str, tmp_path: Path, *, fires: bool) -> None:
    assert firing("KvmedicNobodyLeads", at, inputs, tmp_path) is fires


@pytest.mark.parametrize(
    ("alert", "gauge"),
    [
        ("KvmedicActionRequired", "kvmedic_action_required"),
        ("KvmedicStalled", "kvmedic_stalled"),
        ("KvmedicMetricsUnavailable", "kvmedic_metrics_unavailable"),
        ("KvmedicStormBreakerTripped", "kvmedic_storm_breaker_tripped"),
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
def test_resources_in_trouble(
    alert: str, gauge: str, counts: dict[str, str], tmp_path: Path, *, fires: bool
) -> None:
    inputs = series("kvmedic_leading", LEADING) + series(gauge, counts)

    assert firing(alert, "45m", inputs, tmp_path) is fires


@pytest.mark.parametrize(
    ("alert", "reason"),
    [
        ("KvmedicGpuFault", "GpuFault"),
        ("KvmedicThermalEmergency", "ThermalEmergency"),
        ("KvmedicHostOutOfMemory", "HostOutOfMemory"),
        ("KvmedicCapacityExhausted", "CapacityExhausted"),
    ],
)
def test_trouble_that_another_runbook_is_for_is_told_under_its_name(
    alert: str, reason: str, tmp_path: Path
) -> None:
    others = {each.value for each in DIVERTS} - {reason}
    leading = series("kvmedic_leading", LEADING)
    own = series("kvmedic_diverted", {"a": "1+0x60", "b": "0+0x60"}, reason=reason)
    foreign = [s for other in others for s in series("kvmedic_diverted", {"a": "1+0x60"}, reason=other)]

    assert firing(alert, "45m", leading + own, tmp_path)
    assert not firing(alert, "45m", leading + foreign, tmp_path)


@pytest.mark.parametrize(
    ("kind", "failures", "fires"),
    [("Unavailable", "0+6x60", True), ("Unavailable", "0+4x60", False), ("Conflict", "0+9x60", False)],
    ids=["six of ten", "four of ten", "conflicts are ordinary"],
)
def test_looks_fail(kind: str, failures: str, tmp_path: Path, *, fires: bool) -> None:
    inputs = series("kvmedic_tick_failures_total", {"a": failures}, kind=kind)
    inputs += series("kvmedic_tick_seconds_count", {"a": "0+10x60"})

    assert firing("KvmedicLooksFail", "40m", inputs, tmp_path) is fires
