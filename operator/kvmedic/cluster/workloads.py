"""Effects on a Deployment: each is one JSON patch of absolute values, or nothing.

A patch tests the Deployment's uid, its generation (so the spec is the one that was looked at) and the
claim annotation, and advances the claim in the same breath. Whoever looked earlier, or lost the claim
meanwhile, gets a `Conflict` and has changed nothing. Repeating an assignment after it was committed
is such a conflict too: the claim it tests is gone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, assert_never

from kvmedic.cluster.marks import RECORDED, RUN
from kvmedic.cluster.patches import ANNOTATIONS, annotating, path_of, same_object, same_version, unmarking
from kvmedic.cluster.snapshot import rollout_fields
from kvmedic.cluster.templates import (
    different_places,
    note_of,
    template_after,
    template_of,
    template_operations,
)
from kvmedic.core.edit import Json, PatchOperation
from kvmedic.core.fleet import ROLLING, Fleet, RolloutFields, Rotation
from kvmedic.core.moves import (
    Claim,
    DeploymentMove,
    Freeze,
    Hold,
    Pause,
    Pulse,
    Regain,
    Release,
    Restore,
    Retarget,
    Revert,
    ScaleIn,
    ScaleOut,
)
from kvmedic.core.swap import TemplateChange
from kvmedic.kube.client import Client
from kvmedic.kube.errors import Call, Conflict, Refused
from kvmedic.kube.objects import DEPLOYMENTS, JsonObject, Ref, annotations_of, section

DOES_NOT_REHEARSE = "does not support dry run"
"""What the API server says of a webhook with side effects (apiserver/pkg/admission/plugin/webhook/errors)."""
ALTERED = (
    "an admission policy alters the Deployment's patch on its way in, so that pods would get what nobody "
    "asked for: have it leave these places of this Deployment alone:"
)


async def assign(
    client: Client, fleet: Fleet, move: DeploymentMove, claim: str, notes: Mapping[str, str]
) -> None:
    """Carry out one move on the Deployment that a fleet was read from.

    Dying before the patch changes nothing; dying after it leaves the claim advanced, by which the
    next look knows that it was committed.

    Args:
        client: the API.
        fleet: the fleet as it was looked at.
        move: what to assign.
        claim: the claim annotation's new value.
        notes: annotations for people, by name; `notes_on` makes the usual ones.

    Raises:
        Conflict: the Deployment is not what was looked at, or another revision's template is not.
        Refused: an admission policy would make another template of it, or other fields of a frozen rollout.
        ValueError: the move's edit does not fit the template that was looked at.
    """
    ref = _ref(fleet)
    live = await _unchanged(client, ref, fleet)
    kept = await template_of(client, fleet, move)
    operations = (
        *guards(fleet, move),
        *_changes(live, move, kept),
        *annotating(live, {**notes, RUN: claim}),
    )
    if isinstance(move, Freeze | Retarget | Revert):
        template = section(live, "spec", "template")
        await _rehearse(client, ref, operations, move, template_after(move.edit, template, kept))
    await client.json_patch(ref, operations)


async def _rehearse(
    client: Client,
    ref: Ref,
    operations: Sequence[PatchOperation],
    move: Freeze | Retarget | Revert,
    wanted: Mapping[str, object],
) -> None:
    """Make a patch of the template as a dry run: an admission policy may alter it on its way in.

    Whatever it adds is a template that nobody asked for, and would be rolled out to every replica.
    """
    call = Call("patch", ref.path)
    try:
        spec = section(await client.json_patch(ref, operations, dry_run=True), "spec")
    except Refused as error:
        if DOES_NOT_REHEARSE in str(error):
            return
        raise
    places = different_places(wanted, section(spec, "template"), "spec.template")
    if isinstance(move, Freeze) and rollout_fields(spec) != move.fields:
        places = (*places, "strategy, minReadySeconds, progressDeadlineSeconds or paused")
    if places:
        raise Refused(call, None, f"{ALTERED} {', '.join(places)}")


async def unclaim(client: Client, fleet: Fleet) -> None:
    """Remove our annotations from the Deployment; nothing to do where it has none.

    Raises:
        Conflict: the claim is not the one that was looked at.
    """
    ref = _ref(fleet)
    live = await client.get(ref)
    if removals := unmarking(live or {}):
        await client.json_patch(ref, [same_object(fleet.uid), _claim_test(fleet), *removals])


def notes_on(fleet: Fleet, move: DeploymentMove) -> dict[str, str]:
    """Return the annotations that let a person undo a run by hand: the values from before.

    Only the first move has any: the one that freezes an untouched rollout, or makes room for a spare. The
    note stays until the claim goes; a move that regains a target writes it anew.
    """
    if isinstance(move, Regain):
        return {} if move.edit is None else {RECORDED: _note(move.recorded, move.edit, fleet.rotation)}
    if isinstance(move, ScaleOut):
        return {RECORDED: json.dumps({"replicas": move.before, "pod": move.pod})}
    if not isinstance(move, Freeze | Hold) or fleet.fields.is_frozen:
        return {}
    return {RECORDED: _note(fleet.fields, move.edit, fleet.rotation)}


def guards(fleet: Fleet, move: DeploymentMove) -> tuple[PatchOperation, ...]:
    """Return the tests that a move's patch begins with."""
    tests = [
        same_object(fleet.uid),
        PatchOperation("test", "/metadata/generation", fleet.generation),
        _claim_test(fleet),
    ]
    if isinstance(move, Restore):
        # The API server leaves out a count of zero, and a test for null holds where nothing is.
        expected = move.replicas or None
        tests.append(PatchOperation("test", "/status/replicas", expected))
        tests.append(PatchOperation("test", "/status/updatedReplicas", expected))
    if isinstance(move, ScaleOut | ScaleIn):
        tests.append(PatchOperation("test", "/spec/replicas", move.before))
    if isinstance(move, ScaleIn) and move.ready is not None:
        tests.append(PatchOperation("test", "/status/readyReplicas", move.ready))
    return tuple(tests)


def field_operations(spec: Mapping[str, Any], fields: RolloutFields) -> tuple[PatchOperation, ...]:
    """Return the operations that give a Deployment's spec these fields, and nothing else.

    A field is removed where the API server would leave its value out, so that a spec that was frozen
    and restored is the same byte for byte. The numbers of a strategy that has none are left alone.
    """
    wanted: dict[str, Json] = {
        "paused": fields.paused or None,
        "minReadySeconds": fields.min_ready_seconds or None,
        "progressDeadlineSeconds": fields.progress_deadline_seconds,
    }
    operations = [
        operation
        for name, value in wanted.items()
        if (operation := _assignment(spec, f"/spec/{name}", value))
    ]
    if section(spec, "strategy").get("type") == ROLLING:
        rolling: Json = {"maxSurge": fields.max_surge, "maxUnavailable": fields.max_unavailable}
        operations.append(PatchOperation("add", "/spec/strategy/rollingUpdate", rolling))
    return tuple(operations)


def _changes(
    live: JsonObject, move: DeploymentMove, kept: Mapping[str, Json] | None
) -> tuple[PatchOperation, ...]:
    """Return what a move changes: the template where it changes it, and the rollout's fields."""
    spec = section(live, "spec")
    match move:
        case Freeze(edit, fields) | Retarget(edit, fields) | Revert(edit, fields):
            changed = template_operations(edit, section(spec, "template"), kept)
            return (*changed, *field_operations(spec, fields))
        case Hold(_, fields) | Pause(fields) | Release(fields) | Restore(fields, _) | Pulse(_, fields):
            return field_operations(spec, fields)
        case ScaleOut(_, replicas) | ScaleIn(_, replicas):
            return (PatchOperation("replace", "/spec/replicas", replicas),)
        case Regain(_, _, fields):
            return () if fields is None else _frozen_again(spec, fields)
        case Claim():
            return ()
        case _:
            assert_never(move)


def _frozen_again(spec: Mapping[str, Any], fields: RolloutFields) -> tuple[PatchOperation, ...]:
    """Return the operations that freeze a rollout again; a strategy of another type has no numbers to set."""
    if section(spec, "strategy").get("type") == ROLLING:
        return field_operations(spec, fields)
    rolling = PatchOperation("add", "/spec/strategy", {"type": ROLLING})
    return (rolling, *field_operations({**spec, "strategy": {"type": ROLLING}}, fields))


def _assignment(spec: Mapping[str, Any], path: str, value: Json) -> PatchOperation | None:
    """Return the operation that gives a field its value, or None where it has it already."""
    name = path.rpartition("/")[2]
    if value is None:
        return PatchOperation("remove", path) if name in spec else None
    return None if spec.get(name) == value else PatchOperation("add", path, value)


async def _unchanged(client: Client, ref: Ref, fleet: Fleet) -> JsonObject:
    """Return the Deployment as it is now, which must be as it was looked at.

    The patch tests the same again; this read is for the list that an edit's own test needs, and for
    which fields are absent.
    """
    live = await client.get(ref)
    metadata = section(live or {}, "metadata")
    seen = (metadata.get("uid"), metadata.get("generation"), annotations_of(live or {}).get(RUN, ""))
    if live is None or seen != (fleet.uid, fleet.generation, fleet.fence):
        raise Conflict(Call("patch", ref.path), None, "it changed since it was looked at")
    return live


def _claim_test(fleet: Fleet) -> PatchOperation:
    """Return the test on the claim; where there is none yet, on the very version that was looked at."""
    if fleet.fence:
        return PatchOperation("test", path_of(ANNOTATIONS, RUN), fleet.fence)
    return same_version(fleet.resource_version)


def _ref(fleet: Fleet) -> Ref:
    return Ref(DEPLOYMENTS, fleet.namespace, fleet.name)


def _note(fields: RolloutFields, edit: TemplateChange, rotation: Rotation) -> str:
    label = {"rotationLabel": rotation.label, "draining": rotation.draining}
    return json.dumps({**_note_of_fields(fields), **note_of(edit), **label})


def _note_of_fields(fields: RolloutFields) -> dict[str, Json]:
    return {
        "paused": fields.paused,
        "maxSurge": fields.max_surge,
        "maxUnavailable": fields.max_unavailable,
        "minReadySeconds": fields.min_ready_seconds,
        "progressDeadlineSeconds": fields.progress_deadline_seconds,
    }
