"""A Prometheus that scrapes: what a stopped or broken exporter looks like from here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest

from kvmedic.metrics.series import PodKey
from kvmedic.model.evidence import Absence, Look, Measured, Missing, PodReadings, Pool, Signal, Stale
from worlds.http_double import Reply, Request, Server
from worlds.prometheus_server import PrometheusServer
from worlds.scripted_fleet import DATA, source

PODS = ("steady", "stopping", "nan", "reconfigured")
THRASH = (DATA / "metrics-thrash.txt").read_text()
MINUTE = timedelta(minutes=1)


class Exporter(Server):
    """A replica's page, which may change, or break."""

    def __init__(self) -> None:
        self.page: str | None = THRASH
        super().__init__(self._scraped)

    def _scraped(self, _: Request) -> Reply:
        if self.page is None:
            return Reply(500)
        return Reply(200, self.page.encode(), {"Content-Type": "text/plain; version=0.0.4"})


@dataclass
class Scraped:
    """A Prometheus and the replicas that it scrapes."""

    server: PrometheusServer
    exporters: dict[str, Exporter]


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scraped]:
    with ExitStack() as stack:
        exporters = {pod: stack.enter_context(Exporter()) for pod in PODS}
        targets = [
            (exporter.address, {"namespace": "fleet", "pod": pod, "container": "vllm"})
            for pod, exporter in exporters.items()
        ]
        server = stack.enter_context(PrometheusServer(tmp_path_factory.mktemp("live"), targets))
        server.wait_for("count(count_over_time(vllm:num_requests_running[1m]) > 3) == 4")
        yield Scraped(server, exporters)


async def seen_at(scraped: Scraped, pod: str, at: datetime) -> PodReadings:
    looked = source(scraped.server.url, at, freshness="5s", resolution="200ms")
    seen = await looked.observe([PodKey("fleet", pod)], Look(MINUTE))
    looked.close()
    return seen.pods[pod]


async def test_a_scraped_replica_is_measured(scraped: Scraped) -> None:
    now = datetime.now(UTC)

    pod = await seen_at(scraped, "steady", now)

    running = pod.number(Signal.RUNNING_MAX)
    assert isinstance(running, Measured)
    assert running.value == 11.0
    assert timedelta(0) <= now - running.at < timedelta(seconds=2)
    assert pod.pool == Measured(Pool(149, 32, "auto", caches_prefixes=True), running.at)
    assert pod.number(Signal.STARTED_SECONDS) == Measured(1.79523658462e9, running.at)


async def test_a_replica_that_stops_answering_is_stale_once_its_last_sample_is_old(scraped: Scraped) -> None:
    scraped.exporters["stopping"].page = None
    scraped.server.wait_for('up{pod="stopping"} == 0')
    failed = datetime.now(UTC)

    soon = await seen_at(scraped, "stopping", failed + timedelta(seconds=1))
    later = await seen_at(scraped, "stopping", failed + timedelta(seconds=10))

    one_failed_scrape = soon.number(Signal.PREEMPTIONS)
    assert isinstance(one_failed_scrape, Measured)
    assert isinstance(soon.pool, Measured)
    assert all(isinstance(reading, Measured) for reading in soon.numbers.values())
    readings = {*later.numbers.values(), *later.histograms.values(), later.pool}
    assert readings == {Stale(one_failed_scrape.at)}


async def test_a_gauge_that_is_not_a_number_is_missing(scraped: Scraped) -> None:
    usage = 'vllm:kv_cache_usage_perc{engine="0",model_name="tiny"}'
    scraped.exporters["nan"].page = THRASH.replace(f"{usage} 1.0", f"{usage} NaN")
    scraped.server.wait_for("vllm:kv_cache_usage_perc != vllm:kv_cache_usage_perc")

    pod = await seen_at(scraped, "nan", datetime.now(UTC))

    assert pod.number(Signal.KV_CACHE_USAGE_MEAN) == Missing(Absence.NOT_A_NUMBER)
    assert isinstance(pod.number(Signal.RUNNING_MEAN), Measured)


async def test_the_pool_of_a_replica_that_came_back_with_another_is_the_new_one(scraped: Scraped) -> None:
    scraped.exporters["reconfigured"].page = THRASH.replace('num_gpu_blocks="150"', 'num_gpu_blocks="120"')
    scraped.server.wait_for('vllm:cache_config_info{num_gpu_blocks="120"}')

    pod = await seen_at(scraped, "reconfigured", datetime.now(UTC))

    assert isinstance(pod.pool, Measured)
    assert pod.pool.value.blocks == 119
