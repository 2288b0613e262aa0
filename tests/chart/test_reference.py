"""The chart's README has every value, and what `helm test` runs shows whether the operator acts."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import cycle
from typing import Any

import pytest
import yaml
from prometheus_client import generate_latest

from chart.generated import CHART
from chart.rendering import hook, render
from chart.values_reference import ValueRow, value_rows
from kvmedic.record.telemetry import Telemetry
from kvmedic.settings import BudgetOptions, SourceOptions

ROWS = {row.name: row for row in value_rows()}


def leaves(values: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield every value of values.yaml that has a row of its own; what is free is one value."""
    for name, value in values.items():
        path = f"{prefix}{name}"
        yield path
        if isinstance(value, dict) and path in ROWS and ROWS[path].is_section:
            yield from leaves(value, f"{path}.")


def test_the_reference_has_every_value_with_what_it_is_for():
    values = yaml.safe_load((CHART / "values.yaml").read_text())

    assert set(leaves(values)) <= set(ROWS)
    assert all(row.description and (row.is_section or row.type) for row in ROWS.values())


def test_a_default_that_the_chart_leaves_to_the_operator_is_the_operators():
    assert ROWS["budgets.runs"].default == f"`{BudgetOptions().runs}`"
    assert ROWS["sources.NAME.timeout"].default == '`"10s"`'
    assert SourceOptions(url="http://a").timeout.total_seconds() == 10
    assert ROWS["sources.NAME.labels.pod"].default == '`"pod"`'
    assert ROWS["sources.NAME.url"].default == ""


def test_a_value_that_nobody_described_is_refused_by_name():
    row = ValueRow(("image", "colour"), {"type": "string"}, "", is_section=False)

    with pytest.raises(ValueError, match=r"image\.colour has no description: give it one in values\.schema"):
        _ = row.description


@contextmanager
def metrics(page: Callable[[], bytes]) -> Iterator[str]:
    """Serve pages at an address of this machine."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(page())

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=partial(server.serve_forever, poll_interval=0.01), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/metrics"
        server.shutdown()


def ask(url: str, shards: int, seconds: str = "0.3") -> subprocess.CompletedProcess[str]:
    """Run what the hook runs."""
    script = (CHART / "files" / "acts.py").read_text()
    argv = [sys.executable, "-S", "-c", script, url, str(shards), seconds]
    return subprocess.run(argv, capture_output=True, text=True, check=False)


def process(shard: int, *, leads: bool) -> bytes:
    """The metrics of one process of the operator."""
    telemetry = Telemetry()
    telemetry.observe_leadership(shard, 2, lambda: leads)
    return generate_latest(telemetry.registry)


def test_helm_test_asks_until_every_shard_is_looked_after():
    pages = cycle([process(1, leads=False), process(0, leads=True), process(1, leads=True)])

    with metrics(lambda: next(pages)) as url:
        done = ask(url, 2, "10")

    assert (done.returncode, done.stdout) == (0, "kvmedic acts: 2 of 2 shards are looked after\n"), (
        done.stderr
    )


def test_helm_test_fails_where_one_shard_has_nobody_who_acts():
    with metrics(partial(process, 0, leads=True)) as url:
        done = ask(url, 2)

    assert done.returncode == 1
    assert "1 of 2 shards are looked after: no process holds the Lease" in done.stderr


def test_helm_test_fails_where_nobody_answers():
    done = ask("http://127.0.0.1:9/metrics", 1)

    assert done.returncode == 1
    assert "does not answer" in done.stderr
    assert "network policies" in done.stderr


def test_the_hook_asks_the_service_and_is_none_of_its_pods():
    made, pod = render({"shards": 2}), hook({"shards": 2})

    service = made["Service", "kvmedic-metrics"]
    (container,) = pod["spec"]["containers"]
    url, shards = container["args"][1:3]
    assert url == f"http://{service['metadata']['name']}:{service['spec']['ports'][0]['port']}/metrics"
    assert shards == "2"
    assert container["args"][0].strip() == (CHART / "files" / "acts.py").read_text().strip()
    assert not service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
    assert (
        container["image"]
        == made["Deployment", "kvmedic-shard-0"]["spec"]["template"]["spec"]["containers"][0]["image"]
    )
