"""One examination of one target: its objects are read, from a cluster or from documents, and judged."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from kvmedic.api.resource import KIND, policy_of, spec_from_wire
from kvmedic.api.spec import KVRemediationSpec, Rollout, TargetRef
from kvmedic.cluster.looks import read_target
from kvmedic.cluster.neighbours.appliers import neighbours_of
from kvmedic.cluster.node_inventory import room_for
from kvmedic.doctor.checks import (
    ONLY_LIVE,
    Check,
    Examination,
    Result,
    Topic,
    checks_of,
    in_order,
    names_of,
    spare_check,
)
from kvmedic.doctor.documents import DEFAULT_NAMESPACE, as_served, reject_malformed
from kvmedic.doctor.first_resource import fitting_policy
from kvmedic.doctor.remedies import FIXES, file_fix
from kvmedic.engines import ENGINES
from kvmedic.kube.errors import Refused
from kvmedic.kube.objects import JsonObject, name_of, pod_template, section
from kvmedic.manifests.invocation import NotAnEngine, invocation_of
from kvmedic.model.config_edits import Unseen
from kvmedic.model.edits import containers_of
from kvmedic.model.fleet import DEPLOYMENT
from kvmedic.model.reasons import Reason
from kvmedic.model.spec import Mode, Policy, Spare, place_of, target_at
from kvmedic.rollout.preconditions import Neighbours
from kvmedic.rollout.spares.room import Finding, NoRoom, RoomUnknown
from kvmedic.runbooks.workload import View

if TYPE_CHECKING:
    from kvmedic.kube.client import Reader

_ABSENT = f"which {Unseen.GONE}"
"""What is said of a ConfigMap that a cluster does not have; what files do not show may well be in it."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A target and who else has a say in it, as they were read."""

    policy: Policy
    """What its resource says, or would say."""
    view: View
    neighbours: Neighbours | str
    """A text says why they are not known."""
    room: Finding
    """Whether one replica more finds a place."""
    resource: str = ""
    """Name of its resource; empty where there is none."""

    def checks(self) -> tuple[Check, ...]:
        """Return every check that objects of its cluster can answer."""
        spare = spare_check(self.room, self.view.fleet, self.policy, names_of(self.view.fleet, self.resource))
        return (*checks_of(self.view, self.policy, self.neighbours, self.resource), spare)


async def see_target(
    reader: Reader, namespace: str, name: str, spec: KVRemediationSpec | None = None, resource: str = ""
) -> Seen | None:
    """Return a target as its objects show it, or None where there is none.

    Args:
        reader: of a cluster, or of documents.
        namespace: of the target.
        name: the target, as `place_of` names it.
        spec: of its resource; None: what `kvmedic init` would write, in mode Auto.
        resource: name of its resource; empty where there is none.

    Raises:
        ApiError: the target cannot be read.
    """
    policy = policy_of(spec or default_spec(name))
    view = await read_target(reader, namespace, policy)
    if view is None:
        return None
    if spec is None and (fitting := fitting_policy(view, policy)) != policy:
        policy = fitting
        view = await read_target(reader, namespace, policy) or view
    room = await room_for(reader, view.fleet, view.template)
    try:
        neighbours = await neighbours_of(reader, view.fleet, view.template)
    except Refused as error:
        return Seen(policy, view, f"not readable: {error}", room, resource)
    return Seen(policy, view, neighbours, room, resource)


def default_spec(target: str) -> KVRemediationSpec:
    """Return what counts for a target without a resource: every default, in mode Auto.

    What is held by a partition never has a spare: it may go one short where the others carry the load.
    """
    ref = target_at(target)
    spare = Spare.REQUIRED if ref.kind == DEPLOYMENT else Spare.BEST_EFFORT
    named = TargetRef.model_validate({"kind": ref.kind, "name": ref.name})
    return KVRemediationSpec(target_ref=named, mode=Mode.AUTO, rollout=Rollout(spare=spare))


def report_missing_target(namespace: str, name: str, *, is_live: bool = True) -> Examination:
    """Return the examination of a Deployment that is not there."""
    ref = target_at(name)
    text = f"there is no {ref.kind} {ref.name} in namespace {namespace}"
    check = Check(Topic.TARGET, Result.FAIL, text, reason=Reason.TARGET_NOT_FOUND)
    return Examination(namespace, name, (check,), is_live)


def examine_manifests(
    documents: Sequence[JsonObject],
    target: str,
    namespace: str = "",
    spec: Mapping[str, Any] | None = None,
    files: Mapping[str, str] = MappingProxyType({}),
) -> Examination:
    """Return what stands between a Deployment in documents and a change; no cluster is asked.

    Args:
        documents: the objects of its namespace; what they leave open is as a controller would make it.
        target: as `place_of` names it.
        namespace: of the target; empty: its document's own.
        spec: of its KVRemediation; None: that among the documents, else what `kvmedic init` writes.
        files: of each document, as KIND/NAME, the file that it was read from, where there is one.

    Raises:
        SpecInvalid: the spec cannot be followed.
        DocumentsError: an object is malformed.
    """
    place = namespace or namespace_in(documents, target)
    given = spec if spec is not None else _spec_in(documents, target)
    seen = see_documents(documents, target, place, None if given is None else spec_from_wire(given))
    if seen is None:
        return report_missing_target(place, target, is_live=False)
    has_pods = any(each.get("kind") == "Pod" for each in documents)
    if not has_pods and not isinstance(seen.room, NoRoom | RoomUnknown):
        seen = replace(seen, room=RoomUnknown("the files show nodes, and no pods that run on them"))
    unseen = (Check(topic, Result.UNKNOWN, "a file does not show it") for topic in ONLY_LIVE)
    with reject_malformed():
        found = seen.checks()
    found = tuple(replace(each, saw=each.saw.replace(_ABSENT, "which is not in the files")) for each in found)
    if not has_pods:
        found = tuple(_as_written(each) for each in found)
    names = names_of(seen.view.fleet, seen.resource)
    found = tuple(_with_file_fix(each, file_fix(each.reason, each.fix, names, files)) for each in found)
    return Examination(place, target, in_order([*found, *unseen]), is_live=False)


def _with_file_fix(check: Check, fix: str) -> Check:
    """Return a check with what is to be done about it in files; a command's risk goes with the command."""
    if check.name is Topic.FRONT and check.result is Result.FAIL:
        return replace(check, fix=f"if another file has it, give both (-f FILE -f FILE); else {fix}")
    goes_with_it = fix == check.fix or check.reason in FIXES
    return replace(check, fix=fix, risk=check.risk if goes_with_it else "")


def _as_written(check: Check) -> Check:
    """Return a check of documents without pods: that replicas are Ready was taken for granted there."""
    if check.name is not Topic.REPLICAS or check.result is not Result.PASS:
        return check
    desired = check.figures["replicas"]
    asked = "1 replica is" if desired == 1 else f"{desired:g} replicas are"
    text = f"{asked} asked for; a file does not show how many are Ready"
    return replace(check, saw=text, figures={**check.figures, "ready": None})


def see_documents(
    documents: Sequence[JsonObject], target: str, namespace: str, spec: KVRemediationSpec | None = None
) -> Seen | None:
    """Return a target as documents show it, or None where they have none.

    Raises:
        DocumentsError: an object is malformed.
    """
    with reject_malformed():
        served, own = as_served(documents, namespace), _resource_in(documents, target)
        return asyncio.run(see_target(served, namespace, target, spec, own))


def starts_engine(workload: Mapping[str, Any]) -> bool:
    """Return whether a workload's pod template starts a known engine, as far as it can be followed."""
    containers = containers_of(pod_template(workload))
    seen = (invocation_of(each, profile) for each in containers for profile in ENGINES)
    return any(not isinstance(how, NotAnEngine) or how.doubt for how in seen)


def namespace_in(documents: Sequence[JsonObject], target: str) -> str:
    """Return the namespace that a target's document names; kubectl's default where it names none."""
    ref = target_at(target)
    found = (each for each in documents if (each.get("kind"), name_of(each)) == (ref.kind, ref.name))
    places = (str(section(each, "metadata").get("namespace") or "") for each in found)
    return next(places, "") or DEFAULT_NAMESPACE


def _resource_in(documents: Sequence[JsonObject], target: str) -> str:
    """Return the name of a target's KVRemediation among documents; empty where there is none."""
    own = (
        each for each in documents if each.get("kind") == KIND and place_in(section(each, "spec")) == target
    )
    return next(map(name_of, own), "")


def _spec_in(documents: Sequence[JsonObject], target: str) -> Mapping[str, Any] | None:
    specs = (section(each, "spec") for each in documents if each.get("kind") == KIND)
    return next((each for each in specs if place_in(each) == target), None)


def place_in(spec: Mapping[str, Any]) -> str:
    """Return the target of a resource's spec, as `place_of` names it."""
    named = section(spec, "targetRef")
    return place_of(str(named.get("kind", DEPLOYMENT)), str(named.get("name", "")))
