"""Who else decides what a Deployment looks like, and would take a change back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from kvmedic.kube.client import FIELD_MANAGER
from kvmedic.kube.objects import annotations_of, items, labels_of, section
from kvmedic.manifests.proposals import owner_in
from kvmedic.model.fleet import FieldEdit, Owner, OwnerKind, TemplateOwner
from kvmedic.model.reasons import Reason

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
there the field manager tells.
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
"""Beginnings of field managers that write when a person or a pipeline tells them to.

`kubectl` covers `kubectl`, `kubectl-client-side-apply`, `kubectl-edit`, `kubectl-rollout` …;
`before-first-apply` is the API server's own name for fields set before the first apply.
"""

CONTESTED = ("f:strategy", "f:minReadySeconds", "f:progressDeadlineSeconds", "f:paused", "f:template")
"""Fields of a Deployment that a frozen rollout changes: setting one of them back in the middle rolls
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
    with the operation Apply: the API server notes whoever created the object as manager of its whole
    template, so an Update says nothing about doing it again. People at a terminal (`BY_HAND`) never
    count. A controller that none of this shows is found out when it sets a field back; the run then
    ends without a fight.
    """
    return _owner_of_fields(deployment, CONTESTED, "f:spec")


def owner_of_data(config_map: Mapping[str, Any]) -> Owner | None:
    """Return who else decides what is in a ConfigMap, or None when nobody is known to; as `owner_of`."""
    return _owner_of_fields(config_map, DATA)


def _owner_of_fields(body: Mapping[str, Any], fields: Iterable[str], *within: str) -> Owner | None:
    """Return who else decides some fields of an object, named as in `managedFields`."""
    found = owner_in(section(body, "metadata"))
    if found is None or found.kind in RELEASES:
        found = _owner_by_marks(body) or _applier(body, fields, *within) or found
    if found is None:
        return None
    reason = Reason.MANAGED_BY_GITOPS if found.kind in GITOPS else Reason.OWNED_BY_CONTROLLER
    return Owner(Reason.MANAGED_BY_HELM if found.kind in RELEASES else reason, str(found), found)


def last_editor(deployment: Mapping[str, Any]) -> str:
    """Return the field manager that wrote the pod template last, ourselves left out; empty: none noted."""
    entries = [
        (str(entry.get("time", "")), str(entry.get("manager", "")))
        for entry in items(section(deployment, "metadata"), "managedFields")
        if not entry.get("subresource") and "f:template" in section(entry, "fieldsV1", "f:spec")
    ]
    others = [entry for entry in entries if entry[1] != FIELD_MANAGER]
    return max(others)[1] if others else ""


BORROWED = MappingProxyType(
    {
        "template": ("f:template",),
        "maxSurge": ("f:strategy", "f:rollingUpdate", "f:maxSurge"),
        "maxUnavailable": ("f:strategy", "f:rollingUpdate", "f:maxUnavailable"),
        "strategy": ("f:strategy", "f:type"),
        "minReadySeconds": ("f:minReadySeconds",),
        "progressDeadlineSeconds": ("f:progressDeadlineSeconds",),
        "paused": ("f:paused",),
    }
)
"""What a rollout borrows of a Deployment's spec, and the template, in the words of `managedFields`."""


def edits_of(deployment: Mapping[str, Any]) -> dict[str, FieldEdit]:
    """Return who set each borrowed field last; under the empty name who wrote last, ourselves left out.

    Of two in one second, which is as exact as the notes are, another one counts as the later.
    """
    entries = [
        entry
        for entry in items(section(deployment, "metadata"), "managedFields")
        if not entry.get("subresource")
    ]
    found = {
        name: _last(
            entry for entry in entries if path[-1] in section(entry, "fieldsV1", "f:spec", *path[:-1])
        )
        for name, path in BORROWED.items()
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


def _owner_by_marks(deployment: Mapping[str, Any]) -> TemplateOwner | None:
    marks = {**labels_of(deployment), **annotations_of(deployment)}
    for sign, kind in SIGNS.items():
        if sign in marks:
            return TemplateOwner(OwnerKind.APPLIER, f"{kind} {marks[sign]}".strip())
    return None


def _applier(body: Mapping[str, Any], fields: Iterable[str], *within: str) -> TemplateOwner | None:
    off = {**labels_of(body), **annotations_of(body)}.get(FLUX_OFF) == "disabled"
    for entry in items(section(body, "metadata"), "managedFields"):
        manager, managed = str(entry.get("manager", "")), section(entry, "fieldsV1", *within)
        if entry.get("subresource") or not any(name in managed for name in fields):
            continue
        if off and manager == "kustomize-controller":
            continue
        if manager in APPLIERS:
            return TemplateOwner(OwnerKind.APPLIER, f"{APPLIERS[manager]} (field manager {manager})")
        if entry.get("operation") == "Apply" and not manager.startswith(BY_HAND):
            return TemplateOwner(OwnerKind.APPLIER, f"field manager {manager}")
    return None
