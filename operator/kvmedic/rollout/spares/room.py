"""Whether a pod more of a fleet finds a node: computed from what nodes have and what runs on them.

Only what is sure says no: a resource that is taken, a taint that is not tolerated, a node that a selector
leaves out, a quota that is full, a volume for one node, a port of the host. What is not looked at here (a
scheduler's own plugins, devices by resource claims, volumes that are bound to a zone) says nothing: the spare
is tried then, and a Pending pod is taken back. Missing evidence is `RoomUnknown`, which is not "no room".

Source: Kubernetes 1.36, pkg/scheduler/framework/plugins (noderesources, nodeaffinity, tainttoleration,
nodeports, interpodaffinity, podtopologyspread, volumerestrictions) and apiserver quota admission.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cached_property
from typing import TypeAlias

Amounts: TypeAlias = Mapping[str, Decimal]
"""Of each resource by its name: cores, bytes, whole devices."""

NAMED_NODES = 3
"""Nodes that a message names; the rest is counted, so that it fits in a condition."""
PODS = "pods"
"""The resource that every pod takes one of."""
UNSCHEDULABLE = "node.kubernetes.io/unschedulable"
"""Taint of a node that somebody cordoned (Kubernetes node lifecycle controller)."""
NODE_NAME = "metadata.name"
"""The one field of a node that an affinity can name."""


@dataclass(frozen=True, slots=True)
class Requirement:
    """One expression of a selector."""

    key: str
    operator: str
    """`In`, `NotIn`, `Exists`, `DoesNotExist`, `Gt` or `Lt`."""
    values: tuple[str, ...] = ()

    def is_met_by(self, labels: Mapping[str, str]) -> bool:
        """Return whether labels meet it; one that cannot be read leaves nothing out."""
        found = labels.get(self.key)
        match self.operator:
            case "In":
                return found in self.values
            case "NotIn":
                return found not in self.values
            case "Exists":
                return found is not None
            case "DoesNotExist":
                return found is None
            case "Gt" | "Lt":
                return _compares(found, self.operator, self.values)
            case _:
                return True


def _compares(found: str | None, operator: str, values: tuple[str, ...]) -> bool:
    try:
        number, bound = int(found or ""), int(values[0])
    except (ValueError, IndexError):
        return False
    return number > bound if operator == "Gt" else number < bound


@dataclass(frozen=True, slots=True)
class NodeTerm:
    """One of the alternatives of a required node affinity; all of it must hold."""

    labels: tuple[Requirement, ...] = ()
    fields: tuple[Requirement, ...] = ()
    """On `metadata.name`."""


HOSTNAME = "kubernetes.io/hostname"
"""Label of a node that the kubelet sets to its name."""


def _only_node_of(term: NodeTerm) -> str:
    """Return the node that a term leaves alone; empty: it may leave several."""
    asked = (*term.fields, *(each for each in term.labels if each.key == HOSTNAME))
    found = (each.values[0] for each in asked if each.operator == "In" and len(each.values) == 1)
    return next(found, "")


@dataclass(frozen=True, slots=True)
class PodTerm:
    """A required affinity to pods, or anti-affinity, within one topology."""

    topology: str
    """Key of the node label whose values are the domains."""
    selector: tuple[Requirement, ...]
    namespaces: frozenset[str] | None
    """Where the pods are that it is about; None: anywhere."""

    def is_about(self, namespace: str, labels: Mapping[str, str]) -> bool:
        """Return whether a pod with labels is one that the term is about."""
        where = self.namespaces is None or namespace in self.namespaces
        return where and all(each.is_met_by(labels) for each in self.selector)


@dataclass(frozen=True, slots=True)
class Spread:
    """A topology spread constraint that keeps pods from being scheduled."""

    topology: str
    selector: tuple[Requirement, ...]
    max_skew: int


@dataclass(frozen=True, slots=True)
class Taint:
    """What keeps pods off a node that do not tolerate it."""

    key: str
    value: str
    effect: str

    def __str__(self) -> str:
        """Return it as `kubectl taint` writes it."""
        return f"{self.key}{f'={self.value}' if self.value else ''}:{self.effect}"


@dataclass(frozen=True, slots=True)
class Toleration:
    """Taints that a pod puts up with."""

    key: str = ""
    """Empty: every key."""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""
    """Empty: every effect."""

    def covers(self, taint: Taint) -> bool:
        """Return whether it tolerates a taint; an operator that is not known does."""
        if self.effect not in ("", taint.effect) or self.key not in ("", taint.key):
            return False
        return self.operator != "Equal" or self.value == taint.value


HostPort: TypeAlias = tuple[str, str, int]
"""Address (empty: all), protocol and number of a port that a pod takes of its node."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What one more pod of the fleet asks for."""

    namespace: str
    requests: Amounts
    limits: Amounts
    labels: Mapping[str, str]
    node_selector: Mapping[str, str]
    node_terms: tuple[NodeTerm, ...] = ()
    """Alternatives; none: any node."""
    near: tuple[PodTerm, ...] = ()
    apart: tuple[PodTerm, ...] = ()
    spread: tuple[Spread, ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    host_ports: frozenset[HostPort] = frozenset()
    claims: tuple[str, ...] = ()
    """PersistentVolumeClaims that all its pods share."""
    priority: int = 0
    priority_class: str = ""
    preempts: bool = True
    """The scheduler may end pods of a lower priority for it."""
    is_best_effort: bool = False
    """No container of it has a request or a limit."""

    @property
    def only_node(self) -> str:
        """Return the one node that its labels or its affinity name; empty: several, or none by name."""
        names = [_only_node_of(each) for each in self.node_terms]
        chosen = names[0] if names and len(set(names)) == 1 else ""
        return self.node_selector.get(HOSTNAME, "") or chosen


@dataclass(frozen=True, slots=True)
class Node:
    """One node of the cluster."""

    name: str
    labels: Mapping[str, str]
    allocatable: Amounts
    taints: tuple[Taint, ...] = ()
    is_cordoned: bool = False


@dataclass(frozen=True, slots=True)
class Tenant:
    """A pod that has a node and has not ended; one that is terminating still takes its place."""

    namespace: str
    node: str
    requests: Amounts
    labels: Mapping[str, str]
    host_ports: frozenset[HostPort] = frozenset()
    apart: tuple[PodTerm, ...] = ()
    priority: int = 0
    claims: tuple[str, ...] = ()
    """PersistentVolumeClaims of its namespace that it has mounted."""


@dataclass(slots=True)
class Taken:
    """What the pods of one node take."""

    pods: list[Tenant] = field(default_factory=list)
    by_priority: dict[int, dict[str, Decimal]] = field(default_factory=dict)
    """Amounts by resource, of the pods of each priority; of `PODS` their number."""

    def count_pod(self, tenant: Tenant) -> None:
        """Count a pod."""
        self.pods.append(tenant)
        amounts = self.by_priority.setdefault(tenant.priority, {})
        for name, amount in (*tenant.requests.items(), (PODS, Decimal(1))):
            amounts[name] = amounts.get(name, Decimal(0)) + amount

    def amount_of(self, name: str, least: int | None) -> Decimal:
        """Return how much of a resource pods of a priority, or a higher one, take; None: all pods."""
        found = (each for priority, each in self.by_priority.items() if least is None or priority >= least)
        return sum((each.get(name, Decimal(0)) for each in found), Decimal(0))


class Tenants(tuple[Tenant, ...]):
    """What runs on nodes: counted once, however many fleets ask for room."""

    @cached_property
    def by_node(self) -> Mapping[str, Taken]:
        """What the pods of each node take."""
        found: dict[str, Taken] = {}
        for tenant in self:
            found.setdefault(tenant.node, Taken()).count_pod(tenant)
        return found

    @cached_property
    def by_namespace(self) -> Mapping[str, Sequence[Tenant]]:
        """The pods of each namespace."""
        found: dict[str, list[Tenant]] = {}
        for tenant in self:
            found.setdefault(tenant.namespace, []).append(tenant)
        return found

    @cached_property
    def keeping_apart(self) -> Sequence[Tenant]:
        """The pods that keep others off their domains."""
        return [tenant for tenant in self if tenant.apart]

    def find_pods_in(self, namespaces: Iterable[str] | None) -> Iterable[Tenant]:
        """Return the pods of some namespaces; None: of all."""
        if namespaces is None:
            return self
        return (tenant for name in namespaces for tenant in self.by_namespace.get(name, ()))


@dataclass(frozen=True, slots=True)
class Quota:
    """A ResourceQuota that the pod counts against."""

    name: str
    hard: Amounts
    used: Amounts


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The cluster as far as it decides whether one pod more finds a place."""

    nodes: tuple[Node, ...]
    tenants: Tenants
    quotas: tuple[Quota, ...] = ()
    access: Mapping[str, frozenset[str]] | None = None
    """Access modes of the fleet's claims by name; None, or one that is missing: not known."""
    unknown: str = ""
    """Why nodes or pods cannot be seen; empty where they can."""
    adds_nodes: str = ""
    """Who is seen to add nodes by itself; empty: nobody."""


@dataclass(frozen=True, slots=True)
class Room:
    """There is a place, or the scheduler makes one by ending pods of a lower priority."""

    nodes: tuple[str, ...]
    """Where, by name."""

    @property
    def message(self) -> str:
        """Return it as a sentence's part."""
        return f"{_names(self.nodes)} {'has' if len(self.nodes) == 1 else 'have'} room for a spare"


@dataclass(frozen=True, slots=True)
class NoRoom:
    """A pod more would stay Pending, or would not be made."""

    message: str
    """What is lacking, with its figures."""
    adds_nodes: str = ""
    """Who may add a node for it; empty: nobody, or none that would help."""


@dataclass(frozen=True, slots=True)
class RoomUnknown:
    """Nobody knows: the spare is tried."""

    message: str


Finding: TypeAlias = Room | NoRoom | RoomUnknown


def find_room(shape: Shape, around: Surroundings) -> Finding:
    """Return whether one pod more of a fleet finds a place."""
    if refused := _quota_doubt(shape, around.quotas):
        return NoRoom(refused)
    if held := _claim_for_one_pod(shape, around):
        return NoRoom(held)
    if around.unknown or not around.nodes:
        return RoomUnknown("; ".join((around.unknown or "no node is listed", *_narrow_needs(shape, around))))
    tied = _nodes_of_claims(shape, around)
    index = _Index(shape, around)
    doubts = {node.name: index.doubt(node, tied) for node in around.nodes}
    fits = tuple(sorted(name for name, doubt in doubts.items() if doubt is None))
    if fits:
        return Room(fits)
    found = [(name, doubt) for name, doubt in doubts.items() if doubt is not None]
    return NoRoom(_node_list(shape, found), "" if tied else around.adds_nodes)


@dataclass(frozen=True, slots=True)
class _Doubt:
    """Why one node takes no pod more."""

    rank: int
    """How near the node is to taking it: the least is the nearest."""
    kind: str
    """The same without figures."""
    text: str


_NOTHING = Taken()


class _Index:
    """What a pod more meets on the nodes, as they are asked one after the other."""

    def __init__(self, shape: Shape, around: Surroundings) -> None:
        self.shape = shape
        self.by_name = {node.name: node for node in around.nodes}
        self.tenants = around.tenants
        self.least = shape.priority if shape.preempts else None
        """The least priority of pods that stay: the scheduler would end others for the fleet's."""
        theirs = (
            (term, tenant.node)
            for tenant in around.tenants.keeping_apart
            for term in tenant.apart
            if term.is_about(shape.namespace, shape.labels)
        )
        self.repelled = self._domains((*theirs, *self._matches(shape.apart)))
        self.reached = [
            self._domains(self._matches((term,)))
            for term in shape.near
            # The first pod of several that want to be near each other may go anywhere.
            if any(self._matches((term,))) or not term.is_about(shape.namespace, shape.labels)
        ]
        self.spread = [(each, self._count(each)) for each in shape.spread]

    def doubt(self, node: Node, tied: Mapping[str, frozenset[str]]) -> _Doubt | None:
        """Return the first reason why a node takes no pod more, those that stay first; None where it does."""
        return (
            self._selector_doubt(node)
            or self._taint_doubt(node)
            or _claim_doubt(node, tied)
            or self._port_doubt(node)
            or self._affinity_doubt(node)
            or self._lacking_resource(node)
        )

    def _selector_doubt(self, node: Node) -> _Doubt | None:
        if _selects(self.shape, node):
            return None
        return _Doubt(5, "left out by its node selector or affinity", "its node selector or affinity")

    def _taint_doubt(self, node: Node) -> _Doubt | None:
        cordon = (Taint(UNSCHEDULABLE, "", "NoSchedule"),) if node.is_cordoned else ()
        for taint in (*cordon, *node.taints):
            strict = taint.effect in ("NoSchedule", "NoExecute")
            if strict and not any(each.covers(taint) for each in self.shape.tolerations):
                kind = "cordoned" if taint.key == UNSCHEDULABLE else f"taint {taint} is not tolerated"
                return _Doubt(4, kind, kind)
        return None

    def _port_doubt(self, node: Node) -> _Doubt | None:
        staying = self._pods_that_stay(node) if self.shape.host_ports else ()
        for tenant in staying:
            for port in sorted(self.shape.host_ports):
                if any(_collide(port, other) for other in tenant.host_ports):
                    text = f"port {port[2]} of the host is taken"
                    return _Doubt(2, text, text)
        return None

    def _affinity_doubt(self, node: Node) -> _Doubt | None:
        domains = set(node.labels.items())
        if self.repelled & domains:
            return _Doubt(3, "kept apart by an anti-affinity", "a pod that an anti-affinity keeps apart")
        if not all(reached & domains for reached in self.reached):
            return _Doubt(3, "without the pods of its affinity", "none of the pods of its affinity")
        for spread, counts in self.spread:
            value = node.labels.get(spread.topology)
            if value is None or counts[value] + 1 - min(counts.values()) > spread.max_skew:
                text = f"its topology spread over {spread.topology}"
                return _Doubt(3, text, text)
        return None

    def _count(self, spread: Spread) -> Counter[str]:
        """Return how many pods that a constraint counts are in each domain that the pod may go to."""
        allowed = [each.labels for each in self.by_name.values() if _selects(self.shape, each)]
        counts = Counter({labels[spread.topology]: 0 for labels in allowed if spread.topology in labels})
        for tenant in self.tenants.find_pods_in((self.shape.namespace,)):
            where = self.by_name.get(tenant.node)
            value = where.labels.get(spread.topology, "") if where else ""
            if value in counts and all(each.is_met_by(tenant.labels) for each in spread.selector):
                counts[value] += 1
        return counts

    def _lacking_resource(self, node: Node) -> _Doubt | None:
        """Return which resource is taken; the one of which the node has the least in proportion."""
        there = self.tenants.by_node.get(node.name, _NOTHING)
        lacks: list[tuple[Decimal, str, str]] = []
        for name, desired in {**self.shape.requests, PODS: Decimal(1)}.items():
            has, taken = node.allocatable.get(name, Decimal(0)), there.amount_of(name, self.least)
            if desired > 0 and taken + desired > has:
                figures = f"{_amount(name, taken)} of {_amount(name, has)} {name} taken"
                lacks.append((has - taken - desired, name, figures if has else f"has no {name}"))
        if not lacks:
            return None
        devices = [each for each in lacks if "/" in each[1]]
        _, name, text = min(devices or lacks, key=lambda each: each[1])
        return _Doubt(1, f"without enough {name}", text)

    def _pods_that_stay(self, node: Node) -> Iterator[Tenant]:
        """Yield the pods of a node that the scheduler would not end for the fleet's."""
        there = self.tenants.by_node.get(node.name, _NOTHING).pods
        return (each for each in there if self.least is None or each.priority >= self.least)

    def _matches(self, terms: Iterable[PodTerm]) -> list[tuple[PodTerm, str]]:
        """Return where the pods are that some terms are about."""
        return [
            (term, each.node)
            for term in terms
            for each in self.tenants.find_pods_in(term.namespaces)
            if term.is_about(each.namespace, each.labels)
        ]

    def _domains(self, found: Iterable[tuple[PodTerm, str]]) -> set[tuple[str, str]]:
        """Return the labels that make up the domains of some pods, each by its term's topology."""
        domains = set[tuple[str, str]]()
        for term, name in found:
            node = self.by_name.get(name)
            value = node.labels.get(term.topology) if node else None
            if value is not None:
                domains.add((term.topology, value))
        return domains


def _selects(shape: Shape, node: Node) -> bool:
    """Return whether a node is one that the pod's own selector and affinity allow."""
    if any(node.labels.get(key) != value for key, value in shape.node_selector.items()):
        return False
    names = {NODE_NAME: node.name}
    return not shape.node_terms or any(
        all(each.is_met_by(node.labels) for each in term.labels)
        and all(each.is_met_by(names) for each in term.fields)
        for term in shape.node_terms
        if term.labels or term.fields
    )


def _collide(one: HostPort, other: HostPort) -> bool:
    return one[1:] == other[1:] and (one[0] == other[0] or "" in (one[0], other[0]))


def _quota_doubt(shape: Shape, quotas: Sequence[Quota]) -> str:
    """Return which quota is full, with its figures; empty where none is."""
    asked: dict[str, Decimal] = {PODS: Decimal(1), "count/pods": Decimal(1)}
    for name, amount in shape.requests.items():
        asked[f"requests.{name}"] = amount
        if name in ("cpu", "memory", "ephemeral-storage"):
            asked[name] = amount
    asked |= {f"limits.{name}": amount for name, amount in shape.limits.items()}
    for quota in quotas:
        for name, most in sorted(quota.hard.items()):
            used = quota.used.get(name, Decimal(0))
            if asked.get(name, Decimal(0)) > 0 and used + asked[name] > most:
                return (
                    f"ResourceQuota {quota.name} has {_amount(name, used)} of {_amount(name, most)} {name} "
                    f"in use, and a spare asks for {_amount(name, asked[name])}"
                )
    return ""


POD_ALONE, NODE_ALONE = "ReadWriteOncePod", "ReadWriteOnce"
"""Access modes of a volume that one pod alone, or one node alone, may mount for writing."""


def _modes(shape: Shape, around: Surroundings) -> Iterator[tuple[str, frozenset[str]]]:
    known = around.access or {}
    return ((name, known[name]) for name in shape.claims if known.get(name))


def _claim_for_one_pod(shape: Shape, around: Surroundings) -> str:
    for name, modes in _modes(shape, around):
        if modes == {POD_ALONE}:
            return f"PersistentVolumeClaim {name} is {POD_ALONE}: a second pod cannot mount it"
    return ""


def _narrow_needs(shape: Shape, around: Surroundings) -> Iterator[str]:
    """Yield what leaves a spare few nodes, whatever nodes there are: ports of a node, and shared claims."""
    if numbers := sorted({number for _, _, number in shape.host_ports}):
        listed = ", ".join(map(str, numbers))
        yield f"hostPort or hostNetwork takes port {listed}: a spare needs a node where no replica has it"
    known = dict(_modes(shape, around))
    for name in shape.claims:
        if name not in known:
            text = f"access modes of PersistentVolumeClaim {name} are not known"
            yield f"{text} ({NODE_ALONE}: only on its node)"
        elif known[name] == {NODE_ALONE}:
            yield f"PersistentVolumeClaim {name} is {NODE_ALONE}: a spare needs room on the node that has it"


def _nodes_of_claims(shape: Shape, around: Surroundings) -> Mapping[str, frozenset[str]]:
    """Return the nodes to which each claim ties the pod: those where it is mounted, if one node alone may."""
    tied = {}
    for name, modes in _modes(shape, around):
        users = [each for each in around.tenants.find_pods_in((shape.namespace,)) if name in each.claims]
        if modes == {NODE_ALONE} and users:
            tied[name] = frozenset(each.node for each in users)
    return tied


def _claim_doubt(node: Node, tied: Mapping[str, frozenset[str]]) -> _Doubt | None:
    for name, nodes in tied.items():
        if node.name not in nodes:
            text = f"PersistentVolumeClaim {name} is {NODE_ALONE} and mounted on {_names(sorted(nodes))}"
            return _Doubt(3, text, text)
    return None


def _node_list(shape: Shape, found: Sequence[tuple[str, _Doubt]]) -> str:
    """Return why no node takes the pod: the nearest nodes with their figures, the others counted by kind."""
    near = sorted(found, key=lambda each: (each[1].rank, each[0]))
    named = [f"{name}: {doubt.text}" for name, doubt in near[:NAMED_NODES]]
    rest = Counter(doubt.kind for _, doubt in near[NAMED_NODES:])
    named += [f"{many} more {kind}" for kind, many in rest.most_common(NAMED_NODES)]
    asked = ", ".join(f"{_amount(name, shape.requests[name])} {name}" for name in sorted(shape.requests))
    what = f"a spare asks for {asked or 'one place'}"
    return f"{what}, and none of {len(found)} node{'s' * (len(found) != 1)} takes it ({'; '.join(named)})"


_GIB = Decimal(2**30)


def _amount(name: str, amount: Decimal) -> str:
    """Return an amount as people write it: bytes in Gi, the rest as a number."""
    if any(word in name for word in ("memory", "storage")):
        return f"{(amount / _GIB).quantize(Decimal('0.1')).normalize():f}Gi"
    return f"{amount.normalize():f}"


def _names(nodes: Sequence[str]) -> str:
    more = f" and {len(nodes) - NAMED_NODES} more" if len(nodes) > NAMED_NODES else ""
    return f"{', '.join(nodes[:NAMED_NODES])}{more}"
