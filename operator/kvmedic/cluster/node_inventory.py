"""What decides whether one pod more of a fleet finds a place: nodes, what runs there, quotas, claims.

Read only where a change is about to begin. What may not be read is said, and is no "no". The pod's shape is
that of a replica that runs, where one does: admission has put into it what the template does not have, such
as default requests, tolerations of devices and injected containers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from kvmedic.kube.errors import Refused
from kvmedic.kube.objects import (
    CLAIMS,
    NODES,
    PODS,
    QUOTAS,
    JsonObject,
    Ref,
    annotations_of,
    is_finished,
    items,
    labels_of,
    name_of,
    namespace_of,
    section,
)
from kvmedic.model.compression import parse_quantity
from kvmedic.model.fleet import POD_TEMPLATE_HASH, Fleet
from kvmedic.rollout.spares.room import (
    NODE_NAME,
    Amounts,
    Finding,
    HostPort,
    Node,
    NodeTerm,
    NoRoom,
    PodTerm,
    Quota,
    Requirement,
    RoomUnknown,
    Shape,
    Spread,
    Surroundings,
    Taint,
    Tenant,
    Tenants,
    Toleration,
    find_room,
)

if TYPE_CHECKING:
    from kvmedic.kube.client import Reader

T = TypeVar("T")

RUNNING = "status.phase!=Succeeded,status.phase!=Failed"
"""Field selector of the pods that take a place."""
FEW_NODES = 16
"""Nodes whose pods are asked for one by one; with more, one list of all pods costs less."""
SURROUNDINGS_LAST = timedelta(minutes=1)
"""How long all examinations share nodes and pods: each would read all of the cluster anew."""
OLDEST_AT_RUN_START = timedelta(seconds=10)
"""How old nodes and pods may be where a run begins: a spare that finds its place taken is taken back."""
ANY_PRIORITY = 2**31
"""Priority of a pod whose class is named and whose number is not known: nothing is sure to keep it out."""
KARPENTER = ("karpenter.sh/nodepool", "karpenter.sh/provisioner-name")
"""Labels of nodes that Karpenter made."""
CLUSTER_AUTOSCALER = ("ToBeDeletedByClusterAutoscaler", "DeletionCandidateOfClusterAutoscaler")
"""Taints by which the cluster autoscaler marks nodes; it adds nodes where it removes some."""
SCALE_DOWN = "cluster-autoscaler.kubernetes.io/"
"""Prefix of annotations for the cluster autoscaler."""


async def room_for(
    client: Reader, fleet: Fleet, template: Mapping[str, Any], shared: SharedSurroundings | None = None
) -> Finding:
    """Return whether one pod more of a fleet finds a place now.

    Args:
        client: of the cluster.
        fleet: whose pod it is.
        template: of its pods.
        shared: knows all nodes and what runs on them; None: the nodes are listed, and what runs where it
            can make a difference.
    """
    shape = _on_named_node(await _shape_of_spare(client, fleet, template), template)
    if taken := port_of_named_node(shape, fleet):
        return NoRoom(taken)
    around = await _without_tenants(client, shape, _nodes(client) if shared is None else shared.nodes())
    without = find_room(shape, around)
    if isinstance(without, NoRoom | RoomUnknown) and not shape.near:
        return without
    try:
        tenants = await (_tenants(client, shape, around) if shared is None else shared.tenants())
        around = replace(around, tenants=tenants)
    except Refused as error:
        return RoomUnknown(f"the operator may not see what runs on the nodes: {error}")
    used = {pod.node for pod in fleet.live if pod.node}
    if around.nodes and not used <= {node.name for node in around.nodes}:
        return RoomUnknown("replicas run on nodes that are not listed")
    return find_room(shape, around)


async def _shape_of_spare(client: Reader, fleet: Fleet, template: Mapping[str, Any]) -> Shape:
    ready = [pod for pod in fleet.list_pods(fleet.revision) if pod.ready]
    newest = max(ready, key=lambda pod: (pod.created_at, pod.name), default=None)
    body = await client.get(Ref(PODS, fleet.namespace, newest.name)) if newest else None
    return shape_of(fleet.namespace, body or template)


def _on_named_node(shape: Shape, template: Mapping[str, Any]) -> Shape:
    """Return the shape with the node that the template names past the scheduler: its taints do not count."""
    name = str(section(template, "spec").get("nodeName") or "")
    if not name:
        return shape
    field, untainted = (
        Requirement(NODE_NAME, "In", (name,)),
        Toleration(operator="Exists", effect="NoSchedule"),
    )
    terms = (replace(each, fields=(*each.fields, field)) for each in shape.node_terms or (NodeTerm(),))
    return replace(shape, node_terms=tuple(terms), tolerations=(*shape.tolerations, untainted))


def port_of_named_node(shape: Shape, fleet: Fleet) -> str:
    """Return which port of the only node for the fleet's pods a replica has; empty: none, or of several.

    That is sure without a look at any node.
    """
    node = shape.only_node
    there = [pod for pod in fleet.live if pod.ready and pod.node in ("", node)]
    if not node or not shape.host_ports or not there:
        return ""
    number = min(port for _, _, port in shape.host_ports)
    return (
        f"port {number} of node {node} is {there[0].name}'s (hostPort or hostNetwork), and the pod template "
        "names that node, so that no second pod fits beside it"
    )


async def _without_tenants(client: Reader, shape: Shape, nodes: Awaitable[Nodes]) -> Surroundings:
    """Return the nodes and what limits the namespace; what may not be read is not known."""
    found, quotas, access = await asyncio.gather(nodes, _quotas(client, shape), _access_modes(client, shape))
    return Surroundings(found.nodes, Tenants(), quotas, access, found.unknown, found.adds_nodes)


@dataclass(frozen=True, slots=True)
class Nodes:
    """The nodes of a cluster, or why they cannot be seen."""

    nodes: tuple[Node, ...] = ()
    unknown: str = ""
    adds_nodes: str = ""
    """Who is seen to add nodes by itself; empty: nobody."""


async def _nodes(client: Reader) -> Nodes:
    try:
        found = await client.list(NODES, "")
    except Refused as error:
        return Nodes(unknown=f"the operator may not see the nodes: {error}")
    return Nodes(tuple(node_of(each) for each in found), adds_nodes=_who_adds_nodes(found))


async def _quotas(client: Reader, shape: Shape) -> tuple[Quota, ...]:
    try:
        found = await client.list(QUOTAS, shape.namespace)
    except Refused:
        return ()
    return tuple(_quota_of(each) for each in sorted(found, key=name_of) if _takes_pod(each, shape))


async def _access_modes(client: Reader, shape: Shape) -> Mapping[str, frozenset[str]]:
    modes = {}
    for name in shape.claims:
        try:
            claim = await client.get(Ref(CLAIMS, shape.namespace, name))
        except Refused:
            continue
        if claim is not None:
            modes[name] = frozenset(section(claim, "spec").get("accessModes") or ())
    return modes


async def _tenants(client: Reader, shape: Shape, around: Surroundings) -> Tenants:
    fits = find_room(shape, around)
    nodes = [] if isinstance(fits, NoRoom | RoomUnknown) else fits.nodes
    if nodes and len(nodes) <= FEW_NODES and not (shape.near or shape.spread):
        by_node = (list_tenants(client, fields=f"spec.nodeName={name},{RUNNING}") for name in nodes)
        there = [tenant for each in await asyncio.gather(*by_node) for tenant in each]
        mounted = await list_tenants(client, shape.namespace, fields="") if shape.claims else Tenants()
        return Tenants((*there, *(tenant for tenant in mounted if tenant.node not in nodes)))
    return await list_tenants(client)


async def list_tenants(client: Reader, namespace: str = "", fields: str = RUNNING) -> Tenants:
    """Return what runs on nodes: everything, or what is selected. Of each pod only its facts are kept."""
    found = client.read_each(PODS, namespace, fields=fields)
    return Tenants([tenant_of(pod) async for pod in found if _has_place(pod)])


class SharedSurroundings:
    """All nodes and what runs on them, read once for all who ask within a while."""

    def __init__(self, reader: Reader, lasts: timedelta) -> None:
        """Nothing is read before somebody asks."""
        self.nodes = _Shared(lambda: _nodes(reader), lasts).read_unless_recent
        self.tenants = _Shared(lambda: list_tenants(reader), lasts).read_unless_recent


@dataclass(slots=True)
class _Shared(Generic[T]):
    read: Callable[[], Coroutine[Any, Any, T]]
    lasts: timedelta
    _found: asyncio.Task[T] | None = field(default=None, init=False)

    async def read_unless_recent(self) -> T:
        """Return what was read a moment ago, or is read now."""
        if self._found is None:
            self._found = asyncio.create_task(self.read(), name="read surroundings")
            self._found.add_done_callback(self._forget_later)
        # One who stops waiting does not take the answer from the others.
        return await asyncio.shield(self._found)

    def _forget_later(self, read: asyncio.Task[T]) -> None:
        """Forget what was read once it is old: it takes memory where nobody asks. A failure goes at once."""
        failed = read.cancelled() or read.exception() is not None
        lasts = 0.0 if failed else self.lasts.total_seconds()
        asyncio.get_running_loop().call_later(lasts, self._forget)

    def _forget(self) -> None:
        self._found = None


def _has_place(pod: JsonObject) -> bool:
    return bool(section(pod, "spec").get("nodeName")) and not is_finished(pod)


def node_of(body: Mapping[str, Any]) -> Node:
    """Return the facts of one node."""
    spec = section(body, "spec")
    return Node(
        name=name_of(body),
        labels=labels_of(body),
        allocatable=_amounts(section(body, "status", "allocatable")),
        taints=tuple(
            Taint(str(each.get("key", "")), str(each.get("value", "")), str(each.get("effect", "")))
            for each in items(spec, "taints")
        ),
        is_cordoned=bool(spec.get("unschedulable", False)),
    )


def tenant_of(body: Mapping[str, Any]) -> Tenant:
    """Return the facts of one pod that has a node."""
    spec, namespace = section(body, "spec"), namespace_of(body)
    return Tenant(
        namespace=namespace,
        node=str(spec.get("nodeName", "")),
        requests=_sum_of_pod(spec, "requests"),
        labels=labels_of(body),
        host_ports=frozenset(_host_ports(spec)),
        apart=tuple(_pod_terms(section(spec, "affinity", "podAntiAffinity"), namespace)),
        priority=int(spec.get("priority", 0)),
        claims=_claims_of(spec),
    )


def shape_of(namespace: str, body: Mapping[str, Any]) -> Shape:
    """Return what a pod asks for, of the pod itself or of a template."""
    spec, affinity = section(body, "spec"), section(body, "spec", "affinity")
    node_affinity = section(affinity, "nodeAffinity", _REQUIRED)
    requests, limits = _sum_of_pod(spec, "requests"), _sum_of_pod(spec, "limits")
    preempts = spec.get("preemptionPolicy", "PreemptLowerPriority") != "Never"
    named = str(spec.get("priorityClassName", ""))
    return Shape(
        namespace=namespace,
        requests=requests,
        limits=limits,
        labels={key: text for key, text in labels_of(body).items() if key != POD_TEMPLATE_HASH},
        node_selector=section(spec, "nodeSelector"),
        node_terms=tuple(_node_term(each) for each in items(node_affinity, "nodeSelectorTerms")),
        near=tuple(_pod_terms(section(affinity, "podAffinity"), namespace)),
        apart=tuple(_pod_terms(section(affinity, "podAntiAffinity"), namespace)),
        spread=tuple(_spreads(spec)),
        tolerations=tuple(
            Toleration(
                str(each.get("key", "")),
                str(each.get("operator", "Equal")),
                str(each.get("value", "")),
                str(each.get("effect", "")),
            )
            for each in items(spec, "tolerations")
        ),
        host_ports=frozenset(_host_ports(spec)),
        claims=_claims_of(spec),
        priority=int(spec.get("priority", ANY_PRIORITY if named else 0)),
        priority_class=named,
        preempts=preempts,
        is_best_effort=not requests and not limits,
    )


_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def _amounts(found: Mapping[str, Any]) -> dict[str, Decimal]:
    amounts = {}
    for name, text in found.items():
        try:
            amounts[str(name)] = parse_quantity(str(text))
        except ValueError:
            continue
    return amounts


def _amounts_of(container: Mapping[str, Any], what: str) -> dict[str, Decimal]:
    """Return what a container asks for; a request that is not given is its limit."""
    limits = _amounts(section(container, "resources", "limits"))
    return limits if what == "limits" else limits | _amounts(section(container, "resources", "requests"))


def _sum_of_pod(spec: Mapping[str, Any], what: str) -> Amounts:
    """Return what a pod asks for in all.

    Init containers run one after the other and before the others, so the largest counts; those that stay
    (`restartPolicy: Always`) count with all that start after them. What is said of the pod itself comes
    before the sum of its containers, and the overhead of its runtime on top.
    """
    stays: dict[str, Decimal] = {}
    most: dict[str, Decimal] = {}
    for each in items(spec, "initContainers"):
        now = _sum(stays, _amounts_of(each, what))
        most = _largest(most, now)
        if each.get("restartPolicy") == "Always":
            stays = now
    for each in items(spec, "containers"):
        stays = _sum(stays, _amounts_of(each, what))
    whole = _largest(most, stays) | _amounts_of(spec, what)
    return _sum(whole, _amounts(section(spec, "overhead")))


def _sum(one: Amounts, other: Amounts) -> dict[str, Decimal]:
    zero = Decimal(0)
    return {name: one.get(name, zero) + other.get(name, zero) for name in {**one, **other}}


def _largest(one: Amounts, other: Amounts) -> dict[str, Decimal]:
    zero = Decimal(0)
    return {name: max(one.get(name, zero), other.get(name, zero)) for name in {**one, **other}}


def _claims_of(spec: Mapping[str, Any]) -> tuple[str, ...]:
    mounted = (section(each, "persistentVolumeClaim") for each in items(spec, "volumes"))
    return tuple(str(claim["claimName"]) for claim in mounted if claim.get("claimName"))


def _requirement(each: Mapping[str, Any]) -> Requirement:
    values = tuple(str(value) for value in each.get("values") or ())
    return Requirement(str(each.get("key", "")), str(each.get("operator", "")), values)


def _node_term(term: Mapping[str, Any]) -> NodeTerm:
    fields = (_requirement(each) for each in items(term, "matchFields"))
    return NodeTerm(
        labels=tuple(_requirement(each) for each in items(term, "matchExpressions")),
        fields=tuple(each for each in fields if each.key == NODE_NAME),
    )


def _selector(selector: Mapping[str, Any]) -> tuple[Requirement, ...]:
    equal = (Requirement(key, "In", (str(text),)) for key, text in section(selector, "matchLabels").items())
    return (*equal, *(_requirement(each) for each in items(selector, "matchExpressions")))


def _goes_by_revision(each: Mapping[str, Any]) -> bool:
    """Return whether a rule compares pods of one revision: what it comes to for a new one is not known."""
    return bool(each.get("matchLabelKeys") or each.get("mismatchLabelKeys"))


def _pod_terms(affinity: Mapping[str, Any], namespace: str) -> Iterator[PodTerm]:
    for each in items(affinity, _REQUIRED):
        asked, named = each.get("namespaceSelector"), frozenset(map(str, each.get("namespaces") or ()))
        if _goes_by_revision(each) or asked or not isinstance(each.get("labelSelector"), Mapping):
            continue
        where = None if asked == {} else named or frozenset({namespace})
        yield PodTerm(str(each.get("topologyKey", "")), _selector(section(each, "labelSelector")), where)


def _spreads(spec: Mapping[str, Any]) -> Iterator[Spread]:
    for each in items(spec, "topologySpreadConstraints"):
        if each.get("whenUnsatisfiable") == "DoNotSchedule" and not _goes_by_revision(each):
            selector = _selector(section(each, "labelSelector"))
            yield Spread(str(each.get("topologyKey", "")), selector, int(each.get("maxSkew", 1)))


def _host_ports(spec: Mapping[str, Any]) -> Iterator[HostPort]:
    shares = bool(spec.get("hostNetwork", False))
    staying = [each for each in items(spec, "initContainers") if each.get("restartPolicy") == "Always"]
    for container in (*items(spec, "containers"), *staying):
        for port in items(container, "ports"):
            number = port.get("hostPort") or (port.get("containerPort") if shares else None)
            if number:
                address = str(port.get("hostIP", "")).replace("0.0.0.0", "")  # noqa: S104 - all of them
                yield address, str(port.get("protocol", "TCP")), int(number)


def _quota_of(body: Mapping[str, Any]) -> Quota:
    hard = section(body, "status", "hard") or section(body, "spec", "hard")
    return Quota(name_of(body), _amounts(hard), _amounts(section(body, "status", "used")))


def _takes_pod(body: Mapping[str, Any], shape: Shape) -> bool:
    """Return whether a quota counts the pod, by its scopes; one that is not known does not."""
    spec = section(body, "spec")
    scopes = [{"scopeName": each, "operator": "Exists"} for each in spec.get("scopes") or ()]
    asked: Sequence[Mapping[str, Any]] = (
        *scopes,
        *items(section(spec, "scopeSelector"), "matchExpressions"),
    )
    return all(_is_within(each, shape) for each in asked)


def _is_within(scope: Mapping[str, Any], shape: Shape) -> bool:
    match scope.get("scopeName"):
        case "NotTerminating":
            return True
        case "BestEffort":
            return shape.is_best_effort
        case "NotBestEffort":
            return not shape.is_best_effort
        case "PriorityClass":
            classes = {"class": shape.priority_class} if shape.priority_class else {}
            return _requirement({**scope, "key": "class"}).is_met_by(classes)
        case _:
            return False


def _who_adds_nodes(nodes: Sequence[JsonObject]) -> str:
    """Return who adds nodes by what it left on some, and on which; empty where nobody is seen."""
    for body in sorted(nodes, key=name_of):
        labels, taints = labels_of(body), [each.get("key") for each in items(section(body, "spec"), "taints")]
        if found := next((key for key in KARPENTER if key in labels), ""):
            return f"Karpenter (label {found} on node {name_of(body)})"
        marks = [key for key in CLUSTER_AUTOSCALER if key in taints]
        marks += sorted(key for key in annotations_of(body) if key.startswith(SCALE_DOWN))
        if marks:
            return f"the cluster autoscaler ({marks[0]} on node {name_of(body)})"
    return ""
