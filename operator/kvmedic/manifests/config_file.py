"""One token changed in a manifest's text, or in the configuration file that a ConfigMap of it holds.

Every other byte stays, and the result is read again: it must differ in that one token. A ConfigMap is never
edited in place, because a pod that restarts would read it: a copy that is named after its content is added.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import TypeAlias

from ruamel.yaml import YAML
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from kvmedic.manifests.engine_file import EngineFile, Mount, engine_file, mount_of, unseen
from kvmedic.manifests.grammar import Given, Parsed
from kvmedic.manifests.refusal import Refusal, RefusalReason
from kvmedic.manifests.yaml_text import (
    ManifestContainer,
    containers_of,
    escape_text,
    pieces_of,
    reads_as_text,
    roots_of,
)
from kvmedic.model.config_edits import Contents, copy_name, with_value
from kvmedic.model.edits import Field, TokenEdit
from kvmedic.model.engine import Engine


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """A configuration file in a manifest's text, and what the engine reads in it."""

    name: str
    """The ConfigMap's name."""
    key: str
    document: MappingNode
    data: ScalarNode
    """The file's text, in the manifest's."""
    reference: ScalarNode
    """The ConfigMap's name where the pod's volume refers to it."""
    read: EngineFile

    @property
    def parsed(self) -> Parsed:
        """Return what the engine makes of the file."""
        return self.read.parsed

    def given(self, dest: str) -> Given | None:
        """Return the entry that decides a value, or None where the file gives none."""
        return self.read.given(dest)

    def __str__(self) -> str:
        return f"ConfigMap/{self.name} {self.key}"


@dataclass(frozen=True, slots=True)
class _Source:
    """The ConfigMap that fills a volume."""

    reference: ScalarNode
    keys: Mapping[str, str]
    """The keys by file name, where the volume chooses them; empty: every key is a file."""


def config_file(text: str, container: ManifestContainer, path: str, engine: Engine) -> ConfigFile | Refusal:
    """Return the file that a container's engine reads at a path, or what is missing to see it."""
    mount = mount_of(container.data, PurePosixPath(path))
    if isinstance(mount, Refusal):
        return mount
    source = _volume(container, mount, path)
    if isinstance(source, Refusal):
        return source
    name = str(source.reference.value)
    found = [node for each, node in _config_maps_in(text) if each == name]
    if len(found) != 1:
        count = "not in the manifest" if not found else "there more than once"
        return unseen(f"{path} is in ConfigMap/{name}, which is {count}")
    key = source.keys.get(mount.inside, "" if source.keys else mount.inside)
    data = _node_at(found[0], "data", key)
    if not isinstance(data, ScalarNode) or not isinstance(found[0], MappingNode):
        return unseen(f"ConfigMap/{name} has no {key or mount.inside!r}")
    read = engine_file(str(data.value), f"ConfigMap/{name} {key}", container.data, engine)
    if isinstance(read, Refusal):
        return read
    return ConfigFile(name, key, found[0], data, source.reference, read)


def contents_in(text: str) -> dict[str, Contents]:
    """Return what the ConfigMaps of a manifest hold, by name; one that is there twice is left out."""
    maps = _config_maps_in(text)
    names = [name for name, _ in maps]
    return {name: _contents(node) for name, node in maps if names.count(name) == 1}


def _config_maps_in(text: str) -> list[tuple[str, Node]]:
    maps = (node for node in roots_of(text) if _scalar(_node_at(node, "kind")) == "ConfigMap")
    return [(_scalar(_node_at(node, "metadata", "name")), node) for node in maps]


def _contents(document: Node) -> Contents:
    found = (_node_at(document, name) for name in ("data", "binaryData"))
    pairs = (node.value if isinstance(node, MappingNode) else [] for node in found)
    return Contents(*({_scalar(key): _scalar(value) for key, value in each} for each in pairs))


def repoint_manifest(text: str, file: ConfigFile, dest: str, value: str) -> str | Refusal:
    """Return a manifest's text with a changed copy of a file's ConfigMap, and the template pointing to it."""
    span, pieces = file.read.span(dest), pieces_of(text, file.data)
    if isinstance(span, Refusal):
        return span
    plain = all(node.anchor is None for node in (file.data, file.reference))
    if pieces is None or not plain or span.stop <= span.start:
        return Refusal(RefusalReason.UNSAFE, f"{dest} in {file} is laid out oddly: change it there")
    copy = copy_name(file.name, with_value(_contents(file.document), file.key, span, value))
    change = pieces[span.start][0], pieces[span.stop - 1][1], escape_text(value, file.data.style)
    return _with_copy(text, file, copy, change)


def _with_copy(text: str, file: ConfigFile, copy: str, change: Splice) -> str | Refusal:
    begin, end = file.document.start_mark.index, file.document.end_mark.index
    name = _node_at(file.document, "metadata", "name")
    if not isinstance(name, ScalarNode) or name.anchor is not None or text[:begin].rpartition("\n")[2]:
        return Refusal(RefusalReason.UNSAFE, f"{file} is not a document of its own: change it there")
    ends = "\r\n" if "\r\n" in text else "\n"
    renamed = name.start_mark.index, name.end_mark.index, _like(name, copy)
    within = [(start - begin, stop - begin, new) for start, stop, new in (renamed, change)]
    document = _splice_file(text[begin:end], within)
    lead = "" if text[:end].endswith("\n") else ends
    added = f"{lead}---{ends}{document.rstrip()}{ends}"
    reference = file.reference
    refers = reference.start_mark.index, reference.end_mark.index, _like(reference, copy)
    result = _splice_file(text, [(end, end, added), refers])
    if _is_as_meant(text, result, file.name, copy):
        return result
    return Refusal(RefusalReason.UNSAFE, f"{file} can't be copied safely: change it there")


def _is_as_meant(old: str, new: str, name: str, copy: str) -> bool:
    """Return whether a changed text is the original with one more ConfigMap and one other reference."""
    before, after = (list(YAML(typ="safe", pure=True).load_all(text)) for text in (old, new))
    kept = [document for document in after if _name_of(document) != copy]
    more = len(after) - len(kept) == 1 + sum(_name_of(document) == copy for document in before)
    same = [json.dumps(each, default=str).replace(f'"{copy}"', f'"{name}"') for each in kept]
    return more and same == [json.dumps(each, default=str) for each in before]


def _name_of(document: object) -> str:
    metadata = document.get("metadata") if isinstance(document, Mapping) else None
    kind = document.get("kind") if isinstance(document, Mapping) else ""
    return str(metadata.get("name")) if isinstance(metadata, Mapping) and kind == "ConfigMap" else ""


def _like(node: ScalarNode, value: str) -> str:
    quote = node.style if node.style in {'"', "'"} else ""
    return f"{quote}{value}{quote}"


def _splice_file(text: str, changes: Sequence[Splice]) -> str:
    for start, stop, new in sorted(changes, reverse=True):
        text = text[:start] + new + text[stop:]
    return text


def _volume(container: ManifestContainer, mount: Mount, path: str) -> _Source | Refusal:
    volumes = _node_at(container.pod, "volumes")
    for volume in volumes.value if isinstance(volumes, SequenceNode) else ():
        named = _node_at(volume, "name")
        if not isinstance(named, ScalarNode) or named.value != mount.volume:
            continue
        reference = _node_at(volume, "configMap", "name")
        if not isinstance(reference, ScalarNode):
            return unseen(f"{path} is in the volume {mount.volume}, which is no ConfigMap")
        items = _node_at(volume, "configMap", "items")
        chosen = items.value if isinstance(items, SequenceNode) else []
        keys = {_scalar(_node_at(item, "path")): _scalar(_node_at(item, "key")) for item in chosen}
        return _Source(reference, keys)
    return unseen(f"{path} is in the volume {mount.volume}, which is not in the pod")


def _node_at(node: Node | None, *path: str) -> Node | None:
    """Return what a path of keys leads to, merges left out."""
    for key in path:
        pairs = node.value if isinstance(node, MappingNode) else []
        node = next((value for name, value in pairs if _scalar(name) == key), None)
    return node


def _scalar(node: Node | None) -> str:
    return str(node.value) if isinstance(node, ScalarNode) else ""


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
    result = _splice_file(text, [splice])
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
        return _refuse_shared(_place_text(edit))
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


def _place_text(edit: TokenEdit) -> str:
    return f"{edit.field}[{edit.index}] of container {edit.container}"


def _refuse_shared(what: str) -> Refusal:
    message = (
        f"{what} has a YAML anchor, alias, merge or tag, so other places may show the same: write it out"
    )
    return Refusal(RefusalReason.SHARED_YAML, message)


def _unsafe(edit: TokenEdit, why: str) -> Refusal:
    return Refusal(RefusalReason.UNSAFE, f"{_place_text(edit)} can't be edited safely: {why}")
