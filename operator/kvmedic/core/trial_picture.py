"""What a trial showed, as a picture of plain characters: blocks that came back over tokens of the request.

A block came back if the tokens so far would fill it and it is not in use. So a method that works climbs, and
one that only evicts tokens stays near the ground. What is drawn is told in numbers beneath, for whoever
cannot see it. It fits any terminal, pager or mail.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

from kvmedic.core.blocks import KV_HEADS, Keep
from kvmedic.core.compressed import Answer
from kvmedic.core.reclamation_probe import Reclaim, Sample, curves_of

SEEN, PREDICTED = "o", "."
KEY = f"blocks that came back ({SEEN} seen on the trial pod, {PREDICTED} predicted by class)"
CLASSES = (Reclaim.NONE, Reclaim.PER_HEAD, Reclaim.SCATTERED, Reclaim.RECLAIMS)
"""By blocks that come back, fewest first."""
VISIBLE = 0.05
"""Share of the highest prediction below which a curve is not told from the ground: `TERMINAL` has 14 rows."""


@dataclass(frozen=True, slots=True)
class Size:
    """Characters of the plot itself: 8 columns of scale, 24 of names and 4 further rows come to it.

    The foot needs 29 columns, the names 4 rows.
    """

    columns: int
    rows: int


TERMINAL = Size(48, 14)
"""Within 80 columns and 24 rows, the smallest terminal that people have."""


@dataclass(frozen=True, slots=True)
class Trace:
    """The course of a trial's request as it is drawn."""

    seen: tuple[Sample, ...]
    """In order of time; at least one."""
    block_tokens: int
    keep: Keep

    @property
    def tokens(self) -> int:
        """Return the tokens of the request at its end."""
        return max(1, self.seen[-1].tokens)

    @property
    def blocks(self) -> int:
        """Return how many blocks the tokens would fill at the end."""
        return -(-self.tokens // self.block_tokens)

    def freed(self, sample: Sample) -> float:
        """Return the blocks that came back until a reading; an engine may hold one in advance."""
        return max(0.0, sample.tokens / self.block_tokens - sample.used)

    def predicted(self, tokens: int) -> dict[Reclaim, float]:
        """Return the blocks that come back with a method of each class."""
        curves = curves_of(self.block_tokens, self.keep, KV_HEADS)
        whole = tokens / self.block_tokens
        return {reclaim: max(0.0, whole - curves[reclaim](tokens)) for reclaim in CLASSES}

    def ends(self) -> dict[Reclaim, float]:
        """Return the same at the end; one per head only where it can be seen that it is not none."""
        found = self.predicted(self.tokens)
        if found[Reclaim.PER_HEAD] < max(VISIBLE * max(found.values()), 1.0):
            del found[Reclaim.PER_HEAD]
        return found


def trace_of(answer: Answer) -> Trace | None:
    """Return what there is to draw of a trial; None where no reading is on record."""
    seen = tuple(each for each in answer.seen if isfinite(each.used))
    if not seen or answer.block_tokens is None or answer.keep is None:
        return None
    return Trace(seen, answer.block_tokens, answer.keep)


def picture_of(trace: Trace, size: Size = TERMINAL) -> tuple[str, ...]:
    """Return the picture line by line, the numbers at its end last."""
    top = max(1.0, *trace.ends().values(), *(trace.freed(each) for each in trace.seen))
    canvas = _Canvas(trace, size, top)
    rows = [
        f"{canvas.scale(row):>6} |{cells}{name}".rstrip()
        for row, (cells, name) in enumerate(zip(canvas.cells(), canvas.names(), strict=True))
    ]
    foot = f"{trace.tokens} tokens of the request"
    return (
        KEY,
        *reversed(rows),
        f"{'':6} +{'-' * size.columns}",
        f"{'':7}0{foot:>{size.columns}}",
        numbers(trace),
    )


def numbers(trace: Trace) -> str:
    """Return the end of the request in one line: blocks that came back, as seen and as predicted."""
    told = ", ".join(f"{reclaim} {blocks:.0f}" for reclaim, blocks in reversed(trace.ends().items()))
    came = trace.freed(trace.seen[-1])
    return f"{trace.tokens} tokens fill {trace.blocks} blocks: {came:.0f} came back; predicted: {told}"


@dataclass(frozen=True, slots=True)
class _Canvas:
    """The plot; its rows are counted from the ground up."""

    trace: Trace
    size: Size
    top: float
    """Blocks at the highest row."""

    def cells(self) -> list[str]:
        """Return the rows; readings stand above predictions."""
        columns, tokens, classes = self.size.columns, self.trace.tokens, self.trace.ends().keys()
        cells = [[" "] * columns for _ in range(self.size.rows)]
        for column in range(columns):
            predicted = self.trace.predicted(max(1, round(tokens * (column + 1) / columns)))
            for reclaim in classes:
                cells[self._row(predicted[reclaim])][column] = PREDICTED
        for each in self.trace.seen:
            column = -(-each.tokens * columns // tokens) - 1
            cells[self._row(self.trace.freed(each))][min(max(0, column), columns - 1)] = SEEN
        return ["".join(row) for row in cells]

    def names(self) -> list[str]:
        """Return each class with its number at the end; where its row is taken, in the nearest free."""
        ends = self.trace.ends()
        rows: list[int] = []
        for blocks in ends.values():
            rows.append(max(self._row(blocks), rows[-1] + 1 if rows else 0))
        highest = self.size.rows - len(rows)
        rows = [min(row, highest + place) for place, row in enumerate(rows)]
        found = {row: f" {reclaim} {ends[reclaim]:.0f}" for row, reclaim in zip(rows, ends, strict=True)}
        return [found.get(row, "") for row in range(self.size.rows)]

    def scale(self, row: int) -> str:
        """Return the number before a row: only the ground and the highest have one."""
        return {0: "0", self.size.rows - 1: f"{self.top:.0f}"}.get(row, "")

    def _row(self, blocks: float) -> int:
        return round(min(1.0, blocks / self.top) * (self.size.rows - 1))
