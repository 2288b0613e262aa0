"""Amounts of manifests as whole numbers."""

from __future__ import annotations

import pytest

from kvmedic.model.compression import whole_amount


@pytest.mark.parametrize(
    ("value", "amount"),
    [
        ("64Gi", 64 << 30),
        (" 64Gi ", 64 << 30),
        ("1.5Gi", 3 << 29),
        ("128974848", 128974848),
        (128974848, 128974848),
        ("129M", 129_000_000),
        ("129e6", 129_000_000),
        ("1500m", 1),
        ("", None),
        ("lots", None),
        ("-1Gi", None),
        (None, None),
        (True, None),
        ([], None),
    ],
)
def test_an_amount_is(value: object, amount: int | None) -> None:
    assert whole_amount(value) == amount
