"""A shell script's syntax tree, by tree-sitter-bash, over text that is traced."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import tree_sitter_bash
from tree_sitter import Language, Node, Parser, Point, Tree

from kvmedic.manifests.budget import PARSER_STEPS, Budget, TooLargeError
from kvmedic.manifests.traced import Traced

_PIECE = 1024
"""Bytes that the grammar reads at once."""
_COPIED = 256
"""Characters that are copied in the time of one step (measured)."""


class Source:
    """One script and its tree; offsets are characters, not bytes."""

    def __init__(self, text: Traced, budget: Budget) -> None:
        self.text = text
        self.budget = budget
        budget.spend_text(len(text.text))
        kept = _without_dangling_continuation(text.text)
        data = kept.encode()
        self.root = _tree(data, budget).root_node
        self._characters = _characters(kept) if len(data) != len(kept) else None

    def span(self, node: Node) -> tuple[int, int]:
        """Return a node's first character and the one behind its last."""
        if self._characters is None:
            return node.start_byte, node.end_byte
        return self._characters[node.start_byte], self._characters[node.end_byte]

    def piece(self, node: Node) -> Traced:
        """Return a node's text, traced."""
        start, stop = self.span(node)
        self.budget.spend(1 + (stop - start) // _COPIED)
        return self.text.piece(start, stop)

    def text_of(self, node: Node) -> str:
        """Return a node's text."""
        start, stop = self.span(node)
        self.budget.spend(1 + (stop - start) // _COPIED)
        return self.text.text[start:stop]

    def descendants(self, node: Node) -> Iterator[Node]:
        """Yield a node and everything in it, in the order of the text."""
        waiting = [node]
        while waiting:
            self.budget.spend(1)
            current = waiting.pop()
            yield current
            waiting.extend(reversed(current.children))

    def fault(self) -> int:
        """Return the line of the first thing that is not understood, counted from 1; 0 where all is."""
        if not self.root.has_error:
            return 0
        found = (n for n in self.descendants(self.root) if n.is_error or n.is_missing)
        first = next(found, self.root)
        return first.start_point[0] + 1


class _Reading:
    """What the grammar reads, in pieces that are counted: of some texts it reads the rest for each word."""

    def __init__(self, data: bytes, budget: Budget) -> None:
        self._data = data
        self._budget = budget
        self.spent: TooLargeError | None = None

    def piece(self, start: int, _point: Point) -> bytes:
        """Return the piece from some byte on; nothing where the budget is spent."""
        return b"" if self.is_over(0, False) else self._data[start : start + _PIECE]

    def is_over(self, _offset: int, _has_error: bool) -> bool:  # noqa: FBT001 - tree-sitter calls it so
        """Take steps and return whether there are none left: the grammar can't be left by an exception."""
        try:
            self._budget.spend(PARSER_STEPS)
        except TooLargeError as error:
            self.spent = self.spent or error
        return self.spent is not None


def _tree(data: bytes, budget: Budget) -> Tree:
    reading = _Reading(data, budget)
    try:
        tree = Parser(_language()).parse(reading.piece, encoding="utf8", progress_callback=reading.is_over)
    except ValueError:
        if reading.spent is None:
            raise
    if reading.spent is not None:
        raise reading.spent
    return tree


@cache
def _language() -> Language:
    return Language(tree_sitter_bash.language())


def _without_dangling_continuation(text: str) -> str:
    """Return a script without a backslash that continues its last line: shells ignore it."""
    stripped = text.rstrip("\n")
    continued = (len(stripped) - len(stripped.rstrip("\\"))) % 2 == 1 and stripped != text
    return stripped[:-1] + " " if continued else text


def _characters(text: str) -> list[int]:
    """Return the character of each byte, and one more for the end."""
    found: list[int] = []
    for index, character in enumerate(text):
        found += [index] * len(character.encode())
    return [*found, len(text)]
