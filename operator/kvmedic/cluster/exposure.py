"""Which pods get requests, and whether a label can keep requests away from one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kvmedic.core.fleet import Rotation
from kvmedic.core.policy import RotationLabel
from kvmedic.kube.objects import JsonObject, items, labels_of, section

SERVICE_NAME = "kubernetes.io/service-name"
"""Label of an EndpointSlice that names its Service (discovery.k8s.io/v1)."""


def in_rotation(slices: Iterable[JsonObject]) -> dict[str, tuple[str, ...]]:
    """Return which Services list a pod as ready and not terminating, by its uid; no others are in rotation.

    A slice of no Service counts by its own name: its readers are nobody's that we know.

    An unknown readiness counts as ready, as the API asks of its readers (discovery.k8s.io/v1,
    EndpointConditions).
    """
    found: dict[str, set[str]] = {}
    for each in slices:
        service, name = labels_of(each).get(SERVICE_NAME, ""), section(each, "metadata").get("name")
        front = f"Service {service}" if service else f"EndpointSlice {name}"
        for uid, serves in _endpoints(each):
            if serves:
                found.setdefault(uid, set()).add(front)
    return {uid: tuple(sorted(fronts)) for uid, fronts in found.items()}


def rotation_of(
    deployment: Mapping[str, Any],
    label: RotationLabel,
    services: Sequence[JsonObject],
    slices: Sequence[JsonObject],
    pods: frozenset[str],
) -> Rotation:
    """Return how the pods of a Deployment are taken out of rotation.

    A Service counts when its selector matches the pod template, or when its EndpointSlices list one
    of the pods: slices of a Service without a selector are written by somebody else and do not
    follow a label.

    Args:
        deployment: the Deployment.
        label: the pod label and its draining value.
        services: all Services of the namespace.
        slices: all EndpointSlices of the namespace.
        pods: uids of the Deployment's pods.
    """
    template = section(deployment, "spec", "template", "metadata", "labels")
    selecting = {
        str(section(each, "metadata").get("name")): section(each, "spec", "selector")
        for each in services
        if selects(each, template)
    }
    listing = {
        labels_of(each).get(SERVICE_NAME, "")
        for each in slices
        if any(uid in pods for uid, _ in _endpoints(each))
    }
    names = tuple(sorted({*selecting, *listing} - {""}))
    drained = {**template, label.key: label.draining}
    rivals = tuple(
        sorted(
            str(section(each, "metadata").get("name"))
            for each in services
            if selects(each, drained) and not selects(each, template)
        )
    )
    return Rotation(
        label=label.key,
        draining=label.draining,
        services=names,
        effective=bool(names)
        and not rivals
        and "" not in listing
        and template.get(label.key) != label.draining
        and all(label.key in selecting.get(name, {}) for name in names),
        in_selector=label.key in selector_keys(section(deployment, "spec", "selector")),
        rivals=rivals,
    )


def selects(service: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Return whether a Service selects pods with these labels; an empty selector selects none."""
    selector = section(service, "spec", "selector")
    return bool(selector) and selector.items() <= labels.items()


def reaches(services: Iterable[JsonObject], deployment: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Return whether every Service that selects a Deployment's pods would select pods with these labels."""
    own = section(deployment, "spec", "template", "metadata", "labels")
    return all(selects(each, labels) for each in services if selects(each, own))


def selector_keys(selector: Mapping[str, Any]) -> set[str]:
    """Return the label keys that a label selector looks at."""
    expressions = items(selector, "matchExpressions")
    return {*section(selector, "matchLabels"), *(str(each.get("key")) for each in expressions)}


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


def _endpoints(piece: JsonObject) -> list[tuple[str, bool]]:
    """Return each endpoint of an EndpointSlice as the uid of its pod and whether it gets requests."""
    found = []
    for endpoint in items(piece, "endpoints"):
        conditions = section(endpoint, "conditions")
        serves = conditions.get("ready") is not False and conditions.get("terminating") is not True
        found.append((str(section(endpoint, "targetRef").get("uid", "")), serves))
    return found
