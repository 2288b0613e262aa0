"""Whether a change could begin is a condition of a calm fleet, and `kvmedic doctor` says the same."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from worlds.command_line import kvmedic
from worlds.world import World

ELIGIBLE = ("True", "Eligible")
NOWHERE = ("--prometheus", "http://127.0.0.1:9")


@pytest.fixture
def calm(a_world: Callable[..., World]) -> World:
    """A fleet without trouble, whose operator has looked at it."""
    world = a_world()
    world.write_script(old="recovered", new="recovered", revision=world.revision())
    world.start()
    world.wait(lambda: world.condition("Eligible") == ELIGIBLE, 60, "the condition")
    return world


def message(world: World) -> str:
    found = (each for each in world.status()["conditions"] if each["type"] == "Eligible")
    return str(next(found)["message"])


def test_a_calm_fleet_is_eligible_until_somebody_stands_in_the_way(calm):
    calm.kubectl("rollout", "pause", "deployment/llm")

    calm.wait(lambda: calm.condition("Eligible") == ("False", "NotEligible"), 60, "the condition")
    paused = message(calm)
    calm.kubectl("rollout", "resume", "deployment/llm")
    calm.wait(lambda: calm.condition("Eligible") == ELIGIBLE, 60, "the condition")

    assert "rollout: someone paused it: kubectl rollout resume deployment/llm" in paused


def test_the_status_of_a_calm_fleet_is_written_no_more_once_it_says_so(calm):
    version = calm.resource()["metadata"]["resourceVersion"]
    asked = calm.proxy.reads.count("/apis/authorization.k8s.io/v1/selfsubjectrulesreviews")

    calm.wait(
        lambda: calm.proxy.reads.count("/apis/authorization.k8s.io/v1/selfsubjectrulesreviews") > asked,
        60,
        "another examination",
    )

    assert calm.resource()["metadata"]["resourceVersion"] == version


def test_the_command_says_the_same_of_the_cluster_and_writes_nothing(calm):
    calm.kubectl("rollout", "pause", "deployment/llm")
    calm.wait(lambda: calm.condition("Eligible") == ("False", "NotEligible"), 60, "the condition")
    calm.kill()
    before = calm.resource()["metadata"]["resourceVersion"]

    done = kvmedic(calm, "doctor", "deploy/llm", *NOWHERE, "--since", "1h", "-o", "json")

    [found] = json.loads(done.stdout)["targets"]
    failed = {each["name"]: each for each in found["checks"] if each["passed"] is False}
    assert done.returncode == 1, done.stderr
    assert failed["rollout"]["reason"] == "TargetPaused"
    assert failed["rollout"]["saw"] in message(calm)
    unknown = [each["name"] for each in found["checks"] if each["result"] == "Unknown"]
    assert "metrics" in unknown
    assert (found["replay"]["complete"], found["replay"]["runs"]) == (False, [])
    assert found["replay"]["ended"] == "the source cannot be reached; check url"
    assert calm.resource()["metadata"]["resourceVersion"] == before


def test_the_command_knows_the_label_that_the_operator_asks_of_namespaces(calm):
    asks = "namespaces: {requireLabel: example.com/heal=true}"
    named = {"name": "kvmedic-config", "labels": {"app.kubernetes.io/name": "kvmedic"}}
    calm.cluster.api.create(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": named, "data": {"config.yaml": asks}},
        calm.namespace,
    )
    own = calm.directory / "own.yaml"
    own.write_text(f"process: {{namespace: {calm.namespace}}}")
    where = {"KUBECONFIG": str(calm.cluster.kubeconfig), "KVMEDIC_CONFIG": str(own)}

    def failed() -> list[str]:
        done = kvmedic(calm, "doctor", "deploy/llm", *NOWHERE, "-o", "json", **where)
        [found] = json.loads(done.stdout)["targets"]
        return [each["fix"] for each in found["checks"] if each["reason"] == "NamespaceNotLabelled"]

    [fix] = failed()
    assert fix == f"kubectl label namespace {calm.namespace} example.com/heal=true"
    calm.kubectl(*fix.split()[1:])
    assert failed() == []


def test_every_deployment_of_the_cluster_that_starts_an_engine_is_listed(calm):
    done = kvmedic(calm, "doctor", "-A", *NOWHERE, "-o", "json")

    found = {(each["namespace"], each["target"]) for each in json.loads(done.stdout)["targets"]}
    assert (calm.namespace, "llm") in found
    assert done.returncode in (1, 2), "no metrics answer, so nothing is sure to be eligible"


def test_init_prints_a_resource_that_the_api_server_takes(calm):
    done = kvmedic(calm, "init", "deploy/llm")

    assert done.returncode == 0, done.stderr
    assert "looks after deploy/llm already" in done.stderr
    file = calm.directory / "kvr.yaml"
    # The resource of the world has the name, and its targetRef is immutable.
    file.write_text(done.stdout.replace("name: llm", "name: fresh", 1))
    assert "fresh" in calm.kubectl(
        "apply", "--dry-run=server", "--validate=strict", "-o", "name", "-f", str(file)
    )


def test_a_deployment_that_is_not_there_fails_by_its_name(calm):
    done = kvmedic(calm, "doctor", "deploy/nobody", *NOWHERE)

    assert done.returncode == 1
    assert f"there is no Deployment nobody in namespace {calm.namespace}" in done.stdout
