"""Token eviction and compaction on real block tables: what is kept, what is moved, what is given back."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from lab.engine.blocks import BlockPool
from lab.engine.compression import Compaction, Compression, Eviction, Survival, Survivors, compact, compress
from lab.engine.requests import HOLE, BlockTable, FinishReason
from lab.engine.scheduler import Limits
from lab_engine.fleet_of_requests import Case, Drive, Shape, cases

STEADY = settings(max_examples=200, deadline=None, derandomize=True)


@st.composite
def evictions(draw):
    by_budget = draw(st.booleans())
    return Eviction(
        survival=draw(st.sampled_from(Survival)),
        budget=draw(st.integers(1, 12)) if by_budget else None,
        keep=None if by_budget else draw(st.floats(0.05, 1)),
        heads=draw(st.integers(1, 3)),
        run=draw(st.integers(1, 4)),
        sinks=draw(st.integers(0, 3)),
        window=draw(st.integers(0, 5)),
    )


@st.composite
def methods(draw):
    return Compression(
        eviction=draw(evictions()),
        every=draw(st.integers(1, 9)),
        compaction=draw(st.none() | st.sampled_from(Compaction)),
        gives_back=draw(st.booleans()),
    )


def compressed(case: Case, method: Compression) -> Case:
    return replace(case, caching=False, host_blocks=0, compression=method)


@STEADY
@given(cases(), methods())
def test_blocks_are_neither_lost_nor_held_twice_and_every_request_gets_its_tokens(case, method):
    drive = Drive(compressed(case, method)).run()  # checks every slot after each step

    assert drive.scheduler.pool.free_count == case.usable_blocks
    generated = Counter(request.request_id for request, _, _ in drive.outputs)
    for request, shape in zip(drive.requests, case.shapes, strict=True):
        if request.finish_reason is not FinishReason.ABORT:
            assert generated[request.request_id] == shape.output


@STEADY
@given(evictions(), st.lists(st.integers(1, 40), min_size=1, max_size=8), st.integers(0, 9))
def test_survivors_of_many_passes_are_those_of_one_with_a_budget(eviction, passes, seed):
    assume(eviction.survival is not Survival.RESCORED)
    eviction = replace(eviction, budget=6, keep=None)
    many, total, gone = Survivors(eviction, seed), 0, set()

    for tokens in passes:
        total += tokens
        gone |= many.evict(total)

    once = Survivors(eviction, seed).evict(total)
    assert gone == once


@STEADY
@given(evictions(), st.integers(1, 60))
def test_each_head_keeps_what_it_may_and_sinks_and_the_window_on_top(eviction, tokens):
    gone = Survivors(eviction, 1).evict(tokens)

    kept = set(range(tokens)) - gone
    always = {p for p in range(tokens) if p < eviction.sinks or p >= tokens - eviction.window}
    heads = eviction.heads if eviction.survival is Survival.PER_HEAD else 1
    most, judged = eviction.kept_of(tokens), tokens - len(always)
    assert always <= kept
    assert min(most, judged) <= len(kept - always) <= min(heads * most, judged)


def test_the_newest_are_kept_behind_the_sinks():
    gone = Survivors(Eviction(Survival.RECENT, budget=3, sinks=2), 1).evict(10)

    assert sorted(set(range(10)) - gone) == [0, 1, 7, 8, 9]


def test_runs_survive_whole():
    gone = Survivors(Eviction(Survival.RUNS, budget=400, run=8), 1).evict(4000)

    kept = sorted(set(range(4000)) - gone)
    lengths, length = [], 1
    for before, position in pairwise(kept):
        if position == before + 1:
            length += 1
        else:
            lengths.append(length)
            length = 1
    assert len(kept) == 400
    assert sum(length < 8 for length in lengths) <= 2, (
        "cut short: at the first token, and where the budget ends"
    )


def a_table(slots: list[int], size: int, pool: BlockPool) -> BlockTable:
    table = BlockTable(size)
    table.positions = list(slots)
    table.blocks = pool.take(table.blocks_for(len(slots)))
    return table


@STEADY
@given(st.lists(st.booleans(), min_size=1, max_size=80), st.integers(1, 9), st.sampled_from(Compaction))
def test_compaction_loses_no_token_and_fills_as_few_blocks_as_can_be(kept, size, compaction):
    slots = [position if keep else HOLE for position, keep in enumerate(kept)]
    pool = BlockPool(100, caching=False)
    table = a_table(slots, size, pool)

    moved = compact(table, compaction)

    left = [position for position in slots if position != HOLE]
    before = {position: slot for slot, position in enumerate(slots) if position != HOLE}
    after = {position: slot for slot, position in enumerate(table.positions)}
    assert sorted(table.positions) == left
    assert moved == sum(after[position] != before[position] for position in left)
    if compaction is Compaction.IN_ORDER:
        assert table.positions == left
    else:
        assert moved == sum(not keep for keep in kept[: len(left)]), "one for each hole before the new end"


@pytest.mark.parametrize(
    ("compaction", "positions", "moved"),
    [(Compaction.IN_ORDER, [0, 3, 6, 7], 3), (Compaction.FILL_HOLES, [0, 7, 6, 3], 2)],
)
def test_filling_holes_moves_less_and_forgets_the_order(compaction, positions, moved):
    pool = BlockPool(10, caching=False)
    table = a_table(list(range(8)), 2, pool)
    method = Compression(Eviction(budget=4), compaction=compaction)

    done = compress(table, {1, 2, 4, 5}, method, pool)

    assert (table.positions, done.moved, done.evicted) == (positions, moved, 4)
    assert done.freed == 2
    assert pool.free_count == 7


def test_a_block_in_the_middle_goes_back_and_its_slots_stay_empty():
    pool = BlockPool(10, caching=False)
    table = a_table(list(range(8)), 2, pool)

    done = compress(table, {1, 2, 3}, Compression(Eviction(budget=4)), pool)

    assert done.freed == 1
    assert table.positions == [0, HOLE, HOLE, HOLE, 4, 5, 6, 7]
    assert [block is pool.null_block for block in table.blocks] == [False, True, False, False]
    assert compress(table, {0}, Compression(Eviction(budget=4)), pool).freed == 1, (
        "and none is given back twice"
    )


def test_a_method_that_gives_nothing_back_holds_its_blocks_to_the_end():
    method = Compression(Eviction(budget=4), every=1, compaction=Compaction.IN_ORDER, gives_back=False)

    drive = Drive(one_request(method, output=30))
    held = []
    finish = drive.scheduler.finish
    drive.scheduler.finish = lambda step: (held.append(drive.scheduler.pool.usage), finish(step))[1]
    drive.run()

    assert max(held) < 0.2, "its slots are used again"
    assert drive.scheduler.compressor.total.freed == 0
    assert drive.scheduler.compressor.total.evicted > 20


def one_request(method: Compression, output: int) -> Case:
    limits = Limits(max_num_seqs=4, max_num_batched_tokens=200, max_model_len=200, async_scheduling=False)
    return Case(limits, 4, 50, caching=False, shapes=(Shape(8, output, 0, 0, None),), compression=method)


def test_who_was_preempted_is_compressed_again():
    method = Compression(Eviction(keep=0.5), every=4, compaction=Compaction.IN_ORDER)
    limits = Limits(max_num_seqs=4, max_num_batched_tokens=64, max_model_len=60, async_scheduling=False)
    shapes = tuple(Shape(8, 52, 0, family, None) for family in range(4))
    roomy = Case(limits, 4, 100, caching=False, shapes=shapes, compression=method)

    calm, tight = (Drive(each).run() for each in (roomy, replace(roomy, usable_blocks=20)))

    assert tight.scheduler.preemptions > calm.scheduler.preemptions == 0
    assert tight.scheduler.compressor.total.evicted > calm.scheduler.compressor.total.evicted


def test_a_cache_of_prefixes_and_eviction_do_not_go_together():
    case = replace(one_request(Compression(Eviction(budget=4)), output=4), caching=True)

    with pytest.raises(ValueError, match="--no-enable-prefix-caching"):
        Drive(case)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({}, "a budget or a share"),
        ({"budget": 1, "keep": 0.5}, "a budget or a share"),
        ({"budget": 0}, "budget of 0"),
        ({"keep": 0.0}, "share to keep is 0"),
        ({"keep": 1.5}, "share to keep is 1.5"),
        ({"budget": 1, "heads": 0}, "heads and run"),
        ({"budget": 1, "window": -1}, "sinks and window"),
    ],
)
def test_numbers_that_keep_nothing_are_refused(wrong, named):
    with pytest.raises(ValueError, match=named):
        Eviction(**wrong)
