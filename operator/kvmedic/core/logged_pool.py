"""The KV-cache pool as an engine tells it in its log when it starts.

Engines of some versions name their pool nowhere else. A log may hold prompts: what it is searched for are
numbers in lines of the engine's own, before the first request.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import takewhile

from kvmedic.core.evidence import Pool


class SizeUnit(StrEnum):
    """What a log counts a pool in."""

    TOKENS = "tokens"
    BLOCKS = "blocks"


@dataclass(frozen=True, slots=True)
class LogForms:
    """How the log of one engine tells the pool."""

    sizes: tuple[tuple[re.Pattern[str], SizeUnit], ...]
    """Lines that tell the size of one engine's pool, the first group, with commas between thousands."""
    serving: re.Pattern[str]
    """A line after which requests are taken."""


@dataclass(frozen=True, slots=True)
class LoggedSize:
    """The pool of one engine of a replica."""

    amount: int
    unit: SizeUnit

    def pool(self, block_tokens: int, engines: int, null_blocks: int) -> Pool | None:
        """Return the pool of all engines of the replica, or None where none can be that small.

        Args:
            block_tokens: tokens per block.
            engines: data-parallel engines of the replica.
            null_blocks: blocks per engine that never hold a token.
        """
        blocks = self.amount // block_tokens if self.unit is SizeUnit.TOKENS else self.amount
        usable = engines * (blocks - null_blocks)
        return Pool(usable, block_tokens) if usable > 0 else None


def logged_size(lines: Iterable[str], forms: LogForms) -> LoggedSize | None:
    """Return the smallest pool that a log tells of, or None where it tells of none.

    Each rank of a tensor-parallel engine, and each data-parallel engine, has a line of its own; the engine
    goes by the smallest. A log whose beginning was rotated away tells nothing.
    """
    started = takewhile(lambda line: not forms.serving.search(line), lines)
    found = [size for line in started for size in _sizes(line, forms)]
    units = {size.unit for size in found}
    return min(found, key=lambda size: size.amount) if len(units) == 1 else None


def _sizes(line: str, forms: LogForms) -> Iterator[LoggedSize]:
    for pattern, unit in forms.sizes:
        match = pattern.search(line)
        if match:
            yield LoggedSize(int(match.group(1).replace(",", "")), unit)
