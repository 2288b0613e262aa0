"""Who else has a say in replicas and pods: autoscalers, budgets, policies, and their definitions."""

from __future__ import annotations

from typing import Any


def definition(group: str, version: str, kind: str, plural: str) -> dict[str, Any]:
    """A definition with the names under which the real one is served; it takes any spec."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    served = {
        "name": version,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
        "subresources": {"status": {}},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{plural}.{group}",
            # The API server lets only approved definitions into a group of Kubernetes' own.
            "annotations": {"api-approved.kubernetes.io": "unapproved, a test"},
        },
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"kind": kind, "plural": plural, "singular": kind.lower(), "listKind": f"{kind}List"},
            "versions": [served],
        },
    }


DEFINITIONS = (
    definition("keda.sh", "v1alpha1", "ScaledObject", "scaledobjects"),
    definition("autoscaling.k8s.io", "v1", "VerticalPodAutoscaler", "verticalpodautoscalers"),
)
REF = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "llm"}


def hpa(name: str, target: dict[str, str] = REF, **spec: Any) -> dict[str, Any]:
    resource = {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}}
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": name},
        "spec": {
            "scaleTargetRef": target,
            "metrics": [{"type": "Resource", "resource": resource}],
            "maxReplicas": 5,
            **spec,
        },
    }


def scaled(name: str, annotations: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": {"name": name, "annotations": annotations or {}},
        "spec": {"scaleTargetRef": {"name": "llm"}, "triggers": [], **spec},
    }


def vpa(name: str, **policy: Any) -> dict[str, Any]:
    return {
        "apiVersion": "autoscaling.k8s.io/v1",
        "kind": "VerticalPodAutoscaler",
        "metadata": {"name": name},
        "spec": {"targetRef": REF, **({"updatePolicy": policy} if policy else {})},
    }


def pdb(name: str, **labels: str) -> dict[str, Any]:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": name},
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": labels}},
    }


def network(name: str, selector: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": name},
        "spec": {"podSelector": selector, **spec},
    }
