"""One token of a manifest's text, changed or added, with every other byte left alone.

The token is written as its neighbours are: the same quotes, the same indentation, the same line
ends. The result is read again and must differ from the original in that one token; if it does not,
there is no result.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace

from ruamel.yaml.nodes import ScalarNode, SequenceNode

from kvmedic.core.edit import Field, TokenEdit
from kvmedic.manifests.documents import ManifestContainer, containers_of, reads_as_text
from kvmedic.manifests.refusal import Refusal, RefusalReason
from kvmedic.manifests.scalars import escaped, pieces_of

_PLAIN = re.compile(r"-{0,2}[A-Za-z0-9][A-Za-z0-9_.=+/-]*")
"""Tokens that need no quotes in any YAML context, as far as their characters go."""


@dataclass(frozen=True, slots=True)
class Splice:
    """A piece of text that takes the place of another."""

    start: int
    stop: int
    text: str


def spliced(text: str, container: ManifestContainer, edit: TokenEdit) -> str | Refusal:
    """Return a manifest's text with an edit in it."""
    found = container.lists.get(edit.field)
    if found is None or (edit.after is None and edit.at is None):
        return _unsafe(edit, "the list is not in the text")
    if found.shared or found.node.anchor is not None:
        return _shared(f"{edit.field} of container {edit.container}")
    splice = _splice(text, found.node, edit)
    if isinstance(splice, Refusal):
        return splice
    result = text[: splice.start] + splice.text + text[splice.stop :]
    return (
        result if _is_as_meant(text, result, container, edit) else _unsafe(edit, "the text is laid out oddly")
    )


def _splice(text: str, items: SequenceNode, edit: TokenEdit) -> Splice | Refusal:
    if edit.at is None and edit.before is None:
        return _added(text, items, edit.after or "")
    node = items.value[edit.index]
    if edit.field is Field.ENV:
        node = next((value for key, value in node.value if key.value == "value"), None)
    if not isinstance(node, ScalarNode):
        return _unsafe(edit, "it is not in the text")
    if node.anchor is not None or text[node.start_mark.index] in "&*!":
        return _shared(_place(edit))
    if edit.at is None and node.style not in {"|", ">"}:
        return Splice(node.start_mark.index, node.end_mark.index, _written(edit.after or "", node.style))
    if edit.at is None and (edit.before or "").endswith("\n"):
        return _unsafe(edit, "the token is a block scalar with a line end: write it on one line")
    return _within(text, node, edit)


def _within(text: str, node: ScalarNode, edit: TokenEdit) -> Splice | Refusal:
    """Return the splice of a part of a scalar."""
    start = edit.at or 0
    stop = start + len(edit.before or "")
    pieces = pieces_of(text, node)
    if pieces is None or not 0 < stop <= len(pieces):
        return _unsafe(edit, "the text is laid out oddly")
    first = pieces[start][0] if start < stop else pieces[stop - 1][1]
    return Splice(first, pieces[stop - 1][1], escaped(edit.after or "", node.style))


def _added(text: str, items: SequenceNode, token: str) -> Splice | Refusal:
    last = items.value[-1] if items.value else None
    written = _written(token, last.style if isinstance(last, ScalarNode) else '"')
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
        return Splice(at, at, item + _line_end(text) if own_line else _line_end(text) + item)
    at = _end_of_line(text, last.end_mark.index)
    return Splice(at, at, _line_end(text) + item)


def _added_to_flow(text: str, items: SequenceNode, written: str) -> Splice:
    if not items.value:
        at = items.start_mark.index + 1
        return Splice(at, at, written)
    last = items.value[-1]
    at = last.end_mark.index
    between = _between(text, items)
    comma = re.compile(r"\s*,").match(text, at)
    if comma is None:
        return Splice(at, at, "," + between + written)
    return Splice(comma.end(), comma.end(), between + written + ",")


def _between(text: str, items: SequenceNode) -> str:
    """Return the blank between a comma and the next item of a flow list."""
    last = items.value[-1]
    before = items.value[-2].end_mark.index if len(items.value) > 1 else items.start_mark.index
    blank = re.search(r"\s*$", text[before : last.start_mark.index])
    found = blank[0] if blank else ""
    if "\n" in found:
        return _line_end(text) + found.rpartition("\n")[2]
    return found if len(items.value) > 1 else " "


def _written(token: str, style: str | None) -> str:
    if style == "'":
        return "'" + token.replace("'", "''") + "'"
    if style is None and _PLAIN.fullmatch(token) and reads_as_text(token):
        return token
    return json.dumps(token, ensure_ascii=False)


def _line_end(text: str) -> str:
    first = text.find("\n")
    return "\r\n" if first > 0 and text[first - 1] == "\r" else "\n"


def _end_of_line(text: str, start: int) -> int:
    found = re.compile(r"\r?\n|\Z").search(text, start)
    return found.start() if found else len(text)


def _is_as_meant(old: str, new: str, container: ManifestContainer, edit: TokenEdit) -> bool:
    """Return whether a changed text reads as the original with the edit in it, and nothing else."""
    before, after = containers_of(old), containers_of(new)
    if isinstance(before, Refusal) or isinstance(after, Refusal) or len(before) != len(after):
        return False
    return all(
        _expected(one, container, edit) == other.data and _who(one) == _who(other)
        for one, other in zip(before, after, strict=True)
    )


def _expected(one: ManifestContainer, container: ManifestContainer, edit: TokenEdit) -> object:
    if _position(one) != _position(container):
        return one.data
    spec = replace(edit, container_index=0).apply({"spec": {"containers": [one.data]}})["spec"]
    return spec["containers"][0] if isinstance(spec, dict) else None


def _who(container: ManifestContainer) -> tuple[str, str, int]:
    return container.kind, container.owner, container.index


def _position(container: ManifestContainer) -> tuple[int, ...]:
    return tuple(found.node.start_mark.index for found in container.lists.values())


def _place(edit: TokenEdit) -> str:
    return f"{edit.field}[{edit.index}] of container {edit.container}"


def _shared(what: str) -> Refusal:
    message = (
        f"{what} has a YAML anchor, alias, merge or tag, so other places may show the same: write it out"
    )
    return Refusal(RefusalReason.SHARED_YAML, message)


def _unsafe(edit: TokenEdit, why: str) -> Refusal:
    return Refusal(RefusalReason.UNSAFE, f"{_place(edit)} can't be edited safely: {why}")
