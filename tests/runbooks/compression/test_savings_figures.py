"""A fleet's figures, as they are compared with those without KV compression."""

from dataclasses import replace
from datetime import timedelta
from math import isclose

import pytest

from builders import CALM, IDLE, NO_SERIES, NOW, THRASHING, an_evidence, with_histogram, without
from kvmedic.model.compression import Figures
from kvmedic.model.devices import MIB
from kvmedic.model.evidence import Histogram, Measured, Signal
from kvmedic.runbooks.compression.savings import figures_of
from worlds.compression_incidents import holding
from worlds.vitals_builder import a_device, ill


def test_figures_are_of_the_whole_fleet():
    found = figures_of(an_evidence(CALM, THRASHING))

    assert found.requests_per_second == 2 * 960 / 300
    assert found.preemptions_per_request == (48 + 1680) / (2 * 960)
    assert isclose(found.kv_cache_usage or 0.0, (0.7 + 0.99) / 2)
    assert found.tokens_per_second == 2 * CALM.generated / 300


def test_arrivals_count_what_is_in_flight_and_never_fall_below_none():
    more = an_evidence(replace(CALM, in_flight_change=300))
    drained = an_evidence(replace(IDLE, in_flight_change=-5))

    assert figures_of(more).requests_per_second == (960 + 300) / 300
    assert figures_of(drained).requests_per_second == 0


def test_one_replica_that_cannot_be_read_leaves_nothing():
    blind = without(CALM.readings(), Signal.GENERATED_TOKENS, NO_SERIES)

    assert figures_of(an_evidence(CALM, blind)) == Figures()


def test_how_usage_moves_is_that_of_the_replica_where_it_moves_most():
    moving = CALM.readings()
    numbers = {**moving.numbers, Signal.KV_CACHE_USAGE_DEVIATION: Measured(0.2, NOW)}
    evidence = an_evidence(CALM, replace(moving, numbers=numbers))
    silent = without(CALM.readings(), Signal.KV_CACHE_USAGE_DEVIATION, NO_SERIES)

    assert figures_of(evidence).kv_cache_usage_deviation == 0.2
    assert figures_of(an_evidence(CALM, silent)).kv_cache_usage_deviation is None
    assert figures_of(an_evidence(CALM, silent)).kv_cache_usage is not None


@pytest.mark.parametrize(("minutes", "known"), [(4, False), (6, True)])
def test_a_replica_that_started_inside_the_window_leaves_nothing(minutes, known):
    young = replace(CALM, started_at=NOW - timedelta(minutes=minutes))

    assert (figures_of(an_evidence(CALM, young)) != Figures()) is known


def test_end_to_end_time_is_left_out_where_a_replica_does_not_report_it_or_nobody_finished():
    silent = without(CALM.readings(), Signal.E2E_SECONDS, NO_SERIES)
    other = with_histogram(CALM.readings(), Signal.E2E_SECONDS, Histogram((1.0,), (5.0, 0.0), 2.0))

    assert figures_of(an_evidence(CALM, CALM)).e2e_p95 is not None
    assert figures_of(an_evidence(CALM, silent)).e2e_p95 is None
    assert figures_of(an_evidence(CALM, other)).e2e_p95 is None
    assert figures_of(an_evidence(IDLE)).e2e_p95 is None
    assert figures_of(an_evidence(CALM, silent)).tokens_per_second is not None


def test_end_to_end_times_above_every_bucket_are_no_figure():
    slow = with_histogram(CALM.readings(), Signal.E2E_SECONDS, Histogram((1.0,), (0.0, 960.0), 9600.0))

    assert figures_of(an_evidence(slow)).e2e_p95 is None


def test_device_memory_is_that_of_the_fullest_device():
    evidence = holding(an_evidence(CALM, CALM), gib=40)
    fuller = ill(
        evidence,
        a_device(memory_free=20 * 1024, memory_in_use=0.75),
        a_device("GPU 1", memory_free=40960, memory_in_use=0.5),
    )

    assert isclose(figures_of(evidence).device_memory or 0.0, 40 * 1024 * MIB)
    assert isclose(figures_of(fuller).device_memory or 0.0, 60 * 1024 * MIB)


def test_device_memory_is_not_known_where_one_device_does_not_report_it():
    evidence = holding(an_evidence(CALM, CALM), gib=40)

    assert figures_of(an_evidence(CALM)).device_memory is None
    assert figures_of(ill(evidence, a_device())).device_memory is None
    assert figures_of(ill(evidence)).device_memory is None
    assert figures_of(ill(evidence, a_device(memory_free=0, memory_in_use=1.0))).device_memory is None
