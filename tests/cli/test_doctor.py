"""`kvmedic doctor -f` and `kvmedic init -f`: what is printed of manifests, and with which exit code."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML
from typer.testing import CliRunner, Result

from kvmedic.api.resource import policy_of, resource_from_manifest
from kvmedic.cli.app import app_for
from kvmedic.model.spec import Mode, Ownership
from worlds.documents import a_deployment, a_service, an_engine, an_object


def kvmedic(*arguments: str, given: str = "") -> Result:
    return CliRunner().invoke(app_for(arguments), list(arguments), input=given)


@pytest.fixture
def file(tmp_path: Path) -> Any:
    def write(*documents: dict[str, Any]) -> str:
        path = tmp_path / "namespace.yaml"
        path.write_text("---\n".join(json.dumps(each) + "\n" for each in documents))
        return str(path)

    return write


SLOW_KAITO = {
    "apiVersion": "kaito.sh/v1alpha1",
    "kind": "InferenceSet",
    "metadata": {"name": "llama", "annotations": {"kaito.sh/runtime": "transformers"}},
    "spec": {"template": {"inference": {"preset": {"name": "llama-3.1-8b-instruct"}}}},
}
SGLANG_BY_RUNTIME = {
    "apiVersion": "serving.kserve.io/v1alpha2",
    "kind": "LLMInferenceService",
    "metadata": {"name": "opt"},
    "spec": {"runtime": "kserve-llm-sglang", "template": {"containers": [{"name": "main"}]}},
}
MALFORMED = a_deployment(an_engine(ports=[7]))


def test_an_eligible_fleet_says_so_first_and_what_comes_next_last(file):
    done = kvmedic("doctor", "-f", file(a_deployment(), a_service()))

    lines = done.stdout.splitlines()
    assert done.exit_code == 0, done.output
    assert lines[0].startswith("ELIGIBLE   default/llm")
    assert lines[-1] == "next       kvmedic doctor deploy/llm -n default"


def test_each_failure_has_its_fix_and_its_risk_and_the_first_fix_comes_next(file):
    manifest = file(a_deployment(paused=True), a_service())
    fix = f"in {manifest}, Deployment/llm: write spec.paused: false, or leave it out"

    done = kvmedic("doctor", "-f", manifest)

    assert done.exit_code == 1, done.output
    assert done.stdout.startswith(
        "NOT ELIGIBLE default/llm: kvmedic changes nothing of it, because of rollout"
    )
    assert "FAIL     rollout            someone paused it" in done.stdout
    assert f"fix:    {fix}" in done.stdout
    assert "risk:   what was changed in its template meanwhile is rolled out undrained" in done.stdout
    assert done.stdout.splitlines()[-1] == f"next       {fix}"


def test_as_json_numbers_are_numbers_and_what_is_unknown_is_null_with_a_reason(file):
    done = kvmedic("doctor", "-f", file(a_deployment(replicas=3), a_service()), "-o", "json")

    [found] = json.loads(done.stdout)["targets"]
    checks = {each["name"]: each for each in found["checks"]}
    assert (found["eligible"], found["verdict"], found["failed"]) == (True, "Eligible", 0)
    assert checks["replicas"]["figures"] == {"ready": None, "replicas": 3}
    assert checks["start"]["figures"] == {"limitSeconds": 600.0}
    assert (checks["metrics"]["passed"], checks["metrics"]["saw"]) == (None, "a file does not show it")
    assert (checks["engine"]["passed"], checks["engine"]["fix"], checks["engine"]["reason"]) == (
        True,
        None,
        None,
    )


def test_every_deployment_of_a_file_that_starts_an_engine_is_reported_and_one_failure_decides(file):
    second = a_deployment(paused=True)
    second["metadata"] = {"name": "other"}
    web = a_deployment({"name": "web", "image": "nginx"})
    web["metadata"] = {"name": "web"}

    done = kvmedic("doctor", "-f", file(a_deployment(), second, web, a_service()))

    assert done.exit_code == 1
    assert done.stdout.startswith("1 of 2 workloads are eligible")
    assert "default/web" not in done.stdout


def test_one_of_a_file_is_named_and_others_do_not_count(file):
    second = a_deployment(paused=True)
    second["metadata"] = {"name": "other"}

    done = kvmedic("doctor", "deploy/llm", "-f", file(a_deployment(), second, a_service()))

    assert (done.exit_code, "default/other" in done.stdout) == (0, False)


def test_standard_input_is_a_file_too():
    text = json.dumps({"kind": "List", "apiVersion": "v1", "items": [a_deployment(), a_service()]})

    assert kvmedic("doctor", "-f", "-", given=text).exit_code == 0


OWN_IMAGE = {"name": "srv", "image": "example.com/cuda:3.2", "args": ["--model", "m", "--max-num-seqs", "32"]}
OWN = a_deployment(OWN_IMAGE)
TWO_OWN = {"kind": "List", "items": [OWN, {**OWN, "metadata": {"name": "other"}}]}
UNRECOGNISED = a_deployment({"name": "srv", "image": "example.com/cuda:3.2", "args": ["--model", "m"]})
TWO_OTHERS = {"kind": "List", "items": [UNRECOGNISED, {**UNRECOGNISED, "metadata": {"name": "other"}}]}
RAY = {
    "apiVersion": "ray.io/v1",
    "kind": "RayService",
    "metadata": {"name": "ray"},
    "spec": {"serveConfigV2": "applications: []"},
}
KSERVE = {
    "apiVersion": "serving.kserve.io/v1beta1",
    "kind": "InferenceService",
    "metadata": {"name": "granite"},
    "spec": {"predictor": {"model": {"modelFormat": {"name": "vLLM"}, "args": ["--max-model-len=4096"]}}},
}
"""It gives vLLM flags already: what its kind needs before is no advice."""
KSERVE_SGLANG = {
    "apiVersion": "serving.kserve.io/v1alpha2",
    "kind": "LLMInferenceService",
    "metadata": {"name": "opt"},
    "spec": {
        "runtime": "kserve-llm-sglang",
        "template": {"containers": [{"name": "main", "image": "lmsysorg/sglang:v0.5.13-xeon"}]},
    },
}
WORKER = {
    "extraPodSpec": {"mainContainer": {"command": ["python3", "-m", "dynamo.vllm"], "args": ["--model=m"]}}
}
DYNAMO = {
    "apiVersion": "nvidia.com/v1alpha1",
    "kind": "DynamoGraphDeployment",
    "metadata": {"name": "pair"},
    "spec": {"services": {"Decode": WORKER, "Prefill": WORKER}},
}
KAITO = {
    "apiVersion": "kaito.sh/v1alpha1",
    "kind": "InferenceSet",
    "metadata": {"name": "llama"},
    "spec": {"template": {"inference": {"preset": {"name": "llama-3.1-8b-instruct"}}}},
}
BARE = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [an_engine()]}}


SGLANG = a_deployment(
    {"name": "s", "image": "lmsysorg/sglang:v0.5", "command": ["python3", "-m", "sglang.launch_server"]}
)


@pytest.mark.parametrize("command", ["doctor", "init"])
@pytest.mark.parametrize(
    ("document", "said"),
    [
        (SGLANG, "Deployment/llm: container s: it runs SGLang, which kvmedic cannot change"),
        (
            a_deployment({**an_engine(), "command": ["python3", "-m", "vllm.entrypoints.api_server"]}),
            "container vllm: it runs vLLM's demo server without metrics (vllm.entrypoints.api_server), which",
        ),
        (
            KSERVE_SGLANG,
            "LLMInferenceService/opt: container main: it runs SGLang, which kvmedic cannot change",
        ),
        (RAY, "not RayService/ray: Ray Serve starts the engine of RayService/ray: set max_num_seqs"),
        (
            BARE,
            "not Pod/p, whose container vllm starts the engine: set its flags in the manifest: kvmedic flags",
        ),
        (KSERVE, "not InferenceService/granite, whose container model starts the engine: set its flags"),
        (KSERVE, "look at the workload that it renders: kvmedic doctor deploy/NAME"),
        (DYNAMO, "whose containers Decode/mainContainer and Prefill/mainContainer start an engine each"),
        (DYNAMO, "kvmedic flags set max_num_seqs=N -f FILE --container Decode/mainContainer"),
        (KAITO, "the ConfigMap that spec.template.inference.config names"),
    ],
)
def test_an_engine_that_another_kind_starts_is_refused_by_name(command, document, said):
    done = kvmedic(command, "-f", "-", given=json.dumps(document))

    assert (done.exit_code, said in done.stderr) == (1, True), done.output


def test_an_engine_that_another_kind_starts_is_reported_beside_a_deployment(file):
    done = kvmedic("doctor", "-f", file(a_deployment(), a_service(), RAY))

    assert (done.exit_code, done.stderr.count("RayService/ray: Ray Serve")) == (0, 1), done.output


def test_another_engine_is_refused_by_its_name_where_it_is_named(file):
    manifest = file(SGLANG, a_service())

    examined = kvmedic("doctor", "deploy/llm", "-f", manifest)
    made = kvmedic("init", "deploy/llm", "-f", manifest)

    assert (examined.exit_code, "it runs SGLang" in examined.stdout, "engine: vLLM" in examined.stdout) == (
        1,
        True,
        False,
    )
    assert (made.exit_code, "deploy/llm: container s: it runs SGLang" in made.stderr) == (3, True)


def test_the_only_workload_counts_though_its_image_does_not_show_its_engine(file):
    done = kvmedic("doctor", "-f", file(OWN, a_service()))

    assert (done.exit_code, "ELIGIBLE   default/llm" in done.stdout) == (0, True), done.output


@pytest.mark.parametrize(
    ("arguments", "given", "said"),
    [
        ((), "", "say what to look at"),
        (("deploy/llm", "-A"), "", "say what to look at"),
        (
            ("job/llm", "-f", "-"),
            "",
            "job/llm: only Deployments, StatefulSets and LeaderWorkerSets are changed",
        ),
        (("-f", "/gone.yaml"), "", "/gone.yaml: No such file or directory; correct the path"),
        (("-f", "-"), "a: [", "-: not readable as YAML"),
        (("-f", "-"), "a:\n<<<<<<< HEAD\n  b: 1\n=======\n  b: 2\n>>>>>>> x\n", "resolve that first"),
        (("-f", "-"), "{{ .Values.x }}: {", "a Helm template must be rendered first"),
        (("-f", "-"), "kind: Secret\ndata: {key: {{TOKEN}}}", "as a key, line 2; a Helm template must be"),
        (("-f", "-"), "{{ .Values.x }}: {{ .Values.y }}", "as a key, line 1; a Helm template"),
        (
            ("-f", "-"),
            json.dumps(a_service()),
            "known engine: there is only Service/llm. Give what is rendered",
        ),
        (("-f", "-"), json.dumps(SLOW_KAITO), "there is only InferenceSet/llama"),
        (("-f", "-"), json.dumps(SGLANG_BY_RUNTIME), "there is only LLMInferenceService/opt"),
        (("deploy/Bad_Name", "-f", "-"), "", "deploy/Bad_Name: no workload can have this name"),
        (("-f", "-"), "", "it has no Kubernetes object"),
        (
            ("-f", "-"),
            "image: {repository: vllm/vllm-openai}",
            "give what is rendered: helm template, kubectl",
        ),
        (
            ("-f", "-"),
            json.dumps(a_deployment(pod={"containers": None})),
            "-: Deployment/llm: spec.template.spec.containers is missing",
        ),
        (("-f", "-"), json.dumps(TWO_OTHERS), "name the one that does: deploy/llm, deploy/other"),
        (("-f", "-"), json.dumps(MALFORMED), "containers[0].ports[0] is a number, not a mapping"),
    ],
)
def test_what_cannot_be_looked_at_is_reported_and_exits_2(arguments, given, said):
    done = kvmedic("doctor", *arguments, given=given)

    assert done.exit_code == 2, done.output
    assert said in done.stderr
    assert "Traceback" not in done.output


def test_workloads_whose_images_say_nothing_are_found_by_arguments_beside_one_that_says_it():
    web = a_deployment({"name": "web", "image": "example.com/web", "args": ["--block-list=x"]})
    others = [a_deployment(), {**OWN, "metadata": {"name": "own"}}, {**web, "metadata": {"name": "web"}}]

    found = json.loads(kvmedic("doctor", "-f", "-", "-o", "json", given=json.dumps(TWO_OWN)).stdout)
    mixed = json.loads(
        kvmedic("doctor", "-f", "-", "-o", "json", given=json.dumps({"kind": "List", "items": others})).stdout
    )

    assert [each["target"] for each in found["targets"]] == ["llm", "other"]
    assert [each["target"] for each in mixed["targets"]] == ["llm", "own"]
    checks = [check for each in found["targets"] + mixed["targets"] for check in each["checks"]]
    assert [each["passed"] for each in checks if each["name"] == "engine"] == [True] * 4


def test_what_only_a_failure_says_is_what_comes_next(file):
    pod = {"containers": [{"name": "llm", "image": "vllm/vllm-openai:v0.32.0", "args": ["--max-num-seqs=8"]}]}
    halves = {
        "leaderTemplate": {"metadata": {"labels": {"app": "llm"}}, "spec": pod},
        "workerTemplate": {"spec": pod},
    }
    group = an_object(
        "leaderworkerset.x-k8s.io/v1",
        "LeaderWorkerSet",
        "llm",
        replicas=2,
        leaderWorkerTemplate={"size": 2, **halves},
    )

    done = kvmedic("doctor", "lws/llm", "-f", file(group, a_service()))

    assert done.exit_code == 1
    assert "next       container llm of its workerTemplate starts an engine too" in done.stdout


CONTAINERS = "spec.template.spec.containers"


@pytest.mark.parametrize("command", ["doctor", "init"])
@pytest.mark.parametrize(
    ("document", "said"),
    [
        (a_deployment(pod={"containers": {}}), f"{CONTAINERS} is a mapping, not a list"),
        (a_deployment(an_engine(args="--api-key x")), f"{CONTAINERS}[0].args is a text, not a list"),
        (a_deployment({**an_engine(), "image": 5}), f"{CONTAINERS}[0].image is 5: write a text"),
        (a_deployment(an_engine(ports=8000)), f"{CONTAINERS}[0].ports is a number, not a list"),
        (
            a_deployment(an_engine(ports=[{"containerPort": [1]}])),
            "ports[0].containerPort is a list: write a port",
        ),
        (
            a_deployment(an_engine(ports=[{"containerPort": "1"}])),
            'ports[0].containerPort is "1": write a port',
        ),
        (a_deployment(an_engine(ports=[{"name": "x"}])), "ports[0].containerPort is missing or empty"),
        (
            a_deployment(an_engine(resources={"limits": {"cpu": "one core"}})),
            'limits.cpu is "one core": write a',
        ),
        (
            a_deployment(pod={"hostNetwork": "yes"}),
            'spec.template.spec.hostNetwork is "yes": write true or false',
        ),
        (
            a_deployment(selector={"matchLabels": {"app": 1}}),
            "spec.selector.matchLabels.app is 1: write a text",
        ),
        (
            a_deployment(strategy={"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "1"}}),
            'maxSurge is "1":',
        ),
        ({**a_deployment(), "metadata": {"name": "A_B"}}, 'metadata.name is "A_B": write lower-case letters'),
        (
            {**a_deployment(), "metadata": {"name": "llm", "labels": ["a"]}},
            "metadata.labels is a list, not a",
        ),
        ({**a_deployment(), "spec": None}, "spec is missing or empty"),
        (
            a_deployment(selector=None),
            "spec.selector is missing or empty: write it; a patch of a Kustomization is looked at once",
        ),
        (
            a_deployment(replicas="${REPLICAS}"),
            'spec.replicas is "${REPLICAS}": fill in the variables of the file first',
        ),
    ],
)
def test_a_field_that_no_api_server_takes_is_named_with_what_it_has_and_should_have(command, document, said):
    done = kvmedic(command, "-f", "-", given=json.dumps(document))

    who = f"-: Deployment/{document['metadata']['name']}: "
    assert (done.exit_code, done.stderr.startswith(who), said in done.stderr) == (2, True, True), done.output
    assert "api-key" not in done.output


def test_a_deployment_that_a_file_lacks_fails_by_its_name(file):
    done = kvmedic("doctor", "deploy/gone", "-f", file(a_service()))

    assert (done.exit_code, "there is no Deployment gone in namespace default" in done.stdout) == (1, True)


def test_a_spec_of_the_file_that_cannot_be_followed_is_reported_by_field(file):
    own = an_object("kvmedic.io/v1alpha1", "KVRemediation", "own", targetRef={"name": "llm"}, mod="Auto")

    done = kvmedic("doctor", "-f", file(a_deployment(), a_service(), own))

    assert done.exit_code == 2
    assert "spec.mod: unknown field, remove it" in done.stderr


def uncommented(text: str) -> str:
    """The same resource with every setting taken in that is offered."""
    return re.sub(
        r"^(\s*)#(?=\S)", r"\1", re.sub(r"^(\s*)#(  )", r"\1\2", text, flags=re.MULTILINE), flags=re.MULTILINE
    )


def resource_in(text: str) -> Any:
    return resource_from_manifest(YAML(typ="safe", pure=True).load(text))


OWNED = a_deployment()
OWNED["metadata"]["annotations"] = {
    "meta.helm.sh/release-name": "x: {",
    "meta.helm.sh/release-namespace": "s",
}
OWNED["metadata"]["labels"] = {"app.kubernetes.io/managed-by": "Helm"}
FLEETS = {
    "plain": [a_deployment(), a_service()],
    "large": [a_deployment(replicas=12), a_service()],
    "none": [a_deployment(replicas=0)],
    "owned": [OWNED, a_service()],
    "unrecognised": [a_deployment({"name": "a", "image": "x"}, {"name": "b", "image": "y"}), a_service()],
    "own image": [a_deployment({"name": "a", "image": "x", "args": ["m", "--max-num-seqs=64"]}), a_service()],
    "odd names": [a_deployment(an_engine(name="1e3")), a_service()],
}


def a_set(**spec: Any) -> dict[str, Any]:
    """The same engines as a StatefulSet."""
    made = a_deployment(**spec)
    made["kind"] = "StatefulSet"
    made["spec"]["serviceName"] = "llm"
    return made


def test_a_stateful_set_is_named_by_its_kind_and_goes_one_short(file):
    manifest = file(a_set(), a_service())

    done = kvmedic("doctor", "-f", manifest)
    made = kvmedic("init", "sts/llm", "-f", manifest)

    assert done.exit_code == 0, done.output
    assert "default/StatefulSet/llm" in done.stdout
    assert "label app of a replica changes, and nobody takes its place" in done.stdout
    found = resource_in(made.stdout)
    assert (found.spec.target_ref.kind, found.spec.rollout.spare) == ("StatefulSet", "BestEffort")


@pytest.mark.parametrize(
    ("replicas", "spec", "said"),
    [
        (1, {}, "llm: write spec.replicas: 2"),
        (1, {"rollout": {"spare": "BestEffort"}}, "llm: write spec.replicas: 2"),
        (3, {"rollout": {"spare": "Required"}}, "set spec.rollout.spare: BestEffort"),
    ],
)
def test_a_stateful_set_that_cannot_be_one_short_shows_the_field(file, replicas, spec, said):
    target = {"kind": "StatefulSet", "name": "llm"}
    own = an_object("kvmedic.io/v1alpha1", "KVRemediation", "own", targetRef=target, **spec)
    documents = [a_set(replicas=replicas), a_service(), *([own] if spec else ())]

    done = kvmedic("doctor", "sts/llm", "-f", file(*documents))

    assert done.exit_code == 1
    assert said in done.stdout


@pytest.mark.parametrize("documents", FLEETS.values(), ids=FLEETS)
def test_what_init_prints_is_a_valid_resource_with_and_without_what_it_offers(file, documents):
    done = kvmedic("init", "deploy/llm", "-f", file(*documents))

    assert done.exit_code == 0, done.output
    found = resource_in(done.stdout)
    assert (found.metadata.name, found.spec.target_ref.name) == ("llm", "llm")
    assert policy_of(found.spec).mode is Mode.OBSERVE
    assert len(resource_in(uncommented(done.stdout)).spec.levers) == 3


def test_init_names_the_container_the_mode_and_the_replicas(file):
    sidecar = {"name": "proxy", "image": "envoy"}
    fleet = file(a_deployment(sidecar, an_engine("--max-num-seqs", "64"), replicas=8), a_service())

    done = kvmedic("init", "-f", fleet, "--mode", "Auto")

    spec = resource_in(done.stdout).spec
    assert (spec.target_ref.container, spec.target_ref.engine) == ("vllm", None)
    assert (policy_of(spec).mode, spec.limits.min_healthy_replicas) == (Mode.AUTO, 6)
    assert "--max-num-seqs is 64 now" in done.stdout
    assert "waves: Quarter" in done.stdout


@pytest.mark.parametrize(
    ("mark", "line", "ownership"),
    [
        ({"meta.helm.sh/release-name": "chat"}, "\n  ownership: Apply\n", Ownership.APPLY),
        ({"argocd.argoproj.io/tracking-id": "prod:"}, "\n  #ownership: Apply\n", Ownership.RESPECT),
        ({}, "", Ownership.RESPECT),
    ],
)
def test_init_asks_a_helm_release_to_give_way_and_leaves_any_other_owner_to_a_person(
    file, mark, line, ownership
):
    body = a_deployment()
    body["metadata"] = {**body["metadata"], "annotations": mark}

    done = kvmedic("init", "deploy/llm", "-f", file(body, a_service()))

    assert policy_of(resource_in(done.stdout).spec).ownership is ownership
    assert line in done.stdout
    assert ("owns it" in done.stdout) is bool(mark)


def test_init_names_the_engine_of_an_image_that_does_not_say_it_where_its_arguments_do(file):
    own = {"name": "llm", "image": "registry.example/ai/serving:1", "args": ["m", "--max-num-seqs=64"]}

    done = kvmedic("init", "deploy/llm", "-f", file(a_deployment(own), a_service()))

    assert resource_in(done.stdout).spec.target_ref.engine == "vLLM"


def test_init_guesses_no_engine_from_arguments_that_are_no_knobs(file):
    own = {"name": "web", "image": "registry.example/web:1", "args": ["--port", "80"]}

    done = kvmedic("init", "deploy/llm", "-f", file(a_deployment(own), a_service()))

    assert resource_in(done.stdout).spec.target_ref.engine is None
    assert "#engine: vLLM" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ((), 2, "say for which workload"),
        (("deploy/gone", "-f", "-"), 4, "there is no deploy/gone"),
        (("-f", "-"), 2, "no workload starts a known engine"),
        (("deploy/Bad_Name", "-f", "-"), 2, "no workload can have this name"),
    ],
)
def test_init_says_what_it_lacks(arguments, code, said):
    done = kvmedic("init", *arguments, given=json.dumps(a_service()))

    assert (done.exit_code, said in done.stderr) == (code, True), done.output
