"""The autoscalers of a target: who scales it, within which bounds, and how its minimum is set.

The minimum is set by one patch that tests uid and version, and marks the object with run and number. Who
looked earlier gets a `Conflict`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from kvmedic.cluster.ownership import (
    RECORDED,
    RUN,
    annotate_operations,
    applier_of,
    guard_version,
    owner_of,
    unmark_operations,
)
from kvmedic.kube.errors import NOT_FOUND, Refused
from kvmedic.kube.objects import (
    AUTOSCALERS,
    WORKLOADS,
    JsonObject,
    Ref,
    Resource,
    annotations_of,
    items,
    labels_of,
    name_of,
    section,
    uid_of,
)
from kvmedic.model.edits import PatchOperation
from kvmedic.model.fleet import DEPLOYMENT, Fleet, Minimum, ObjectRef, Owner
from kvmedic.model.reasons import Reason
from kvmedic.rollout.moves import SetMinimum
from kvmedic.rollout.preconditions import Autoscaler, VerticalAutoscaler

if TYPE_CHECKING:
    from kvmedic.kube.client import Client

HPA, SCALED_OBJECT = "HorizontalPodAutoscaler", "ScaledObject"
SCALED_OBJECTS = Resource("keda.sh/v1alpha1", "scaledobjects")


@dataclass(frozen=True, slots=True)
class Bounds:
    """The bounds in the spec of one kind of autoscaler."""

    resource: Resource
    minimum: str
    maximum: str
    default_minimum: int
    default_maximum: int

    def read_bounds(self, spec: Mapping[str, Any]) -> tuple[int, int, bool]:
        """Return the fewest and the most replicas of a spec, and whether it says the fewest itself."""
        fewest, most = (
            spec.get(self.minimum, self.default_minimum),
            spec.get(self.maximum, self.default_maximum),
        )
        return int(fewest), int(most), self.minimum in spec


BOUNDS: Mapping[str, Bounds] = MappingProxyType(
    {
        HPA: Bounds(AUTOSCALERS, "minReplicas", "maxReplicas", 1, 1),
        SCALED_OBJECT: Bounds(SCALED_OBJECTS, "minReplicaCount", "maxReplicaCount", 0, 100),
    }
)
"""By kind. Fields and defaults: autoscaling/v2 (`maxReplicas` has no default: the API server demands it) and
KEDA 2.21."""


VERTICAL_AUTOSCALERS = Resource("autoscaling.k8s.io/v1", "verticalpodautoscalers")

KEDA_PAUSES = ("autoscaling.keda.sh/paused", "autoscaling.keda.sh/paused-replicas")
KEDA_ADDS_NONE = "autoscaling.keda.sh/paused-scale-out"
"""Annotation that KEDA turns into a `Disabled` policy of its HorizontalPodAutoscaler (KEDA 2.21)."""
VPA_MODE = "Recreate"
"""`updateMode` of a VerticalPodAutoscaler that does not say; older versions call the same `Auto`
(autoscaling.k8s.io/v1)."""


def autoscalers_of(
    fleet: Fleet, scaled: Iterable[JsonObject], hpas: Iterable[JsonObject]
) -> Iterator[Autoscaler]:
    """Yield who scales the target: ScaledObjects, and HorizontalPodAutoscalers that are not KEDA's own."""
    for body in scaled:
        spec, marks = section(body, "spec"), annotations_of(body)
        if _targets(section(spec, "scaleTargetRef"), fleet):
            paused = any(marks.get(name, "false") != "false" for name in KEDA_PAUSES)
            policies = section(spec, "advanced", "horizontalPodAutoscalerConfig", "behavior")
            may_add = marks.get(KEDA_ADDS_NONE, "false") == "false" and _may_add(policies)
            yield replace(_read_autoscaler(SCALED_OBJECT, body), paused=paused, may_add=may_add)
    for body in hpas:
        spec, status = section(body, "spec"), section(body, "status")
        owners = items(section(body, "metadata"), "ownerReferences")
        of_keda = any(owner.get("kind") == SCALED_OBJECT for owner in owners)
        if not of_keda and _targets(section(spec, "scaleTargetRef"), fleet):
            said = {each.get("type"): each.get("status") for each in items(status, "conditions")}
            # What it wants is not known while it cannot say, or may not act.
            knows = said.get("ScalingActive") == said.get("AbleToScale") == "True"
            desired = (int(status.get("desiredReplicas", 0)) or None) if knows else None
            may_add = _may_add(section(spec, "behavior"))
            yield replace(_read_autoscaler(HPA, body), desired=desired, may_add=may_add)


def vertical_autoscalers_of(fleet: Fleet, bodies: Iterable[JsonObject]) -> Iterator[VerticalAutoscaler]:
    """Yield the VerticalPodAutoscalers of the target."""
    for body in bodies:
        if _targets(section(body, "spec", "targetRef"), fleet):
            mode = section(body, "spec", "updatePolicy").get("updateMode") or VPA_MODE
            yield VerticalAutoscaler(name_of(body), str(mode))


def _read_autoscaler(kind: str, body: JsonObject) -> Autoscaler:
    fewest, most, is_given = BOUNDS[kind].read_bounds(section(body, "spec"))
    # A Helm release applies only when a person upgrades it; its value then counts as theirs.
    owner = owner_of(body)
    named = owner.name if owner is not None and owner.reason is not Reason.MANAGED_BY_HELM else ""
    manager = applier_of(body, BOUNDS[kind].minimum)
    applier = named or (f"field manager {manager}" if manager else "")
    return Autoscaler(kind, name_of(body), fewest, most, uid=uid_of(body), is_given=is_given, owner=applier)


def _may_add(policies: Mapping[str, Any]) -> bool:
    """Return whether the policies of a HorizontalPodAutoscaler let it add replicas (autoscaling/v2)."""
    return section(policies, "scaleUp").get("selectPolicy") != "Disabled"


def _targets(ref: Mapping[str, Any], fleet: Fleet) -> bool:
    """Return whether a reference means the target; kind and version may be left out in KEDA's."""
    own = WORKLOADS[fleet.kind].group_version.partition("/")[0]
    group = str(ref.get("apiVersion", "apps/v1")).partition("/")[0]
    return (group, ref.get("kind", DEPLOYMENT), ref.get("name")) == (own, fleet.kind, fleet.name)


async def minimum_of(client: Client, namespace: str, holder: ObjectRef) -> Minimum | None:
    """Return an autoscaler's minimum as it is now; None where there is no such object, or no such kind."""
    try:
        body = await client.get(_autoscaler_ref(namespace, holder.kind, holder.name))
    except Refused as error:
        if error.code == NOT_FOUND:
            return None
        raise
    if body is None:
        return None
    fewest, most, is_given = BOUNDS[holder.kind].read_bounds(section(body, "spec"))
    return Minimum(
        kind=holder.kind,
        name=holder.name,
        uid=uid_of(body),
        resource_version=str(section(body, "metadata")["resourceVersion"]),
        number=fewest,
        is_given=is_given,
        most=most,
        mark=annotations_of(body).get(RUN, ""),
    )


async def set_minimum(client: Client, fleet: Fleet, move: SetMinimum, claim: str) -> None:
    """Give an autoscaler another minimum.

    Dying before the patch changes nothing; dying after it leaves the mark, which has the number that was
    set. Repeating it after it was committed is a conflict: the version that it tests is gone.

    Raises:
        Conflict: the object is not what was looked at.
    """
    holder = move.holder
    ref = _autoscaler_ref(fleet.namespace, holder.kind, holder.name)
    live = await client.get(ref) or {}
    field, notes = BOUNDS[holder.kind].minimum, {RUN: claim}
    operations = [*guard_version(holder)]
    if move.is_given:
        operations.append(PatchOperation("add", f"/spec/{field}", move.number))
    elif field in section(live, "spec"):
        operations.append(PatchOperation("remove", f"/spec/{field}"))
    if RECORDED not in annotations_of(live):
        notes[RECORDED] = json.dumps({field: holder.number if holder.is_given else None})
    await client.json_patch(ref, [*operations, *annotate_operations(live, notes)])


async def unmark(client: Client, namespace: str, holder: Minimum) -> None:
    """Remove our annotations from an autoscaler; nothing to do where it has none.

    Raises:
        Conflict: the object is not what was looked at.
    """
    ref = _autoscaler_ref(namespace, holder.kind, holder.name)
    live = await client.get(ref)
    if removals := unmark_operations(live or {}):
        await client.json_patch(ref, [*guard_version(holder), *removals])


def _autoscaler_ref(namespace: str, kind: str, name: str) -> Ref:
    return Ref(BOUNDS[kind].resource, namespace, name)


SCALED_OBJECT_LABEL = "scaledobject.keda.sh/name"
"""Label that KEDA puts on the HorizontalPodAutoscaler which it makes for a ScaledObject (KEDA 2.21)."""


def scaler_of(body: Mapping[str, Any], kind: str, autoscalers: Iterable[JsonObject]) -> Owner | None:
    """Return who else decides a workload's number of replicas, or None where nobody is known to.

    Asked in this order: a HorizontalPodAutoscaler whose target it is, under the name of its ScaledObject
    where KEDA made it; a field manager that applied the number and is nobody at a terminal. One that
    shows in neither is found out when the number changes in the middle of a run, which then ends.
    """
    for each in autoscalers:
        target = section(each, "spec", "scaleTargetRef")
        if (target.get("kind"), target.get("name")) == (kind, name_of(body)):
            made_for = labels_of(each).get(SCALED_OBJECT_LABEL)
            own = f"HorizontalPodAutoscaler {name_of(each)}"
            return Owner(Reason.REPLICAS_AUTOSCALED, f"ScaledObject {made_for}" if made_for else own)
    manager = applier_of(body, "replicas")
    return Owner(Reason.REPLICAS_AUTOSCALED, f"field manager {manager}") if manager else None
