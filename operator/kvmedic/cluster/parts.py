"""What belongs to a workload of each kind, read in the order of cause and effect.

Each reader returns it in the shape that a Deployment's has: revisions are ReplicaSets there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from kvmedic.cluster.orphan_pods import is_put_back, is_released, owned_by_hash
from kvmedic.cluster.ownership import CORDONED_FOR
from kvmedic.cluster.stateful.groups import find_selector_blocker, read_groups
from kvmedic.cluster.stateful.revisions import as_replica_sets, is_complete, pods_of_set, revisions_of_set
from kvmedic.kube.objects import (
    AUTOSCALERS,
    ENDPOINT_SLICES,
    PODS,
    REPLICA_SETS,
    SERVICES,
    JsonObject,
    controller_uid,
    is_finished,
    labels_of,
    name_of,
    section,
    selector_text,
    uid_of,
)
from kvmedic.model.fleet import DEPLOYMENT, LEADER_WORKER_SET, STATEFUL_SET, Groups

if TYPE_CHECKING:
    from kvmedic.kube.client import Reader

SERVICE_NAME = "kubernetes.io/service-name"
"""Label of an EndpointSlice that names its Service (discovery.k8s.io/v1)."""
REVISION = "deployment.kubernetes.io/revision"
"""Annotation of a ReplicaSet: the number that `kubectl rollout history` shows."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What was read, in the order of reading."""

    kind: str
    deployment: JsonObject
    """The workload, with its pod template where a Deployment has it."""
    replica_sets: list[JsonObject]
    pods: list[JsonObject]
    released: list[JsonObject]
    """Pods that were released from their ReplicaSet to be drained."""
    services: list[JsonObject]
    slices: list[JsonObject]
    autoscalers: list[JsonObject]
    is_complete: bool = True
    """The last rollout of what is held by a partition is complete, by its controller's count."""
    groups: Groups | None = None
    """Of a LeaderWorkerSet."""


async def parts_of_deployment(client: Reader, namespace: str, deployment: JsonObject) -> Parts:
    """Read what belongs to a Deployment: by owner, since labels alone may be shared."""
    selector = selector_text(section(deployment, "spec", "selector"))
    found = await client.list(REPLICA_SETS, namespace, selector)
    sets = [each for each in found if controller_uid(each) == uid_of(deployment)]
    makers = {uid_of(each) for each in sets}
    marked = await client.list(PODS, namespace, f"{CORDONED_FOR}={uid_of(deployment)}")
    released = [pod for pod in marked if is_released(pod, uid_of(deployment))]
    adopted = [
        taken
        for pod in marked
        if is_put_back(pod, uid_of(deployment))
        if (taken := owned_by_hash(pod, sets)) and not is_finished(pod)
    ]
    apart = {uid_of(pod) for pod in released}
    return Parts(
        DEPLOYMENT,
        deployment,
        sets,
        pods=[
            pod
            for pod in await client.list(PODS, namespace, selector)
            if controller_uid(pod) in makers and not is_finished(pod) and uid_of(pod) not in apart
        ]
        + adopted,
        released=released,
        services=await client.list(SERVICES, namespace),
        slices=await client.list(ENDPOINT_SLICES, namespace),
        autoscalers=await client.list(AUTOSCALERS, namespace),
    )


async def parts_of_set(client: Reader, namespace: str, body: JsonObject) -> Parts:
    """Read what belongs to a StatefulSet; nothing of it is ever released from a ReplicaSet."""
    selector = selector_text(section(body, "spec", "selector"))
    revisions = await revisions_of_set(client, namespace, body, selector)
    pods = await pods_of_set(client, namespace, body, selector)
    return Parts(
        STATEFUL_SET,
        body,
        as_replica_sets(body, revisions, pods, REVISION),
        pods=pods,
        released=[],
        services=await client.list(SERVICES, namespace),
        slices=await client.list(ENDPOINT_SLICES, namespace),
        autoscalers=await client.list(AUTOSCALERS, namespace),
        is_complete=is_complete(body),
    )


async def parts_of_groups(client: Reader, namespace: str, body: JsonObject) -> Parts:
    """Read what belongs to a LeaderWorkerSet.

    By the headless Services of its controller the pods of a group find each other. They lead no client to it,
    and a leader stays in them while it is drained.
    """
    found = await read_groups(client, body)
    services = await client.list(SERVICES, namespace)
    own = {name_of(each) for each in services if controller_uid(each) in found.owners}
    fronts = [each for each in services if name_of(each) not in own]
    doubt = found.groups.unfit or find_selector_blocker(fronts, found.worker_labels)
    slices = await client.list(ENDPOINT_SLICES, namespace)
    return Parts(
        LEADER_WORKER_SET,
        found.workload,
        found.replica_sets,
        pods=found.leaders,
        released=[],
        services=fronts,
        slices=[each for each in slices if labels_of(each).get(SERVICE_NAME) not in own],
        autoscalers=await client.list(AUTOSCALERS, namespace),
        is_complete=found.is_complete,
        groups=replace(found.groups, unfit=doubt),
    )


READERS = MappingProxyType(
    {DEPLOYMENT: parts_of_deployment, STATEFUL_SET: parts_of_set, LEADER_WORKER_SET: parts_of_groups}
)
"""By the kind of the workload."""
