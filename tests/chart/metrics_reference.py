"""docs/reference/metrics.md: what the operator exports, what the recording rules add, and the alerts.

Names, types, labels and meanings come from the operator's own registry, as it looks once something happened.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from prometheus_client.core import Metric

from documentation.generated import with_part
from kvmedic.model.status import Resource, Severity
from kvmedic.record.events import Note
from kvmedic.record.telemetry import TROUBLED, Reporter, SourceCosts, Standing, Telemetry

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "reference" / "metrics.md"
FILES = ROOT / "charts" / "kvmedic" / "files"
ALERTS, RECORDINGS = FILES / "alerts.yaml", FILES / "recordings.yaml"


@dataclass
class SomeCost:
    """What a source was asked."""

    queries: int = 3
    received_bytes: int = 2048
    source_seconds: float = 0.5
    own_seconds: float = 0.1


class NoEvents:
    """Nobody to write Events to."""

    async def publish(self, resource: Resource, note: Note) -> None:
        """Drop it."""


def busy_telemetry() -> Telemetry:
    """The metrics of a process that leads, has one fleet in trouble and had a look that failed."""
    telemetry = Telemetry()
    Reporter(NoEvents(), telemetry)
    telemetry.registry.register(SourceCosts({"default": SomeCost()}))
    telemetry.observe_leadership(0, 1, lambda: True)
    telemetry.named.standings = {
        "uid": Standing("serving", "chat", {TROUBLED: "FleetWideDemand"}, Severity.PAGE)
    }
    telemetry.decisions.labels(reason="FleetWideDemand").inc()
    telemetry.tick_seconds.observe(0.2)
    telemetry.failures.labels(kind="Unavailable").inc()
    telemetry.notifications.labels(destination="oncall", result="sent").inc()
    return telemetry


def rules_of(file: Path) -> list[dict[str, Any]]:
    """Every rule of a rule file, in its order."""
    groups = yaml.safe_load(file.read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def _comments(file: Path) -> Iterator[str]:
    """Yield what stands above each recording rule; nothing where nothing does."""
    said: list[str] = []
    for line in file.read_text(encoding="utf-8").splitlines():
        text = line.strip()
        if text.startswith("# "):
            said.append(text[2:])
        elif text.startswith("- record:"):
            yield " ".join(said)
        if not text.startswith("#"):
            said = []


def _table(head: str, rows: Iterable[tuple[str, ...]]) -> str:
    columns = head.count("|") - 1
    return "\n".join((head, "|" + " --- |" * columns, *(f"| {' | '.join(row)} |" for row in rows)))


def _exported(metric: Metric) -> tuple[str, ...]:
    name = f"{metric.name}_total" if metric.type == "counter" else metric.name
    labels = dict.fromkeys(label for sample in metric.samples for label in sample.labels if label != "le")
    return f"`{name}`", metric.type, ", ".join(f"`{label}`" for label in labels), metric.documentation


def own_metrics() -> str:
    """Every metric of the operator as a Markdown table."""
    metrics = sorted(busy_telemetry().registry.collect(), key=lambda metric: metric.name)
    return _table("| metric | type | labels | meaning |", map(_exported, metrics))


def recorded() -> str:
    """Every recording rule as a Markdown table."""
    rules = zip(rules_of(RECORDINGS), _comments(RECORDINGS), strict=True)
    return _table("| series | meaning |", ((f"`{rule['record']}`", said) for rule, said in rules))


def alerts() -> str:
    """Every alert as a Markdown table; each leads to its page."""
    return _table(
        "| alert | severity | after | says |",
        (
            (
                f"[`{rule['alert']}`](../{rule['annotations']['runbook_url'].removeprefix('docs/')})",
                rule["labels"].get("severity", "of the fleet"),
                str(rule.get("for", "at once")),
                _plain(rule["annotations"]["summary"]),
            )
            for rule in rules_of(ALERTS)
        ),
    )


def _plain(summary: str) -> str:
    filled = {"$labels.resource_namespace": "NS", "$labels.resource_name": "NAME", "$value": "N"}
    for word, text in filled.items():
        summary = summary.replace("{{ " + word + " }}", text)
    return summary


def metrics_page() -> str:
    """docs/reference/metrics.md with its tables anew."""
    page = PAGE.read_text(encoding="utf-8")
    for name, part in (("own metrics", own_metrics()), ("recordings", recorded()), ("alerts", alerts())):
        page = with_part(page, name, part)
    return page
