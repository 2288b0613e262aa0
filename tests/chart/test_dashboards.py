"""Dashboards and recording rules ask for what is exported, and get an answer, as Prometheus evaluates it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from chart.dashboards import DASHBOARDS, queries
from chart.generated import CHART, ROOT
from chart.metrics_reference import RECORDINGS, busy_telemetry, rules_of
from chart.rendering import render

PAGES = ROOT / "tests" / "data" / "vllm"
IDLE, THRASH = (PAGES / f"metrics-{name}.txt" for name in ("idle", "thrash"))
ASKED = dict(queries("serving", "chat", "5m"))
PODS = ("chat-7d9f8b6c5d-x2b4z", "chat-7d9f8b6c5d-24567")
WORDS = {"and", "or", "unless", "on", "ignoring", "group_left", "group_right", "bool", "offset"}
pytestmark = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool comes with prometheus")
Series = dict[str, str]


def names_in(expression: str) -> set[str]:
    """The metrics that a query asks for."""
    bare = re.sub(r'"[^"]*"|\{[^}]*\}|\[[^]]*\]', " ", re.sub(r'"[^"]*"', '""', expression))
    bare = re.sub(r"\b(?:by|on|without|ignoring|group_left)\s*\([^)]*\)", " ", bare)
    return {word for word in re.findall(r"[a-zA-Z_:][\w:]*(?!\s*\()\b(?!\s*\()", bare) if word not in WORDS}


def samples(page: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Every sample of a page by its name and labels."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


@cache
def exported() -> frozenset[str]:
    """Every name that the operator or the recorded vLLM exports, or a rule records."""
    pages = (generate_latest(busy_telemetry().registry).decode(), THRASH.read_text())
    found = {name for page in pages for name, _ in samples(page)}
    return frozenset(found | {rule["record"] for rule in rules_of(RECORDINGS)})


def line(name: str, labels: dict[str, str], values: str) -> Series:
    """One input series in promtool's notation."""
    text = ",".join(f"{key}={json.dumps(value)}" for key, value in labels.items())
    return {"series": f"{name}{{{text}}}", "values": values}


def inputs() -> list[Series]:
    """Two replicas that go from the idle page to the thrashing one within 10 minutes, and one operator."""
    before, after = samples(IDLE.read_text()), samples(THRASH.read_text())
    needed = set().union(
        *(names_in(text) for text in ASKED.values()), *(names_in(r["expr"]) for r in rules_of(RECORDINGS))
    )
    found = [
        line(name, dict(labels) | {"namespace": "serving", "pod": pod}, f"{start}+{(end - start) / 10}x10")
        for pod in PODS
        for (name, labels), end in after.items()
        if name in needed
        for start in [before.get((name, labels), 0.0)]
    ]
    own = samples(generate_latest(busy_telemetry().registry).decode())
    return found + [
        line(
            name,
            dict(labels) | {"instance": "kvmedic"},
            f"{value}+{value if name.endswith('_total') else 0}x10",
        )
        for (name, labels), value in own.items()
        if name in needed
    ]


def promtool(folder: Path, expected: list[dict[str, Any]], series: list[Series]) -> str:
    """What promtool says against the values that are expected after 10 minutes; empty: nothing."""
    cases = [{"eval_time": "10m"} | case for case in expected]
    group = {"interval": "1m", "input_series": series, "promql_expr_test": cases}
    file = folder / "test.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [str(RECORDINGS)], "tests": [group]}))
    done = subprocess.run(
        ["promtool", "test", "rules", str(file)], capture_output=True, text=True, check=False
    )
    return "" if done.returncode == 0 else done.stdout + done.stderr


def test_every_query_and_rule_asks_only_for_what_is_exported():
    asked = {**ASKED, **{rule["record"]: rule["expr"] for rule in rules_of(RECORDINGS)}}

    unknown = {where: names - exported() for where, text in asked.items() if (names := names_in(text))}

    assert {where: names for where, names in unknown.items() if names} == {}
    assert len(unknown) == len(asked)


def test_a_name_that_nobody_exports_is_noticed():
    text = 'sum by (pod) (rate(vllm:no_such_total{pod=~"a{2}"}[5m])) / on (pod) vllm:num_requests_running'

    assert names_in(text) - exported() == {"vllm:no_such_total"}


def test_every_query_gets_an_answer_on_recorded_pages(tmp_path):
    some = [
        {"expr": f"count({text}) > bool 0", "exp_samples": [{"labels": "{}", "value": 1}]}
        for text in ASKED.values()
    ]

    assert promtool(tmp_path, some, inputs()) == ""


def test_recorded_figures_are_those_of_the_page(tmp_path):
    """The thrashing page: 150 blocks of 32 tokens, one of them null; 11 sequences run. Half is in use."""
    half = [one | {"values": one["values"].replace("0.0+0.1x10", "0.5+0x10")} for one in inputs()]
    place = '{namespace="serving", workload="chat"}'
    figures = {
        "workload:vllm_kv_blocks_free:sum": 149,
        "workload:vllm_kv_tokens_per_running_sequence:avg": round(149 * 32 / 11 / 2),
        "count by (namespace, workload) (pod:vllm_workload:info)": len(PODS),
    }
    cases = [
        {"expr": f"round({name})", "exp_samples": [{"labels": place, "value": value}]}
        for name, value in figures.items()
    ]

    assert promtool(tmp_path, cases, half) == ""


SERVED = {
    "all in time": ((100, 100, 100), 0, 1.0),
    "half within 30 s": ((40, 60, 100), 0, 0.5),
    "one stall per request": ((100, 100, 100), 100, 0.368),
}
"""First tokens within 20 s, within 40 s and in all, a minute; stalls; and what is served in time."""


@pytest.mark.parametrize(("tokens", "stalls", "share"), SERVED.values(), ids=SERVED)
def test_served_in_time_counts_late_first_tokens_and_stalls(tokens, stalls, share, tmp_path):
    whose = {"namespace": "serving", "pod": "llm-0"}
    first, gaps = "vllm:time_to_first_token_seconds", "vllm:inter_token_latency_seconds"
    rising = [
        (f"{first}_bucket", {"le": "20.0"}, tokens[0]),
        (f"{first}_bucket", {"le": "40.0"}, tokens[1]),
        (f"{first}_count", {}, tokens[2]),
        (f"{gaps}_bucket", {"le": "2.5"}, 5000),
        (f"{gaps}_count", {}, 5000 + stalls),
        ("vllm:request_success_total", {"finished_reason": "stop"}, 100),
    ]
    series = [line(name, whose | labels, f"0+{by}x10") for name, labels, by in rising]
    series.append(line("vllm:num_requests_running", whose, "1+0x10"))
    name = "workload:vllm_served_in_time:ratio_rate5m"
    sample = {"labels": '{namespace="serving", workload="llm"}', "value": share * 1000}

    assert promtool(tmp_path, [{"expr": f"round({name} * 1000)", "exp_samples": [sample]}], series) == ""


def test_the_chart_has_the_dashboards_only_where_they_are_asked_for():
    asked = {"monitoring": {"dashboards": {"enabled": True, "annotations": {"grafana_folder": "LLM"}}}}

    made = render(asked)
    maps = {name: each for (kind, name), each in made.items() if kind == "ConfigMap" and "dashboard" in name}

    assert not [name for kind, name in render() if "dashboard" in name]
    assert sorted(maps) == ["kvmedic-dashboard-fleets", "kvmedic-dashboard-target"]
    for name, each in maps.items():
        file = name.removeprefix("kvmedic-dashboard-")
        (text,) = each["data"].values()
        shown = json.loads(text)
        assert text == (CHART / "files" / "dashboards" / f"{file}.json").read_text()
        assert each["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert each["metadata"]["annotations"] == {"grafana_folder": "LLM"}
        assert len(shown["panels"]) == len(DASHBOARDS[file])
        assert all(panel["description"] and panel["targets"] for panel in shown["panels"])
    assert len({json.loads(next(iter(each["data"].values())))["uid"] for each in maps.values()}) == 2


def test_recording_rules_go_into_a_rule_of_their_own():
    made = render({"monitoring": {"recordingRules": {"enabled": True, "labels": {"release": "prometheus"}}}})

    rule = made["PrometheusRule", "kvmedic-fleets"]
    assert rule["spec"] == yaml.safe_load(RECORDINGS.read_text())
    assert rule["metadata"]["labels"]["release"] == "prometheus"
