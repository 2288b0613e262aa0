"""The fleet as its owner would write it: namespace, Deployment, Service, KVRemediation."""

from __future__ import annotations

from typing import Any

from . import vllm
from .scenario import CONTAINER, FLEET, NAMESPACE, PORT, ROTATION_LABEL, Engine, Fleet, Scenario

Object = dict[str, Any]
ROTATION = {ROTATION_LABEL["key"]: "active"}
APP = {"app": FLEET}
GRACE_SECONDS = 60
"""More than the engine's own --shutdown-timeout of 30 s, or the kubelet would cut it short."""
LEVELS = {Engine.LAB: "restricted", Engine.VLLM: "privileged"}
"""Pod Security level by engine: real vLLM comes from the host's file system, which only one level allows."""


def namespace(engine: Engine) -> Object:
    """The fleet's namespace, under the strictest Pod Security level that the engine can do with."""
    labels = {"pod-security.kubernetes.io/enforce": LEVELS[engine]}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels}}


def deployment(fleet: Fleet, image: str) -> Object:
    """The engines: one GPU each, in rotation while they carry `serving: active`."""
    made: Object = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": FLEET, "namespace": NAMESPACE},
        "spec": {
            "replicas": fleet.replicas,
            "selector": {"matchLabels": APP},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            "template": {
                "metadata": {"labels": {**APP, **ROTATION}},
                "spec": {
                    "terminationGracePeriodSeconds": GRACE_SECONDS,
                    "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
                    "containers": [container(fleet, image)],
                },
            },
        },
    }
    if fleet.engine is Engine.VLLM:
        vllm.on_this_machine(made)
    return made


def container(fleet: Fleet, image: str) -> Object:
    """The engine's container: vLLM's own command line."""
    return {
        "name": CONTAINER,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["vllm"],
        "args": list(fleet.args),
        "env": [{"name": name, "value": value} for name, value in fleet.env.items()],
        "ports": [{"name": "http", "containerPort": PORT}],
        "readinessProbe": {
            "httpGet": {"path": "/health", "port": "http"},
            "periodSeconds": 1,
            "timeoutSeconds": 5,
            "failureThreshold": 10,
        },
        "resources": {
            "requests": {"cpu": "100m", "memory": "64Mi"},
            "limits": {"nvidia.com/gpu": "1", "memory": "512Mi"},
        },
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }


def service() -> Object:
    """Where clients send; a replica leaves it by its label `serving`."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": FLEET, "namespace": NAMESPACE},
        "spec": {
            "selector": {**APP, **ROTATION},
            "ports": [{"name": "http", "port": PORT, "targetPort": "http"}],
        },
    }


def remediation(scenario: Scenario) -> Object:
    """What the fleet's owner asks of the operator."""
    return {
        "apiVersion": "kvmedic.io/v1alpha1",
        "kind": "KVRemediation",
        "metadata": {"name": FLEET, "namespace": NAMESPACE},
        "spec": dict(scenario.spec),
    }
