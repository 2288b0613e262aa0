"""Who else decides what a Deployment looks like, and would take a change back."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from kvmedic.core.fleet import Owner
from kvmedic.core.reasons import Reason
from kvmedic.kube.objects import annotations_of, items, labels_of, section

SIGNS = MappingProxyType(
    {
        "argocd.argoproj.io/tracking-id": "Argo CD application",
        "argocd.argoproj.io/instance": "Argo CD application",
        "kustomize.toolkit.fluxcd.io/name": "Flux Kustomization",
        "helm.toolkit.fluxcd.io/name": "Flux HelmRelease",
        "fleet.cattle.io/bundle-id": "Rancher Fleet bundle",
        "objectset.rio.cattle.io/id": "Rancher Fleet bundle",
        "kapp.k14s.io/app": "kapp application",
        "configsync.gke.io/resource-id": "Config Sync object",
    }
)
"""Annotations and labels of tools that apply a manifest again and again, and what their value names.

Source: Argo CD docs, "Resource Tracking"; Flux docs, "kustomize-controller" and "helm-controller";
Rancher Fleet `internal/helmdeployer`; kapp `pkg/kapp/app`; Config Sync `pkg/metadata`. Argo CD's older
tracking label `app.kubernetes.io/instance` is not among them, because every Helm chart sets it; there
the field manager tells. `meta.helm.sh/release-name` is not either: Helm applies when a person runs it,
like kubectl.
"""

CONTROLLER_SIGNS = MappingProxyType({"serving.kserve.io/inferenceservice": "KServe InferenceService"})
"""Labels of controllers that render the Deployment. Source: KServe `pkg/constants`."""

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

FLUX_OFF = "kustomize.toolkit.fluxcd.io/reconcile"
"""With the value `disabled` on an object, Flux's kustomize-controller leaves it alone."""


def owner_of(deployment: Mapping[str, Any]) -> Owner | None:
    """Return who else decides what a Deployment looks like, or None when nobody is known to.

    Asked in this order: an owner reference with `controller: true`; a label of a controller that
    renders Deployments; an annotation or label of a GitOps tool; a field manager that applies again
    and again and has a contested field. Of managers, those known by name count with either
    operation. An unknown one counts only with the operation Apply: the API server notes whoever
    created the object as manager of its whole template, so an Update says nothing about doing it
    again. People at a terminal (`BY_HAND`) never count. A controller that none of this shows is
    found out when it sets a field back; the run then ends without a fight.
    """
    return _controller(deployment) or _gitops(deployment) or _applier(deployment)


def _controller(deployment: Mapping[str, Any]) -> Owner | None:
    for reference in items(section(deployment, "metadata"), "ownerReferences"):
        if reference.get("controller"):
            name = f"{reference.get('kind')} {reference.get('name')}"
            return Owner(Reason.OWNED_BY_CONTROLLER, name)
    marks = labels_of(deployment)
    for sign, kind in CONTROLLER_SIGNS.items():
        if sign in marks:
            return Owner(Reason.OWNED_BY_CONTROLLER, f"{kind} {marks[sign]}")
    return None


def _gitops(deployment: Mapping[str, Any]) -> Owner | None:
    marks = {**labels_of(deployment), **annotations_of(deployment)}
    for sign, kind in SIGNS.items():
        if sign in marks and not (sign.startswith("kustomize.") and _is_flux_off(marks)):
            return Owner(Reason.MANAGED_BY_GITOPS, f"{kind} {marks[sign]}".strip())
    return None


def _applier(deployment: Mapping[str, Any]) -> Owner | None:
    off = _is_flux_off({**labels_of(deployment), **annotations_of(deployment)})
    for entry in items(section(deployment, "metadata"), "managedFields"):
        manager = str(entry.get("manager", ""))
        if (
            entry.get("subresource")
            or not _is_contested(entry)
            or (off and manager == "kustomize-controller")
        ):
            continue
        if manager in APPLIERS:
            return Owner(Reason.MANAGED_BY_GITOPS, f"{APPLIERS[manager]} (field manager {manager})")
        if entry.get("operation") == "Apply" and not manager.startswith(BY_HAND):
            return Owner(Reason.MANAGED_BY_GITOPS, f"field manager {manager}")
    return None


def _is_contested(entry: Mapping[str, Any]) -> bool:
    return any(name in section(entry, "fieldsV1", "f:spec") for name in CONTESTED)


def _is_flux_off(marks: Mapping[str, str]) -> bool:
    return marks.get(FLUX_OFF) == "disabled"
