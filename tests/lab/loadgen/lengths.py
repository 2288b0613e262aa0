"""How long prompts and answers are: fixed, or drawn from the quantiles of a trace (`lengths.json`)."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Protocol

TABLES = Path(__file__).with_name("lengths.json")


class Sampler(Protocol):
    """Draws (prompt tokens, output tokens) of one request."""

    def draw(self, random: Random) -> tuple[int, int]:
        """Return the lengths of the next request."""


@dataclass(frozen=True, slots=True)
class Fixed:
    """All requests alike."""

    prompt: int
    output: int

    def draw(self, random: Random) -> tuple[int, int]:
        del random
        return self.prompt, self.output


@dataclass(frozen=True, slots=True)
class Quantiles:
    """A distribution given by (share, tokens) points, linear in between."""

    points: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        shares = [share for share, _ in self.points]
        tokens = [value for _, value in self.points]
        if shares[0] != 0.0 or shares[-1] != 1.0 or shares != sorted(shares) or tokens != sorted(tokens):
            raise ValueError(f"quantiles must rise from share 0 to share 1: {self.points}")

    def at(self, share: float) -> int:
        """Return the tokens below which `share` (0-1) of the requests lie."""
        for (left, low), (right, high) in pairwise(self.points):
            if share <= right:
                return max(1, round(low + (high - low) * (share - left) / (right - left)))
        return round(self.points[-1][1])

    @property
    def mean(self) -> float:
        """Mean of the interpolated distribution, in tokens."""
        return sum((right - left) * (low + high) / 2 for (left, low), (right, high) in pairwise(self.points))


@dataclass(frozen=True, slots=True)
class Table:
    """Prompt and output lengths of a trace, drawn independently.

    `longest` bounds prompt + output: a trace's rare giants would not fit the lab's small model.
    """

    prompt: Quantiles
    output: Quantiles
    longest: int | None = None

    def draw(self, random: Random) -> tuple[int, int]:
        prompt, output = self.prompt.at(random.random()), self.output.at(random.random())
        if self.longest is not None:
            prompt = min(prompt, self.longest - 1)
            output = min(output, self.longest - prompt)
        return prompt, output


def names() -> list[str]:
    return sorted(json.loads(TABLES.read_text(encoding="utf-8")))


def table(name: str, *, scale: float = 1.0, longest: int | None = None) -> Table:
    """Return a table; `scale` multiplies all its lengths (a big model's trace on a small pool)."""
    tables = json.loads(TABLES.read_text(encoding="utf-8"))
    if name not in tables:
        raise ValueError(f"no lengths named {name!r}; there are {', '.join(sorted(tables))}")
    row = tables[name]
    return Table(_quantiles(row["prompt"], scale), _quantiles(row["output"], scale), longest)


def parse(text: str) -> Sampler:
    """Return the sampler for `PROMPT+OUTPUT` (fixed, e.g. `64+512`) or for the name of a table.

    Raises:
        ValueError: neither.
    """
    prompt, plus, output = text.partition("+")
    if plus:
        return Fixed(int(prompt), int(output))
    return table(text)


def _quantiles(points: Sequence[Sequence[float]], scale: float) -> Quantiles:
    return Quantiles(tuple((share, tokens * scale) for share, tokens in points))
