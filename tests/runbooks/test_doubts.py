from dataclasses import replace
from datetime import timedelta

import pytest

from builders import (
    CALM,
    LENGTH_BOUNDS,
    NOW,
    THRASHING,
    UNSUPPORTED,
    Replica,
    a_histogram,
    an_evidence,
    spread,
    with_histogram,
    with_number,
    without,
)
from kvmedic.model.compression import Compacted, TokenEviction
from kvmedic.model.evidence import Histogram, Inconclusive, PodReadings, Pool, Signal
from kvmedic.model.reasons import Reason
from kvmedic.runbooks.preemption.pressure import (
    FEWEST_REQUESTS,
    Case,
    case_of,
    doubt_of,
    misfit_of,
    seen_of,
    size_fleet,
)


def doubt(*replicas: Replica | PodReadings, burn: Replica | PodReadings | None = None) -> Inconclusive | None:
    """Return the doubt about a fleet whose first replica is pressured."""
    evidence = an_evidence(burn or replicas[0], *replicas[1:], sizing=replicas)
    seen = seen_of(evidence, ["llm-0"])
    assert not isinstance(seen, Inconclusive)
    found = doubt_of(seen)
    return misfit_of(seen, case_of(seen)) if found is None else found


def test_a_thrashing_fleet_is_beyond_doubt() -> None:
    assert doubt(THRASHING, THRASHING, CALM) is None


@pytest.mark.parametrize(
    ("models", "doubtful"),
    [
        pytest.param([("a",), ("a",)], False, id="one model"),
        pytest.param([("a",), ("b",)], True, id="a model each"),
        pytest.param([("a", "b"), ("a", "b")], True, id="two models on each"),
        pytest.param([(), ("a",)], False, id="one does not tell"),
    ],
)
def test_several_models_are_named(models: list[tuple[str, ...]], *, doubtful: bool) -> None:
    found = doubt(*[replace(THRASHING, models=names) for names in models])

    assert (found is not None and found.reason is Reason.REPLICAS_DIFFER) is doubtful
    assert found is None or "a, b" in found.message


@pytest.mark.parametrize(
    ("pool", "doubtful"),
    [
        pytest.param(Pool(1000, 32), False, id="same"),
        pytest.param(Pool(951, 32), False, id="nearly the same"),
        pytest.param(Pool(950, 32), False, id="5 % less"),
        pytest.param(Pool(949, 32), True, id="over 5 % less"),
        pytest.param(Pool(1000, 16), True, id="other blocks"),
        pytest.param(Pool(1000, 32, "fp8"), True, id="other type"),
    ],
)
def test_replicas_with_other_pools_are_named(pool: Pool, *, doubtful: bool) -> None:
    large = replace(THRASHING, pool=Pool(1000, 32), running_mean=150, running_max=200)

    found = doubt(large, replace(large, pool=pool))

    assert (found is not None) is doubtful
    assert found is None or (found.reason is Reason.REPLICAS_DIFFER and "llm-1" in found.message)


def test_replicas_with_other_numbers_of_engines_differ() -> None:
    found = doubt(THRASHING, replace(THRASHING, engines=2))

    assert found.reason is Reason.REPLICAS_DIFFER


@pytest.mark.parametrize("signal", [Signal.PROMPT_LENGTH, Signal.OUTPUT_LENGTH, Signal.E2E_SECONDS])
def test_replicas_that_count_in_other_buckets_differ(signal: Signal) -> None:
    other = Histogram((1.0, 7000.0), (0.0, 960.0, 0.0), 96000.0)

    found = doubt(THRASHING, with_histogram(THRASHING.readings(), signal, other))

    assert found.reason is Reason.REPLICAS_DIFFER


def test_pressured_replicas_that_count_gaps_in_other_buckets_differ() -> None:
    other = Histogram((1.0,), (100000.0, 400.0), 4000.0)
    evidence = an_evidence(
        THRASHING,
        with_histogram(THRASHING.readings(), Signal.INTER_TOKEN_SECONDS, other),
        sizing=[THRASHING, THRASHING],
    )
    seen = seen_of(evidence, ["llm-0", "llm-1"])
    assert not isinstance(seen, Inconclusive)

    found = doubt_of(seen)

    assert found.reason is Reason.REPLICAS_DIFFER


@pytest.mark.parametrize(
    ("each", "doubtful"),
    [(FEWEST_REQUESTS / 2 - 1, True), (FEWEST_REQUESTS / 2, False), (FEWEST_REQUESTS / 2 + 1, False)],
    ids=["below", "at", "above"],
)
def test_too_few_requests_are_counted_over_the_whole_fleet(each: float, *, doubtful: bool) -> None:
    few = replace(THRASHING, finished=each, preemptions=100, stalls=10)

    found = doubt(few, few, burn=THRASHING)

    assert (found is not None) is doubtful
    assert found is None or (found.reason is Reason.TOO_FEW_REQUESTS and "98 requests" in found.message)


@pytest.mark.parametrize("signal", [Signal.PROMPT_LENGTH, Signal.OUTPUT_LENGTH])
def test_requests_without_a_length_do_not_count(signal: Signal) -> None:
    empty = a_histogram(LENGTH_BOUNDS, {0: 960})

    found = doubt(with_histogram(THRASHING.readings(), signal, empty), burn=THRASHING)

    assert found.message.startswith("0 requests")


def test_pressure_without_a_generated_token_tells_nothing() -> None:
    found = doubt(THRASHING, burn=with_number(THRASHING.readings(), Signal.GENERATED_TOKENS, 0))

    assert found.reason is Reason.TOO_FEW_REQUESTS
    assert "no token was generated" in found.message


def test_pressure_without_a_gap_between_tokens_tells_nothing() -> None:
    none = a_histogram((1.0,), {})

    found = doubt(THRASHING, burn=with_histogram(THRASHING.readings(), Signal.INTER_TOKEN_SECONDS, none))

    assert found.reason is Reason.TOO_FEW_REQUESTS


def test_an_empty_residence_histogram_tells_nothing() -> None:
    none = a_histogram((1.0,), {})

    found = doubt(with_histogram(THRASHING.readings(), Signal.E2E_SECONDS, none))

    assert found.reason is Reason.TOO_FEW_REQUESTS


@pytest.mark.parametrize(
    ("bounds", "residence", "doubtful"),
    [
        pytest.param((1799.0, 1800.0), 1799.5, False, id="shorter"),
        pytest.param((1800.0, 1800.0 / 0.99), 1801, False, id="as long, by the quantile"),
        pytest.param((1800.0, 1900.0), 1850, True, id="longer"),
        pytest.param((1800.0, 1801.0), 9999, True, id="above the top bucket"),
    ],
)
def test_a_window_shorter_than_the_residence_time_does_not_do(
    bounds: tuple[float, ...], residence: float, *, doubtful: bool
) -> None:
    if not doubtful and bounds[0] == 1800.0:
        stays = Histogram((1800.0,), (960.0, 0.0), 960 * 1000.0)
    else:
        stays = a_histogram(bounds, {residence: 960})

    found = doubt(with_histogram(THRASHING.readings(), Signal.E2E_SECONDS, stays))

    assert (found is not None) is doubtful
    assert found is None or found.reason is Reason.TOO_FEW_REQUESTS


def test_a_residence_above_the_top_bucket_is_said_so() -> None:
    stays = a_histogram((10.0,), {500: 960})

    found = doubt(with_histogram(THRASHING.readings(), Signal.E2E_SECONDS, stays))

    assert "up to which this engine counts" in found.message


@pytest.mark.parametrize(
    ("age", "doubtful"),
    [(14.9, True), (14.95, False), (15, False)],
    ids=["below the p99", "at the p99: 11 s lies in the bucket from 10 to 15 s", "above the p99"],
)
def test_a_replica_younger_than_the_residence_time_is_named(age: float, *, doubtful: bool) -> None:
    found = doubt(THRASHING, replace(THRASHING, started_at=NOW - timedelta(seconds=age)))

    assert (found is not None) is doubtful
    assert found is None or (
        found.reason is Reason.TOO_FEW_REQUESTS and "llm-1 started 15 s" in found.message
    )


def test_a_replica_that_does_not_tell_its_start_counts_as_old_enough() -> None:
    silent = without(THRASHING.readings(), Signal.STARTED_SECONDS, UNSUPPORTED)

    assert doubt(silent) is None


def filled(ratio: float) -> tuple[PodReadings, float]:
    """Return a replica whose sequences take so many times the blocks that lengths predict, and those."""
    seen = seen_of(an_evidence(THRASHING), ["llm-0"])
    assert not isinstance(seen, Inconclusive)
    predicted = case_of(seen).sequence.mean_blocks
    running = THRASHING.pool.blocks * 0.5 / (predicted * ratio)
    readings = with_number(THRASHING.readings(), Signal.KV_CACHE_USAGE_MEAN, 0.5)
    return with_number(readings, Signal.RUNNING_MEAN, running), predicted


@pytest.mark.parametrize(
    ("ratio", "doubtful"), [(0.59, True), (0.61, False), (1.0, False), (1.29, False), (1.31, True)]
)
def test_a_pool_that_is_not_filled_by_the_lengths_is_no_ground_for_a_cap(
    ratio: float, *, doubtful: bool
) -> None:
    readings, _ = filled(ratio)

    found = doubt(readings)

    assert (found is not None) is doubtful
    assert found is None or found.reason is Reason.LENGTHS_MISFIT


@pytest.mark.parametrize(
    ("ratio", "budget", "doubtful"),
    [(0.3, None, False), (0.59, None, False), (0.7, None, False), (0.3, 10_000, True)],
)
def test_where_tokens_are_evicted_a_sequence_may_take_far_less_than_its_length(
    ratio: float, budget: int | None, *, doubtful: bool
) -> None:
    readings, predicted = filled(ratio)
    evicts = TokenEviction("TriAttention", Compacted(), budget)

    found = size_fleet(replace(an_evidence(readings), evicts=evicts), ["llm-0"])

    assert isinstance(found, Inconclusive) is doubtful
    if isinstance(found, Case):
        assert found.evicted_by == "TriAttention"
        assert found.spread == 1.0
        assert found.sequence.mean_blocks <= predicted


@pytest.mark.parametrize("ratio", [0.76, 0.9, 1.29])
def test_a_method_that_takes_nothing_from_sequences_counts_as_off(ratio: float) -> None:
    readings, _ = filled(ratio)
    evidence = an_evidence(readings)

    told = size_fleet(replace(evidence, evicts=TokenEviction("TriAttention", Compacted(), 64)), ["llm-0"])

    assert told == size_fleet(evidence, ["llm-0"])
    assert isinstance(told, Case)


def test_the_first_doubt_is_told() -> None:
    found = doubt(replace(THRASHING, models=("a", "b"), finished=10, preemptions=1, stalls=0))

    assert found.reason is Reason.REPLICAS_DIFFER


def test_shapes_of_many_lengths_are_beyond_doubt() -> None:
    assert doubt(replace(THRASHING, outputs=spread(190, variation=0.75))) is None
