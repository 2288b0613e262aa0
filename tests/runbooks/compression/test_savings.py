"""What a method brought, by figures with and without it."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvmedic.model.compression import Figures
from kvmedic.runbooks.compression.savings import Worth, weigh_figures

GIB = float(1 << 30)
BEFORE = Figures(
    requests_per_second=10.0,
    tokens_per_second=2000.0,
    preemptions_per_request=1.0,
    kv_cache_usage=0.9,
    device_memory=70 * GIB,
    e2e_p95=20.0,
    requests_in_flight=40.0,
    replicas=2.0,
)


SHORTER = {
    "tokens_per_second": 1750.0,
    "device_memory": 74 * GIB,
    "e2e_p95": 17.5,
    "kv_cache_usage": 0.8,
    "preemptions_per_request": 0.8,
}
"""Answers are an eighth shorter, and a device's memory is a little fuller."""
WIDER = {"replicas": 3.0, "kv_cache_usage": 0.62, "preemptions_per_request": 0.9, "requests_in_flight": 60.0}
"""Half as many replicas again, and the same requests for all of them."""
HARDLY = {"kv_cache_usage": 0.72}
"""As much less of the pool as each replica has fewer requests."""


@pytest.mark.parametrize(
    ("changed", "worth"),
    [
        ({}, Worth.NOTHING),
        ({"kv_cache_usage": 0.5}, Worth.SAVES),
        ({"preemptions_per_request": 0.2}, Worth.SAVES),
        ({"preemptions_per_request": 0.8}, Worth.NOTHING),
        ({"kv_cache_usage": 0.5, "tokens_per_second": 1500.0}, Worth.COSTS_TIME),
        ({"tokens_per_second": 1500.0, "device_memory": 76 * GIB}, Worth.COSTS_MEMORY),
        ({"device_memory": 76 * GIB}, Worth.NOTHING),
        ({"tokens_per_second": 1500.0}, Worth.COSTS_TIME),
        ({"e2e_p95": 30.0}, Worth.COSTS_TIME),
        ({"requests_per_second": 14.0, "kv_cache_usage": 0.5}, Worth.UNKNOWN),
        ({"requests_per_second": 7.0, "kv_cache_usage": 0.5}, Worth.UNKNOWN),
        ({"requests_per_second": 8.0, "tokens_per_second": 1600.0, "kv_cache_usage": 0.72}, Worth.NOTHING),
        ({"requests_per_second": 8.0, "tokens_per_second": 1600.0, "kv_cache_usage": 0.6}, Worth.SAVES),
        ({"requests_per_second": 8.0, "tokens_per_second": 1400.0}, Worth.COSTS_TIME),
        (
            {"requests_per_second": 8.0, "tokens_per_second": 1600.0, "preemptions_per_request": 0.1},
            Worth.NOTHING,
        ),
        ({"requests_per_second": 12.0, "kv_cache_usage": 0.8}, Worth.SAVES),
        ({"requests_per_second": 0.0}, Worth.UNKNOWN),
        ({"kv_cache_usage": None}, Worth.UNKNOWN),
        ({"device_memory": None, "tokens_per_second": 1500.0}, Worth.COSTS_TIME),
        ({"e2e_p95": None, "kv_cache_usage": 0.5}, Worth.SAVES),
        (SHORTER, Worth.NOTHING),
        ({**SHORTER, "kv_cache_usage": 0.5}, Worth.SAVES),
        ({"tokens_per_second": 1500.0, "device_memory": 76 * GIB, "kv_cache_usage": 0.8}, Worth.COSTS_TIME),
        ({"tokens_per_second": 1750.0, "device_memory": 76 * GIB, "e2e_p95": 17.0}, Worth.NOTHING),
        (
            {"tokens_per_second": 1500.0, "device_memory": 76 * GIB, "requests_in_flight": 30.0},
            Worth.NOTHING,
        ),
        (
            {"tokens_per_second": 1500.0, "device_memory": 76 * GIB, "requests_in_flight": 60.0},
            Worth.COSTS_MEMORY,
        ),
        (WIDER, Worth.UNKNOWN),
        ({**WIDER, "requests_per_second": 15.0, "tokens_per_second": 3000.0}, Worth.SAVES),
        ({**WIDER, "requests_per_second": 12.0, "tokens_per_second": 2400.0}, Worth.SAVES),
        ({**WIDER, **HARDLY, "requests_per_second": 12.0, "tokens_per_second": 2400.0}, Worth.NOTHING),
        ({**WIDER, "requests_per_second": 15.0, "tokens_per_second": 2500.0}, Worth.COSTS_TIME),
        ({"replicas": 4.0, "requests_per_second": 5.0, "kv_cache_usage": 0.2}, Worth.UNKNOWN),
    ],
)
def test_what_moved_says_what_it_brought(changed: dict[str, float | None], worth: Worth) -> None:
    assert weigh_figures(BEFORE, replace(BEFORE, **changed)).worth is worth  # type: ignore[arg-type]


def test_device_memory_that_stays_is_never_a_reproach() -> None:
    flat = replace(BEFORE, kv_cache_usage=0.4)

    assert weigh_figures(BEFORE, flat).worth is Worth.SAVES


def test_preemptions_that_hardly_were_any_cannot_be_relieved() -> None:
    calm = replace(BEFORE, preemptions_per_request=0.01)

    assert weigh_figures(calm, replace(calm, preemptions_per_request=0.0)).worth is Worth.NOTHING


def test_the_figures_are_shown_with_what_they_were() -> None:
    message = weigh_figures(BEFORE, replace(BEFORE, kv_cache_usage=0.5)).message

    assert "kv cache usage 0.9 -> 0.5" in message
    assert "tokens per second 2000 -> 2000" in message


def test_what_is_missing_is_named() -> None:
    assert (
        weigh_figures(replace(BEFORE, kv_cache_usage=None), BEFORE).message
        == "kv cache usage before is not known"
    )
    assert (
        weigh_figures(BEFORE, replace(BEFORE, tokens_per_second=None)).message
        == "tokens per second now is not known"
    )


NUMBERS = st.none() | st.floats(0, 1e6)


NAMES = [field.name for field in fields(Figures)]
ANY = st.lists(NUMBERS, min_size=len(NAMES), max_size=len(NAMES))


@given(ANY, ANY)
def test_no_figures_are_beyond_judgement(before: list[float | None], now: list[float | None]) -> None:
    one, two = (Figures(**dict(zip(NAMES, each, strict=True))) for each in (before, now))

    found = weigh_figures(one, two)

    assert found.message
    assert found.worth is not Worth.SAVES or two.kv_cache_usage is not None
