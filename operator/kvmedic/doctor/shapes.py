"""What an API server would not take of a manifest: the field, what it has, and what it should have.

Only the fields that are read here are looked at; kinds that are not listed are not. A text in the place of a
list or a mapping is never quoted, as it may hold a key.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from types import MappingProxyType
from typing import Any, TypeAlias

from kvmedic.kube.objects import WORKLOADS, JsonObject, name_of

LONGEST_NAME = 253
"""Characters of an object's name, at most (a DNS subdomain, RFC 1123)."""
_LONGEST_SHOWN = 40
_MISSING = " is missing or empty: write it"


@dataclass(frozen=True, slots=True)
class Leaf:
    """A value without parts."""

    expected: str
    """What is to be written, as one reads it behind the fault."""
    holds: Callable[[Any], bool]


@dataclass(frozen=True, slots=True)
class ListOf:
    """A list, each of whose items has one shape; None: any."""

    item: Shape | None = None


@dataclass(frozen=True, slots=True)
class MapOf:
    """A mapping with keys of any name, each of whose values has one shape; None: any."""

    value: Shape | None = None


@dataclass(frozen=True, slots=True)
class Fields:
    """An object; what is not listed may be anything, what is null counts as absent."""

    known: Mapping[str, Shape] = field(default_factory=dict)
    needed: tuple[str, ...] = ()


Shape: TypeAlias = Leaf | ListOf | MapOf | Fields


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_port(value: object) -> bool:
    return _is_count(value) and isinstance(value, int) and 0 < value < 65536


def _is_quantity(value: object) -> bool:
    form = r"[+-]?(\d+\.?\d*|\.\d+)([A-Za-z]{0,2}|[eE][+-]?\d+)"
    return not isinstance(value, bool) and re.fullmatch(form, str(value)) is not None


def _is_name(value: object) -> bool:
    fits = isinstance(value, str) and len(value) <= LONGEST_NAME
    return (
        fits
        and re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", str(value))
        is not None
    )


TEXT = Leaf(
    "write a text, in quotes where it looks like a number or a boolean", lambda it: isinstance(it, str)
)
NAME = Leaf("write lower-case letters, digits, - and ., with a letter or digit at both ends", _is_name)
COUNT = Leaf("write a whole number from 0 up, without quotes", _is_count)
PORT = Leaf("write a port from 1 to 65535, without quotes", _is_port)
SWITCH = Leaf("write true or false, without quotes", lambda it: isinstance(it, bool))
TARGET_PORT = Leaf(
    "write a port from 1 to 65535, or the name of a container's port",
    lambda it: _is_port(it) or (isinstance(it, str) and re.search("[a-z]", it) is not None),
)
SHARE = Leaf(
    "write a whole number, or a percentage such as 25%",
    lambda it: _is_count(it) or (isinstance(it, str) and re.fullmatch(r"\d+%", it) is not None),
)
QUANTITY = Leaf("write a quantity such as 1, 500m or 24Gi", _is_quantity)

_LABELS = MapOf(TEXT)
_SELECTOR = Fields(
    {
        "matchLabels": _LABELS,
        "matchExpressions": ListOf(Fields({"key": TEXT, "operator": TEXT, "values": ListOf(TEXT)})),
    }
)
_AMOUNTS = Fields({"limits": MapOf(QUANTITY), "requests": MapOf(QUANTITY)})
_CONTAINER = Fields(
    {
        "name": NAME,
        "image": TEXT,
        # What is no text among the words is reported with the engine, by its place.
        "command": ListOf(),
        "args": ListOf(),
        "env": ListOf(Fields({"name": TEXT, "valueFrom": Fields()})),
        "envFrom": ListOf(Fields({"prefix": TEXT, "configMapRef": Fields(), "secretRef": Fields()})),
        "ports": ListOf(
            Fields(
                {"name": TEXT, "containerPort": PORT, "hostPort": COUNT, "protocol": TEXT, "hostIP": TEXT},
                ("containerPort",),
            )
        ),
        "resources": _AMOUNTS,
        "volumeMounts": ListOf(Fields({"name": TEXT, "mountPath": TEXT, "subPath": TEXT})),
    },
    ("name",),
)
_POD = Fields(
    {
        "containers": ListOf(_CONTAINER),
        "initContainers": ListOf(_CONTAINER),
        "volumes": ListOf(
            Fields(
                {
                    "name": TEXT,
                    "configMap": Fields({"name": TEXT}),
                    "persistentVolumeClaim": Fields({"claimName": TEXT}),
                }
            )
        ),
        "nodeSelector": _LABELS,
        "nodeName": TEXT,
        "affinity": Fields(),
        "tolerations": ListOf(Fields()),
        "topologySpreadConstraints": ListOf(Fields({"labelSelector": _SELECTOR})),
        "hostNetwork": SWITCH,
        "terminationGracePeriodSeconds": COUNT,
        "overhead": MapOf(QUANTITY),
    },
    ("containers",),
)
_METADATA = Fields(
    {
        "name": NAME,
        "namespace": NAME,
        "labels": _LABELS,
        "annotations": _LABELS,
        "ownerReferences": ListOf(Fields({"kind": TEXT, "name": TEXT})),
        "finalizers": ListOf(TEXT),
    }
)
_TEMPLATE = Fields({"metadata": Fields({"labels": _LABELS, "annotations": _LABELS}), "spec": _POD}, ("spec",))
_ROLLING = Fields({"maxSurge": SHARE, "maxUnavailable": SHARE, "partition": COUNT})
_WORKLOAD = Fields(
    {
        "replicas": COUNT,
        "selector": _SELECTOR,
        "template": _TEMPLATE,
        "paused": SWITCH,
        "minReadySeconds": COUNT,
        "progressDeadlineSeconds": COUNT,
        "revisionHistoryLimit": COUNT,
        "strategy": Fields({"type": TEXT, "rollingUpdate": _ROLLING}),
        "updateStrategy": Fields({"type": TEXT, "rollingUpdate": _ROLLING}),
    },
    ("selector", "template"),
)
_GROUPS = Fields(
    {
        "replicas": COUNT,
        "leaderWorkerTemplate": Fields(
            {"size": COUNT, "leaderTemplate": _TEMPLATE, "workerTemplate": _TEMPLATE}, ("workerTemplate",)
        ),
        "rolloutStrategy": Fields({"type": TEXT, "rollingUpdateConfiguration": _ROLLING}),
    },
    ("leaderWorkerTemplate",),
)
_SERVICE = Fields(
    {
        "selector": _LABELS,
        "ports": ListOf(Fields({"name": TEXT, "port": PORT, "targetPort": TARGET_PORT, "protocol": TEXT})),
    }
)
_PEERS = ListOf(Fields({"podSelector": _SELECTOR, "namespaceSelector": _SELECTOR}))
_POLICY = Fields(
    {
        "podSelector": _SELECTOR,
        "policyTypes": ListOf(TEXT),
        "ingress": ListOf(Fields({"from": _PEERS})),
        "egress": ListOf(Fields({"to": _PEERS})),
    }
)
_POOL = Fields(
    {"selector": Fields(), "targetPorts": ListOf(Fields({"number": PORT})), "targetPortNumber": PORT}
)
_SCALER = Fields(
    {"scaleTargetRef": Fields({"kind": TEXT, "name": TEXT}), "minReplicas": COUNT, "maxReplicas": COUNT}
)

SPECS: Mapping[str, Shape] = MappingProxyType(
    {
        "Deployment": _WORKLOAD,
        "ReplicaSet": Fields({"replicas": COUNT, "selector": _SELECTOR, "template": _TEMPLATE}),
        "StatefulSet": _WORKLOAD,
        "LeaderWorkerSet": _GROUPS,
        "Pod": _POD,
        "Service": _SERVICE,
        "NetworkPolicy": _POLICY,
        "InferencePool": _POOL,
        "PodDisruptionBudget": Fields({"selector": _SELECTOR}),
        "HorizontalPodAutoscaler": _SCALER,
        "PersistentVolumeClaim": Fields({"accessModes": ListOf(TEXT)}),
        "ResourceQuota": Fields({"hard": MapOf(QUANTITY)}),
        "Node": Fields({"taints": ListOf(Fields({"key": TEXT, "effect": TEXT})), "unschedulable": SWITCH}),
    }
)
"""The spec of each kind that is read, as far as it is."""


_VARIABLES = "fill in the variables of the file first, as envsubst or Flux does"
_PATCH = "; a patch of a Kustomization is looked at once it is merged: kubectl kustomize DIRECTORY"
"""What a patch has not of what an API server needs it need not have."""


def find_fault(document: JsonObject) -> str:
    """Return what is wrong with the first field that an API server would not take; empty where none is."""
    spec = SPECS.get(str(document.get("kind")))
    if spec is None:
        return ""
    needed = ("spec",) if document["kind"] in WORKLOADS else ()
    whole = Fields({"metadata": _METADATA, "spec": spec, "status": Fields()}, needed)
    fault = next(_faults(document, whole, ""), "")
    hint = _PATCH if needed and re.fullmatch(rf"spec(\.\w+)*{_MISSING}", fault) else ""
    return f"{document['kind']}/{name_of(document)[:LONGEST_NAME]}: {fault}{hint}" if fault else ""


def _faults(value: object, shape: Shape | None, path: str) -> Iterator[str]:
    """Yield each fault of a value, one after the other."""
    match shape:
        case Leaf() if not shape.holds(value):
            yield f"{path} is {_show_value(value)}: {_VARIABLES if '${' in str(value) else shape.expected}"
        case ListOf() if not isinstance(value, list):
            yield f"{path} is {_kind(value)}, not a list: write one item (a line with -) for each"
        case ListOf(item):
            yield from chain(
                *(_faults(each, item, f"{path}[{at}]") for at, each in enumerate(_as_list(value)))
            )
        case MapOf() | Fields() if not isinstance(value, Mapping):
            yield f"{path} is {_kind(value)}, not a mapping: write one line `key: value` for each entry"
        case MapOf(each_value):
            parts = ((key, each, each_value) for key, each in _as_map(value).items())
            yield from chain(
                *(_faults(each, of, f"{path}.{key}") for key, each, of in parts if each is not None)
            )
        case Fields(known, needed):
            yield from _faults_of_fields(_as_map(value), known, needed, path)
        case _:
            pass


def _faults_of_fields(
    value: Mapping[str, object], known: Mapping[str, Shape], needed: tuple[str, ...], path: str
) -> Iterator[str]:
    for key, shape in known.items():
        place = f"{path}.{key}" if path else key
        if value.get(key) is not None:
            yield from _faults(value[key], shape, place)
        elif key in needed:
            yield f"{place}{_MISSING}"


def _as_list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _as_map(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def _show_value(value: object) -> str:
    """Return a value that has no parts as it is written; of another only what it is."""
    if isinstance(value, list | Mapping) or value is None:
        return _kind(value)
    return json.dumps(value, ensure_ascii=False)[:_LONGEST_SHOWN]


def _kind(value: object) -> str:
    match value:
        case None:
            return "empty"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a text"
        case list():
            return "a list"
        case _:
            return "a mapping"
