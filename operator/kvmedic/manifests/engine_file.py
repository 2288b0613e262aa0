"""An engine's configuration file: which ConfigMap it comes from, what is in it, and how a value changes.

The command line beats the file (vLLM 0.32, `FlexibleArgumentParser.load_config_file`). A change is one
stretch of the text. A file that several volumes or sources could give is refused. A ConfigMap is never edited
in place, because a pod that restarts would read it: a copy that is named after its content is added.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from kvmedic.manifests.argument_parser import CommandLine, Given, Parsed, options_of, parse
from kvmedic.manifests.documents import ManifestContainer, roots_of
from kvmedic.manifests.errors import ErrorReason, ManifestError
from kvmedic.manifests.flags import Setting
from kvmedic.manifests.invocation import invocation_of
from kvmedic.manifests.size_limits import MOST_BRACKETS, has_too_many_brackets
from kvmedic.manifests.tokens import Place, Token
from kvmedic.manifests.yaml_text import Splice, escape_text, pieces_of, splice_text
from kvmedic.model.config_edits import (
    SIZE_LIMIT,
    ConfigMap,
    Contents,
    FileEdit,
    Sight,
    Unseen,
    copy_name,
    names_in,
    with_value,
)
from kvmedic.model.edits import Field, ReferenceEdit
from kvmedic.model.engine import Engine, Flag, Kind
from kvmedic.model.fleet import Owner, Pod
from kvmedic.model.plan import Plan


@dataclass(frozen=True, slots=True)
class Mount:
    """A file as a container's mounts lead to it."""

    volume: str
    inside: str
    """The file's path within the volume."""


@dataclass(frozen=True, slots=True)
class MountedFile:
    """A file of a pod that one ConfigMap gives."""

    config_map: str
    key: str
    volume: str
    volume_index: int
    source: int | None
    """Place among the sources of a projected volume; None: the volume is the ConfigMap's alone."""

    def __str__(self) -> str:
        return f"ConfigMap/{self.config_map} {self.key}"


def mounted_file(
    template: Mapping[str, object], container: Mapping[str, object], path: str
) -> MountedFile | ManifestError:
    """Return where a file comes from that a container of a pod template reads."""
    file = PurePosixPath(str(container.get("workingDir") or "/")) / path
    mount = mount_of(container, file)
    if isinstance(mount, ManifestError):
        return mount
    spec = template.get("spec")
    volumes = spec.get("volumes") if isinstance(spec, Mapping) else None
    for index, volume in enumerate(volumes if isinstance(volumes, list) else ()):
        if isinstance(volume, Mapping) and volume.get("name") == mount.volume:
            return _from_volume(volume, index, mount, file)
    return report_unseen(f"{file} is in the volume {mount.volume}, which is not in the pod")


def mount_of(container: Mapping[str, object], path: PurePosixPath) -> Mount | ManifestError:
    """Return the volume that a file of a container is in; the deepest mount counts."""
    mounts = container.get("volumeMounts")
    above = [
        mount
        for mount in (mounts if isinstance(mounts, list) else ())
        if isinstance(mount, Mapping) and _mount_path_of(mount) in (path, *path.parents)
    ]
    best = max(above, key=lambda mount: len(_mount_path_of(mount).parts), default=None)
    if best is None:
        return report_unseen(
            f"no volume is mounted at {path}: it is in the image, or written when the pod starts"
        )
    if best.get("subPathExpr"):
        return report_unseen(f"{path} is mounted by subPathExpr, which depends on the pod")
    inside = PurePosixPath(str(best.get("subPath") or "")) / path.relative_to(_mount_path_of(best))
    if str(inside) == ".":
        return report_unseen(f"a whole volume is mounted at {path}")
    return Mount(str(best.get("name")), str(inside))


def report_unseen(what: str) -> ManifestError:
    """Return that a configuration file cannot be seen, and why."""
    return ManifestError(ErrorReason.IN_CONFIG_FILE, what)


def _mount_path_of(mount: Mapping[str, object]) -> PurePosixPath:
    return PurePosixPath(str(mount.get("mountPath", "")))


def _from_volume(
    volume: Mapping[str, object], index: int, mount: Mount, path: PurePosixPath
) -> MountedFile | ManifestError:
    alone = volume.get("configMap")
    if isinstance(alone, Mapping):
        key = _key_of_file(alone, mount.inside)
        if key:
            return _file(alone, key, mount, index, None)
        return report_unseen(f"ConfigMap/{alone.get('name')} gives no file {mount.inside!r} to its volume")
    found = list(_projected_sources(volume, mount.inside))
    if not found:
        return report_unseen(f"{path} is in the volume {mount.volume}, which is no ConfigMap")
    place, kind, source = found[0]
    if len(found) > 1 or kind != "configMap":
        listed = ", ".join(sorted({kind for _, kind, _ in found}))
        return report_unseen(f"{path} may come from several sources of the volume {mount.volume} ({listed})")
    return _file(source, _key_of_file(source, mount.inside), mount, index, place)


def _file(
    reference: Mapping[str, object], key: str, mount: Mount, index: int, source: int | None
) -> MountedFile:
    return MountedFile(str(reference.get("name")), key, mount.volume, index, source)


def _projected_sources(
    volume: Mapping[str, object], inside: str
) -> Iterator[tuple[int, str, Mapping[str, object]]]:
    """Yield the sources of a projected volume that may give a file: place, kind, reference."""
    projected = volume.get("projected")
    sources = projected.get("sources") if isinstance(projected, Mapping) else None
    for place, source in enumerate(sources if isinstance(sources, list) else ()):
        for kind, reference in source.items() if isinstance(source, Mapping) else ():
            if isinstance(reference, Mapping) and (
                reference.get("path") == inside or _key_of_file(reference, inside)
            ):
                yield place, str(kind), reference


def _key_of_file(reference: Mapping[str, object], inside: str) -> str:
    """Return the key that a reference makes a file of; empty where it makes none of that name.

    Without `items` every key is a file; whether there is such a key is for the ConfigMap to say.
    """
    items = reference.get("items")
    if not isinstance(items, list) or not items:
        named = "name" in reference or "secretName" in reference
        return inside if named and "/" not in inside and "path" not in reference else ""
    chosen = (item for item in items if isinstance(item, Mapping) and item.get("path") == inside)
    return next((str(item.get("key") or inside) for item in chosen), "")


LONGEST = 32 * 1024
"""Characters of a file that is read, at most: with all 317 options of vLLM 0.32 it has 10,773, and so many
take the reader up to 0.75 s (measured, one-letter keys within braces), for which everything else waits."""
_TRUE = frozenset({"true", "yes", "on"})
_FALSE = frozenset({"false", "no", "off"})
"""What PyYAML, vLLM's reader, takes for a boolean where it has no quotes (6.0, resolver.py)."""
_SWITCHES = frozenset({Kind.SWITCH, Kind.PRESENCE, Kind.TRUTH})
_MERGE = "<<"
_NOT_DECIMAL = re.compile(r"[-+]?(?:0[0-7_]+|0x[\da-fA-F_]+|0b[01_]+|[1-9][\d_]*(?::[0-5]?\d)+(?:\.[\d_]*)?)")
"""Plain numbers that PyYAML, vLLM's reader, reads in another base: octal, hexadecimal, binary, base 60."""


@dataclass(frozen=True, slots=True)
class EngineFile:
    """A configuration file's text, and what the engine reads in it. It may be secret: never print it."""

    where: str
    """The file, for people."""
    parsed: Parsed = field(repr=False)
    text: str = field(repr=False)

    def find_entry(self, dest: str) -> Given | None:
        """Return the entry that decides a value, or None where the file gives none."""
        return self.parsed.last(dest)

    def decides(self, flag: Flag, line: Parsed) -> Given | None:
        """Return the entry that is changed where a flag's value is; None: that is the command line's matter.

        The command line beats the file. And a switch is no matter of the file: `vllm serve` leaves an
        entry out that is false (measured on 0.32.0).
        """
        given = self.find_entry(flag.dest)
        if given is None or line.last(flag.dest) is not None or given.option.kind in _SWITCHES:
            return None
        return given

    def span(self, dest: str) -> slice | ManifestError:
        """Return the characters of the text that a value is written in, without quotes."""
        given = self.find_entry(dest)
        node = entries_of(self.text).get(given.word.token.raw) if given is not None else None
        if not isinstance(node, ScalarNode) or node.anchor is not None:
            return self._report_odd_layout(dest)
        quote = 1 if node.style else 0
        start, stop = node.start_mark.index + quote, node.end_mark.index - quote
        return slice(start, stop) if self.text[start:stop] == node.value else self._report_odd_layout(dest)

    def _report_odd_layout(self, dest: str) -> ManifestError:
        return ManifestError(ErrorReason.UNSAFE, f"{dest} in {self.where} is laid out oddly: change it there")


def engine_file(
    text: str, where: str, container: Mapping[str, object], engine: Engine
) -> EngineFile | ManifestError:
    """Return what an engine reads in a configuration file.

    Args:
        container: that starts the engine; how it does decides what becomes of entries that are false.
    """
    line = invocation_of(container, engine.profile)
    honours_false = isinstance(line, CommandLine) and not line.subcommand
    tokens = _tokens(text, where, _spell_off_switches(engine, honours_false))
    if isinstance(tokens, ManifestError):
        return tokens
    parsed = parse(CommandLine(tuple(tokens), subcommand=False), engine)
    return parsed if isinstance(parsed, ManifestError) else EngineFile(where, parsed, text)


def entries_of(text: str) -> dict[str, Node]:
    """Return the entries of a file by key; of several for one key the last counts.

    Raises:
        YAMLError: it is not YAML.
        RecursionError: it is nested without end.
    """
    root = YAML(typ="safe", pure=True).compose(text)
    pairs = root.value if isinstance(root, MappingNode) else []
    return {_scalar(key): value for key, value in pairs}


def _spell_off_switches(engine: Engine, honours_false: bool) -> dict[str, str]:  # noqa: FBT001 - a fact, not a mode
    """Return the spelling of each switch that is false; empty where vLLM leaves such an entry out.

    `vllm serve` leaves it out, the Python module writes `--no-` before it (measured on 0.32.0).
    """
    kinds = {Kind.SWITCH, Kind.PRESENCE}
    names = (name for option in options_of(engine) if option.kind in kinds for name in option.names)
    return {name: f"--no-{name.removeprefix('--')}" if honours_false else "" for name in names}


def _tokens(text: str, where: str, switches: Mapping[str, str]) -> list[Token] | ManifestError:
    """Return the options that the entries of a file stand for."""
    if len(text) > LONGEST:
        message = f"{where} has {len(text)} characters; at most {LONGEST} are read"
        return ManifestError(ErrorReason.TOO_LARGE, f"{message}: take out what no engine reads")
    if has_too_many_brackets(text):
        message = f"{where} has more than {MOST_BRACKETS} brackets within one another: write it flat"
        return ManifestError(ErrorReason.TOO_LARGE, message)
    try:
        entries = entries_of(text)
    except (YAMLError, RecursionError):
        return report_unseen(f"{where} is not readable as YAML")
    if _MERGE in entries:
        return report_unseen(f"{where} merges entries from elsewhere (`<<`): write them out")
    odd = next((key for key, node in entries.items() if _reads_otherwise(node)), None)
    if odd is not None:
        return report_unseen(
            f"{where} gives {odd} as a number that is not decimal: write it as one, or quote it"
        )
    return [token for key, node in entries.items() for token in _option(key, node, where, switches)]


def _reads_otherwise(node: Node) -> bool:
    plain = isinstance(node, ScalarNode) and node.style is None
    return plain and _NOT_DECIMAL.fullmatch(_scalar(node)) is not None


def _option(key: str, node: Node, where: str, switches: Mapping[str, str]) -> Iterator[Token]:
    """Yield the words of one entry."""
    place = Place(Field.ARGS, 0, None, node.start_mark.line + 1, where)
    name = f"--{key}"
    if isinstance(node, SequenceNode):
        yield Token(key, name, place)
        yield from (Token(key, _scalar(item), place) for item in node.value)
        return
    text, quoted = _scalar(node), isinstance(node, ScalarNode) and node.style is not None
    off = switches.get(name.replace("_", "-"))
    if off is None or quoted or text.lower() not in _TRUE | _FALSE:
        yield Token(key, f"{name}={text}", place)
    elif text.lower() in _TRUE:
        yield Token(key, name, place)
    elif off:
        yield Token(key, off, place)


def _scalar(node: Node | None) -> str:
    return str(node.value) if isinstance(node, ScalarNode) else ""


@dataclass(frozen=True, slots=True)
class Configuration:
    """An engine's configuration file, in the ConfigMap that it is mounted from."""

    mounted: MountedFile
    read: EngineFile
    source: ConfigMap


def configuration_at(
    path: str,
    template: Mapping[str, object],
    container: Mapping[str, object],
    engine: Engine,
    maps: Mapping[str, Sight],
) -> Configuration | ManifestError:
    """Return the file that an engine reads at a path, or why it cannot be seen."""
    mounted = mounted_file(template, container, path)
    if isinstance(mounted, ManifestError):
        return mounted
    source = maps.get(mounted.config_map, Unseen.GONE)
    if isinstance(source, Unseen):
        return report_unseen(f"{path} is in ConfigMap/{mounted.config_map}, which {source}")
    text = source.contents.data.get(mounted.key)
    if text is None:
        return report_unseen(f"ConfigMap/{mounted.config_map} has no text {mounted.key!r}")
    read = engine_file(text, str(mounted), container, engine)
    return read if isinstance(read, ManifestError) else Configuration(mounted, read, source)


@dataclass(frozen=True, slots=True)
class ConfigEdit:
    """One value changed in a copy of a ConfigMap, and the template's reference to the copy."""

    file: FileEdit
    reference: ReferenceEdit


def edit_file(
    found: Configuration, desired: Setting, engine: Engine, container: Mapping[str, object], uid: str
) -> ConfigEdit | ManifestError:
    """Return the edit that gives a value in a configuration file another value, and changes nothing else.

    Args:
        uid: of the target, whose copy it will be.
    """
    mounted, contents, dest = found.mounted, found.source.contents, desired.flag.dest
    span = found.read.span(dest)
    if isinstance(span, ManifestError):
        return span
    changed = with_value(contents, mounted.key, span, desired.text)
    again = engine_file(changed.data[mounted.key], str(mounted), container, engine)
    meant = {**found.read.parsed.values(), dest: desired.value}
    if isinstance(again, ManifestError) or again.parsed.values() != meant:
        return ManifestError(
            ErrorReason.UNSAFE, f"{dest} in {mounted} can't be changed alone: change it there"
        )
    if changed.size > SIZE_LIMIT:
        return ManifestError(
            ErrorReason.UNSAFE, f"a copy of {mounted} would have more than {SIZE_LIMIT} bytes"
        )
    copy = copy_name(mounted.config_map, changed, uid)
    before = contents.data[mounted.key][span]
    hashes = contents.digest, changed.digest
    file = FileEdit(mounted.config_map, copy, mounted.key, span.start, before, desired.text, *hashes)
    place = mounted.volume, mounted.volume_index, mounted.source
    return ConfigEdit(file, ReferenceEdit(*place, mounted.config_map, copy))


def owner_of_file(plan: Plan, maps: Mapping[str, Sight]) -> Owner | None:
    """Return who decides what is in a ConfigMap that a plan would copy, hiding it from the fleet."""
    for step in plan.steps:
        copied = step.file_of
        source = maps.get(copied.config_map) if copied else None
        if isinstance(source, ConfigMap) and source.owner is not None:
            return source.owner
    return None


def file_remarks(
    template: Mapping[str, object], maps: Mapping[str, Sight], pods: Iterable[Pod]
) -> Iterator[str]:
    """Yield what a person should know of the configuration file; nothing is done about it."""
    used = names_in(template)
    for name, found in maps.items():
        if not isinstance(found, ConfigMap) or name not in used:
            continue
        at = found.edited_at
        older = sorted(pod.name for pod in pods if at is not None and pod.created_at < at)
        if older and at is not None:
            yield (
                f"ConfigMap {name} was edited at {at:%Y-%m-%dT%H:%M:%SZ}: {', '.join(older)} started before "
                "and may run what was in it then"
            )
        original = maps.get(found.copy_of)
        if isinstance(original, ConfigMap) and original.contents.digest != found.copied_content:
            what = f"ConfigMap {found.copy_of} was edited since {name} was copied from it"
            yield f"{what}: the fleet reads the copy"


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

    def find_entry(self, dest: str) -> Given | None:
        """Return the entry that decides a value, or None where the file gives none."""
        return self.read.find_entry(dest)

    def __str__(self) -> str:
        return f"ConfigMap/{self.name} {self.key}"


@dataclass(frozen=True, slots=True)
class _Source:
    """The ConfigMap that fills a volume."""

    reference: ScalarNode
    keys: Mapping[str, str]
    """The keys by file name, where the volume chooses them; empty: every key is a file."""


def config_file(
    text: str, container: ManifestContainer, path: str, engine: Engine
) -> ConfigFile | ManifestError:
    """Return the file that a container's engine reads at a path, or what is missing to see it."""
    mount = mount_of(container.data, PurePosixPath(path))
    if isinstance(mount, ManifestError):
        return mount
    source = _volume(container, mount, path)
    if isinstance(source, ManifestError):
        return source
    name = str(source.reference.value)
    found = [node for each, node in _config_maps_in(text) if each == name]
    if len(found) != 1:
        count = "not in the manifest" if not found else "there more than once"
        return report_unseen(f"{path} is in ConfigMap/{name}, which is {count}")
    key = source.keys.get(mount.inside, "" if source.keys else mount.inside)
    data = _node_at(found[0], "data", key)
    if not isinstance(data, ScalarNode) or not isinstance(found[0], MappingNode):
        return report_unseen(f"ConfigMap/{name} has no {key or mount.inside!r}")
    read = engine_file(str(data.value), f"ConfigMap/{name} {key}", container.data, engine)
    if isinstance(read, ManifestError):
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


def repoint_manifest(text: str, file: ConfigFile, dest: str, value: str) -> str | ManifestError:
    """Return a manifest's text with a changed copy of a file's ConfigMap, and the template pointing to it."""
    span, pieces = file.read.span(dest), pieces_of(text, file.data)
    if isinstance(span, ManifestError):
        return span
    plain = all(node.anchor is None for node in (file.data, file.reference))
    if pieces is None or not plain or span.stop <= span.start:
        return ManifestError(ErrorReason.UNSAFE, f"{dest} in {file} is laid out oddly: change it there")
    copy = copy_name(file.name, with_value(_contents(file.document), file.key, span, value))
    change = pieces[span.start][0], pieces[span.stop - 1][1], escape_text(value, file.data.style)
    return _with_copy(text, file, copy, change)


def _with_copy(text: str, file: ConfigFile, copy: str, change: Splice) -> str | ManifestError:
    begin, end = file.document.start_mark.index, file.document.end_mark.index
    name = _node_at(file.document, "metadata", "name")
    if not isinstance(name, ScalarNode) or name.anchor is not None or text[:begin].rpartition("\n")[2]:
        return ManifestError(ErrorReason.UNSAFE, f"{file} is not a document of its own: change it there")
    ends = "\r\n" if "\r\n" in text else "\n"
    renamed = name.start_mark.index, name.end_mark.index, _quote_like(name, copy)
    within = [(start - begin, stop - begin, new) for start, stop, new in (renamed, change)]
    document = splice_text(text[begin:end], within)
    lead = "" if text[:end].endswith("\n") else ends
    added = f"{lead}---{ends}{document.rstrip()}{ends}"
    reference = file.reference
    refers = reference.start_mark.index, reference.end_mark.index, _quote_like(reference, copy)
    result = splice_text(text, [(end, end, added), refers])
    if _is_as_meant(text, result, file.name, copy):
        return result
    return ManifestError(ErrorReason.UNSAFE, f"{file} can't be copied safely: change it there")


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


def _quote_like(node: ScalarNode, value: str) -> str:
    quote = node.style if node.style in {'"', "'"} else ""
    return f"{quote}{value}{quote}"


def _volume(container: ManifestContainer, mount: Mount, path: str) -> _Source | ManifestError:
    volumes = _node_at(container.pod, "volumes")
    for volume in volumes.value if isinstance(volumes, SequenceNode) else ():
        named = _node_at(volume, "name")
        if not isinstance(named, ScalarNode) or named.value != mount.volume:
            continue
        reference = _node_at(volume, "configMap", "name")
        if not isinstance(reference, ScalarNode):
            return report_unseen(f"{path} is in the volume {mount.volume}, which is no ConfigMap")
        items = _node_at(volume, "configMap", "items")
        chosen = items.value if isinstance(items, SequenceNode) else []
        keys = {_scalar(_node_at(item, "path")): _scalar(_node_at(item, "key")) for item in chosen}
        return _Source(reference, keys)
    return report_unseen(f"{path} is in the volume {mount.volume}, which is not in the pod")


def _node_at(node: Node | None, *path: str) -> Node | None:
    """Return what a path of keys leads to, merges left out."""
    for key in path:
        pairs = node.value if isinstance(node, MappingNode) else []
        node = next((value for name, value in pairs if _scalar(name) == key), None)
    return node
