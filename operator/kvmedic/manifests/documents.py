"""A manifest's text (YAML documents or JSON), and the containers of all objects in it.

Kubernetes reads YAML 1.1 and this reader 1.2: a plain scalar that is not text in both is not taken for text.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from kvmedic.manifests.custom_resources import CONTAINER_FIELDS, as_rendered, container_in
from kvmedic.manifests.errors import ErrorReason, ManifestError
from kvmedic.manifests.size_limits import MOST_BRACKETS, TooLargeError, has_too_many_brackets
from kvmedic.manifests.tokens import Unquoted
from kvmedic.model.edits import Field

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
    """The container as Kubernetes would read it; of a custom resource, as its controller hands it on."""
    lists: Mapping[Field, ListNode]
    pod: MappingNode
    """The mapping in the text that has the containers."""
    pod_spec: Mapping[str, object]
    """The same as Kubernetes would read it."""
    path: tuple[str, ...] = ()
    """The keys from the object to the pod; of a list's items their names."""
    part: str = ""
    """What of the path distinguishes it from others of its name in the same object; empty: there are none."""

    @property
    def name(self) -> str:
        """Return the container's name."""
        return str(self.data.get("name"))

    @property
    def full_name(self) -> str:
        """Return the name, with the part of the object before it where another one has the same."""
        return f"{self.part}/{self.name}" if self.part else self.name

    def __str__(self) -> str:
        return f"{self.full_name} of {self.kind}/{self.owner}"


_CONFLICT = re.compile("^<{7} ", re.MULTILINE)


def rendering_hint(text: str) -> str:
    """Return what to do first with a template, or a half merged text; empty where it looks like neither."""
    if _CONFLICT.search(text):
        return "; it has the marks of a merge conflict (<<<<<<<): resolve that first"
    hint = (
        "; a Helm template must be rendered first: helm template; any other placeholder filled in or quoted"
    )
    return hint if "{{" in text else ""


def containers_of(text: str) -> tuple[ManifestContainer, ...] | ManifestError:
    """Return the containers of all objects in a text; init containers are left out."""
    try:
        found = tuple(found for root in roots_of(text) for found in _Document(root).containers())
        return tuple(replace(each, part=_part_of(each, found)) for each in found)
    except YAMLError as error:
        message = f"not readable as YAML: {summarise(error)}{rendering_hint(text)}"
        return ManifestError(ErrorReason.NOT_A_MANIFEST, message)
    except RecursionError:
        message = "the manifest has too many lists and mappings within one another: write it flat"
        return ManifestError(ErrorReason.TOO_LARGE, message)
    except TooLargeError as error:
        return error.as_manifest_error()
    except _UnreadableError as error:
        return ManifestError(ErrorReason.NOT_A_MANIFEST, f"not readable as a manifest: {error}")


def objects_of(text: str) -> tuple[Mapping[str, object], ...]:
    """Return all documents of a text that are mappings, as Kubernetes would read them.

    Raises:
        YAMLError: it is not YAML; `containers_of` says so in words.
    """
    plain = (_Document(root).plain_root() for root in roots_of(text))
    return tuple(each for each in plain if isinstance(each, Mapping))


def _part_of(one: ManifestContainer, found: Sequence[ManifestContainer]) -> str:
    """Return what of a container's path no other one of its name in the same object has."""
    who = one.kind, one.owner, one.name
    paths = [each.path for each in found if (each.kind, each.owner, each.name) == who]
    if len(paths) < 2:
        return ""
    before = _common_length(paths)
    rest = [path[before:] for path in paths]
    after = _common_length([path[::-1] for path in rest])
    if after in {len(path) for path in rest}:
        after = 0
    return ".".join(one.path[before : len(one.path) - after])


def _common_length(paths: Sequence[tuple[str, ...]]) -> int:
    """Return how many of their first keys all paths share."""
    return len(list(takewhile(lambda keys: len(set(keys)) == 1, zip(*paths, strict=False))))


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


def summarise(error: YAMLError) -> str:
    """Return what is wrong with a text that is no YAML, with its line, in one clause."""
    mark = getattr(error, "problem_mark", None)
    where = f", line {mark.line + 1}" if mark is not None else ""
    problem = str(getattr(error, "problem", None) or str(error).splitlines()[0])
    return f"{problem.replace('unhashable key', 'a mapping or a list as a key')}{where}"


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
        yield from self._search(root, root, ())

    def plain_root(self) -> object:
        """Return what the document holds, as Kubernetes would read it."""
        return self._read_plain(self.root)

    def _search(self, place: _Place, obj: _Place, path: tuple[str, ...]) -> Iterator[ManifestContainer]:
        node = place.node
        if id(node) in self.seen:
            return
        self.seen.add(id(node))
        if isinstance(node, MappingNode):
            obj, path = (place, ()) if place.get("kind") and place.get("metadata") else (obj, path)
            yield from self._of_pod(obj, place, path)
        for key in _keys(node) if isinstance(node, MappingNode) else ():
            found = self._walk(place, (key,))
            if found is None or key in {"containers", "metadata"}:
                continue
            yield from self._of_field(obj, place, key, path)
            yield from self._search(found, obj, (*path, key))
        for item in node.value if isinstance(node, SequenceNode) else ():
            named = self._walk(self._at(item, place), ("name",))
            name = (_place_text(named),) if named is not None else ()
            yield from self._search(self._at(item, place), obj, (*path, *name))

    def _of_pod(self, obj: _Place, spec: _Place, path: tuple[str, ...]) -> Iterator[ManifestContainer]:
        containers = self._walk(spec, ("containers",))
        if containers is None or not isinstance(containers.node, SequenceNode):
            return
        for index, item in enumerate(containers.node.value):
            data = self._read_plain(item)
            if isinstance(data, Mapping):
                rendered = as_rendered(self._kind_and_name(obj)[0], data)
                yield from self._make_container(
                    obj, spec, (index, rendered, self._at(item, containers)), path
                )

    def _of_field(
        self, obj: _Place, spec: _Place, key: str, path: tuple[str, ...]
    ) -> Iterator[ManifestContainer]:
        """Yield the container that a field of a custom resource stands for."""
        place = self._walk(spec, (key,)) if key in CONTAINER_FIELDS else None
        data = self._read_plain(place.node) if place is not None else None
        if place is not None and isinstance(data, Mapping):
            container = container_in(self._kind_and_name(obj)[0], key, data)
            if container is not None:
                yield from self._make_container(obj, spec, (0, container, place), path)

    def _make_container(
        self, obj: _Place, spec: _Place, one: tuple[int, Mapping[str, object], _Place], path: tuple[str, ...]
    ) -> Iterator[ManifestContainer]:
        """Yield a container, by its index, what it holds, and its place."""
        index, data, place = one
        pod_spec = self._read_plain(spec.node)
        if isinstance(spec.node, MappingNode) and isinstance(pod_spec, Mapping):
            lists = dict(self._lists(place))
            yield ManifestContainer(*self._kind_and_name(obj), index, data, lists, spec.node, pod_spec, path)

    def _kind_and_name(self, obj: _Place) -> tuple[str, str]:
        """Return an object's kind and name."""
        return _place_text(self._walk(obj, ("kind",))), _place_text(self._walk(obj, ("metadata", "name")))

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

    def _read_plain(self, node: Node) -> object:
        """Return what a node holds, as Kubernetes would read it."""
        if id(node) in self.plain:
            return self.plain[id(node)]
        self.plain[id(node)] = None
        self.plain[id(node)] = value = self._convert_node(node)
        return value

    def _convert_node(self, node: Node) -> object:
        if isinstance(node, MappingNode):
            found = {key: _Place(node, shared=False).get(key) for key in _keys(node)}
            return {key: self._read_plain(value[0]) for key, value in found.items() if value is not None}
        if isinstance(node, SequenceNode):
            return [self._read_plain(item) for item in node.value]
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
        raise _UnreadableError(
            f"{key!r} twice in one mapping, line {found[1].start_mark.line + 1}: leave one of them"
        )
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
