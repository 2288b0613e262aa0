"""What a step and a record name a Kubernetes object by."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ObjectRef:
    """One Kubernetes object in the resource's own namespace."""

    kind: str
    name: str
