"""Free blocks by formula against evictions that are drawn and counted."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from math import sqrt
from statistics import fmean, stdev

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvmedic.model.compression import (
    Compacted,
    Eviction,
    Freed,
    InRuns,
    NoEvictionError,
    Pattern,
    PerHead,
    Scattered,
    freed_blocks,
)

DRAWS = 300
POST = Eviction(16000, 16, 14000)


def test_seven_eighths_evicted_free_an_eighth_none_or_seven_eighths() -> None:
    scattered, per_head, compacted = (
        freed_blocks(POST, each) for each in (Scattered(), PerHead(8), Compacted())
    )

    assert scattered.mean == pytest.approx(117.9, abs=0.1)
    assert scattered.deviation == pytest.approx(8.5, abs=0.05)
    assert per_head.mean < 1e-3
    assert compacted == Freed(875.0, 0.0)


def _free(eviction: Eviction, survivors: Iterable[int]) -> int:
    return eviction.blocks - len({token // eviction.block_tokens for token in survivors})


def draw_scattered(eviction: Eviction, luck: random.Random) -> int:
    return _free(eviction, luck.sample(range(eviction.tokens), eviction.kept))


def draw_per_head(eviction: Eviction, luck: random.Random) -> int:
    return _free(eviction, (t for _ in range(2) for t in luck.sample(range(eviction.tokens), eviction.kept)))


def draw_runs(eviction: Eviction, luck: random.Random) -> int:
    """Let runs of four begin at places in any order, until enough tokens are kept."""
    survivors: set[int] = set()
    for start in luck.sample(range(-3, eviction.tokens), eviction.tokens + 3):
        run = set(range(max(0, start), min(start + 4, eviction.tokens)))
        survivors |= set(sorted(run - survivors)[: eviction.kept - len(survivors)])
    return _free(eviction, survivors)


LONG = [Eviction(1600, 16, 1200), Eviction(1603, 7, 1203)]
SHORT = Eviction(40, 16, 36)


def draw_layers(eviction: Eviction, luck: random.Random) -> int:
    """Two layers, each with two heads."""
    return _free(eviction, (t for _ in range(4) for t in luck.sample(range(eviction.tokens), eviction.kept)))


@pytest.mark.parametrize(
    ("pattern", "layers", "draw", "eviction"),
    [
        *((Scattered(), 1, draw_scattered, each) for each in (*LONG, SHORT)),
        *((PerHead(2), 1, draw_per_head, each) for each in (*LONG, SHORT)),
        *((InRuns(4), 1, draw_runs, each) for each in LONG),
        *((Scattered(), 2, draw_per_head, each) for each in (*LONG, SHORT)),
        (PerHead(2), 2, draw_layers, SHORT),
    ],
)
def test_the_formulae_are_what_is_drawn(
    pattern: Pattern, layers: int, draw: Callable[[Eviction, random.Random], int], eviction: Eviction
) -> None:
    luck = random.Random(7)
    seen = [draw(eviction, luck) for _ in range(DRAWS)]

    found = freed_blocks(eviction, pattern, layers)

    assert abs(found.mean - fmean(seen)) <= 3 * max(stdev(seen), 0.01) / sqrt(DRAWS)
    if found.deviation is not None and found.deviation > 0.5:
        assert found.deviation == pytest.approx(stdev(seen), rel=0.2)


@given(tokens=st.integers(1, 400), block=st.integers(1, 32), share=st.floats(0, 1))
@settings(max_examples=200, deadline=None)
def test_no_pattern_frees_more_than_moving_the_survivors_together(
    tokens: int, block: int, share: float
) -> None:
    eviction = Eviction(tokens, block, int(share * tokens))
    most = freed_blocks(eviction, Compacted()).mean

    each = [freed_blocks(eviction, pattern).mean for pattern in (PerHead(8), PerHead(2), Scattered())]

    assert [0.0, *each, most + 1e-9] == sorted([0.0, *each, most + 1e-9])
    assert 0 <= freed_blocks(eviction, InRuns(3)).mean <= most


def test_runs_of_one_are_scattered_and_long_runs_free_nearly_what_is_evicted() -> None:
    single, long = (freed_blocks(POST, InRuns(length)).mean for length in (1, 1000))

    assert single == pytest.approx(freed_blocks(POST, Scattered()).mean, rel=2e-3)
    assert long == pytest.approx(875, rel=3e-3)


@given(pattern=st.sampled_from([Scattered(), PerHead(8), Compacted(), InRuns(5)]), kept=st.booleans())
def test_with_nothing_evicted_nothing_is_free_and_with_everything_all(
    pattern: Pattern, *, kept: bool
) -> None:
    eviction = Eviction(100, 16, 0 if kept else 100)

    assert freed_blocks(eviction, pattern).mean == pytest.approx(0.0 if kept else 7.0)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (lambda: Eviction(0, 16, 0), "--tokens must be 1 or more, got 0"),
        (lambda: Eviction(10, 0, 0), "--block-size must be 1 or more"),
        (lambda: Eviction(10, 16, 11), r"--evict must be between 0 and --tokens \(10\), got 11"),
        (lambda: Eviction(10, 16, -1), "got -1"),
        (lambda: freed_blocks(POST, PerHead(0)), "--kv-heads must be"),
        (lambda: freed_blocks(POST, InRuns(0)), "runs:LENGTH must be 1 or more, got 0"),
        (lambda: freed_blocks(POST, Compacted(), 0), "--layers must be 1 or more"),
    ],
)
def test_what_names_no_eviction_is_refused_by_name(wrong: Callable[[], object], named: str) -> None:
    with pytest.raises(NoEvictionError, match=named):
        wrong()
