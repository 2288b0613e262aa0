"""Loads, the lengths of their requests, and what is recorded of them."""

import asyncio
import json
import math
import os
import re
import subprocess
import sys
import time
from dataclasses import replace
from random import Random

import pytest

from lab.loadgen import lengths
from lab.loadgen.__main__ import arguments, plan_from
from lab.loadgen.lengths import Fixed, Quantiles, table
from lab.loadgen.load import ClosedLoop, Keys, Load, OpenLoop, Plan, prompt_ids
from lab.loadgen.record import ConnectionMode, Outcome, Record, percentile, read, summarise
from lab_engine.engine_process import TESTS, a_process, an_engine, until_healthy

ENVIRON = {**os.environ, "PYTHONPATH": str(TESTS)}


def a_plan(engine, **changes):
    plan = Plan(
        targets=(str(engine.http.base_url).rstrip("/"),),
        model="tiny",
        lengths=Fixed(10, 20),
        arrivals=ClosedLoop(clients=4),
        seconds=60.0,
        requests=12,
        grace_seconds=30.0,
    )
    return replace(plan, **changes)


async def sent(plan, stop_after=None):
    records = []
    load = Load(plan, records.append)
    if stop_after is not None:
        asyncio.get_running_loop().call_later(stop_after, load.stop)
    await load.run()
    return records


async def test_a_closed_loop_sends_its_requests_and_ends():
    async with an_engine() as engine:
        records = await sent(a_plan(engine))

        assert [record.outcome for record in records] == [Outcome.OK] * 12
        assert [record.tokens for record in records] == [20] * 12
        assert await engine.metric("prompt_tokens_total") == 12 * 10
        assert await engine.metric("prefix_cache_hits_total") == 0  # no two prompts share a beginning


async def test_prompts_that_begin_alike_are_found_in_the_prefix_cache():
    async with an_engine() as engine:
        records = await sent(a_plan(engine, shared=256, arrivals=ClosedLoop(clients=1), requests=3))

        assert [record.prompt_tokens for record in records] == [256 + 10] * 3
        assert await engine.metric("prompt_tokens_total") == 3 * (256 + 10)
        assert await engine.metric("prefix_cache_hits_total") == 2 * 256


async def test_prompts_of_other_groups_begin_otherwise():
    async with an_engine() as engine:
        plan = a_plan(engine, shared=64, groups=3, arrivals=ClosedLoop(clients=1), requests=4)
        await sent(plan)

        assert await engine.metric("prefix_cache_hits_total") == 64  # the fourth begins as the first


async def test_each_clients_first_request_goes_where_the_plan_says_and_all_others_are_drawn():
    async with an_engine() as first, an_engine() as other:
        records = await sent(a_plan(other, first=str(first.http.base_url).rstrip("/")))

        assert len(records) == 12
        assert await first.metric("prompt_tokens_total") == 4 * 10
        assert await other.metric("prompt_tokens_total") == 8 * 10


async def test_requests_of_a_key_go_to_the_same_one_of_the_targets_that_there_are_now(tmp_path):
    targets = tmp_path / "targets.txt"
    async with an_engine() as first, an_engine() as other:
        urls = [str(each.http.base_url).rstrip("/") for each in (first, other)]
        targets.write_text("\n".join(urls))
        await sent(a_plan(other, keys=Keys(targets, number=1)))
        targets.write_text(urls[1])
        await sent(a_plan(first, keys=Keys(targets, number=60), requests=5))

        assert await first.metric("prompt_tokens_total") == 12 * 10
        assert await other.metric("prompt_tokens_total") == 5 * 10


def test_popular_keys_have_more_requests(tmp_path):
    targets, drawn = tmp_path / "targets.txt", Random(1)
    targets.write_text("a b")
    shares = {
        skew: [Keys(targets, 60, skew).draw(drawn) for _ in range(2000)].count("a") / 2000
        for skew in (0.0, 0.7)
    }

    assert shares[0.0] == pytest.approx(0.5, abs=0.03)
    assert shares[0.7] == pytest.approx(0.55, abs=0.03)


def test_without_keys_any_target_is_drawn(tmp_path):
    (tmp_path / "targets.txt").write_text("a b")
    keys, drawn = Keys(tmp_path / "targets.txt", number=0), Random(1)

    assert {keys.draw(drawn) for _ in range(20)} == {"a", "b"}


def test_a_request_that_has_no_target_is_refused_with_what_to_do(tmp_path):
    (tmp_path / "targets.txt").write_text("")

    with pytest.raises(ValueError, match="names no target: write at least one"):
        Keys(tmp_path / "targets.txt").draw(Random(1))


async def test_clients_with_and_without_kept_connections_mix():
    async with an_engine() as engine:
        records = await sent(a_plan(engine, arrivals=ClosedLoop(clients=4, kept=2)))

    modes = {record.connection for record in records}
    assert modes == {ConnectionMode.FRESH, ConnectionMode.KEEP_ALIVE}
    assert all(record.outcome is Outcome.OK for record in records)


async def test_requests_of_an_open_stream_share_connections_that_are_kept():
    arrivals = OpenLoop(50, mode=ConnectionMode.KEEP_ALIVE)
    async with an_engine() as engine:
        records = await sent(a_plan(engine, arrivals=arrivals, requests=4))

    assert {record.connection for record in records} == {ConnectionMode.KEEP_ALIVE}
    assert [record.outcome for record in records] == [Outcome.OK] * 4


async def test_a_closed_loop_never_has_more_requests_under_way_than_clients():
    async with an_engine() as engine:
        records = await sent(a_plan(engine, requests=20))

    edges = sorted([(r.started_at, 1) for r in records] + [(r.ended_at, -1) for r in records])
    under_way = peak = 0
    for _, change in edges:
        under_way += change
        peak = max(peak, under_way)
    assert peak <= 5  # 4 clients; times are rounded to 0.1 ms, so two may seem to overlap


async def test_the_same_seed_sends_the_same_requests():
    lengths = table("spread", scale=0.1)

    async def lengths_sent(seed):
        async with an_engine() as engine:
            records = await sent(a_plan(engine, lengths=lengths, seed=seed))
        return sorted((record.number, record.prompt_tokens, record.tokens) for record in records)

    assert await lengths_sent(3) == await lengths_sent(3) != await lengths_sent(4)


async def test_time_ends_the_load_and_what_is_left_is_cancelled():
    async with an_engine(step_ms=50) as engine:
        plan = a_plan(engine, lengths=Fixed(10, 400), seconds=0.5, requests=1000, grace_seconds=0.0)
        began = time.monotonic()
        records = await sent(plan)

        assert time.monotonic() - began >= 0.5
        assert [record.outcome for record in records] == [Outcome.CANCELLED] * 4
        await asyncio.wait_for(engine.server.engine.idle.wait(), 30)


async def test_a_stopped_load_lets_what_is_under_way_end():
    async with an_engine(step_ms=10) as engine:
        records = await sent(a_plan(engine, requests=10_000), stop_after=0.3)

    assert {record.outcome for record in records} == {Outcome.OK}
    assert len(records) < 10_000


async def test_an_open_loop_sends_at_its_rate():
    async with an_engine() as engine:
        plan = a_plan(engine, arrivals=OpenLoop(50.0), lengths=Fixed(4, 2), seconds=4.0, requests=10_000)
        records = await sent(plan)

    assert 140 <= len(records) <= 260  # 200 expected; +-4 standard deviations of Poisson
    assert all(record.outcome is Outcome.OK for record in records)


async def test_an_open_loop_has_no_more_under_way_than_it_may():
    async with an_engine(step_ms=100) as engine:
        arrivals = OpenLoop(200.0, at_once=3)
        plan = a_plan(engine, arrivals=arrivals, lengths=Fixed(4, 50), seconds=1.0, grace_seconds=0)
        records = await sent(plan)

    assert len(records) == 3


async def test_a_server_that_is_gone_is_not_flooded():
    plan = Plan(("http://127.0.0.1:9",), "tiny", Fixed(4, 4), ClosedLoop(2), seconds=1.1, requests=10_000)

    records = await sent(plan)

    refused = [record for record in records if record.outcome is Outcome.REFUSED]
    assert 2 <= len(refused) <= 10  # two clients, 0.25 s between attempts


def test_prompts_of_different_numbers_and_seeds_differ_from_their_first_tokens_on():
    prompts = {prompt_ids(seed, number, 8)[:20] for seed in (1, 2) for number in (1, 2, 30_001)}

    assert len(prompts) == 6
    assert all(len(prompt_ids(1, 5, length).split(b",")) == length for length in (1, 2, 3, 50))


def run(*argv):
    command = [sys.executable, "-m", "lab.loadgen", *argv]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=ENVIRON)


def test_the_command_writes_a_line_per_request_and_a_summary(tmp_path):
    out = tmp_path / "requests.jsonl"
    with a_process("--served-model-name=tiny") as (_, url):
        until_healthy(url)
        argv = ["--url", url, "--model", "tiny", "--clients", "2", "--requests", "6", "--lengths", "8+5"]
        ended = run(*argv, "--grace", "30", "--out", str(out))

    assert ended.returncode == 0, ended.stderr
    assert [record.tokens for record in read(out)] == [5] * 6
    assert all(json.loads(line)["outcome"] == "ok" for line in out.read_text().splitlines())
    assert "in_time_per_second" in ended.stdout


def test_the_command_exits_with_1_when_requests_were_lost():
    argv = ["--url", "http://127.0.0.1:9", "--model", "m", "--clients", "1", "--seconds", "0.3"]

    ended = run(*argv)

    assert ended.returncode == 1
    assert re.search(r"^refused +[1-9]", ended.stdout, re.MULTILINE)


@pytest.mark.parametrize("given", [[], ["--clients", "2", "--rate", "1"]])
def test_a_load_is_either_closed_or_open(given):
    parsed = arguments().parse_args(["--url", "http://a", "--model", "m", *given])

    with pytest.raises(ValueError, match="--clients for a closed loop or --rate for an open one"):
        plan_from(parsed)


TABLES = json.loads(lengths.TABLES.read_text())


@pytest.mark.parametrize("name", TABLES)
def test_every_table_names_its_source_and_licence(name):
    assert {"source", "licence", "mean", "prompt", "output"} == set(TABLES[name])


@pytest.mark.parametrize("name", TABLES)
def test_the_mean_of_a_table_is_near_the_published_mean(name):
    table = lengths.table(name)

    for side in ("prompt", "output"):
        # Linear between quantiles: the ends of a long tail come out a little heavy.
        assert getattr(table, side).mean == pytest.approx(TABLES[name]["mean"][side], rel=0.12)


@pytest.mark.parametrize("name", TABLES)
def test_draws_follow_the_quantiles(name):
    table, random = lengths.table(name), Random(1)
    outputs = sorted(table.draw(random)[1] for _ in range(4000))

    for share, tokens in TABLES[name]["output"][1:-2]:
        below = sum(output <= tokens for output in outputs) / len(outputs)
        assert below == pytest.approx(share, abs=0.03)


def test_the_same_seed_draws_the_same():
    table = lengths.table("spread")

    draws = [[table.draw(random) for _ in range(50)] for random in (Random(7), Random(7), Random(8))]

    assert draws[0] == draws[1] != draws[2]


def test_the_longest_bounds_prompt_and_output_together():
    table, random = lengths.table("azure-2023-conversation", longest=600), Random(1)

    sums = [sum(table.draw(random)) for _ in range(500)]

    assert max(sums) <= 600
    assert min(sums) >= 2


def test_a_scale_shrinks_a_trace():
    whole, tenth = (
        lengths.table("azure-2023-conversation"),
        lengths.table("azure-2023-conversation", scale=0.1),
    )

    assert tenth.output.mean == pytest.approx(whole.output.mean / 10)


def test_fixed_lengths_are_written_with_a_plus():
    assert lengths.parse("64+512") == Fixed(64, 512)
    assert lengths.parse("64+512").draw(Random(1)) == (64, 512)


def test_an_unknown_table_is_answered_with_those_there_are():
    with pytest.raises(
        ValueError, match="no lengths named 'sharegpt'; there are azure-2023-conversation, prompts, spread"
    ):
        lengths.parse("sharegpt")


@pytest.mark.parametrize("points", [((0.1, 1), (1.0, 2)), ((0.0, 1), (0.9, 2)), ((0.0, 5), (1.0, 2))])
def test_quantiles_that_do_not_rise_from_0_to_1_are_refused(points):
    with pytest.raises(ValueError, match="quantiles must rise"):
        Quantiles(points)


SMOOTH = Record(
    number=1,
    outcome=Outcome.OK,
    connection=ConnectionMode.FRESH,
    started_at=100.0,
    ended_at=102.0,
    first_token_at=101.0,
    prompt_tokens=5,
    tokens=3,
    gaps_ms=(400.0, 600.0),
)
STALLED = replace(SMOOTH, number=2, started_at=100.0, ended_at=105.0, gaps_ms=(500.0, 3000.0))


def test_a_record_survives_its_line():
    assert Record.from_line(SMOOTH.line()) == SMOOTH


def test_a_half_written_last_line_is_left_out(tmp_path):
    file = tmp_path / "requests.jsonl"
    file.write_text(SMOOTH.line() + "\n" + STALLED.line()[:20])

    assert read(file) == [SMOOTH]


def test_tokens_and_gaps_count_where_they_arrive_and_requests_where_they_end():
    summary = summarise([SMOOTH, STALLED], 100.0, 104.0)

    assert summary.ok == 1  # the stalled one ends at 105
    assert summary.tokens_per_second == 5 / 4  # 3 of the smooth one, 2 of the stalled one before its stall
    assert summary.inter_token_p95 == 0.6
    assert summary.longest_gap_p95 == 0.6


def test_a_first_token_counts_where_it_comes_also_of_an_answer_that_is_under_way():
    early = replace(SMOOTH, started_at=40.0, first_token_at=99.0)
    under_way = replace(SMOOTH, first_token_at=103.0, outcome=Outcome.CANCELLED, ended_at=200.0)

    assert summarise([early, under_way, SMOOTH], 100.0, 110.0).ttft_p95 == 3.0


def test_in_time_leaves_out_requests_that_waited_over_two_seconds():
    summary = summarise([SMOOTH, STALLED], 100.0, 110.0)

    assert summary.tokens_per_second == 6 / 10
    assert summary.in_time_per_second == 3 / 10
    assert summary.longest_gap_p95 == 3.0


@pytest.mark.parametrize(("gap", "counts"), [(1999.9, True), (2000.0, True), (2000.1, False)])
def test_two_seconds_is_not_over_two_seconds(gap, counts):
    summary = summarise([replace(SMOOTH, gaps_ms=(100.0, gap))], 100.0, 110.0)

    assert (summary.in_time_per_second > 0) == counts


@pytest.mark.parametrize(
    ("request_changes", "counts"),
    [
        ({"first_token_at": 101.0}, True),
        ({"first_token_at": 101.1}, False),
        ({"outcome": Outcome.ABORTED}, False),
        ({"outcome": Outcome.LEFT}, False),
    ],
    ids=["at the limit", "late", "cut", "left"],
)
def test_a_first_token_at_the_limit_is_in_time_and_half_an_answer_is_not(request_changes, counts):
    summary = summarise([replace(SMOOTH, **request_changes)], 100.0, 110.0, limit=1.0)

    assert (summary.in_time_per_second > 0) == counts


def test_lost_requests_are_counted_by_how_they_were_lost():
    lost = [replace(SMOOTH, outcome=outcome) for outcome in Outcome]

    summary = summarise(lost, 100.0, 110.0)

    assert (summary.ok, summary.failed, summary.aborted, summary.refused, summary.lost) == (1, 1, 1, 1, 3)


def test_nothing_is_nan_and_not_zero():
    summary = summarise([], 0.0, 1.0)

    assert math.isnan(summary.longest_gap_p95)
    assert math.isnan(summary.ttft_p95)
    assert math.isnan(summary.inter_token_mean)
    assert summary.tokens_per_second == 0.0


def test_an_empty_window_is_refused():
    with pytest.raises(ValueError, match="not after"):
        summarise([SMOOTH], 10.0, 10.0)


@pytest.mark.parametrize(("share", "value"), [(0.0, 1), (0.5, 5), (0.95, 10), (1.0, 10)])
def test_percentiles_are_nearest_rank(share, value):
    assert percentile(list(range(1, 11)), share) == value
