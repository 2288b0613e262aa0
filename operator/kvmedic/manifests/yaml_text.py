"""A manifest's text (YAML documents or JSON): its containers, the place of every token, and the edit of one.

Every other byte stays, and the result is read again: it must differ in that one token. Nothing is ever
written from the graph of nodes. Kubernetes reads YAML 1.1 and this reader 1.2: a plain scalar that is not
text in both is not taken for text.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from kvmedic.manifests.refusal import (
    MOST_BRACKETS,
    Refusal,
    RefusalReason,
    TooLargeError,
    has_too_many_brackets,
)
from kvmedic.manifests.tokens import Unquoted
from kvmedic.model.edits import Field, TokenEdit

_TRAILING_TABS = re.compile(r"(?<=\S)[ \t]*\t[ \t]*(?=#|\r?$)", re.MULTILINE)
_TEXT_TAG = "tag:yaml.org,2002:str"
_KINDS = {"int": "number", "float": "number", "bool": "boolean", "timestamp": "date"}
_NULL = re.compile(r"~|null|Null|NULL|")
_BOOLEAN = re.compile(r"(?i:y|yes|n|no|on|off|true|false)")
_NUMBER = re.compile(
    r"[-+]?(?:0b[01_]+|0o?[0-7_]+|0x[\da-fA-F_]+|\d[\d_]*"
    r"|(?:\.\d[\d_]*|\d[\d_]*\.[\d_]*|\d[\d_]*)(?:[eE][-+]?\d+)?|\.(?i:inf))|\.(?i:nan)"
)
"""What go-yaml, Kubernetes' reader, takes for a number or a boolean without quotes."""


LONGEST = 4 * 1024 * 1024
"""Characters of a manifest, at most. Kubernetes takes 1.5 MiB of one object (etcd, `--max-request-bytes`)."""
MOST_VALUES = 200_000
"""Values that one document's aliases may make, at most; an object of 1.5 MiB has fewer without any."""


class _UnreadableError(Exception):
    """The text can't be a manifest; never leaves `containers_of`."""


@dataclass(frozen=True, slots=True)
class ListNode:
    """A container's command, args or env in the text."""

    node: SequenceNode
    shared: bool
    """Whether an alias or a merge makes other places show the same."""


@dataclass(frozen=True, slots=True)
class ManifestContainer:
    """One container of one object in a manifest's text."""

    kind: str
    owner: str
    """Name of the object."""
    index: int
    """Place among the containers of its pod."""
    data: Mapping[str, object]
    """The container as Kubernetes would read it."""
    lists: Mapping[Field, ListNode]
    pod: MappingNode
    """The mapping in the text that has the containers."""
    pod_spec: Mapping[str, object]
    """The same as Kubernetes would read it."""

    @property
    def name(self) -> str:
        """Return the container's name."""
        return str(self.data.get("name"))

    def __str__(self) -> str:
        return f"{self.name} of {self.kind}/{self.owner}"


def containers_of(text: str) -> tuple[ManifestContainer, ...] | Refusal:
    """Return the containers of all objects in a text; init containers are left out."""
    try:
        return tuple(found for root in roots_of(text) for found in _Document(root).containers())
    except YAMLError as error:
        hint = "; a Helm template must be rendered first" if "{{" in text else ""
        return Refusal(RefusalReason.NOT_A_MANIFEST, f"not readable as YAML: {_summary(error)}{hint}")
    except RecursionError:
        message = "the manifest has too many lists and mappings within one another: write it flat"
        return Refusal(RefusalReason.TOO_LARGE, message)
    except TooLargeError as error:
        return error.refusal()
    except _UnreadableError as error:
        return Refusal(RefusalReason.NOT_A_MANIFEST, f"not readable as a manifest: {error}")


def reads_as_text(plain: str) -> bool:
    """Return whether a scalar without quotes reads as a string everywhere."""
    return not any(pattern.fullmatch(plain) for pattern in (_NULL, _BOOLEAN, _NUMBER))


def roots_of(text: str) -> Sequence[Node]:
    """Return the root nodes of a text's documents.

    The reader takes no tabs between tokens. Kubernetes does, in JSON and at the end of a line, and
    there as many blanks read the same.
    """
    if _is_json(text):
        return _compose_nodes(text.replace("\t", " "))
    try:
        return _compose_nodes(text)
    except YAMLError:
        return _compose_nodes(_TRAILING_TABS.sub(lambda tabs: " " * len(tabs[0]), text))


def _compose_nodes(text: str) -> Sequence[Node]:
    if len(text) > LONGEST:
        raise TooLargeError(
            f"the manifest has {len(text)} characters; at most {LONGEST} are read: "
            "give only the objects concerned"
        )
    if has_too_many_brackets(text):
        raise TooLargeError(
            f"the manifest has more than {MOST_BRACKETS} brackets within one another: write it flat"
        )
    roots = [root for root in YAML(typ="safe", pure=True).compose_all(text) if root]
    for root in roots:
        if _count_values(root, {}) > MOST_VALUES:
            line = root.start_mark.line + 1
            raise TooLargeError(
                f"the document at line {line} has more than {MOST_VALUES} values with its aliases "
                "written out: use fewer aliases"
            )
    return roots


def _count_values(node: Node, counted: dict[int, int]) -> int:
    """Return how many values a node has when each alias is written out; what holds itself counts once."""
    if id(node) not in counted:
        counted[id(node)] = 1
        counted[id(node)] += sum(_count_values(child, counted) for child in _children(node))
    return counted[id(node)]


def _is_json(text: str) -> bool:
    try:
        json.loads(text.removeprefix("\ufeff"), parse_int=str)
    except ValueError:
        return False
    return True


def _summary(error: YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    where = f", line {mark.line + 1}" if mark is not None else ""
    return f"{getattr(error, 'problem', None) or str(error).splitlines()[0]}{where}"


class _Document:
    """One document's nodes: which are shared, and what they hold."""

    def __init__(self, root: Node) -> None:
        self.root = root
        self.uses = Counter(id(child) for node in _all(root) for child in _children(node))
        self.plain: dict[int, object] = {}
        self.seen: set[int] = set()

    def containers(self) -> Iterator[ManifestContainer]:
        """Yield the containers of the document's objects.

        Any mapping with a list of `containers` counts as a pod's specification, wherever a kind of
        object has it: templates of roles, of head and worker groups, of a predictor.
        """
        root = _Place(self.root, shared=False)
        yield from self._search(root, root)

    def _search(self, place: _Place, obj: _Place) -> Iterator[ManifestContainer]:
        node = place.node
        if id(node) in self.seen:
            return
        self.seen.add(id(node))
        if isinstance(node, MappingNode):
            obj = place if place.get("kind") and place.get("metadata") else obj
            yield from self._of_pod(obj, place)
        for key in _keys(node) if isinstance(node, MappingNode) else ():
            found = self._walk(place, (key,))
            if found is not None and key not in {"containers", "metadata"}:
                yield from self._search(found, obj)
        for item in node.value if isinstance(node, SequenceNode) else ():
            yield from self._search(self._at(item, place), obj)

    def _of_pod(self, obj: _Place, spec: _Place) -> Iterator[ManifestContainer]:
        containers = self._walk(spec, ("containers",))
        if containers is None or not isinstance(containers.node, SequenceNode):
            return
        owner = self._walk(obj, ("metadata", "name"))
        kind = self._walk(obj, ("kind",))
        for index, item in enumerate(containers.node.value):
            place = self._at(item, containers)
            data, pod_spec = self._plain(item), self._plain(spec.node)
            if not isinstance(data, Mapping) or not isinstance(pod_spec, Mapping):
                continue
            if isinstance(spec.node, MappingNode):
                lists, names = dict(self._lists(place)), (_place_text(kind), _place_text(owner))
                yield ManifestContainer(*names, index, data, lists, spec.node, pod_spec)

    def _lists(self, container: _Place) -> Iterator[tuple[Field, ListNode]]:
        for field in Field:
            place = self._walk(container, (field,))
            if place is not None and isinstance(place.node, SequenceNode):
                yield field, ListNode(place.node, place.shared)

    def _walk(self, place: _Place, path: Sequence[str]) -> _Place | None:
        for key in path:
            found = place.get(key)
            if found is None:
                return None
            node, merged = found
            place = self._at(node, _Place(place.node, place.shared or merged))
        return place

    def _at(self, node: Node, parent: _Place) -> _Place:
        return _Place(node, parent.shared or self.uses[id(node)] > 1)

    def _plain(self, node: Node) -> object:
        """Return what a node holds, as Kubernetes would read it."""
        if id(node) in self.plain:
            return self.plain[id(node)]
        self.plain[id(node)] = None
        self.plain[id(node)] = value = self._convert_node(node)
        return value

    def _convert_node(self, node: Node) -> object:
        if isinstance(node, MappingNode):
            found = {key: _Place(node, shared=False).get(key) for key in _keys(node)}
            return {key: self._plain(value[0]) for key, value in found.items() if value is not None}
        if isinstance(node, SequenceNode):
            return [self._plain(item) for item in node.value]
        return _scalar(node)


@dataclass(frozen=True, slots=True)
class _Place:
    """A node, and whether other places show the same."""

    node: Node
    shared: bool

    def get(self, key: str) -> tuple[Node, bool] | None:
        """Return the value of a key and whether a merge brought it."""
        own = _own(self.node, key)
        if own is not None:
            return own, False
        for merge in _merges(self.node):
            found = _Place(merge, shared=True).get(key)
            if found is not None:
                return found[0], True
        return None


def _own(node: Node, key: str) -> Node | None:
    if not isinstance(node, MappingNode):
        return None
    found = [value for name, value in node.value if _node_key(name) == key]
    if len(found) > 1:
        raise _UnreadableError(f"{key!r} twice in one mapping, line {found[1].start_mark.line + 1}")
    return found[0] if found else None


def _merges(node: Node) -> Iterator[MappingNode]:
    if not isinstance(node, MappingNode):
        return
    for key, value in node.value:
        if _is_merge(key):
            for merge in value.value if isinstance(value, SequenceNode) else [value]:
                if isinstance(merge, MappingNode):
                    yield merge


def _keys(node: MappingNode) -> Iterator[str]:
    for key, _ in node.value:
        if not _is_merge(key):
            yield _node_key(key)
    for merge in _merges(node):
        yield from _keys(merge)


def _node_key(node: Node) -> str:
    return str(node.value) if isinstance(node, ScalarNode) else ""


def _is_merge(node: Node) -> bool:
    return isinstance(node, ScalarNode) and node.value == "<<" and node.style is None


def _all(root: Node) -> Iterator[Node]:
    seen: set[int] = set()
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if id(node) not in seen:
            seen.add(id(node))
            waiting.extend(_children(node))
            yield node


def _children(node: Node) -> Iterator[Node]:
    if isinstance(node, MappingNode):
        for key, value in node.value:
            yield key
            yield value
    elif isinstance(node, SequenceNode):
        yield from node.value


def _scalar(node: Node) -> object:
    if not isinstance(node, ScalarNode):
        return None
    value, tag = str(node.value), str(node.tag)
    if tag == _TEXT_TAG and (node.style is not None or _has_tag(node) or reads_as_text(value)):
        return value
    if tag.endswith(":null") or _NULL.fullmatch(value):
        return None
    kind = "boolean" if _BOOLEAN.fullmatch(value) else _KINDS.get(tag.rpartition(":")[2], "number")
    return Unquoted(value, kind)


def _has_tag(node: ScalarNode) -> bool:
    """Return whether `!!str` stands before a plain scalar: nothing else makes it longer than its value."""
    return node.anchor is None and node.end_mark.index - node.start_mark.index > len(node.value)


def _place_text(place: _Place | None) -> str:
    return str(place.node.value) if place is not None and isinstance(place.node, ScalarNode) else "?"


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


def splice_edit(text: str, container: ManifestContainer, edit: TokenEdit) -> str | Refusal:
    """Return a manifest's text with an edit in it."""
    found = container.lists.get(edit.field)
    if found is None or (edit.after is None and edit.at is None):
        return _unsafe(edit, "the list is not in the text")
    if found.shared or found.node.anchor is not None:
        return _refuse_shared(f"{edit.field} of container {edit.container}")
    splice = _splice(text, found.node, edit)
    if isinstance(splice, Refusal):
        return splice
    result = splice_text(text, [splice])
    if _reads_as_meant(text, result, container, edit):
        return result
    return _unsafe(edit, "the text is laid out oddly")


def _splice(text: str, items: SequenceNode, edit: TokenEdit) -> Splice | Refusal:
    if edit.at is None and edit.before is None:
        return _added_text(text, items, edit.after or "")
    node = items.value[edit.index]
    if edit.field is Field.ENV:
        node = next((value for key, value in node.value if key.value == "value"), None)
    if not isinstance(node, ScalarNode):
        return _unsafe(edit, "it is not in the text")
    if node.anchor is not None or text[node.start_mark.index] in "&*!":
        return _refuse_shared(_edited_place(edit))
    if edit.at is None and node.style not in {"|", ">"}:
        return (node.start_mark.index, node.end_mark.index, _written_value(edit.after or "", node.style))
    if edit.at is None and (edit.before or "").endswith("\n"):
        return _unsafe(edit, "the token is a block scalar with a line end: write it on one line")
    start = edit.at or 0
    stop = start + len(edit.before or "")
    pieces = pieces_of(text, node)
    if pieces is None or not 0 < stop <= len(pieces):
        return _unsafe(edit, "the text is laid out oddly")
    first = pieces[start][0] if start < stop else pieces[stop - 1][1]
    return first, pieces[stop - 1][1], escape_text(edit.after or "", node.style)


def _added_text(text: str, items: SequenceNode, token: str) -> Splice | Refusal:
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
    if isinstance(before, Refusal) or isinstance(after, Refusal) or len(before) != len(after):
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


def _refuse_shared(what: str) -> Refusal:
    message = (
        f"{what} has a YAML anchor, alias, merge or tag, so other places may show the same: write it out"
    )
    return Refusal(RefusalReason.SHARED_YAML, message)


def _unsafe(edit: TokenEdit, why: str) -> Refusal:
    return Refusal(RefusalReason.UNSAFE, f"{_edited_place(edit)} can't be edited safely: {why}")


def splice_text(text: str, changes: Sequence[Splice]) -> str:
    """Return a text with pieces of it replaced."""
    for start, stop, new in sorted(changes, reverse=True):
        text = text[:start] + new + text[stop:]
    return text
