"""A fleet's figures are its own, or none, whatever pages of other tenants say that a real Prometheus scrapes.

One server has every page, at a path of its own. Each victim is scraped as usual; a forger's page carries all
labels of its victim, and is scraped by a job of its own that honors them, or does not.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
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
    Look,
    Measured,
    Missing,
    PodReadings,
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
    """What another's page says under a victim's labels at a time."""

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
}
HIDES_CALM = frozenset({"another-engine", "an-older-page", "a-page-ahead", "finished", "no-preemptions"})
"""What a glance at calm fleets must tell, too: it changes what it asks for."""
CHANGES_WAITING = frozenset({"running", "waiting"})
HONEST = "nobody"
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
"""Each victim by the last part of its address."""


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrometheusServer]:
    """A Prometheus that has scraped all pages for a while; it is scraping on."""
    began = time.monotonic()

    def answer(request: Request) -> Reply:
        _, kind, pod = request.path.split("/")
        at = time.monotonic() - began
        if kind == "own":
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


async def test_a_close_look_tells_a_replicas_own_figures_or_none(scraped: PrometheusServer) -> None:
    seen = await observed(scraped, Look(WINDOW, timedelta(seconds=4)))
    honest = seen[f"{HONEST}-honored"]

    told = {signal: reading for signal, reading in honest.numbers.items() if isinstance(reading, Measured)}
    assert {Signal.PREEMPTIONS, Signal.RUNNING_MEAN, Signal.KV_CACHE_USAGE_MEAN} <= told.keys()
    for pod, readings in seen.items():
        if is_forged(pod):
            assert {*readings.numbers.values(), *readings.histograms.values(), readings.pool} == {
                Missing(Absence.SEVERAL_PAGES)
            }, pod
        else:
            for signal, reading in told.items():
                own = readings.number(signal)
                assert isinstance(own, Measured), (pod, signal, own)
                # Scrapes of different targets are not of the same moment.
                assert own.value == pytest.approx(reading.value, rel=0.2, abs=1e-6), (pod, signal)


async def test_a_glance_at_calm_fleets_does_the_same(scraped: PrometheusServer) -> None:
    seen = await observed(scraped, Look(WINDOW, signals=AT_REST))

    for pod, readings in seen.items():
        kind = pod.rpartition("-")[0]
        if pod.endswith("honored") and kind in HIDES_CALM:
            assert {*readings.numbers.values()} == {Missing(Absence.SEVERAL_PAGES)}, pod
        elif kind == HONEST or pod.endswith("renamed"):
            assert isinstance(readings.number(Signal.PREEMPTIONS_PER_REQUEST_HELD), Measured), pod


async def test_a_replica_that_cannot_be_asked_is_idle_by_its_own_samples_alone(
    scraped: PrometheusServer,
) -> None:
    samples = _SAMPLE.findall(PAGE)
    in_hand = sum(float(value) for name, _, value in samples if name in VLLM_SIGNALS.in_flight)
    with source_of(scraped) as source:
        for pod, place in PLACED.items():
            found = await source.samples(PodKey(NAMESPACE, pod), place.address, OUT, frozenset())
            if pod.endswith("honored") and pod.rpartition("-")[0] in HIDES_CALM | CHANGES_WAITING:
                assert found == Missing(Absence.SEVERAL_PAGES), pod
            elif found != Missing(Absence.SEVERAL_PAGES) or not is_forged(pod):
                assert isinstance(found, Measured), (pod, found)
                assert found.value == in_hand, pod


async def test_a_peak_is_of_a_replicas_own_series(scraped: PrometheusServer) -> None:
    with source_of(scraped) as source:
        found = await source.peaks(PODS, PLACED)

    for pod, told in found.items():
        assert (told == Missing(Absence.SEVERAL_PAGES)) is is_forged(pod), (pod, told)
