"""The Grafana dashboards as code: `chart.generated` writes them to charts/kvmedic/files/dashboards.

Two: all fleets, mostly by the operator's own metrics, and one target, by vLLM's and the recording rules.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

Panel = dict[str, Any]
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
LEADS = "and on (instance) kvmedic_leading == 1"
"""Gauges of a process that lost the leadership keep their last value."""
SUFFIX = "[bcdfghjklmnpqrstvwxz2456789]"
PODS = f'namespace="$namespace", pod=~"$workload-({SUFFIX}{{6,10}}-{SUFFIX}{{5}}|[0-9]+)"'
"""The replicas of one workload: pods of a Deployment, of a StatefulSet, or leaders of groups."""
WORKLOAD = 'namespace="$namespace", workload="$workload"'
COLUMNS = 24
"""Of Grafana's grid."""


@dataclass(frozen=True)
class Query:
    """One query with what its series are called."""

    expression: str
    legend: str = ""


@dataclass(frozen=True)
class Shown:
    """One panel: what it is called, what it asks, and what a reader should make of it."""

    title: str
    queries: tuple[Query, ...]
    about: str
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 8
    height: int = 8
    most: float | None = None
    """Top of the axis; None: as the data has it."""


def ask(title: str, expression: str, legend: str, about: str, **more: Any) -> Shown:
    """Make a panel of one query."""
    return Shown(title, (Query(expression, legend),), about, **more)


def count(title: str, expression: str, about: str, unit: str = "short") -> Shown:
    """Make a panel of one number."""
    return ask(title, expression, "", about, unit=unit, kind="stat", width=4, height=4)


FLEETS = (
    count(
        "Fleets watched",
        f"sum(kvmedic_resources {LEADS})",
        "KVRemediations that the acting processes look after.",
    ),
    count(
        "Open runs",
        f"sum(kvmedic_open_runs {LEADS})",
        "Changes under way; each takes a spare replica for a while.",
    ),
    count(
        "Users let down",
        f'sum(kvmedic_troubled{{severity="page"}} {LEADS})',
        "Fleets that breach an objective, or serve under 70 % in time where they name none.",
    ),
    count(
        "Wait for a person",
        f"sum(kvmedic_action_required {LEADS})",
        "Their condition ActionRequired says what to do.",
    ),
    count(
        "Storm breaker",
        f"max(kvmedic_storm_breaker_tripped {LEADS})",
        "1: so many changes ended badly that no new one is begun. See docs/howto/after-a-storm.md.",
    ),
    count(
        "Oldest look",
        f"max(kvmedic_oldest_look_age_seconds {LEADS})",
        "Over 300 s: the operator falls behind.",
        "s",
    ),
    ask(
        "Who needs you",
        "max by (resource_namespace, resource_name, state, severity, reason) "
        f"(kvmedic_resource_info {LEADS})",
        "",
        "One row for each state of each fleet that someone may have to look at; calm fleets have none.",
        kind="table",
        width=24,
    ),
    ask(
        "Served in time",
        "workload:vllm_served_in_time:ratio_rate5m",
        "{{namespace}}/{{workload}}",
        "Share of requests whose first token came within 30 s and whose answer never hung.",
        unit="percentunit",
        width=12,
        most=1,
    ),
    ask(
        "Free blocks",
        "workload:vllm_kv_blocks_free:sum",
        "{{namespace}}/{{workload}}",
        "Blocks of the KV cache that no running request holds. Device memory says nothing about that.",
        width=12,
    ),
    ask(
        "Decisions per hour",
        "sum by (reason) (increase(kvmedic_decisions_total[1h])) > 0",
        "{{reason}}",
        "Decisions that differed from the last of their fleet, by reason.",
    ),
    Shown(
        "Looks",
        (
            Query("sum(rate(kvmedic_tick_seconds_count[$__rate_interval]))", "looks per second"),
            Query("sum by (kind) (rate(kvmedic_tick_failures_total[$__rate_interval]))", "failed: {{kind}}"),
        ),
        "Looks at fleets, and those that ended in an error. Conflicts are ordinary.",
        unit="ops",
    ),
    Shown(
        "How long a look takes",
        tuple(
            Query(
                f"histogram_quantile({share}, "
                "sum by (le) (rate(kvmedic_tick_seconds_bucket[$__rate_interval])))",
                f"p{round(share * 100)}",
            )
            for share in (0.5, 0.95)
        ),
        "From the first read to the last write.",
        unit="s",
    ),
    ask(
        "Metrics sources: time",
        "sum by (source, by) (rate(kvmedic_source_seconds_total[$__rate_interval]))",
        "{{source}}: {{by}}",
        "Seconds per second: until answers are there (source), and to read them (kvmedic).",
        width=12,
    ),
    ask(
        "Metrics sources: answers",
        "sum by (source) (rate(kvmedic_source_received_bytes_total[$__rate_interval]))",
        "{{source}}",
        "Bytes of answers.",
        unit="Bps",
        width=12,
    ),
)
TARGET = (
    ask(
        "Served in time",
        f"workload:vllm_served_in_time:ratio_rate5m{{{WORKLOAD}}}",
        "served in time",
        "Share of requests whose first token came within 30 s and whose answer never hung.",
        unit="percentunit",
        most=1,
    ),
    ask(
        "Silent seconds",
        f"workload:vllm_silent_seconds:avg5m{{{WORKLOAD}}}",
        "waiting in all",
        "How long a request waits in all, before its first token and while preempted.",
        unit="s",
    ),
    ask(
        "Stalls per request",
        f"workload:vllm_stalls_per_request:ratio_rate5m{{{WORKLOAD}}}",
        "gaps over 2.5 s",
        "Gaps of over 2.5 s between two tokens of one answer.",
    ),
    ask(
        "Preemptions",
        f"sum by (pod) (rate(vllm:num_preemptions_total{{{PODS}}}[$__rate_interval]))",
        "{{pod}}",
        "Running sequences that lost their blocks and start over. One replica alone is not demand.",
        unit="ops",
    ),
    ask(
        "KV cache in use",
        f"avg by (pod) (vllm:kv_cache_usage_perc{{{PODS}}})",
        "{{pod}}",
        "Share of the blocks that running requests hold.",
        unit="percentunit",
        most=1,
    ),
    ask(
        "Free blocks",
        f"pod:vllm_kv_blocks_free:avg{{{PODS}}}",
        "{{pod}}",
        "What compression must raise if it saves anything. Device memory stays flat whatever it does.",
    ),
    ask(
        "Tokens per running sequence",
        f"pod:vllm_kv_tokens_per_running_sequence:avg{{{PODS}}}",
        "{{pod}}",
        "Tokens of the cache that one running sequence holds. A method that saves lowers it at like load.",
    ),
    Shown(
        "Running and waiting",
        (
            Query(f"sum by (pod) (vllm:num_requests_running{{{PODS}}})", "{{pod}} running"),
            Query(f"sum by (pod) (vllm:num_requests_waiting{{{PODS}}})", "{{pod}} waiting"),
        ),
        "A cap moves waiting in front of the first token, where it hurts less.",
    ),
    ask(
        "Tokens per second",
        f"sum by (pod) (rate(vllm:generation_tokens_total{{{PODS}}}[$__rate_interval]))",
        "{{pod}}",
        "Generated, of each replica. New replicas beside old ones are what the verdict compares.",
    ),
    Shown(
        "Latency, 95th percentile",
        tuple(
            Query(
                f"histogram_quantile(0.95, sum by (le) (rate({name}_bucket{{{PODS}}}[$__rate_interval])))",
                legend,
            )
            for name, legend in (
                ("vllm:time_to_first_token_seconds", "first token"),
                ("vllm:inter_token_latency_seconds", "between tokens"),
                ("vllm:e2e_request_latency_seconds", "whole request"),
            )
        ),
        "Of all replicas together.",
        unit="s",
    ),
    ask(
        "Replicas that are scraped",
        f"count(count by (pod) (vllm:num_requests_running{{{PODS}}}))",
        "replicas",
        "A run adds one beside the others and takes it away at its end.",
    ),
    ask(
        "What kvmedic says",
        "max by (resource_name, state, severity, reason) "
        f'(kvmedic_resource_info{{resource_namespace="$namespace"}} {LEADS})',
        "",
        "States of the fleets of this namespace that someone may have to look at.",
        kind="table",
    ),
)


def _variable(name: str, values: str) -> dict[str, Any]:
    query = {"query": values, "refId": name}
    return {"name": name, "type": "query", "datasource": SOURCE, "query": query, "refresh": 2, "sort": 1}


OF_A_TARGET = (
    _variable("namespace", "label_values(pod:vllm_workload:info, namespace)"),
    _variable("workload", 'label_values(pod:vllm_workload:info{namespace="$namespace"}, workload)'),
)


def places_of(panels: Sequence[Shown]) -> Iterator[tuple[Shown, dict[str, int]]]:
    """Yield each panel with its place: from left to right, a new row where the last one is full."""
    x = y = 0
    tallest = 0
    for panel in panels:
        if x + panel.width > COLUMNS:
            x, y, tallest = 0, y + tallest, 0
        yield panel, {"x": x, "y": y, "w": panel.width, "h": panel.height}
        x, tallest = x + panel.width, max(tallest, panel.height)


def _panel(number: int, panel: Shown, place: dict[str, int]) -> Panel:
    is_table, is_number = panel.kind == "table", panel.kind in ("table", "stat")
    asked = [
        {
            "refId": chr(ord("A") + index),
            "datasource": SOURCE,
            "expr": query.expression,
            "legendFormat": query.legend,
            **({"instant": True, "range": False} if is_number else {}),
            **({"format": "table"} if is_table else {}),
        }
        for index, query in enumerate(panel.queries)
    ]
    bounds = {"min": 0, **({} if panel.most is None else {"max": panel.most})}
    made: Panel = {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.about,
        "datasource": SOURCE,
        "gridPos": place,
        "targets": asked,
        "fieldConfig": {"defaults": {"unit": panel.unit, **bounds}, "overrides": []},
    }
    if is_table:
        hidden = {"excludeByName": {"Time": True, "Value": True}}
        made["transformations"] = [{"id": "organize", "options": hidden}]
    return made


def _dashboard(uid: str, title: str, panels: Sequence[Shown], variables: Sequence[dict[str, Any]]) -> str:
    source = {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}
    made = {
        "uid": uid,
        "title": title,
        "tags": ["kvmedic", "vllm"],
        "schemaVersion": 39,
        "editable": True,
        "time": {"from": "now-3h", "to": "now"},
        "refresh": "30s",
        "templating": {"list": [source, *variables]},
        "panels": [_panel(number, *placed) for number, placed in enumerate(places_of(panels), start=1)],
    }
    return json.dumps(made, indent=1) + "\n"


DASHBOARDS = {"fleets": FLEETS, "target": TARGET}
"""The panels of each by the name of its file."""


def fill_in(expression: str, namespace: str, workload: str, interval: str) -> str:
    """Return a query as Grafana asks it once a reader has chosen."""
    chosen = {"$namespace": namespace, "$workload": workload, "$__rate_interval": interval}
    for word, instead in chosen.items():
        expression = expression.replace(word, instead)
    return expression


def queries(namespace: str, workload: str, interval: str) -> Iterator[tuple[str, str]]:
    """Yield each query of each dashboard by where it is, as Grafana asks it."""
    for name, panels in DASHBOARDS.items():
        for panel in panels:
            for number, query in enumerate(panel.queries):
                yield (
                    f"{name}: {panel.title} {number}",
                    fill_in(query.expression, namespace, workload, interval),
                )


def dashboards() -> dict[str, str]:
    """Each dashboard as Grafana reads it, by the name of its file."""
    return {
        "fleets.json": _dashboard("kvmedic-fleets", "kvmedic: all fleets", FLEETS, ()),
        "target.json": _dashboard("kvmedic-target", "kvmedic: one target", TARGET, OF_A_TARGET),
    }
