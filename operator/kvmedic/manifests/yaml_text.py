"""The edit of one token in a manifest's text: where a value's characters are written, and what replaces them.

Every other byte stays, and the result is read again: it must differ in that one token. Nothing is ever
written from the graph of nodes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TypeAlias

from ruamel.yaml.nodes import ScalarNode, SequenceNode

from kvmedic.manifests.documents import ManifestContainer, containers_of, reads_as_text
from kvmedic.manifests.errors import ErrorReason, ManifestError
from kvmedic.model.edits import Field, TokenEdit

Piece = tuple[int, int]
"""The first character in the text and the one behind the last."""

_FOLD = re.compile(r"[ \t]*(?:\r?\n[ \t]*)+")
_LINE_END = re.compile(r"\r?\n")
_ESCAPE_LENGTHS = {"x": 4, "u": 6, "U": 10}


class _OddError(Exception):
    """The text is not laid out as the value says; never leaves `pieces_of`."""


def pieces_of(text: str, node: ScalarNode) -> list[Piece] | None:
    """Return the piece of text that each character of a scalar's value is, or None where it is unknown."""
    reader = _block if node.style in {"|", ">"} else _flow
    try:
        found = list(reader(text, node))
    except (_OddError, IndexError):
        return None
    return found if len(found) == len(node.value) else None


def escape_text(token: str, style: str | None) -> str:
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


_PLAIN = re.compile(r"-{0,2}[A-Za-z0-9][A-Za-z0-9_.=+/-]*")
"""Tokens that need no quotes in any YAML context, as far as their characters go."""


Splice: TypeAlias = tuple[int, int, str]
"""A piece of text, by its first character and the one behind its last, and what takes its place."""


def splice_edit(text: str, container: ManifestContainer, edit: TokenEdit) -> str | ManifestError:
    """Return a manifest's text with an edit in it."""
    found = container.lists.get(edit.field)
    if found is None or (edit.after is None and edit.at is None):
        return _report_unsafe_edit(edit, "the list is not in the text")
    if found.shared or found.node.anchor is not None:
        return _refuse_shared(f"{edit.field} of container {edit.container}")
    splice = _splice(text, found.node, edit)
    if isinstance(splice, ManifestError):
        return splice
    result = splice_text(text, [splice])
    if _reads_as_meant(text, result, container, edit):
        return result
    return _report_unsafe_edit(edit, "the text is laid out oddly")


def _splice(text: str, items: SequenceNode, edit: TokenEdit) -> Splice | ManifestError:
    if edit.at is None and edit.before is None:
        return _added_text(text, items, edit.after or "")
    node = items.value[edit.index]
    if edit.field is Field.ENV:
        node = next((value for key, value in node.value if key.value == "value"), None)
    if not isinstance(node, ScalarNode):
        return _report_unsafe_edit(edit, "it is not in the text")
    if node.anchor is not None or text[node.start_mark.index] in "&*!":
        return _refuse_shared(_edited_place(edit))
    if edit.at is None and node.style not in {"|", ">"}:
        return (node.start_mark.index, node.end_mark.index, _written_value(edit.after or "", node.style))
    if edit.at is None and (edit.before or "").endswith("\n"):
        return _report_unsafe_edit(edit, "the token is a block scalar with a line end: write it on one line")
    start = edit.at or 0
    stop = start + len(edit.before or "")
    pieces = pieces_of(text, node)
    if pieces is None or not 0 < stop <= len(pieces):
        return _report_unsafe_edit(edit, "the text is laid out oddly")
    first = pieces[start][0] if start < stop else pieces[stop - 1][1]
    return first, pieces[stop - 1][1], escape_text(edit.after or "", node.style)


def _added_text(text: str, items: SequenceNode, token: str) -> Splice | ManifestError:
    last = items.value[-1] if items.value else None
    written = _written_value(token, last.style if isinstance(last, ScalarNode) else '"')
    if items.flow_style:
        return _added_to_flow(text, items, written)
    return _added_to_block(text, items, written)


def _added_to_block(text: str, items: SequenceNode, written: str) -> Splice:
    """Return a new line below the last item, laid out like it."""
    last = items.value[-1]
    column = items.start_mark.column
    dash = text.rfind("-", 0, last.start_mark.index) if text[last.start_mark.index - 1] in " \t" else -1
    gap = text[dash + 1 : last.start_mark.index] if dash >= 0 else " "
    item = " " * column + "-" + (gap if gap and not gap.strip(" ") else " ") + written
    if last.style in {"|", ">"}:
        at = last.end_mark.index
        own_line = at == 0 or text[at - 1] == "\n"
        return (at, at, item + _line_end(text) if own_line else _line_end(text) + item)
    ended = re.compile(r"\r?\n|\Z").search(text, last.end_mark.index)
    at = ended.start() if ended else len(text)
    return (at, at, _line_end(text) + item)


def _added_to_flow(text: str, items: SequenceNode, written: str) -> Splice:
    if not items.value:
        at = items.start_mark.index + 1
        return (at, at, written)
    last = items.value[-1]
    at = last.end_mark.index
    between = _between(text, items)
    comma = re.compile(r"\s*,").match(text, at)
    if comma is None:
        return (at, at, "," + between + written)
    return (comma.end(), comma.end(), between + written + ",")


def _between(text: str, items: SequenceNode) -> str:
    """Return the blank between a comma and the next item of a flow list."""
    last = items.value[-1]
    before = items.value[-2].end_mark.index if len(items.value) > 1 else items.start_mark.index
    blank = re.search(r"\s*$", text[before : last.start_mark.index])
    found = blank[0] if blank else ""
    if "\n" in found:
        return _line_end(text) + found.rpartition("\n")[2]
    return found if len(items.value) > 1 else " "


def _written_value(token: str, style: str | None) -> str:
    if style == "'":
        return "'" + token.replace("'", "''") + "'"
    if style is None and _PLAIN.fullmatch(token) and reads_as_text(token):
        return token
    return json.dumps(token, ensure_ascii=False)


def _line_end(text: str) -> str:
    first = text.find("\n")
    return "\r\n" if first > 0 and text[first - 1] == "\r" else "\n"


def _reads_as_meant(old: str, new: str, container: ManifestContainer, edit: TokenEdit) -> bool:
    """Return whether a changed text reads as the original with the edit in it, and nothing else."""
    before, after = containers_of(old), containers_of(new)
    if isinstance(before, ManifestError) or isinstance(after, ManifestError) or len(before) != len(after):
        return False
    for one, other in zip(before, after, strict=True):
        expected: object = one.data
        if _position(one) == _position(container):
            spec = replace(edit, container_index=0).apply({"spec": {"containers": [one.data]}})["spec"]
            expected = spec["containers"][0] if isinstance(spec, dict) else None
        who = one.kind, one.owner, one.index
        if expected != other.data or who != (other.kind, other.owner, other.index):
            return False
    return True


def _position(container: ManifestContainer) -> tuple[int, ...]:
    return tuple(found.node.start_mark.index for found in container.lists.values())


def _edited_place(edit: TokenEdit) -> str:
    return f"{edit.field}[{edit.index}] of container {edit.container}"


def _refuse_shared(what: str) -> ManifestError:
    message = (
        f"{what} has a YAML anchor, alias, merge or tag, so other places may show the same: write it out"
    )
    return ManifestError(ErrorReason.SHARED_YAML, message)


def _report_unsafe_edit(edit: TokenEdit, why: str) -> ManifestError:
    return ManifestError(ErrorReason.UNSAFE, f"{_edited_place(edit)} can't be edited safely: {why}")


def splice_text(text: str, changes: Sequence[Splice]) -> str:
    """Return a text with pieces of it replaced."""
    for start, stop, new in sorted(changes, reverse=True):
        text = text[:start] + new + text[stop:]
    return text
