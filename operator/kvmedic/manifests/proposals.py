"""What to give to the owner of a pod template so that one token changes: the exact patch or command.

Nothing is sent anywhere. A proposal holds the one token and no other part of the template, which may
hold secrets.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from kvmedic.core.config_map import FileEdit
from kvmedic.core.edit import Field, TokenEdit
from kvmedic.core.engine import Knob
from kvmedic.core.owner import OwnerKind, TemplateOwner
from kvmedic.manifests.flags import Setting

_CHART_VALUES = MappingProxyType(
    {
        Knob.MAX_NUM_SEQS: "maxNumSeqs",
        Knob.MAX_MODEL_LEN: "maxModelLen",
        Knob.GPU_MEMORY_UTILIZATION: "gpuMemoryUtilization",
        Knob.PREFIX_CACHING: "enablePrefixCaching",
        Knob.CHUNKED_PREFILL: "enableChunkedPrefill",
    }
)
"""Values of `servingEngineSpec.modelSpec[].vllmConfig`. Source: production-stack
`helm/templates/deployment-vllm-multi.yaml`; every other flag goes into `extraArgs`."""

_RUNTIME_FIELDS = MappingProxyType(
    {
        Knob.MAX_NUM_SEQS: "/spec/model/maxNumSeqs",
        Knob.MAX_MODEL_LEN: "/spec/model/maxModelLen",
        Knob.GPU_MEMORY_UTILIZATION: "/spec/vllmConfig/gpuMemoryUtilization",
        Knob.PREFIX_CACHING: "/spec/vllmConfig/enablePrefixCaching",
        Knob.CHUNKED_PREFILL: "/spec/vllmConfig/enableChunkedPrefill",
    }
)
"""Fields of a VLLMRuntime. Source: production-stack `operator/api/v1alpha1/vllmruntime_types.go`."""

_AS_TEXT = frozenset({Knob.GPU_MEMORY_UTILIZATION})
"""Fields of a VLLMRuntime that are strings."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The change that a workload's pod template should get."""

    kind: str
    namespace: str
    name: str
    setting: Setting
    edit: TokenEdit | FileEdit
    """The token in the workload's template as it is rendered now, or the value in its configuration file."""

    @property
    def flag(self) -> str:
        """Return the flag as one word: `--max-num-seqs=16`."""
        if isinstance(self.setting.value, bool):
            name = self.setting.flag.name
            return name if self.setting.value else "--no-" + name.removeprefix("--")
        return f"{self.setting.flag.name}={self.setting.text}"


@dataclass(frozen=True, slots=True)
class Proposal:
    """What a person gives to an owner."""

    owner: TemplateOwner
    how: str
    """One sentence: where the change goes, and what carries it out."""
    text: str
    """The patch or the command, to be copied as it is."""

    def __str__(self) -> str:
        return f"{self.owner}: {self.how}\n{self.text}"


UNDRAINED = "replicas are then replaced undrained, as it is not kvmedic that does it"


def make_proposal(owner: TemplateOwner, how: str, text: str) -> Proposal:
    """Return what a person gives to an owner, which says that nobody drains what the owner replaces."""
    return Proposal(owner, f"{how}; {UNDRAINED}", text)


def proposal_for(owner: TemplateOwner, wanted: Wanted) -> Proposal:
    """Return what to give to an owner for one change."""
    how, text = _ROUTES[owner.kind](owner, wanted)
    return make_proposal(owner, how, text)


_Route = Callable[[TemplateOwner, Wanted], tuple[str, str]]


def _inference_service(owner: TemplateOwner, wanted: Wanted) -> tuple[str, str]:
    path = "/spec/predictor/model/args"
    how = (
        f"append to {path.replace('/', '.')[1:]}; KServe puts these behind the runtime's own arguments, "
        "and vLLM lets the last one win. Without `args` there, add the list"
    )
    return how, _kubectl(
        "inferenceservice", owner, wanted, [{"op": "add", "path": f"{path}/-", "value": wanted.flag}]
    )


def _leader_worker_set(owner: TemplateOwner, wanted: Wanted) -> tuple[str, str]:
    how = (
        "the group's leader serves (its template is workerTemplate where there is no leaderTemplate); "
        "the set then replaces its groups"
    )
    return _by_token(
        how,
        "/spec/leaderWorkerTemplate/leaderTemplate",
        wanted,
        lambda patch: _kubectl("leaderworkerset", owner, wanted, patch),
    )


def _vllm_runtime(owner: TemplateOwner, wanted: Wanted) -> tuple[str, str]:
    knob, value = wanted.setting.flag.knob, wanted.setting.value
    path = _RUNTIME_FIELDS.get(knob)
    if path is None:
        patch: list[dict[str, object]] = [
            {"op": "add", "path": "/spec/vllmConfig/extraArgs/-", "value": wanted.flag}
        ]
        how = "append to spec.vllmConfig.extraArgs; its controller rolls the engines"
        return how, _kubectl("vllmruntime", owner, wanted, patch)
    given = str(wanted.setting.text) if knob in _AS_TEXT else value
    how = f"set {path.replace('/', '.')[1:]}; its controller rolls the engines"
    return how, _kubectl("vllmruntime", owner, wanted, [{"op": "add", "path": path, "value": given}])


def _controller(owner: TemplateOwner, wanted: Wanted) -> tuple[str, str]:
    how = f"its {owner.part} renders the template: give the flag to its specification"
    return how, _in_words(wanted)


def _source(owner: TemplateOwner, wanted: Wanted) -> tuple[str, str]:
    """Return a patch for kustomize, or the change in words where it is within a longer text."""

    def written(patch: list[dict[str, object]]) -> str:
        return kustomized(wanted.kind, wanted.namespace, wanted.name, patch)

    return _by_token(in_source(owner) or "", "/spec/template", wanted, written)


_SOURCES: Mapping[OwnerKind, str] = MappingProxyType(
    {
        OwnerKind.ARGO_CD: "commit this to the source of the application, then `argocd app sync {name}`",
        OwnerKind.FLUX_KUSTOMIZATION: (
            "commit this to its source, then `flux reconcile kustomization {name}{where} --with-source`"
        ),
        OwnerKind.FLUX_HELM: (
            "commit the chart's value to the HelmRelease {plain}, or this under its "
            "spec.postRenderers[].kustomize"
        ),
        OwnerKind.APPLIER: "commit this to what it applies",
    }
)
"""Owners that apply what a repository holds."""


def in_source(owner: TemplateOwner) -> str | None:
    """Return how a patch gets to an owner that applies what a repository holds; None for any other owner."""
    how = _SOURCES.get(owner.kind)
    where = f" --namespace {shlex.quote(owner.namespace)}" if owner.namespace else ""
    return how and how.format(name=shlex.quote(owner.name), plain=owner.name, where=where)


def _production_stack(owner: TemplateOwner, wanted: Wanted) -> tuple[str, str]:
    config = f"of the model {owner.part!r} in servingEngineSpec.modelSpec of its values"
    upgrade = f"helm upgrade {shlex.quote(owner.name)} vllm/vllm-stack -f VALUES"
    key = _CHART_VALUES.get(wanted.setting.flag.knob)
    if key is None:
        return f"append to vllmConfig.extraArgs {config}, then `{upgrade}`", f"- {json.dumps(wanted.flag)}"
    value = wanted.setting.value
    text = str(value).lower() if isinstance(value, bool) else json.dumps(wanted.setting.text)
    return f"set under vllmConfig {config}, then `{upgrade}`", f"{key}: {text}"


def _helm(owner: TemplateOwner, wanted: Wanted) -> tuple[str, str]:
    where = f" --namespace {shlex.quote(owner.namespace)}" if owner.namespace else ""
    upgrade = f"helm upgrade {shlex.quote(owner.name)} CHART{where} -f VALUES"
    values = f"`helm get values {shlex.quote(owner.name)}{where}`"
    how = f"set it in the release's values ({values}), then `{upgrade}`"
    return how, _in_words(wanted)


_ROUTES: Mapping[OwnerKind, _Route] = MappingProxyType(
    {
        OwnerKind.INFERENCE_SERVICE: _inference_service,
        OwnerKind.LEADER_WORKER_SET: _leader_worker_set,
        OwnerKind.VLLM_RUNTIME: _vllm_runtime,
        OwnerKind.CONTROLLER: _controller,
        OwnerKind.ARGO_CD: _source,
        OwnerKind.FLUX_KUSTOMIZATION: _source,
        OwnerKind.FLUX_HELM: _source,
        OwnerKind.APPLIER: _source,
        OwnerKind.PRODUCTION_STACK: _production_stack,
        OwnerKind.HELM: _helm,
    }
)


def _kubectl(resource: str, owner: TemplateOwner, wanted: Wanted, patch: list[dict[str, object]]) -> str:
    namespace = owner.namespace or wanted.namespace
    names = f"kubectl -n {shlex.quote(namespace)} patch {resource} {shlex.quote(owner.name)}"
    return f"{names} --type=json -p {shlex.quote(json.dumps(patch))}"


def kustomized(kind: str, namespace: str, name: str, patch: list[dict[str, object]]) -> str:
    """Return a JSON patch of a workload as an entry for a kustomization."""
    lines = "".join(f"\n    - {json.dumps(operation)}" for operation in patch)
    target = json.dumps({"kind": kind, "name": name, "namespace": namespace})
    return f"patches:\n- target: {target}\n  patch: |-{lines}"


def _by_token(
    how: str, template: str, wanted: Wanted, written: Callable[[list[dict[str, object]]], str]
) -> tuple[str, str]:
    patch = None if isinstance(wanted.edit, FileEdit) else token_operations(wanted.edit, template)
    return (how, _in_words(wanted)) if patch is None else (how, written(patch))


def token_operations(edit: TokenEdit, template: str) -> list[dict[str, object]] | None:
    """Return the JSON patch of a token; none where it would have to hold the text around the token."""
    if edit.at is not None:
        return None
    base = f"{template}/spec/containers/{edit.container_index}"
    value = "/value" if edit.field is Field.ENV else ""
    path = f"{base}/{edit.field}/{edit.index}{value}"
    name: dict[str, object] = {"op": "test", "path": f"{base}/name", "value": edit.container}
    if edit.before is None:
        return [name, {"op": "add", "path": f"{base}/{edit.field}/-", "value": edit.after}]
    test: dict[str, object] = {"op": "test", "path": path, "value": edit.before}
    if edit.after is None:
        return [name, test, {"op": "remove", "path": path}]
    return [name, test, {"op": "replace", "path": path, "value": edit.after}]


def _in_words(wanted: Wanted) -> str:
    edit = wanted.edit
    place = _in_file(edit, wanted) if isinstance(edit, FileEdit) else _in_container(edit, wanted)
    before, after = (json.dumps(token.strip()) if token else "nothing" for token in (edit.before, edit.after))
    command = f"kvmedic flags set {wanted.setting.flag.dest}={wanted.setting.text} -f FILE"
    return f"{place}: {before} -> {after}\n(in a file of the rendered manifest: {command})"


def _in_container(edit: TokenEdit, wanted: Wanted) -> str:
    return f"{edit.field}[{edit.index}] of container {edit.container} of {wanted.kind}/{wanted.name}"


def _in_file(edit: FileEdit, wanted: Wanted) -> str:
    return f"{wanted.setting.flag.dest} in {edit.key} of ConfigMap/{edit.config_map}"
