"""The host's memory as a second cache: what it holds, what it saves, and that nothing else changes."""

from dataclasses import replace
from itertools import repeat

import pytest
from hypothesis import given, settings

from lab.engine.blocks import BlockPool
from lab.engine.host_tier import HostTier
from lab.engine.metrics import EngineMetrics
from lab.engine.requests import BlockTable, Request
from lab.engine.scheduler import Limits, Scheduler
from lab.engine.settings import StepCost
from lab.engine.simulation import ClosedLoop, Lengths, Result, Simulation
from lab_engine.fleet_of_requests import Drive, cases

LIMITS = Limits(max_num_seqs=64, max_num_batched_tokens=2048, max_model_len=2048)
FREE_LOADS = StepCost(load_seconds=0.0)


def test_the_least_recently_used_block_goes_first():
    tier = HostTier(2)
    for digest in (1, 2):
        tier.store(digest)
    assert tier.longest_hit([1]) == 1

    tier.store(3)

    assert [digest in tier for digest in (1, 2, 3)] == [True, False, True]
    assert len(tier) == 2


def test_a_hit_ends_at_the_first_block_that_is_not_held():
    tier = HostTier(10)
    for digest in (1, 2, 4):
        tier.store(digest)

    assert [tier.longest_hit(asked) for asked in ([1, 2, 3, 4], [3, 4], [])] == [2, 0, 0]


def test_a_tier_without_a_block_is_refused():
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
    return Simulation(scheduler, cost, repeat(Lengths(64, 256))).run(load), scheduler


def test_who_was_preempted_is_fetched_and_not_computed_again():
    (plain, _), (tiered, scheduler) = thrash(0), thrash(5000)

    assert plain.preemptions > 20
    assert tiered.preemptions > 20
    assert tiered.seconds < 0.97 * plain.seconds
    assert scheduler.external.hits == 0, "of first admissions alone, whose prompts have nothing in common"


def test_fetching_takes_time():
    quick, _ = thrash(5000)

    slow, _ = thrash(5000, StepCost(load_seconds=0.001))

    assert slow.seconds > quick.seconds


def serve(scheduler: Scheduler, number: int, prompt: list[int]) -> Request:
    """Let one request run alone to its end."""
    request = Request(str(number), list(prompt), 4, BlockTable(scheduler.block_size), seed=number)
    scheduler.add(request)
    while scheduler.has_requests:
        scheduler.finish(scheduler.schedule())
    return request


def test_a_prompt_that_the_device_has_forgotten_is_found_in_the_host():
    scheduler = Scheduler(replace(LIMITS, async_scheduling=False), BlockPool(12), 32, HostTier(100))
    metrics = EngineMetrics("m", 2048, {"engine": "0"})
    prompt = list(range(256))
    serve(scheduler, 0, prompt)
    for number in (1, 2):
        serve(scheduler, number, [1000 * number + at for at in range(300)])

    again = serve(scheduler, 3, prompt)
    metrics.record_scheduler(scheduler)

    assert (again.cached_prompt_tokens, again.loaded_prompt_tokens) == (0, 224), "all but the last block"
    assert scheduler.external.hits == 224
    assert 'vllm:external_prefix_cache_hits_total{engine="0",model_name="m"} 224.0' in metrics.text()
