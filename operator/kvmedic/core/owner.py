"""Who writes a workload's pod template, and so must be given a change of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class OwnerKind(StrEnum):
    """What kind of owner decides a pod template."""

    INFERENCE_SERVICE = "KServe InferenceService"
    LEADER_WORKER_SET = "LeaderWorkerSet"
    VLLM_RUNTIME = "production-stack VLLMRuntime"
    CONTROLLER = "controller"
    ARGO_CD = "Argo CD Application"
    FLUX_KUSTOMIZATION = "Flux Kustomization"
    FLUX_HELM = "Flux HelmRelease"
    APPLIER = "applier"
    """Something else that applies a manifest again and again; only its name is known."""
    PRODUCTION_STACK = "production-stack Helm release"
    HELM = "Helm release"


@dataclass(frozen=True, slots=True)
class TemplateOwner:
    """The one who writes a workload's pod template."""

    kind: OwnerKind
    name: str
    namespace: str = ""
    """Where the owner is, where its marks tell; empty: where the workload is."""
    part: str = ""
    """What of the owner the workload is: a model of a release, the kind of a controller's object."""

    def __str__(self) -> str:
        if self.kind is OwnerKind.APPLIER:
            return self.name
        kind = self.part if self.kind is OwnerKind.CONTROLLER else self.kind
        return f"{kind} {self.namespace}/{self.name}" if self.namespace else f"{kind} {self.name}"
