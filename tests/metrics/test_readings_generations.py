"""Each generation of vLLM's metrics, through a real Prometheus and from saved pages: the same evidence.

Of the engine's versions only 0.32.0 could be run here; the pages of the others are reconstructed from
their sources, see `tests/data/vllm/generations`.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from typer.testing import CliRunner

from engines.derive_generations import FOLDER, GENERATIONS, PROCESS, Generation, pages
from kvmedic.cli.app import app_for
from kvmedic.cli.diagnose import policy_in
from kvmedic.cli.saved import Consultation, consult, evidence_of, pages_of
from kvmedic.engines.vllm_signals import VLLM_SIGNALS
from kvmedic.metrics.page import Page, observe_pages, parse_page
from kvmedic.model.evidence import (
    HISTOGRAMS,
    Histogram,
    Look,
    Measured,
    Observation,
    PodReadings,
    Pool,
    Reading,
    Signal,
)
from kvmedic.runbooks.branches import Evidence
from worlds.metric_tape import Curve, Tape
from worlds.prometheus_server import PrometheusServer
from worlds.scripted_fleet import DATA, END, FIVE, NAMESPACE, observed

WINDOW_SECONDS = FIVE.total_seconds()
GAUGES = {
    "vllm:num_requests_running": "vllm:num_requests_running",
    "vllm:num_requests_waiting": "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc": "vllm:kv_cache_usage_perc",
    "vllm:gpu_cache_usage_perc": "vllm:kv_cache_usage_perc",
}
"""Gauges that swing in thrash, and the column of the recorded seconds that shows how."""
OF_TIME = frozenset(
    {
        Signal.RUNNING_MEAN,
        Signal.RUNNING_MAX,
        Signal.WAITING_MEAN,
        Signal.WAITING_AT_END,
        Signal.KV_CACHE_USAGE_MEAN,
        Signal.KV_CACHE_USAGE_MAX,
        Signal.KV_CACHE_USAGE_DEVIATION,
        Signal.REQUESTS_IN_FLIGHT_CHANGE,
        Signal.STARTED_SECONDS,
        Signal.RUNNING_LOW,
        Signal.SILENT_SECONDS_HELD,
    }
)
"""What two moments cannot show as a monitoring system does."""
PREFIX = frozenset({Signal.PREFIX_CACHE_QUERIES, Signal.PREFIX_CACHE_HITS})
STARTED = frozenset({Signal.STARTED_SECONDS})
BEST_CAPS = range(8, 17)
"""Caps that the same engine ran best with, measured on vLLM 0.32.0."""


@dataclass(frozen=True)
class Expected:
    """What a generation's evidence leads to."""

    branch: str | None = "FleetWideDemand"
    reason: str = "FleetWideDemand"
    says: str = "more requests run at once than the KV cache holds"
    lacks: frozenset[Signal] = frozenset()
    """Signals without a value in Prometheus."""
    engines: int = 1


UNKNOWN_POOL = Expected(None, "SignalUnsupported", "KV-cache pool: this engine does not export it; a newer")
EXPECTED = {
    "v0-0.8": Expected(lacks=PREFIX | STARTED),
    "v1-0.8.0": UNKNOWN_POOL,
    "v1-0.8.5": UNKNOWN_POOL,
    "v1-0.9.1": Expected(),
    "v1-0.10.0": Expected(),
    "v1-0.10.0-servers": Expected(lacks=STARTED),
    "v1-0.11.0": Expected(),
    "v1-0.11.0-servers": Expected(lacks=STARTED),
    "v1-0.32.0": Expected(),
    "v1-0.32.0-servers": Expected(lacks=STARTED),
    "v1-0.32.0-engines": Expected(engines=2),
    "v1-0.32.0-no-stats": Expected(None, "MetricsMissing", "statistics", lacks=frozenset(Signal)),
}
STEMS = [pytest.param(one, id=one.stem) for one in GENERATIONS]


def swings() -> Mapping[str, list[float]]:
    """Return the recorded seconds of thrash in which requests were served, by column."""
    with (DATA / "timeseries-vllm-0.32-cpu.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["phase"] == "thrash"]
    served = [row for row in rows if float(row["vllm:num_requests_running"]) > 1]
    return {name: [float(row[name]) for row in served] for name in GAUGES.values()}


def page(generation: Generation, moment: str) -> Page:
    return parse_page((FOLDER / f"{generation.stem}-{moment}.txt").read_text(), END)


def only(page: Page, *, gauges: bool) -> Page:
    return Page(page.at, {name: many for name, many in page.series.items() if (name in GAUGES) is gauges})


def swinging(values: list[float]) -> Curve:
    """Return a gauge that swings, and is at the end of the window what it was at its beginning.

    The recording's clients sent again once they were answered, so that their number did not grow.
    """
    steps = round(WINDOW_SECONDS / 15)
    return lambda t: None if t < -WINDOW_SECONDS else values[round(-t / 15) % steps % len(values)]


@pytest.fixture(scope="module")
def generations(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrometheusServer]:
    """A real Prometheus that scraped every generation for five minutes of thrash."""
    directory, seconds = tmp_path_factory.mktemp("generations"), swings()
    tape = Tape(END, length=timedelta(minutes=6))
    for one in GENERATIONS:
        target = {"namespace": NAMESPACE, "pod": one.stem, "instance": f"{one.stem}:8000", "job": "vllm"}
        before, thrash = page(one, "before"), page(one, "thrash")
        tape.replay(only(before, gauges=False), only(thrash, gauges=False), target, since=-WINDOW_SECONDS)
        for name, many in only(thrash, gauges=True).series.items():
            for series in many:
                tape.add(name, {**series.labels, **target}, swinging(seconds[GAUGES[name]]))
    tape.write(directory)
    with PrometheusServer(directory) as server:
        yield server


async def scraped(server: PrometheusServer, generation: Generation) -> Observation:
    return await observed(server, Look(FIVE), generation.stem)


def saved(generation: Generation) -> Observation:
    files = [str(FOLDER / f"{generation.stem}-{moment}.txt") for moment in ("before", "thrash")]
    evidence, _ = evidence_of(pages_of(files), policy_in("").trigger, FIVE)
    return evidence.sizing


def consulted(seen: Observation) -> Consultation:
    policy = policy_in("")
    return consult(Evidence(seen, seen, policy.trigger), policy, None)


def values(pod: PodReadings) -> dict[Signal, Any]:
    """Return what is measured, by signal."""
    found: dict[Signal, Any] = {**pod.numbers, **pod.histograms}
    return {signal: one.value for signal, one in found.items() if isinstance(one, Measured)}


def test_the_pages_are_derived_from_what_was_recorded() -> None:
    stored = {path: path.read_text() for path in FOLDER.glob("*.txt")}

    assert stored == pages(), "run python tests/engines/derive_generations.py"
    assert set(EXPECTED) == {one.stem for one in GENERATIONS}


@pytest.mark.parametrize("path", sorted(pages()), ids=lambda path: path.stem)
def test_a_reconstructed_page_says_so_and_where_each_name_comes_from(path: Any) -> None:
    text = path.read_text()
    families = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]

    assert "not recorded" in text.partition("# TYPE")[0]
    assert families
    assert all(f"\n#   {name}: " in text for name in families)


@pytest.mark.parametrize("generation", STEMS)
async def test_prometheus_and_saved_pages_give_the_same_evidence_branch_and_cap(
    generations: PrometheusServer, generation: Generation
) -> None:
    expected, observation = EXPECTED[generation.stem], await scraped(generations, generation)
    pod, twin = observation.pods[generation.stem], saved(generation).pods["replica"]
    live, offline = consulted(observation), answer(generation)

    assert {s for s in Signal if s not in values(pod)} == expected.lacks
    assert shown(pod.pool) == shown(twin.pool)
    assert (pod.model_names, pod.engines) == (twin.model_names, twin.engines)
    for signal in set(values(pod)) - OF_TIME:
        alike(values(pod)[signal], values(twin)[signal])
    if generation.statistics:
        assert pod.engines == expected.engines
        assert values(pod)[Signal.PREEMPTIONS] == pytest.approx(338 * expected.engines, rel=0.01)
        assert values(pod)[Signal.OUTPUT_LENGTH].count == pytest.approx(183 * expected.engines, rel=0.01)
        assert set(values(pod)) >= HISTOGRAMS
    assert (str(live.diagnosis.reason), offline["branch"]) == (expected.reason, expected.branch)
    assert expected.says in live.diagnosis.line()
    assert offline["reason"] == expected.reason
    assert expected.says in offline["message"].replace("--disable-log-stats", "statistics")
    planned = [int(change["after"]) for change in offline["plan"]]
    if expected.branch is None:
        assert (live.advice, planned) == (None, [])
        return
    assert live.advice is not None, live.blocked
    assert len(planned) == 1
    assert {live.advice.value, planned[0]} <= set(BEST_CAPS)
    assert abs(live.advice.value - planned[0]) <= 2


def shown(pool: Reading[Pool]) -> object:
    return pool.value if isinstance(pool, Measured) else pool


def alike(a: Any, b: Any) -> None:
    if not isinstance(a, Histogram):
        assert a == pytest.approx(b, rel=0.01)
        return
    assert a.bounds == b.bounds
    assert a.counts == pytest.approx(b.counts, rel=0.01, abs=1e-6)
    assert a.total == pytest.approx(b.total, rel=0.01)


def answer(generation: Generation) -> Any:
    """Return what `kvmedic diagnose` prints for a generation's two pages."""
    files = [f"--scrape={FOLDER / f'{generation.stem}-{moment}.txt'}" for moment in ("before", "thrash")]
    argv = ["diagnose", *files, "--interval", "5m", "-o", "json"]
    result = CliRunner().invoke(app_for(argv), argv)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return json.loads(result.stdout)


def test_without_statistics_the_series_of_the_process_stay() -> None:
    generation = next(one for one in GENERATIONS if not one.statistics)

    assert set(page(generation, "thrash").series) == set(PROCESS)


@pytest.mark.parametrize("stale", ["0.97", "0.2"], ids=["of a moment ago", "of long ago"])
def test_copies_of_several_servers_must_agree(stale: str) -> None:
    text = (FOLDER / "v1-0.11.0-servers-thrash.txt").read_text()
    usage = 'vllm:kv_cache_usage_perc{engine="0",model_name="tiny",pid="72"} '
    pages = [parse_page(text.replace(f"{usage}1.0", usage + stale), END + timedelta(n)) for n in (0, 1)]

    pod = observe_pages({"a": pages}, VLLM_SIGNALS).pods["a"]

    assert text.count(usage) == 1
    assert isinstance(pod.number(Signal.KV_CACHE_USAGE_MEAN), Measured) is (stale == "0.97")
