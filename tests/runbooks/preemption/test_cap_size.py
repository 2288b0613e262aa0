"""How many sequences a KV cache holds, what a cap brings, and what it must still serve."""

from __future__ import annotations

import random
from dataclasses import replace
from math import floor, inf, nan, sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import LENGTH_BOUNDS, NOW, a_histogram, spread
from kvmedic.model.evidence import Absence, Histogram, Measured, Missing, Stale, Unsupported
from kvmedic.model.readings import Moments, moments
from kvmedic.runbooks.preemption.cap_size import (
    AS_GOOD,
    BOLDEST_FIT,
    ENOUGH,
    KEEPING_UP,
    MARGIN,
    MOST_PREFILL,
    OF_HANGING,
    OF_SHORT,
    SAFEST_FIT,
    UNKNOWN_SPREAD_WEIGHT,
    WAVES_MARGIN,
    Offered,
    Queue,
    Strain,
    best_cap,
    cap_at,
    effect_of,
    fit_of,
    peak_of,
    spread_weight,
    tokens_again,
    wave_cap,
)
from kvmedic.verdict.occupancy import Occupancy, occupancy, with_evicted_tokens

FIXED_64 = Moments(64, 64**2, 64**3)
FIXED_512 = Moments(512, 512**2, 512**3)
CHAT = Occupancy(mean_blocks=7.2, deviation_blocks=5.0, growth_share=0.7)
STRAINED = Strain(
    running_mean=22.8,
    preemptions_per_request=1.75,
    stalls_per_request=0.2,
    step_seconds=0.028,
    prefill_extra_seconds=0.12,
    prefill_tokens=60,
    output_tokens=190,
)
POOL = (149.0, 32)


@pytest.mark.parametrize("fit", [0, BOLDEST_FIT, SAFEST_FIT, 2.5])
def test_a_cap_fits_by_as_much_as_was_asked_and_one_more_does_not(fit: float) -> None:
    cap = cap_at(149, CHAT, fit)

    assert fit_of(149, CHAT, cap) >= fit > fit_of(149, CHAT, cap + 1)


def test_the_cap_is_the_closed_form() -> None:
    m, s, z, blocks = 7.2, 5.0, 1.28, 149

    assert cap_at(149, CHAT, z) == floor(((-z * s + sqrt(z * z * s * s + 4 * m * blocks)) / (2 * m)) ** 2)


def test_a_pool_smaller_than_a_sequence_has_room_for_none() -> None:
    assert cap_at(5, CHAT, SAFEST_FIT) == 0


@given(st.floats(1, 1e5), st.floats(1, 500), st.floats(0.3, 500), st.floats(0.5, 1.28))
def test_a_cap_grows_with_the_pool_and_shrinks_with_sequence_deviation_and_fit(
    blocks: float, mean: float, deviation: float, fit: float
) -> None:
    sequence = Occupancy(mean, deviation, 0.5)
    cap = cap_at(blocks, sequence, fit)

    assert cap_at(2 * blocks, sequence, fit) >= cap
    assert cap_at(blocks, replace(sequence, mean_blocks=2 * mean), fit) <= cap
    assert cap_at(blocks, replace(sequence, deviation_blocks=2 * deviation), fit) <= cap
    assert cap_at(blocks, sequence, 2 * fit) <= cap


def test_a_cap_saves_stalls_and_recomputation() -> None:
    effect = effect_of(STRAINED, CHAT, POOL, 19)

    assert effect.stalls_per_request < 0.15 * STRAINED.stalls_per_request
    assert effect.throughput_ratio > 19 / 22.8
    assert effect.goodput_ratio > effect.throughput_ratio


def test_where_recomputation_is_free_throughput_falls_with_the_running_set() -> None:
    free = replace(STRAINED, prefill_extra_seconds=0)

    assert effect_of(free, CHAT, POOL, 19).throughput_ratio == pytest.approx(19 / 22.8)


def test_a_cap_over_what_runs_loses_no_throughput() -> None:
    free = replace(STRAINED, prefill_extra_seconds=0, running_mean=15)

    assert effect_of(free, CHAT, POOL, 19).throughput_ratio == 1.0


def test_without_prompts_and_preemptions_nothing_is_recomputed() -> None:
    nothing = replace(STRAINED, prefill_tokens=0, preemptions_per_request=0)

    assert effect_of(nothing, CHAT, POOL, 19).throughput_ratio == pytest.approx(19 / 22.8)


def test_a_step_never_shrinks_to_nothing() -> None:
    absurd = replace(STRAINED, prefill_extra_seconds=1000)

    more_absurd = replace(STRAINED, prefill_extra_seconds=9000)
    found = effect_of(absurd, CHAT, POOL, 19)
    assert found == effect_of(more_absurd, CHAT, POOL, 19)
    assert found.throughput_ratio < 19 / 22.8 / (1 - MOST_PREFILL)


def test_where_every_gap_is_a_stall_no_step_is_known_and_none_gets_shorter() -> None:
    slow = replace(STRAINED, step_seconds=0, stalls_per_request=3.5)

    assert effect_of(slow, CHAT, POOL, 19).throughput_ratio == pytest.approx(19 / 22.8)


def test_stalls_beyond_counting_make_no_difference() -> None:
    many, more = (replace(STRAINED, stalls_per_request=count) for count in (9, 1e6))

    assert effect_of(many, CHAT, POOL, 19) == effect_of(more, CHAT, POOL, 19)


def test_where_most_requests_stall_the_safer_cap_wins_and_where_few_do_the_bolder() -> None:
    free = replace(STRAINED, prefill_extra_seconds=0)
    lowest, highest = cap_at(149, CHAT, SAFEST_FIT), cap_at(149, CHAT, BOLDEST_FIT)

    assert best_cap(replace(free, stalls_per_request=3), CHAT, POOL) == lowest
    assert best_cap(replace(free, stalls_per_request=0.05), CHAT, POOL) == highest
    assert lowest < highest


def test_the_best_cap_is_at_least_one() -> None:
    assert best_cap(STRAINED, CHAT, (5.0, 32)) == 1


@pytest.mark.parametrize(
    ("pool_tokens", "prompt", "output", "lowest_good", "highest_good"),
    [
        pytest.param(149 * 32, 64, 512, 9, 10, id="64 + 512 on 149 x 32"),
        pytest.param(280 * 16, 64, 512, 9, 10, id="64 + 512 on 280 x 16"),
        pytest.param(2640 * 16, 128, 800, 46, 51, id="128 + 800 on 2640 x 16"),
        pytest.param(1344 * 16, 1024, 1024, 11, 11, id="1024 + 1024 on 1344 x 16"),
        pytest.param(7680 * 16, 1024, 1024, 61, 63, id="1024 + 1024 on 7680 x 16"),
        pytest.param(1137 * 16, 300, 2000, 9, 9, id="300 + 2000 on 1137 x 16"),
    ],
)
def test_equal_lengths_get_the_cap_that_was_best_in_simulation(
    pool_tokens: int, prompt: int, output: int, lowest_good: int, highest_good: int
) -> None:
    assert lowest_good <= floor(wave_cap(pool_tokens, prompt, output)) <= highest_good


def test_a_wave_of_less_than_one_request_leaves_its_whole_output_as_margin() -> None:
    assert wave_cap(100, prompt_tokens=200, output_tokens=800) == pytest.approx(0.5)


def lengths(*values: float, each: float = 40) -> Histogram:
    return a_histogram(LENGTH_BOUNDS, dict.fromkeys(values, each))


@pytest.mark.parametrize(
    ("groups", "weight"),
    [
        pytest.param([a_histogram(LENGTH_BOUNDS, spread(190))], 1.0, id="varied lengths"),
        pytest.param([lengths(512)], 0.0, id="one group, whole mean: equal"),
        pytest.param([lengths(512, 513)], UNKNOWN_SPREAD_WEIGHT, id="one group, one bucket: unknown"),
        pytest.param([lengths(450, 550)], 1.0, id="one group, two buckets: nothing says equal"),
        pytest.param([lengths(512), lengths(512)], 0.0, id="two groups, same mean: equal"),
        pytest.param([lengths(512), lengths(513)], UNKNOWN_SPREAD_WEIGHT, id="two groups, near: unknown"),
        pytest.param([lengths(600), lengths(700)], 1.0, id="two groups, far: varied"),
        pytest.param([lengths(450), lengths(550)], 1.0, id="two groups, two buckets: nothing says equal"),
        pytest.param([lengths(512)] * 3, 0.0, id="three groups, same mean: equal"),
        pytest.param([lengths(495), lengths(500), lengths(520)], 1.0, id="three groups, scattered: varied"),
        pytest.param([lengths(10, 50, 200, 900)] * 3, 1.0, id="three groups over many buckets: varied"),
    ],
)
def test_the_spread_of_lengths_is_read_off_the_means_of_groups(
    groups: list[Histogram], weight: float
) -> None:
    assert spread_weight(groups) == pytest.approx(weight)


def test_a_small_spread_weighs_in_proportion() -> None:
    groups = [lengths(510), lengths(511), lengths(512)]

    deviation = sqrt(40 * (1 + 1) / 2) / 511
    assert spread_weight(groups) == pytest.approx(deviation / 0.1)


def test_two_groups_weigh_in_proportion_once_they_prove_a_spread() -> None:
    deviation = sqrt(2 * 40 * 4**2) / 604
    assert 0.05 < deviation < 0.1

    assert spread_weight([lengths(600), lengths(608)]) == pytest.approx(deviation / 0.1)


def test_groups_of_real_draws_distinguish_equal_from_varied() -> None:
    drawn = random.Random(3)

    def group(low: int, high: int) -> Histogram:
        values = [drawn.randint(low, high) for _ in range(300)]
        return a_histogram(LENGTH_BOUNDS, {value: values.count(value) for value in values})

    narrow = [group(507, 517) for _ in range(6)]
    wide = [group(501, 999) for _ in range(6)]
    assert spread_weight(narrow) < 0.15
    assert spread_weight(wide) > 0.9


def _moments(values: list[int]) -> Moments:
    return Moments(*(sum(value**power for value in values) / len(values) for power in (1, 2, 3)))


def test_buckets_are_fine_enough_for_the_cap() -> None:
    shape = spread(190)
    exact = [length for length, count in shape.items() for _ in range(round(count))]
    prompt = Moments(60, 60**2 * 1.49, 60**3 * 3.3)

    of_buckets = occupancy(prompt, moments(a_histogram(LENGTH_BOUNDS, shape)), 32)
    of_values = occupancy(prompt, _moments([round(length) for length in exact]), 32)

    assert cap_at(149, of_buckets, 1.0) == pytest.approx(cap_at(149, of_values, 1.0), rel=0.06)


@pytest.mark.parametrize("extra", [0.05, 0.1, 0.2, 0.4])
def test_of_caps_that_are_as_good_the_safest_is_taken(extra: float) -> None:
    sequence, pool = Occupancy(6.9, 4.3, 0.6), (149.0, 32)
    strain = Strain(22.5, 1.94, 0.12, 0.028, extra, 52, 185)

    def goodput(cap: int) -> float:
        return effect_of(strain, sequence, pool, cap).goodput_ratio

    lowest, highest = cap_at(149, sequence, SAFEST_FIT), cap_at(149, sequence, BOLDEST_FIT)
    best = max(goodput(cap) for cap in range(lowest, highest + 1))
    cap = best_cap(strain, sequence, pool)

    assert goodput(cap) >= AS_GOOD * best
    assert cap == lowest or goodput(cap - 1) < AS_GOOD * best


def test_a_preempted_request_computes_evicted_tokens_again() -> None:
    evicted = with_evicted_tokens(CHAT, 3.0, Occupancy(3.0, 1.0, 0.5))

    assert tokens_again(STRAINED, evicted, 32) == tokens_again(STRAINED, CHAT, 32)


SERVED = Offered(1.0, served_per_second=1000.0)
FULL = replace(SERVED, is_full=True)
SAME_CLIENTS = replace(FULL, is_steady=True)
NEEDED, NEEDED_FULL = 1 + MARGIN + KEEPING_UP, 1 + MARGIN


@pytest.mark.parametrize(
    ("offered", "stalls", "least"),
    [
        pytest.param(SERVED, 0.1, NEEDED, id="served: as much as is offered"),
        pytest.param(replace(SERVED, now=0.9), 0.1, NEEDED, id="a queue that was worked off hides nothing"),
        pytest.param(replace(SERVED, now=1.1), 0.1, 1.1 * NEEDED, id="more comes than is given"),
        pytest.param(replace(SERVED, peak_per_second=999), 0.1, NEEDED, id="more now than at the peak"),
        pytest.param(replace(SERVED, peak_per_second=1500), 0.1, 1.5 * NEEDED, id="the peak, where served"),
        pytest.param(replace(SERVED, peak_per_second=nan), 0.1, NEEDED, id="a peak that is no number"),
        pytest.param(
            Offered(1.0, None, 1500), 0.1, NEEDED, id="a peak, and nobody knows how much is given a second"
        ),
        pytest.param(Offered(1.0, 0.0, 1500), 0.1, NEEDED, id="a peak, and nothing is given"),
        pytest.param(
            replace(FULL, peak_per_second=1500), 0.1, NEEDED_FULL, id="the peak is not served: as now"
        ),
        pytest.param(
            replace(FULL, now=1.049), 0.1, NEEDED_FULL, id="a little more comes than is given: as now"
        ),
        pytest.param(replace(FULL, now=1.05), 0.2, OF_SHORT, id="it falls short anyway: most of now"),
        pytest.param(
            replace(FULL, now=1.05), 0.19, 1.0, id="it falls short, and stalls spoil little: all of now"
        ),
        pytest.param(
            replace(FULL, now=1.05), 0.7, OF_HANGING, id="it falls short, and half of the answers hang"
        ),
        pytest.param(replace(FULL, now=1.05), 0.69, OF_SHORT, id="it falls short, and fewer hang"),
        pytest.param(FULL, 9.0, NEEDED_FULL, id="stalls excuse no queue where others still come"),
        pytest.param(replace(SERVED, is_steady=True), 9.0, NEEDED, id="steady and not full: as it is"),
        pytest.param(SAME_CLIENTS, 0.69, ENOUGH, id="the same clients adapt"),
        pytest.param(SAME_CLIENTS, 0.7, 0.0, id="the same clients, half of whose answers hang"),
    ],
)
def test_a_cap_must_serve(offered: Offered, stalls: float, least: float) -> None:
    assert offered.least(stalls, spread=1.0) == pytest.approx(least)


def test_outputs_of_one_length_take_a_wider_margin() -> None:
    assert SERVED.least(0.1, spread=0.0) == pytest.approx(NEEDED + WAVES_MARGIN)
    assert SERVED.least(0.1, spread=0.5) == pytest.approx(NEEDED + WAVES_MARGIN / 2)
    assert replace(FULL, now=1.05).least(0.1, spread=0.0) == pytest.approx(OF_SHORT + WAVES_MARGIN)
    assert replace(FULL, now=1.05).least(0.1, spread=0.5) == 1.0


@pytest.mark.parametrize(
    ("queue", "steady", "full", "grows"),
    [
        pytest.param(Queue(40, 10, 0), True, True, False, id="as many, and they wait"),
        pytest.param(Queue(41, 9.9, 5), True, False, False, id="a few more, hardly any wait"),
        pytest.param(Queue(40, 10, 5.1), False, True, True, id="more come"),
        pytest.param(Queue(40, 10, -5.1), False, True, False, id="a queue is worked off"),
        pytest.param(Queue(8, 0, 2), True, False, False, id="two of a handful"),
        pytest.param(Queue(8, 0, 2.1), False, False, True, id="over two of a handful"),
        pytest.param(Queue(40, 10, 1, is_from_saved_pages=True), True, True, False, id="two pages, one more"),
        pytest.param(
            Queue(40, 10, 1.1, is_from_saved_pages=True), False, True, True, id="two pages, over one more"
        ),
        pytest.param(Queue(40, 10, inf), False, True, True, id="a replica does not report it"),
    ],
)
def test_a_queue_is(queue: Queue, *, steady: bool, full: bool, grows: bool) -> None:
    assert (queue.is_steady, queue.is_full, queue.grows) == (steady, full, grows)


@pytest.mark.parametrize(
    ("peaks", "expected"),
    [
        ({}, None),
        ({"a": Measured(900.0, NOW), "b": Measured(700.0, NOW)}, 800.0),
        ({"a": Measured(900.0, NOW), "b": Missing(Absence.NO_SERIES)}, 900.0),
        ({"a": Missing(Absence.SOURCE_UNAVAILABLE), "b": Stale(NOW), "c": Unsupported()}, None),
        ({"a": Measured(nan, NOW), "b": Measured(inf, NOW), "c": Measured(-5.0, NOW)}, None),
    ],
    ids=["nobody looked", "mean of the replicas", "one is not known", "none is known", "no numbers"],
)
def test_history_counts_as_far_as_it_goes(peaks: dict[str, object], expected: float | None) -> None:
    assert peak_of(peaks) == expected  # type: ignore[arg-type]
