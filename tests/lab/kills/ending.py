"""How a course ended: all that may not depend on how often the operator died on the way."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from lab.cluster.api import Object
from worlds.configured import copies, text_of
from worlds.trying import trial_pods
from worlds.world import Eye, World

OURS = "kvmedic.io/"
_NAME = re.compile(r"\bllm-[0-9a-z]+-[0-9a-z]+\b")
NOT_OF_THE_END = frozenset(
    {"observedGeneration", "conditions", "history", "diagnosis", "lastGood", "urgency"}
)
"""Fields of a status that tell of the last look, or hold times; conditions and history are told apart."""


def ending(world: World) -> dict[str, Any]:
    deployment, pods, resource = world.deployment(), world.pods(), world.resource()
    status = resource.get("status", {})
    return {
        "Deployment": _without_copies(world, deployment["spec"]),
        "pods": sorted(Counter(map(_pod, pods)).items()),
        "revisions": _live_sets(world),
        "endpoints": world.endpoints(),
        "traces": world.traces() + [key for each in (deployment, *pods) for key in _ours(each)],
        "finalizers": resource["metadata"].get("finalizers", []),
        "outcomes": world.outcomes(),
        "steps": [[_NAME.sub("POD", step) for step in run["steps"]] for run in status.get("history", [])],
        "conditions": {c["type"]: (c["status"], c["reason"]) for c in status.get("conditions", [])},
        "status": sorted(set(status) - NOT_OF_THE_END),
        "copies": sorted(text_of(world, each["metadata"]["name"]) for each in copies(world)),
        "trial pods": len(trial_pods(world)),
        "leases": [each["metadata"]["name"] for each in world.cluster.api.list("Lease", world.namespace)],
        "terminating": len(world.cluster.api.list("Pod", world.namespace)) - len(pods),
    }


def harm(eye: Eye, undisturbed: Eye) -> list[str]:
    """Return what clients of a fleet felt of the kills."""
    found = [f"{name} went undrained" for name in eye.lost if not undisturbed.lost]
    if eye.fewest < undisturbed.fewest:
        found.append(f"{eye.fewest} replicas in rotation, {undisturbed.fewest} undisturbed")
    if len(eye.seen) != len(undisturbed.seen):
        found.append(f"{len(eye.seen)} replicas were made, {len(undisturbed.seen)} undisturbed")
    return found


def differences(now: Mapping[str, Any], undisturbed: Mapping[str, Any]) -> list[str]:
    """Return each part that is another, with both values."""
    return [
        f"{path}: {one!r}, undisturbed {other!r}" for path, one, other in _differing("", now, undisturbed)
    ]


def _differing(path: str, one: Any, other: Any) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        for key in sorted({*one, *other}):
            yield from _differing(f"{path}/{key}", one.get(key), other.get(key))
    elif one != other:
        yield path, one, other


def _pod(pod: Object) -> str:
    labels = {key: value for key, value in pod["metadata"]["labels"].items() if key != "pod-template-hash"}
    ready = {c["type"]: c["status"] for c in pod["status"].get("conditions", [])}.get("Ready")
    return f"Ready {ready}, labels {labels}"


def _ours(each: Object) -> list[str]:
    return [key for key in each["metadata"].get("labels", {}) if key.startswith(OURS)]


def _without_copies(world: World, spec: Object) -> Object:
    """Return a Deployment's spec with the text of a ConfigMap in place of its name, which is drawn anew."""
    volumes = spec["template"]["spec"].get("volumes", [])
    for volume in volumes:
        if "configMap" in volume:
            volume["configMap"]["name"] = text_of(world, volume["configMap"]["name"])
    return spec


def _live_sets(world: World) -> int:
    """Return how many revisions have replicas."""
    sets = world.cluster.api.list("ReplicaSet", world.namespace, "app=llm")
    return sum(bool(each["spec"]["replicas"]) for each in sets)
