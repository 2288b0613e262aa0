"""N fleets as an API server has them: written once, moved by nobody.

No controller and no kubelet runs: every object has the status that they would have written, so what the API
server is asked afterwards is the operator's doing alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from lab.cluster.api import Api, Object

PER_NAMESPACE = 10
HASH = "7d9c6b5f4d"
SPARSE: Callable[[ScaleFleet], tuple[int, int]] = lambda fleet: (fleet.number % PER_NAMESPACE, fleet.number)  # noqa: E731
"""Order in which fleets become sick: one of each namespace first."""
NODE = "gpu-node"
WRITERS = 4


def _suffix(number: int) -> str:
    """What ends a pod's name, of which no two pods have the same: a ReplicaSet's is random."""
    return "".join("bcdfghjklmnpqrstvwxz"[number // 20**place % 20] for place in reversed(range(5)))


@dataclass(frozen=True, slots=True)
class ScaleFleet:
    """One fleet: a Deployment, its replicas, its Service and its KVRemediation."""

    number: int
    replicas: int

    @property
    def namespace(self) -> str:
        return f"team-{self.number // PER_NAMESPACE}"

    @property
    def name(self) -> str:
        return f"chat-{self.number % PER_NAMESPACE}"

    def pods(self) -> list[str]:
        first = self.number * self.replicas
        return [f"{self.name}-{HASH}-{_suffix(first + i)}" for i in range(self.replicas)]

    def address(self, replica: int) -> str:
        count = self.number * self.replicas + replica
        return f"10.{64 + count // 62500}.{count // 250 % 250}.{count % 250 + 1}"

    def targets(self) -> list[dict[str, str]]:
        """The labels that Prometheus puts on each replica's series, as prometheus-operator has them made."""
        return [
            {
                "namespace": self.namespace,
                "pod": pod,
                "container": "vllm",
                "endpoint": "http",
                "instance": f"{self.address(i)}:8000",
                "job": f"monitoring/{self.name}",
                "service": self.name,
            }
            for i, pod in enumerate(self.pods())
        ]

    def engine(self) -> dict[str, Any]:
        """What its pods' container says of the engine."""
        args = ["--max-model-len", "2048", "--max-num-seqs=64", "--block-size=32"]
        return {"command": ["vllm", "serve", "/models/tiny"], "args": args}

    def template(self) -> dict[str, Any]:
        """What its Deployment makes pods from."""
        container = {
            "name": "vllm",
            "image": "vllm/vllm-openai:v0.32.0",
            **self.engine(),
            "ports": [{"name": "http", "containerPort": 8000}],
            "resources": {"limits": {"nvidia.com/gpu": "1"}, "requests": {"nvidia.com/gpu": "1"}},
            "readinessProbe": {"httpGet": {"path": "/health", "port": 8000}},
        }
        return {"metadata": {"labels": {"app": self.name}}, "spec": {"containers": [container]}}


def fleets(count: int, replicas: int) -> list[ScaleFleet]:
    return [ScaleFleet(number, replicas) for number in range(count)]


def _deployment(fleet: ScaleFleet) -> Object:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": fleet.name, "annotations": {"deployment.kubernetes.io/revision": "1"}},
        "spec": {
            "replicas": fleet.replicas,
            "selector": {"matchLabels": {"app": fleet.name}},
            "template": fleet.template(),
        },
    }


def _owned(owner: Object, name: str, **metadata: Any) -> dict[str, Any]:
    reference = {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
    return {"name": name, "ownerReferences": [reference], **metadata}


def _counts(fleet: ScaleFleet) -> dict[str, int]:
    return {"replicas": fleet.replicas, "readyReplicas": fleet.replicas, "availableReplicas": fleet.replicas}


def _pod_status(fleet: ScaleFleet, replica: int, now: str) -> dict[str, Any]:
    address = fleet.address(replica)
    running = {
        "name": "vllm",
        "image": "vllm/vllm-openai:v0.32.0",
        "imageID": "vllm/vllm-openai@sha256:" + "0" * 64,
        "ready": True,
        "started": True,
        "restartCount": 0,
        "state": {"running": {"startedAt": now}},
    }
    kinds = ("PodScheduled", "Initialized", "ContainersReady", "Ready")
    return {
        "phase": "Running",
        "podIP": address,
        "podIPs": [{"ip": address}],
        "hostIP": "10.0.0.1",
        "startTime": now,
        "conditions": [{"type": kind, "status": "True", "lastTransitionTime": now} for kind in kinds],
        "containerStatuses": [running],
    }


def create(api: Api, fleet: ScaleFleet, spec: dict[str, Any]) -> None:
    """Write one fleet with everything that its controllers would have made of it, and its resource."""
    create_workload(api, fleet)
    create_resource(api, fleet, spec)


def create_resource(api: Api, fleet: ScaleFleet, spec: dict[str, Any]) -> None:
    """Write the resource that has a fleet looked after."""
    api.create(
        {
            "apiVersion": "kvmedic.io/v1alpha1",
            "kind": "KVRemediation",
            "metadata": {"name": fleet.name},
            "spec": {"targetRef": {"kind": "Deployment", "name": fleet.name}, **spec},
        },
        fleet.namespace,
    )


def create_workload(api: Api, fleet: ScaleFleet) -> None:
    """Write one fleet with everything that its controllers would have made of it."""
    now, place = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"), fleet.namespace
    deployment = api.create(_deployment(fleet), place)
    available = [{"type": "Available", "status": "True", "reason": "MinimumReplicasAvailable", "message": ""}]
    status = {"observedGeneration": 1, "updatedReplicas": fleet.replicas, **_counts(fleet)}
    api.patch("Deployment", fleet.name, {"status": {**status, "conditions": available}}, place, "status")
    labels = {"app": fleet.name, "pod-template-hash": HASH}
    template = fleet.template()
    template["metadata"]["labels"] = labels
    made = _owned(deployment, f"{fleet.name}-{HASH}", labels=labels)
    made["annotations"] = {"deployment.kubernetes.io/revision": "1"}
    maker = api.create(
        {
            "apiVersion": "apps/v1",
            "kind": "ReplicaSet",
            "metadata": made,
            "spec": {"replicas": fleet.replicas, "selector": {"matchLabels": labels}, "template": template},
        },
        place,
    )
    api.patch(
        "ReplicaSet",
        f"{fleet.name}-{HASH}",
        {"status": {"observedGeneration": 1, **_counts(fleet)}},
        place,
        "status",
    )
    uids = []
    for replica, name in enumerate(fleet.pods()):
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": _owned(maker, name, labels=labels)}
        pod["spec"] = {**template["spec"], "nodeName": NODE}
        uids.append(api.create(pod, place)["metadata"]["uid"])
        api.patch("Pod", name, {"status": _pod_status(fleet, replica, now)}, place, "status")
    _create_front(api, fleet, uids)


def _create_front(api: Api, fleet: ScaleFleet, uids: list[str]) -> None:
    place, port = fleet.namespace, {"name": "http", "port": 8000, "protocol": "TCP"}
    # Without an address: the light tier has 254 of them.
    service = {"selector": {"app": fleet.name}, "ports": [port], "clusterIP": "None"}
    front = api.create(
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": fleet.name}, "spec": service}, place
    )
    endpoints = [
        {
            "addresses": [fleet.address(i)],
            "conditions": {"ready": True, "serving": True, "terminating": False},
            "targetRef": {"kind": "Pod", "name": name, "namespace": place, "uid": uids[i]},
        }
        for i, name in enumerate(fleet.pods())
    ]
    labels = {"kubernetes.io/service-name": fleet.name}
    slice_ = {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4"}
    api.create(
        {
            **slice_,
            "metadata": _owned(front, f"{fleet.name}-x", labels=labels),
            "endpoints": endpoints,
            "ports": [port],
        },
        place,
    )


def populate(api: Api, all_fleets: list[ScaleFleet], spec: dict[str, Any]) -> None:
    """Write all fleets, their namespaces, and a node with room for spares."""
    gpus = {
        "cpu": "10k",
        "memory": "1Ti",
        "pods": "100k",
        "nvidia.com/gpu": str(4 * sum(f.replicas for f in all_fleets)),
    }
    ready = [{"type": "Ready", "status": "True", "reason": "KubeletReady"}]
    api.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
    api.patch("Node", NODE, {"spec": {"taints": None}})
    api.patch(
        "Node",
        NODE,
        {"status": {"capacity": gpus, "allocatable": gpus, "conditions": ready}},
        subresource="status",
    )
    api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kvmedic-system"}})
    create_all(api, all_fleets, lambda fleet: create(api, fleet, spec))


def create_all(api: Api, all_fleets: Sequence[ScaleFleet], write: Callable[[ScaleFleet], None]) -> None:
    """Write fleets, several at once, and their namespaces."""
    for name in sorted({fleet.namespace for fleet in all_fleets}):
        api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    with ThreadPoolExecutor(WRITERS) as writers:
        for _ in writers.map(write, all_fleets):
            pass
