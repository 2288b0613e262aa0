"""Who writes a template, and what is given to them."""

from __future__ import annotations

import json
import shlex
from typing import Any

import jsonpatch
import pytest
import yaml

from kvmedic.engines.vllm import VLLM
from kvmedic.manifests.flags import Setting, setting_of
from kvmedic.manifests.proposals import DesiredSetting, owner_in, proposal_for
from kvmedic.model.edits import Field, TokenEdit
from kvmedic.model.engine import Engine, Version
from kvmedic.model.fleet import OwnerKind, TemplateOwner

ENGINE = Engine(VLLM, Version.parse("0.32.0"))
FLUX = {"kustomize.toolkit.fluxcd.io/name": "apps", "kustomize.toolkit.fluxcd.io/namespace": "flux-system"}


def controlled_by(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"ownerReferences": [{"kind": kind, "name": name, "controller": True}], **more}


OWNERS = [
    pytest.param({}, None, id="nobody"),
    pytest.param({"labels": {"app.kubernetes.io/instance": "x"}}, None, id="a chart's label alone"),
    pytest.param({"ownerReferences": [{"kind": "X", "name": "x"}]}, None, id="no controller"),
    pytest.param(controlled_by("ReplicaSet", "r"), None, id="a Deployment's own"),
    pytest.param(
        controlled_by("InferenceService", "chat"),
        TemplateOwner(OwnerKind.INFERENCE_SERVICE, "chat", part="InferenceService"),
        id="KServe",
    ),
    pytest.param(
        {"labels": {"serving.kserve.io/inferenceservice": "chat"}},
        TemplateOwner(OwnerKind.INFERENCE_SERVICE, "chat"),
        id="KServe's label",
    ),
    pytest.param(
        {"labels": {"leaderworkerset.sigs.k8s.io/name": "big"}},
        TemplateOwner(OwnerKind.LEADER_WORKER_SET, "big"),
        id="LeaderWorkerSet",
    ),
    pytest.param(
        controlled_by("VLLMRuntime", "chat"),
        TemplateOwner(OwnerKind.VLLM_RUNTIME, "chat", part="VLLMRuntime"),
        id="VLLMRuntime",
    ),
    pytest.param(
        controlled_by("Rollout", "chat"),
        TemplateOwner(OwnerKind.CONTROLLER, "chat", part="Rollout"),
        id="another controller",
    ),
    pytest.param(
        {"annotations": {"argocd.argoproj.io/tracking-id": "prod:apps/Deployment:ns/chat"}},
        TemplateOwner(OwnerKind.ARGO_CD, "prod"),
        id="Argo CD",
    ),
    pytest.param(
        {"labels": {"argocd.argoproj.io/instance": "prod"}},
        TemplateOwner(OwnerKind.ARGO_CD, "prod"),
        id="Argo CD's label",
    ),
    pytest.param(
        {"labels": FLUX}, TemplateOwner(OwnerKind.FLUX_KUSTOMIZATION, "apps", "flux-system"), id="Flux"
    ),
    pytest.param(
        {"labels": FLUX, "annotations": {"kustomize.toolkit.fluxcd.io/reconcile": "disabled"}},
        None,
        id="Flux set to leave it",
    ),
    pytest.param(
        {"labels": {"helm.toolkit.fluxcd.io/name": "chat"}},
        TemplateOwner(OwnerKind.FLUX_HELM, "chat"),
        id="Flux with Helm",
    ),
    pytest.param(
        {"annotations": {"meta.helm.sh/release-name": "r", "meta.helm.sh/release-namespace": "n"}},
        TemplateOwner(OwnerKind.HELM, "r", "n"),
        id="Helm",
    ),
    pytest.param(
        {"labels": {"app.kubernetes.io/managed-by": "Helm", "app.kubernetes.io/instance": "r"}},
        TemplateOwner(OwnerKind.HELM, "r"),
        id="Helm's label",
    ),
    pytest.param(
        {"labels": {"helm-release-name": "vllm", "model": "opt"}},
        TemplateOwner(OwnerKind.PRODUCTION_STACK, "vllm", part="opt"),
        id="production-stack",
    ),
    pytest.param(
        controlled_by("InferenceService", "chat", labels=FLUX),
        TemplateOwner(OwnerKind.INFERENCE_SERVICE, "chat", part="InferenceService"),
        id="the nearest of two",
    ),
    pytest.param({"labels": None, "annotations": "x", "ownerReferences": ["x"]}, None, id="malformed"),
]


@pytest.mark.parametrize(("metadata", "expected"), OWNERS)
def test_the_owner_is_read_from_the_metadata(
    metadata: dict[str, Any], expected: TemplateOwner | None
) -> None:
    assert owner_in(metadata) == expected


REPLACE = TokenEdit("vllm", 1, Field.ARGS, 0, "--max-num-seqs=64", "--max-num-seqs=16")
WITHIN = TokenEdit("vllm", 1, Field.ARGS, 0, "64", "16", 28)


def a_setting(edit: TokenEdit = REPLACE, dest: str = "max_num_seqs", value: object = 16) -> DesiredSetting:
    setting = setting_of(VLLM.by_dest()[dest], str(value), ENGINE)
    assert isinstance(setting, Setting)
    return DesiredSetting("Deployment", "ml", "chat", setting, edit)


def patch_in(command: str) -> tuple[list[str], list[dict[str, Any]]]:
    words = shlex.split(command)
    return words[:6], json.loads(words[-1])


@pytest.mark.parametrize(
    ("edit", "old", "new"),
    [
        pytest.param(
            REPLACE, {"args": ["--max-num-seqs=64"]}, {"args": ["--max-num-seqs=16"]}, id="replaced"
        ),
        pytest.param(
            TokenEdit("vllm", 1, Field.ARGS, 1, None, "--max-num-seqs=16"),
            {"args": ["m"]},
            {"args": ["m", "--max-num-seqs=16"]},
            id="added",
        ),
        pytest.param(
            TokenEdit("vllm", 1, Field.ARGS, 1, "x", None),
            {"args": ["m", "x"]},
            {"args": ["m"]},
            id="removed",
        ),
        pytest.param(
            TokenEdit("vllm", 1, Field.ENV, 0, "64", "16"),
            {"env": [{"name": "S", "value": "64"}]},
            {"env": [{"name": "S", "value": "16"}]},
            id="variable",
        ),
    ],
)
@pytest.mark.parametrize(
    "kind", [OwnerKind.ARGO_CD, OwnerKind.FLUX_KUSTOMIZATION, OwnerKind.FLUX_HELM, OwnerKind.APPLIER]
)
def test_git_gets_a_patch_that_kustomize_can_apply(
    kind: OwnerKind, edit: TokenEdit, old: dict[str, Any], new: dict[str, Any]
) -> None:
    proposal = proposal_for(TemplateOwner(kind, "prod"), a_setting(edit))

    (entry,) = yaml.safe_load(proposal.text)["patches"]
    assert entry["target"] == {"kind": "Deployment", "name": "chat", "namespace": "ml"}
    before, after = (
        {"spec": {"template": {"spec": {"containers": [{"name": "proxy"}, {"name": "vllm", **lists}]}}}}
        for lists in (old, new)
    )
    assert jsonpatch.apply_patch(before, yaml.safe_load(entry["patch"])) == after


@pytest.mark.parametrize(
    ("kind", "command"),
    [
        (OwnerKind.ARGO_CD, "argocd app sync prod"),
        (OwnerKind.FLUX_KUSTOMIZATION, "flux reconcile kustomization prod --namespace there --with-source"),
        (OwnerKind.HELM, "helm upgrade prod CHART --namespace there -f VALUES"),
        (OwnerKind.PRODUCTION_STACK, "helm upgrade prod vllm/vllm-stack -f VALUES"),
    ],
)
def test_the_command_that_carries_it_out_is_named(kind: OwnerKind, command: str) -> None:
    assert command in proposal_for(TemplateOwner(kind, "prod", "there"), a_setting()).how


def test_kserve_gets_an_argument_behind_the_runtimes() -> None:
    proposal = proposal_for(TemplateOwner(OwnerKind.INFERENCE_SERVICE, "chat"), a_setting())

    command, patch = patch_in(proposal.text)
    assert command == ["kubectl", "-n", "ml", "patch", "inferenceservice", "chat"]
    assert patch == [{"op": "add", "path": "/spec/predictor/model/args/-", "value": "--max-num-seqs=16"}]


def test_a_leader_worker_set_gets_the_token_in_its_own_template() -> None:
    proposal = proposal_for(TemplateOwner(OwnerKind.LEADER_WORKER_SET, "big"), a_setting())

    _, patch = patch_in(proposal.text)
    assert [operation["op"] for operation in patch] == ["test", "test", "replace"]
    assert patch[-1]["path"] == "/spec/leaderWorkerTemplate/leaderTemplate/spec/containers/1/args/0"


@pytest.mark.parametrize(
    ("dest", "value", "path", "given"),
    [
        ("max_num_seqs", 16, "/spec/model/maxNumSeqs", 16),
        ("gpu_memory_utilization", 0.85, "/spec/vllmConfig/gpuMemoryUtilization", "0.85"),
        ("enable_prefix_caching", False, "/spec/vllmConfig/enablePrefixCaching", False),
        ("watermark", 0.1, "/spec/vllmConfig/extraArgs/-", "--watermark=0.1"),
    ],
)
def test_a_vllm_runtime_gets_its_own_field(dest: str, value: object, path: str, given: object) -> None:
    proposal = proposal_for(TemplateOwner(OwnerKind.VLLM_RUNTIME, "chat"), a_setting(REPLACE, dest, value))

    assert patch_in(proposal.text)[1] == [{"op": "add", "path": path, "value": given}]


@pytest.mark.parametrize(
    ("dest", "value", "text"),
    [
        ("max_num_seqs", 16, 'maxNumSeqs: "16"'),
        ("enable_chunked_prefill", False, "enableChunkedPrefill: false"),
        ("watermark", 0.1, '- "--watermark=0.1"'),
        ("max_model_len", "8k", 'maxModelLen: "8k"'),
    ],
)
def test_production_stack_gets_a_value_of_its_chart(dest: str, value: object, text: str) -> None:
    owner = TemplateOwner(OwnerKind.PRODUCTION_STACK, "vllm", part="opt")
    proposal = proposal_for(owner, a_setting(REPLACE, dest, value))

    assert proposal.text == text
    assert "'opt'" in proposal.how


SEES_THE_WORD = frozenset(
    {
        OwnerKind.APPLIER,
        OwnerKind.ARGO_CD,
        OwnerKind.CONTROLLER,
        OwnerKind.FLUX_KUSTOMIZATION,
        OwnerKind.FLUX_HELM,
        OwnerKind.HELM,
        OwnerKind.LEADER_WORKER_SET,
        OwnerKind.LLM_INFERENCE_SERVICE,
        OwnerKind.OME,
    }
)
"""Who writes the script, and sees which word of it changes; the others have a field or a list of flags."""


@pytest.mark.parametrize("kind", OwnerKind)
def test_of_a_script_only_its_writers_see_the_word_that_changes(kind: OwnerKind) -> None:
    proposal = proposal_for(TemplateOwner(kind, "prod", part="X"), a_setting(WITHIN))

    word = 'args[0] of container vllm of Deployment/chat: "64" -> "16"'
    assert (word in proposal.text) is (kind in SEES_THE_WORD)
    assert "16" in proposal.text
    assert "prod" in str(proposal)
