"""One examination of one target: its objects are read, from a cluster or from documents, and judged."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kvmedic.api.resource import KIND, policy_of, spec_from_wire
from kvmedic.api.spec import KVRemediationSpec, TargetRef
from kvmedic.cluster.snapshot import neighbours_of
from kvmedic.cluster.workloads import read_target
from kvmedic.doctor.checks import ONLY_LIVE, Check, Examination, Result, Topic, checks_of, in_order
from kvmedic.doctor.documents import DEFAULT_NAMESPACE, as_served
from kvmedic.engines import ENGINES
from kvmedic.kube.client import Reader
from kvmedic.kube.errors import Refused
from kvmedic.kube.objects import JsonObject, items, name_of, section
from kvmedic.manifests.invocation import NotAnEngine, invocation_of
from kvmedic.model.reasons import Reason
from kvmedic.model.spec import Mode, Policy


async def examine(
    reader: Reader, namespace: str, policy: Policy, resource: str = "", *, is_live: bool = True
) -> Examination:
    """Return what stands between a target and a change, as far as its objects tell.

    Args:
        reader: of a cluster, or of documents.
        namespace: of the target.
        policy: what its resource says, or would say.
        resource: name of its resource; empty where there is none.
        is_live: the reader is of a cluster.

    Raises:
        ApiError: the target cannot be read.
    """
    name = policy.target.name
    view = await read_target(reader, namespace, policy)
    if view is None:
        text = f"there is no Deployment {name} in namespace {namespace}"
        check = Check(Topic.TARGET, Result.FAIL, text, reason=Reason.TARGET_NOT_FOUND)
        return Examination(namespace, name, (check,), is_live)
    try:
        neighbours = await neighbours_of(reader, view.fleet, view.template)
    except Refused as error:
        found = checks_of(view, policy, f"not readable: {error}", resource)
    else:
        found = checks_of(view, policy, neighbours, resource)
    if not is_live:
        text = "a file does not show it"
        found = in_order([*found, *(Check(topic, Result.UNKNOWN, text) for topic in ONLY_LIVE)])
    return Examination(namespace, name, found, is_live)


def examine_manifests(
    documents: Sequence[JsonObject], target: str, namespace: str = "", spec: Mapping[str, Any] | None = None
) -> Examination:
    """Return what stands between a Deployment in documents and a change; no cluster is asked.

    Args:
        documents: the objects of its namespace; what they leave open is as a controller would make it.
        target: the Deployment's name.
        namespace: of the target; empty: its document's own.
        spec: of its KVRemediation; None: that of the one among the documents, else `default_spec`.

    Raises:
        SpecInvalid: the spec cannot be followed.
    """
    place = namespace or _namespace_of(documents, target)
    given = spec if spec is not None else _spec_in(documents, target)
    wanted = default_spec(target) if given is None else spec_from_wire(given)
    reader = as_served(documents, place)
    return asyncio.run(examine(reader, place, policy_of(wanted), is_live=False))


def default_spec(target: str) -> KVRemediationSpec:
    """Return what `kvmedic init` writes for a Deployment, in mode Auto."""
    return KVRemediationSpec(target_ref=TargetRef(name=target), mode=Mode.AUTO)


def targets_in(documents: Iterable[JsonObject]) -> tuple[str, ...]:
    """Return the names of the Deployments that start a known engine, or seem to, in their order."""
    return tuple(
        name_of(each) for each in documents if each.get("kind") == "Deployment" and starts_engine(each)
    )


def starts_engine(workload: Mapping[str, Any]) -> bool:
    """Return whether a workload's pod template starts a known engine, as far as it can be followed."""
    containers = items(section(workload, "spec", "template", "spec"), "containers")
    seen = (invocation_of(each, profile) for each in containers for profile in ENGINES)
    return any(not isinstance(how, NotAnEngine) or how.doubt for how in seen)


def _namespace_of(documents: Sequence[JsonObject], target: str) -> str:
    found = (each for each in documents if each.get("kind") == "Deployment" and name_of(each) == target)
    places = (str(section(each, "metadata").get("namespace") or "") for each in found)
    return next(places, "") or DEFAULT_NAMESPACE


def _spec_in(documents: Sequence[JsonObject], target: str) -> Mapping[str, Any] | None:
    specs = (section(each, "spec") for each in documents if each.get("kind") == KIND)
    return next((each for each in specs if section(each, "targetRef").get("name") == target), None)
