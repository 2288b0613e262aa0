"""The fleet as its owner would write it: namespace, workload, Service, KVRemediation, and what else."""

import copy
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from lab.engine.ranks import SUPERVISOR_PORT
from lab.play import vllm
from lab.play.files import merged
from lab.play.picker import pool_of
from lab.play.schema import (
    CONTAINER,
    EVALUATION,
    FLEET,
    MOST_RANKS,
    Engine,
    Evaluation,
    Flag,
    Fleet,
    Scenario,
)

Object = dict[str, Any]
PORT = 8080
"""Another one than the operator's configuration has: it must find it."""
PORT_NAMES = ("http", *(f"http-{rank}" for rank in range(1, MOST_RANKS)))
"""Of the engines of a pod, by rank."""
MODEL = "tiny"
"""Name under which every engine serves its model."""
ROTATION_LABEL: Mapping[str, str] = MappingProxyType({"key": "serving", "draining": "draining"})
"""The label that takes a replica out of the Service; the default of the KVRemediation."""
ROTATION = {ROTATION_LABEL["key"]: "active"}
APP = {"app": FLEET}
GOVERNING = f"{FLEET}-headless"
"""The headless Service that gives the pods of a StatefulSet their names."""
WORKERS = {"app": f"{FLEET}-worker"}
"""The labels of a group's worker: no Service selects it."""
GROUP_VERSION = "leaderworkerset.x-k8s.io/v1"
GROUP_SIZE = 2
SIDECAR = "proxy"
GRACE_SECONDS = 60
"""More than the engine's own --shutdown-timeout of 30 s, or the kubelet would cut it short."""
NEVER = "0 0 1 1 *"
"""A CronJob needs a schedule; a suspended one is only the mould of Jobs that somebody makes."""
POD_SECURITY: Mapping[str, Any] = MappingProxyType(
    {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
)
CONTAINER_SECURITY: Mapping[str, Any] = MappingProxyType(
    {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
)
LEVELS = {Engine.LAB: "restricted", Engine.VLLM: "privileged"}
"""Pod Security level by engine: real vLLM comes from the host's file system, which only one level allows."""


def namespace(name: str, engine: Engine) -> Object:
    """The fleet's namespace, under the strictest Pod Security level that the engine can do with."""
    labels = {"pod-security.kubernetes.io/enforce": LEVELS[engine]}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}


def objects(scenario: Scenario, image: str) -> Iterator[Object]:
    """Yield everything that the fleet's owner applies to its namespace, the KVRemediation last."""
    yield from front(scenario.fleet)
    yield from copy.deepcopy(scenario.fleet.objects)
    if scenario.evaluation is not None:
        yield evaluation(scenario.evaluation, image)
    yield workload(scenario.fleet, image)
    yield remediation(scenario)


def workload(fleet: Fleet, image: str) -> Object:
    """The engines: one GPU each, in rotation while they carry `serving: active`."""
    made: Object = {
        "apiVersion": "apps/v1",
        "kind": fleet.kind,
        "metadata": {"name": FLEET},
        "spec": {
            "replicas": fleet.replicas,
            "selector": {"matchLabels": {**APP, **(fleet.router or {})}},
            "template": _template(
                pod_labels(fleet), container(fleet, image), *([sidecar(image)] if fleet.plain else ())
            ),
        },
    }
    if fleet.engine is Engine.VLLM:
        vllm.on_this_machine(made)
    if fleet.groups is not None:
        return merged(_grouped(made, image), fleet.groups)
    if fleet.stateful_set is not None:
        made["spec"]["serviceName"] = GOVERNING
        return merged(made, fleet.stateful_set)
    numbers = {"maxSurge": 1, "maxUnavailable": 0}
    made["spec"]["strategy"] = {"type": "RollingUpdate", "rollingUpdate": numbers}
    found = merged(made, fleet.deployment)
    if found["spec"]["strategy"]["type"] != "RollingUpdate":
        del found["spec"]["strategy"]["rollingUpdate"]  # the API server refuses numbers of another strategy
    return found


def _template(labels: Mapping[str, str], *containers: Object) -> Object:
    spec = {
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "securityContext": {**POD_SECURITY},
        "containers": list(containers),
    }
    return {"metadata": {"labels": {**labels}}, "spec": spec}


def _grouped(made: Object, image: str) -> Object:
    """Return a LeaderWorkerSet whose leaders are a workload's pods.

    Its controller makes no headless Service, as the one that leads requests has its name.
    """
    template = {
        "size": GROUP_SIZE,
        "leaderTemplate": made["spec"]["template"],
        "workerTemplate": _template(WORKERS, sidecar(image)),
    }
    spec = {"replicas": made["spec"]["replicas"], "leaderWorkerTemplate": template}
    return {**made, "apiVersion": GROUP_VERSION, "spec": spec}


def container(fleet: Fleet, image: str) -> Object:
    """The engine's container: vLLM's own command line."""
    made = {
        "name": CONTAINER,
        "image": image,
        "imagePullPolicy": "Always" if fleet.registry else "IfNotPresent",
        "command": ["vllm"],
        "args": arguments(fleet),
        "env": [{"name": name, "value": value} for name, value in fleet.environment.items()],
        "ports": [
            {"name": name, "containerPort": port}
            for name, port in zip(PORT_NAMES, ports(fleet), strict=False)
        ],
        "readinessProbe": {
            "httpGet": {"path": "/health", "port": SUPERVISOR_PORT if fleet.ranks > 1 else "http"},
            "periodSeconds": 1,
            "timeoutSeconds": 5,
            "failureThreshold": 10,
        },
        "resources": {
            "requests": {"cpu": "100m", "memory": "64Mi"},
            "limits": {"nvidia.com/gpu": "1", "memory": "512Mi"},
        },
        "securityContext": {**CONTAINER_SECURITY},
    }
    return merged(made, fleet.container)


def sidecar(image: str) -> Object:
    """Return a second container, as many pods have one: it waits, and ends when it is asked to."""
    wait = "import signal as s; s.pthread_sigmask(s.SIG_BLOCK, {s.SIGTERM}); s.sigwait({s.SIGTERM})"
    return {
        "name": SIDECAR,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python", "-c", wait],
        "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}, "limits": {"memory": "64Mi"}},
        "securityContext": {**CONTAINER_SECURITY},
    }


def arguments(fleet: Fleet) -> list[str]:
    """Return the engine's command line: the model, then each flag as the file names it."""
    model = str(vllm.MODEL) if fleet.engine is Engine.VLLM else "lab/model"
    several = {"data-parallel-size": fleet.ranks, "data-parallel-multi-port-external-lb": True}
    own: dict[str, Flag] = {"served-model-name": MODEL, "port": PORT, **fleet.flags}
    own |= several if fleet.ranks > 1 else {}
    return ["serve", model, *(word for name, value in own.items() for word in _flag(name, value))]


def ports(fleet: Fleet) -> tuple[int, ...]:
    """Return the ports of a pod's engines, one for each rank."""
    return tuple(range(PORT, PORT + fleet.ranks))


def _flag(name: str, value: Flag) -> tuple[str, ...]:
    if value is None or value is False:
        return ()
    return (f"--{name}",) if value is True else (f"--{name}", str(value))


def pod_labels(fleet: Fleet) -> dict[str, str]:
    """The labels of a serving replica, by which the Service or the InferencePool selects it."""
    return {**APP, **(fleet.router or {}), **({} if fleet.plain else ROTATION)}


def front(fleet: Fleet) -> Iterator[Object]:
    """Yield what leads requests to the replicas; a router finds them without an object."""
    if fleet.stateful_set is not None:
        yield governing(fleet)
    if fleet.pool is not None:
        yield pool_of(fleet.pool, pod_labels(fleet), ports(fleet))
    elif fleet.router is None:
        yield service(fleet)


def service(fleet: Fleet) -> Object:
    """Where clients send; a replica leaves it by its label `serving`, or by the one that it has."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": FLEET},
        "spec": {
            "selector": pod_labels(fleet),
            "ports": [{"name": "http", "port": PORT, "targetPort": "http"}],
        },
    }


def governing(fleet: Fleet) -> Object:
    """Return the headless Service of a StatefulSet; peers find its pods by their names, clients do not."""
    made = service(fleet)
    return merged(made, {"metadata": {"name": GOVERNING}, "spec": {"clusterIP": "None"}})


def evaluation(asked: Evaluation, image: str) -> Object:
    """The team's evaluation, out of the lab engine's image: a Job made of it says where to ask."""
    pod = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "securityContext": {**POD_SECURITY},
        "containers": [_evaluator(asked, image)],
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": {"name": EVALUATION},
        "spec": {
            "schedule": NEVER,
            "suspend": True,
            "jobTemplate": {"spec": {"backoffLimit": 0, "template": {"spec": pod}}},
        },
    }


def _evaluator(asked: Evaluation, image: str) -> Object:
    settings = {name.upper(): str(value) for name, value in asked.model_dump().items()}
    return {
        "name": EVALUATION,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python", "-m", "lab.evaluation"],
        "env": [{"name": name, "value": value} for name, value in settings.items()],
        "resources": {"requests": {"cpu": "50m", "memory": "32Mi"}, "limits": {"memory": "256Mi"}},
        "securityContext": {**CONTAINER_SECURITY},
    }


def remediation(scenario: Scenario) -> Object:
    """What the fleet's owner asks of the operator."""
    return {
        "apiVersion": "kvmedic.io/v1alpha1",
        "kind": "KVRemediation",
        "metadata": {"name": FLEET},
        "spec": scenario.remediation,
    }
