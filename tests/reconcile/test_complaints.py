"""What stands in the way is told once: a condition with what to do, one Event, one log line."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from lab.cluster.light import gpus
from reconcile.phases import PATIENCE_SECONDS
from reconcile.test_unusable import downgrade, events, told
from reconcile.world import START_LIMIT_SECONDS, World, remediation

TICKS_SECONDS = 4.0
"""Some looks more, at one a second: whatever is told on every look shows."""


def patch_deployment(world: World, spec: dict[str, Any]) -> None:
    world.kubectl("patch", "deployment", "llm", "-p", json.dumps({"spec": spec}))
    world.kubectl("rollout", "status", "deployment/llm", "--timeout=30s")


def no_target(world: World) -> None:
    world.kubectl("delete", "deployment", "llm")


def an_elder(world: World) -> None:
    """The resource of the world becomes the younger of two."""
    world.kubectl("delete", "kvr", "llm")
    elder = remediation(mode="Observe")
    elder["metadata"]["name"] = "elder"
    world.cluster.apply(elder, world.namespace)
    time.sleep(1.1)  # creation times are in whole seconds
    world.cluster.apply(remediation(), world.namespace)


def an_unusable_spec(world: World) -> None:
    downgrade(world, {"runbooks": ["CompressionWithoutSavings"]})


def no_service(world: World) -> None:
    world.kubectl("delete", "service", "llm")


def recreate(world: World) -> None:
    patch_deployment(world, {"strategy": {"type": "Recreate", "rollingUpdate": None}})


def another_label(world: World) -> None:
    world.kubectl("delete", "kvr", "llm")
    rollout = {"rotationLabel": {"key": "app", "draining": "off"}}
    world.cluster.apply(remediation(rollout=rollout), world.namespace)


def another_container(world: World) -> None:
    world.kubectl("delete", "kvr", "llm")
    target = {"kind": "Deployment", "name": "llm", "container": "engine"}
    world.cluster.apply(remediation(targetRef=target), world.namespace)


def no_gpu_left(world: World) -> None:
    """Two replicas take 200 of the node's 256 devices, so that a third finds none."""
    world.kubectl("scale", "deployment/llm", "--replicas=0")
    world.wait(lambda: world.pods() == [], PATIENCE_SECONDS, "the replicas are gone")
    template = {"spec": {"containers": [{"name": "vllm", "resources": gpus(100)}]}}
    patch_deployment(world, {"template": template})
    patch_deployment(world, {"replicas": 2, "progressDeadlineSeconds": START_LIMIT_SECONDS})
    world.rewrite(revision=world.revision())


def somebody_paused(world: World) -> None:
    world.kubectl("rollout", "pause", "deployment/llm")


@dataclass(frozen=True, slots=True)
class Complaint:
    """What stands in the way, and how it is told."""

    arrange: Callable[[World], None]
    condition: str
    status: str
    reason: str
    advice: str
    """What the sentence asks a person to do."""


COMPLAINTS = {
    "no target": Complaint(
        no_target, "Ready", "False", "TargetNotFound", "create it, or delete this resource"
    ),
    "two resources for one target": Complaint(
        an_elder, "Ready", "False", "TargetShared", "elder looks after Deployment llm already: delete one"
    ),
    "an unusable spec": Complaint(
        an_unusable_spec, "Ready", "False", "SpecNotImplemented", "use Observe or Auto"
    ),
    "no such container": Complaint(
        another_container, "ActionRequired", "True", "TargetNotFound", "spec.targetRef.container"
    ),
    "no Service": Complaint(
        no_service, "ActionRequired", "True", "RotationLabelWithoutEffect", "make a Service that selects"
    ),
    "strategy Recreate": Complaint(
        recreate, "ActionRequired", "True", "StrategyUnsupported", "set strategy.type: RollingUpdate"
    ),
    "a label that is in the selector": Complaint(
        another_label, "ActionRequired", "True", "RotationLabelInSelector", "name another label"
    ),
    "paused by somebody": Complaint(
        somebody_paused, "ActionRequired", "True", "TargetPaused", "kubectl rollout resume deployment/llm"
    ),
    "no device for the spare": Complaint(
        no_gpu_left, "Remediated", "False", "SpareUnschedulable", "free one device or raise the quota"
    ),
}


def lines(world: World, complaint: Complaint) -> list[str]:
    """Return the log lines of the resource that tell the complaint."""
    key = {"Ready": "problem", "ActionRequired": "reason", "Remediated": "outcome"}[complaint.condition]
    wanted = ("/llm ", f"{key}={complaint.reason} ")
    return [line for line in world.log.splitlines() if all(part in line for part in wanted)]


@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", COMPLAINTS)
def test_what_stands_in_the_way_is_told_once_with_what_to_do(
    a_world: Callable[..., World], name: str
) -> None:
    complaint = COMPLAINTS[name]
    world = a_world(2)
    complaint.arrange(world)

    world.start()
    said = lambda: world.condition(complaint.condition) == (complaint.status, complaint.reason)  # noqa: E731
    world.wait(said, PATIENCE_SECONDS, f"{complaint.reason} is told")
    sentence = told(world, complaint.condition)
    time.sleep(TICKS_SECONDS)

    assert complaint.advice in sentence
    assert said()
    assert "run" not in world.status()
    assert len(events(world, complaint.reason)) == 1
    assert complaint.advice in events(world, complaint.reason)[0]
    assert len(lines(world, complaint)) == 1


@pytest.mark.timeout(240)
def test_a_single_replica_is_healed_like_any_fleet(a_world: Callable[..., World]) -> None:
    world = a_world(1)

    world.start()
    world.wait(world.is_closed, PATIENCE_SECONDS, "the run closes")

    assert world.outcomes() == ["Recovered"]
    assert world.traces() == []


@pytest.mark.timeout(240)
def test_when_the_elder_goes_the_younger_takes_over(a_world: Callable[..., World]) -> None:
    world = a_world(2)
    an_elder(world)
    world.start()
    world.wait(lambda: world.condition("Ready") == ("False", "TargetShared"), PATIENCE_SECONDS, "it waits")

    world.kubectl("delete", "kvr", "elder")
    world.wait(world.is_closed, PATIENCE_SECONDS, "the younger's run closes")

    assert world.outcomes() == ["Recovered"]
