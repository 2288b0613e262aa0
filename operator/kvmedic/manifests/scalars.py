"""Where each character of a YAML scalar's value is written in the text.

YAML folds lines, takes indentation away and has escapes (YAML 1.2, chapters 7 and 8). What is read
here is checked by whoever uses it: the changed text is parsed again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from ruamel.yaml.nodes import ScalarNode

Piece = tuple[int, int]
"""The first character in the text and the one behind the last."""

_FOLD = re.compile(r"[ \t]*(?:\r?\n[ \t]*)+")
_LINE_END = re.compile(r"\r?\n")
_ESCAPE_LENGTHS = {"x": 4, "u": 6, "U": 10}


class _OddError(Exception):
    """The text is not laid out as the value says; never leaves `pieces_of`."""


def pieces_of(text: str, node: ScalarNode) -> list[Piece] | None:
    """Return the piece of text that each character of a scalar's value is, or None where it can't be told."""
    reader = _block if node.style in {"|", ">"} else _flow
    try:
        found = list(reader(text, node))
    except (_OddError, IndexError):
        return None
    return found if len(found) == len(node.value) else None


def escaped(token: str, style: str | None) -> str:
    """Return a piece of a value as it is written within a scalar of a style."""
    if style == '"':
        return json.dumps(token, ensure_ascii=False)[1:-1]
    return token.replace("'", "''") if style == "'" else token


def _flow(text: str, node: ScalarNode) -> Iterator[Piece]:
    """Yield the pieces of a plain or quoted scalar."""
    at = node.start_mark.index + (1 if node.style else 0)
    value, index = node.value, 0
    while index < len(value):
        fold = _FOLD.match(text, at)
        if fold is not None:
            count = max(1, fold[0].count("\n") - 1)
            yield from [(fold.start(), fold.end())] * count
            index, at = index + count, fold.end()
            continue
        length = _length(text, at, node.style)
        if text[at] == "\\" and node.style == '"' and text[at + 1] in "\r\n":
            at += length
            continue
        if length == 1 and text[at] not in {value[index], "\t"}:
            raise _OddError
        yield at, at + length
        index, at = index + 1, at + length


def _length(text: str, at: int, style: str | None) -> int:
    """Return how many characters of the text one of the value takes."""
    if style == "'" and text.startswith("''", at):
        return 2
    if style != '"' or text[at] != "\\":
        return 1
    continued = re.compile(r"\\\r?\n[ \t]*").match(text, at)
    return len(continued[0]) if continued else _ESCAPE_LENGTHS.get(text[at + 1], 2)


def _block(text: str, node: ScalarNode) -> Iterator[Piece]:
    """Yield the pieces of a literal or folded block."""
    header = re.compile(r"[|>][+-]?[ \t]*(?:#[^\n]*)?\r?\n").match(text, node.start_mark.index)
    if header is None:
        raise _OddError
    at = header.end()
    first = re.compile(r"(?:[ ]*\r?\n)*([ ]*)").match(text, at)
    indent = len(first[1]) if first else 0
    value, index = node.value, 0
    at = _content(text, at, indent)
    while index < len(value):
        end = _LINE_END.match(text, at)
        if end is None:
            if text[at] != value[index]:
                raise _OddError
            yield at, at + 1
            index, at = index + 1, at + 1
            continue
        breaks, at = _breaks(text, at, indent)
        count = 1 if value[index] == " " else len(value[index:]) - len(value[index:].lstrip("\n"))
        yield from (breaks[min(each, len(breaks) - 1)] for each in range(count))
        index += count


def _breaks(text: str, at: int, indent: int) -> tuple[list[Piece], int]:
    """Return the line ends from here to the next line that has something, and where that begins."""
    found: list[Piece] = []
    while (end := _LINE_END.match(text, at)) is not None:
        found.append((end.start(), end.end()))
        at = _content(text, end.end(), indent)
    return found, at


def _content(text: str, at: int, indent: int) -> int:
    """Return where a line's content begins behind its indentation."""
    blank = re.compile(rf"[ ]{{0,{indent}}}").match(text, at)
    return blank.end() if blank else at
