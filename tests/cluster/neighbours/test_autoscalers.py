"""Who decides a Deployment's number of replicas."""

from __future__ import annotations

from typing import Any

import pytest

from kvmedic.cluster.neighbours.autoscalers import scaler_of
from kvmedic.model.fleet import Owner
from kvmedic.model.reasons import Reason

DEPLOYMENT = {"metadata": {"name": "llm"}}


def autoscaler(name: str, target: str, kind: str = "Deployment", **labels: str) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "labels": {key.replace("__", "/"): text for key, text in labels.items()}},
        "spec": {"scaleTargetRef": {"apiVersion": "apps/v1", "kind": kind, "name": target}},
    }


def applied(manager: str, operation: str = "Apply", **more: Any) -> dict[str, Any]:
    fields = more.pop("fields", {"f:spec": {"f:replicas": {}}})
    entry = {"manager": manager, "operation": operation, "fieldsV1": fields, **more}
    return {"metadata": {"name": "llm", "managedFields": [entry]}}


SCALED = [
    ("an autoscaler", DEPLOYMENT, [autoscaler("hpa", "llm")], "HorizontalPodAutoscaler hpa"),
    (
        "KEDA",
        DEPLOYMENT,
        [autoscaler("keda-hpa-llm", "llm", **{"scaledobject.keda.sh__name": "queue"})],
        "ScaledObject queue",
    ),
    ("somebody who applies the number", applied("fleet-manager"), [], "field manager fleet-manager"),
]
FREE = [
    ("nobody", DEPLOYMENT, []),
    ("an autoscaler of another", DEPLOYMENT, [autoscaler("hpa", "other")]),
    ("an autoscaler of another kind", DEPLOYMENT, [autoscaler("hpa", "llm", "StatefulSet")]),
    ("a person who applied", applied("kubectl"), []),
    ("who only created it", applied("fleet-manager", "Update"), []),
    ("who applied something else", applied("fleet-manager", fields={"f:spec": {"f:template": {}}}), []),
    ("a scale subresource", applied("kube-controller-manager", subresource="scale"), []),
]


@pytest.mark.parametrize(
    ("body", "autoscalers", "name"), [row[1:] for row in SCALED], ids=[row[0] for row in SCALED]
)
def test_somebody_decides_the_number(
    body: dict[str, Any], autoscalers: list[dict[str, Any]], name: str
) -> None:
    assert scaler_of(body, "Deployment", autoscalers) == Owner(Reason.REPLICAS_AUTOSCALED, name)


@pytest.mark.parametrize(("body", "autoscalers"), [row[1:] for row in FREE], ids=[row[0] for row in FREE])
def test_nobody_is_known_to(body: dict[str, Any], autoscalers: list[dict[str, Any]]) -> None:
    assert scaler_of(body, "Deployment", autoscalers) is None
