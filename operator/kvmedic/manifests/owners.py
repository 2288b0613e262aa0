"""Who writes an object's pod template, as the object's metadata tells, and so must be given a change.

`owner_in` reads the metadata of a workload. What the marks mean is from: Argo CD docs, "Resource
Tracking"; Flux docs, `kustomize-controller` and `helm-controller`; Helm docs, "Labels and
Annotations"; KServe `pkg/constants`; LeaderWorkerSet `api/leaderworkerset/v1`; production-stack's chart
(`helm/templates/deployment-vllm-multi.yaml`).
"""

from __future__ import annotations

from collections.abc import Mapping

from kvmedic.core.owner import OwnerKind, TemplateOwner

_CONTROLLERS = {
    "InferenceService": OwnerKind.INFERENCE_SERVICE,
    "LeaderWorkerSet": OwnerKind.LEADER_WORKER_SET,
    "VLLMRuntime": OwnerKind.VLLM_RUNTIME,
}
_NOT_OWNERS = frozenset({"ReplicaSet", "Deployment"})
"""Kinds that a Deployment makes itself."""


def owner_in(metadata: Mapping[str, object]) -> TemplateOwner | None:
    """Return who writes the pod template of the object that has this metadata, or None.

    The nearest first: a controller that renders the object takes a change back within seconds,
    whatever applies the controller's own resource; then what applies manifests again and again; then
    Helm, which does so when a person runs it.
    """
    marks = {**_texts(metadata.get("labels")), **_texts(metadata.get("annotations"))}
    return _controller(metadata, marks) or _applier(marks) or _helm(marks)


def _controller(metadata: Mapping[str, object], marks: Mapping[str, str]) -> TemplateOwner | None:
    references = metadata.get("ownerReferences")
    for reference in references if isinstance(references, list) else ():
        if not isinstance(reference, Mapping) or reference.get("controller") is not True:
            continue
        kind, name = str(reference.get("kind")), str(reference.get("name"))
        if kind not in _NOT_OWNERS:
            return TemplateOwner(_CONTROLLERS.get(kind, OwnerKind.CONTROLLER), name, part=kind)
    for label, owner in (
        ("serving.kserve.io/inferenceservice", OwnerKind.INFERENCE_SERVICE),
        ("leaderworkerset.sigs.k8s.io/name", OwnerKind.LEADER_WORKER_SET),
    ):
        if label in marks:
            return TemplateOwner(owner, marks[label])
    return None


def _applier(marks: Mapping[str, str]) -> TemplateOwner | None:
    for prefix, kind in (
        ("kustomize.toolkit.fluxcd.io", OwnerKind.FLUX_KUSTOMIZATION),
        ("helm.toolkit.fluxcd.io", OwnerKind.FLUX_HELM),
    ):
        if f"{prefix}/name" in marks and marks.get(f"{prefix}/reconcile") != "disabled":
            return TemplateOwner(kind, marks[f"{prefix}/name"], marks.get(f"{prefix}/namespace", ""))
    tracked = marks.get("argocd.argoproj.io/tracking-id", "").partition(":")[0]
    name = tracked or marks.get("argocd.argoproj.io/instance", "")
    return TemplateOwner(OwnerKind.ARGO_CD, name) if name else None


def _helm(marks: Mapping[str, str]) -> TemplateOwner | None:
    release = marks.get("meta.helm.sh/release-name") or marks.get("helm-release-name")
    namespace = marks.get("meta.helm.sh/release-namespace", "")
    if release and "helm-release-name" in marks and "model" in marks:
        return TemplateOwner(OwnerKind.PRODUCTION_STACK, release, namespace, marks["model"])
    if release is None and marks.get("app.kubernetes.io/managed-by") == "Helm":
        release = marks.get("app.kubernetes.io/instance", "?")
    return TemplateOwner(OwnerKind.HELM, release, namespace) if release else None


def _texts(value: object) -> dict[str, str]:
    if not isinstance(value, Mapping):
        return {}
    return {str(name): str(text) for name, text in value.items() if text is not None}
