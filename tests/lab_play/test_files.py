"""Scenarios are files: what one may leave out, and how a wrong one is answered."""

import re
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from lab.demo import scenario
from lab.evaluation.__main__ import Settings
from lab.play import files
from lab.play.files import PARTS, ScenarioInvalid, merged, names, read, read_all
from lab.play.lanes import listed
from lab.play.manifests import arguments, namespace, objects, workload
from lab.play.schema import Engine, Scenario, Writes
from lab.play.stage import engine_recipe

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "add-a-scenario.md"
GOOD = """\
title: a play
twin: calm
expect:
  branch: FleetWideDemand
  moves: [{kind: FlagStep, knob: maxNumSeqs, after: [10, 30]}]
  verdicts: [Recovered]
"""
CALM = """\
title: nothing
like: hot
load: [{clients: 2, lengths: 8+8}]
expect: {branch: Healthy, writes: untouched}
"""
Put = Callable[[str, str], None]


@pytest.fixture
def put(tmp_path) -> Put:
    """Writes one file beside the lab's own defaults."""
    defaults = files.DIRECTORY / "defaults.yaml"
    (tmp_path / "defaults.yaml").write_text(defaults.read_text())

    def write(name: str, text: str) -> None:
        (tmp_path / f"{name}.yaml").write_text(text)

    return write


def problems(directory: Path, name: str = "hot") -> list[str]:
    with pytest.raises(ScenarioInvalid) as refused:
        read(name, directory)
    return list(refused.value.problems)


def test_what_a_file_leaves_out_comes_from_the_defaults(tmp_path, put):
    put("hot", GOOD)

    found = read("hot", tmp_path)

    assert (found.name, found.fleet.replicas, found.fleet.cap) == ("hot", 2, "64")
    assert found.remediation["targetRef"]["name"] == "inference-llm"


def test_a_file_that_is_like_another_says_only_what_differs(tmp_path, put):
    put("hot", GOOD + "fleet: {replicas: 3, flags: {max-num-seqs: 32}, environment: {LAB_TIME_SCALE: '2'}}\n")
    put("calm", CALM + "fleet: {flags: {block-size: null}}\n")

    hot, calm = read("hot", tmp_path), read("calm", tmp_path)

    assert (calm.fleet.replicas, calm.fleet.environment) == (3, hot.fleet.environment)
    assert "block-size" not in calm.fleet.flags
    assert [stream.clients for stream in calm.load] == [2], "lists are taken whole"
    assert (calm.expect.moves, calm.expect.writes) == ((), Writes.UNTOUCHED), (
        "what is expected is taken whole"
    )
    assert (calm.twin, calm.title) == (None, "nothing"), "title and twin are each file's own"


def test_merging_takes_null_for_away():
    assert merged({"a": {"b": 1, "c": 2}, "d": [1]}, {"a": {"b": None, "e": 3}, "d": [2]}) == {
        "a": {"c": 2, "e": 3},
        "d": [2],
    }


ADDED = {
    "colour: red": "colour: there is no such field: remove it",
    "fleet: {replicas: 21}": "fleet.replicas: input should be less than or equal to 20 (it is 21)",
    "fleet: {ranks: 2}": "fleet: only an InferencePool leads requests to several ports: add pool: v1",
    "fleet: {pool: v1, router: {a: b}}": "fleet: pool and router both stand in place of the Service",
    "fleet: {pool: v1}\nload: [{clients: 1, lengths: 8+8, to: replica-first}]": "the whole file: "
    "replica-first goes on to the Service, and there is none",
    "incidents: [{at: 5s, do: registry, refuses: true}]": "the whole file: incidents are of a registry, "
    "and no image comes from one: add fleet.registry",
    "fleet: {flags: 3}": "fleet.flags: ",
    "fleet: {objects: [{kind: ConfigMap}]}": "fleet.objects: an object needs apiVersion, kind",
    "fleet: {stateful_set: {}}": "the whole file: remediation.targetRef.kind is Deployment: name the "
    "fleet's, StatefulSet",
    "fleet: {stateful_set: {}, deployment: {a: 1}}": "fleet: deployment is a patch of what a StatefulSet "
    "stands for",
    "load: []": "load: ",
    "load: [{clients: 1, lengths: spred}]": "load[0].lengths: no lengths named 'spred'",
    "load: [{lengths: spread}]": "load[0]: give clients for a closed loop or rate",
    "load: [{clients: 1, lengths: 8+8, begins: later}]": "load[0].begins: 'later' is no moment: write a "
    "duration such as 30s, or one of",
    "limits: {run: 90}": "limits.run: 90 has no unit: write a duration such as 90s or 2m",
    "remediation: {mode: Automatic}": "remediation",
    "incidents: [{at: 5s, do: dance}]": "incidents[0]: input tag 'dance' found using 'do' does not match any "
    "of the expected",
    "incidents: [{at: 5s, do: kill, colour: red}]": "incidents[0].colour: there is no such field",
    "incidents: [{at: 5s, do: devices, series: {X: 1}}]": "the whole file: incidents change devices and "
    "fleet.devices names no series",
    "fleet: {device_memory: true}": "fleet: device_memory is that of a GPU: add "
    "environment.LAB_DEVICE_MEMORY_MIB",
    "fleet: {device_memory: true, environment: {LAB_DEVICE_MEMORY_MIB: '100'}, "
    "devices: {DCGM_FI_DEV_FB_FREE: 1}}": "fleet: device_memory reports what devices names too: remove "
    "DCGM_FI_DEV_FB_*",
    "evaluation: {samples: 0}": "evaluation.samples: input should be greater than or equal to 1 (it is 0)",
    "evaluation: {prompt_tokens: 1900}": "the whole file: evaluation asks for 2100 tokens and max-model-len "
    "is 2048",
    "evaluation: {}\nfleet: {engine: vllm}": "the whole file: only the lab engine knows needles: remove "
    "evaluation, or use engine",
    "  writes: none": "expect: moves are writes: remove moves, or use writes: any",
    "  ratios: {ttft: {at_most: 1}}": "expect.ratios: there is no figure ttft: use one of",
    "  ratios: {ttft_p95: {}}": "expect.ratios.ttft_p95: give at_least or at_most",
    "title: again": "no YAML: while constructing a mapping",
    "like: hot": "like: hot is like this one: name another",
    "like: hut": "like: there is no scenario hut: did you mean hot?",
}
"""What is said of a line at the end of a good file."""
INSTEAD = {
    ("title: a play\n", ""): "title: missing: add it",
    ("twin", "twim"): "twim: there is no such field: did you mean twin?",
    ("FleetWideDemand", "Demand"): "expect.branch: input should be 'TargetFound'",
    ("FlagStep", "FlagStop"): "expect.moves[0].kind: there is no step FlagStop: use one of",
    ("maxNumSeqs", "maxSeqs"): "expect.moves[0].knob: input should be",
    ("  verdicts: [Recovered]\n", ""): "expect: moves are of runs, and verdicts does not say",
    (GOOD, "[1]"): "begin with a field, such as title",
    (GOOD, "title: ["): "no YAML: while parsing",
}
"""What is said where a part of a good file is another."""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        *((f"{GOOD}{added}\n", message) for added, message in ADDED.items()),
        *((GOOD.replace(*change), message) for change, message in INSTEAD.items()),
    ],
)
def test_a_wrong_file_is_answered_with_file_field_and_fix(tmp_path, put, text, message):
    put("hot", text)

    (found,) = problems(tmp_path)

    assert found.startswith(f"hot.yaml: {message}")


def test_all_that_is_wrong_with_all_files_is_listed_at_once(tmp_path, put):
    put("hot", GOOD.replace("title: a play\n", "") + "fleet: {replicas: 0}\n")
    put("calm", "title: nothing\n")

    with pytest.raises(ScenarioInvalid) as refused:
        read_all(tmp_path)

    assert [each.partition(" ")[0] for each in refused.value.problems] == [
        "calm.yaml:",
        "hot.yaml:",
        "hot.yaml:",
    ]


def test_every_scenario_has_a_twin_or_is_one(tmp_path, put):
    put("hot", GOOD)
    put("calm", CALM)
    assert [each.name for each in read_all(tmp_path)] == ["calm", "hot"]

    put("lone", GOOD.replace("twin: calm\n", ""))
    put("odd", GOOD.replace("calm", "clam"))

    with pytest.raises(ScenarioInvalid) as refused:
        read_all(tmp_path)
    assert refused.value.problems == (
        "lone.yaml: twin: missing: name the scenario that is nearly the same and must end otherwise",
        "odd.yaml: twin: there is no scenario clam: did you mean calm?",
    )


def test_every_scenario_of_the_lab_can_be_played():
    found = read_all()

    assert {each.name for each in found} == set(names())
    assert len(listed(found).splitlines()) == len(found)


@pytest.mark.parametrize("name", names())
def test_the_objects_of_every_scenario_are_whole(name):
    made, fleet = {each["kind"]: each for each in objects(read(name), "image")}, read(name).fleet

    assert list(made)[-1] == "KVRemediation"
    assert all({"apiVersion", "kind", "metadata"} <= each.keys() for each in made.values())
    spec = made[fleet.kind]["spec"]
    template = spec["template"] if fleet.groups is None else spec["leaderWorkerTemplate"]["leaderTemplate"]
    container, *others = template["spec"]["containers"]
    assert all(isinstance(each, str) for each in container["args"])
    assert len(others) == fleet.plain


def test_flags_become_a_command_line_and_patches_are_taken_over(tmp_path, put):
    flags = "{max-num-seqs: 8, enforce-eager: true, block-size: null, watermark: 0.01}"
    patches = "deployment: {metadata: {annotations: {a: b}}}, container: {resources: {limits: {memory: 1Gi}}}"
    put("hot", f"{GOOD}fleet: {{flags: {flags}, {patches}}}\n")

    made = workload(read("hot", tmp_path).fleet, "image")

    assert made["metadata"]["annotations"] == {"a": "b"}
    (container,) = made["spec"]["template"]["spec"]["containers"]
    assert container["resources"]["limits"] == {"memory": "1Gi", "nvidia.com/gpu": "1"}
    args = container["args"]
    assert args[:2] == ["serve", "lab/model"]
    assert (args[args.index("--max-num-seqs") + 1], args[args.index("--watermark") + 1]) == ("8", "0.01")
    assert ("--enforce-eager" in args, "--block-size" in args) == (True, False)


def test_the_leaders_of_groups_are_the_engines_and_no_service_selects_a_worker(tmp_path, put):
    kind = "remediation: {targetRef: {kind: LeaderWorkerSet}}\n"
    groups = "groups: {spec: {startupPolicy: LeaderReady}}"
    put("grouped", f"{GOOD}{kind}fleet: {{plain: true, {groups}}}\n")

    front, made, remedied = objects(read("grouped", tmp_path), "image")

    assert [front["kind"], made["kind"], remedied["kind"]] == ["Service", "LeaderWorkerSet", "KVRemediation"]
    assert made["spec"]["startupPolicy"] == "LeaderReady"
    assert "selector" not in made["spec"]
    templates = made["spec"]["leaderWorkerTemplate"]
    leader, worker = (templates[f"{each}Template"]["metadata"]["labels"] for each in ("leader", "worker"))
    assert front["spec"]["selector"].items() <= leader.items()
    assert not front["spec"]["selector"].items() <= worker.items()


def test_what_leads_requests_stands_in_place_of_the_service(tmp_path, put):
    put("older", f"{GOOD}fleet: {{plain: true, pool: v1alpha2}}\n")
    put("routed", f"{GOOD}fleet: {{plain: true, router: {{served-by: ours}}}}\n")
    older, routed = ([*objects(read(name, tmp_path), "image")] for name in ("older", "routed"))

    assert [each["kind"] for each in older] == ["InferencePool", "Deployment", "KVRemediation"]
    assert older[0]["spec"]["selector"] == {"app": "inference-llm"}
    assert [each["kind"] for each in routed] == ["Deployment", "KVRemediation"]
    labels = {"app": "inference-llm", "served-by": "ours"}
    assert routed[0]["spec"]["template"]["metadata"]["labels"] == labels
    assert routed[0]["spec"]["selector"]["matchLabels"] == labels, "the ReplicaSet's own, as everywhere"


def test_a_stateful_set_stands_in_place_of_the_deployment_with_its_own_service(tmp_path, put):
    kind = "remediation: {targetRef: {kind: StatefulSet}}\n"
    patch = "{spec: {podManagementPolicy: Parallel}}"
    put("held", f"{GOOD}{kind}fleet: {{plain: true, stateful_set: {patch}}}\n")
    governing, service, made, _ = objects(read("held", tmp_path), "image")

    assert (made["kind"], made["spec"]["podManagementPolicy"]) == ("StatefulSet", "Parallel")
    assert "strategy" not in made["spec"]
    assert made["spec"]["serviceName"] == governing["metadata"]["name"] == "inference-llm-headless"
    assert governing["spec"]["clusterIP"] == "None"
    labels = made["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"] == governing["spec"]["selector"] == labels == {"app": "inference-llm"}


def test_each_rank_has_a_port_that_the_pool_leads_to_and_the_probe_asks_all_of_them():
    pool, made, _ = objects(read("two-ranks"), "image")

    container = made["spec"]["template"]["spec"]["containers"][0]
    assert [each["number"] for each in pool["spec"]["targetPorts"]] == [8080, 8081]
    assert [each["containerPort"] for each in container["ports"]] == [8080, 8081]
    assert container["readinessProbe"]["httpGet"]["port"] == 9256
    assert "--data-parallel-multi-port-external-lb" in container["args"]


def test_a_fleet_in_waves_has_room_for_one():
    assert [read(name).gpus for name in ("waves", "waves-not-compared", "slow-start")] == [25, 10, 9]


def test_a_fleet_that_is_recreated_has_no_numbers_of_a_rolling_update():
    assert workload(read("recreate").fleet, "image")["spec"]["strategy"] == {"type": "Recreate"}


def test_an_evaluation_is_a_suspended_cron_job_that_runs_from_the_engines_image(tmp_path, put):
    put("hot", f"{GOOD}evaluation: {{samples: 50, prompt_tokens: 1200}}\n")

    made = {each["kind"]: each for each in objects(read("hot", tmp_path), "image")}["CronJob"]

    assert (made["metadata"]["name"], made["spec"]["suspend"]) == ("accuracy", True)
    pod = made["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    env = {each["name"]: each["value"] for each in container["env"]}
    assert container["image"] == "image"
    assert env == {"SAMPLES": "50", "PROMPT_TOKENS": "1200", "OUTPUT_TOKENS": "200", "CONCURRENCY": "16"}
    assert find_spec(".".join(container["command"][2:])) is not None
    assert Settings.from_environ({**env, "OPENAI_BASE_URL": "http://10.0.0.1:8000"}).samples == 50
    assert "terminationMessagePath" not in container
    assert (pod["restartPolicy"], pod["automountServiceAccountToken"]) == ("Never", False)


def test_every_pod_is_as_restricted_as_its_namespace(tmp_path, put):
    put("hot", f"{GOOD}evaluation: {{}}\n")
    scenario = read("hot", tmp_path)
    made = {each["kind"]: each["spec"] for each in objects(scenario, "image")}

    for template in (made["Deployment"]["template"], made["CronJob"]["jobTemplate"]["spec"]["template"]):
        pod = template["spec"]
        assert pod["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
        (container,) = pod["containers"]
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    labels = namespace("hot", scenario.fleet.engine)["metadata"]["labels"]
    assert labels == {"pod-security.kubernetes.io/enforce": "restricted"}


def test_the_defaults_of_an_evaluation_are_those_of_its_program_and_not_every_fleet_has_one(tmp_path, put):
    put("hot", f"{GOOD}evaluation: {{}}\n")
    put("bare", GOOD)

    found = read("hot", tmp_path).evaluation

    own = Settings.from_environ({"OPENAI_BASE_URL": "http://10.0.0.1:8000"})
    assert {name: getattr(own, name) for name in found.model_dump()} == found.model_dump()
    assert "CronJob" not in {each["kind"] for each in objects(read("bare", tmp_path), "image")}


def test_the_engines_image_is_made_of_the_evaluation_too():
    recipe = engine_recipe()

    assert [path.name for path in recipe.inputs] == ["engine", "evaluation"]
    copied = [line.split()[1] for line in recipe.containerfile.read_text().splitlines() if "COPY" in line]
    assert {"lab/engine", "lab/evaluation"} <= {*copied}


def test_real_vllm_gets_what_it_needs_and_nothing_else_changes():
    variant = scenario("thrash", "vllm")
    real = variant.fleet
    pod = workload(real, "image")["spec"]["template"]["spec"]
    (container,) = pod["containers"]

    assert (variant.name, real.engine) == ("thrash-vllm", Engine.VLLM)
    assert container["args"] == arguments(real)
    assert {each["name"] for each in pod["volumes"]} == {each["name"] for each in container["volumeMounts"]}
    assert all(each["readOnly"] for each in container["volumeMounts"] if each["name"] not in ("shm", "tmp"))
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert "volumes" not in workload(scenario("thrash", "lab").fleet, "image")["spec"]["template"]["spec"]


@pytest.mark.parametrize(
    ("name", "engine", "message"),
    [
        ("thrush", "lab", "there is no scenario thrush: did you mean thrash?"),
        ("thrash", "sglang", "ENGINE=sglang: there are lab, vllm"),
        ("healthy", "vllm", "SCENARIO=healthy has no variant with ENGINE=vllm; thrash has"),
    ],
)
def test_the_demo_refuses_by_name_what_there_is_not(name, engine, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        scenario(name, engine)


def test_the_page_for_authors_names_every_field():
    page = PAGE.read_text()

    missing = {
        field
        for part in PARTS
        for field in part.model_fields
        if field != "name" or part is not Scenario
        if f"`{field}`" not in page
    }
    assert missing == set()
