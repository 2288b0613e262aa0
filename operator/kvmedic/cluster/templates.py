"""What becomes of a pod template: a token of it changes, or several, or another revision's takes its place.

A template may hold secrets. That of another revision is read from its ReplicaSet right before it is put,
goes from one API call into the next, and is nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import assert_never, cast

from kvmedic.core.bundle import BundleEdit, EnvEdit
from kvmedic.core.edit import Json, PatchOperation, TokenEdit
from kvmedic.core.fleet import Fleet
from kvmedic.core.moves import DeploymentMove, Freeze, Retarget, Revert
from kvmedic.core.reference import ReferenceEdit
from kvmedic.core.swap import EditedTemplate, TemplateChange, TemplateSwap
from kvmedic.core.template import own_template, template_hash
from kvmedic.kube.client import Client
from kvmedic.kube.errors import Call, Conflict
from kvmedic.kube.objects import REPLICA_SETS, JsonObject, Ref, controller_uid, section

DEPTH_OF_PLACES = 4
"""`spec.template.metadata.annotations.KEY` names who altered it; containers are told as a list."""


async def template_of(client: Client, fleet: Fleet, move: DeploymentMove) -> JsonObject | None:
    """Return the pod template that a move puts as a whole, as its ReplicaSet keeps it; None: it puts none.

    Raises:
        Conflict: the ReplicaSet is gone, is another Deployment's, or keeps another template.
    """
    if not isinstance(move, Freeze | Retarget | Revert) or not isinstance(move.edit, TemplateSwap):
        return None
    wanted = move.edit.after
    ref = Ref(REPLICA_SETS, fleet.namespace, wanted.replica_set)
    body = await client.get(ref)
    if body is None or controller_uid(body) != fleet.uid:
        raise Conflict(Call("get", ref.path), None, f"revision {wanted.number} is gone")
    template = section(body, "spec", "template")
    if template_hash(template) != wanted.template:
        raise Conflict(
            Call("get", ref.path), None, f"it does not keep pod template {wanted.template} any more"
        )
    return own_template(template)


def template_operations(
    change: TemplateChange | EditedTemplate, template: Mapping[str, object], kept: Mapping[str, Json] | None
) -> tuple[PatchOperation, ...]:
    """Return the JSON patch that changes a Deployment's pod template.

    Only the template: the annotations that a ReplicaSet keeps of its Deployment, which `kubectl rollout
    undo` puts back, stay where they are. One of them may be a claim of long ago.

    Args:
        change: what is to become of it.
        template: the template as it is.
        kept: the one that takes its place, where the change says so.

    Raises:
        ValueError: the template is not what the change expects.
    """
    match change:
        case TokenEdit() | ReferenceEdit() | BundleEdit():
            return change.patch(template)
        case TemplateSwap():
            if kept is None or template_hash(template) != change.before.template:
                raise ValueError(f"the pod template is not that of revision {change.before.number}")
            return (PatchOperation("replace", "/spec/template", kept),)
        case EditedTemplate():
            return (PatchOperation("replace", "/spec/template", cast("Json", change.template)),)
        case _:
            assert_never(change)


def template_after(
    change: TemplateChange | EditedTemplate, template: Mapping[str, object], kept: Mapping[str, Json] | None
) -> Mapping[str, object]:
    """Return the pod template that the patch of `template_operations` makes, if nobody alters it on its way.

    Raises like that.
    """
    match change:
        case TokenEdit() | ReferenceEdit() | BundleEdit():
            return change.apply(template)
        case TemplateSwap():
            return kept or {}
        case EditedTemplate():
            return change.template
        case _:
            assert_never(change)


def different_places(wanted: object, seen: object, place: str) -> tuple[str, ...]:
    """Return the paths at which two templates differ, three levels deep at the most; never a value."""
    if wanted == seen:
        return ()
    if not isinstance(wanted, Mapping) or not isinstance(seen, Mapping):
        return (place,)
    if place.count(".") >= DEPTH_OF_PLACES:
        return (place,)
    keys = sorted({*wanted, *seen})
    return tuple(
        found for key in keys for found in different_places(wanted.get(key), seen.get(key), f"{place}.{key}")
    )


def note_of(change: TemplateChange) -> dict[str, Json]:
    """Return what a person needs to know to take a change back by hand."""
    match change:
        case TokenEdit():
            return _note_of_part(change)
        case BundleEdit():
            return {"parts": tuple(_note_of_part(part) for part in change.parts)}
        case ReferenceEdit():
            projected: dict[str, Json] = {} if change.source is None else {"source": change.source}
            return {
                "volume": change.volume,
                "volumeIndex": change.volume_index,
                "before": change.before,
                "after": change.after,
                **projected,
            }
        case TemplateSwap():
            return {"replicaSet": change.before.replica_set, "template": change.before.template}
        case _:
            assert_never(change)


def _note_of_part(part: TokenEdit | EnvEdit) -> dict[str, Json]:
    where: dict[str, Json] = {"container": part.container, "containerIndex": part.container_index}
    values: dict[str, Json] = {"index": part.index, "before": part.before, "after": part.after}
    match part:
        case EnvEdit():
            return {**where, "env": part.name, **values}
        case TokenEdit():
            within: dict[str, Json] = {} if part.at is None else {"at": part.at}
            return {**where, "field": str(part.field), **values, **within}
        case _:
            assert_never(part)
