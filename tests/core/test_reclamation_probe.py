"""The verdict on a long generation, on what the lab engine's own block tables show."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from math import nan

import pytest

from kvmedic.core.reclamation_probe import (
    Generation,
    Judged,
    Keep,
    Reclaim,
    Reclamation,
    Sample,
    Unjudged,
    judge,
)
from lab.engine.blocks import BlockPool
from lab.engine.compression import Compaction, Compression
from lab.engine.eviction import Eviction, Survival
from lab.engine.requests import BlockTable, Request
from lab.engine.scheduler import Limits, Scheduler

PROMPT, OUTPUT, BLOCK = 32, 16_500, 16
EVERY = 37
"""Tokens between two readings: a second's worth of a slow engine, in step with nothing."""
BUDGET = Eviction(budget=2048)


def watched(
    method: Compression | None,
    *,
    output: int = OUTPUT,
    block: int = BLOCK,
    every: int = EVERY,
    keep: Keep | None = None,
) -> Generation:
    """Let the lab engine generate one long answer, and read its pool on the way."""
    limits = Limits(max_num_seqs=4, max_num_batched_tokens=8192, max_model_len=40_000)
    pool = BlockPool(40_000 // block + 1, caching=False)
    scheduler = Scheduler(limits, pool, block, compression=method)
    request = Request("1", list(range(PROMPT)), output, BlockTable(block), seed=3)
    scheduler.add(request)
    samples, in_flight = [], []
    while scheduler.has_requests or in_flight:
        step = scheduler.schedule()
        if step.scheduled:
            in_flight.append(step)
        if len(in_flight) == 2 or not step.scheduled:
            scheduler.finish(in_flight.pop(0))
        if request.output_length and request.output_length % every == 0 and scheduler.running:
            samples.append(Sample(len(request.tokens), pool.usage * pool.usable))
    eviction = method.eviction if method else BUDGET
    kept = keep or Keep(eviction.budget, eviction.keep)
    return Generation(tuple(samples), request.output_length, block, kept, heads=8)


SCATTERED = Compression(BUDGET)
PER_HEAD = Compression(replace(BUDGET, survival=Survival.PER_HEAD))
CASES: Sequence[tuple[str, Compression | None, Reclaim]] = (
    ("nothing runs", None, Reclaim.NONE),
    ("scattered", SCATTERED, Reclaim.SCATTERED),
    ("per head", PER_HEAD, Reclaim.NONE),
    ("compacted in order", replace(SCATTERED, compaction=Compaction.IN_ORDER), Reclaim.RECLAIMS),
    ("holes filled", replace(SCATTERED, compaction=Compaction.FILL_HOLES), Reclaim.RECLAIMS),
    (
        "compacted, and nothing given back but slots used again",
        replace(SCATTERED, compaction=Compaction.IN_ORDER, gives_back=False),
        Reclaim.RECLAIMS,
    ),
    ("the newest", Compression(replace(BUDGET, survival=Survival.RECENT, sinks=4)), Reclaim.RECLAIMS),
    ("a small budget, scattered", Compression(Eviction(budget=512)), Reclaim.SCATTERED),
    (
        "a small budget, compacted",
        Compression(Eviction(budget=512), compaction=Compaction.IN_ORDER),
        Reclaim.RECLAIMS,
    ),
    ("an eighth, scattered", Compression(Eviction(keep=0.125)), Reclaim.SCATTERED),
    (
        "an eighth, compacted",
        Compression(Eviction(keep=0.125), compaction=Compaction.IN_ORDER),
        Reclaim.RECLAIMS,
    ),
    ("half, compacted", Compression(Eviction(keep=0.5), compaction=Compaction.IN_ORDER), Reclaim.RECLAIMS),
    ("not given back at all", replace(SCATTERED, gives_back=False), Reclaim.NONE),
)


def verdict(found: Judged) -> Reclamation:
    assert isinstance(found, Reclamation), found
    return found


@pytest.mark.parametrize(("method", "reclaim"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_each_method_is_told_by_the_blocks_that_come_back(
    method: Compression | None, reclaim: Reclaim
) -> None:
    found = verdict(judge(watched(method)))

    assert found.reclaim is reclaim
    assert found.confidence > 0.95
    assert found.slope == pytest.approx(found.predicted[reclaim], abs=0.06)


def test_how_much_came_back_is_said_in_blocks() -> None:
    freed = [verdict(judge(watched(case[1]))).freed for case in CASES[:4]]

    assert freed == pytest.approx([0.0, 0.12, 0.0, 0.87], abs=0.02)


def test_where_nearly_all_is_kept_scattered_eviction_frees_as_little_as_none() -> None:
    found = verdict(judge(watched(Compression(Eviction(keep=0.5)))))

    assert found.reclaim in (Reclaim.SCATTERED, Reclaim.NONE)


@pytest.mark.parametrize("block", [8, 32, 128])
def test_blocks_of_any_size_are_judged(block: int) -> None:
    scattered, compacted = (
        verdict(judge(watched(method, block=block))).reclaim for method in (SCATTERED, CASES[3][1])
    )

    assert compacted is Reclaim.RECLAIMS
    assert scattered in (Reclaim.SCATTERED, Reclaim.NONE)
    assert scattered is Reclaim.SCATTERED or block >= 32


def test_noise_makes_a_verdict_less_sure_and_then_none() -> None:
    seen = watched(SCATTERED)
    luck = random.Random(1)

    def noisy(blocks: float) -> Judged:
        samples = [replace(each, used=max(0.0, each.used + luck.gauss(0, blocks))) for each in seen.samples]
        return judge(replace(seen, samples=tuple(samples)))

    assert verdict(noisy(5)).reclaim is Reclaim.SCATTERED
    assert isinstance(noisy(600), Unjudged)


def test_a_budget_that_is_not_the_methods_own_gives_no_wrong_verdict() -> None:
    seen = watched(Compression(Eviction(budget=4096), compaction=Compaction.IN_ORDER), keep=Keep(budget=2048))

    found = judge(seen)

    assert isinstance(found, Unjudged) or found.reclaim is Reclaim.RECLAIMS


SEEN = watched(None, output=17_000)


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        (replace(SEEN, generated=16_000), "16000 tokens were generated, 16384 are needed"),
        (replace(SEEN, keep=Keep(budget=5000)), "17000 tokens were generated, 20000 are needed"),
        (replace(SEEN, samples=SEEN.samples[:9]), "9 readings of used blocks, 10 are needed"),
        (replace(SEEN, samples=(*SEEN.samples, Sample(20_000, nan))), "is no number"),
        (replace(SEEN, samples=(*SEEN.samples, Sample(20_000, -1))), "is no number"),
        (replace(SEEN, samples=(*SEEN.samples, Sample(5, 1))), "do not follow one request"),
        (replace(SEEN, samples=SEEN.samples[-100:]), "do not follow one request"),
        (replace(SEEN, keep=Keep(share=0.95)), "keeps nearly every token"),
    ],
)
def test_a_generation_that_tells_nothing_is_not_judged(changed: Generation, named: str) -> None:
    found = judge(changed)

    assert isinstance(found, Unjudged)
    assert named in found.why
