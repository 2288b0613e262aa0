"""Readings that are all there or named as missing, and what histograms say of what they counted."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import (
    AMBIGUOUS,
    LENGTH_BOUNDS,
    NO_SERIES,
    NOT_A_NUMBER,
    SOURCE_UNAVAILABLE,
    STALE,
    THRASHING,
    UNSUPPORTED,
    Nothing,
    a_histogram,
    an_observation,
    with_number,
    without,
)
from kvmedic.model.evidence import (
    HELD,
    Absence,
    Histogram,
    Inconclusive,
    Measured,
    Missing,
    PodReadings,
    Pool,
    Signal,
)
from kvmedic.model.readings import (
    NAMED_GAPS,
    count_above,
    gather_values,
    histogram,
    is_concentrated,
    lower_bound,
    mean_below,
    merge_histograms,
    moments,
    number_or_none,
    pools,
    quantile,
    representatives,
)
from kvmedic.model.reasons import Reason

NOTHING_FOUND = Missing(Absence.NOTHING_FOUND)
ASKED = frozenset({Signal.RUNNING_MEAN, Signal.E2E_SECONDS})
GAPS = [
    pytest.param(NO_SERIES, Reason.METRICS_MISSING, "no series", id="no series"),
    pytest.param(NOT_A_NUMBER, Reason.METRICS_MISSING, "NaN", id="not a number"),
    pytest.param(SOURCE_UNAVAILABLE, Reason.SOURCE_UNAVAILABLE, "did not answer", id="source unavailable"),
    pytest.param(AMBIGUOUS, Reason.METRICS_AMBIGUOUS, "contradict", id="ambiguous"),
    pytest.param(STALE, Reason.METRICS_STALE, "300 s old", id="stale"),
    pytest.param(UNSUPPORTED, Reason.SIGNAL_UNSUPPORTED, "does not export", id="unsupported"),
]


def test_complete_readings_come_by_pod_and_signal() -> None:
    found = gather_values(an_observation(THRASHING, THRASHING), ASKED)

    assert not isinstance(found, Inconclusive)
    assert list(found) == ["llm-0", "llm-1"]
    assert found["llm-1"].numbers == {Signal.RUNNING_MEAN: 22.8}
    assert found["llm-1"].histograms[Signal.E2E_SECONDS].count == THRASHING.finished


@pytest.mark.parametrize("signal", sorted(ASKED))
@pytest.mark.parametrize(("why", "reason", "text"), GAPS)
def test_a_gap_names_the_replica_the_signal_and_why(
    signal: Signal, why: Nothing, reason: Reason, text: str
) -> None:
    found = gather_values(an_observation(THRASHING, without(THRASHING.readings(), signal, why)), ASKED)

    assert isinstance(found, Inconclusive)
    assert found.reason is reason
    assert found.message.startswith(f"llm-1: {signal}: ")
    assert text in found.message


@pytest.mark.parametrize("signal", sorted(HELD))
def test_a_replica_that_was_not_seen_throughout_the_hold_is_waited_for(signal: Signal) -> None:
    young = without(THRASHING.readings(), signal, NOTHING_FOUND)
    unseen = without(young, Signal.PREEMPTIONS, NOTHING_FOUND)

    for readings, text in ((young, "the last 60 s"), (unseen, "does not export it")):
        each = gather_values(an_observation(THRASHING, readings, hold_seconds=60), frozenset({signal}))
        assert isinstance(each, Inconclusive)
        assert each.reason is Reason.METRICS_MISSING
        assert text in each.message


@pytest.mark.parametrize(
    ("signal", "value", "is_possible"),
    [
        (Signal.KV_CACHE_USAGE_MEAN, -0.01, False),
        (Signal.KV_CACHE_USAGE_MEAN, 0.0, True),
        (Signal.KV_CACHE_USAGE_MEAN, 1.0000001, True),
        (Signal.KV_CACHE_USAGE_MAX, 1.01, False),
        (Signal.KV_CACHE_USAGE_DEVIATION, 97.0, False),
        (Signal.RUNNING_MEAN, -1.0, False),
        (Signal.WAITING_MEAN, -0.5, False),
        (Signal.GENERATED_TOKENS, -1.0, False),
        (Signal.REQUESTS_FINISHED, -3.0, False),
        (Signal.REQUESTS_IN_FLIGHT_CHANGE, -3.0, True),
        (Signal.STARTED_SECONDS, 1.79e9, True),
        (Signal.STARTED_SECONDS, 1.79e12, False),
    ],
)
def test_a_number_that_no_engine_has_is_ambiguous(signal: Signal, value: float, *, is_possible: bool) -> None:
    odd = with_number(THRASHING.readings(), signal, value)

    found = gather_values(an_observation(THRASHING, odd), frozenset({signal}))

    assert found.reason is Reason.METRICS_AMBIGUOUS if isinstance(found, Inconclusive) else is_possible
    assert (number_or_none(odd, signal) == value) is is_possible


def test_a_histogram_with_a_negative_sum_is_ambiguous() -> None:
    readings = THRASHING.readings()
    gaps = readings.histograms[Signal.E2E_SECONDS]
    assert isinstance(gaps, Measured)
    odd = Measured(replace(gaps.value, total=-1.0), gaps.at)

    found = replace(readings, histograms={Signal.E2E_SECONDS: odd}).histogram(Signal.E2E_SECONDS)

    assert found == AMBIGUOUS


def test_a_fleet_without_replicas_says_so() -> None:
    found = gather_values(an_observation(), ASKED)

    assert isinstance(found, Inconclusive)
    assert found.reason is Reason.NO_REPLICAS


@pytest.mark.parametrize("silent", [NAMED_GAPS, NAMED_GAPS + 1, NAMED_GAPS + 40])
def test_a_large_fleet_of_gaps_stays_one_short_line(silent: int) -> None:
    silenced = without(THRASHING.readings(), Signal.RUNNING_MEAN, NO_SERIES)

    found = gather_values(an_observation(*[silenced] * silent), frozenset({Signal.RUNNING_MEAN}))

    assert isinstance(found, Inconclusive)
    assert found.message.startswith("llm-0, llm-1, llm-")
    assert found.message.count("no series") == 1
    assert found.message.count("llm-") == NAMED_GAPS
    assert (f"and {silent - NAMED_GAPS} more" in found.message) is (silent > NAMED_GAPS)


def test_pools_come_by_pod() -> None:
    assert pools(an_observation(THRASHING)) == {"llm-0": Pool(149, 32)}


@pytest.mark.parametrize(("why", "reason", "text"), GAPS)
def test_an_unknown_pool_is_named(why: Nothing, reason: Reason, text: str) -> None:
    readings = THRASHING.readings()
    unknown = PodReadings(readings.numbers, readings.histograms, why)

    found = pools(an_observation(THRASHING, unknown))

    assert isinstance(found, Inconclusive)
    assert found.reason is reason
    assert found.message.startswith("llm-1: KV-cache pool: ")
    assert text in found.message


def test_what_a_judgement_can_do_without_is_none_where_not_measured() -> None:
    readings = THRASHING.readings()

    assert number_or_none(readings, Signal.RUNNING_MEAN) == 22.8
    assert number_or_none(without(readings, Signal.RUNNING_MEAN, STALE), Signal.RUNNING_MEAN) is None
    assert histogram(readings, Signal.E2E_SECONDS) is not None
    assert histogram(without(readings, Signal.E2E_SECONDS, STALE), Signal.E2E_SECONDS) is None


FOUR = Histogram((10.0, 20.0, 50.0), (1.0, 1.0, 2.0, 0.0), 90.0)
WITH_TOP = Histogram((10.0, 20.0), (1.0, 0.0, 1.0), 60.0)


def test_histograms_add_up_bucket_by_bucket() -> None:
    assert merge_histograms([FOUR, FOUR]) == Histogram((10.0, 20.0, 50.0), (2.0, 2.0, 4.0, 0.0), 180.0)


@pytest.mark.parametrize("histograms", [[], [FOUR, WITH_TOP]], ids=["none", "other bounds"])
def test_histograms_of_different_bounds_are_not_added(histograms: list[Histogram]) -> None:
    with pytest.raises(ValueError, match="same bounds"):
        merge_histograms(histograms)


@pytest.mark.parametrize(
    ("share", "value"),
    [(0.125, 5.0), (0.25, 10.0), (0.375, 15.0), (0.5, 20.0), (0.75, 35.0), (1.0, 50.0)],
)
def test_a_quantile_lies_where_values_spread_evenly_put_it(share: float, value: float) -> None:
    assert quantile(FOUR, share) == pytest.approx(value)


def test_a_quantile_over_the_top_bound_is_infinite() -> None:
    assert quantile(WITH_TOP, 0.5) == 10.0
    assert quantile(WITH_TOP, 0.51) == inf


def test_fractions_of_counts_do_not_push_the_last_quantile_over_the_top() -> None:
    thirds = Histogram((1.0, 2.0), (1 / 3, 0.1 + 0.2, 0.0), 1.0)

    assert quantile(thirds, 1.0) == pytest.approx(2.0)


def test_an_empty_histogram_has_no_quantiles_and_no_moments() -> None:
    empty = Histogram((1.0,), (0.0, 0.0), 0.0)

    with pytest.raises(ValueError, match="no quantiles"):
        quantile(empty, 0.5)
    with pytest.raises(ValueError, match="no moments"):
        moments(empty)


def test_counted_zeros_have_no_moments() -> None:
    with pytest.raises(ValueError, match="no moments"):
        moments(Histogram((1.0,), (5.0, 0.0), 0.0))


@pytest.mark.parametrize(
    ("limit", "count"),
    [(0, 4.0), (10, 3.0), (15, 2.5), (20, 2.0), (35, 1.0), (50, 0.0), (60, 0.0)],
)
def test_what_lies_above_a_limit_is_counted_in_parts_of_a_bucket(limit: float, count: float) -> None:
    assert count_above(FOUR, limit) == pytest.approx(count)


def test_the_whole_top_bucket_counts_as_above_any_limit() -> None:
    assert count_above(WITH_TOP, 1000) == 1.0


def test_the_mean_below_a_bound_leaves_the_midpoints_above_out() -> None:
    assert mean_below(FOUR, 20) == pytest.approx((90 - 2 * 35) / 2)
    assert mean_below(FOUR, 50) == pytest.approx(90 / 4)
    assert mean_below(WITH_TOP, 20) == pytest.approx(60 - (20 + 50) / 2)


def test_the_mean_below_a_bound_is_zero_where_nothing_is_there_or_midpoints_exceed_the_total() -> None:
    assert mean_below(Histogram((1.0,), (0.0, 1.0), 2.0), 1.0) == 0.0
    assert mean_below(Histogram((1.0,), (1.0, 1.0), 1.1), 1.0) == 0.0


def test_moments_keep_the_exact_mean_and_take_values_as_spread_evenly() -> None:
    found = moments(Histogram((10.0, 20.0), (0.0, 1.0, 0.0), 15.0))

    assert found.first == 15.0
    assert found.second == pytest.approx(15**2 + 10**2 / 12)
    assert found.third == pytest.approx((20**4 - 10**4) / 40)


def test_moments_are_rescaled_to_the_exact_mean() -> None:
    even, shifted = (moments(Histogram((10.0, 20.0), (0.0, 1.0, 0.0), total)) for total in (15.0, 18.0))

    assert shifted.first == 18.0
    assert shifted.second == pytest.approx(even.second * 1.2**2)
    assert shifted.third == pytest.approx(even.third * 1.2**3)


def test_the_top_bucket_reaches_two_and_a_half_times_its_bound() -> None:
    found = moments(Histogram((2000.0,), (0.0, 1.0), 3500.0))

    assert found.second == pytest.approx(3500**2 + 3000**2 / 12)


@given(st.dictionaries(st.integers(1, 4999), st.integers(1, 50), min_size=1))
def test_moments_never_contradict_each_other(values: dict[float, float]) -> None:
    found = moments(a_histogram(LENGTH_BOUNDS, values))

    assert found.second >= found.first**2 * (1 - 1e-9)
    assert found.third * found.first >= found.second**2 * (1 - 1e-9)


@given(st.dictionaries(st.integers(1, 4999), st.integers(1, 50), min_size=1), st.floats(0.01, 1))
def test_what_lies_above_a_quantile_is_the_rest(values: dict[float, float], share: float) -> None:
    counted = a_histogram(LENGTH_BOUNDS, values)

    assert count_above(counted, quantile(counted, share)) == pytest.approx(
        (1 - share) * counted.count, abs=1e-6
    )


@pytest.mark.parametrize(
    ("share", "buckets", "held"),
    [(0.5, 1, True), (0.51, 1, False), (0.75, 2, True), (0.76, 2, False), (1.0, 3, True)],
)
def test_concentration_looks_at_adjacent_buckets(share: float, buckets: int, *, held: bool) -> None:
    assert is_concentrated(FOUR, share, buckets) is held


@pytest.mark.parametrize(
    ("share", "expected"),
    [(0.0, 1.0), (0.049, 1.0), (0.05, 10.0), (0.5, 10.0), (0.94, 10.0), (0.95, 100.0), (1.0, 100.0)],
)
def test_the_lower_bound_is_that_of_the_bucket_in_which_the_share_is_passed(
    share: float, expected: float
) -> None:
    counted = Histogram((1.0, 10.0, 100.0), (0.0, 5.0, 90.0, 5.0), 4000.0)

    assert lower_bound(counted, share) == expected


def test_an_empty_histogram_has_no_lower_bound() -> None:
    with pytest.raises(ValueError, match="empty"):
        lower_bound(Histogram((1.0,), (0.0, 0.0), 0.0), 0.05)


@given(
    counts=st.lists(st.floats(0, 1000), min_size=len(LENGTH_BOUNDS) + 1, max_size=len(LENGTH_BOUNDS) + 1),
    number=st.integers(1, 60),
)
def test_representatives_rise_and_have_the_exact_mean(counts: list[float], number: int) -> None:
    middle = sum(count * bound for count, bound in zip(counts, (*LENGTH_BOUNDS, 1e5), strict=True)) * 0.8
    histogram = Histogram(LENGTH_BOUNDS, tuple(counts), middle)
    if histogram.count < 1 or middle < 1:
        return

    found = representatives(histogram, number)

    assert len(found) == number
    assert list(found) == sorted(found)
    assert sum(found) / number == pytest.approx(histogram.mean)


def test_representatives_lie_where_values_spread_evenly_put_them() -> None:
    even = Histogram((10.0, 20.0), (2.0, 2.0, 0.0), 40.0)

    assert representatives(even, 4) == pytest.approx((2.5, 7.5, 12.5, 17.5))


def test_an_empty_histogram_has_no_representatives() -> None:
    with pytest.raises(ValueError, match="no representatives"):
        representatives(Histogram((1.0,), (0.0, 0.0), 0.0), 3)
