"""Fleets in simulated time: the compiled scheduler against the exact one, and the router in front of it."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import accumulate

import numpy as np
import pytest

from kvmedic.engines.vllm_signals import VLLM_SIGNALS
from kvmedic.metrics.page import observe_pages, parse_page
from kvmedic.model.evidence import HISTOGRAMS, Measured, Signal
from lab.bench.drive import UNCAPPED, OpenDrive
from lab.bench.replay import ClosedLoop, simulate
from lab.bench.workloads import WORKLOADS, drawn
from lab.engine.blocks import BlockPool
from lab.engine.scheduler import Limits, Scheduler
from lab.world.fleet import EPOCH, Going, Served, Swap, Traffic, serve
from lab.world.kernel import FINISHED, LEAST_LOADED, LEFT, RANDOM, STEPS, STICKY, TWO_CHOICES
from lab.world.traffic import GRID_SECONDS, Load, closed_traffic, engine_of, mixed_traffic, open_traffic

pytestmark = pytest.mark.xdist_group("world")
CHAT = WORKLOADS[2]
REQUESTS = 300


@pytest.mark.parametrize("cap", [UNCAPPED, 20])
@pytest.mark.parametrize("number", [0, 2, 6, 8, 10, 11], ids=lambda number: WORKLOADS[number].name)
def test_the_compiled_scheduler_does_what_the_exact_one_does(number: int, cap: int):
    workload = WORKLOADS[number]
    limits = Limits(cap, 2048, workload.max_model_len)
    scheduler = Scheduler(limits, BlockPool(workload.blocks + 1), workload.block_tokens)
    loop = ClosedLoop(workload.clients, REQUESTS)
    exact = simulate(scheduler, workload.cost, workload.lengths(), loop)
    traffic = closed_traffic(workload, workload.clients, REQUESTS, 7, think=loop.think_seconds)
    traffic = replace(traffic, stagger=loop.stagger_seconds)

    served = serve(engine_of(workload), [cap], traffic, RANDOM, exact.seconds + 15)

    found = served.requests
    assert served.exported[0, STEPS] == exact.steps
    assert found["preempted"].sum() == exact.preemptions
    assert found["made"].tolist() == [request.output_length for request in exact.clients]
    waits = [client.times.first_token_at - client.times.arrived_at for client in exact.clients.values()]
    assert found["first"] - found["arrived"] == pytest.approx(waits, abs=1e-6)
    assert found["gap"] == pytest.approx([client.longest_gap for client in exact.clients.values()], abs=1e-6)


@pytest.mark.parametrize(("per_second", "cap"), [(4.0, UNCAPPED), (4.0, 16), (7.0, UNCAPPED)])
def test_an_engine_exports_the_same_under_arrivals_that_do_not_wait(per_second: float, cap: int):
    drive = OpenDrive(CHAT, cap, per_second, random.Random(5), CHAT.lengths(5))
    begin = drive.metrics.text()
    drive.run_for(0, 120)
    drive.metrics.record_scheduler(drive.scheduler)
    chance, number = random.Random(5), round(per_second * 300)
    arrived = np.array(list(accumulate(chance.expovariate(per_second) for _ in range(number))))
    traffic = open_traffic(CHAT, 1.0, 2.0 * number, Load(), 5)
    traffic = Traffic(arrived, traffic.prompt[:number], traffic.output[:number], traffic.chances[:number])

    served = serve(engine_of(CHAT), [cap], traffic, RANDOM, drive.now, scrape_seconds=drive.now)

    pages = [
        parse_page(text, EPOCH.replace(day=day)) for day, text in enumerate((begin, drive.metrics.text()), 1)
    ]
    theirs = observe_pages({"bench": pages}, VLLM_SIGNALS).pods["bench"]
    ours = served.readings(0, 0, drive.now)
    for signal in HISTOGRAMS - {Signal.OUTPUT_LIMIT}:
        exact, found = theirs.histogram(signal), ours.histogram(signal)
        assert isinstance(exact, Measured)
        assert isinstance(found, Measured)
        assert found.value.bounds == exact.value.bounds
        # Gaps of exactly 25 ms lie on a bucket's bound, and rounding puts some of them beyond it.
        beyond = np.abs(np.cumsum(np.subtract(found.value.counts, exact.value.counts)))
        assert beyond.max() <= 0.001 * exact.value.count
        assert found.value.count == exact.value.count
        assert found.value.total == pytest.approx(exact.value.total)
    for signal in (Signal.PREEMPTIONS, Signal.REQUESTS_FINISHED, Signal.GENERATED_TOKENS):
        exact, found = theirs.number(signal), ours.number(signal)
        assert isinstance(exact, Measured)
        assert isinstance(found, Measured)
        assert found.value == exact.value


def fleet(routing: int, per_second: float = 12.0, patience: float = 60.0, **more: object) -> Served:
    traffic = open_traffic(CHAT, per_second, 900, Load(swing=0.3, burst=1.0), 3, patience)
    return serve(engine_of(CHAT), [UNCAPPED] * 4, traffic, routing, 900, **more)


def test_nobody_is_lost_and_a_client_that_leaves_waited_for_too_long():
    served = fleet(RANDOM, per_second=40.0)

    q = served.requests
    ended = ((q["status"] == FINISHED) | (q["status"] == LEFT)).sum()
    in_flight = served.pages[-1, :, 11:13].sum()
    assert (q["arrived"] < 900).sum() == len(q) == ended + in_flight
    assert (q["status"] == LEFT).sum() > 100
    assert (q["first"] - q["arrived"])[q["made"] > 0].max() < 62


def test_a_router_that_looks_at_the_load_keeps_it_alike():
    spread = {
        routing: float(fleet(routing).pages[:, :, 11:13].sum(axis=2).std(axis=1).mean())
        for routing in range(4)
    }

    assert spread[LEAST_LOADED] < spread[TWO_CHOICES] < spread[RANDOM] < spread[STICKY]


def test_a_key_leads_to_the_same_replica():
    served = fleet(STICKY)

    traffic = open_traffic(CHAT, 12.0, 900, Load(swing=0.3, burst=1.0), 3, 60.0)
    keys = traffic.chances[: len(served.requests), 2]
    homes = {(float(key), int(e)) for key, e in zip(keys, served.requests["engine"], strict=True)}
    assert len(homes) == len(np.unique(keys))


def test_a_replaced_engine_gets_no_more_and_serves_what_it_has():
    served = fleet(RANDOM, places=3, swaps=[Swap(300.0, 1, 3)])

    q = served.requests
    assert q["arrived"][q["engine"] == 1].max() < 300 < q["arrived"][q["engine"] == 3].min()
    assert set(np.unique(q["status"][q["engine"] == 1])) <= {FINISHED, LEFT}


def test_a_fleet_goes_on_from_where_it_was_left():
    whole = fleet(LEAST_LOADED, places=3, swaps=[Swap(300.0, 1, 3)])
    going = Going(
        whole.engine,
        [UNCAPPED] * 4,
        open_traffic(CHAT, 12.0, 900, Load(swing=0.3, burst=1.0), 3, 60.0),
        LEAST_LOADED,
        3,
    )

    going.serve(270.0)
    going.set_cap(3, UNCAPPED)
    going.serve(600.0, [Swap(300.0, 1, 3)])
    parts = going.serve(900.0)

    assert np.array_equal(parts.requests["last"], whole.requests["last"])
    assert np.array_equal(parts.exported, whole.exported)
    assert parts.scrapes[0] == 600


def test_a_mix_of_requests_turns_as_it_is_scheduled():
    kinds = CHAT, WORKLOADS[10]
    steps = round(3600 / GRID_SECONDS)

    turned = mixed_traffic(kinds, np.full(steps, 2.0), np.arange(steps) >= steps / 2, 1)

    late = turned.arrived > 1800
    assert turned.arrived.size == pytest.approx(7200, rel=0.05)
    assert turned.output[late].mean() > 3 * turned.output[~late].mean()


def test_the_load_of_a_course_has_the_mean_that_was_asked_for():
    for load in (Load(), Load(swing=0.35, period=1800), Load(burst=1.5)):
        traffic = open_traffic(CHAT, 5.0, 7200, load, 1)
        more = 1.0 if not load.burst else 1 + load.burst * 150 / 750
        assert traffic.arrived.size == pytest.approx(5.0 * 7200 * more, rel=0.15)
    grown = open_traffic(drawn(1), 2.0, 7200, Load(ramp=0.5, drift=0.4), 1)
    late = grown.arrived > 5400
    assert late.sum() > 1.2 * (grown.arrived < 1800).sum()
    assert grown.output[late].mean() > 1.3 * grown.output[grown.arrived < 1800].mean()
