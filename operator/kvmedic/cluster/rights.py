"""What the operator may do in a namespace, asked of the API server itself.

Of ourselves one review returns all rules; of another account each right is a review of its own, which needs a
right that administrators have. What stays unknown is said, and is no "no".
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

from kvmedic.kube.errors import Refused
from kvmedic.kube.objects import JsonObject, Ref, Resource, items, section
from kvmedic.model.fleet import OwnerKind

if TYPE_CHECKING:  # the client loads Kubernetes' library, and commands without a cluster read this module
    from kvmedic.kube.client import Client

OWN_RULES = Resource("authorization.k8s.io/v1", "selfsubjectrulesreviews")
REVIEWS = Resource("authorization.k8s.io/v1", "subjectaccessreviews")


@dataclass(frozen=True, slots=True)
class Right:
    """One verb on one kind of object."""

    group: str
    """Empty for the core group."""
    resource: str
    """With its subresource: `pods/log`."""
    verb: str

    def __str__(self) -> str:
        place = f"{self.resource}.{self.group}" if self.group else self.resource
        return f"{self.verb} {place}"


def _rights(group: str, resource: str, *verbs: str) -> tuple[Right, ...]:
    return tuple(Right(group, resource, verb) for verb in verbs)


NEEDED = (
    *_rights("kvmedic.io", "kvremediations", "get", "list", "watch", "patch"),
    *_rights("kvmedic.io", "kvremediations/status", "update"),
    *_rights("apps", "deployments", "get", "list", "watch", "patch"),
    *_rights("apps", "replicasets", "get", "list"),
    *_rights("", "pods", "get", "list", "patch", "delete"),
    *_rights("", "pods/log", "get"),
    *_rights("", "services", "list"),
    *_rights("discovery.k8s.io", "endpointslices", "list"),
    *_rights("autoscaling", "horizontalpodautoscalers", "list"),
    *_rights("policy", "poddisruptionbudgets", "list"),
    *_rights("networking.k8s.io", "networkpolicies", "list"),
    *_rights("events.k8s.io", "events", "create"),
)
"""What every change of a setting needs, as the chart grants it; a test compares both."""

CONFIG_FILE = _rights("", "configmaps", "get", "create", "delete")
"""What a change in an engine's configuration file needs beside it (`rbac.configFiles` of the chart)."""

STATEFUL = (
    *_rights("apps", "statefulsets", "get", "list", "watch", "patch"),
    *_rights("apps", "controllerrevisions", "get", "list"),
)
"""What a change of a StatefulSet needs beside it."""

GROUPED = (
    *_rights("leaderworkerset.x-k8s.io", "leaderworkersets", "get", "list", "watch", "patch"),
    *_rights("apps", "statefulsets", "get", "list", "watch"),
    *_rights("apps", "controllerrevisions", "get", "list"),
)
"""What a change of a LeaderWorkerSet needs beside it."""

OWNER_FIELD = MappingProxyType(
    {
        OwnerKind.INFERENCE_SERVICE: _rights("serving.kserve.io", "inferenceservices", "get", "patch"),
        OwnerKind.LLM_INFERENCE_SERVICE: _rights("serving.kserve.io", "llminferenceservices", "get", "patch"),
        OwnerKind.OME: _rights("ome.io", "inferenceservices", "get", "patch"),
        OwnerKind.VLLM_RUNTIME: _rights("production-stack.vllm.ai", "vllmruntimes", "get", "patch"),
    }
)
"""What a change in the owner's own object needs beside it (`rbac.ownerFields` of the chart), by owner."""

Lacking: TypeAlias = tuple[Right, ...]


async def own_lacking_rights(client: Client, namespace: str, needed: Sequence[Right]) -> Lacking | str:
    """Return which rights this process lacks in a namespace, or why that is unknown; one call.

    Raises:
        Unavailable: the API server did not answer.
    """
    try:
        answer = await client.create(
            Ref(OWN_RULES, "", ""), _review("SelfSubjectRulesReview", namespace=namespace)
        )
    except Refused as error:
        return f"the API server does not show our rights: {error}"
    status = section(answer, "status")
    lacking = find_lacking_rights(items(status, "resourceRules"), needed)
    if lacking and status.get("incomplete"):
        return f"an authorizer does not show all rules: {status.get('evaluationError') or 'no reason given'}"
    return lacking


def find_lacking_rights(rules: Iterable[Mapping[str, Any]], needed: Sequence[Right]) -> Lacking:
    """Return the rights that no rule grants; a rule that is bound to names grants none of them."""
    granting = [rule for rule in rules if not rule.get("resourceNames")]
    return tuple(right for right in needed if not any(_grants(rule, right) for rule in granting))


def _grants(rule: Mapping[str, Any], right: Right) -> bool:
    desired = (("apiGroups", right.group), ("resources", right.resource), ("verbs", right.verb))
    return all({one, "*"} & {*(rule.get(field) or ())} for field, one in desired)


async def lacking_rights_of(
    client: Client, account: tuple[str, str], namespace: str, needed: Sequence[Right]
) -> Lacking | str:
    """Return which rights a service account lacks in a namespace, or why that is unknown.

    Args:
        client: of the cluster.
        account: its namespace and its name.
        namespace: where it acts.
        needed: what it should be allowed.

    Raises:
        Unavailable: the API server did not answer.
    """
    try:
        answers = await asyncio.gather(*(_is_allowed(client, account, namespace, each) for each in needed))
    except Refused as error:
        return f"you may not ask for the rights of others: {error}"
    return tuple(right for right, allowed in zip(needed, answers, strict=True) if not allowed)


async def _is_allowed(client: Client, account: tuple[str, str], namespace: str, right: Right) -> bool:
    resource, _, subresource = right.resource.partition("/")
    home, name = account
    attributes = {
        "namespace": namespace,
        "verb": right.verb,
        "group": right.group,
        "resource": resource,
        "subresource": subresource,
    }
    groups = ["system:serviceaccounts", f"system:serviceaccounts:{home}", "system:authenticated"]
    body = _review(
        "SubjectAccessReview",
        user=f"system:serviceaccount:{home}:{name}",
        groups=groups,
        resourceAttributes=attributes,
    )
    return section(await client.create(Ref(REVIEWS, "", ""), body), "status").get("allowed") is True


def _review(kind: str, **spec: Any) -> JsonObject:
    return {"apiVersion": OWN_RULES.group_version, "kind": kind, "spec": spec}
