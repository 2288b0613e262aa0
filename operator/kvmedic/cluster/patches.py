"""What JSON patches of several kinds of object have in common: tests on what was looked at, marks.

What kvmedic writes onto other people's objects: annotations, and nothing in a pod template.

They are a fence and notes for people, never an authority.
"""

from __future__ import annotations

from collections.abc import Mapping

from kvmedic.kube.objects import JsonObject, annotations_of
from kvmedic.model.edits import PatchOperation
from kvmedic.model.fleet import Minimum, Pod

PREFIX = "kvmedic.io/"

RUN = f"{PREFIX}run"
"""On the Deployment: `<resource uid>/<run>/<sequence>` of the last assignment that was committed."""

RECORDED = f"{PREFIX}recorded"
"""On the Deployment: the values from before the run, so that it can be undone by hand."""

CORDONED = f"{PREFIX}cordoned"
"""On a pod: the label and the deletion cost that it had before it was cordoned, and for which Deployment."""

CORDONED_FOR = f"{PREFIX}cordoned-for"
"""Label of such a pod: the uid of that Deployment. By it a pod is found that nothing else leads to."""

TARGET = f"{PREFIX}target"
"""Label of a ConfigMap that is a copy of ours: the uid of the Deployment that it was made for."""

COPY_OF = f"{PREFIX}copy-of"
"""On such a copy: the ConfigMap that it was copied from, and the hash of what was in that then."""

DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
"""On a pod: of two Ready pods the one of lower cost is removed first (Kubernetes 1.22, KEP 2255)."""

CORDON_COST = "-2147483648"
"""The lowest deletion cost there is: costs are 32-bit integers."""


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


def annotate_operations(live: JsonObject, marks: Mapping[str, str]) -> tuple[PatchOperation, ...]:
    """Return the operations that set annotations, on an object that may have none at all."""
    first = () if annotations_of(live) else (PatchOperation("add", ANNOTATIONS, {}),)
    added = (PatchOperation("add", path_of(ANNOTATIONS, name), text) for name, text in marks.items())
    return (*first, *added)


def unmark_operations(live: JsonObject) -> tuple[PatchOperation, ...]:
    """Return the operations that remove all our annotations; none where there are none."""
    ours = sorted(name for name in annotations_of(live) if name.startswith(PREFIX))
    return tuple(PatchOperation("remove", path_of(ANNOTATIONS, name)) for name in ours)
