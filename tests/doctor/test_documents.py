"""Objects of documents: read as an API server would serve them, once they are applied."""

import asyncio
import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from kvmedic.cluster.fronts import INFERENCE_POOLS, DrainWay
from kvmedic.cluster.neighbours.pod_policies import NETWORK_POLICIES
from kvmedic.cluster.snapshot import snapshot
from kvmedic.doctor.documents import Documents, DocumentsError, as_served, documents_in, plural_of
from kvmedic.kube.objects import AUTOSCALERS, DEPLOYMENTS, PODS, REPLICA_SETS, SERVICES, Ref
from kvmedic.model.spec import RotationLabel, RotationWay, TargetRef
from worlds.documents import a_deployment, a_service

LABEL = RotationLabel("serving", "draining")
TARGET = TargetRef("Deployment", "llm", None)


def view_of(*documents: dict[str, Any]) -> Any:
    return asyncio.run(snapshot(as_served(documents, "serving"), "serving", TARGET, LABEL))


def test_a_deployment_without_pods_is_served_with_every_replica_ready_and_in_rotation():
    fleet = view_of(a_deployment(replicas=3), a_service()).fleet

    assert (fleet.ready, fleet.in_rotation, fleet.total_desired) == (3, 3, 3)
    assert fleet.observed
    assert {pod.listed_by for pod in fleet.pods} == {("Service llm",)}
    assert fleet.fields.progress_deadline_seconds == 600


def test_a_deployment_that_was_saved_with_its_pods_is_taken_as_it_is():
    served = as_served([a_deployment(replicas=2), a_service()], "serving").bodies
    saved = [each for each in served if each["kind"] != "Pod" or each["metadata"]["name"].endswith("-0")]

    fleet = view_of(*saved).fleet

    assert (fleet.ready, fleet.replicas) == (1, 2)


def test_a_strategy_that_rolls_nothing_is_not_given_numbers():
    fleet = view_of(a_deployment(strategy={"type": "Recreate"})).fleet

    assert (fleet.strategy, fleet.fields.max_surge) == ("Recreate", 0)


def test_a_service_that_selects_other_pods_lists_none():
    assert view_of(a_deployment(), a_service(app="other")).fleet.in_rotation == 0


@pytest.mark.parametrize(
    ("kind", "plural"),
    [
        ("Deployment", DEPLOYMENTS.plural),
        ("NetworkPolicy", NETWORK_POLICIES.plural),
        ("InferencePool", INFERENCE_POOLS[0].plural),
        ("HorizontalPodAutoscaler", AUTOSCALERS.plural),
    ],
)
def test_a_kind_is_found_under_its_plural(kind, plural):
    assert plural_of(kind) == plural


@pytest.mark.parametrize(
    ("version", "resource", "is_found"),
    [
        ("autoscaling/v2beta2", AUTOSCALERS, True),
        ("autoscaling/v1", AUTOSCALERS, True),
        ("other/v2", AUTOSCALERS, False),
    ],
)
def test_an_older_version_of_the_same_group_is_the_same_object(version, resource, is_found):
    body = {"apiVersion": version, "kind": "HorizontalPodAutoscaler", "metadata": {"name": "llm"}}

    assert bool(asyncio.run(Documents([body]).list(resource, "serving"))) is is_found


@pytest.mark.parametrize(
    ("selector", "is_taken"),
    [
        ("", True),
        ("app=llm", True),
        ("app=llm,tier=gpu", True),
        ("app=other", False),
        ("app!=llm", False),
        ("tier", True),
        ("!tier", False),
        ("!absent,app=llm", True),
        ("app in (other,llm)", True),
        ("app in (other)", False),
        ("app notin (other),tier=gpu", True),
        ("app notin (llm)", False),
    ],
)
def test_a_selector_takes_the_labels_that_it_would_take_on_a_server(selector, is_taken):
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "a", "labels": {"app": "llm", "tier": "gpu"}},
    }

    assert bool(asyncio.run(Documents([pod]).list(PODS, "serving", selector))) is is_taken


def test_an_object_of_another_namespace_is_not_there():
    documents = Documents([{**a_service(), "metadata": {"name": "llm", "namespace": "other"}}])

    assert asyncio.run(documents.list(SERVICES, "serving")) == []
    assert asyncio.run(documents.get(Ref(SERVICES, "other", "llm"))) is not None


def test_a_list_is_its_items_and_dates_stay_texts():
    text = """
apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: Pod, metadata: {name: a, creationTimestamp: 2026-01-01T00:00:00Z}}
- {apiVersion: v1, kind: Service, metadata: {name: b}}
---
"""
    found = documents_in(text)

    assert [each["kind"] for each in found] == ["Pod", "Service"]
    assert found[0]["metadata"]["creationTimestamp"].startswith("2026-01-01")


@pytest.mark.parametrize("text", ["{{ .Values.x }}: {", "a: [", "&a [*a]" * 3, "x: " + "[" * 4000])
def test_what_is_no_manifest_is_refused_with_a_reason(text):
    with pytest.raises(DocumentsError, match=r"\w{4,}"):
        documents_in(text)


def test_a_made_replica_took_half_the_time_that_is_waited_for_one():
    pod = view_of(a_deployment()).fleet.pods[0]

    assert pod.ready_at - pod.created_at == timedelta(minutes=5)


def test_the_made_replica_set_is_the_deployments_own():
    served = as_served([a_deployment()], "serving")

    made = asyncio.run(served.list(REPLICA_SETS, "serving", "app=llm"))

    assert [each["metadata"]["ownerReferences"][0]["uid"] for each in made] == ["Deployment/serving/llm"]


POOL = {
    "apiVersion": "inference.networking.k8s.io/v1",
    "kind": "InferencePool",
    "metadata": {"name": "llm"},
    "spec": {"targetPorts": [{"number": 8000}], "selector": {"matchLabels": {"app": "llm"}}},
}


def orphan_view(*documents: dict[str, Any], target: TargetRef = TARGET) -> Any:
    served = as_served(documents, "serving")
    return asyncio.run(snapshot(served, "serving", target, LABEL, DrainWay(RotationWay.AUTO)))


def test_replicas_behind_a_pool_alone_are_in_rotation_while_they_are_ready():
    documents = [a_deployment(replicas=2), POOL]
    served = as_served(documents, "serving").bodies
    down = json.loads(json.dumps(served))
    next(each for each in down if each["kind"] == "Pod")["status"]["conditions"] = []

    whole, halved = orphan_view(*documents).fleet, orphan_view(*down).fleet

    assert {pod.listed_by for pod in whole.pods} == {("InferencePool llm",)}
    assert (whole.in_rotation, halved.in_rotation) == (2, 1)


def test_a_pool_that_selects_other_pods_leads_none():
    other = {**POOL, "spec": {"selector": {"matchLabels": {"app": "other"}}}}

    assert orphan_view(a_deployment(), other).fleet.in_rotation == 0


def test_a_replica_that_the_pool_no_longer_takes_is_out_of_rotation():
    served = as_served([a_deployment(replicas=2), POOL], "serving").bodies
    changed = json.loads(json.dumps(served))
    next(each for each in changed if each["kind"] == "Pod")["metadata"]["labels"]["app"] = (
        "kvmedic-draining-1"
    )

    assert orphan_view(*changed).fleet.in_rotation == 1


def test_beside_a_service_its_endpoints_say_who_is_in_rotation():
    served = as_served([a_deployment(replicas=2), a_service(), POOL], "serving").bodies
    unlisted = json.loads(json.dumps(served))
    next(each for each in unlisted if each["kind"] == "EndpointSlice")["endpoints"].pop()

    assert orphan_view(*unlisted).fleet.in_rotation == 1


def test_each_port_that_a_pool_leads_to_may_be_an_engine_of_the_replica():
    ports = {**POOL, "spec": {**POOL["spec"], "targetPorts": [{"number": 8001}, {"number": 8000}]}}
    older = {
        **POOL,
        "apiVersion": "inference.networking.x-k8s.io/v1alpha2",
        "spec": {"targetPortNumber": 8200, "selector": {"app": "llm"}},
    }

    ranks, single = (orphan_view(a_deployment(), each).fleet.pods[0] for each in (ports, older))

    assert (ranks.ports, ranks.port, ranks.engine_ports) == ((8000, 8001), 8000, (8000, 8001))
    assert (single.ports, single.port) == ((8200,), 8200)


def test_ports_that_the_spec_names_count_before_those_that_a_pool_leads_to():
    ports = {**POOL, "spec": {**POOL["spec"], "targetPorts": [{"number": 8000}, {"number": 8001}]}}

    plain, led = (
        orphan_view(a_deployment(), each, target=replace(TARGET, ports=(8002, 8001))).fleet.pods[0]
        for each in (a_service(), ports)
    )

    for pod in (plain, led):
        assert (pod.port, pod.engine_ports) == (8002, (8002, 8001))
