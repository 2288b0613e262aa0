"""Which ConfigMap a file comes from that a container reads.

Where several volumes or sources could give the file, or something else than a ConfigMap does, there is
a refusal that names it. Kubernetes: `volumeMounts` (also `subPath`), volumes of one ConfigMap and
projected volumes, both with `items`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from kvmedic.manifests.refusal import Refusal, RefusalReason


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
) -> MountedFile | Refusal:
    """Return where a file comes from that a container of a pod template reads."""
    file = _absolute(container, path)
    mount = mount_of(container, file)
    if isinstance(mount, Refusal):
        return mount
    spec = template.get("spec")
    volumes = spec.get("volumes") if isinstance(spec, Mapping) else None
    for index, volume in enumerate(volumes if isinstance(volumes, list) else ()):
        if isinstance(volume, Mapping) and volume.get("name") == mount.volume:
            return _from_volume(volume, index, mount, file)
    return unseen(f"{file} is in the volume {mount.volume}, which is not in the pod")


def mount_of(container: Mapping[str, object], path: PurePosixPath) -> Mount | Refusal:
    """Return the volume that a file of a container is in; the deepest mount counts."""
    mounts = container.get("volumeMounts")
    best: Mapping[str, object] | None = None
    for mount in mounts if isinstance(mounts, list) else ():
        if isinstance(mount, Mapping) and _is_deeper(mount, best) and _holds(mount, path):
            best = mount
    if best is None:
        return unseen(f"no volume is mounted at {path}: it is in the image, or written when the pod starts")
    if best.get("subPathExpr"):
        return unseen(f"{path} is mounted by subPathExpr, which depends on the pod")
    inside = PurePosixPath(str(best.get("subPath") or "")) / path.relative_to(_at(best))
    if str(inside) == ".":
        return unseen(f"a whole volume is mounted at {path}")
    return Mount(str(best.get("name")), str(inside))


def unseen(what: str) -> Refusal:
    """Return that a configuration file cannot be seen, and why."""
    return Refusal(RefusalReason.IN_CONFIG_FILE, what)


def _absolute(container: Mapping[str, object], path: str) -> PurePosixPath:
    return PurePosixPath(str(container.get("workingDir") or "/")) / path


def _at(mount: Mapping[str, object]) -> PurePosixPath:
    return PurePosixPath(str(mount.get("mountPath", "")))


def _holds(mount: Mapping[str, object], path: PurePosixPath) -> bool:
    return _at(mount) == path or _at(mount) in path.parents


def _is_deeper(mount: Mapping[str, object], best: Mapping[str, object] | None) -> bool:
    return best is None or len(_at(mount).parts) > len(_at(best).parts)


def _from_volume(
    volume: Mapping[str, object], index: int, mount: Mount, path: PurePosixPath
) -> MountedFile | Refusal:
    alone = volume.get("configMap")
    if isinstance(alone, Mapping):
        key = _key(alone, mount.inside)
        return _file(alone, key, mount, index, None) if key else _without(alone, mount.inside)
    found = list(_projecting(volume, mount.inside))
    if not found:
        return unseen(f"{path} is in the volume {mount.volume}, which is no ConfigMap")
    place, kind, source = found[0]
    if len(found) > 1 or kind != "configMap":
        listed = ", ".join(sorted({kind for _, kind, _ in found}))
        return unseen(f"{path} may come from several sources of the volume {mount.volume} ({listed})")
    return _file(source, _key(source, mount.inside), mount, index, place)


def _file(
    reference: Mapping[str, object], key: str, mount: Mount, index: int, source: int | None
) -> MountedFile:
    return MountedFile(str(reference.get("name")), key, mount.volume, index, source)


def _without(reference: Mapping[str, object], inside: str) -> Refusal:
    return unseen(f"ConfigMap/{reference.get('name')} gives no file {inside!r} to its volume")


def _projecting(volume: Mapping[str, object], inside: str) -> Iterator[tuple[int, str, Mapping[str, object]]]:
    """Yield the sources of a projected volume that may give a file: place, kind, reference."""
    projected = volume.get("projected")
    sources = projected.get("sources") if isinstance(projected, Mapping) else None
    for place, source in enumerate(sources if isinstance(sources, list) else ()):
        for kind, reference in source.items() if isinstance(source, Mapping) else ():
            if isinstance(reference, Mapping) and (
                reference.get("path") == inside or _key(reference, inside)
            ):
                yield place, str(kind), reference


def _key(reference: Mapping[str, object], inside: str) -> str:
    """Return the key that a reference makes a file of; empty where it makes none of that name.

    Without `items` every key is a file; whether there is such a key is for the ConfigMap to say.
    """
    items = reference.get("items")
    if not isinstance(items, list) or not items:
        named = "name" in reference or "secretName" in reference
        return inside if named and "/" not in inside and "path" not in reference else ""
    chosen = (item for item in items if isinstance(item, Mapping) and item.get("path") == inside)
    return next((str(item.get("key") or inside) for item in chosen), "")
