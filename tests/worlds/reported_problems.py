"""Bad input and blockers: what is wrong with a target or a resource, and what a person sees.

The tests arrange each on a real API server; docs/howto/when-it-refuses.md lists them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from worlds.downgrading import LATER, downgrade
from worlds.phases import PATIENCE_SECONDS
from worlds.world import START_LIMIT_SECONDS, World, remediation


def patch_deployment(world: World, spec: dict[str, Any]) -> None:
    world.kubectl("patch", "deployment", "llm", "-p", json.dumps({"spec": spec}))
    world.kubectl("rollout", "status", "deployment/llm", "--timeout=30s")


def no_target(world: World) -> None:
    world.kubectl("delete", "deployment", "llm")


def an_older_resource(world: World) -> None:
    """The resource of the world becomes the younger of two."""
    world.kubectl("delete", "kvr", "llm")
    older = remediation(mode="Observe")
    older["metadata"]["name"] = "older"
    world.cluster.apply(older, world.namespace)
    time.sleep(1.1)  # creation times are in whole seconds
    world.cluster.apply(remediation(), world.namespace)


def an_unusable_spec(world: World) -> None:
    downgrade(world, LATER)


def no_service(world: World) -> None:
    world.kubectl("delete", "service", "llm")


def a_service_for_all(world: World) -> None:
    """The Service selects the replicas without the rotation label, and no other way is allowed."""
    select_without_label(world)
    by_label = {"spec": {"rollout": {"rotation": "Label"}}}
    world.kubectl("patch", "kvr", "llm", "--type=merge", "-p", json.dumps(by_label))


def select_without_label(world: World) -> None:
    selector = {"spec": {"selector": {"serving": None}}}
    world.kubectl("patch", "service", "llm", "--type=merge", "-p", json.dumps(selector))


def a_policy_of_the_label(world: World) -> None:
    """A NetworkPolicy goes by the one label by which the Service selects."""
    select_without_label(world)
    spec = {"podSelector": {"matchLabels": {"app": "llm"}}, "policyTypes": ["Ingress"], "ingress": [{}]}
    policy = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "let-in"}}
    world.cluster.api.create({**policy, "spec": spec}, world.namespace)


def another_label(world: World) -> None:
    world.kubectl("delete", "kvr", "llm")
    rollout = {"rotation": "Label", "rotationLabel": {"key": "app", "draining": "off"}}
    world.cluster.apply(remediation(rollout=rollout), world.namespace)


def another_container(world: World) -> None:
    world.kubectl("delete", "kvr", "llm")
    target = {"kind": "Deployment", "name": "llm", "container": "engine"}
    world.cluster.apply(remediation(targetRef=target), world.namespace)


def replace_containers(world: World, *containers: dict[str, Any], old: str = "thrash") -> None:
    """Patch the template's containers by name; `old` is what the replicas export from then on."""
    patch_deployment(world, {"template": {"spec": {"containers": list(containers)}}})
    world.rewrite(revision=world.revision(), old=old)


def no_engine(world: World) -> None:
    """The target is a web server, and nothing is wrong with it."""
    server = {"name": "vllm", "image": "nginx:1.29", "command": ["nginx"], "args": ["-g", "daemon off;"]}
    replace_containers(world, server, old="idle")


def two_engines(world: World) -> None:
    second = {
        "name": "second",
        "image": "vllm/vllm-openai:v0.32.0",
        "command": ["vllm", "serve", "/models/b"],
    }
    replace_containers(world, second)


def foreign_metrics(world: World) -> None:
    """The pods are scraped, and what they export is no known engine's."""
    world.rewrite(old="missing")


def bounds_above_the_cap(world: World) -> None:
    world.kubectl("delete", "kvr", "llm")
    world.cluster.apply(remediation(levers=[{"name": "maxNumSeqs", "min": 100}]), world.namespace)


def no_replicas(world: World) -> None:
    world.kubectl("scale", "deployment/llm", "--replicas=0")
    world.wait(lambda: world.pods() == [], PATIENCE_SECONDS, "the replicas are gone")


def no_room_left(world: World) -> None:
    """Two replicas take 900 of the node's 1,000 processors, of which nobody else asks for any."""
    world.kubectl("scale", "deployment/llm", "--replicas=0")
    world.wait(lambda: world.pods() == [], PATIENCE_SECONDS, "the replicas are gone")
    template = {"spec": {"containers": [{"name": "vllm", "resources": {"requests": {"cpu": "450"}}}]}}
    patch_deployment(world, {"template": template})
    patch_deployment(world, {"replicas": 2, "progressDeadlineSeconds": START_LIMIT_SECONDS})
    world.rewrite(revision=world.revision())


def somebody_paused(world: World) -> None:
    world.kubectl("rollout", "pause", "deployment/llm")


@dataclass(frozen=True, slots=True)
class ReportedProblem:
    """What stands in the way, and how it is reported."""

    arrange: Callable[[World], None]
    condition: str
    status: str
    reason: str
    advice: str
    """What the sentence asks a person to do."""


REPORTED_PROBLEMS = {
    "no target": ReportedProblem(
        no_target, "Ready", "False", "TargetNotFound", "create it, or delete this resource"
    ),
    "two resources for one target": ReportedProblem(
        an_older_resource,
        "Ready",
        "False",
        "TargetShared",
        "older looks after Deployment llm already: delete one",
    ),
    "an unusable spec": ReportedProblem(
        an_unusable_spec, "Ready", "False", "SpecInvalid", "'Required', 'BestEffort' or 'None'"
    ),
    "no such container": ReportedProblem(
        another_container, "ActionRequired", "True", "TargetNotFound", "spec.targetRef.container"
    ),
    "no engine in the command": ReportedProblem(
        no_engine,
        "ActionRequired",
        "True",
        "EngineUnrecognised",
        "make a resource for the Deployment that runs",
    ),
    "several engines and none named": ReportedProblem(
        two_engines, "ActionRequired", "True", "EngineUnrecognised", "make a resource that names one"
    ),
    "no series of a known engine": ReportedProblem(
        foreign_metrics, "MetricsAvailable", "False", "MetricsMissing", "check that the replica is scraped"
    ),
    "a lower bound above what runs": ReportedProblem(
        bounds_above_the_cap, "ActionRequired", "True", "LeverNotAllowed", "lower min of maxNumSeqs"
    ),
    "no replicas": ReportedProblem(no_replicas, "Diagnosed", "Unknown", "NoReplicas", "scale the target out"),
    "no Service": ReportedProblem(
        no_service, "ActionRequired", "True", "RotationLabelWithoutEffect", "make a Service that selects"
    ),
    "a Service without the rotation label": ReportedProblem(
        a_service_for_all, "ActionRequired", "True", "RotationLabelWithoutEffect", "add the label to the pod"
    ),
    "a NetworkPolicy that goes by the Service's label": ReportedProblem(
        a_policy_of_the_label,
        "ActionRequired",
        "True",
        "DrainImpossible",
        "have that policy select by another",
    ),
    "a label that is in the selector": ReportedProblem(
        another_label, "ActionRequired", "True", "RotationLabelUnusable", "name another label"
    ),
    "paused by somebody": ReportedProblem(
        somebody_paused, "ActionRequired", "True", "TargetPaused", "kubectl rollout resume deployment/llm"
    ),
    "no device for the spare": ReportedProblem(
        no_room_left, "ActionRequired", "True", "NoRoomForSpare", "free that much, or raise the quota"
    ),
}
