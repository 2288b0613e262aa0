"""Marks on other people's objects: kvmedic's own, and those by which others show that they decide.

Our marks are annotations and labels, a fence and notes for people, never an authority; none is in a pod
template. The patches that set them test what was looked at.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, assert_never

from kvmedic.kube.objects import (
    FIELD_MANAGER,
    JsonObject,
    annotations_of,
    items,
    labels_of,
    parse_note,
    section,
)
from kvmedic.manifests.proposals import owner_in
from kvmedic.model.config_edits import TemplateChange, TemplateSwap
from kvmedic.model.edits import (
    BundleEdit,
    EditState,
    EnvEdit,
    Field,
    FieldEdit,
    Json,
    PatchOperation,
    ReferenceEdit,
    TemplateEdit,
    TokenEdit,
)
from kvmedic.model.fleet import (
    ROLLING,
    Cordoned,
    Fleet,
    Minimum,
    Owner,
    OwnerKind,
    Pod,
    RolloutFields,
    TemplateOwner,
    template_hash,
)
from kvmedic.model.reasons import Reason
from kvmedic.model.spec import Ownership, RotationLabel, RotationWay
from kvmedic.rollout.moves import (
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

PREFIX = "kvmedic.io/"

RUN = f"{PREFIX}run"
"""On the Deployment: `<resource uid>/<run>/<sequence>` of the last assignment that was committed."""

RECORDED = f"{PREFIX}recorded"
"""On the Deployment: the values from before the run, so that it can be undone by hand."""

CORDONED = f"{PREFIX}cordoned"
"""On a pod: the label and the deletion cost that it had before it was cordoned, and for which Deployment."""

CORDONED_FOR = f"{PREFIX}cordoned-for"
"""Label of such a pod: the uid of that Deployment. By it a pod is found that nothing else leads to."""

RELEASED = f"{PREFIX}released"
"""On a pod that was released from its ReplicaSet: from which, its labels before, and which of them to change
next. It has the label `CORDONED_FOR` as well, as has the pod that was made in its place."""

PERMIT = f"{PREFIX}permit"
"""On a StatefulSet while a run has it make a deleted replica anew from the present template."""

TARGET = f"{PREFIX}target"
"""Label of a ConfigMap that is a copy of ours: the uid of the Deployment that it was made for."""

COPY_OF = f"{PREFIX}copy-of"
"""On such a copy: the ConfigMap that it was copied from, and the hash of what was in that then."""

DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
"""On a pod: of two Ready pods the one of lower cost is removed first (Kubernetes 1.22, KEP 2255)."""

CORDON_COST = "-2147483648"
"""The lowest deletion cost there is: costs are 32-bit integers."""

STAND_IN_COST = "-2147483647"
"""The lowest cost but one: of a pod that is to go before it serves."""

LABELS = "/metadata/labels"
ANNOTATIONS = "/metadata/annotations"


def path_of(parent: str, name: str) -> str:
    """Return the path of a label or annotation (RFC 6901: a slash in a name is written ~1)."""
    return f"{parent}/{name.replace('~', '~0').replace('/', '~1')}"


def guard_version(seen: Pod | Minimum | Cordoned) -> tuple[PatchOperation, ...]:
    """Return the tests that an object is the very version that was looked at."""
    return same_object(seen.uid), same_version(seen.resource_version)


def same_object(uid: str) -> PatchOperation:
    """Return the test that an object is not another of the same name."""
    return PatchOperation("test", "/metadata/uid", uid)


def same_version(resource_version: str) -> PatchOperation:
    """Return the test that nothing of an object changed."""
    return PatchOperation("test", "/metadata/resourceVersion", resource_version)


def annotate_operations(live: JsonObject, marks: Mapping[str, str]) -> tuple[PatchOperation, ...]:
    """Return the operations that set annotations, on an object that may have none at all."""
    first = () if annotations_of(live) else (PatchOperation("add", ANNOTATIONS, {}),)
    added = (PatchOperation("add", path_of(ANNOTATIONS, name), text) for name, text in marks.items())
    return (*first, *added)


def unmark_operations(live: JsonObject) -> tuple[PatchOperation, ...]:
    """Return the operations that remove all our annotations; none where there are none."""
    ours = sorted(name for name in annotations_of(live) if name.startswith(PREFIX))
    return tuple(PatchOperation("remove", path_of(ANNOTATIONS, name)) for name in ours)


SIGNS = MappingProxyType(
    {
        "fleet.cattle.io/bundle-id": "Rancher Fleet bundle",
        "objectset.rio.cattle.io/id": "Rancher Fleet bundle",
        "kapp.k14s.io/app": "kapp application",
        "configsync.gke.io/resource-id": "Config Sync object",
    }
)
"""Annotations and labels of further tools that apply a manifest again and again, and what their value
names. Those of Argo CD, Flux and Helm, and of controllers, are in `kvmedic.manifests.proposals`.

Source: Rancher Fleet `internal/helmdeployer`; kapp `pkg/kapp/app`; Config Sync `pkg/metadata`. Argo
CD's older tracking label `app.kubernetes.io/instance` is no sign, because every Helm chart sets it;
there the field manager shows it.
"""

APPLIERS = MappingProxyType(
    {
        "argocd-controller": "Argo CD",
        "argocd-application-controller": "Argo CD",
        "kustomize-controller": "Flux",
        "helm-controller": "Flux",
        "flux": "Flux",
        "fleetagent": "Rancher Fleet",
        "kapp-controller": "kapp-controller",
        "configsync": "Config Sync",
        "reconciler": "Config Sync",
        "application/apply-patch": "Sveltos",
    }
)
"""Field managers that apply again and again, whichever operation they use.

Source: Argo CD `common/common.go` (ArgoCDSSAManager); Flux `kustomize-controller` and
`helm-controller` `main.go`; a controller-runtime client without a field owner of its own is called
after the content type (Sveltos).
"""

BY_HAND = ("kubectl", "helm", "before-first-apply", "kvmedic")
"""Beginnings of field managers that write when a person or a pipeline says so: `kubectl-client-side-apply`,
`kubectl-edit` …; `before-first-apply` is the API server's name for fields set before the first apply."""

GROUPS = ("f:rolloutStrategy", "f:rollingUpdateConfiguration")
CONTESTED = (
    *("f:strategy", "f:minReadySeconds", "f:progressDeadlineSeconds", "f:paused", "f:template"),
    *("f:updateStrategy", "f:leaderWorkerTemplate", "f:rolloutStrategy"),
)
"""Fields of a workload that a frozen rollout changes: setting one of them back in the middle rolls
the rest of the fleet undrained (measured on Kubernetes 1.36)."""

DATA = ("f:data", "f:binaryData")
"""What a ConfigMap holds, in the words of `managedFields`."""

RELEASES = frozenset({OwnerKind.HELM, OwnerKind.PRODUCTION_STACK})
"""Owners that apply when a person upgrades them. The next upgrade puts the old value back, weeks later
and unseen: a chart's list of arguments replaces the live one (Helm 3 and 4, three-way merge)."""

GITOPS = frozenset({OwnerKind.ARGO_CD, OwnerKind.FLUX_KUSTOMIZATION, OwnerKind.FLUX_HELM, OwnerKind.APPLIER})
"""Owners that apply a manifest again and again."""

FLUX_OFF = "kustomize.toolkit.fluxcd.io/reconcile"
"""With the value `disabled` on an object, Flux's kustomize-controller leaves it alone."""


def owner_of(deployment: Mapping[str, Any]) -> Owner | None:
    """Return who else decides what a Deployment looks like, or None when nobody is known to.

    Asked in this order: an owner reference with `controller: true` or a label of a controller that
    renders Deployments; an annotation or label of a GitOps tool; a field manager that applies again
    and again and has a contested field; the marks of a Helm release, which a GitOps tool may have
    rendered. Of managers, those known by name count with either operation. An unknown one counts only
    with the operation Apply: the API server notes who created the object as manager of its whole
    template, so an Update says nothing about doing it again. People at a terminal (`BY_HAND`) never
    count. A controller that none of this shows is found out when it sets a field back; the run then
    ends without a fight.
    """
    return _owner_of_fields(deployment, CONTESTED, "f:spec")


def with_ownership(owner: Owner | None, said: Ownership) -> Owner | None:
    """Return an owner as a person said of it; a controller that renders the object never gives way."""
    if owner is None or owner.is_controller:
        return owner
    return replace(owner, gives_way=said is Ownership.APPLY)


def owner_of_data(config_map: Mapping[str, Any]) -> Owner | None:
    """Return who else decides what is in a ConfigMap, or None when nobody is known to; as `owner_of`."""
    return _owner_of_fields(config_map, DATA)


def owner_of_spec(body: Mapping[str, Any]) -> Owner | None:
    """Return who else decides what is in the spec of an object of another kind; as `owner_of`."""
    return _owner_of_fields(body, ("f:spec",))


def _owner_of_fields(body: Mapping[str, Any], fields: Iterable[str], *within: str) -> Owner | None:
    """Return who else decides some fields of an object, named as in `managedFields`."""
    found = owner_in(section(body, "metadata"))
    if found is None or found.kind in RELEASES:
        marks = {**labels_of(body), **annotations_of(body)}
        sign = next((sign for sign in SIGNS if sign in marks), "")
        named = TemplateOwner(OwnerKind.APPLIER, f"{SIGNS[sign]} {marks[sign]}".strip()) if sign else None
        found = named or _applier(body, fields, *within) or found
    if found is None:
        return None
    reason = Reason.MANAGED_BY_GITOPS if found.kind in GITOPS else Reason.OWNED_BY_CONTROLLER
    return Owner(Reason.MANAGED_BY_HELM if found.kind in RELEASES else reason, str(found), found)


def applier_of(body: Mapping[str, Any], field: str) -> str:
    """Return the manager that applies a field of the spec again and again; empty: nobody but by hand."""
    for entry in _entries(body):
        manager = str(entry.get("manager", ""))
        applied = entry.get("operation") == "Apply" and not manager.startswith(BY_HAND)
        if applied and f"f:{field}" in section(entry, "fieldsV1", "f:spec"):
            return manager
    return ""


def last_editor(deployment: Mapping[str, Any]) -> str:
    """Return the field manager that wrote the pod template last, ourselves left out; empty: none noted."""
    entries = [
        (str(entry.get("time", "")), str(entry.get("manager", "")))
        for entry in _entries(deployment)
        if any(path[-1] in section(entry, "fieldsV1", "f:spec", *path[:-1]) for path in BORROWED["template"])
    ]
    return max((entry for entry in entries if entry[1] != FIELD_MANAGER), default=("", ""))[1]


def _entries(body: Mapping[str, Any]) -> list[JsonObject]:
    """Return who wrote which fields when, the status left out."""
    entries = items(section(body, "metadata"), "managedFields")
    return [entry for entry in entries if not entry.get("subresource")]


BORROWED = MappingProxyType(
    {
        "template": (("f:template",), ("f:leaderWorkerTemplate",)),
        "maxSurge": (("f:strategy", "f:rollingUpdate", "f:maxSurge"), (*GROUPS, "f:maxSurge")),
        "maxUnavailable": (
            ("f:strategy", "f:rollingUpdate", "f:maxUnavailable"),
            ("f:updateStrategy", "f:rollingUpdate", "f:maxUnavailable"),
            (*GROUPS, "f:maxUnavailable"),
        ),
        "partition": (("f:updateStrategy", "f:rollingUpdate", "f:partition"), (*GROUPS, "f:partition")),
        "strategy": (("f:strategy", "f:type"), ("f:updateStrategy", "f:type")),
        "minReadySeconds": (("f:minReadySeconds",),),
        "progressDeadlineSeconds": (("f:progressDeadlineSeconds",),),
        "paused": (("f:paused",),),
    }
)
"""What a rollout changes for a while in a workload's spec, and the template, in the words of `managedFields`:
of a Deployment, a StatefulSet and a LeaderWorkerSet."""


def edits_of(deployment: Mapping[str, Any]) -> dict[str, FieldEdit]:
    """Return who set each temporary field last; under the empty name who wrote last, ourselves left out.

    Of two in one second, which is as exact as the notes are, another one counts as the later.
    """
    entries = _entries(deployment)
    found = {
        name: _last(
            entry
            for entry in entries
            if any(path[-1] in section(entry, "fieldsV1", "f:spec", *path[:-1]) for path in paths)
        )
        for name, paths in BORROWED.items()
    }
    others = _last(entry for entry in entries if entry.get("manager") != FIELD_MANAGER)
    return {name: edit for name, edit in {**found, "": others}.items() if edit is not None}


def _last(entries: Iterable[Mapping[str, Any]]) -> FieldEdit | None:
    noted = [
        FieldEdit(manager, str(entry.get("time", "")), is_ours=manager == FIELD_MANAGER)
        for entry in entries
        if (manager := str(entry.get("manager", "")))
    ]
    return max(noted, key=lambda edit: (edit.at, not edit.is_ours), default=None)


def _applier(body: Mapping[str, Any], fields: Iterable[str], *within: str) -> TemplateOwner | None:
    off = {**labels_of(body), **annotations_of(body)}.get(FLUX_OFF) == "disabled"
    for entry in _entries(body):
        manager, managed = str(entry.get("manager", "")), section(entry, "fieldsV1", *within)
        if not any(name in managed for name in fields) or (off and manager == "kustomize-controller"):
            continue
        if manager in APPLIERS:
            return TemplateOwner(OwnerKind.APPLIER, f"{APPLIERS[manager]} (field manager {manager})")
        if entry.get("operation") == "Apply" and not manager.startswith(BY_HAND):
            return TemplateOwner(OwnerKind.APPLIER, f"field manager {manager}")
    return None


def notes_on(fleet: Fleet, move: DeploymentMove) -> dict[str, str]:
    """Return the annotations that let a person undo a run by hand: the values from before.

    Only the first move has any: the one that freezes an untouched rollout, or makes room for a spare. The
    note stays until the claim goes; a move that regains a target writes it anew.
    """
    match move:
        case ScaleOut():
            return {RECORDED: json.dumps({"replicas": move.before, "pod": move.pod})}
        case Regain():
            return {} if move.edit is None else _note_rollout(fleet, move.recorded, move.edit)
        case Freeze() | Hold():
            return {} if fleet.fields.is_frozen else _note_rollout(fleet, fleet.fields, move.edit)
        case Pause() | Retarget() | Pulse() | Restore() | Revert() | Release() | ScaleIn() | Claim():
            return {}
        case _:
            assert_never(move)


def _note_rollout(fleet: Fleet, fields: RolloutFields, edit: TemplateChange) -> dict[str, str]:
    """Return the note on a rollout; `fields`: as they were, and are put back."""
    noted = {
        "paused": fields.paused,
        "maxSurge": fields.max_surge,
        "maxUnavailable": fields.max_unavailable,
        "minReadySeconds": fields.min_ready_seconds,
        "progressDeadlineSeconds": fields.progress_deadline_seconds,
        **({} if fields.strategy == ROLLING else {"strategy": fields.strategy}),
        **({} if fields.partition is None else {"partition": fields.partition}),
        **note_of(edit),
        "rotationLabel": fleet.rotation.label,
        "draining": fleet.rotation.draining,
        "rotation": RotationWay.ORPHAN if fleet.rotation.orphan else RotationWay.LABEL,
    }
    return {RECORDED: json.dumps(noted)}


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


@dataclass(frozen=True, slots=True)
class Note:
    """What a run wrote down on its target before it froze it."""

    fields: RolloutFields
    """As they were."""
    edit: TemplateEdit | None
    """What it changed of the pod template; None: it put a whole template."""
    template: str
    """Hash of the pod template from before; empty where the edit says it."""
    rotation_label: RotationLabel | None = None
    """By which its replicas are drained; None: the note does not say."""
    rotation: RotationWay = RotationWay.LABEL
    """How they are drained."""

    def is_undone(self, template: Mapping[str, object]) -> bool:
        """Return whether a pod template is as it was before."""
        if self.edit is None:
            return template_hash(template) == self.template
        return self.edit.state(template) is EditState.BEFORE


def note_in(text: str) -> Note | None:
    """Return what a note says; None where it is none, or not of a rollout, or cannot be read."""
    try:
        said = parse_note(text)
        fields = RolloutFields(
            paused=bool(said["paused"]),
            max_surge=_parse_number(said["maxSurge"]),
            max_unavailable=_parse_number(said["maxUnavailable"]),
            min_ready_seconds=int(said["minReadySeconds"]),
            progress_deadline_seconds=_optional(said["progressDeadlineSeconds"]),
            strategy=str(said.get("strategy", ROLLING)),
            partition=_optional(said.get("partition")),
        )
        key, draining = _parse_text(said.get("rotationLabel")), _parse_text(said.get("draining"))
        label = RotationLabel(key, draining) if key and draining else None
        way = RotationWay(said.get("rotation", RotationWay.LABEL))
        edit = None if "replicaSet" in said else _edit(said)
        before = str(said["template"]) if edit is None else ""
    except (ArithmeticError, ValueError, KeyError, TypeError, AttributeError):
        return None
    # A note of frozen fields says nothing of those from before.
    return None if fields.is_frozen else Note(fields, edit, before, label, way)


def _edit(said: Mapping[str, Any]) -> TemplateEdit:
    if "parts" in said:
        return BundleEdit(tuple(_part(part) for part in said["parts"]))
    if "volume" in said:
        where = (str(said["volume"]), int(said["volumeIndex"]), _optional(said.get("source")))
        return ReferenceEdit(*where, before=str(said["before"]), after=str(said["after"]))
    return part if isinstance(part := _part(said), TokenEdit) else BundleEdit((part,))


def _part(said: Mapping[str, Any]) -> TokenEdit | EnvEdit:
    container, index = str(said["container"]), int(said["containerIndex"])
    place, before, after = int(said["index"]), _parse_text(said["before"]), _parse_text(said["after"])
    if "env" in said:
        return EnvEdit(container, index, str(said["env"]), place, before, after)
    return TokenEdit(container, index, Field(said["field"]), place, before, after, _optional(said.get("at")))


def _parse_number(value: object) -> int | str:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise TypeError(f"{value!r} is no number of replicas")
    return value


def _optional(value: object) -> int | None:
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    raise TypeError(f"{value!r} is no whole number")


def _parse_text(value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    raise TypeError(f"{value!r} is no text")
