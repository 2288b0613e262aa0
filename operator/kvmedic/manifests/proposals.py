"""Who writes an object's pod template, and what to give them so that it changes: patch, command or words.

Nothing is sent anywhere. Only what changes is shown, as the rest of a template may hold secrets. What the
marks of owners mean is from: Argo CD docs, "Resource Tracking"; Flux docs, `kustomize-controller` and
`helm-controller`; Helm docs, "Labels and Annotations"; KServe `pkg/constants`; LeaderWorkerSet
`api/leaderworkerset/v1`; production-stack's chart (`helm/templates/deployment-vllm-multi.yaml`).
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from types import MappingProxyType

from kvmedic.manifests.flags import Setting
from kvmedic.model.config_edits import Difference, FileEdit, OwnerField, Revision
from kvmedic.model.edits import COMMAND_LINE, BundlePart, EnvEdit, Field, TokenEdit, container_at
from kvmedic.model.engine import Knob
from kvmedic.model.fleet import OwnerKind, TemplateOwner
from kvmedic.model.plan import BundleStep

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

RUNTIME_FIELDS = MappingProxyType(
    {
        Knob.MAX_NUM_SEQS: "/spec/model/maxNumSeqs",
        Knob.MAX_MODEL_LEN: "/spec/model/maxModelLen",
        Knob.GPU_MEMORY_UTILIZATION: "/spec/vllmConfig/gpuMemoryUtilization",
        Knob.PREFIX_CACHING: "/spec/vllmConfig/enablePrefixCaching",
        Knob.CHUNKED_PREFILL: "/spec/vllmConfig/enableChunkedPrefill",
    }
)
"""Fields of a VLLMRuntime. Source: production-stack `operator/api/v1alpha1/vllmruntime_types.go`."""

IMAGE = "image"
"""Field of a container."""

_AS_TEXT = frozenset({Knob.GPU_MEMORY_UTILIZATION})
"""Fields of a VLLMRuntime that are strings."""


@dataclass(frozen=True, slots=True)
class DesiredSetting:
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

    def for_keeping(self) -> Proposal:
        """Return the same where the change is made already and is only to stay."""
        return replace(self, how=self.how.removesuffix(f"; {UNDRAINED}"))


UNDRAINED = "replicas are then replaced undrained, as it is not kvmedic that does it"


def make_proposal(owner: TemplateOwner, how: str, text: str) -> Proposal:
    """Return what a person gives to an owner, which says that nobody drains what the owner replaces."""
    return Proposal(owner, f"{how}; {UNDRAINED}", text)


def proposal_for(owner: TemplateOwner, desired: DesiredSetting) -> Proposal:
    """Return what to give to an owner for one change."""
    how, text = _ROUTES[owner.kind](owner, desired)
    return make_proposal(owner, how, text)


_Route = Callable[[TemplateOwner, DesiredSetting], tuple[str, str]]


def _inference_service(owner: TemplateOwner, desired: DesiredSetting) -> tuple[str, str]:
    path = "/spec/predictor/model/args"
    how = (
        f"append to {path.replace('/', '.')[1:]}; KServe puts these behind the runtime's own arguments, "
        "and vLLM lets the last one win. Without `args` there, add the list"
    )
    return how, _kubectl(
        "inferenceservice", owner, desired, [{"op": "add", "path": f"{path}/-", "value": desired.flag}]
    )


def _leader_worker_set(owner: TemplateOwner, desired: DesiredSetting) -> tuple[str, str]:
    how = (
        "the group's leader serves (its template is workerTemplate where there is no leaderTemplate); "
        "the set then replaces its groups"
    )
    return _by_token(
        how,
        "/spec/leaderWorkerTemplate/leaderTemplate",
        desired,
        lambda patch: _kubectl("leaderworkerset", owner, desired, patch),
    )


def _vllm_runtime(owner: TemplateOwner, desired: DesiredSetting) -> tuple[str, str]:
    knob, value = desired.setting.flag.knob, desired.setting.value
    path = RUNTIME_FIELDS.get(knob)
    if path is None:
        patch: list[dict[str, object]] = [
            {"op": "add", "path": "/spec/vllmConfig/extraArgs/-", "value": desired.flag}
        ]
        how = "append to spec.vllmConfig.extraArgs; its controller rolls the engines"
        return how, _kubectl("vllmruntime", owner, desired, patch)
    given = str(desired.setting.text) if knob in _AS_TEXT else value
    how = f"set {path.replace('/', '.')[1:]}; its controller rolls the engines"
    return how, _kubectl("vllmruntime", owner, desired, [{"op": "add", "path": path, "value": given}])


def _llm_inference_service(_owner: TemplateOwner, desired: DesiredSetting) -> tuple[str, str]:
    how = (
        "give the flag to the container `main` of spec.template, or of spec.prefill.template where that is "
        "the workload: in its args, or at the end of the value of VLLM_ADDITIONAL_ARGS"
    )
    return how, _in_words(desired)


def _ome(_owner: TemplateOwner, desired: DesiredSetting) -> tuple[str, str]:
    how = "set it in spec.engine.runner of the InferenceService, or in the runtime that it names"
    return how, _in_words(desired)


def _controller(owner: TemplateOwner, desired: DesiredSetting) -> tuple[str, str]:
    how = f"its {owner.part} renders the template: give the flag to its specification"
    return how, _in_words(desired)


def _source(owner: TemplateOwner, desired: DesiredSetting) -> tuple[str, str]:
    """Return a patch for kustomize, or the change in words where it is within a longer text."""

    def written(patch: list[dict[str, object]]) -> str:
        return kustomize_patch(desired.kind, desired.namespace, desired.name, patch)

    return _by_token(in_source(owner) or "", "/spec/template", desired, written)


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


def _production_stack(owner: TemplateOwner, desired: DesiredSetting) -> tuple[str, str]:
    config = f"of the model {owner.part!r} in servingEngineSpec.modelSpec of its values"
    upgrade = f"helm upgrade {shlex.quote(owner.name)} vllm/vllm-stack -f VALUES"
    key = _CHART_VALUES.get(desired.setting.flag.knob)
    if key is None:
        return f"append to vllmConfig.extraArgs {config}, then `{upgrade}`", f"- {json.dumps(desired.flag)}"
    value = desired.setting.value
    text = str(value).lower() if isinstance(value, bool) else json.dumps(desired.setting.text)
    return f"set under vllmConfig {config}, then `{upgrade}`", f"{key}: {text}"


def _helm(owner: TemplateOwner, desired: DesiredSetting) -> tuple[str, str]:
    where = f" --namespace {shlex.quote(owner.namespace)}" if owner.namespace else ""
    upgrade = f"helm upgrade {shlex.quote(owner.name)} CHART{where} -f VALUES"
    values = f"`helm get values {shlex.quote(owner.name)}{where}`"
    how = f"set it in the release's values ({values}), then `{upgrade}`"
    return how, _in_words(desired)


_ROUTES: Mapping[OwnerKind, _Route] = MappingProxyType(
    {
        OwnerKind.INFERENCE_SERVICE: _inference_service,
        OwnerKind.LLM_INFERENCE_SERVICE: _llm_inference_service,
        OwnerKind.OME: _ome,
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


def _kubectl(
    resource: str, owner: TemplateOwner, desired: DesiredSetting, patch: list[dict[str, object]]
) -> str:
    namespace = owner.namespace or desired.namespace
    names = f"kubectl -n {shlex.quote(namespace)} patch {resource} {shlex.quote(owner.name)}"
    return f"{names} --type=json -p {shlex.quote(json.dumps(patch))}"


def kustomize_patch(kind: str, namespace: str, name: str, patch: list[dict[str, object]]) -> str:
    """Return a JSON patch of a workload as an entry for a kustomization."""
    lines = "".join(f"\n    - {json.dumps(operation)}" for operation in patch)
    target = json.dumps({"kind": kind, "name": name, "namespace": namespace})
    return f"patches:\n- target: {target}\n  patch: |-{lines}"


def _by_token(
    how: str, template: str, desired: DesiredSetting, written: Callable[[list[dict[str, object]]], str]
) -> tuple[str, str]:
    patch = None if isinstance(desired.edit, FileEdit) else token_operations(desired.edit, template)
    return (how, _in_words(desired)) if patch is None else (how, written(patch))


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


def _in_words(desired: DesiredSetting) -> str:
    edit = desired.edit
    if isinstance(edit, FileEdit):
        place = f"{desired.setting.flag.dest} in {edit.key} of ConfigMap/{edit.config_map}"
    else:
        where = f"container {edit.container} of {desired.kind}/{desired.name}"
        place = f"{edit.field}[{edit.index}] of {where}"
    before, after = (json.dumps(token.strip()) if token else "nothing" for token in (edit.before, edit.after))
    command = f"kvmedic flags set {desired.setting.flag.dest}={desired.setting.text} -f FILE"
    return f"{place}: {before} -> {after}\n(in a file of the rendered manifest: {command})"


Operation = dict[str, object]


def field_proposal_for(above: TemplateOwner, field: OwnerField) -> Proposal:
    """Return what to give to who applies an owner's object, so that a field that was written stays."""
    how = in_source(above) or "set the same in what it applies"
    return Proposal(above, how, f"{field}: {field.before or 'nothing'} -> {field.after or 'nothing'}")


def bundle_proposal_for(owner: TemplateOwner, namespace: str, step: BundleStep) -> Proposal:
    """Return what to give to an owner so that a method is turned off; `namespace`: of the target."""
    words = f"{step.line()} (all of it in one change)"
    how = in_source(owner)
    if how is None:
        return make_proposal(owner, "it renders the template: take the method's settings off there", words)
    operations = _operations(step)
    if operations is None:
        return make_proposal(owner, how, words)
    return make_proposal(
        owner, how, kustomize_patch(step.target.kind, namespace, step.target.name, operations)
    )


def _operations(step: BundleStep) -> list[Operation] | None:
    """Return the JSON patch of a bundle; None where it would have to hold the text around a token."""
    found: list[Operation] = []
    for part in step.edit.parts:
        operations = _of_part(part)
        if operations is None:
            return None
        found += [one for one in operations if one not in found or one["op"] != "test"]
    return found


def _of_part(part: BundlePart) -> list[Operation] | None:
    if not isinstance(part, EnvEdit):
        return token_operations(part, "/spec/template")
    container = f"/spec/template/spec/containers/{part.container_index}"
    path = f"{container}/env/{part.index}"
    name: Operation = {"op": "test", "path": f"{container}/name", "value": part.container}
    if part.before is None:
        item = {"name": part.name, "value": part.after}
        first: Operation = {"op": "add", "path": f"{container}/env", "value": [item]}
        return [name, {"op": "add", "path": path, "value": item} if part.index else first]
    test: Operation = {"op": "test", "path": f"{path}/name", "value": part.name}
    if part.after is None:
        return [name, test, {"op": "remove", "path": path}]
    return [name, test, {"op": "replace", "path": f"{path}/value", "value": part.after}]


_SOURCE_REVERTS: Mapping[OwnerKind, str] = {
    OwnerKind.ARGO_CD: (
        "revert the commit behind it in the source of the application, then `argocd app sync {name}`"
    ),
    OwnerKind.FLUX_KUSTOMIZATION: (
        "revert the commit behind it, then `flux reconcile kustomization {name}{where} --with-source`"
    ),
    OwnerKind.FLUX_HELM: (
        "revert the commit behind it in the HelmRelease {name}, or put this under its "
        "spec.postRenderers[].kustomize"
    ),
    OwnerKind.APPLIER: "revert the commit behind it in what is applied",
}
"""Owners that apply what a repository holds."""
_RELEASES = frozenset({OwnerKind.HELM, OwnerKind.PRODUCTION_STACK})


@dataclass(frozen=True, slots=True)
class Reverted:
    """A revision that is to be taken back."""

    kind: str
    namespace: str
    name: str
    leaving: Revision
    desired: Revision
    differences: tuple[Difference, ...]
    """What the revision changed of interest."""
    operations: tuple[Operation, ...] | None
    """The JSON patch of the workload; None where it would have to show more than what is of interest."""

    def words(self) -> str:
        """Return the revert as one sentence."""
        back = ", ".join(Difference(one.what, one.after, one.before).line() for one in self.differences)
        return (
            f"{self.kind}/{self.name}, revision {self.leaving.number} back to {self.desired.number}: {back}"
        )


def revert_for(owner: TemplateOwner, reverted: Reverted) -> Proposal:
    """Return what to give to an owner so that a revision is taken back."""
    where = f" --namespace {shlex.quote(owner.namespace)}" if owner.namespace else ""
    name = shlex.quote(owner.name)
    if owner.kind in _RELEASES:
        number = reverted.leaving.number
        action = f"roll the release back to the one before, where its newest brought revision {number}"
        return make_proposal(owner, action, f"helm rollback {name}{where}\n({reverted.words()})")
    how = _SOURCE_REVERTS.get(owner.kind)
    if how is None:
        action = f"it renders the template: take back there what revision {reverted.leaving.number} changed"
        return make_proposal(owner, action, reverted.words())
    text = reverted.words()
    if reverted.operations is not None:
        text = kustomize_patch(reverted.kind, reverted.namespace, reverted.name, list(reverted.operations))
    return make_proposal(owner, how.format(name=name, where=where), text)


def operations_between(
    present: Mapping[str, object], desired: Mapping[str, object], index: int, names: Sequence[str]
) -> tuple[Operation, ...] | None:
    """Return the JSON patch that gives one container its earlier image and command line.

    None where that would show a token which belongs to none of the options of interest, or where the
    container is not the same one.

    Args:
        names: the options of interest, as the engine spells them: `--max-num-seqs`.
    """
    now, then = container_at(present, index), container_at(desired, index)
    if now is None or then is None or now.get("name") != then.get("name"):
        return None
    base = f"/spec/template/spec/containers/{index}"
    found: list[Operation] = [{"op": "test", "path": f"{base}/name", "value": now.get("name")}]
    if now.get(IMAGE) != then.get(IMAGE):
        found.append({"op": "test", "path": f"{base}/{IMAGE}", "value": now.get(IMAGE)})
        found.append({"op": "replace", "path": f"{base}/{IMAGE}", "value": then.get(IMAGE)})
    for field in COMMAND_LINE:
        tokens = _tokens(now, field), _tokens(then, field)
        if tokens[0] == tokens[1]:
            continue
        if not tokens[0] or not tokens[1] or not _are_of_interest(*tokens, names):
            return None
        found.extend(_list_operations(f"{base}/{field}", *tokens))
    return tuple(found)


def _tokens(container: Mapping[str, object], field: str) -> list[str]:
    items = container.get(field)
    return [str(item) for item in items] if isinstance(items, list) else []


def _are_of_interest(now: Sequence[str], then: Sequence[str], names: Sequence[str]) -> bool:
    """Return whether every token that differs names an option of interest, or is the value behind one."""
    spelled = "|".join(re.escape(name).replace(r"\-", "[-_]") for name in names)
    option = re.compile(rf"(?:{spelled})(?:=\S*)?")
    for _, *places in _changes(now, then):
        for tokens, (start, end) in ((now, places[:2]), (then, places[2:])):
            for place in range(start, end):
                before = tokens[place - 1] if place else ""
                named = option.fullmatch(tokens[place])
                valued = option.fullmatch(before) and "=" not in before and not tokens[place].startswith("-")
                if not named and not valued:
                    return False
    return True


def _changes(now: Sequence[str], then: Sequence[str]) -> Iterator[tuple[str, int, int, int, int]]:
    matcher = SequenceMatcher(a=now, b=then, autojunk=False)
    return (change for change in matcher.get_opcodes() if change[0] != "equal")


def _list_operations(path: str, now: Sequence[str], then: Sequence[str]) -> Iterator[Operation]:
    """Yield what makes one list of the other, from its end, so that places before it stay."""
    for _, start, end, first, last in reversed(list(_changes(now, then))):
        for place in reversed(range(start, end)):
            yield {"op": "test", "path": f"{path}/{place}", "value": now[place]}
            yield {"op": "remove", "path": f"{path}/{place}"}
        for offset, token in enumerate(then[first:last]):
            yield {"op": "add", "path": f"{path}/{start + offset}", "value": token}


_CONTROLLERS = {
    "InferenceService": OwnerKind.INFERENCE_SERVICE,
    "LLMInferenceService": OwnerKind.LLM_INFERENCE_SERVICE,
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
    return _controlling_owner(metadata, marks) or _applier(marks) or _helm_owner(marks)


def _controlling_owner(metadata: Mapping[str, object], marks: Mapping[str, str]) -> TemplateOwner | None:
    references = metadata.get("ownerReferences")
    for reference in references if isinstance(references, list) else ():
        if not isinstance(reference, Mapping) or reference.get("controller") is not True:
            continue
        kind, name = str(reference.get("kind")), str(reference.get("name"))
        of_ome = str(reference.get("apiVersion")).startswith("ome.io/")
        if kind not in _NOT_OWNERS:
            found = OwnerKind.OME if of_ome else _CONTROLLERS.get(kind, OwnerKind.CONTROLLER)
            return TemplateOwner(found, name, part=kind)
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


def _helm_owner(marks: Mapping[str, str]) -> TemplateOwner | None:
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
