"""Properties of the scheduler, its pool and the host's memory under random engines and loads."""

from dataclasses import replace
from itertools import repeat

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.bench.replay import ClosedLoop, Result, simulate
from lab.bench.workloads import Lengths
from lab.engine.blocks import BlockPool, HostTier, Windows
from lab.engine.metrics import EngineMetrics
from lab.engine.requests import BlockTable, FinishReason, Request, Status
from lab.engine.scheduler import Limits, Scheduler
from lab.engine.settings import StepCost
from lab_engine.fleet_of_requests import Drive, cases
from lab_engine.naive_scheduler import Naive, NaiveScheduler

STEADY = settings(max_examples=200, deadline=None, derandomize=True)


@STEADY
@given(cases())
def test_blocks_are_neither_lost_nor_shared_wrongly_and_aborted_requests_hold_nothing(case):
    drive = Drive(case).run()  # checks its invariants after each schedule and each finish

    assert drive.scheduler.pool.free_count == case.usable_blocks
    assert drive.scheduler.pool.usage == 0.0
    for request in drive.requests:
        assert request.status is Status.FINISHED
        if request.finish_reason is FinishReason.ABORT:
            assert (request.table.blocks, request.table.positions) == ([], [])
            assert request.output_length < request.max_tokens


@STEADY
@given(cases(aborts=False))
def test_every_request_gets_its_tokens_once_and_in_order_and_every_preemption_is_counted(case):
    drive = Drive(case).run()

    for request, shape in zip(drive.requests, case.shapes, strict=True):
        streamed = [token for owner, token, _ in drive.outputs if owner is request]
        assert streamed == request.tokens[request.prompt_length :]
        assert request.finish_reason is FinishReason.LENGTH
        assert len(streamed) == shape.output == request.output_length
    events = sum(len(step.preempted) for step in drive.steps)
    assert drive.scheduler.preemptions == events
    assert sum(request.preemptions for request in drive.requests) == events
    assert sum(drive.reported_preemptions.values()) == events
    admitted = [request for step in drive.steps for request in step.admitted]
    assert list(dict.fromkeys(admitted)) == drive.requests, "first come, first served"


@st.composite
def naive_cases(draw):
    block_size, usable = draw(st.integers(1, 6)), draw(st.integers(3, 24))
    capacity = block_size * usable
    lengths = []
    for _ in range(draw(st.integers(1, 16))):
        prompt = draw(st.integers(1, capacity - 1))
        lengths.append((prompt, draw(st.integers(1, capacity - prompt))))
    return block_size, usable, draw(st.integers(1, 10)), draw(st.integers(1, 2 * capacity)), lengths


@STEADY
@given(naive_cases(), st.sampled_from((0.0, 0.2)))
def test_the_scheduler_does_what_a_naive_reading_of_the_rules_does(case, watermark):
    block_size, usable, cap, budget, lengths = case
    limits = Limits(cap, budget, 10**6, watermark=watermark, async_scheduling=False)
    scheduler = Scheduler(limits, BlockPool(usable + 1, caching=False), block_size)
    spare = int(watermark * (usable + 1))
    naive = NaiveScheduler(
        blocks=usable, block_size=block_size, cap=cap, budget=budget, watermark_blocks=spare
    )
    for number, (prompt, output) in enumerate(lengths):
        scheduler.add(Request(str(number), list(range(prompt)), output, BlockTable(block_size)))
        naive.waiting.append(Naive(str(number), prompt, output))

    while naive.running or naive.waiting:
        step = scheduler.schedule()
        ended = [output.request.request_id for output in scheduler.finish(step) if output.finish_reason]
        lab = ([r.request_id for r in step.admitted], [r.request_id for r in step.preempted], ended)
        assert lab == naive.step()
    assert not scheduler.has_requests


def serve(scheduler, tokens, output=1):
    """Let one request run alone to its end."""
    request = Request("a", list(tokens), output, BlockTable(scheduler.block_size))
    scheduler.add(request)
    while scheduler.has_requests:
        scheduler.finish(scheduler.schedule())
    return request


def an_idle_scheduler(usable=20, block_size=4, caching=True):
    return Scheduler(
        Limits(8, 512, 512, async_scheduling=False), BlockPool(usable + 1, caching=caching), block_size
    )


def test_a_prompt_seen_before_hits_the_cache_up_to_its_last_full_block():
    scheduler = an_idle_scheduler()

    serve(scheduler, range(10), 3)  # two full blocks of 4 and 2 tokens
    again = serve(scheduler, range(10), 3)

    assert again.cached_prompt_tokens == 8
    assert (scheduler.prefix.queries, scheduler.prefix.hits) == (20, 8)


@pytest.mark.parametrize(("caching", "found"), [(True, 4), (False, 0)])
def test_a_prompt_that_is_all_cached_still_computes_its_last_block(caching, found):
    scheduler = an_idle_scheduler(caching=caching)

    serve(scheduler, range(8))

    assert serve(scheduler, range(8)).cached_prompt_tokens == found


def test_cached_blocks_of_finished_requests_count_as_free_and_the_oldest_are_reused_first():
    scheduler = an_idle_scheduler(usable=10)
    serve(scheduler, range(100, 116))  # 4 blocks
    serve(scheduler, range(200, 216))  # 4 blocks
    assert (scheduler.pool.usage, scheduler.pool.cached_count) == (0.0, 8)

    serve(scheduler, range(300, 316))  # 2 fresh ones, then two of the first's, its tail first

    assert serve(scheduler, range(200, 216)).cached_prompt_tokens == 12
    assert serve(scheduler, range(100, 116)).cached_prompt_tokens <= 8


def test_a_preempted_request_starts_over_and_loses_no_token():
    scheduler = an_idle_scheduler(usable=5, caching=False)
    first = Request("a", list(range(6)), 10, BlockTable(4), seed=1)
    second = Request("b", list(range(6)), 10, BlockTable(4), seed=2)
    scheduler.add(first)
    scheduler.add(second)

    while not second.preemptions:
        step = scheduler.schedule()
        scheduler.finish(step)

    assert step.preempted == [second]
    assert (second.computed, second.table.blocks, scheduler.waiting[0]) == (0, [], second)
    assert first.preemptions == 0


LIMITS = Limits(max_num_seqs=64, max_num_batched_tokens=2048, max_model_len=2048)
FREE_LOADS = StepCost(load_seconds=0.0)


def test_of_the_hosts_blocks_the_least_recently_used_goes_first_and_a_hit_ends_where_one_is_missing():
    tier = HostTier(3)
    for digest in (1, 2, 4):
        tier.store(digest)
    assert [tier.longest_hit(asked) for asked in ([3, 4], [], [1, 2, 3, 4])] == [0, 0, 2]

    tier.store(5)

    assert [digest in tier for digest in (1, 2, 4, 5)] == [True, True, False, True]
    assert len(tier) == 3
    with pytest.raises(ValueError, match="0 blocks"):
        HostTier(0)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(cases(aborts=False))
def test_every_request_gets_the_same_tokens_with_and_without_it(case):
    plain, tiered = (Drive(replace(case, host_blocks=blocks)).run() for blocks in (0, 50))

    def answers(drive):
        return {request.request_id: request.tokens for request in drive.requests}

    assert answers(tiered) == answers(plain)


def thrash(host_blocks: int, cost: StepCost = FREE_LOADS) -> tuple[Result, Scheduler]:
    host = HostTier(host_blocks) if host_blocks else None
    scheduler = Scheduler(LIMITS, BlockPool(150), 32, host)
    load = ClosedLoop(clients=48, requests=96)
    return simulate(scheduler, cost, repeat(Lengths(64, 256)), load), scheduler


def test_who_was_preempted_is_fetched_and_not_computed_again_which_takes_time():
    (plain, _), (tiered, scheduler), (slow, _) = (
        thrash(0),
        thrash(5000),
        thrash(5000, StepCost(load_seconds=0.001)),
    )

    assert plain.preemptions > 20
    assert tiered.preemptions > 20
    assert tiered.seconds < 0.97 * plain.seconds
    assert scheduler.external.hits == 0, "of first admissions alone, whose prompts have nothing in common"
    assert slow.seconds > tiered.seconds


def test_a_prompt_that_the_device_has_forgotten_is_found_in_the_host():
    scheduler = Scheduler(replace(LIMITS, async_scheduling=False), BlockPool(12), 32, HostTier(100))
    metrics = EngineMetrics("m", 2048, {"engine": "0"})
    prompt = list(range(256))
    serve(scheduler, prompt, 4)
    for number in (1, 2):
        serve(scheduler, [1000 * number + at for at in range(300)], 4)

    again = serve(scheduler, prompt, 4)
    metrics.record_scheduler(scheduler)

    assert (again.cached_prompt_tokens, again.loaded_prompt_tokens) == (0, 224), "all but the last block"
    assert scheduler.external.hits == 224
    assert 'vllm:external_prefix_cache_hits_total{engine="0",model_name="m"} 224.0' in metrics.text()


@pytest.mark.parametrize(("computed", "held"), [(0, 63), (127, 63), (143, 62), (1000, 9)])
def test_a_window_leaves_whole_blocks_behind_once_no_later_token_sees_them(computed: int, held: int):
    # The next token attends to the window's newest: itself and the 127 before it.
    assert 63 - Windows(1, 128).left_behind(computed, 16) == held


@pytest.mark.parametrize("usable", [60, 300])
def test_blocks_of_windows_are_held_while_they_are_seen_and_given_back(usable: int):
    windows, pool = Windows(3, 20), BlockPool(usable + 1, caching=False)
    scheduler = Scheduler(Limits(8, 64, 200), pool, 4, windows=windows)
    requests = [Request(str(at), [at] * 30, 60, BlockTable(4)) for at in range(6)]
    for request in requests:
        scheduler.add(request)
    while scheduler.has_requests:
        step = scheduler.schedule()
        for share in step.scheduled:
            table, before = share.request.table, share.request.computed - share.tokens
            seen = len(table.blocks) - windows.left_behind(before, 4)
            assert len(table.windowed) == 3 * seen <= windows.most(len(table.blocks), 64, 4)
        scheduler.finish(step)
    assert pool.free_count == usable
    assert (scheduler.preemptions > 0) is (usable == 60)
    assert all(request.output_length == 60 for request in requests)
