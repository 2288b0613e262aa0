"""Queries are shared: their number depends on signals and windows, not on resources."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta

import pytest

from kvmedic.engines.vllm_signals import VLLM_SIGNALS
from kvmedic.metrics.fleet import PrometheusSource
from kvmedic.metrics.prometheus import PrometheusClient
from kvmedic.metrics.readings import PodKey
from kvmedic.model.evidence import EVERY_SIGNAL, Absence, Look, Measured, Missing, Signal
from kvmedic.settings import SourceOptions
from worlds.http_double import Reply, Request, Server, forwarded
from worlds.prometheus_server import PrometheusServer
from worlds.scripted_fleet import END, FIVE, NAMESPACE, TWO, source


async def test_a_signal_that_was_not_asked_for_is_not_queried(history: PrometheusServer) -> None:
    with Server(lambda request: forwarded(request, history.url)) as proxy:
        looked = source(proxy.url)
        seen = await looked.observe(
            [PodKey(NAMESPACE, "calm")], Look(FIVE, signals=frozenset({Signal.PREEMPTIONS}))
        )
        looked.close()

    assert len(proxy.requests) == len(["presence", "pool", "preemptions"])
    assert set(seen.pods["calm"].numbers) == {Signal.PREEMPTIONS}


async def test_queries_do_not_grow_with_resources(history: PrometheusServer) -> None:
    async def queries(pods: int) -> int:
        with Server(lambda request: forwarded(request, history.url)) as proxy:
            looked = source(proxy.url)
            names = ["calm", "thrashing", *(f"pod-{i}" for i in range(pods))]
            await asyncio.gather(*(looked.observe([PodKey(NAMESPACE, n)], Look(FIVE, TWO)) for n in names))
            await looked.observe([PodKey(NAMESPACE, n) for n in names], Look(FIVE, TWO))
            looked.close()
        return len(proxy.requests)

    few, many = await queries(0), await queries(200)

    shared = 1  # finished and aborted are parts of one family
    assert few == many == len(["presence", "pool"]) + len(EVERY_SIGNAL) - shared


async def test_an_answer_serves_for_the_reuse_time(history: PrometheusServer) -> None:
    now = [END]
    with Server(lambda request: forwarded(request, history.url)) as proxy:
        options = SourceOptions(url=proxy.url, reuse="10s")
        looked = PrometheusSource("default", PrometheusClient(options), options, VLLM_SIGNALS, lambda: now[0])
        look = Look(FIVE, signals=frozenset())
        counts = []
        for seconds in (0, 9.9, 10, 5):
            now[0] = END + timedelta(seconds=seconds)
            seen = await looked.observe([PodKey(NAMESPACE, "calm")], look)
            counts.append((len(proxy.requests), (seen.at - END).total_seconds()))
        looked.close()

    per_look = len(["presence", "pool"])
    reused, anew, clock_set_back = (per_look, 0), (2 * per_look, 10), (3 * per_look, 5)
    assert counts == [reused, reused, anew, clock_set_back]


async def test_one_caller_that_gives_up_does_not_take_the_answer_from_others(
    history: PrometheusServer,
) -> None:
    def slowly(request: Request) -> Reply:
        time.sleep(0.3)
        return forwarded(request, history.url)

    with Server(slowly) as proxy:
        looked = source(proxy.url)
        look = Look(FIVE, signals=frozenset())
        first = asyncio.create_task(looked.observe([PodKey(NAMESPACE, "calm")], look))
        second = asyncio.create_task(looked.observe([PodKey(NAMESPACE, "calm")], look))
        await asyncio.sleep(0.1)
        first.cancel()
        seen = await second
        looked.close()

    assert isinstance(seen.pods["calm"].pool, Measured)


async def test_the_peak_of_the_day_is_one_query_for_all_replicas(history: PrometheusServer) -> None:
    with Server(lambda request: forwarded(request, history.url)) as proxy:
        looked = source(proxy.url)
        found = await looked.peaks([PodKey(NAMESPACE, name) for name in ("thrashing", "calm", "nobody")])
        looked.close()

    assert len(proxy.requests) == 1
    ended, outputs = 1 + 0.25 + 0.1, 60 / 1.25
    for name in ("thrashing", "calm"):
        told = found[name]
        assert isinstance(told, Measured)
        assert told.value == pytest.approx(ended * outputs, rel=0.1)
    assert found["nobody"] == Missing(Absence.NO_SERIES)
