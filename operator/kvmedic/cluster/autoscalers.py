"""Who else decides how many replicas a Deployment has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kvmedic.cluster.ownership import BY_HAND
from kvmedic.core.fleet import Owner
from kvmedic.core.reasons import Reason
from kvmedic.kube.objects import JsonObject, items, labels_of, section

SCALED_OBJECT = "scaledobject.keda.sh/name"
"""Label that KEDA puts on the HorizontalPodAutoscaler which it makes for a ScaledObject (KEDA 2.21)."""


def scaler_of(deployment: Mapping[str, Any], autoscalers: Iterable[JsonObject]) -> Owner | None:
    """Return who else decides a Deployment's number of replicas, or None where nobody is known to.

    Asked in this order: a HorizontalPodAutoscaler whose target it is, under the name of its ScaledObject
    where KEDA made it; a field manager that applied the number and is nobody at a terminal. Whoever
    shows in neither is found out when the number changes in the middle of a run, which then ends.
    """
    return _autoscaler(deployment, autoscalers) or _applier(deployment)


def _autoscaler(deployment: Mapping[str, Any], autoscalers: Iterable[JsonObject]) -> Owner | None:
    name = section(deployment, "metadata").get("name")
    for each in autoscalers:
        target = section(each, "spec", "scaleTargetRef")
        if (target.get("kind"), target.get("name")) == ("Deployment", name):
            made_for = labels_of(each).get(SCALED_OBJECT)
            own = f"HorizontalPodAutoscaler {section(each, 'metadata').get('name')}"
            return Owner(Reason.REPLICAS_AUTOSCALED, f"ScaledObject {made_for}" if made_for else own)
    return None


def _applier(deployment: Mapping[str, Any]) -> Owner | None:
    for entry in items(section(deployment, "metadata"), "managedFields"):
        manager = str(entry.get("manager", ""))
        applied = entry.get("operation") == "Apply" and not entry.get("subresource")
        if applied and not manager.startswith(BY_HAND) and "f:replicas" in _fields(entry):
            return Owner(Reason.REPLICAS_AUTOSCALED, f"field manager {manager}")
    return None


def _fields(entry: Mapping[str, Any]) -> JsonObject:
    return section(entry, "fieldsV1", "f:spec")
