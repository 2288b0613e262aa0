from dataclasses import replace

import pytest

from builders import (
    AMBIGUOUS,
    NO_SERIES,
    NOT_A_NUMBER,
    SOURCE_UNAVAILABLE,
    STALE,
    THRASHING,
    UNSUPPORTED,
    Nothing,
    an_observation,
    with_number,
    without,
)
from kvmedic.model.evidence import Inconclusive, Measured, PodReadings, Pool, Signal
from kvmedic.model.readings import NAMED_GAPS, complete, histogram, number_or_none, pools
from kvmedic.model.reasons import Reason

WANTED = frozenset({Signal.RUNNING_MEAN, Signal.E2E_SECONDS})
GAPS = [
    pytest.param(NO_SERIES, Reason.METRICS_MISSING, "no series", id="no series"),
    pytest.param(NOT_A_NUMBER, Reason.METRICS_MISSING, "NaN", id="not a number"),
    pytest.param(SOURCE_UNAVAILABLE, Reason.SOURCE_UNAVAILABLE, "did not answer", id="source unavailable"),
    pytest.param(AMBIGUOUS, Reason.METRICS_AMBIGUOUS, "contradict", id="ambiguous"),
    pytest.param(STALE, Reason.METRICS_STALE, "300 s old", id="stale"),
    pytest.param(UNSUPPORTED, Reason.SIGNAL_UNSUPPORTED, "does not export", id="unsupported"),
]


def test_complete_readings_come_by_pod_and_signal() -> None:
    found = complete(an_observation(THRASHING, THRASHING), WANTED)

    assert not isinstance(found, Inconclusive)
    assert list(found) == ["llm-0", "llm-1"]
    assert found["llm-1"].numbers == {Signal.RUNNING_MEAN: 22.8}
    assert found["llm-1"].histograms[Signal.E2E_SECONDS].count == THRASHING.finished


@pytest.mark.parametrize("signal", sorted(WANTED))
@pytest.mark.parametrize(("why", "reason", "text"), GAPS)
def test_a_gap_names_the_replica_the_signal_and_why(
    signal: Signal, why: Nothing, reason: Reason, text: str
) -> None:
    found = complete(an_observation(THRASHING, without(THRASHING.readings(), signal, why)), WANTED)

    assert isinstance(found, Inconclusive)
    assert found.reason is reason
    assert found.message.startswith(f"llm-1: {signal}: ")
    assert text in found.message


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

    found = complete(an_observation(THRASHING, odd), frozenset({signal}))

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
    found = complete(an_observation(), WANTED)

    assert isinstance(found, Inconclusive)
    assert found.reason is Reason.NO_REPLICAS


@pytest.mark.parametrize("silent", [NAMED_GAPS, NAMED_GAPS + 1, NAMED_GAPS + 40])
def test_a_large_fleet_of_gaps_stays_one_short_line(silent: int) -> None:
    silenced = without(THRASHING.readings(), Signal.RUNNING_MEAN, NO_SERIES)

    found = complete(an_observation(*[silenced] * silent), frozenset({Signal.RUNNING_MEAN}))

    assert isinstance(found, Inconclusive)
    assert found.message.count("no series") == NAMED_GAPS
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
