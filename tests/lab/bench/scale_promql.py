"""PromQL over series that rise or stand still for ever: enough of it to answer what the operator asks.

Each series is a level and a rate, so a query has one answer however long a window is, and that answer is
kept as long as nothing about the series changes. `tests/metrics` asks a real Prometheus; this one stands in
where thousands of fleets have to be answered for on two processors.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import NamedTuple, TypeAlias

NOW = 4_000_000_000.0
"""Stands for the moment of the query; what writes an answer puts the real one there."""
SCRAPED_SECONDS = 15.0


class Element(NamedTuple):
    """One series at one moment, or over a range."""

    labels: Mapping[str, str]
    value: float
    rate: float = 0.0


class Range(NamedTuple):
    """Series over some seconds, with so many samples each."""

    elements: list[Element]
    seconds: float
    samples: int


Value: TypeAlias = "list[Element] | Range | float | str"
Index: TypeAlias = Mapping[tuple[str, str], list[Element]]
"""All series by their metric's name and their pod's; without a pod's all of a name."""

_TOKEN = re.compile(
    r"\s*(?:(?P<duration>\d+(?:ms|[smhd]))|(?P<number>\d+(?:\.\d+)?(?:e[+-]?\d+)?)|"
    r'(?P<string>"(?:[^"\\]|\\.)*")|(?P<name>[A-Za-z_][\w:]*)|(?P<sign>=~|!~|!=|==|>=|<=|[-+*/%^(){}\[\],:=<>]))'
)
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_LEVELS = (("or",), ("and", "unless"), ("==", "!=", ">", "<", ">=", "<="), ("+", "-"), ("*", "/", "%"))
_FOLDS: dict[str, Callable[[list[float]], float]] = {
    "sum": math.fsum,
    "max": max,
    "min": min,
    "count": len,
    "group": lambda _: 1.0,
    "avg": lambda values: math.fsum(values) / len(values),
}
_NUMBERS: dict[str, Callable[[float, float], float]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b if b else (math.copysign(math.inf, a) if a else math.nan),
    "%": lambda a, b: math.fmod(a, b) if b else math.nan,
}
_TESTS: dict[str, Callable[[float, float], bool]] = {
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    ">": lambda a, b: a > b,
    "<": lambda a, b: a < b,
    ">=": lambda a, b: a >= b,
    "<=": lambda a, b: a <= b,
}


@dataclass(frozen=True, slots=True)
class Matching:
    """Which labels make two series the same."""

    names: frozenset[str] = frozenset()
    ignores: bool = True

    def __post_init__(self) -> None:
        if self.ignores:
            object.__setattr__(self, "names", self.names | {"__name__"})

    def key(self, labels: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
        if self.ignores:
            return tuple(sorted([item for item in labels.items() if item[0] not in self.names]))
        return tuple((name, labels.get(name, "")) for name in sorted(self.names))


def evaluate(text: str, index: Index) -> list[Element]:
    """The vector of a query; a number has no series."""
    query = _Query(text, index)
    found = query.binary(0)
    query.end()
    return found if isinstance(found, list) else []


class _Query:
    """Reads one query and evaluates it as it goes."""

    def __init__(self, text: str, index: Index) -> None:
        self._index, self._at = index, 0
        self._tokens: list[tuple[str, str]] = []
        place = 0
        while place < len(text.rstrip()):
            found = _TOKEN.match(text, place)
            if found is None or found.lastgroup is None:
                raise ValueError(f"not PromQL at {text[place : place + 40]!r}")
            self._tokens.append((found.lastgroup, found[found.lastgroup]))
            place = found.end()

    def end(self) -> None:
        if self._at < len(self._tokens):
            raise ValueError(f"more than one expression: {self._tokens[self._at :][:5]}")

    def _peek(self) -> str:
        return self._tokens[self._at][1] if self._at < len(self._tokens) else ""

    def _take(self, *expected: str) -> str:
        found = self._peek()
        if expected and found not in expected:
            raise ValueError(f"{found!r} instead of {expected}")
        self._at += 1
        return found

    def binary(self, level: int) -> Value:
        if level == len(_LEVELS):
            return self._unary()
        left = self.binary(level + 1)
        while self._peek() in _LEVELS[level]:
            sign = self._take()
            if self._peek() == "bool":
                self._take()  # nobody differs here
            matching = self._matching()
            left = _join(sign, left, self.binary(level + 1), matching)
        return left

    def _matching(self) -> Matching:
        if self._peek() not in ("on", "ignoring"):
            return Matching()
        ignores = self._take() == "ignoring"
        names = frozenset(self._names())
        if self._peek() == "group_left":
            self._take()  # every join keeps the labels of its left side, of which there may be many
            self._names()
        return Matching(names, ignores)

    def _names(self) -> list[str]:
        self._take("(")
        names = []
        while self._peek() != ")":
            names.append(self._take())
            if self._peek() == ",":
                self._take()
        self._take(")")
        return names

    def _unary(self) -> Value:
        if self._peek() == "-":
            self._take()
            return _join("*", -1.0, self._unary(), Matching())
        found = self._atom()
        while self._peek() in ("[", "offset"):
            if self._take() == "offset":
                self._take()
                continue
            found = self._over(found)
        return found

    def _over(self, found: Value) -> Range:
        assert isinstance(found, list)
        seconds, step, is_grid = _seconds(self._take()), SCRAPED_SECONDS, self._peek() == ":"
        if is_grid:
            self._take()
            step = _seconds(self._take())
        self._take("]")
        return Range(found, seconds, math.floor(seconds / step + 1e-9))

    def _atom(self) -> Value:
        kind, text = self._tokens[self._at]
        self._at += 1
        if kind == "number":
            return float(text)
        if kind == "string":
            return re.sub(r"\\(.)", r"\1", text[1:-1])
        if text == "(":
            found = self.binary(0)
            self._take(")")
            return found
        if text in (*_FOLDS, "count_values") and self._peek() in ("by", "without", "("):
            return self._fold(text)
        if self._peek() == "(":
            return _call(text, self._arguments())
        return self._select(text)

    def _fold(self, name: str) -> list[Element]:
        matching = Matching(ignores=False)
        if self._peek() != "(":
            ignores = self._take() == "without"
            matching = Matching(frozenset(self._names()), ignores)
        *parameters, found = self._arguments()
        assert isinstance(found, list)
        groups: dict[tuple[tuple[str, str], ...], list[float]] = {}
        for one in found:
            own = ((parameters[0], f"{one.value:.3f}"),) if parameters else ()
            groups.setdefault(matching.key(one.labels) + own, []).append(one.value)
        named = (({k: v for k, v in key if v}, values) for key, values in groups.items())
        fold = len if parameters else _FOLDS[name]
        return [Element(labels, float(fold(values))) for labels, values in named]

    def _arguments(self) -> list[Value]:
        self._take("(")
        found = []
        while self._peek() != ")":
            found.append(self.binary(0))
            if self._peek() == ",":
                self._take()
        self._take(")")
        return found

    def _select(self, name: str) -> list[Element]:
        tests: list[Callable[[Mapping[str, str]], bool]] = []
        pods: Iterable[str] = ("",)
        if self._peek() == "{":
            self._take()
            while self._peek() != "}":
                label, sign, text = self._take(), self._take(), self._take()
                value = re.sub(r"\\(.)", r"\1", text[1:-1])
                tests.append(_label_test(label, sign, value))
                if label == "pod" and sign in ("=", "=~") and _is_plain(value.split("|")):
                    pods = dict.fromkeys(value.split("|"))
                if self._peek() == ",":
                    self._take()
            self._take("}")
        found = [one for pod in pods for one in self._index.get((name, pod), ())]
        for test in tests:
            found = [one for one in found if test(one.labels)]
        return found


def _is_plain(choices: Iterable[str]) -> bool:
    return all(re.fullmatch(r"[\w:/-]*", each) for each in choices)


def _label_test(label: str, sign: str, value: str) -> Callable[[Mapping[str, str]], bool]:
    if sign in ("=", "!="):
        return lambda labels: (labels.get(label, "") == value) is (sign == "=")
    choices = frozenset(value.split("|"))
    if _is_plain(choices):
        return lambda labels: (labels.get(label, "") in choices) is (sign == "=~")
    matches = _matching(value)
    return lambda labels: matches(labels.get(label, "")) is (sign == "=~")


@lru_cache(maxsize=64)
def _matching(pattern: str) -> Callable[[str], bool]:
    """A test that remembers, as a query asks the same of each replica in forty places."""
    matches = re.compile(pattern).fullmatch
    return cache(lambda text: matches(text) is not None)


def _seconds(text: str) -> float:
    number, unit = re.fullmatch(r"(\d+)(ms|[smhd])", text).groups()  # type: ignore[union-attr]
    return float(number) * _UNITS[unit]


def _bare(labels: Mapping[str, str]) -> Mapping[str, str]:
    return (
        {name: text for name, text in labels.items() if name != "__name__"}
        if "__name__" in labels
        else labels
    )


def _call(name: str, arguments: list[Value]) -> Value:
    *others, last = arguments
    if name == "label_replace":
        return _relabel(*arguments)  # type: ignore[arg-type]
    if name == "vector":
        return [Element({}, float(last))]  # type: ignore[arg-type]
    if name == "clamp_min":
        return [Element(_bare(e.labels), max(e.value, float(last))) for e in others[0]]  # type: ignore[arg-type, union-attr]
    if isinstance(last, Range):
        return [Element(_bare(e.labels), _over_time(name, e, last)) for e in last.elements]
    assert isinstance(last, list)
    at_once: Mapping[str, Callable[[float], float]] = {"timestamp": lambda _: NOW, "floor": math.floor}
    return [Element(_bare(e.labels), at_once[name](e.value)) for e in last]


def _over_time(name: str, one: Element, over: Range) -> float:
    match name:
        case "increase" | "delta":
            return one.rate * over.seconds
        case "rate":
            return one.rate
        case "count_over_time":
            return float(over.samples)
        case "stddev_over_time" | "resets" | "changes":
            return 0.0
        case _:
            return one.value


def _relabel(found: list[Element], target: str, text: str, label: str, pattern: str) -> list[Element]:
    matches, made = re.compile(pattern).fullmatch, []
    for one in found:
        match = matches(one.labels.get(label, ""))
        labels = dict(one.labels)
        if match is not None:
            labels[target] = re.sub(r"\$(\d)", lambda m: match[int(m[1])] or "", text)  # noqa: B023 - used at once
        made.append(Element({k: v for k, v in labels.items() if v}, one.value, one.rate))
    return made


def _join(sign: str, left: Value, right: Value, matching: Matching) -> Value:
    if isinstance(left, float) and isinstance(right, float):
        return _NUMBERS[sign](left, right)
    if isinstance(right, float):
        assert isinstance(left, list)
        return [made for one in left if (made := _calculated(sign, one, one.value, right)) is not None]
    if isinstance(left, float):
        assert isinstance(right, list)
        return [made for one in right if (made := _calculated(sign, one, left, one.value)) is not None]
    assert isinstance(left, list)
    assert isinstance(right, list)
    known = {matching.key(one.labels): one for one in right}
    if sign == "or":
        keys = {matching.key(one.labels) for one in left}
        return left + [one for key, one in ((matching.key(o.labels), o) for o in right) if key not in keys]
    if sign in ("and", "unless"):
        return [one for one in left if (matching.key(one.labels) in known) is (sign == "and")]
    pairs = ((one, known.get(matching.key(one.labels))) for one in left)
    joined = (_calculated(sign, one, one.value, other.value) for one, other in pairs if other is not None)
    return [made for made in joined if made is not None]


def _calculated(sign: str, one: Element, left: float, right: float) -> Element | None:
    if sign in _NUMBERS:
        return Element(_bare(one.labels), _NUMBERS[sign](left, right))
    return one if _TESTS[sign](left, right) else None
