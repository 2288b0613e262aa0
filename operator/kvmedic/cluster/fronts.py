"""What leads requests to pods by their labels: the way of draining follows.

Services, headless ones too, InferencePools of the Gateway API Inference Extension, and routers that watch
pods by label without a Service. Those are recognised by what their charts put on pods, or named in the spec.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

from kvmedic.cluster.neighbours.pod_policies import (
    DISRUPTION_BUDGETS,
    NETWORK_POLICIES,
    find_policy_blocker,
    policies_of_draining,
)
from kvmedic.kube.errors import NOT_FOUND, Refused
from kvmedic.kube.objects import JsonObject, Resource, is_ready, items, labels_of, name_of, section, uid_of
from kvmedic.model.fleet import POD_TEMPLATE_HASH, LabelFront, OrphanDrain, Rotation
from kvmedic.model.spec import RotationWay
from kvmedic.rollout.orphan_drain import GROUP_LABELS, RELEASED_HASH, choose_keys, draining_value
from kvmedic.runbooks.workload import View

if TYPE_CHECKING:
    from kvmedic.kube.client import Reader

INFERENCE_POOLS = (
    Resource("inference.networking.k8s.io/v1", "inferencepools"),
    Resource("inference.networking.x-k8s.io/v1alpha2", "inferencepools"),
)
"""Of the released API, and of the one before it, which clusters still serve."""

ROUTER_LABELS = (
    ("model.aibrix.ai/name",),
    ("helm-release-name", "environment", "release"),
    ("llm-d.ai/inferenceServing",),
    ("llm-d.ai/inference-serving",),
)
"""Labels by which routers find pods, all of a row being there: AIBrix's gateway; production-stack's router,
whose chart gives it the last two of its row as `--k8s-label-selector`; llm-d's, spelt in two ways."""
_NOT_SELECTED = "helm-release-name"
"""It shows that the chart of production-stack made the pod; its router does not go by it."""

PLAIN_RESOURCES = ("cpu", "memory", "ephemeral-storage", "hugepages-")
"""Resources that are no device; there is usually room for a little more of them."""


class Depth(Enum):
    """How much of a fleet's surroundings a look reads."""

    QUICK = "quick"
    """Enough to judge the fleet: what leads requests to it."""
    WHOLE = "whole"
    """All that draining a replica depends on as well."""


@dataclass(frozen=True, slots=True)
class DrainWay:
    """How replicas are drained, by the spec, and how much is read of what that depends on."""

    way: RotationWay = RotationWay.LABEL
    routers: Sequence[Mapping[str, str]] = ()
    """Labels by which routers find pods without a Service."""
    depth: Depth = Depth.WHOLE


BY_LABEL = DrainWay()
NOT_READ = "what policies do with a replica that drains was not read yet"
"""Why nothing is drained after a quick look."""


async def with_orphan_drain(
    client: Reader,
    deployment: JsonObject,
    rotation: Rotation,
    routers: Sequence[Mapping[str, str]],
    parts: tuple[Sequence[JsonObject], Iterable[str]],
    depth: Depth = Depth.WHOLE,
) -> Rotation:
    """Return the rotation of a fleet whose replicas are drained without a label of their own.

    Args:
        client: of the cluster.
        deployment: the fleet's.
        rotation: by its label.
        routers: labels by which routers find pods, by the spec.
        parts: the Services of the namespace, and the names of those whose EndpointSlices list the pods.
        depth: a quick look reads nothing where a Service leads requests to the pods.

    Raises:
        ApiError: a read failed.
    """
    services, listing = parts
    template = section(deployment, "spec", "template")
    labels = labels_of(template)
    known = tuple(
        LabelFront(f"Service {name_of(each)}", section(each, "spec", "selector"))
        for each in services
        if selects(each, labels)
    )
    untouched = find_nonselecting_services(listing, services, template)
    begun = OrphanDrain(
        (), _untouched_message(untouched), _has_device(template), services=known, is_whole=False
    )
    partial = replace(rotation, orphan=begun)
    namespace = str(section(deployment, "metadata")["namespace"])
    if depth is Depth.WHOLE or not rotation.services:
        return await whole_drain(client, namespace, template, partial, routers)
    fronts = _router_fronts(labels, routers)
    keys = choose_keys(labels, [each.selector for each in (*known, *fronts)], lambda _: 0)
    return replace(
        rotation, orphan=replace(begun, keys=keys, blocked=begun.blocked or NOT_READ, fronts=fronts)
    )


async def complete_drain(client: Reader, view: View, routers: Sequence[Mapping[str, str]]) -> View:
    """Return a fleet with all that draining depends on, where only a quick look was taken.

    Raises:
        ApiError: a read failed.
    """
    fleet = view.fleet
    found = await whole_drain(client, fleet.namespace, view.template, fleet.rotation, routers)
    return replace(view, fleet=replace(fleet, rotation=found))


async def whole_drain(
    client: Reader,
    namespace: str,
    template: Mapping[str, Any],
    rotation: Rotation,
    routers: Sequence[Mapping[str, str]],
) -> Rotation:
    """Return a rotation with all that draining depends on, where only a quick look was taken."""
    begun = rotation.orphan or rotation.relabel
    if begun is None or begun.is_whole:
        return rotation
    kinds = (*INFERENCE_POOLS, DISRUPTION_BUDGETS, NETWORK_POLICIES)
    *pools, budgets, networks = await asyncio.gather(*(list_kind(client, each, namespace) for each in kinds))
    labels = {**labels_of(template), POD_TEMPLATE_HASH: "current"}
    fronts = (
        *(_front_of_pool(pool) for found in pools for pool in found),
        *_router_fronts(labels, routers),
    )
    selectors = [each.selector for each in (*begun.services, *fronts)]

    def list_affected(after: Mapping[str, str]) -> tuple[str, ...]:
        return tuple(policies_of_draining(budgets, networks, labels, after))

    keys = choose_keys(labels, selectors, lambda after: len(list_affected(after)))
    released = {**labels, POD_TEMPLATE_HASH: f"{RELEASED_HASH}current"}
    drained = {**released, **dict.fromkeys(keys, draining_value(""))}
    policies = tuple(dict.fromkeys((*list_affected(released), *list_affected(drained))))
    untouched = begun.blocked if begun.blocked != NOT_READ else ""
    taking = tuple(front for front in fronts if front.takes(labels))
    names = [front.name for front in (*begun.services, *taking) if _goes_by_groups(front)]
    blocked = untouched or _find_group_blocker(names) or _find_drain_blocker(keys, policies)
    whole = replace(begun, keys=keys, blocked=blocked, fronts=taking, is_whole=True)
    return replace(rotation, relabel=whole) if rotation.relabel else replace(rotation, orphan=whole)


def _router_fronts(labels: Mapping[str, str], routers: Sequence[Mapping[str, str]]) -> tuple[LabelFront, ...]:
    """Return the routers that are known by what their charts put on pods, or named in the spec."""
    return tuple(LabelFront("a router", each) for each in (*_known_routers(labels), *routers))


def find_label_fronts(pods: Iterable[JsonObject], fronts: Iterable[LabelFront]) -> dict[str, tuple[str, ...]]:
    """Return what leads requests to a Ready pod that no Service lists, by the pod's uid.

    Pickers and routers take a pod that is Ready and not being deleted as soon as they see its labels.
    """
    found: dict[str, tuple[str, ...]] = {}
    for pod in pods:
        names = tuple(sorted({front.name for front in fronts if front.takes(labels_of(pod))}))
        if is_ready(pod) and names and "deletionTimestamp" not in section(pod, "metadata"):
            found[uid_of(pod)] = names
    return found


def usable_label(rotation: Rotation) -> bool:
    """Return whether the rotation label takes a pod out of everything that leads requests to it."""
    return rotation.effective and not rotation.in_selector and not rotation.rivals


def find_nonselecting_services(
    names: Iterable[str], services: Sequence[JsonObject], template: Mapping[str, Any]
) -> tuple[str, ...]:
    """Return what lists pods of a template and does not select them, so that no label takes a pod out of it.

    Args:
        names: of the Services whose EndpointSlices list the pods; an empty one for slices of no Service.
        services: all of the namespace.
        template: of the pods.
    """
    labels = labels_of(template)
    by_labels = {name_of(each) for each in services if selects(each, labels)}
    return tuple(
        sorted(
            f"Service {name}" if name else "an EndpointSlice of no Service" for name in {*names} - by_labels
        )
    )


def selects(service: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Return whether a Service selects pods with these labels; an empty selector selects none."""
    selector = section(service, "spec", "selector")
    return bool(selector) and selector.items() <= labels.items()


def _front_of_pool(pool: JsonObject) -> LabelFront:
    """Return an InferencePool as a front; the older API has one port, by another name."""
    spec = section(pool, "spec")
    numbers = [each.get("number") for each in items(spec, "targetPorts")] or [spec.get("targetPortNumber")]
    ports = tuple(sorted({port for port in numbers if isinstance(port, int)}))
    return LabelFront(f"InferencePool {name_of(pool)}", _pool_selector(pool), ports)


def _pool_selector(pool: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the labels that an InferencePool selects by; the older API has them without `matchLabels`."""
    selector = section(pool, "spec", "selector")
    return section(selector, "matchLabels") or {
        key: text for key, text in selector.items() if isinstance(text, str)
    }


def _known_routers(labels: Mapping[str, str]) -> Iterator[Mapping[str, str]]:
    for row in ROUTER_LABELS:
        if all(key in labels for key in row):
            yield {key: labels[key] for key in row if key != _NOT_SELECTED}


def _has_device(template: Mapping[str, Any]) -> bool:
    spec = section(template, "spec")
    asked = {
        name
        for container in items(spec, "containers")
        for kind in ("requests", "limits")
        for name in section(container, "resources", kind)
    }
    return bool(spec.get("resourceClaims")) or any(not name.startswith(PLAIN_RESOURCES) for name in asked)


def _untouched_message(names: Sequence[str]) -> str:
    """Return what to do about what lists the pods and does not select them; empty where nothing does."""
    if not names:
        return ""
    return (
        f"{', '.join(names)} lists the pods whatever their labels are, so no label takes one out: "
        "have it select them, or remove the slice that no controller keeps"
    )


def _goes_by_groups(front: LabelFront) -> bool:
    return bool(front.selector) and all(key.startswith(GROUP_LABELS) for key in front.selector)


def _find_group_blocker(names: Sequence[str]) -> str:
    """Return what to do about what selects a LeaderWorkerSet's leaders by its controller's labels alone."""
    if not names:
        return ""
    return (
        f"{', '.join(names)} selects the leaders by labels of {GROUP_LABELS} alone, which are never changed: "
        "give leaderTemplate a label of its own, such as role: leader, and select by it too"
    )


def _find_drain_blocker(keys: Sequence[str], policies: Sequence[str]) -> str:
    """Return why the labels do not take a replica out of rotation, and what does; empty where they do."""
    if not keys:
        return (
            "nothing leads requests to the pods by their labels: make a Service that selects them, or name "
            "what your router selects by in spec.rollout.routers"
        )
    return find_policy_blocker(keys, policies)


async def list_kind(client: Reader, kind: Resource, namespace: str) -> list[JsonObject]:
    """Return all objects of a kind in the order of their names; none where the cluster lacks the kind."""
    try:
        found = await client.list(kind, namespace)
    except Refused as error:
        if error.code == NOT_FOUND:
            return []
        raise
    return sorted(found, key=name_of)


def front_port(services: Iterable[JsonObject], template: Mapping[str, Any]) -> int | None:
    """Return the one port of a template's pods that their Services lead to; None: none, or several."""
    labels, named = labels_of(template), _ports_by_name(section(template, "spec"))
    ports = [
        port for each in services if selects(each, labels) for port in items(section(each, "spec"), "ports")
    ]
    targets = [
        port.get("targetPort") or port.get("port") for port in ports if port.get("protocol", "TCP") == "TCP"
    ]
    # A name that no container has leads nowhere; that it does is not worth a guess.
    numbers = {named.get(each) if isinstance(each, str) else each for each in targets}
    return next((int(one) for one in numbers if isinstance(one, int)), None) if len(numbers) == 1 else None


def _ports_by_name(pod: Mapping[str, Any]) -> dict[str, int]:
    """Return the TCP ports of a pod that have a name, as a Service finds them (Kubernetes 1.36, `FindPort`).

    Containers come first, then those that start before them and stay; the first of a name counts.
    """
    stays = (each for each in items(pod, "initContainers") if each.get("restartPolicy") == "Always")
    ports = [port for each in (*items(pod, "containers"), *stays) for port in items(each, "ports")]
    return {
        str(port["name"]): int(port["containerPort"])
        for port in reversed(ports)
        if port.get("name") and port.get("protocol", "TCP") == "TCP"
    }


def reaches(services: Iterable[JsonObject], deployment: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Return whether every Service that selects a Deployment's pods would select pods with these labels."""
    own = section(deployment, "spec", "template", "metadata", "labels")
    return all(selects(each, labels) for each in services if selects(each, own))
