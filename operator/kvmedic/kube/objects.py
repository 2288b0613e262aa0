"""Where objects live on the API server, and how to look into the JSON that it returns."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from functools import lru_cache
from types import MappingProxyType
from typing import Any, TypeAlias
from urllib.parse import quote

JsonObject: TypeAlias = dict[str, Any]
"""An object as the API server returns it. It stays inside the adapters."""


@dataclass(frozen=True, slots=True)
class Resource:
    """One kind of object."""

    group_version: str
    """`apps/v1`, or `v1` for the core group."""
    plural: str
    """Its name in a path: `deployments`."""

    def path(self, namespace: str = "") -> str:
        """Return the path of all objects of this kind, in one namespace or in the cluster."""
        root = "/apis/" if "/" in self.group_version else "/api/"
        place = f"/namespaces/{quote(namespace, safe='')}" if namespace else ""
        return f"{root}{self.group_version}{place}/{self.plural}"


@dataclass(frozen=True, slots=True)
class Ref:
    """One object."""

    resource: Resource
    namespace: str
    """Empty for an object that is in no namespace."""
    name: str

    @property
    def path(self) -> str:
        """Return the object's path."""
        return f"{self.resource.path(self.namespace)}/{quote(self.name, safe='')}"


AUTOSCALERS = Resource("autoscaling/v2", "horizontalpodautoscalers")
CLAIMS = Resource("v1", "persistentvolumeclaims")
CONFIG_MAPS = Resource("v1", "configmaps")
CONTROLLER_REVISIONS = Resource("apps/v1", "controllerrevisions")
CRON_JOBS = Resource("batch/v1", "cronjobs")
DEPLOYMENTS = Resource("apps/v1", "deployments")
ENDPOINT_SLICES = Resource("discovery.k8s.io/v1", "endpointslices")
EVENTS = Resource("events.k8s.io/v1", "events")
JOBS = Resource("batch/v1", "jobs")
LEADER_WORKER_SETS = Resource("leaderworkerset.x-k8s.io/v1", "leaderworkersets")
LEASES = Resource("coordination.k8s.io/v1", "leases")
NAMESPACES = Resource("v1", "namespaces")
NODES = Resource("v1", "nodes")
PODS = Resource("v1", "pods")
QUOTAS = Resource("v1", "resourcequotas")
REPLICA_SETS = Resource("apps/v1", "replicasets")
SERVICES = Resource("v1", "services")
STATEFUL_SETS = Resource("apps/v1", "statefulsets")

WORKLOADS: Mapping[str, Resource] = MappingProxyType(
    {"Deployment": DEPLOYMENTS, "StatefulSet": STATEFUL_SETS, "LeaderWorkerSet": LEADER_WORKER_SETS}
)
"""What can be a target, by kind."""


def section(body: Mapping[str, Any], *path: str) -> JsonObject:
    """Return the object at a path, or an empty one where it or anything above it is absent or null."""
    found: Any = body
    for key in path:
        found = found.get(key) if isinstance(found, Mapping) else None
    return dict(found) if isinstance(found, Mapping) else {}


def items(body: Mapping[str, Any], key: str) -> list[JsonObject]:
    """Return a list of objects, or an empty one where it is absent or null."""
    found = body.get(key)
    return list(found) if isinstance(found, list) else []


TEMPLATE = "/spec/template"


def template_path(body: Mapping[str, Any]) -> str:
    """Return where a workload has the pod template of what serves, as a JSON pointer.

    Of a LeaderWorkerSet that is the leaders', which is the workers' where it names no other (0.8,
    leaderworkerset_controller.go, constructLeaderStatefulSetApplyConfiguration).
    """
    groups = section(body, "spec", "leaderWorkerTemplate")
    if not groups:
        return TEMPLATE
    kind = "leaderTemplate" if section(groups, "leaderTemplate") else "workerTemplate"
    return f"/spec/leaderWorkerTemplate/{kind}"


def pod_template(body: Mapping[str, Any]) -> JsonObject:
    """Return the pod template of what serves, as a workload has it."""
    return section(body, *template_path(body).split("/")[1:])


def annotations_of(body: Mapping[str, Any]) -> dict[str, str]:
    """Return an object's annotations."""
    return section(body, "metadata", "annotations")


NOTE_LENGTH = 64 << 10
"""Characters of a note that are read, at most: an API server takes 256 KiB of annotations
(`TotalAnnotationSizeLimitB`), and the longest that we write are a pod's labels and an edit's few tokens."""


def note_on(body: Mapping[str, Any], annotation: str) -> JsonObject:
    """Return the JSON object in one of an object's annotations, or an empty one where none can be read."""
    return parse_note(annotations_of(body).get(annotation, ""))


def parse_note(text: str) -> JsonObject:
    """Return the JSON object in a note, or an empty one where none can be read."""
    try:
        note = json.loads(text) if len(text) <= NOTE_LENGTH else None
    except (ValueError, RecursionError):
        return {}
    return note if isinstance(note, dict) else {}


def labels_of(body: Mapping[str, Any]) -> dict[str, str]:
    """Return an object's labels."""
    return section(body, "metadata", "labels")


def name_of(body: Mapping[str, Any]) -> str:
    """Return an object's name."""
    return str(section(body, "metadata").get("name", ""))


def namespace_of(body: Mapping[str, Any]) -> str:
    """Return the namespace of an object; empty where it is in none."""
    return str(section(body, "metadata").get("namespace", ""))


def version_of(body: Mapping[str, Any]) -> str:
    """Return an object's resourceVersion; empty where it has none."""
    return str(section(body, "metadata").get("resourceVersion", ""))


def is_earlier(version: str, than: str) -> bool:
    """Return whether a resourceVersion is an earlier one; both are numbers since Kubernetes 1.35."""
    return version.isdecimal() and than.isdecimal() and int(version) < int(than)


def is_every_namespace_ours(namespace: str) -> bool:
    """Return that a namespace is ours, as all are where no shards divide them."""
    del namespace
    return True


def uid_of(body: Mapping[str, Any]) -> str:
    """Return an object's uid."""
    return str(section(body, "metadata").get("uid", ""))


def controller_uid(body: Mapping[str, Any]) -> str:
    """Return the uid of the controller that owns an object; empty when none does."""
    for owner in items(section(body, "metadata"), "ownerReferences"):
        if owner.get("controller"):
            return str(owner.get("uid", ""))
    return ""


def condition_of(status: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """Return the condition of a type in an object's status; an empty one where it is not there."""
    return next((each for each in items(status, "conditions") if each.get("type") == kind), {})


FINISHED = frozenset({"Succeeded", "Failed"})
"""Phases in which a pod counts as gone: its ReplicaSet replaces it (Kubernetes 1.36
controller_utils.go, IsPodActive). An evicted pod stays in this state until it is cleaned up."""


def is_ready(pod: Mapping[str, Any]) -> bool:
    """Return whether a pod says that it is Ready."""
    return condition_of(section(pod, "status"), "Ready").get("status") == "True"


def is_finished(pod: Mapping[str, Any]) -> bool:
    """Return whether a pod has ended for good and no longer counts as a replica."""
    return section(pod, "status").get("phase") in FINISHED


def moment(text: str) -> datetime:
    """Return a time as the API server writes it (RFC 3339, UTC)."""
    return datetime.fromisoformat(text)


def selector_text(selector: Mapping[str, Any]) -> str:
    """Return a label selector as it is written in a query."""
    parts = [f"{key}={value}" for key, value in section(selector, "matchLabels").items()]
    for each in items(selector, "matchExpressions"):
        key, values = each.get("key"), ",".join(each.get("values") or ())
        match each.get("operator"):
            case "In":
                parts.append(f"{key} in ({values})")
            case "NotIn":
                parts.append(f"{key} notin ({values})")
            case "Exists":
                parts.append(f"{key}")
            case operator:
                parts.append(f"!{key}" if operator == "DoesNotExist" else f"{key} {operator} ({values})")
    return ",".join(parts)


_TERM = re.compile(r"(!?)([^\s=!,()]++)\s*+(?:(=|!=|notin|in)\s*(?:\(([^)]*)\)|([^,]*)))?\s*(?:,|$)")


def takes_selector(selector: str, labels: Mapping[str, str]) -> bool:
    """Return whether a label selector takes an object with such labels."""
    return all(_holds_term(term, labels) for term in _terms_of(selector))


@lru_cache(maxsize=4096)
def _terms_of(selector: str) -> tuple[tuple[str, frozenset[str] | None, bool], ...]:
    """Return the terms of a label selector: key, values or None for any, and whether that is expected."""
    found = []
    for negated, key, operator, listed, single in (term.groups() for term in _TERM.finditer(selector)):
        values = (listed if listed is not None else single or "").split(",")
        named = frozenset(each.strip() for each in values) if operator else None
        found.append((key, named, operator in ("=", "in") if operator else not negated))
    return tuple(found)


def _holds_term(term: tuple[str, frozenset[str] | None, bool], labels: Mapping[str, str]) -> bool:
    key, values, desired = term
    holds = key in labels if values is None else labels.get(key) in values
    return holds is desired


def has_fields(selector: str, body: Mapping[str, Any]) -> bool:
    """Return whether an object has what a field selector asks for."""
    return all(_has_field(body, *term) for term in _field_terms(selector))


@lru_cache(maxsize=256)
def _field_terms(selector: str) -> tuple[tuple[Sequence[str], str, bool], ...]:
    """Return each term of a field selector: its path, its value, and whether that is what it must not be."""
    terms = (term.partition("=") for term in selector.split(",") if term)
    return tuple(
        (path.removesuffix("!").split("."), value.removeprefix("="), path.endswith("!"))
        for path, _, value in terms
    )


def _has_field(body: Mapping[str, Any], path: Sequence[str], value: str, differs: bool) -> bool:  # noqa: FBT001 - a term's own sign
    found: Any = body
    for name in path:
        found = found.get(name, "") if isinstance(found, Mapping) else ""
    return (str(found) == value) is not differs


DEPTH_OF_PLACES = 4
"""`spec.template.metadata.annotations.KEY` names who altered it; containers are named as a list."""


def different_places(desired: object, seen: object, place: str) -> tuple[str, ...]:
    """Return the paths at which two templates differ, three levels deep at the most; never a value."""
    if desired == seen:
        return ()
    deep = place.count(".") >= DEPTH_OF_PLACES
    if deep or not isinstance(desired, Mapping) or not isinstance(seen, Mapping):
        return (place,)
    keys = sorted({*desired, *seen})
    return tuple(
        found for key in keys for found in different_places(desired.get(key), seen.get(key), f"{place}.{key}")
    )


LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


def without_bookkeeping(body: JsonObject) -> JsonObject:
    """Return an object without who edited which of its fields, and without what kubectl applied last."""
    metadata = section(body, "metadata")
    notes = {key: text for key, text in section(metadata, "annotations").items() if key != LAST_APPLIED}
    metadata.pop("managedFields", None)
    return {**body, "metadata": {**metadata, "annotations": notes}}


FIELD_MANAGER = "kvmedic"
"""Name under which the API server notes which fields we set."""


@dataclass(frozen=True, slots=True)
class Preconditions:
    """What an object must still be for a deletion to happen."""

    uid: str
    resource_version: str


class Propagation(StrEnum):
    """What becomes of the objects that a deleted object owns (`propagationPolicy`)."""

    DEFAULT = ""
    """What is usual for the kind."""
    FOREGROUND = "Foreground"
    """They go first, and the object stays until they are gone."""
