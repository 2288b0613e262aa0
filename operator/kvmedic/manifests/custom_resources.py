"""Fields of custom resources that stand for a container, and where flags are that no container gives.

A controller renders the pods. Its field is edited where the flag's place is certain; else it is named.

Sources: OME `pkg/apis/ome/v1beta1` (RunnerSpec); Dynamo `deploy/operator/api/v1alpha1` (ExtraPodSpec), whose
operator runs lone `args` by a shell; KServe `config/llmisvc` (VLLM_ADDITIONAL_ARGS) and `pkg/constants`;
KubeAI `api/k8s/v1`; llmaz `api/inference/v1alpha1`; KAITO `presets/workspace/inference/vllm`;
production-stack `operator/api/v1alpha1`; KubeRay `apis/ray/v1`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

Container: TypeAlias = Mapping[str, object]

FLAGS_IN = "flagsIn"
"""Key that no real container has: the variable that a controller's script puts behind `vllm serve`."""

_DYNAMO = frozenset({"DynamoGraphDeployment", "DynamoComponentDeployment"})
_LLM_SERVICES = frozenset({"LLMInferenceService", "LLMInferenceServiceConfig"})
_ADDITIONAL_ARGS = "VLLM_ADDITIONAL_ARGS"
_SETTING_VARIABLES = _DYNAMO | _LLM_SERVICES | {"InferenceService", "ServingRuntime", "ClusterServingRuntime"}
"""Kinds whose controllers give the container more variables than the object has, such as MODEL_PATH."""
_OTHERS_VARIABLES = ({"configMapRef": {"name": "of the controller"}},)

_WHOLE = frozenset({"runner", "mainContainer"})
"""Fields that are one container, with the pod's fields beside it."""
_IMAGE = "vllm/vllm-openai"
"""The image that stands for the engine where the controller chooses it: no tag, so no version."""
_ONLY_ARGS = frozenset({"model", "spec", "backendRuntimeConfig"})
"""Fields whose `args` the controller puts behind those of its own, and vLLM lets the last one win."""

CONTAINER_FIELDS = _WHOLE | _ONLY_ARGS
"""Fields of which any may stand for a container."""


def container_in(kind: str, key: str, field: Mapping[str, object]) -> dict[str, object] | None:
    """Return the container that a field of a custom resource stands for; None where it stands for none."""
    if key in _WHOLE and any(isinstance(field.get(name), list) for name in ("args", "command")):
        return as_rendered(kind, {"name": key, **field})
    if key in _ONLY_ARGS and isinstance(field.get("args"), list) and _gives_vllm(kind, key, field):
        env = field.get("env")
        variables = {"env": env} if isinstance(env, list) else {}
        container = {"name": key, "image": _IMAGE, "args": field["args"], **variables}
        return {**container, "envFrom": list(_OTHERS_VARIABLES)}
    return None


def _gives_vllm(kind: str, key: str, field: Mapping[str, object]) -> bool:
    match kind, key:
        case "InferenceService", "model":
            form = field.get("modelFormat")
            named = (form.get("name") if isinstance(form, Mapping) else None, field.get("runtime"))
            return any("vllm" in str(name).lower() for name in named)
        case "Model", "spec":
            return field.get("engine") == "VLLM"
        case "Playground", "backendRuntimeConfig":
            return field.get("backendName") in (None, "vllm")
        case _:
            return False


def as_rendered(kind: str, container: Container) -> dict[str, object]:
    """Return a container of an object as its controller hands it on, with its variables and its shell."""
    found = dict(container)
    if kind in _SETTING_VARIABLES and not found.get("envFrom"):
        found["envFrom"] = list(_OTHERS_VARIABLES)
    command, args = found.get("command"), found.get("args")
    if kind in _DYNAMO and not command and isinstance(args, list) and len(args) == 1 and " " in str(args[0]):
        found["command"] = ["/bin/sh", "-c"]
    if kind in _LLM_SERVICES and not command and not args and _gives(container, _ADDITIONAL_ARGS):
        found[FLAGS_IN] = _ADDITIONAL_ARGS
    return found


def _gives(container: Container, name: str) -> bool:
    env = container.get("env")
    entries = [each for each in env if isinstance(each, Mapping)] if isinstance(env, list) else []
    return any(each.get("name") == name and each.get("value") for each in entries)


def places_of_flags(document: Mapping[str, object]) -> Iterator[str]:
    """Yield where an object has the engine's flags, in words, where that is no container."""
    kind, name = document.get("kind"), _mapping(document.get("metadata")).get("name")
    if kind is None and (services := _engines_of_compose(document)):
        fields = ", ".join(f"services.{each}.command" for each in services)
        yield f"this is a file of Docker Compose: write the flag into {fields} by hand"
    is_meant, text = _ELSEWHERE.get(str(kind), (None, ""))
    if is_meant is not None and is_meant(document):
        yield text.format(who=f"{kind}/{name}")


def _has(*path: str) -> Callable[[Mapping[str, object]], bool]:
    """Return whether an object has a field."""

    def has(document: Mapping[str, object]) -> bool:
        *parents, last = path
        for key in parents:
            document = _mapping(document.get(key))
        return last in document

    return has


def _is_kaitos_vllm(document: Mapping[str, object]) -> bool:
    """Return whether KAITO serves an object by vLLM, as it does by default."""
    notes = _mapping(_mapping(document.get("metadata")).get("annotations"))
    return notes.get("kaito.sh/runtime", "vllm") == "vllm"


_ELSEWHERE: Mapping[str, tuple[Callable[[Mapping[str, object]], bool], str]] = {
    "LLMInferenceService": (
        lambda document: (
            _has("spec")(document)
            and "sglang" not in str(_mapping(document.get("spec")).get("runtime")).lower()
        ),
        "KServe puts the value of VLLM_ADDITIONAL_ARGS behind the `vllm serve` of {who}: give that variable, "
        "with the flag as its value, in the env of the container `main` of spec.template",
    ),
    "InferenceService": (
        _has("spec", "predictor", "model"),
        "a runtime starts the engine of {who}: give the list spec.predictor.model.args with the flag, and "
        "say vllm in its runtime or modelFormat.name",
    ),
    "Workspace": (
        lambda document: _has("inference")(document) and _is_kaitos_vllm(document),
        "KAITO starts the engine of {who}: write the flag below `vllm:` in the key inference_config.yaml of "
        "the ConfigMap that inference.config names",
    ),
    "InferenceSet": (
        lambda document: _has("spec", "template", "inference")(document) and _is_kaitos_vllm(document),
        "KAITO starts the engine of {who}: write the flag below `vllm:` in the key inference_config.yaml of "
        "the ConfigMap that spec.template.inference.config names",
    ),
    "VLLMRuntime": (
        _has("spec"),
        "production-stack renders {who}: append the flag to spec.vllmConfig.extraArgs, or set its own field, "
        "such as spec.model.maxNumSeqs",
    ),
    "BackendRuntime": (
        _has("spec", "recommendedConfigs"),
        "llmaz renders what refers to {who}: append the flag to spec.recommendedConfigs[].args",
    ),
    "Playground": (
        _has("spec", "modelClaim"),
        "llmaz renders {who}: give the list spec.backendRuntimeConfig.args with the flag",
    ),
    "Model": (
        lambda document: _mapping(document.get("spec")).get("engine") == "VLLM",
        "KubeAI renders {who}: give the list spec.args with the flag",
    ),
    "RayService": (
        _has("spec", "serveConfigV2"),
        "Ray Serve starts the engine of {who}: set max_num_seqs and the like below engine_kwargs in "
        "spec.serveConfigV2",
    ),
}
"""By kind: which of its objects have flags elsewhere, and where."""


def _engines_of_compose(document: Mapping[str, object]) -> list[str]:
    services = _mapping(document.get("services")).items()
    return [name for name, each in services if "vllm" in str(_mapping(each).get("image"))]


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}
