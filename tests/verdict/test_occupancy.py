"""How much of a KV cache one running sequence takes."""

from __future__ import annotations

import random
from math import sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import LENGTH_BOUNDS, a_histogram, spread
from kvmedic.model.compression import Compacted, Keep
from kvmedic.model.evidence import Histogram
from kvmedic.model.readings import Moments, moments
from kvmedic.verdict.occupancy import (
    Occupancy,
    Passes,
    correct_occupancy,
    occupancy,
    occupancy_under,
    with_evicted_tokens,
    with_shared_prefixes,
)

FIXED_64 = Moments(64, 64**2, 64**3)
FIXED_512 = Moments(512, 512**2, 512**3)
CHAT = Occupancy(mean_blocks=7.2, deviation_blocks=5.0, growth_share=0.7)


def test_a_running_sequence_of_fixed_length_is_half_way_through_its_output() -> None:
    found = occupancy(FIXED_64, FIXED_512, 32)

    tokens = 64 + (512 - 1) / 2
    ages = range(512)
    deviation = sqrt(sum((64 + age - tokens) ** 2 for age in ages) / 512)
    assert found.mean_blocks == pytest.approx((tokens + 31 / 2) / 32)
    assert found.deviation_blocks == pytest.approx(sqrt((deviation / 32) ** 2 + 1 / 12), rel=1e-6)
    assert found.growth_share == pytest.approx(256 / tokens)


def _moments(values: list[int]) -> Moments:
    return Moments(*(sum(value**power for value in values) / len(values) for power in (1, 2, 3)))


def test_long_outputs_are_seen_running_in_proportion_to_how_long_they_stay() -> None:
    drawn = random.Random(7)
    lengths = [(drawn.choice([20, 40, 80]), drawn.choice([10, 100, 1000])) for _ in range(3000)]
    seen = [prompt + age for prompt, output in lengths for age in range(output)]
    mean = sum(seen) / len(seen)
    deviation = sqrt(sum((tokens - mean) ** 2 for tokens in seen) / len(seen))

    found = occupancy(
        _moments([prompt for prompt, _ in lengths]), _moments([output for _, output in lengths]), 1
    )

    assert found.mean_blocks == pytest.approx(mean, rel=0.01)
    assert found.deviation_blocks == pytest.approx(deviation, rel=0.01)


def test_a_deviation_is_never_imaginary() -> None:
    assert occupancy(Moments(10, 90, 900), Moments(1, 1, 1), 16).deviation_blocks == sqrt(1 / 12)


def test_a_prompt_of_one_token_and_long_outputs_is_all_growth_and_not_more() -> None:
    assert occupancy(Moments(0.1, 0.1, 0.1), FIXED_512, 16).growth_share == 1.0


@pytest.mark.parametrize(
    ("measured", "mean", "growth"),
    [
        pytest.param(100, 40, 0.25, id="gauge over the lengths: nothing is shared at this moment"),
        pytest.param(25, 25, 0.4, id="gauge between: it shows what is shared"),
        pytest.param(15, 20, 0.5, id="gauge under everything shared: thrash makes it read low"),
    ],
)
def test_shared_prefixes_lower_the_mean_and_not_the_deviation(
    measured: float, mean: float, growth: float
) -> None:
    alone = Occupancy(mean_blocks=40, deviation_blocks=8, growth_share=0.25)

    found = with_shared_prefixes(alone, measured, hit_blocks=20)

    assert found == Occupancy(mean, 8, pytest.approx(growth))


def test_a_fully_shared_prompt_leaves_a_block_and_a_growth_share_of_at_most_one() -> None:
    found = with_shared_prefixes(Occupancy(10, 2, 0.9), measured_blocks=0.1, hit_blocks=30)

    assert found == Occupancy(1.0, 2, 1.0)


@pytest.mark.parametrize(
    ("blocks", "deviation", "expected"),
    [
        (6.0, 4.0, (7.0, 5.0, 0.6)),
        (7.0, 5.0, (7.0, 5.0, 0.6)),
        (8.0, 4.0, (8.0, 5.0, 0.65)),
        (6.0, 9.0, (7.0, 9.0, 0.6)),
        (14.0, 9.0, (14.0, 9.0, 0.8)),
    ],
    ids=["less is seen", "as expected", "larger ones", "wider spread", "both"],
)
def test_what_is_seen_to_run_counts_where_it_is_more_than_the_lengths_show(
    blocks: float, deviation: float, expected: tuple[float, float, float]
) -> None:
    """What is more than the prompts is growth: of 7 blocks 2.8 are the prompt's."""
    found = correct_occupancy(Occupancy(7.0, 5.0, 0.6), blocks, deviation)

    assert (found.mean_blocks, found.deviation_blocks, found.growth_share) == pytest.approx(expected)


WIDE_BOUNDS = (*LENGTH_BOUNDS, 10_000.0, 20_000.0, 50_000.0)


def varied(mean: float) -> Histogram:
    return a_histogram(WIDE_BOUNDS, spread(mean))


def test_blocks_as_a_function_of_tokens_give_what_the_closed_form_gives() -> None:
    prompt, output = varied(200), varied(400)

    closed = occupancy(moments(prompt), moments(output), 16)
    counted = occupancy_under(prompt, output, 16, Passes(Keep(10**9), Compacted(), every=0))

    assert counted.mean_blocks == pytest.approx(closed.mean_blocks, rel=0.05)
    assert counted.deviation_blocks == pytest.approx(closed.deviation_blocks, rel=0.15)
    assert counted.growth_share == pytest.approx(closed.growth_share, abs=0.1)


def test_a_sequence_that_keeps_few_tokens_takes_few_blocks_whatever_its_length() -> None:
    prompt, output = varied(100), varied(5000)

    found = occupancy_under(prompt, output, 16, Passes(Keep(512), Compacted(), every=0))

    assert 28 < found.mean_blocks <= 32
    assert found.deviation_blocks < 8
    assert found.growth_share > 0.7


def test_until_the_first_pass_a_long_prompt_takes_all_of_its_blocks() -> None:
    prompt, output = varied(3000), varied(300)

    early, late = (
        occupancy_under(prompt, output, 16, Passes(Keep(512), Compacted(), every=first)).mean_blocks
        for first in (0, 10**9)
    )

    assert early == pytest.approx(32, abs=1)
    assert late == pytest.approx(occupancy(moments(prompt), moments(output), 16).mean_blocks, rel=0.05)


ALONE = Occupancy(mean_blocks=100.0, deviation_blocks=60.0, growth_share=0.9)


def test_the_tokens_that_are_kept_count_where_the_gauges_read_too_low() -> None:
    found = with_evicted_tokens(ALONE, 28.0, Occupancy(36.0, 6.0, 0.8))

    assert found == Occupancy(36.0, 6.0, ALONE.growth_share, whole_blocks=100.0)


def test_the_gauges_count_where_more_is_kept_than_was_said() -> None:
    found = with_evicted_tokens(ALONE, 50.0, Occupancy(36.0, 6.0, 0.8))

    assert found.mean_blocks == 50.0


def test_where_nobody_knows_how_much_is_kept_the_gauges_are_taken_for_too_low() -> None:
    found = with_evicted_tokens(ALONE, 34.0, None)

    assert found.mean_blocks == pytest.approx(40.0)
    assert found.deviation_blocks == pytest.approx(24.0)


@given(st.floats(0, 1e4), st.none() | st.floats(0.1, 1e4))
def test_eviction_never_makes_a_sequence_larger(measured: float, budgeted: float | None) -> None:
    known = None if budgeted is None else Occupancy(budgeted, 1.0, 0.5)

    found = with_evicted_tokens(ALONE, measured, known)

    assert 1.0 <= found.mean_blocks <= ALONE.mean_blocks
