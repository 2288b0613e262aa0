"""The chart's account in one namespace: its rights there, and the policy that bounds their use."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from chart.rendering import render
from lab.cluster.api import Api, ApiError, until
from lab.cluster.light import LightCluster

KINDS = (
    "ServiceAccount",
    "Role",
    "RoleBinding",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
)
CLUSTER_WIDE = KINDS[-1:-3:-1]
DENIED = 403
SECONDS = 60


@contextmanager
def rights_in(light: LightCluster, namespace: str, **values: Any) -> Iterator[Api]:
    """Install both; give a client with the account's token once the policy holds.

    What the chart makes is named as the namespace: a policy belongs to the whole cluster.

    Args:
        light: the cluster.
        namespace: where the operator would be, and what it watches.
        values: of the chart, beside those.
    """
    rbac = {"configFiles": True, **values.pop("rbac", {})}
    given = {"watchNamespaces": [namespace], "fullnameOverride": namespace, "rbac": rbac, **values}
    made = render(given, namespace=namespace)
    light.apply([each for (kind, _), each in made.items() if kind in KINDS], namespace)
    with Api(light.impersonate(namespace, namespace)) as account:
        until(lambda: _is_fenced(account, namespace), SECONDS, "the policy holds")
        yield account
    for kind in CLUSTER_WIDE:
        with suppress(ApiError):
            light.api.delete(kind, f"{namespace}-fence")


def _is_fenced(account: Api, namespace: str) -> bool:
    """Return whether a ConfigMap that is no copy is refused by the policy, which the Role alone allows."""
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "no-copy"}}
    return "own copies" in refusal(account, "POST", f"/api/v1/namespaces/{namespace}/configmaps", body)


def refusal(account: Api, method: str, path: str, body: object) -> str:
    """Return the policy's message to a request that is tried and not kept; empty: it would pass."""
    kinds = {"PATCH": "application/json-patch+json"}
    try:
        headers = {"Content-Type": kinds.get(method, "application/json")}
        account.request(method, path, params={"dryRun": "All"}, headers=headers, json=body)
    except ApiError as error:
        if error.code != DENIED:
            raise
        return str(error)
    return ""
