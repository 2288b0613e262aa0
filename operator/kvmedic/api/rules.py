"""Rules of the resource, each enforced twice; and durations and quantities in Kubernetes' own grammar.

The API server evaluates a rule's CEL expression at admission; `holds` is the same condition in Python, for
a resource that was stored under an older CustomResourceDefinition and for manifests that are read without a
cluster. Bounds are rules, not OpenAPI's `minimum` or `pattern`: only a rule's message can say what to write
instead.

Durations are what Go's `time.ParseDuration` reads, without signs, without units below a millisecond and
with at most five digits before and three after the point: `80ms`, `90s`, `1.5h`, `1h30m`. Quantities are
what `resource.Quantity` reads: `24Gi`, `500m`, `1e3`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Generic, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from kvmedic.model.compression import QUANTITY_PATTERN, parse_quantity

__all__ = [
    "DURATION_LENGTH",
    "DURATION_PATTERN",
    "QUANTITY_PATTERN",
    "format_duration",
    "parse_duration",
    "parse_quantity",
]

DURATION_PATTERN = "^([0-9]{1,5}([.][0-9]{1,3})?(ms|s|m|h))+$"
"""Readable by CEL, Go and Python alike. Five digits keep every duration of `DURATION_LENGTH`
characters within the 292 years that Go's nanoseconds can hold."""

DURATION_LENGTH = 16
"""Characters of a duration, at most; the longest sensible one, `99h59m59s999ms`, has 14."""

_DURATION = re.compile(DURATION_PATTERN)
_PART = re.compile(r"(?<![0-9.])([0-9]++(?:\.[0-9]++)?)(ms|s|m|h)")
_RFC3339 = re.compile("[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(Z|[+-][0-9]{2}:[0-9]{2})")
_UNITS = {"ms": 1_000, "s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000}


@lru_cache(maxsize=256)
def parse_duration(text: str) -> timedelta:
    """Return a duration, exact to the microsecond.

    Raises:
        ValueError: the text is not a duration.
    """
    if not _DURATION.fullmatch(text):
        raise ValueError(f"{text!r} is not a duration: write one such as 80ms, 90s, 10m or 1h30m")
    microseconds = sum(Decimal(number) * _UNITS[unit] for number, unit in _PART.findall(text))
    return timedelta(microseconds=int(microseconds))


def format_duration(duration: timedelta) -> str:
    """Return a duration in its shortest form: `1h30m`, `80ms`, `0s`. Parts of a millisecond are dropped.

    Raises:
        ValueError: the duration is negative.
    """
    if duration < timedelta(0):
        raise ValueError(f"{duration} is negative: Kubernetes durations of this resource never are")
    rest = duration // timedelta(milliseconds=1)
    parts = []
    for unit in ("h", "m", "s", "ms"):
        count, rest = divmod(rest, _UNITS[unit] // 1_000)
        parts.append(f"{count}{unit}" if count else "")
    return "".join(parts) or "0s"


T = TypeVar("T")

VALIDATIONS = "x-kubernetes-validations"
"""Keyword of a structural schema that carries CEL rules (apiextensions.k8s.io/v1)."""


@dataclass(frozen=True, slots=True)
class Rule(Generic[T]):
    """One condition on a value, for the API server and for Python.

    In `Annotated` it applies to a field; in `Wire.rules` to a whole object.
    """

    cel: str
    """The condition over `self`."""
    message: str
    """What to write instead."""
    holds: Callable[[T], bool] | None
    """The same condition; None where it needs the object as it was before, which only the API server has."""
    path: str = ""
    """The field at fault, relative to the object that has the rule: `.sizing.window`."""
    forbids: bool = False
    """The field must not be there at all, or not yet."""

    def wire(self) -> dict[str, str]:
        """Return the rule as a structural schema carries it."""
        written = {"rule": self.cel, "message": self.message}
        if self.path:
            written["fieldPath"] = self.path
        return {**written, "reason": "FieldValueForbidden"} if self.forbids else written

    def check(self, value: T) -> T:
        """Return the value if the rule holds for it.

        Raises:
            PydanticCustomError: it does not.
        """
        if self.holds is not None and not self.holds(value):
            raise PydanticCustomError("rule", "{message}", {"message": self.message, "path": self.path})
        return value

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        written = handler(schema)
        return {**written, VALIDATIONS: [*written.get(VALIDATIONS, []), self.wire()]}


class Wire(BaseModel):
    """A part of the resource: unknown fields are refused, names are in camelCase, values don't change."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        alias_generator=to_camel,
        populate_by_name=True,
        defer_build=True,
    )
    # Built with its parts when it is first used: to build each part by itself takes longer than all else that
    # a command does with a spec. The texts beneath the fields are read where the schema is written.

    rules: ClassVar[tuple[Rule[Any], ...]] = ()
    """Conditions on the object as a whole."""

    @model_validator(mode="after")
    def keep_rules(self) -> Self:
        """Return the object if every rule on it holds."""
        for rule in self.rules:
            rule.check(self)
        return self

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        written = handler.resolve_ref_schema(handler(schema))
        if cls.rules:
            written[VALIDATIONS] = [rule.wire() for rule in cls.rules]
        return written


@dataclass(frozen=True, slots=True)
class OneOf:
    """The texts that a field may have, where a table of the program has them; else `Literal` says it."""

    texts: tuple[str, ...]

    def __get_pydantic_core_schema__(self, _source: object, _handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.literal_schema(list(self.texts))


def number_between(low: float, high: float) -> Rule[float]:
    """Return the rule that a number lies within bounds, both included."""
    return Rule(
        cel=f"self >= {float(low)} && self <= {float(high)}",
        message=f"use a number from {low:.10g} to {high:.10g}",
        holds=lambda value: low <= value <= high,
    )


def whole(low: int, high: int) -> Rule[int]:
    """Return the rule that a whole number lies within bounds, both included."""
    return Rule(
        cel=f"self >= {low} && self <= {high}",
        message=f"use a whole number from {low} to {high}",
        holds=lambda value: low <= value <= high,
    )


def duration(low: str, high: str) -> Rule[str]:
    """Return the rule that a text is a duration within bounds, both included."""
    return Rule(
        cel=f"self.matches('{DURATION_PATTERN}') && duration(self) >= duration('{low}')"
        f" && duration(self) <= duration('{high}')",
        message=f"use a duration from {low} to {high}, such as 80ms, 90s, 10m or 1h30m",
        holds=lambda text: (
            _reads(parse_duration, text)
            and parse_duration(low) <= parse_duration(text) <= parse_duration(high)
        ),
    )


def in_order(shorter: str, longer: str) -> str:
    """Return CEL that holds where one duration is not longer than another, both given as CEL.

    Where either is none, its own rule says so. An expression that fails would be reported of an object that
    was stored under another definition on every write, its status and finalizers included (1.36).
    """
    readable = [f"{each}.matches('{DURATION_PATTERN}')" for each in (shorter, longer)]
    return f"!({' && '.join(readable)}) || duration({shorter}) <= duration({longer})"


def pattern(regex: str, message: str) -> Rule[str]:
    """Return the rule that a whole text matches an expression that RE2 and Python read alike."""
    compiled = re.compile(regex)
    return Rule(
        cel=f"self.matches('{regex}')",
        message=message,
        holds=lambda text: compiled.fullmatch(text) is not None,
    )


def dns_subdomain(kind: str) -> Rule[str]:
    """Return the rule that a text can name an object of a kind."""
    return pattern(
        "^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$",
        f"use the {kind}'s name: lower-case letters, digits, dashes and dots",
    )


def rfc3339() -> Rule[str]:
    """Return the rule that a text is a time with its zone, after 1969, as CEL's `timestamp` reads it."""
    return Rule(
        cel="self.matches('^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(Z|[+-][0-9]{2}:[0-9]{2})$')"
        " && timestamp(self) > timestamp('1970-01-01T00:00:00Z')",
        message="use a time such as 2026-01-31T18:00:00Z",
        holds=lambda text: (
            _RFC3339.fullmatch(text) is not None
            and _reads(datetime.fromisoformat, text)
            and datetime.fromisoformat(text).year > 1969
        ),
    )


def quantity() -> Rule[str]:
    """Return the rule that a text is a quantity."""
    return Rule(
        cel=f"self.matches('{QUANTITY_PATTERN}')",
        message="use a Kubernetes quantity, such as 24Gi",
        holds=lambda text: _reads(parse_quantity, text),
    )


def make_unique_check(key: Callable[[T], object] = lambda item: item) -> AfterValidator:
    """Return the check that a list names nothing twice; the API server has list types for it."""

    def check(items: list[T]) -> list[T]:
        keys = [key(item) for item in items]
        if len(set(keys)) < len(keys):
            raise PydanticCustomError("rule", "named twice: name each once")
        return items

    return AfterValidator(check)


def _reads(parse: Callable[[str], object], text: str) -> bool:
    try:
        parse(text)
    except ValueError:
        return False
    return True


# Of the operator's own configuration, which no API server admits.


def within(low: str, high: str) -> BeforeValidator:
    """Return the rule that a field is a duration in Kubernetes' grammar within bounds, both included."""

    def checked(value: object) -> timedelta:
        if isinstance(value, str):
            value = parse_duration(value)
        if not isinstance(value, timedelta):
            raise ValueError("write a duration such as 500ms, 15s or 2m")  # noqa: TRY004 - pydantic's protocol
        if not parse_duration(low) <= value <= parse_duration(high):
            raise ValueError(f"{format_duration(value)} is out of bounds: use {low} to {high}")
        return value

    return BeforeValidator(checked)


_WORD = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_LABEL_PAIR = re.compile(rf"([a-z0-9]([-a-z0-9.]{{0,251}}[a-z0-9])?/)?{_WORD}={_WORD}")


def _check_label_pair(text: str) -> str:
    if text and not _LABEL_PAIR.fullmatch(text):
        raise ValueError("no label with a value; write key=value, such as kvmedic.io/heal=true")
    return text


LabelPair = Annotated[str, AfterValidator(_check_label_pair)]
"""A label as Kubernetes takes it (labels and selectors, "Syntax and character set"): key=value, or empty."""
