"""The configuration file of an engine, where a ConfigMap in the same manifest holds it.

The file's entries count as if they stood before all options, so the command line beats them (vLLM
0.32, `FlexibleArgumentParser.load_config_file`). A ConfigMap is never edited in place, because a pod
that restarts would read it: the changed text holds a copy that is named after what is in it, and the
pod template refers to the copy.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TypeAlias

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from kvmedic.core.edit import Field
from kvmedic.core.engine import Engine, Kind
from kvmedic.manifests.documents import ManifestContainer, roots_of
from kvmedic.manifests.grammar import Given, Parsed, options_of, parse
from kvmedic.manifests.invocation import invocation_of
from kvmedic.manifests.refusal import Refusal, RefusalReason
from kvmedic.manifests.scalars import escaped, pieces_of
from kvmedic.manifests.tokens import Place, Token
from kvmedic.manifests.words import CommandLine

_COPIED = re.compile(r"-[0-9a-f]{10}\Z")
"""What the name of a copy ends with."""
_TRUE = frozenset({"true", "yes", "on", "y"})
_FALSE = frozenset({"false", "no", "off", "n"})


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
    parsed: Parsed

    def given(self, dest: str) -> Given | None:
        """Return the entry that decides a value, or None where the file gives none."""
        return self.parsed.last(dest)

    def __str__(self) -> str:
        return f"ConfigMap/{self.name} {self.key}"


@dataclass(frozen=True, slots=True)
class _Mount:
    """Where a container finds a ConfigMap's keys."""

    reference: ScalarNode
    keys: Mapping[str, str]
    """The keys by file name, where the volume chooses them; empty: every key is a file."""
    name: str
    """The file's name within the volume."""


Located: TypeAlias = ConfigFile | Refusal


def config_file(text: str, container: ManifestContainer, path: str, engine: Engine) -> Located:
    """Return the file that a container's engine reads at a path, or what is missing to see it."""
    mount = _mount(container, PurePosixPath(path))
    if isinstance(mount, Refusal):
        return mount
    name = str(mount.reference.value)
    found = [node for node in roots_of(text) if _is_config_map(node, name)]
    if len(found) != 1:
        count = "not in the manifest" if not found else "there more than once"
        return _unseen(f"{path} is in ConfigMap/{name}, which is {count}")
    key = mount.keys.get(mount.name, "" if mount.keys else mount.name)
    data = _at(found[0], "data", key)
    if not isinstance(data, ScalarNode) or not isinstance(found[0], MappingNode):
        return _unseen(f"ConfigMap/{name} has no {key or mount.name!r}")
    line = invocation_of(container.data, engine.profile)
    honours_false = isinstance(line, CommandLine) and not line.subcommand
    tokens = _tokens(str(data.value), f"ConfigMap/{name} {key}", _switches(engine, honours_false))
    if isinstance(tokens, Refusal):
        return tokens
    parsed = parse(CommandLine(tuple(tokens), subcommand=False), engine)
    if isinstance(parsed, Refusal):
        return parsed
    return ConfigFile(name, key, found[0], data, mount.reference, parsed)


def repointed(text: str, file: ConfigFile, dest: str, value: str) -> str | Refusal:
    """Return a manifest's text with a changed copy of a file's ConfigMap, and the template pointing to it."""
    given = file.given(dest)
    inner = _entries(str(file.data.value)).get(_key_of(file, dest)) if given else None
    pieces = pieces_of(text, file.data)
    plain = all(node.anchor is None for node in (file.data, file.reference))
    if not isinstance(inner, ScalarNode) or pieces is None or not plain or inner.style in {"|", ">"}:
        return Refusal(RefusalReason.UNSAFE, f"{dest} in {file} is laid out oddly: change it there")
    start, stop = inner.start_mark.index, inner.end_mark.index
    if inner.style:
        start, stop = start + 1, stop - 1
    whole = str(file.data.value)
    changed = whole[:start] + value + whole[stop:]
    copy = f"{_COPIED.sub('', file.name)}-{hashlib.sha256(changed.encode()).hexdigest()[:10]}"
    first = pieces[start][0], pieces[stop - 1][1], escaped(value, file.data.style)
    return _with_copy(text, file, copy, first)


def _with_copy(text: str, file: ConfigFile, copy: str, change: tuple[int, int, str]) -> str | Refusal:
    begin, end = file.document.start_mark.index, file.document.end_mark.index
    name = _at(file.document, "metadata", "name")
    if not isinstance(name, ScalarNode) or name.anchor is not None or text[:begin].rpartition("\n")[2]:
        return Refusal(RefusalReason.UNSAFE, f"{file} is not a document of its own: change it there")
    ends = "\r\n" if "\r\n" in text else "\n"
    renamed = name.start_mark.index, name.end_mark.index, _like(name, copy)
    document = _spliced(text[begin:end], [_shifted(each, -begin) for each in (renamed, change)])
    lead = "" if text[:end].endswith("\n") else ends
    added = f"{lead}---{ends}{document.rstrip()}{ends}"
    reference = file.reference
    refers = reference.start_mark.index, reference.end_mark.index, _like(reference, copy)
    result = _spliced(text, [(end, end, added), refers])
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


def _shifted(change: tuple[int, int, str], by: int) -> tuple[int, int, str]:
    return change[0] + by, change[1] + by, change[2]


def _spliced(text: str, changes: Sequence[tuple[int, int, str]]) -> str:
    for start, stop, new in sorted(changes, reverse=True):
        text = text[:start] + new + text[stop:]
    return text


def _key_of(file: ConfigFile, dest: str) -> str:
    """Return the last key of the file that gives a value; later ones win."""
    given = file.given(dest)
    return given.word.token.raw if given is not None else ""


def _mount(container: ManifestContainer, path: PurePosixPath) -> _Mount | Refusal:
    mounts = container.data.get("volumeMounts")
    best: tuple[int, str, str] | None = None
    for mount in mounts if isinstance(mounts, list) else ():
        if not isinstance(mount, Mapping):
            continue
        at = PurePosixPath(str(mount.get("mountPath", "")))
        inside = str(mount.get("subPath", "")) if at == path else ""
        if at != path and at in path.parents:
            inside = str(path.relative_to(at))
        if inside and (best is None or len(at.parts) > best[0]):
            best = len(at.parts), str(mount.get("name")), inside
    if best is None:
        return _unseen(f"no volume is mounted at {path}: it is in the image, or written when the pod starts")
    return _volume(container, best[1], best[2], path)


def _volume(container: ManifestContainer, name: str, inside: str, path: PurePosixPath) -> _Mount | Refusal:
    volumes = _at(container.pod, "volumes")
    for volume in volumes.value if isinstance(volumes, SequenceNode) else ():
        named = _at(volume, "name")
        if not isinstance(named, ScalarNode) or named.value != name:
            continue
        reference = _at(volume, "configMap", "name")
        if not isinstance(reference, ScalarNode):
            return _unseen(f"{path} is in the volume {name}, which is no ConfigMap")
        items = _at(volume, "configMap", "items")
        chosen = items.value if isinstance(items, SequenceNode) else []
        keys = {_scalar(_at(item, "path")): _scalar(_at(item, "key")) for item in chosen}
        return _Mount(reference, keys, inside)
    return _unseen(f"{path} is in the volume {name}, which is not in the pod")


def _switches(engine: Engine, honours_false: bool) -> dict[str, str]:  # noqa: FBT001 - a fact, not a mode
    """Return the spelling of each switch that is false; empty where vLLM leaves such an entry out.

    `vllm serve` leaves it out, the Python module writes `--no-` before it (measured on 0.32.0).
    """
    kinds = {Kind.SWITCH, Kind.PRESENCE}
    names = (name for option in options_of(engine) if option.kind in kinds for name in option.names)
    return {name: f"--no-{name.removeprefix('--')}" if honours_false else "" for name in names}


def _tokens(text: str, where: str, switches: Mapping[str, str]) -> list[Token] | Refusal:
    """Return the options that the entries of a file stand for."""
    try:
        entries = _entries(text)
    except YAMLError:
        return _unseen(f"{where} is not readable as YAML")
    return [token for key, node in entries.items() for token in _option(key, node, where, switches)]


def _option(key: str, node: Node, where: str, switches: Mapping[str, str]) -> Iterator[Token]:
    """Yield the words of one entry."""
    place = Place(Field.ARGS, 0, None, node.start_mark.line + 1, where)
    name = f"--{key}"
    if isinstance(node, SequenceNode):
        yield Token(key, name, place)
        yield from (Token(key, _scalar(item), place) for item in node.value)
        return
    text = _scalar(node)
    off = switches.get(name.replace("_", "-"))
    if off is None or text.lower() not in _TRUE | _FALSE:
        yield Token(key, f"{name}={text}", place)
    elif text.lower() in _TRUE:
        yield Token(key, name, place)
    elif off:
        yield Token(key, off, place)


def _entries(text: str) -> dict[str, Node]:
    root = YAML(typ="safe", pure=True).compose(text)
    pairs = root.value if isinstance(root, MappingNode) else []
    return {_scalar(key): value for key, value in pairs}


def _is_config_map(node: Node, name: str) -> bool:
    return _scalar(_at(node, "kind")) == "ConfigMap" and _scalar(_at(node, "metadata", "name")) == name


def _at(node: Node | None, *path: str) -> Node | None:
    """Return what a path of keys leads to, merges left out."""
    for key in path:
        pairs = node.value if isinstance(node, MappingNode) else []
        node = next((value for name, value in pairs if _scalar(name) == key), None)
    return node


def _scalar(node: Node | None) -> str:
    return str(node.value) if isinstance(node, ScalarNode) else ""


def _unseen(what: str) -> Refusal:
    return Refusal(RefusalReason.IN_CONFIG_FILE, what)
