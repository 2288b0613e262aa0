"""A shell script's syntax tree, by tree-sitter-bash, over text that is traced."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import tree_sitter_bash
from tree_sitter import Language, Node, Parser

from kvmedic.manifests.traced import Traced


class Source:
    """One script and its tree; offsets are characters, not bytes."""

    def __init__(self, text: Traced) -> None:
        self.text = text
        kept = _without_dangling_continuation(text.text)
        data = kept.encode()
        self.root = _parser().parse(data).root_node
        self._characters = _characters(kept) if len(data) != len(kept) else None

    def span(self, node: Node) -> tuple[int, int]:
        """Return a node's first character and the one behind its last."""
        if self._characters is None:
            return node.start_byte, node.end_byte
        return self._characters[node.start_byte], self._characters[node.end_byte]

    def piece(self, node: Node) -> Traced:
        """Return a node's text."""
        return self.text.piece(*self.span(node))

    def fault(self) -> int:
        """Return the line of the first thing that is not understood, counted from 1; 0 where all is."""
        if not self.root.has_error:
            return 0
        found = (n for n in descendants(self.root) if n.is_error or n.is_missing)
        first = next(found, self.root)
        return first.start_point[0] + 1


def descendants(node: Node) -> Iterator[Node]:
    """Yield a node and everything in it, in the order of the text."""
    waiting = [node]
    while waiting:
        current = waiting.pop()
        yield current
        waiting.extend(reversed(current.children))


@cache
def _parser() -> Parser:
    return Parser(Language(tree_sitter_bash.language()))


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
