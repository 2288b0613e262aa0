"""The workload that a resource looks after, and effects on its Deployment: each is one JSON patch or nothing.

A patch has absolute values. It tests the Deployment's uid, its generation (so the spec is the one that was
looked at) and the claim annotation, and advances the claim in the same breath. Who looked earlier, lost
the claim, or repeats an assignment gets a `Conflict` and has changed nothing.

A template may hold secrets. That of another revision is read from its ReplicaSet right before it is put,
goes from one API call into the next, and is nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, assert_never, cast

from kvmedic.cluster.containers.exit_causes import ends_of, pools_of, starts_of
from kvmedic.cluster.fronts import Depth
from kvmedic.cluster.looks import QuickLooks, read_target
from kvmedic.cluster.neighbours.appliers import neighbours_of, owner_field_of, owner_object, set_owner_field
from kvmedic.cluster.neighbours.autoscalers import minimum_of, set_minimum, unmark
from kvmedic.cluster.node_inventory import SharedSurroundings, room_for
from kvmedic.cluster.orphan_pods import release
from kvmedic.cluster.ownership import (
    ANNOTATIONS,
    CORDONED_FOR,
    RUN,
    annotate_operations,
    notes_on,
    path_of,
    same_object,
    same_version,
    unmark_operations,
)
from kvmedic.cluster.rotation import confirm, find_cordoned_pods, free, move_pod
from kvmedic.cluster.snapshot import rollout_fields
from kvmedic.cluster.stateful.groups import group_operations, leader_template, normalise_template, on_groups
from kvmedic.cluster.stateful.revisions import partition_operations, template_in
from kvmedic.engines.engine_log import Start, StartForms
from kvmedic.kube.client import Client
from kvmedic.kube.errors import Call, Conflict, Refused
from kvmedic.kube.objects import (
    CONTROLLER_REVISIONS,
    REPLICA_SETS,
    WORKLOADS,
    JsonObject,
    Ref,
    annotations_of,
    controller_uid,
    different_places,
    pod_template,
    section,
)
from kvmedic.model.config_edits import EditedTemplate, OwnerField, TemplateChange, TemplateSwap
from kvmedic.model.devices import EngineEnd
from kvmedic.model.edits import BundleEdit, Json, PatchOperation, ReferenceEdit, TokenEdit
from kvmedic.model.evidence import LogForms, LoggedSize
from kvmedic.model.fleet import (
    ROLLING,
    STATEFUL_SET,
    Cordoned,
    Fleet,
    ObjectRef,
    Pod,
    RolloutFields,
    own_template,
    template_hash,
)
from kvmedic.model.plan import FlagStep, Step
from kvmedic.model.spec import Policy
from kvmedic.rollout.moves import (
    Claim,
    DeploymentMove,
    Effect,
    Freeze,
    Hold,
    Pause,
    PodMove,
    Pulse,
    Regain,
    Release,
    Restore,
    Retarget,
    Revert,
    ScaleIn,
    ScaleOut,
    SetMinimum,
    SetOwnerField,
    edit_in,
)
from kvmedic.rollout.preconditions import Neighbours
from kvmedic.rollout.spares.room import Finding
from kvmedic.runbooks.workload import View


@dataclass(frozen=True, slots=True)
class DeploymentTarget:
    """Deployments of one cluster."""

    client: Client
    quick_looks: QuickLooks | None = None
    """None: a quick look reads from the API server, too."""
    surroundings: SharedSurroundings | None = None
    """What all runs that begin share of nodes and pods; None: what matters to one is read for it."""

    async def look(self, namespace: str, policy: Policy) -> View | None:
        """Return the target as it is now, or None when the Deployment does not exist."""
        return self._with_time(await read_target(self.client, namespace, policy))

    async def quick_look(self, namespace: str, policy: Policy) -> View | None:
        """Return the target as it was a moment ago, without what only draining depends on.

        None when it does not exist. Nothing is decided on it but whether the fleet is calm.
        """
        if self.quick_looks is None:
            return self._with_time(await read_target(self.client, namespace, policy, Depth.QUICK))
        return self._with_time(await self.quick_looks.at(namespace, policy))

    def _with_time(self, seen: View | None) -> View | None:
        return seen and seen.with_fleet(replace(seen.fleet, looked_at=self.client.clock.now()))

    async def with_minimum(self, view: View, holder: ObjectRef) -> View:
        """Return the target with the minimum that an autoscaler has for it now."""
        found = await minimum_of(self.client, view.fleet.namespace, holder)
        return replace(view, fleet=replace(view.fleet, minimum=found))

    async def owner_field(self, view: View, step: FlagStep) -> OwnerField | str:
        """Return the field of the owner's object that a step's token is rendered from, or why none is."""
        return await owner_field_of(self.client, view.fleet, view.template, step)

    async def with_owner_object(self, view: View, field: OwnerField) -> View:
        """Return the target with the object that it is rendered from, as it is now."""
        return await owner_object(self.client, view, field)

    async def neighbours(self, view: View, step: Step | None = None) -> Neighbours:
        """Return who else has a say in the target's replicas and pods, and in a step's change of it."""
        return await neighbours_of(self.client, view.fleet, view.template, step)

    async def room_for(self, view: View) -> Finding:
        """Return whether one pod more of the target finds a place now."""
        return await room_for(self.client, view.fleet, view.template, self.surroundings)

    async def apply(self, fleet: Fleet, effect: Effect, claim: str) -> None:
        """Carry out one effect on the fleet as it was viewed; repeating it changes nothing more.

        Raises:
            Conflict: the object is not what was viewed.
        """
        if isinstance(effect, PodMove):
            await move_pod(self.client, fleet, effect)
        elif isinstance(effect, SetMinimum):
            await set_minimum(self.client, fleet, effect, claim)
        elif isinstance(effect, SetOwnerField):
            await set_owner_field(self.client, fleet.namespace, effect)
        else:
            if isinstance(effect, Pulse):
                await confirm(self.client, fleet, effect.pods_to_remove)
            if isinstance(effect, Freeze) and fleet.rotation.orphan is not None and fleet.live:
                await release(self.client, fleet, fleet.live[0], dry_run=True)
            await assign(self.client, fleet, effect, claim, notes_on(fleet, effect))

    async def last_ends(
        self, namespace: str, pods: Sequence[Pod], since: datetime
    ) -> Mapping[str, EngineEnd]:
        """Return the last end of each engine that ended since a moment, by pod; it reads their logs."""
        return await ends_of(self.client, namespace, pods, since)

    async def logged_pools(
        self, namespace: str, pods: Sequence[Pod], container: str, forms: LogForms
    ) -> Mapping[str, LoggedSize]:
        """Return the pools that the present logs of replicas show, by pod; who shows none is not there."""
        return await pools_of(self.client, namespace, pods, container, forms)

    async def starts(
        self, namespace: str, pods: Sequence[Pod], container: str, forms: StartForms
    ) -> Mapping[str, Start]:
        """Return what the present logs of replicas say of their start, by pod."""
        return await starts_of(self.client, namespace, pods, container, forms)

    async def unclaim(self, fleet: Fleet) -> None:
        """Remove our annotations while the claim is the one that was looked at; nothing without a claim."""
        if fleet.minimum is not None and fleet.minimum.mark:
            await unmark(self.client, fleet.namespace, fleet.minimum)
        if fleet.fence:
            await unclaim(self.client, fleet)

    async def find_cordoned_pods(self, namespace: str) -> tuple[Cordoned, ...]:
        """Return the pods that carry a note of ours; an empty namespace means the marked ones of all."""
        return await find_cordoned_pods(self.client, namespace, "" if namespace else CORDONED_FOR)

    async def free(self, found: Cordoned) -> None:
        """Put a pod back into rotation that no fleet has any more. Raises Conflict when it changed."""
        await free(self.client, found)


async def template_of(
    client: Client, fleet: Fleet, move: DeploymentMove, present: Mapping[str, Any]
) -> JsonObject | None:
    """Return the pod template that a move puts as a whole, as its revision keeps it; None: it puts none.

    Args:
        present: the workload's own one.

    Raises:
        Conflict: the ReplicaSet is gone, is another Deployment's, or keeps another template.
    """
    edit = edit_in(move)
    if not isinstance(edit, TemplateSwap):
        return None
    desired = edit.after
    kind = CONTROLLER_REVISIONS if fleet.is_stateful else REPLICA_SETS
    ref = Ref(kind, fleet.namespace, desired.replica_set)
    body = await client.get(ref)
    if body is None or controller_uid(body) != fleet.uid:
        raise Conflict(Call("get", ref.path), None, f"revision {desired.number} is gone")
    if fleet.groups is not None:
        template = leader_template(section(body, "data"), fleet.name)
    else:
        template = template_in(body, present) if fleet.is_stateful else section(body, "spec", "template")
    if template_hash(template) != desired.template:
        raise Conflict(
            Call("get", ref.path), None, f"it does not keep pod template {desired.template} any more"
        )
    return own_template(template)


def template_operations(
    change: TemplateChange | EditedTemplate, template: Mapping[str, object], kept: Mapping[str, Json] | None
) -> tuple[PatchOperation, ...]:
    """Return the JSON patch that changes a Deployment's pod template.

    Only the template: the annotations that a ReplicaSet keeps of its Deployment, which `kubectl rollout
    undo` puts back, stay where they are. One of them may be a claim of long ago.

    Args:
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


DOES_NOT_REHEARSE = "does not support dry run"
"""What the API server says of a webhook with side effects (apiserver/pkg/admission/plugin/webhook/errors)."""
ALTERED = (
    "an admission policy alters the Deployment's patch on its way in, so that pods would get what was "
    "not asked for: have it leave these places of this Deployment alone:"
)


async def assign(
    client: Client, fleet: Fleet, move: DeploymentMove, claim: str, notes: Mapping[str, str]
) -> None:
    """Carry out one move on the Deployment that a fleet was read from.

    Dying before the patch changes nothing; dying after it leaves the claim advanced, by which the
    next look knows that it was committed.

    Args:
        notes: annotations for people, by name; `notes_on` makes the usual ones.

    Raises:
        Conflict: the Deployment is not what was looked at, or another revision's template is not.
        Refused: an admission policy would make another template of it, or other fields of a frozen rollout.
        ValueError: the move's edit does not fit the template that was looked at.
    """
    ref = Ref(WORKLOADS[fleet.kind], fleet.namespace, fleet.name)
    # The patch tests the same again; this read is for the list that an edit's own test needs, and for which
    # fields are absent.
    live = await client.get(ref)
    metadata = section(live or {}, "metadata")
    seen = (metadata.get("uid"), metadata.get("generation"), annotations_of(live or {}).get(RUN, ""))
    if live is None or seen != (fleet.uid, fleet.generation, fleet.fence):
        raise Conflict(Call("patch", ref.path), None, "it changed since it was looked at")
    template = _template_for(live, move)
    kept = await template_of(client, fleet, move, template)
    operations = (
        *guards(fleet, move),
        *on_groups(live, _changes(live, move, template, kept)),
        *annotate_operations(live, {**notes, RUN: claim}),
    )
    if (edit := edit_in(move)) is not None:
        await _rehearse(client, ref, operations, move, template_after(edit, template, kept))
    await client.json_patch(ref, operations)


def _template_for(live: JsonObject, move: DeploymentMove) -> JsonObject:
    """Return the pod template that a move is made on: as it is hashed, where the whole takes its place."""
    swaps = isinstance(edit_in(move), TemplateSwap)
    return normalise_template(live) if swaps else pod_template(live)


async def _rehearse(
    client: Client,
    ref: Ref,
    operations: Sequence[PatchOperation],
    move: DeploymentMove,
    desired: Mapping[str, object],
) -> None:
    """Make a patch of the template as a dry run: an admission policy may alter it on its way in.

    Whatever it adds is a template that nobody asked for, and would be rolled out to every replica.
    """
    call = Call("patch", ref.path)
    try:
        tried = await client.json_patch(ref, operations, dry_run=True)
    except Refused as error:
        if DOES_NOT_REHEARSE in str(error):
            return
        raise
    places = different_places(normalise_template(tried, desired), normalise_template(tried), "spec.template")
    if isinstance(move, Freeze) and rollout_fields(tried) != move.fields:
        places = (*places, "strategy, minReadySeconds, progressDeadlineSeconds or paused")
    if places:
        raise Refused(call, None, f"{ALTERED} {', '.join(places)}")


async def unclaim(client: Client, fleet: Fleet) -> None:
    """Remove our annotations from the Deployment; nothing to do where it has none.

    Raises:
        Conflict: the claim is not the one that was looked at.
    """
    ref = Ref(WORKLOADS[fleet.kind], fleet.namespace, fleet.name)
    live = await client.get(ref)
    if removals := unmark_operations(live or {}):
        await client.json_patch(ref, [same_object(fleet.uid), _claim_test(fleet), *removals])


def guards(fleet: Fleet, move: DeploymentMove) -> tuple[PatchOperation, ...]:
    """Return the tests that a move's patch begins with."""
    return (
        same_object(fleet.uid),
        PatchOperation("test", "/metadata/generation", fleet.generation),
        _claim_test(fleet),
        *_count_tests(fleet, move),
    )


def _count_tests(fleet: Fleet, move: DeploymentMove) -> Iterator[PatchOperation]:
    """Yield the tests of the numbers of replicas on which a move rests."""
    match move:
        case Restore(replicas=replicas):
            # The API server leaves out a count of zero, and a test for null holds where nothing is.
            expected = replicas or None
            # A StatefulSet's own count is always there.
            own = replicas if fleet.kind == STATEFUL_SET else expected
            yield PatchOperation("test", "/status/replicas", own)
            yield PatchOperation("test", "/status/updatedReplicas", expected)
        case ScaleOut(before=before):
            yield PatchOperation("test", "/spec/replicas", before)
        case ScaleIn(before=before, ready=ready):
            yield PatchOperation("test", "/spec/replicas", before)
            if ready is not None:
                yield PatchOperation("test", "/status/readyReplicas", ready)
        case Freeze() | Hold() | Pause() | Retarget() | Pulse() | Revert() | Release() | Claim() | Regain():
            return
        case _:
            assert_never(move)


def field_operations(live: JsonObject, fields: RolloutFields) -> tuple[PatchOperation, ...]:
    """Return the operations that give a workload these fields, and nothing else.

    A field is removed where the API server would leave its value out, so that a spec that was frozen
    and restored is the same byte for byte. A strategy of another type than `RollingUpdate` has no numbers.
    """
    if fields.partition is not None:
        set_fields = (
            group_operations if "leaderWorkerTemplate" in section(live, "spec") else partition_operations
        )
        return set_fields(live, fields)
    spec = section(live, "spec")
    desired: dict[str, Json] = {
        "paused": fields.paused or None,
        "minReadySeconds": fields.min_ready_seconds or None,
        "progressDeadlineSeconds": fields.progress_deadline_seconds,
    }
    operations = []
    for name, value in desired.items():
        if value is None and name in spec:
            operations.append(PatchOperation("remove", f"/spec/{name}"))
        elif value is not None and spec.get(name) != value:
            operations.append(PatchOperation("add", f"/spec/{name}", value))
    kind = section(spec, "strategy").get("type")
    kept = kind == fields.strategy
    if fields.strategy == ROLLING and kind is not None:
        rolling: Json = {"maxSurge": fields.max_surge, "maxUnavailable": fields.max_unavailable}
        whole: Json = {"type": ROLLING, "rollingUpdate": rolling}
        place, value = ("/spec/strategy/rollingUpdate", rolling) if kept else ("/spec/strategy", whole)
        operations.append(PatchOperation("add", place, value))
    elif kind is not None and not kept:
        operations.append(PatchOperation("add", "/spec/strategy", {"type": fields.strategy}))
    return tuple(operations)


def _changes(
    live: JsonObject, move: DeploymentMove, template: JsonObject, kept: Mapping[str, Json] | None
) -> tuple[PatchOperation, ...]:
    """Return what a move changes: the template where it changes it, and the rollout's fields."""
    match move:
        case Freeze(edit, fields) | Retarget(edit, fields) | Revert(edit, fields):
            changed = template_operations(edit, template, kept)
            return (*changed, *field_operations(live, fields))
        case Hold(_, fields) | Pause(fields) | Release(fields) | Restore(fields, _) | Pulse(_, fields):
            return field_operations(live, fields)
        case ScaleOut(_, replicas) | ScaleIn(_, replicas):
            return (PatchOperation("replace", "/spec/replicas", replicas),)
        case Claim():
            return ()
        case Regain(_, _, fields):
            return () if fields is None else field_operations(live, fields)
        case _:
            assert_never(move)


def _claim_test(fleet: Fleet) -> PatchOperation:
    """Return the test on the claim; where there is none yet, on the very version that was looked at."""
    if fleet.fence:
        return PatchOperation("test", path_of(ANNOTATIONS, RUN), fleet.fence)
    return same_version(fleet.resource_version)
