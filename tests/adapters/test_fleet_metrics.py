"""What the reconcile loop asks, by source name and by pod."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from http_double import Reply, Server
from kvmedic.core.evidence import Absence, Look, Measured, Missing, Pool, Signal, Unsupported
from kvmedic.core.fleet import Pod
from kvmedic.engines.vllm_signals import VLLM_SIGNALS
from kvmedic.metrics.fleet import FleetMetrics
from kvmedic.metrics.options import ScrapeOptions, SourceOptions
from prometheus_server import PrometheusServer
from scripted_fleet import DATA, END, NAMESPACE, THIRTY

THRASH = (DATA / "metrics-thrash.txt").read_bytes()
UNAVAILABLE = Missing(Absence.SOURCE_UNAVAILABLE)


def pod(name: str, address: str = "127.0.0.1") -> Pod:
    return Pod(
        name=name,
        uid=name,
        resource_version="1",
        revision="r",
        address=address,
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
        ready_at=None,
        terminating=False,
        unschedulable=False,
        in_rotation=True,
        cordoned=False,
        restarts=0,
        waiting_reason="",
    )


def fleet_metrics(url: str, port: int = 8000) -> FleetMetrics:
    sources = {"default": SourceOptions(url=url, freshness="10m")}
    return FleetMetrics.of(sources, ScrapeOptions(port=port), VLLM_SIGNALS)


async def test_a_source_is_found_by_name(history: PrometheusServer) -> None:
    metrics = fleet_metrics(history.url)

    known = await metrics.observe("default", [pod("calm")], NAMESPACE, THIRTY, timedelta(0))
    unknown = await metrics.observe("defualt", [pod("calm")], NAMESPACE, THIRTY, timedelta(0))
    await metrics.close()

    assert known.pods["calm"].pool == Measured(Pool(149, 32, "auto"), END)
    assert set(unknown.pods["calm"].numbers.values()) == {UNAVAILABLE}
    assert metrics.names == ("default",)
    assert metrics.trouble("default") == ""
    told = "no metrics source is named defualt; the operator's configuration has default"
    assert metrics.trouble("defualt") == told


async def test_a_look_at_some_signals_asks_for_no_others(history: PrometheusServer) -> None:
    metrics = fleet_metrics(history.url)
    trigger = frozenset({Signal.PREEMPTIONS_PER_REQUEST_HELD})

    seen = await metrics.look("default", [pod("calm")], NAMESPACE, Look(THIRTY, signals=trigger))
    await metrics.close()

    assert set(seen.pods["calm"].numbers) == trigger
    assert seen.pods["calm"].histograms == {}
    assert seen.pods["calm"].histogram(Signal.E2E_SECONDS) == Unsupported()


async def test_a_replica_is_asked_at_its_own_address() -> None:
    with Server(lambda _: Reply(200, THRASH)) as replica:
        metrics = fleet_metrics("http://127.0.0.1:9", replica.port)
        in_flight = await metrics.in_flight(NAMESPACE, pod("a"))
        pool = await metrics.pool(NAMESPACE, pod("a"))
        nowhere = await metrics.in_flight(NAMESPACE, pod("a", address=""))
        await metrics.close()

    assert isinstance(in_flight, Measured)
    assert in_flight.value == 21.0
    assert isinstance(pool, Measured)
    assert pool.value == Pool(149, 32, "auto")
    assert nowhere == UNAVAILABLE
    assert [request.path for request in replica.requests] == ["/metrics", "/metrics"]
