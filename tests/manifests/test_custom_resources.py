"""Fields of custom resources: which are edited like a container, and which are named instead."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner, Result

from kvmedic.cli.app import app_for

OME = """\
apiVersion: ome.io/v1beta1
kind: ClusterServingRuntime
metadata: {name: vllm-llama-70b}
spec:
  engineConfig:
    runner:
      name: ome-container
      image: registry.example/vllm/vllm-openai:v0.9.0.1
      command: [/bin/bash, -c]
      args:
      - |
        exec python3 -m vllm.entrypoints.openai.api_server --port=8080 --model="$MODEL_PATH" \\
          --tensor-parallel-size=$PARALLELISM_SIZE --max-num-seqs=64
"""
DYNAMO = """\
apiVersion: nvidia.com/v1alpha1
kind: DynamoGraphDeployment
metadata: {name: qwen}
spec:
  services:
    Frontend:
      extraPodSpec: {mainContainer: {image: dynamo, args: ["python3 -m dynamo.frontend --http-port 8000"]}}
    Decode:
      extraPodSpec:
        mainContainer:
          image: registry.example/nvidia/ai-dynamo/vllm-runtime:0.3.2
          args: ["python3 -m dynamo.vllm --model Q --is-decode-worker --max-num-seqs 64 2>&1 | tee /tmp/log"]
    Prefill:
      extraPodSpec:
        mainContainer:
          image: registry.example/nvidia/ai-dynamo/vllm-runtime:0.9.0
          command: [python3, -m, dynamo.vllm]
          args: [--model, Q, --is-prefill-worker, --connector, nixl]
"""
KSERVE = """\
apiVersion: serving.kserve.io/v1alpha1
kind: LLMInferenceService
metadata: {name: qwen}
spec:
  model: {uri: "hf://Qwen/Qwen3-8B", name: qwen}
  template:
    containers:
    - name: main
      env:
      - {name: VLLM_ADDITIONAL_ARGS, value: "--tool-call-parser='hermes' --max-model-len 8192"}
"""
STORM = """\
apiVersion: orchestration.aibrix.ai/v1alpha1
kind: StormService
metadata: {name: pd}
spec:
  template:
    spec:
      roles:
      - name: prefill
        template: {spec: {containers: [{name: vllm, command: [vllm, serve], args: [m, --max-num-seqs, "8"]}]}}
      - name: decode
        template: {spec: {containers: [{name: vllm, command: [vllm, serve], args: [m, --max-num-seqs=64]}]}}
"""
PREDICTOR = """\
kind: InferenceService
metadata: {name: llama}
spec:
  predictor:
    model: {modelFormat: {name: vLLM}, runtime: kserve-vllm, args: [--max-model-len=4096]}
"""
KUBEAI = """\
apiVersion: kubeai.org/v1
kind: Model
metadata: {name: llama}
spec: {engine: VLLM, url: "hf://m", args: [--max-num-seqs=64, "--max-num-batched-tokens=1024"]}
"""
LLMAZ = """\
kind: Playground
metadata: {name: qwen}
spec: {modelClaim: {modelName: qwen}, backendRuntimeConfig: {args: [--max-num-seqs, "64"]}}
"""


def kvmedic(text: str, *arguments: str) -> Result:
    return CliRunner().invoke(app_for(("flags",)), ["flags", *arguments, "-f", "-"], input=text)


@pytest.mark.parametrize(
    ("text", "container", "old", "new"),
    [
        pytest.param(OME, "", "--max-num-seqs=64", "--max-num-seqs=16", id="OME: engineConfig.runner"),
        pytest.param(
            DYNAMO, "Decode/mainContainer", "max-num-seqs 64", "max-num-seqs 16", id="Dynamo: one script"
        ),
        pytest.param(
            DYNAMO, "Prefill/mainContainer", "nixl]", "nixl, --max-num-seqs=16]", id="Dynamo: a new flag"
        ),
        pytest.param(KSERVE, "", '8192"', '8192 --max-num-seqs=16"', id="KServe: VLLM_ADDITIONAL_ARGS"),
        pytest.param(STORM, "decode/vllm", "=64", "=16", id="StormService: one of two roles"),
        pytest.param(PREDICTOR, "", "=4096]", "=4096, --max-num-seqs=16]", id="KServe: predictor.model.args"),
        pytest.param(KUBEAI, "", "seqs=64", "seqs=16", id="KubeAI: spec.args"),
        pytest.param(LLMAZ, "", '"64"', '"16"', id="llmaz: backendRuntimeConfig.args"),
    ],
)
def test_a_field_that_stands_for_a_container_is_edited_as_one(
    text: str, container: str, old: str, new: str
) -> None:
    named = ["--container", container] if container else []

    result = kvmedic(text, "set", "max_num_seqs=16", *named)

    assert result.exit_code == 0, result.stderr
    assert result.stdout == text.replace(old, new)


def test_parts_of_one_object_are_distinguished_by_where_they_are() -> None:
    unnamed = kvmedic(STORM, "set", "max_num_seqs=16")
    shown = json.loads(kvmedic(STORM, "show", "-o", "json").stdout)["containers"]

    assert unnamed.exit_code == 3
    assert "prefill/vllm of StormService/pd, decode/vllm of StormService/pd" in unnamed.stderr
    assert shown == {
        "prefill/vllm of StormService/pd": {"max_num_seqs": 8},
        "decode/vllm of StormService/pd": {"max_num_seqs": 64},
    }


BRANCH = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: wide}
spec:
  template:
    spec:
      containers:
      - name: vllm
        image: vllm/vllm-openai:v0.11.0
        command: [bash, -c]
        args:
        - |
          SPEC_ARGS=""
          MAX_SEQS=64
          if [ "${ENABLE_SPEC:-0}" = 1 ]; then SPEC_ARGS="--speculative-config {}"; MAX_SEQS=16; fi
          exec vllm serve $SPEC_ARGS m --max-num-seqs ${MAX_SEQS}
"""
"""As llm-d's wide-EP guide starts it."""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (BRANCH, "SPEC_ARGS (args[0] line 4) is set by the script in a way that is not followed"),
        (BRANCH, "may hold any flag: write its flags where the engine is started"),
        (
            BRANCH.replace("serve $SPEC_ARGS", "serve"),
            "max_num_seqs comes from $MAX_SEQS (args[0] line 4), set by the script in a way",
        ),
        (BRANCH.replace("serve $SPEC_ARGS", "serve"), "write the value where the engine is started"),
    ],
)
def test_what_a_branch_of_the_script_sets_is_not_said_to_be_set_outside(text, said) -> None:
    done = kvmedic(text, "set", "max_num_seqs=8")

    assert (done.exit_code, said in done.stderr) == (3, True), done.stderr
    assert "outside" not in done.stderr


def test_a_variable_that_the_controller_sets_blocks_its_own_flag_alone() -> None:
    text = OME.replace("--max-num-seqs=64", "--max-num-seqs=$SEQS --max-model-len=8192")

    own, other = kvmedic(text, "set", "max_num_seqs=16"), kvmedic(text, "set", "max_model_len=4096")

    assert (own.exit_code, other.exit_code) == (3, 0)
    assert "max_num_seqs comes from $SEQS (args[0] line 2), set outside of the manifest" in own.stderr
    assert other.stdout == text.replace("8192", "4096")


def test_options_that_dynamo_alone_has_are_left_as_they_are() -> None:
    text = DYNAMO.replace("--max-num-seqs 64", "--migration-limit 3 --max-num-seqs 64")

    result = kvmedic(text, "set", "max_num_seqs=16", "--container", "Decode/mainContainer")

    assert result.stdout == text.replace("seqs 64", "seqs 16")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param(
            "services:\n  db: {image: postgres}\n  llm: {image: vllm/vllm-openai, command: --model m}\n",
            "Docker Compose: write the flag into services.llm.command",
            id="Docker Compose",
        ),
        pytest.param(
            KSERVE.replace("- {name: VLLM_ADDITIONAL_ARGS", "- {name: OTHER"),
            "VLLM_ADDITIONAL_ARGS behind the `vllm serve` of LLMInferenceService/qwen",
            id="LLMInferenceService without the variable",
        ),
        pytest.param(
            PREDICTOR.replace("name: vLLM", "name: huggingface").replace("kserve-vllm", "own"),
            "spec.predictor.model.args with the flag",
            id="InferenceService of another runtime",
        ),
        pytest.param(
            "kind: Workspace\nmetadata: {name: phi}\ninference: {preset: {name: phi-4}, config: sizes}\n",
            "inference_config.yaml of the ConfigMap that inference.config names",
            id="KAITO",
        ),
        pytest.param(
            "kind: VLLMRuntime\nmetadata: {name: a}\nspec: {vllmConfig: {maxModelLen: 4096}}\n",
            "spec.vllmConfig.extraArgs",
            id="production-stack",
        ),
        pytest.param(
            "kind: BackendRuntime\nmetadata: {name: vllm}\nspec: {recommendedConfigs: [{name: default}]}\n",
            "spec.recommendedConfigs[].args",
            id="llmaz: a runtime",
        ),
        pytest.param(
            LLMAZ.replace(', backendRuntimeConfig: {args: [--max-num-seqs, "64"]}', ""),
            "give the list spec.backendRuntimeConfig.args",
            id="llmaz: a playground without args",
        ),
        pytest.param(
            KUBEAI.replace(', args: [--max-num-seqs=64, "--max-num-batched-tokens=1024"]', ""),
            "KubeAI renders Model/llama: give the list spec.args",
            id="KubeAI without args",
        ),
        pytest.param(
            "kind: RayService\nmetadata: {name: r}\nspec: {serveConfigV2: 'applications: []'}\n",
            "engine_kwargs in spec.serveConfigV2",
            id="Ray Serve",
        ),
    ],
)
def test_a_place_that_is_no_container_is_named_with_what_to_write(text: str, said: str) -> None:
    results = [kvmedic(text, "set", "max_num_seqs=16"), kvmedic(text, "show")]

    for result in results:
        assert result.exit_code == 3
        assert said in result.stderr
        assert result.stdout == ""


def test_an_object_is_chosen_by_its_name_among_others_with_engines() -> None:
    result = kvmedic(f"{STORM}---\n{KUBEAI}", "set", "max_num_seqs=16", "--name", "llama")

    assert result.stdout == f"{STORM}---\n{KUBEAI.replace('seqs=64', 'seqs=16')}"
