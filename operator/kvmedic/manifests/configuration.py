"""The configuration file of a target's engine: what is in it, and how one value of it becomes another."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from kvmedic.core.config_map import (
    SIZE_LIMIT,
    ConfigMap,
    FileEdit,
    Sight,
    Unseen,
    copy_name,
    names_in,
    with_value,
)
from kvmedic.core.engine import Engine
from kvmedic.core.fleet import Owner, Pod
from kvmedic.core.plan import ConfigStep, Plan
from kvmedic.core.reference import ReferenceEdit
from kvmedic.manifests.engine_file import EngineFile, engine_file
from kvmedic.manifests.flags import Setting
from kvmedic.manifests.mounts import MountedFile, mounted_file, unseen
from kvmedic.manifests.refusal import Refusal, RefusalReason


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
) -> Configuration | Refusal:
    """Return the file that an engine reads at a path, or why it cannot be seen.

    Args:
        path: as the command line has it.
        template: the pod template.
        container: the engine's.
        engine: with its version.
        maps: the ConfigMaps that were read, by name.
    """
    mounted = mounted_file(template, container, path)
    if isinstance(mounted, Refusal):
        return mounted
    source = maps.get(mounted.config_map, Unseen.GONE)
    if isinstance(source, Unseen):
        return unseen(f"{path} is in ConfigMap/{mounted.config_map}, which {source}")
    text = source.contents.data.get(mounted.key)
    if text is None:
        return unseen(f"ConfigMap/{mounted.config_map} has no text {mounted.key!r}")
    read = engine_file(text, str(mounted), container, engine)
    return read if isinstance(read, Refusal) else Configuration(mounted, read, source)


@dataclass(frozen=True, slots=True)
class ConfigEdit:
    """One value changed in a copy of a ConfigMap, and the template's reference to the copy."""

    file: FileEdit
    reference: ReferenceEdit


def edited(
    found: Configuration, wanted: Setting, engine: Engine, container: Mapping[str, object], uid: str
) -> ConfigEdit | Refusal:
    """Return the edit that gives a value in a configuration file another value, and changes nothing else.

    Args:
        found: the file as it is.
        wanted: a value that the file gives differently.
        engine: with its version.
        container: the engine's.
        uid: of the target, whose copy it will be.
    """
    mounted, contents, dest = found.mounted, found.source.contents, wanted.flag.dest
    span = found.read.span(dest)
    if isinstance(span, Refusal):
        return span
    changed = with_value(contents, mounted.key, span, wanted.text)
    again = engine_file(changed.data[mounted.key], str(mounted), container, engine)
    meant = {**found.read.parsed.values(), dest: wanted.value}
    if isinstance(again, Refusal) or again.parsed.values() != meant:
        return Refusal(RefusalReason.UNSAFE, f"{dest} in {mounted} can't be changed alone: change it there")
    if changed.size > SIZE_LIMIT:
        return Refusal(RefusalReason.UNSAFE, f"a copy of {mounted} would have more than {SIZE_LIMIT} bytes")
    copy = copy_name(mounted.config_map, changed, uid)
    before = contents.data[mounted.key][span]
    hashes = contents.digest, changed.digest
    file = FileEdit(mounted.config_map, copy, mounted.key, span.start, before, wanted.text, *hashes)
    place = mounted.volume, mounted.volume_index, mounted.source
    return ConfigEdit(file, ReferenceEdit(*place, mounted.config_map, copy))


def owner_of_file(plan: Plan, maps: Mapping[str, Sight]) -> Owner | None:
    """Return who decides what is in a ConfigMap that a plan would copy, hiding it from the fleet."""
    for step in plan.steps:
        source = maps.get(step.file.config_map) if isinstance(step, ConfigStep) else None
        if isinstance(source, ConfigMap) and source.owner is not None:
            return source.owner
    return None


def file_remarks(
    template: Mapping[str, object], maps: Mapping[str, Sight], pods: Iterable[Pod]
) -> Iterator[str]:
    """Yield what a person should know of the configuration file; nothing is done about it.

    Args:
        template: the pod template.
        maps: the ConfigMaps that were read, by name.
        pods: the replicas.
    """
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
