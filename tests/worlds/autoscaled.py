"""A fleet behind an autoscaler, and what a run does to its minimum."""

from __future__ import annotations

from worlds.neighbours import DEFINITIONS, hpa, scaled
from worlds.scaling import REPLICAS
from worlds.world import World

HPA, SCALED_OBJECT = "HorizontalPodAutoscaler", "ScaledObject"


def minimum(world: World, kind: str = HPA) -> int | None:
    spec_of = world.cluster.api.get(kind, "llm", world.namespace)["spec"]
    return spec_of.get("minReplicas" if kind == HPA else "minReplicaCount")


def marks(world: World, kind: str = HPA) -> list[str]:
    found = world.cluster.api.get(kind, "llm", world.namespace)["metadata"].get("annotations", {})
    return [name for name in found if name.startswith("kvmedic.io/")]


def behind_hpa(world: World, least: int = REPLICAS) -> None:
    """Put the fleet behind a HorizontalPodAutoscaler that never wants more than its minimum.

    Without metrics it does nothing but keep its bounds.
    """
    world.cluster.api.create(hpa("llm", minReplicas=least, maxReplicas=5), world.namespace)


def behind_keda(world: World) -> None:
    """Put the fleet behind a ScaledObject without KEDA."""
    world.cluster.apply(DEFINITIONS[0])
    name = f"crd/{DEFINITIONS[0]['metadata']['name']}"
    world.kubectl("wait", "--for=condition=Established", name, "--timeout=10s")
    world.cluster.api.create(scaled("llm", maxReplicaCount=5), world.namespace)


def behind(world: World, kind: str) -> None:
    """Put the fleet behind an autoscaler of a kind."""
    behind_hpa(world) if kind == HPA else behind_keda(world)
