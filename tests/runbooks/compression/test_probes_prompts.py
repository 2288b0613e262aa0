"""The verdict on prompts of rising length."""

from __future__ import annotations

from collections.abc import Callable
from math import nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvmedic.model.trial import Growth, Prompt
from kvmedic.runbooks.compression.probes import RESOLUTION, Grown, GrowthJudged, Unjudged, judge_prompts
from lab.engine.config import SCORE_BYTES

MIB = RESOLUTION
BEFORE = 70_000 * MIB
LENGTHS = (1024, 2048, 4096, 8192)


def judged(more: Callable[[int], float], lengths: tuple[int, ...] = LENGTHS) -> GrowthJudged:
    """Return the verdict where memory grows so; it is read in whole MiB."""
    prompts = [Prompt(each, BEFORE + more(each) // MIB * MIB) for each in lengths]
    return judge_prompts(BEFORE, prompts, in_chunks=False)


@pytest.mark.parametrize(
    ("more", "growth", "exponent"),
    [
        (lambda tokens: SCORE_BYTES * tokens**2, Growth.SQUARE, 2.0),
        (lambda tokens: SCORE_BYTES * tokens**2 / 16, Growth.SQUARE, 2.0),
        (lambda tokens: 64 * 1024 * tokens, Growth.LINEAR, 1.0),
        (lambda tokens: 0, Growth.NONE, 0.0),
        (lambda tokens: MIB if tokens > 4000 else 0, Growth.NONE, 0.0),
        (lambda tokens: -3 * MIB, Growth.NONE, 0.0),
    ],
)
def test_growth_is_known_by_its_power(more: Callable[[int], float], growth: Growth, exponent: float) -> None:
    found = judged(more)

    assert isinstance(found, Grown), found
    assert found.growth is growth
    assert found.exponent == pytest.approx(exponent, abs=0.1)
    assert found.confidence > 0.95


@given(
    power=st.sampled_from((1, 2)),
    scale=st.floats(1, 1000),
    rounding=st.lists(st.floats(1, 1.1), min_size=4, max_size=4),
)
def test_allocators_that_round_up_by_a_tenth_mislead_nobody(
    power: int, scale: float, rounding: list[float]
) -> None:
    more = dict(zip(LENGTHS, rounding, strict=True))

    found = judged(lambda tokens: 20 * MIB * scale * more[tokens] * (tokens / LENGTHS[0]) ** power)

    assert isinstance(found, Unjudged) or found.growth is (Growth.SQUARE if power == 2 else Growth.LINEAR)


def test_three_prompts_are_enough() -> None:
    found = judged(lambda tokens: SCORE_BYTES * tokens**2, (1000, 2000, 4000))

    assert isinstance(found, Grown)
    assert found.growth is Growth.SQUARE


@pytest.mark.parametrize(
    ("found", "named"),
    [
        (
            judge_prompts(BEFORE, [Prompt(each, BEFORE) for each in LENGTHS], in_chunks=True),
            "chunked prefill is on",
        ),
        (judged(lambda tokens: 0, (1000, 4000)), "2 prompts were sent, 3 are needed"),
        (judged(lambda tokens: 0, (1000, 3000, 2000, 8000)), "do not rise in length"),
        (judged(lambda tokens: 0, (1000, 1000, 8000)), "do not rise in length"),
        (judged(lambda tokens: 0, (1000, 2000, 3000)), "less than 4 times the shortest"),
        (judge_prompts(nan, [Prompt(each, BEFORE) for each in LENGTHS], in_chunks=False), "is no number"),
        (judge_prompts(BEFORE, [Prompt(each, nan) for each in LENGTHS], in_chunks=False), "is no number"),
        (judged(lambda tokens: 50 * MIB if tokens > 4000 else 0), "the longest prompts alone"),
        (judged(lambda tokens: 50 * MIB * (tokens / 1024) ** 1.5), "between a line and a square"),
    ],
)
def test_prompts_that_show_nothing_are_not_judged(found: GrowthJudged, named: str) -> None:
    assert isinstance(found, Unjudged), found
    assert named in found.why
