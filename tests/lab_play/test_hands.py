"""What a scenario says that happens does happen: on a real API server, and beside a real Prometheus."""

import copy
import hashlib
import urllib.request
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from kvmedic.metrics.series import PodKey
from kvmedic.model.devices import Vital
from kvmedic.model.evidence import Measured
from lab.cluster.api import ApiError, read_manifests, until
from lab.cluster.light import LightCluster
from lab.cluster.machine import ROOT
from lab.images import write_program_image
from lab.installation import NAMESPACE as OPERATOR
from lab.play.hands import FREE, LABELS, USED, Exporter, Hands
from lab.play.manifests import objects, workload
from lab.play.picker import GROUPS, ensure_definitions, pool_of
from lab.play.registry import Registry
from lab.play.schema import FLEET, Incident, Scenario
from lab.play.stage import OWNER, clear, vacate
from lab.play.witness import EDITOR, managers
from lab.prometheus import Prometheus
from lab_play.plays import a_scenario
from worlds.scripted_fleet import source

XID = "DCGM_FI_DEV_XID_ERRORS"
KINDS = ("kvremediations", "kvapprovals")
REFUSES = {"at": "0s", "do": "registry", "refuses": True}
FLEET_OF_TWO = {"replicas": 2, "flags": {"max-num-seqs": 64}, "devices": {XID: 0}}


@pytest.fixture
def exporter():
    with Exporter("127.0.0.1") as running:
        yield running


@pytest.fixture
def fleet(light, namespace, exporter) -> tuple[Hands, str]:
    """A fleet of two on the light tier as its owner applied it, and who acts on it."""
    scenario = a_scenario(fleet=FLEET_OF_TWO)
    for kind in KINDS:
        light.apply(read_manifests(ROOT / "crds" / f"kvmedic.io_{kind}.yaml"))
    until(lambda: all(map(light.api.serves, ("KVRemediation", "KVApproval"))), what="the CRDs are served")
    for each in objects(scenario, "image"):
        light.api.apply(each, namespace, manager=OWNER)
    until(lambda: len(light.api.list("Pod", namespace)) == 2, what="two pods")
    return Hands(light.api, namespace, scenario.fleet, "image", exporter), namespace


def happening(**incident: Any) -> Incident:
    """The incident of a file."""
    held: Scenario = a_scenario(fleet=FLEET_OF_TWO, incidents=[{"at": "0s", **incident}])
    return held.incidents[0]


def test_people_edit_kill_approve_create_and_stop_the_operator_as_a_whole(light, fleet):
    hands, namespace = fleet
    first, second = sorted(pod["metadata"]["name"] for pod in light.api.list("Pod", namespace))
    hands.meet([first, second])

    line = hands.carry_out(happening(do="patch", kind="Deployment", patch={"spec": {"paused": True}}), "")
    edited = light.api.get("Deployment", FLEET, namespace)
    assert edited["spec"]["paused"] is True
    assert EDITOR in managers(edited), "under the name of a person"
    assert line == "Deployment/inference-llm is edited by hand"

    hands.carry_out(happening(do="kill"), "")

    def names() -> set[str]:
        pods = light.api.list("Pod", namespace)
        return {pod["metadata"]["name"] for pod in pods if "deletionTimestamp" not in pod["metadata"]}

    until(lambda: first not in names() and second in names(), what="the first one is gone, and no other")

    hands.carry_out(happening(do="approve"), "0123456789abcdef")
    assert hands.carry_out(happening(do="approve"), "") == "no plan is shown that could be approved"
    (approval,) = light.api.list("KVApproval", namespace)
    assert approval["spec"] == {"remediation": FLEET, "digest": "0123456789abcdef"}

    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "few"}}
    hands.carry_out(happening(do="create", object={**quota, "spec": {"hard": {"pods": "2"}}}), "")
    assert light.api.get("ResourceQuota", "few", namespace)["spec"]["hard"] == {"pods": "2"}

    light.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": OPERATOR}})
    for _ in range(2):
        hands.carry_out(happening(do="stop"), "")
    assert light.api.get("ConfigMap", "kvmedic-stop", OPERATOR)
    hands.carry_out(happening(do="resume"), "")
    hands.resume()
    with pytest.raises(ApiError, match="not found"):
        light.api.get("ConfigMap", "kvmedic-stop", OPERATOR)


@pytest.mark.xdist_group("operator")
def test_the_operator_is_killed_and_started_again(light):
    hands = Hands(light.api, "any", a_scenario().fleet, "image", None)  # type: ignore[arg-type]
    light.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": OPERATOR}})
    light.api.apply(an_operator(), OPERATOR)
    until(lambda: light.api.list("Pod", OPERATOR), what="an operator")
    hands.carry_out(happening(do="crash"), "")
    until(lambda: not light.api.list("Pod", OPERATOR), what="no operator")
    assert light.api.get("Deployment", "kvmedic", OPERATOR)["spec"]["replicas"] == 0
    hands.carry_out(happening(do="restart"), "")
    assert light.api.get("Deployment", "kvmedic", OPERATOR)["spec"]["replicas"] == 1
    light.api.delete("Deployment", "kvmedic", OPERATOR)


@pytest.mark.xdist_group("operator")
@pytest.mark.parametrize("installs", [True, False], ids=["by an incident", "where the play ends before"])
def test_the_release_is_installed_again_with_the_values_that_it_had(
    light: LightCluster, monkeypatch: pytest.MonkeyPatch, installs: bool
) -> None:
    actions: list[object] = []
    module = "lab.play.hands"
    monkeypatch.setattr(f"{module}.upgrade", lambda: actions.append("upgrade"))
    monkeypatch.setattr(f"{module}.roll_back", lambda: actions.append("roll back"))
    monkeypatch.setattr(f"{module}.take_away", lambda: {"replicas": 1})
    light.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": OPERATOR}})

    def install_again(values: dict[str, Any]) -> None:
        actions.append(values)
        light.api.apply(an_operator(), OPERATOR)

    monkeypatch.setattr(f"{module}.install_again", install_again)
    hands = Hands(light.api, "any", a_scenario().fleet, "image", None)  # type: ignore[arg-type]
    for action in ("upgrade", "roll-back", "uninstall", *(["install"] if installs else [])):
        hands.carry_out(happening(do="release", action=action), "")
    hands.start_operator()

    assert actions == ["upgrade", "roll back", {"replicas": 1}]
    light.api.delete("Deployment", "kvmedic", OPERATOR)


def an_operator() -> dict[str, Any]:
    """A Deployment with the name and the labels of the chart's."""
    labels = {"app.kubernetes.io/instance": "kvmedic"}
    pod = {"containers": [{"name": "kvmedic", "image": "image"}]}
    template = {"metadata": {"labels": labels}, "spec": pod}
    spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "kvmedic"}, "spec": spec}


def test_the_real_definitions_take_the_pools_of_both_groups(light, namespace):
    ensure_definitions(light.api.access)

    for kind, version in GROUPS.items():
        made = pool_of(kind, {"app": FLEET}, (8080,))
        light.api.apply(made, namespace)
        path = light.api.resource("InferencePool", version).path(namespace, FLEET)
        assert light.api.request("GET", path)["spec"]["selector"] == made["spec"]["selector"]


def test_a_registry_serves_an_archive_and_refuses_by_name(tmp_path):
    program, archive = tmp_path / "program", tmp_path / "image.tar"
    program.write_bytes(b"a program")
    write_program_image(program, "localhost/lab/program:1", archive)

    with Registry(archive) as registry, httpx.Client(trust_env=False) as http:
        image, other = registry.reference("mine/vllm", "v1"), registry.reference("theirs/vllm", "v1")

        def manifest(reference: str) -> httpx.Response:
            host, _, rest = reference.partition("/")
            return http.get(f"http://{host}/v2/{rest.replace(':', '/manifests/')}")

        served = manifest(image).json()
        for part in (served["config"], *served["layers"]):
            blob = http.get(f"http://{image.partition('/')[0]}/v2/mine/vllm/blobs/{part['digest']}").content
            assert (f"sha256:{hashlib.sha256(blob).hexdigest()}", len(blob)) == (part["digest"], part["size"])
        hands = Hands(None, "mine", a_scenario().fleet, image, None, registry)  # type: ignore[arg-type]
        held = a_scenario(fleet={**FLEET_OF_TWO, "registry": True}, incidents=[REFUSES])
        hands.carry_out(held.incidents[0], "")
        assert [manifest(each).status_code for each in (image, other)] == [429, 200]
        registry.refuse(image, refuses=False)
        assert manifest(image).status_code == 200
        assert http.get(f"http://{image.partition('/')[0]}/v2/mine/vllm/blobs/sha256:0").status_code == 404


def test_the_owner_applies_what_stood_there_or_another_revision(light, fleet):
    hands, namespace = fleet
    before = light.api.get("Deployment", FLEET, namespace)["spec"]["template"]
    changed = copy.deepcopy(workload(a_scenario(fleet=FLEET_OF_TWO).fleet, "image"))
    changed["spec"]["template"]["spec"]["containers"][0]["args"] += ["--watermark", "0.01"]
    light.api.apply(changed, namespace, manager="kvmedic")

    hands.carry_out(happening(do="apply", manager="kubectl"), "")
    assert light.api.get("Deployment", FLEET, namespace)["spec"]["template"] == before

    hands.carry_out(happening(do="apply", flags={"max-num-seqs": 128}), "")
    (container,) = light.api.get("Deployment", FLEET, namespace)["spec"]["template"]["spec"]["containers"]
    assert container["args"][-1] == "128"


def left(light: LightCluster, namespace: str) -> list[str]:
    kinds = ("KVRemediation", "Deployment", "Service", "Pod")
    return [kind for kind in kinds if light.api.list(kind, namespace)]


def test_a_place_is_cleared_of_everything_that_a_play_left_standing(light, fleet):
    _, namespace = fleet
    light.api.patch("KVRemediation", FLEET, {"metadata": {"finalizers": ["kvmedic.io/run"]}}, namespace)

    clear(light.api, namespace)
    clear(light.api, namespace)
    assert left(light, namespace) == []

    light.api.apply(list(objects(a_scenario(fleet=FLEET_OF_TWO), "image")), namespace, manager=OWNER)
    vacate(light.api)
    assert left(light, namespace) == []


async def test_gpus_are_labelled_as_those_of_another_pod_and_the_operator_reads_their_memory(exporter):
    hands = Hands(None, "serving", a_scenario(fleet=FLEET_OF_TWO).fleet, "image", exporter)  # type: ignore[arg-type]
    hands.meet(["a", "b"])
    hands.add_devices(["a", "b"])
    hands.carry_out(happening(do="devices", on="others", series={XID: 79}), "")

    exporter.measure("serving", {"gone": {USED: 92, FREE: 8}})
    exporter.measure("serving", {"a": {USED: 92, FREE: 8}})
    exporter.measure("another", {"a": {USED: 1, FREE: 99}})

    with Prometheus(static_targets={exporter.address: LABELS}, scrape_interval="1s") as prometheus:
        found = prometheus.await_samples(XID, count=2)
        prometheus.await_samples(USED, count=2)
        looked = source(prometheus.url, at=datetime.now(UTC) + timedelta(seconds=2), resolution="1s")
        memory = (await looked.devices([PodKey("serving", "a")], timedelta(minutes=1)))["a"]
        looked.close()

    seen = {
        (each["metric"]["exported_namespace"], each["metric"]["exported_pod"]): each["value"][1]
        for each in found
    }
    assert seen == {("serving", "a"): "0", ("serving", "b"): "79"}
    assert {each["metric"]["pod"] for each in found} == {LABELS["pod"]}
    assert isinstance(memory, Measured)
    (device,) = memory.value
    assert device.ratio(Vital.MEMORY_IN_USE) == pytest.approx(0.92)
    assert device.value(Vital.MEMORY_FREE) == 8


def test_memory_that_is_measured_is_reported_of_each_pod_of_the_namespace(exporter):
    hands = Hands(None, "ours", a_scenario().fleet, "image", exporter)  # type: ignore[arg-type]
    before = hands.device_memory()

    exporter.measure("ours", {"a": {USED: 160, FREE: 40}})
    exporter.measure("theirs", {"b": {USED: 1, FREE: 1}})

    assert (before, hands.device_memory()) == ({}, {"a": 160})


def test_a_new_replicas_gpu_is_well_and_one_that_is_gone_has_none(exporter):
    hands = Hands(None, "serving", a_scenario(fleet=FLEET_OF_TWO).fleet, "image", exporter)  # type: ignore[arg-type]
    hands.meet(["a", "b"])
    hands.add_devices(["a", "b"])
    hands.carry_out(happening(do="devices", series={XID: 79}), "")
    exporter.meet("another", ["z"], {XID: 31})

    hands.add_devices(["b", "c"])

    page = urllib.request.urlopen(f"http://{exporter.address}/metrics", timeout=5).read().decode()
    assert f'{XID}{{UUID="GPU-c",gpu="0",namespace="serving",pod="c"}} 0.0' in page
    assert ('pod="a"' in page, 'pod="z"' in page) == (False, True)
