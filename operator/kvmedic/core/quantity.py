"""Amounts in Kubernetes' own grammar, as `resource.Quantity` reads them: `24Gi`, `500m`, `1e3`."""

from __future__ import annotations

import re
from decimal import Decimal

QUANTITY_PATTERN = "^[0-9]+([.][0-9]+)?([EPTGMK]i|[mkMGTPE]|[eE][+-]?[0-9]+)?$"
"""Quantities without a sign (k8s.io/apimachinery/pkg/api/resource, quantity.go)."""

_QUANTITY = re.compile(QUANTITY_PATTERN)
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?")
_BINARY = {f"{prefix}i": Decimal(1024) ** power for power, prefix in enumerate("KMGTPE", start=1)}
_MOST_DIGITS = 30
"""Digits before the point that a quantity may come to; Kubernetes' own end at 2**63 - 1, which has 19."""
_MOST_COUNTED = 18
"""Digits of a count in an annotation or a variable; Python refuses to read more than 4,300."""
_DECIMAL = {"": Decimal(1), "m": Decimal("0.001")} | {
    suffix: Decimal(1000) ** power for power, suffix in enumerate("kMGTPE", start=1)
}


def parse_quantity(text: str) -> Decimal:
    """Return a quantity as a number of its base unit: `1Ki` is 1024, `500m` is 0.5.

    Raises:
        ValueError: the text is not a quantity.
    """
    if not _QUANTITY.fullmatch(text):
        raise ValueError(f"{text!r} is not a quantity: write one such as 24Gi or 500M")
    number = _NUMBER.match(text)
    digits = number.group() if number else ""
    suffix = text[len(digits) :]
    factor = _BINARY.get(suffix) or _DECIMAL.get(suffix)
    amount = Decimal(digits) * factor if factor is not None else Decimal(text)
    if amount.adjusted() > _MOST_DIGITS:
        raise ValueError(f"{text[:_MOST_DIGITS]!r}… is more than a quantity can be: at most 8Ei")
    return amount


def parse_count(text: str) -> int | None:
    """Return a text of digits as a number; None where it is anything else, or too long to be a count."""
    return int(text) if text.isdecimal() and len(text) <= _MOST_COUNTED else None


def whole_amount(value: object) -> int | None:
    """Return a manifest's amount as a whole number of its base unit, rounded down; None where it is none.

    Manifests hold amounts as text or as bare numbers.
    """
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    try:
        return int(parse_quantity(str(value).strip()))
    except ValueError:
        return None
