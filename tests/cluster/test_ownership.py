"""Who else decides what a Deployment looks like, by the marks that they leave on it."""

from __future__ import annotations

from typing import Any

import pytest

from kvmedic.cluster.ownership import last_editor, owner_of
from kvmedic.model.reasons import Reason

TEMPLATE = {"f:template": {"f:spec": {}}}


def managed(manager: str, operation: str, spec: dict[str, Any], **more: str) -> dict[str, Any]:
    entry = {"manager": manager, "operation": operation, "fieldsV1": {"f:spec": spec}, **more}
    return {"metadata": {"managedFields": [entry]}}


def marked(kind: str, **marks: str) -> dict[str, Any]:
    return {
        "metadata": {kind: {name.replace("__", "/").replace("_", "-"): text for name, text in marks.items()}}
    }


NOBODY: list[tuple[str, dict[str, Any]]] = [
    ("a new object", {"metadata": {}}),
    (
        "an owner that does not control",
        {"metadata": {"ownerReferences": [{"kind": "ConfigMap", "name": "a"}]}},
    ),
    ("a label that every Helm chart sets", marked("labels", **{"app.kubernetes.io__instance": "llm"})),
    ("kubectl apply", managed("kubectl-client-side-apply", "Update", TEMPLATE)),
    ("kubectl apply --server-side", managed("kubectl", "Apply", TEMPLATE)),
    ("kubectl rollout restart", managed("kubectl-rollout", "Update", TEMPLATE)),
    ("helm 4, which applies", managed("helm", "Apply", TEMPLATE)),
    ("a pipeline that updates", managed("OpenAPI-Generator", "Update", TEMPLATE)),
    ("ourselves", managed("kvmedic", "Update", {**TEMPLATE, "f:strategy": {}})),
    ("an applier of replicas", managed("keda", "Apply", {"f:replicas": {}})),
    ("an applier of the status", managed("somebody", "Apply", TEMPLATE, subresource="status")),
    (
        "Flux, set to leave it alone",
        {
            "metadata": {
                "labels": {"kustomize.toolkit.fluxcd.io/name": "apps"},
                "annotations": {"kustomize.toolkit.fluxcd.io/reconcile": "disabled"},
                "managedFields": managed("kustomize-controller", "Apply", TEMPLATE)["metadata"][
                    "managedFields"
                ],
            }
        },
    ),
]


@pytest.mark.parametrize("body", [body for _, body in NOBODY], ids=[name for name, _ in NOBODY])
def test_nobody_else_decides(body: dict[str, Any]) -> None:
    assert owner_of(body) is None


CONTROLLER = {"kind": "InferenceService", "name": "llm", "controller": True}
SOMEBODY: list[tuple[str, dict[str, Any], Reason, str]] = [
    (
        "its controller",
        {"metadata": {"ownerReferences": [{"kind": "ConfigMap", "name": "a"}, CONTROLLER]}},
        Reason.OWNED_BY_CONTROLLER,
        "KServe InferenceService llm",
    ),
    (
        "KServe",
        marked("labels", **{"serving.kserve.io__inferenceservice": "llm"}),
        Reason.OWNED_BY_CONTROLLER,
        "KServe InferenceService llm",
    ),
    (
        "another controller",
        {"metadata": {"ownerReferences": [{"kind": "Rollout", "name": "llm", "controller": True}]}},
        Reason.OWNED_BY_CONTROLLER,
        "Rollout llm",
    ),
    (
        "a Helm release",
        marked("annotations", **{"meta.helm.sh__release-name": "llm"}),
        Reason.MANAGED_BY_HELM,
        "Helm release llm",
    ),
    (
        "a chart that Argo CD applies",
        {
            "metadata": {
                "labels": {"app.kubernetes.io/managed-by": "Helm", "app.kubernetes.io/instance": "llm"},
                "managedFields": managed("argocd-controller", "Apply", TEMPLATE)["metadata"]["managedFields"],
            }
        },
        Reason.MANAGED_BY_GITOPS,
        "Argo CD (field manager argocd-controller)",
    ),
    (
        "Rancher Fleet by label",
        marked("labels", **{"fleet.cattle.io__bundle-id": "apps"}),
        Reason.MANAGED_BY_GITOPS,
        "Rancher Fleet bundle apps",
    ),
    (
        "Argo CD by annotation",
        marked("annotations", **{"argocd.argoproj.io__tracking-id": "apps:apps/Deployment:ns/llm"}),
        Reason.MANAGED_BY_GITOPS,
        "Argo CD Application apps",
    ),
    (
        "Flux by label",
        marked("labels", **{"kustomize.toolkit.fluxcd.io__name": "apps"}),
        Reason.MANAGED_BY_GITOPS,
        "Flux Kustomization apps",
    ),
    (
        "Flux's Helm, which another annotation does not switch off",
        {
            "metadata": {
                "labels": {"helm.toolkit.fluxcd.io/name": "llm"},
                "annotations": {"kustomize.toolkit.fluxcd.io/reconcile": "disabled"},
            }
        },
        Reason.MANAGED_BY_GITOPS,
        "Flux HelmRelease llm",
    ),
    (
        "Argo CD, which need not apply server-side",
        managed("argocd-controller", "Update", TEMPLATE),
        Reason.MANAGED_BY_GITOPS,
        "Argo CD (field manager argocd-controller)",
    ),
    (
        "an unknown applier of the strategy",
        managed("platform", "Apply", {"f:strategy": {}}),
        Reason.MANAGED_BY_GITOPS,
        "field manager platform",
    ),
    (
        "an unknown applier of minReadySeconds",
        managed("platform", "Apply", {"f:minReadySeconds": {}}),
        Reason.MANAGED_BY_GITOPS,
        "field manager platform",
    ),
    (
        "an unknown applier of progressDeadlineSeconds",
        managed("platform", "Apply", {"f:progressDeadlineSeconds": {}}),
        Reason.MANAGED_BY_GITOPS,
        "field manager platform",
    ),
]


@pytest.mark.parametrize(
    ("body", "reason", "name"), [each[1:] for each in SOMEBODY], ids=[each[0] for each in SOMEBODY]
)
def test_somebody_else_decides(body: dict[str, Any], reason: Reason, name: str) -> None:
    owner = owner_of(body)

    assert (owner.reason, owner.name) == (reason, name)
    assert str(owner.template) == name


def test_the_last_editor_of_the_template_is_named_and_is_not_us() -> None:
    entries = [
        managed("kubectl-create", "Update", TEMPLATE, time="2026-03-01T03:00:00Z"),
        managed("argocd", "Update", TEMPLATE, time="2026-03-01T03:00:02Z"),
        managed("autoscaler", "Update", {"f:replicas": {}}, time="2026-03-01T03:00:08Z"),
        managed("status", "Update", TEMPLATE, time="2026-03-01T03:00:08Z", subresource="status"),
        managed("kvmedic", "Update", TEMPLATE, time="2026-03-01T03:00:09Z"),
    ]
    body = {"metadata": {"managedFields": [e["metadata"]["managedFields"][0] for e in entries]}}

    assert last_editor(body) == "argocd"
    assert last_editor({"metadata": {}}) == ""
