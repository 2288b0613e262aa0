"""Who else has a say in a target: what its owner does with a change that is not its own, and others.

And the objects from which controllers render targets: which field it is, and how it is set.

They are read where there is a plan, and where `spec.ownership: Apply` lets it be carried out. What may not be
read, or is not there, is unknown and said to be: a person's word counts then, and one revert ends it.

Autoscalers, PodDisruptionBudgets and NetworkPolicies are read before a run is opened. A kind that a cluster
lacks counts as nobody.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from kvmedic.cluster.fronts import list_kind
from kvmedic.cluster.neighbours.autoscalers import (
    SCALED_OBJECTS,
    VERTICAL_AUTOSCALERS,
    autoscalers_of,
    vertical_autoscalers_of,
)
from kvmedic.cluster.neighbours.pod_policies import (
    DISRUPTION_BUDGETS,
    NETWORK_POLICIES,
    budgets_of,
    policies_of_draining,
)
from kvmedic.cluster.ownership import owner_of_spec, same_object
from kvmedic.kube.errors import FORBIDDEN, Call, Conflict, Refused
from kvmedic.kube.objects import (
    AUTOSCALERS,
    CONFIG_MAPS,
    WORKLOADS,
    JsonObject,
    Ref,
    Resource,
    annotations_of,
    controller_uid,
    items,
    labels_of,
    name_of,
    namespace_of,
    section,
    uid_of,
)
from kvmedic.model.config_edits import OwnerField
from kvmedic.model.edits import EditState, PatchOperation, TokenEdit
from kvmedic.model.fleet import Fleet, OwnerKind, OwnerObject, TemplateOwner
from kvmedic.model.plan import FlagStep, ReplaceStep, Step
from kvmedic.rollout.moves import SetOwnerField
from kvmedic.rollout.owners.rendering import OwnerBody, field_of, rendering_of
from kvmedic.rollout.owners.reversion import (
    Changed,
    Reversion,
    by_argo_cd,
    by_helm,
    by_helm_release,
    by_kustomization,
    fields_of,
    report_unreadable_owner,
)
from kvmedic.rollout.preconditions import Neighbours
from kvmedic.runbooks.workload import View

if TYPE_CHECKING:
    from kvmedic.kube.client import Client, Reader

APPLICATIONS = Resource("argoproj.io/v1alpha1", "applications")
KUSTOMIZATIONS = Resource("kustomize.toolkit.fluxcd.io/v1", "kustomizations")
HELM_RELEASES = Resource("helm.toolkit.fluxcd.io/v2", "helmreleases")

ARGO_CD_CONFIG = "argocd-cm"
"""ConfigMap with the rules of a whole Argo CD, in its own namespace."""
RULES = "resource.customizations.ignoreDifferences."
"""Beginning of the keys with these rules; behind it the group and kind, or `all`."""
INSTANCE = "app.kubernetes.io/instance"
"""Label by which Argo CD tracks by default. Every Helm chart sets it as well."""


async def reversion_of(
    reader: Reader, fleet: Fleet, template: Mapping[str, Any], step: Step
) -> Reversion | None:
    """Return what the owner of a target does with a step's change; None: nothing of it is the owner's.

    That is so where nobody owns it, where nothing is changed there, and where the owner does not give way:
    then nothing is changed.
    """
    owner, fields = fleet.owner, fields_of(step)
    if isinstance(step, ReplaceStep) and fleet.rotation.orphan is not None:
        return None  # a released replica makes room without another number
    if owner is None or owner.template is None or not owner.gives_way or not fields:
        return None
    body = await _get_object(reader, Ref(WORKLOADS[fleet.kind], fleet.namespace, fleet.name)) or {}
    marks = {**labels_of(body), **annotations_of(body)}
    changed = Changed(fleet.namespace, fleet.name, marks, template, fields)
    who = owner.template
    match who.kind:
        case OwnerKind.HELM | OwnerKind.PRODUCTION_STACK:
            return by_helm(str(who))
        case OwnerKind.FLUX_KUSTOMIZATION:
            return by_kustomization(str(who), await _of_owner(reader, KUSTOMIZATIONS, who, fleet), changed)
        case OwnerKind.FLUX_HELM:
            return by_helm_release(str(who), await _of_owner(reader, HELM_RELEASES, who, fleet), changed)
        case _:
            return await _of_argo_cd(reader, who, changed)


async def _of_owner(reader: Reader, kind: Resource, who: TemplateOwner, fleet: Fleet) -> JsonObject | None:
    return await _get_object(reader, Ref(kind, who.namespace or fleet.namespace, who.name))


async def _of_argo_cd(reader: Reader, who: TemplateOwner, changed: Changed) -> Reversion:
    """Return what an Application does; any other applier has no object that shows it.

    Argo CD notes an Application's name alone, or behind that of its namespace; the object names what it
    applies, which shows that it is the right one.
    """
    named = who.name if who.kind is OwnerKind.ARGO_CD else changed.marks.get(INSTANCE, "")
    application = await _application(reader, named, changed) if named else None
    if application is None:
        return report_unreadable_owner(str(who))
    place = namespace_of(application)
    known = replace(who, kind=OwnerKind.ARGO_CD, name=name_of(application))
    config = await _get_object(reader, Ref(CONFIG_MAPS, place, ARGO_CD_CONFIG)) if place else None
    return by_argo_cd(str(known), application, _common_rules(config or {}), changed)


async def _application(reader: Reader, named: str, changed: Changed) -> JsonObject | None:
    found = await _list(reader, APPLICATIONS, "") or await _list(reader, APPLICATIONS, changed.namespace)
    for body in found:
        place = section(body, "metadata").get("namespace")
        if named in (name_of(body), f"{place}_{name_of(body)}") and _applies(body, changed):
            return body
    return None


async def _list(reader: Reader, kind: Resource, namespace: str) -> list[JsonObject]:
    """Return objects; none where they may not be listed, or the cluster lacks the kind."""
    try:
        return await reader.list(kind, namespace)
    except Refused:
        return []


def _applies(application: JsonObject, changed: Changed) -> bool:
    """Return whether an Application says that it applies a Deployment."""
    desired = ("Deployment", changed.namespace, changed.name)
    return any(
        (each.get("kind"), each.get("namespace"), each.get("name")) == desired
        for each in items(section(application, "status"), "resources")
    )


def _common_rules(config: JsonObject) -> list[JsonObject]:
    """Return the rules of a whole Argo CD that are for Deployments; what cannot be read is none."""
    texts = [text for key, text in section(config, "data").items() if key in _RULED]
    found: list[JsonObject] = []
    for text in texts:
        try:
            rule = YAML(typ="safe").load(text)
        except YAMLError:
            continue
        found += [dict(rule)] if isinstance(rule, Mapping) else []
    return found


_RULED = (f"{RULES}all", f"{RULES}apps_Deployment")


async def _get_object(reader: Reader, ref: Ref) -> JsonObject | None:
    """Return an object; None where it is not there, or may not be read."""
    try:
        return await reader.get(ref)
    except Refused:
        return None


async def neighbours_of(
    client: Reader, fleet: Fleet, template: Mapping[str, Any], step: Step | None = None
) -> Neighbours:
    """Return who has a say in the replicas and pods of a target, and in a step's change of it."""
    labels = labels_of(template)
    # What treats a released replica differently is in the way of draining itself.
    changed = {} if fleet.rotation.orphan else {fleet.rotation.label: fleet.rotation.draining}
    drained = {**labels, **changed}
    kinds = (AUTOSCALERS, SCALED_OBJECTS, VERTICAL_AUTOSCALERS, DISRUPTION_BUDGETS, NETWORK_POLICIES)
    hpas, scaled, vertical, budgets, networks = await asyncio.gather(
        *(list_kind(client, kind, fleet.namespace) for kind in kinds)
    )
    return Neighbours(
        autoscalers=tuple(autoscalers_of(fleet, scaled, hpas)),
        vertical=tuple(vertical_autoscalers_of(fleet, vertical)),
        disruption_budgets=tuple(budgets_of(budgets, labels)),
        of_draining=tuple(policies_of_draining(budgets, networks, labels, drained)),
        reversion=await reversion_of(client, fleet, template, step) if step else None,
    )


async def owner_field_of(
    client: Client, fleet: Fleet, template: Mapping[str, Any], step: FlagStep
) -> OwnerField | str:
    """Return the field of the owner's object that a step's token is rendered from, or why none is written.

    The write is rehearsed: that shows whether it may be made, and whether the definition takes the value.
    """
    edit = step.edit
    if not isinstance(edit, TokenEdit):
        return "the flag is in a configuration file"
    target = await client.get(Ref(WORKLOADS[fleet.kind], fleet.namespace, fleet.name))
    if target is None:  # as the garbage collector leaves nothing of an owner that was deleted
        return f"{fleet.kind}/{fleet.name} is not there"
    reference = next(
        (each for each in items(section(target, "metadata"), "ownerReferences") if each.get("controller")),
        {},
    )
    version, kind, name = (str(reference.get(key, "")) for key in ("apiVersion", "kind", "name"))
    rendering = rendering_of(version, kind)
    if isinstance(rendering, str):
        return rendering
    ref = Ref(Resource(version, rendering.plural), fleet.namespace, name)
    try:
        body = await client.get(ref)
        if body is None or uid_of(body) != reference.get("uid"):
            return f"{kind}/{name} is not there"
        if above := controller_uid(body):
            return f"{kind}/{name} is itself rendered from another object ({above})"
        owner = OwnerBody(version, kind, name, uid_of(body), section(body, "spec"))
        found = field_of(owner, rendering, template, edit, step.knob)
        if isinstance(found, OwnerField):
            await client.json_patch(ref, _operations(body, found), dry_run=True)
    except Refused as error:
        lacks = error.code == FORBIDDEN and " cannot " in error.reason  # in RBAC's words, else a policy's
        return f"{error} (the chart's rbac.ownerFields grants get and patch)" if lacks else str(error)
    return found


async def owner_object(client: Reader, view: View, field: OwnerField) -> View:
    """Return a target with the object that it is rendered from, as it is now."""
    body = await client.get(_ref_of(view.fleet.namespace, field))
    seen = None
    if body is not None:
        generation = int(section(body, "metadata").get("generation", 0))
        seen = OwnerObject(uid_of(body), generation, field.state(body), owner_of_spec(body))
    return replace(view, fleet=replace(view.fleet, rendered_from=seen))


async def set_owner_field(client: Client, namespace: str, move: SetOwnerField) -> None:
    """Give a field of an owner's object its value; the object has no mark of ours.

    Repeating it after it was committed is a conflict: neither the generation nor the old value is there.

    Raises:
        Conflict: the object is not what was looked at.
    """
    ref, seen = _ref_of(namespace, move.field), move.seen
    live = await client.get(ref)
    metadata = section(live or {}, "metadata")
    if live is None or (uid_of(live), metadata.get("generation")) != (seen.uid, seen.generation):
        raise Conflict(Call("patch", ref.path), None, "it changed since it was looked at")
    if move.field.state(live) is not EditState.BEFORE:
        raise Conflict(Call("patch", ref.path), None, f"{move.field} is not {move.field.before}")
    await client.json_patch(ref, _operations(live, move.field))


def _ref_of(namespace: str, field: OwnerField) -> Ref:
    rendering = rendering_of(field.api_version, field.kind)
    plural = rendering if isinstance(rendering, str) else rendering.plural
    return Ref(Resource(field.api_version, plural), namespace, field.name)


def _operations(body: JsonObject, field: OwnerField) -> tuple[PatchOperation, ...]:
    generation = section(body, "metadata").get("generation")
    tests = (same_object(uid_of(body)), PatchOperation("test", "/metadata/generation", generation))
    return (*tests, *field.patch(body))
