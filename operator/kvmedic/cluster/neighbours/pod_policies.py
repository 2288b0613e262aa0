"""The PodDisruptionBudgets and NetworkPolicies of a namespace: which of them hold for a target's pods.

Both find pods by their labels, and a replica that drains has other labels for a while. So one finds here how
a label selector is matched, which budgets hold for the pods, and which policies would hold for a draining
replica otherwise than before. The caller has listed the objects together with what else is needed of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from kvmedic.kube.objects import JsonObject, Resource, items, name_of, section

DISRUPTION_BUDGETS = Resource("policy/v1", "poddisruptionbudgets")
NETWORK_POLICIES = Resource("networking.k8s.io/v1", "networkpolicies")


def budgets_of(budgets: Iterable[JsonObject], labels: Mapping[str, str]) -> Iterator[str]:
    """Yield the names of the PodDisruptionBudgets that hold for pods with these labels."""
    for each in budgets:
        if takes_labels(section(each, "spec").get("selector"), labels):
            yield name_of(each)


def policies_of_draining(
    budgets: Iterable[JsonObject],
    networks: Iterable[JsonObject],
    labels: Mapping[str, str],
    drained: Mapping[str, str],
) -> Iterator[str]:
    """Yield what treats a replica differently while it drains, by kind and name.

    A budget may stop counting it, as it leaves; it may not start to. A NetworkPolicy may do neither: the
    requests that the replica still answers would get other rules.

    Args:
        drained: the same labels while it drains.
    """
    for body in budgets:
        by = section(body, "spec").get("selector")
        if takes_labels(by, drained) and not takes_labels(by, labels):
            yield f"PodDisruptionBudget {name_of(body)}"
    for body in networks:
        spec = section(body, "spec")
        # The pods of its namespace that it holds for, and their peers.
        selectors = [spec.get("podSelector")]
        for way, ends in (("ingress", "from"), ("egress", "to")):
            selectors += [peer.get("podSelector") for rule in items(spec, way) for peer in items(rule, ends)]
        if any(takes_labels(by, drained) != takes_labels(by, labels) for by in selectors):
            yield f"NetworkPolicy {name_of(body)}"


def find_policy_blocker(keys: Sequence[str], policies: Sequence[str]) -> str:
    """Return what to do about policies that go by the labels which change; empty where there are none."""
    if not policies:
        return ""
    return (
        f"{', '.join(policies)} would treat a replica differently while it drains, as its label "
        f"{' and '.join(keys)} changes then: have that policy select by another label of the pods, or "
        "add a rotation label (spec.rollout.rotationLabel)"
    )


def takes_labels(selector: object, labels: Mapping[str, str]) -> bool:
    """Return whether a label selector takes pods with labels; an empty one takes all, an absent one none."""
    if not isinstance(selector, Mapping):
        return False
    desired = section(selector, "matchLabels")
    return all(labels.get(key) == value for key, value in desired.items()) and all(
        _holds(each, labels) for each in items(selector, "matchExpressions")
    )


def _holds(expression: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    key, values = str(expression.get("key")), expression.get("values") or []
    match expression.get("operator"):
        case "In":
            return labels.get(key) in values
        case "NotIn":
            return labels.get(key) not in values
        case "Exists":
            return key in labels
        case _:
            return key not in labels
