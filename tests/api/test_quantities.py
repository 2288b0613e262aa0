"""Durations and quantities in Kubernetes' grammar."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvmedic.api.rules import format_duration, parse_duration
from kvmedic.model.compression import parse_quantity

DURATIONS = {
    "0s": timedelta(0),
    "80ms": timedelta(milliseconds=80),
    "90s": timedelta(seconds=90),
    "1h30m": timedelta(minutes=90),
    "1.5h": timedelta(minutes=90),
    "30m1h": timedelta(minutes=90),
    "0.001ms": timedelta(microseconds=1),
    "99999h": timedelta(hours=99999),
}


@pytest.mark.parametrize(("text", "duration"), DURATIONS.items(), ids=DURATIONS)
def test_a_duration_reads_as_go_reads_it(text: str, duration: timedelta) -> None:
    assert parse_duration(text) == duration


@pytest.mark.parametrize(
    "text",
    [
        "",
        "5",
        "m",
        "-5m",
        "+5m",
        "5 m",
        "5M",
        "1d",
        "5us",
        ".5h",
        "1.h",
        "5m\n",
        "100000h",
        "1.2345s",
        "\uff15m",
    ],
)
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="write one such as 80ms, 90s, 10m or 1h30m"):
        parse_duration(text)


@given(st.integers(min_value=0, max_value=99999 * 3_600_000))
def test_a_duration_survives_being_written(milliseconds: int) -> None:
    duration = timedelta(milliseconds=milliseconds)

    assert parse_duration(format_duration(duration)) == duration


@pytest.mark.parametrize(
    ("duration", "text"),
    [
        (timedelta(0), "0s"),
        (timedelta(milliseconds=80), "80ms"),
        (timedelta(minutes=90), "1h30m"),
        (timedelta(days=7), "168h"),
        (timedelta(microseconds=1999), "1ms"),
    ],
)
def test_the_shortest_form_is_written(duration: timedelta, text: str) -> None:
    assert format_duration(duration) == text


def test_a_negative_duration_is_never_written() -> None:
    with pytest.raises(ValueError, match="negative"):
        format_duration(timedelta(seconds=-1))


QUANTITIES = {
    "0": Decimal(0),
    "128": Decimal(128),
    "1.5": Decimal("1.5"),
    "500m": Decimal("0.5"),
    "2k": Decimal(2000),
    "24Gi": Decimal(24 * 1024**3),
    "1.5Ti": Decimal(1536 * 1024**3),
    "70G": Decimal(70 * 1000**3),
    "1e3": Decimal(1000),
    "5E": Decimal(5 * 1000**6),
    "1Ei": Decimal(1024**6),
}


@pytest.mark.parametrize(("text", "number"), QUANTITIES.items(), ids=QUANTITIES)
def test_a_quantity_reads_as_kubernetes_reads_it(text: str, number: Decimal) -> None:
    assert parse_quantity(text) == number


@pytest.mark.parametrize("text", ["", "Gi", "24 Gi", "24GiB", "-1", "1K", "1.2.3", "24gi", "1\n"])
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="write one such as 24Gi"):
        parse_quantity(text)
