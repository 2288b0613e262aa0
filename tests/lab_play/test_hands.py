"""What a scenario says that happens does happen: on a real API server, and beside a real Prometheus."""

import copy
import urllib.request
from contextlib import suppress
from typing import Any

import pytest

from lab.cluster.api import ApiError, read_manifests, until
from lab.cluster.light import LightCluster
from lab.cluster.machine import ROOT
from lab.installation import NAMESPACE as OPERATOR
from lab.play.hands import FREE, LABELS, USED, Exporter, Hands
from lab.play.manifests import deployment, objects
from lab.play.schema import FLEET, Incident, Scenario
from lab.play.stage import OWNER, clear, vacate
from lab.play.witness import EDITOR, managers
from lab.prometheus import Prometheus
from lab_play.plays import a_scenario

XID = "DCGM_FI_DEV_XID_ERRORS"
KINDS = ("kvremediations", "kvapprovals")
FLEET_OF_TWO = {"replicas": 2, "flags": {"max-num-seqs": 64}, "devices": {XID: 0}}


@pytest.fixture
def exporter():
    with Exporter("127.0.0.1") as running:
        yield running


def is_served(light: LightCluster, kind: str) -> bool:
    with suppress(LookupError):
        return bool(light.api.resource(kind))
    return False


@pytest.fixture
def fleet(light, namespace, exporter) -> tuple[Hands, str]:
    """A fleet of two on the light tier as its owner applied it, and who acts on it."""
    scenario = a_scenario(fleet=FLEET_OF_TWO)
    for kind in KINDS:
        light.apply(read_manifests(ROOT / "crds" / f"kvmedic.io_{kind}.yaml"))
    until(lambda: is_served(light, "KVApproval"), what="the CRDs are served")
    for each in objects(scenario, "image"):
        light.api.apply(each, namespace, manager=OWNER)
    until(lambda: len(light.api.list("Pod", namespace)) == 2, what="two pods")
    return Hands(light.api, namespace, scenario.fleet, "image", exporter), namespace


def happening(**incident: Any) -> Incident:
    """The incident of a file."""
    held: Scenario = a_scenario(fleet=FLEET_OF_TWO, incidents=[{"at": "0s", **incident}])
    return held.incidents[0]


def test_an_edit_is_made_under_the_name_of_a_person(light, fleet):
    hands, namespace = fleet

    told = hands.carry_out(happening(do="patch", kind="Deployment", patch={"spec": {"paused": True}}), "")

    edited = light.api.get("Deployment", FLEET, namespace)
    assert edited["spec"]["paused"] is True
    assert EDITOR in managers(edited)
    assert told == "Deployment/inference-llm is edited by hand"


def test_the_first_replica_is_deleted_and_no_other(light, fleet):
    hands, namespace = fleet
    first, second = sorted(pod["metadata"]["name"] for pod in light.api.list("Pod", namespace))
    hands.meet([first, second])

    hands.carry_out(happening(do="kill"), "")

    def names() -> set[str]:
        pods = light.api.list("Pod", namespace)
        return {pod["metadata"]["name"] for pod in pods if "deletionTimestamp" not in pod["metadata"]}

    until(lambda: first not in names() and second in names(), what="the first one is gone")


def test_the_owner_applies_what_stood_there_or_another_revision(light, fleet):
    hands, namespace = fleet
    before = light.api.get("Deployment", FLEET, namespace)["spec"]["template"]
    changed = copy.deepcopy(deployment(a_scenario(fleet=FLEET_OF_TWO).fleet, "image"))
    changed["spec"]["template"]["spec"]["containers"][0]["args"] += ["--watermark", "0.01"]
    light.api.apply(changed, namespace, manager="kvmedic")

    hands.carry_out(happening(do="apply", manager="kubectl"), "")
    assert light.api.get("Deployment", FLEET, namespace)["spec"]["template"] == before

    hands.carry_out(happening(do="apply", flags={"max-num-seqs": 128}), "")
    (container,) = light.api.get("Deployment", FLEET, namespace)["spec"]["template"]["spec"]["containers"]
    assert container["args"][-1] == "128"


def test_the_plan_that_is_shown_is_approved(light, fleet):
    hands, namespace = fleet

    hands.carry_out(happening(do="approve"), "0123456789abcdef")

    assert hands.carry_out(happening(do="approve"), "") == "no plan is shown that could be approved"
    (approval,) = light.api.list("KVApproval", namespace)
    assert approval["spec"] == {"remediation": FLEET, "digest": "0123456789abcdef"}


def test_the_operator_is_stopped_as_a_whole_and_goes_on(light, fleet):
    hands, _ = fleet
    light.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": OPERATOR}})

    hands.carry_out(happening(do="stop"), "")
    hands.carry_out(happening(do="stop"), "")
    assert light.api.get("ConfigMap", "kvmedic-stop", OPERATOR)

    hands.carry_out(happening(do="resume"), "")
    hands.resume()
    with pytest.raises(ApiError, match="not found"):
        light.api.get("ConfigMap", "kvmedic-stop", OPERATOR)


def test_an_object_is_created(light, fleet):
    hands, namespace = fleet
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "few"},
        "spec": {"hard": {"pods": "2"}},
    }

    hands.carry_out(happening(do="create", object=quota), "")

    assert light.api.get("ResourceQuota", "few", namespace)["spec"]["hard"] == {"pods": "2"}


def test_a_place_is_cleared_of_everything_that_a_play_left(light, fleet):
    _, namespace = fleet
    light.api.patch("KVRemediation", FLEET, {"metadata": {"finalizers": ["kvmedic.io/run"]}}, namespace)

    clear(light.api, namespace)
    clear(light.api, namespace)

    left = {
        kind: light.api.list(kind, namespace) for kind in ("KVRemediation", "Deployment", "Service", "Pod")
    }
    assert left == {"KVRemediation": [], "Deployment": [], "Service": [], "Pod": []}


def test_what_an_earlier_play_left_standing_is_removed(light, fleet):
    _, namespace = fleet
    assert light.api.list("Deployment", namespace)

    vacate(light.api)

    left = {kind: light.api.list(kind, namespace) for kind in ("KVRemediation", "Deployment", "Pod")}
    assert left == {"KVRemediation": [], "Deployment": [], "Pod": []}


def test_gpus_are_told_of_as_prometheus_labels_those_of_another_pod(exporter):
    hands = Hands(None, "serving", a_scenario(fleet=FLEET_OF_TWO).fleet, "image", exporter)  # type: ignore[arg-type]
    hands.meet(["a", "b"])
    hands.tell_devices(["a", "b"])
    hands.carry_out(happening(do="devices", on="others", series={XID: 79}), "")

    with Prometheus(static_targets={exporter.address: LABELS}, scrape_interval="1s") as prometheus:
        found = prometheus.await_samples(XID, count=2)

    seen = {
        (each["metric"]["exported_namespace"], each["metric"]["exported_pod"]): each["value"][1]
        for each in found
    }
    assert seen == {("serving", "a"): "0", ("serving", "b"): "79"}
    assert {each["metric"]["pod"] for each in found} == {LABELS["pod"]}


def test_memory_that_is_measured_is_told_of_each_pod_of_the_namespace(exporter):
    hands = Hands(None, "ours", a_scenario().fleet, "image", exporter)  # type: ignore[arg-type]
    before = hands.device_memory()

    exporter.measure("ours", {"a": {USED: 160, FREE: 40}})
    exporter.measure("theirs", {"b": {USED: 1, FREE: 1}})

    assert (before, hands.device_memory()) == ({}, {"a": 160})


def test_a_new_replicas_gpu_is_well_and_one_that_is_gone_has_none(exporter):
    hands = Hands(None, "serving", a_scenario(fleet=FLEET_OF_TWO).fleet, "image", exporter)  # type: ignore[arg-type]
    hands.meet(["a", "b"])
    hands.tell_devices(["a", "b"])
    hands.carry_out(happening(do="devices", series={XID: 79}), "")
    exporter.meet("another", ["z"], {XID: 31})

    hands.tell_devices(["b", "c"])

    told = urllib.request.urlopen(f"http://{exporter.address}/metrics", timeout=5).read().decode()
    assert f'{XID}{{gpu="0",UUID="GPU-c",namespace="serving",pod="c"}} 0' in told
    assert ('pod="a"' in told, 'pod="z"' in told) == (False, True)
