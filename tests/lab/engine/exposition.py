"""The Prometheus text format as prometheus_client writes it, in the families that vLLM exposes.

`families.tsv` holds names, types, labels, buckets and help as recorded; values live in the small objects
here.
"""

import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate, product
from pathlib import Path

Labels = tuple[tuple[str, str], ...]


@dataclass(slots=True)
class Number:
    """A counter or a gauge."""

    value: float = 0.0
    created: float = field(default_factory=time.time)

    def add(self, amount: float = 1.0) -> None:
        self.value += amount


class Histogram:
    """Observations counted in buckets; a summary is one without buckets."""

    __slots__ = ("bounds", "counts", "created", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0
        self.created = time.time()

    def observe(self, value: float) -> None:
        """Count one observation."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        return sum(self.counts)


class Family:
    """One metric family: its samples by label values, and how they are written."""

    def __init__(self, name: str, kind: str, text: str, bounds: tuple[float, ...] = ()) -> None:
        self.name = name
        self.kind = kind
        self.text = text
        self.bounds = bounds
        self.numbers: dict[Labels, Number] = {}
        self.histograms: dict[Labels, Histogram] = {}

    def number(self, **labels: str) -> Number:
        """Return the counter or gauge with these labels, made on first use."""
        return self.numbers.setdefault(ordered(labels), Number())

    def histogram(self, **labels: str) -> Histogram:
        """Return the histogram or summary with these labels, made on first use."""
        key = ordered(labels)
        if key not in self.histograms:
            self.histograms[key] = Histogram(self.bounds)
        return self.histograms[key]

    def lines(self, *, as_nan: bool = False) -> Iterator[str]:
        """Yield the lines of the family and of its `_created` companion; `as_nan` makes all values NaN."""
        yield from self._head(self.name, self.kind)
        for labels, number in self.numbers.items():
            yield f"{self.name}{written(labels)} {spelt(float('nan') if as_nan else number.value)}"
        for labels, histogram in self.histograms.items():
            yield from self._histogram_lines(labels, histogram, as_nan=as_nan)
        yield from self._created_lines()

    def _head(self, name: str, kind: str) -> tuple[str, str]:
        return f"# HELP {name} {self.text}", f"# TYPE {name} {kind}"

    def _histogram_lines(self, labels: Labels, histogram: Histogram, *, as_nan: bool) -> Iterator[str]:
        nan = float("nan")
        if self.bounds:
            bounds = (*histogram.bounds, float("inf"))
            for bound, count in zip(bounds, accumulate(histogram.counts), strict=True):
                key = ordered({**dict(labels), "le": spelt(bound)})
                yield f"{self.name}_bucket{written(key)} {spelt(nan if as_nan else count)}"
        yield f"{self.name}_count{written(labels)} {spelt(nan if as_nan else histogram.count)}"
        yield f"{self.name}_sum{written(labels)} {spelt(nan if as_nan else histogram.total)}"

    def _created_lines(self) -> Iterator[str]:
        samples = self.histograms if self.kind in ("histogram", "summary") else self.numbers
        if self.kind == "gauge" or not samples or not self.name.startswith(("vllm:", "http_")):
            return
        name = (self.name.removesuffix("_total") if self.kind == "counter" else self.name) + "_created"
        yield from self._head(name, "gauge")
        for labels, sample in samples.items():
            yield f"{name}{written(labels)} {spelt(sample.created)}"


class Page:
    """All families of one engine, in the order of the recorded page.

    Args:
        model_name: value of the label `model_name`.
        max_model_len: where the buckets of token counts end.
    """

    def __init__(self, model_name: str, max_model_len: int) -> None:
        self.families: dict[str, Family] = {}
        fixed = {"engine": "0", "model_name": model_name}
        for name, kind, labels, bounds, text in family_rows():
            family = Family(name, kind, text, _bounds(bounds, max_model_len))
            self.families[name] = family
            for combination in _combinations(labels, fixed):
                if kind == "histogram":
                    family.histogram(**combination)
                else:
                    family.number(**combination)

    def __getitem__(self, name: str) -> Family:
        return self.families[name]

    def text(
        self,
        before: Iterable[Family] = (),
        dropped: frozenset[str] = frozenset(),
        not_a_number: frozenset[str] = frozenset(),
    ) -> str:
        """Return the page; families named in `dropped` are left out, in `not_a_number` are NaN."""
        lines: list[str] = []
        for family in (*before, *self.families.values()):
            if family.name not in dropped:
                lines.extend(family.lines(as_nan=family.name in not_a_number))
        return "\n".join(lines) + "\n"


def family_rows() -> list[list[str]]:
    text = Path(__file__).with_name("families.tsv").read_text(encoding="utf-8")
    return [line.split("\t") for line in text.splitlines() if not line.startswith("#")]


def ordered(labels: Mapping[str, str]) -> Labels:
    """Return the labels sorted by name, as prometheus_client writes them."""
    return tuple(sorted(labels.items()))


def written(labels: Labels) -> str:
    """Return the labels in braces; nothing if there are none."""
    if not labels:
        return ""
    escaped = (
        (name, value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")) for name, value in labels
    )
    return "{" + ",".join(f'{name}="{value}"' for name, value in escaped) + "}"


def spelt(value: float) -> str:
    """Return a number as Go and prometheus_client spell it."""
    if value != value:  # noqa: PLR0124
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "+Inf" if value > 0 else "-Inf"
    text = repr(float(value))
    point = text.find(".")
    if value > 0 and point > 6:
        mantissa = f"{text[0]}.{text[1:point]}{text[point + 1 :]}".rstrip("0.")
        return f"{mantissa}e+0{point - 1}"
    return text


def one_two_five(maximum: int) -> tuple[float, ...]:
    """Return 1, 2, 5, 10, 20, … up to `maximum`, the buckets of vLLM's token counts."""
    bounds: list[float] = []
    for exponent in range(10):
        for mantissa in (1, 2, 5):
            if mantissa * 10**exponent > maximum:
                return tuple(bounds)
            bounds.append(mantissa * 10**exponent)
    return tuple(bounds)


def _bounds(text: str, max_model_len: int) -> tuple[float, ...]:
    if text == "up to max_model_len":
        return one_two_five(max_model_len)
    return tuple(float(bound) for bound in text.split(",") if bound)


def _combinations(labels: str, fixed: Mapping[str, str]) -> list[dict[str, str]]:
    """Return the label sets that exist from the start: none where a value is only known later."""
    if labels == "*":
        return []
    values: list[list[tuple[str, str]]] = []
    for label in filter(None, labels.split(",")):
        name, _, listed = label.partition("=")
        if name not in fixed and not listed:
            return []
        values.append([(name, value) for value in (listed.split("|") if listed else [fixed[name]])])
    return [dict(combination) for combination in product(*values)]
