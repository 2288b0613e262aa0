"""What an engine makes of the text after an option."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from kvmedic.core.engine import Kind, Option, Scalar

_SUFFIXED = re.compile(r"(?P<number>\d+(?P<fraction>\.\d+)?)(?P<suffix>[kKmMgGtT])")
_DECIMAL = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
"""vLLM 0.32, `human_readable_int` in utils/argparse_utils.py."""


@dataclass(frozen=True, slots=True)
class Malformed:
    """The engine does not accept a text; why, in its own words where these are known."""

    message: str


LARGEST = 2**63 - 1
"""The largest whole number that an engine can hold: its tensors and its allocator count in int64."""
_LONGEST = 100
"""Characters of a value that a message quotes."""


def _quoted(text: str) -> str:
    return repr(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…")


def read_value(option: Option, text: str) -> Scalar | Malformed:
    """Return the value that an option takes from a text."""
    if option.nullable and text in {"", "None"}:
        return None
    value = _typed(option.kind, text)
    if option.choices and not isinstance(value, Malformed) and str(value) not in option.choices:
        listed = ", ".join(repr(choice) for choice in option.choices)
        return Malformed(f"invalid choice: {_quoted(text)} (choose from {listed})")
    return value


def _typed(kind: Kind, text: str) -> Scalar | Malformed:
    match kind:
        case Kind.INT:
            return _integer(text, "int")
        case Kind.HUMAN_INT:
            return _human(text)
        case Kind.HUMAN_INT_OR_AUTO:
            return -1 if text.strip() == "-1" or text.strip().lower() == "auto" else _human(text)
        case Kind.FLOAT:
            return _decimal(text)
        case Kind.TRUTH | Kind.SWITCH | Kind.PRESENCE:
            return _truth(text)
        case Kind.TEXT | Kind.HELP:
            return text


def _integer(text: str, kind: str) -> int | Malformed:
    try:
        return _held(int(text), text)
    except ValueError:
        return Malformed(f"invalid {kind} value: {_quoted(text)}")


def _held(value: float, text: str) -> int | Malformed:
    """Return a whole number as it is, where an engine can hold it."""
    if abs(value) > LARGEST:
        return Malformed(f"{_quoted(text)} is more than an engine can hold: at most {LARGEST}")
    return int(value)


def _human(text: str) -> int | Malformed:
    match = _SUFFIXED.fullmatch(text.strip())
    if match is None:
        return _integer(text, "human_readable_int")
    number, suffix = match["number"], match["suffix"]
    if suffix in _DECIMAL:
        return _held(float(number) * _DECIMAL[suffix], text)
    if match["fraction"] is None:
        whole = _integer(number, "human_readable_int")
        return whole if isinstance(whole, Malformed) else _held(whole * _BINARY[suffix], text)
    return Malformed(
        f"Decimals are not allowed with binary suffixes like {suffix}. "
        f"Did you mean to use {number}{suffix.lower()} instead?"
    )


def _decimal(text: str) -> float | Malformed:
    try:
        value = float(text)
    except ValueError:
        return Malformed(f"invalid float value: {_quoted(text)}")
    return value if math.isfinite(value) else Malformed(f"not a finite number: {_quoted(text)}")


def _truth(text: str) -> bool | Malformed:
    if text.lower() in {"true", "false"}:
        return text.lower() == "true"
    return Malformed(f"invalid boolean value: {_quoted(text)}; expected true or false")
