"""A fleet's figures are its own, or none, whatever pages of other tenants say that a real Prometheus scrapes.

One server has every page, at a path of its own. Each replica is scraped as usual; a forger's page carries all
labels of one, and is scraped by a job of its own that honors them, or does not. When pages are scraped
differs from run to run, as Prometheus spreads them by their targets. So a forger may come when none of its
samples is taken, or, as replicas take a while to write their pages, none of that one's.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest

from kvmedic.engines.vllm_signals import VLLM_SIGNALS
from kvmedic.metrics.prometheus import PrometheusClient
from kvmedic.metrics.series import Place, PodKey
from kvmedic.metrics.source import PrometheusSource
from kvmedic.model.evidence import (
    AT_REST,
    Absence,
    Histogram,
    Look,
    Measured,
    Missing,
    PodReadings,
    Pool,
    Reading,
    Signal,
)
from kvmedic.settings import SourceOptions
from worlds.http_double import Reply, Request, Server
from worlds.prometheus_server import PrometheusServer

PAGE = (Path(__file__).parents[1] / "data" / "vllm" / "metrics-thrash.txt").read_text()
NAMESPACE = "serving"
WINDOW = timedelta(seconds=8)
SCRAPES = 24
"""Of each page, before anybody looks: as many as lie in the window, and some more."""
PER_SECOND = 10.0
"""By what each counter of a page rises: the recording's numbers stand still."""
READ_SECONDS = 0.1
"""How long a replica takes for its page. One that is scraped meanwhile has later samples: they are taken."""
_SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(\{[^}]*\})? (\S+)$", re.MULTILINE)
_COUNTER = re.compile(r"(_total|_bucket|_sum|_count)$")


def page_at(seconds: float, since: float = 1.7e9) -> str:
    """A page of an engine that has run for some time."""

    def line(found: re.Match[str]) -> str:
        name, labels, value = found.groups()
        if name == "process_start_time_seconds":
            value = repr(since)
        elif _COUNTER.search(name):
            value = repr(float(value) + PER_SECOND * seconds)
        return f"{name}{labels or ''} {value}"

    return _SAMPLE.sub(line, PAGE)


def only(text: str, *names: str, factor: float = 1.0) -> str:
    """The lines of some metrics, their values multiplied."""
    found = [(n, labels, float(value) * factor) for n, labels, value in _SAMPLE.findall(text) if n in names]
    assert found
    return "".join(f"{name}{labels} {value!r}\n" for name, labels, value in found)


@dataclass(frozen=True)
class Forgery:
    """What another's page says under a replica's labels at a time."""

    text: Callable[[float], str]


FORGERIES: Mapping[str, Forgery] = {
    "another-engine": Forgery(lambda _: page_at(0.0, since=1.6e9)),
    "an-older-page": Forgery(lambda at: page_at(at / 2)),
    "a-page-ahead": Forgery(lambda at: page_at(3 * at + 1000)),
    "preemptions": Forgery(lambda at: only(page_at(at), "vllm:num_preemptions_total", factor=2.0)),
    "no-preemptions": Forgery(lambda at: only(page_at(at), "vllm:num_preemptions_total", factor=0.0)),
    "finished": Forgery(lambda at: only(page_at(at), "vllm:request_success_total", factor=3.0)),
    "stalls": Forgery(lambda at: only(page_at(at), "vllm:inter_token_latency_seconds_bucket", factor=2.0)),
    "first-tokens": Forgery(
        lambda at: only(page_at(at), "vllm:time_to_first_token_seconds_bucket", factor=5.0)
    ),
    "usage": Forgery(lambda at: only(page_at(at), "vllm:kv_cache_usage_perc", factor=0.1)),
    "waiting": Forgery(lambda at: only(page_at(at), "vllm:num_requests_waiting", factor=50.0)),
    "running": Forgery(lambda at: only(page_at(at), "vllm:num_requests_running", factor=50.0)),
    "start": Forgery(lambda at: only(page_at(at), "process_start_time_seconds", factor=0.9)),
    "another-rank": Forgery(
        lambda at: only(page_at(at), "vllm:num_preemptions_total", factor=3.0).replace(
            'engine="0"', 'engine="7"'
        )
    ),
    "another-reason": Forgery(
        lambda at: only(page_at(at), "vllm:request_success_total").replace('reason="stop"', 'reason="other"')
    ),
}
HONEST = "nobody"
LOOKS = 10
"""How often a replica's samples are asked for at most, until they tell something."""
OUT = timedelta(minutes=5)
"""For how long a replica that cannot be asked got no request."""


def labels_of(pod: str, number: int) -> dict[str, str]:
    return {"namespace": NAMESPACE, "pod": pod, "instance": f"10.0.0.{number}:8000", "job": "vllm"}


def forged(text: str, labels: Mapping[str, str]) -> str:
    """A page whose every series carries another target's labels."""
    more = ",".join(f'{name}="{value}"' for name, value in labels.items())
    return _SAMPLE.sub(lambda one: f"{one[1]}{{{more}{',' + one[2][1:-1] if one[2] else ''}}} {one[3]}", text)


PLACES = {
    f"{kind}-{how}": number
    for number, (kind, how) in enumerate(
        ((k, h) for k in (*FORGERIES, HONEST) for h in ("honored", "renamed")), 1
    )
}
"""Each replica that is forged by the last part of its address."""


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrometheusServer]:
    """A Prometheus that has scraped all pages for a while; it is scraping on."""
    began = time.monotonic()

    def answer(request: Request) -> Reply:
        _, kind, pod = request.path.split("/")
        at = time.monotonic() - began
        if kind == "own":
            time.sleep(READ_SECONDS)
            return Reply(200, page_at(at).encode())
        lies = FORGERIES[pod.rpartition("-")[0]].text(at)
        return Reply(200, forged(lies, labels_of(pod, PLACES[pod])).encode())

    directory = tmp_path_factory.mktemp("honored")
    with Server(answer) as server:
        where = server.url.removeprefix("http://")

        def job(name: str, targets: list[dict[str, str]], *, honors: bool) -> dict[str, object]:
            static = [{"targets": [where], "labels": each} for each in targets]
            return {"job_name": name, "honor_labels": honors, "static_configs": static}

        own = [labels_of(pod, number) | {"__metrics_path__": f"/own/{pod}"} for pod, number in PLACES.items()]
        lies: dict[bool, list[dict[str, str]]] = {True: [], False: []}
        for pod in PLACES:
            if not pod.startswith(HONEST):
                tenant = {"namespace": "tenant", "pod": f"forger-{pod}", "__metrics_path__": f"/lie/{pod}"}
                lies[pod.endswith("honored")].append(tenant)
        jobs = [
            job("vllm", own, honors=False),
            job("honoring", lies[True], honors=True),
            job("renaming", lies[False], honors=False),
        ]
        scrape = {"scrape_interval": "500ms", "scrape_timeout": "500ms"}
        with PrometheusServer(directory, config={"global": scrape, "scrape_configs": jobs}) as prometheus:
            prometheus.wait_for(f"min(sum_over_time(up[5m])) >= {SCRAPES}", 120)
            yield prometheus


PODS = [PodKey(NAMESPACE, pod) for pod in PLACES]
PLACED = {pod: Place(f"10.0.0.{number}") for pod, number in PLACES.items()}


@contextmanager
def source_of(server: PrometheusServer) -> Iterator[PrometheusSource]:
    options = SourceOptions(url=server.url, timeout="30s", resolution="1s")
    source = PrometheusSource("default", PrometheusClient(options), options, VLLM_SIGNALS)
    try:
        yield source
    finally:
        source.close()


async def observed(server: PrometheusServer, look: Look) -> Mapping[str, PodReadings]:
    with source_of(server) as source:
        return (await source.observe(PODS, look, PLACED)).pods


def is_forged(pod: str) -> bool:
    """Whether another's page writes into its own series."""
    return pod.endswith("honored") and not pod.startswith(HONEST)


@pytest.fixture(scope="module")
def hidden(scraped: PrometheusServer) -> frozenset[str]:
    """Replicas whose forger is scraped within the same millisecond, which nothing in a source shows."""
    moments: dict[str, list[set[float]]] = {}
    for one in scraped.results("scrape_duration_seconds[1h]"):
        pod = one["metric"]["pod"].removeprefix("forger-")
        moments.setdefault(pod, []).append({at for at, _ in one["values"]})
    found = frozenset(pod for pod, each in moments.items() if len(each) > 1 and set.intersection(*each))
    # One in 500 pairs is of the same moment, and some more where a busy machine delays both.
    assert len(found) <= 4, found
    return found


def check_own_or_none(
    readings: Mapping[str, Mapping[object, Reading[object]]], honest: str, hidden: Collection[str]
) -> None:
    """Check each forged replica's readings against those of one that nobody writes for."""
    refused = []
    for pod, found in readings.items():
        if Missing(Absence.SEVERAL_PAGES) in found.values():
            assert is_forged(pod), pod
            assert set(found.values()) == {Missing(Absence.SEVERAL_PAGES)}, (pod, found)
            refused.append(pod)
        elif pod not in hidden:
            for key, own in readings[honest].items():
                assert is_about(found[key], own), (pod, key, found[key], own)
    # Of the others no sample was taken, or none that was asked for.
    assert len(refused) >= 2 / 3 * sum(map(is_forged, readings)), refused


def is_about(reading: object, own: object) -> bool:
    """Whether two replicas' readings are of the same page, which is not scraped of both at one moment."""
    if not isinstance(reading, Measured) or not isinstance(own, Measured):
        return reading == own
    values = [
        (*one.counts, one.total) if isinstance(one, Histogram) else one for one in (reading.value, own.value)
    ]
    return values[0] == (
        values[1] if isinstance(own.value, Pool) else pytest.approx(values[1], rel=0.2, abs=1e-6)
    )


async def test_a_close_look_reports_a_replicas_own_figures_or_none(
    scraped: PrometheusServer, hidden: Collection[str]
) -> None:
    seen = await observed(scraped, Look(WINDOW, timedelta(seconds=4)))
    honest = seen[f"{HONEST}-honored"]
    measured = {signal for signal, one in honest.numbers.items() if isinstance(one, Measured)}

    assert {Signal.PREEMPTIONS, Signal.RUNNING_MEAN, Signal.KV_CACHE_USAGE_MEAN} <= measured
    readings = {pod: {**one.numbers, **one.histograms, "pool": one.pool} for pod, one in seen.items()}
    check_own_or_none(readings, f"{HONEST}-honored", hidden)


async def test_a_quick_look_at_calm_fleets_does_the_same(
    scraped: PrometheusServer, hidden: Collection[str]
) -> None:
    seen = await observed(scraped, Look(WINDOW, signals=AT_REST))

    check_own_or_none({pod: one.numbers for pod, one in seen.items()}, f"{HONEST}-honored", hidden)


async def samples_of(source: PrometheusSource, pod: str) -> Reading[float]:
    """Ask as later looks do where one tells nothing: a scrape may have come between its queries."""
    found: Reading[float] = Missing(Absence.SOURCE_UNAVAILABLE)
    for _ in range(LOOKS):
        found = await source.samples(PodKey(NAMESPACE, pod), PLACED[pod].address, OUT, frozenset())
        if found != Missing(Absence.SOURCE_UNAVAILABLE):
            break
    return found


async def test_a_replica_that_cannot_be_asked_is_idle_by_its_own_samples_alone(
    scraped: PrometheusServer, hidden: Collection[str]
) -> None:
    with source_of(scraped) as source:
        asked = {pod: await samples_of(source, pod) for pod in PLACED}

    samples = _SAMPLE.findall(PAGE)
    in_hand = sum(float(value) for name, _, value in samples if name in VLLM_SIGNALS.in_flight)
    assert isinstance(asked[f"{HONEST}-honored"], Measured)
    assert asked[f"{HONEST}-honored"].value == in_hand
    check_own_or_none({pod: {"in hand": one} for pod, one in asked.items()}, f"{HONEST}-honored", hidden)


async def test_a_peak_is_of_a_replicas_own_series(scraped: PrometheusServer, hidden: Collection[str]) -> None:
    with source_of(scraped) as source:
        found = await source.peaks(PODS, PLACED)

    check_own_or_none({pod: {"peak": one} for pod, one in found.items()}, f"{HONEST}-honored", hidden)
