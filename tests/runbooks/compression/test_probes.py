"""The verdict on a long generation, on what the lab engine's own block tables show."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from math import nan

import pytest

from kvmedic.model.compression import Keep
from kvmedic.model.trial import Reclaim, Sample
from kvmedic.runbooks.compression.probes import Generation, Judged, Reclamation, Unjudged, judge, ratio_of
from lab.engine.blocks import BlockPool
from lab.engine.compression import Compaction, Compression, Eviction, Survival
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
def test_each_method_is_recognised_by_the_blocks_that_come_back(
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


def test_a_method_that_keeps_more_than_is_said_reads_like_one_with_a_window() -> None:
    seen = watched(Compression(Eviction(budget=4096), compaction=Compaction.IN_ORDER), keep=Keep(budget=2048))

    found = verdict(judge(seen))

    assert found.reclaim is Reclaim.IN_PART
    assert found.ratio.mean == pytest.approx(1.9, abs=0.1)


@pytest.mark.parametrize(
    ("window", "block", "low", "high"),
    [(0, 16, 2.9, 3.5), (512, 16, 1.8, 2.4), (0, 8, 2.2, 2.8), (0, 32, 3.4, 4.1)],
    ids=["H16 is 3.4", "half of it a window", "H8 is 2.7", "H32 is 4.1"],
)
def test_a_method_that_scores_anew_reclaims_in_part(window: int, block: int, low: float, high: float) -> None:
    anew = Compression(Eviction(Survival.RESCORED, budget=1024 - window, window=window))

    found = verdict(judge(watched(anew, block=block, keep=Keep(budget=1024))))

    assert found.reclaim is Reclaim.IN_PART
    assert low < found.ratio.mean < high
    assert found.ratio.low < found.ratio.mean < found.ratio.high
    assert found.confidence < 1


def at_ratio(ratio: float, noise: float, seed: int) -> Generation:
    luck, keep = random.Random(seed), Keep(budget=1024)
    tokens = range(64, 16_512 + 1, 64)
    seen = Generation((), 16_512, 16, keep, heads=8)
    used = (min(each / 16, max(0.0, luck.gauss(ratio, noise)) * seen.count_needed(each)) for each in tokens)
    return replace(seen, samples=tuple(map(Sample, tokens, used)))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("ratio", "reclaim"),
    [(1.0, Reclaim.RECLAIMS), (1.15, Reclaim.RECLAIMS), (1.25, None), (1.4, Reclaim.IN_PART)],
)
def test_a_ratio_about_the_limit_is_not_judged(ratio: float, reclaim: Reclaim | None, seed: int) -> None:
    found = judge(at_ratio(ratio, 0.05, seed))

    if reclaim is None:
        assert isinstance(found, Unjudged)
        assert "1.25 is the limit of a method that reclaims" in found.why
    else:
        assert verdict(found).reclaim is reclaim


def test_readings_that_follow_each_other_show_less_than_as_many_that_do_not() -> None:
    mixed = at_ratio(1.0, 0.2, 1)
    half = [each for each in mixed.samples if each.tokens >= 8256]
    follow = [
        replace(each, tokens=other.tokens)
        for each, other in zip(sorted(half, key=lambda each: each.used), half, strict=True)
    ]

    assert ratio_of(mixed, follow).error > 3 * ratio_of(mixed, half).error


def test_a_model_that_frees_blocks_by_its_window_proves_no_method() -> None:
    windowed = Compression(Eviction(budget=1024, survival=Survival.RECENT))
    seen = watched(windowed)
    assert verdict(judge(seen)).reclaim is Reclaim.RECLAIMS

    found = judge(replace(seen, window="sliding_window is 1024 in vllm:cache_config_info"))

    assert isinstance(found, Unjudged)
    assert found.why.startswith("sliding_window is 1024 in vllm:cache_config_info: the model frees blocks")


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
def test_a_generation_that_shows_nothing_is_not_judged(changed: Generation, named: str) -> None:
    found = judge(changed)

    assert isinstance(found, Unjudged)
    assert named in found.why
