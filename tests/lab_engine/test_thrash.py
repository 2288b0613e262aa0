"""The engine in virtual time: the demo's incident, and the measured table of real vLLM."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random

import pytest
from ruamel.yaml import YAML

from lab.bench import replay as bench
from lab.bench.replay import (
    LOAD,
    ClosedLoop,
    Comparison,
    Result,
    measured_rows,
    percentile,
    ranking_faults,
    replay,
    simulate,
)
from lab.bench.workloads import Lengths
from lab.engine.arguments import parse_serve
from lab.engine.blocks import BlockPool
from lab.engine.config import resolve
from lab.engine.scheduler import Scheduler
from lab.engine.settings import StepCost
from lab.loadgen.lengths import table

PLAY = YAML(typ="safe").load(Path(__file__).with_name("thrash-incident.yaml"))
SECONDS = 150.0
SEEDS = (1, 2, 3)


def lengths_of(name: str, seed: int) -> Iterator[Lengths]:
    sampler, random = table(name), Random(seed)
    while True:
        yield Lengths(*sampler.draw(random))


def one_replica(cap: int, seed: int, clients: int) -> Result:
    engine = PLAY["engine"]
    config = resolve(parse_serve(["serve", "m", *engine["arguments"], f"--max-num-seqs={cap}"]), {})
    pool = BlockPool(config.pool.total_blocks, caching=config.prefix_caching)
    scheduler = Scheduler(config.limits, pool, config.pool.block_size)
    cost = StepCost(engine["step_ms"] / 1e3, engine["token_us"] / 1e6).scaled(engine["time_scale"])
    load = ClosedLoop(clients, requests=100_000, seconds=SECONDS)
    return simulate(scheduler, cost, lengths_of(PLAY["load"]["lengths"], seed), load)


def gap_p95(result: Result) -> float:
    return percentile(result.longest_gaps(), 0.95)


@pytest.fixture(scope="module", params=SEEDS)
def seed_and_before(request) -> tuple[int, Result]:
    clients = PLAY["load"]["clients_per_replica"]
    return request.param, one_replica(PLAY["cap"]["before"], request.param, clients)


def test_uncapped_it_thrashes(seed_and_before):
    _, before = seed_and_before

    assert before.preemptions / before.finished > 0.5
    assert gap_p95(before) > 2.0


@pytest.mark.parametrize("cap", PLAY["cap"]["after"])
def test_a_right_sized_cap_heals_it(seed_and_before, cap):
    seed, before = seed_and_before

    after = one_replica(cap, seed, PLAY["load"]["clients_per_replica"])

    assert gap_p95(after) * 4 <= gap_p95(before)
    assert after.tokens >= 0.95 * before.tokens
    assert after.tokens_of_requests_within(2.0) > before.tokens_of_requests_within(2.0)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_calm_load_does_not_preempt(seed):
    assert one_replica(PLAY["cap"]["before"], seed, PLAY["calm"]["clients_per_replica"]).preemptions == 0


def test_what_was_measured_meets_the_same_goals():
    for seed in (1, 2):
        rows = {row["cap"]: row for row in PLAY["measured"] if row["seed"] == seed}
        before, after = rows[64], rows[17]

        assert after["longest_gap_p95"] * 8 <= before["longest_gap_p95"]
        assert after["tokens_per_second"] >= 0.95 * before["tokens_per_second"]
        assert after["goodput_per_second"] > before["goodput_per_second"]


ROWS = measured_rows()
replayed = cache(replay)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"cap {row.cap} {' '.join(row.arguments)}")
def test_the_lab_engine_preempts_and_steps_as_real_vllm_did(row):
    assert Comparison(row, replayed(row)).is_within_bounds


def test_the_caps_rank_as_they_did_on_real_vllm():
    assert ranking_faults([Comparison(row, replayed(row)) for row in ROWS]) == []


PLAIN = [row for row in ROWS if row.is_plain]


@pytest.mark.parametrize(("stagger_seconds", "rows"), [(0.0, PLAIN[::2]), (0.002, PLAIN[1::2])])
def test_the_fit_does_not_hang_on_when_the_clients_start(stagger_seconds, rows):
    load = replace(LOAD, stagger_seconds=stagger_seconds)

    outside = [row.cap for row in rows if not Comparison(row, replayed(row, load)).is_within_bounds]

    assert outside == []


@pytest.mark.parametrize(
    "wrong", ["--async-scheduling", "--watermark=0.1", "--no-scheduler-reserve-full-isl"]
)
def test_an_engine_that_schedules_otherwise_is_out_of_bounds(wrong):
    row = next(row for row in ROWS if row.cap == 64 and row.is_plain)

    other = replayed(replace(row, arguments=(wrong,)))

    same = wrong == "--no-scheduler-reserve-full-isl"  # prompts of 64 fit whole: nothing to reserve
    assert Comparison(row, other).is_within_bounds == same


def test_a_bench_out_of_bounds_exits_with_1(monkeypatch, capsys):
    wrong = replace(ROWS[0], preemptions=100)
    monkeypatch.setattr(bench, "measured_rows", lambda: [wrong])

    assert bench.main() == 1
    assert "cap 4 is out of bounds" in capsys.readouterr().out


def test_a_wrong_ranking_is_a_fault():
    small = [replayed(row, ClosedLoop(clients=8, requests=8)) for row in ROWS[:2]]
    swapped = [Comparison(ROWS[0], small[1]), Comparison(ROWS[1], small[0])]

    assert ranking_faults(swapped) != []
