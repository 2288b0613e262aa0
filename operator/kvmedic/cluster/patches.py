"""What JSON patches of several kinds of object have in common: tests on what was looked at, marks."""

from __future__ import annotations

from collections.abc import Mapping

from kvmedic.cluster.marks import PREFIX
from kvmedic.core.edit import PatchOperation
from kvmedic.core.fleet import Minimum, Pod
from kvmedic.kube.objects import JsonObject, annotations_of

LABELS = "/metadata/labels"
ANNOTATIONS = "/metadata/annotations"


def path_of(parent: str, name: str) -> str:
    """Return the path of a label or annotation (RFC 6901: a slash in a name is written ~1)."""
    return f"{parent}/{name.replace('~', '~0').replace('/', '~1')}"


def as_seen(seen: Pod | Minimum) -> tuple[PatchOperation, ...]:
    """Return the tests that an object is the very version that was looked at."""
    return same_object(seen.uid), same_version(seen.resource_version)


def same_object(uid: str) -> PatchOperation:
    """Return the test that an object is not another of the same name."""
    return PatchOperation("test", "/metadata/uid", uid)


def same_version(resource_version: str) -> PatchOperation:
    """Return the test that nothing of an object changed."""
    return PatchOperation("test", "/metadata/resourceVersion", resource_version)


def annotating(live: JsonObject, marks: Mapping[str, str]) -> tuple[PatchOperation, ...]:
    """Return the operations that set annotations, on an object that may have none at all."""
    first = () if annotations_of(live) else (PatchOperation("add", ANNOTATIONS, {}),)
    added = (PatchOperation("add", path_of(ANNOTATIONS, name), text) for name, text in marks.items())
    return (*first, *added)


def unmarking(live: JsonObject) -> tuple[PatchOperation, ...]:
    """Return the operations that remove all our annotations; none where there are none."""
    ours = sorted(name for name in annotations_of(live) if name.startswith(PREFIX))
    return tuple(PatchOperation("remove", path_of(ANNOTATIONS, name)) for name in ours)
