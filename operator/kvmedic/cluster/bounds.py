"""Where each kind of autoscaler says how few and how many replicas it keeps, and what counts otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from kvmedic.kube.objects import AUTOSCALERS, Resource

HPA, SCALED_OBJECT = "HorizontalPodAutoscaler", "ScaledObject"
SCALED_OBJECTS = Resource("keda.sh/v1alpha1", "scaledobjects")


@dataclass(frozen=True, slots=True)
class Bounds:
    """The bounds in the spec of one kind of autoscaler."""

    resource: Resource
    minimum_field: str
    maximum_field: str
    default_minimum: int
    default_maximum: int

    def minimum(self, spec: Mapping[str, Any]) -> int:
        """Return the fewest replicas that a spec asks for."""
        return int(spec.get(self.minimum_field, self.default_minimum))

    def maximum(self, spec: Mapping[str, Any]) -> int:
        """Return the most replicas that a spec allows."""
        return int(spec.get(self.maximum_field, self.default_maximum))

    def is_given(self, spec: Mapping[str, Any]) -> bool:
        """Return whether a spec itself says the fewest."""
        return self.minimum_field in spec


BOUNDS: Mapping[str, Bounds] = MappingProxyType(
    {
        HPA: Bounds(AUTOSCALERS, "minReplicas", "maxReplicas", 1, 1),
        SCALED_OBJECT: Bounds(SCALED_OBJECTS, "minReplicaCount", "maxReplicaCount", 0, 100),
    }
)
"""By kind. Fields and defaults: autoscaling/v2 (`maxReplicas` has no default: the API server demands it) and
KEDA 2.21."""
