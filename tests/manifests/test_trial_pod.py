"""A trial pod: the template's engine, and nothing by which anybody would take it for a part of the fleet."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvmedic.manifests.trial_pod import PRIORITY_CLASS, TRIAL_LABEL, NoTrial, Owner, Trial, trial_pod

OWNER = Owner("kvmedic.io/v1alpha1", "KVRemediation", "llm", "uid-1")
TRIAL = Trial("llm-trial-20260301-030000-1", "serving", OWNER, 1800)


def template(**spec: Any) -> dict[str, Any]:
    container = {"name": "vllm", "image": "vllm/vllm-openai:v0.32.0", "args": ["serve", "/model"]}
    return {
        "metadata": {
            "labels": {"app": "llm", "serving": "active", "pod-template-hash": "abc"},
            "annotations": {"prometheus.io/scrape": "true"},
        },
        "spec": {
            "containers": [container],
            "restartPolicy": "Always",
            "terminationGracePeriodSeconds": 600,
            "priorityClassName": "system-node-critical",
            "priority": 2000001000,
            "preemptionPolicy": "PreemptLowerPriority",
            "schedulerName": "gpu-scheduler",
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
            **spec,
        },
    }


def pod_of(given_template: dict[str, Any]) -> dict[str, Any]:
    made = trial_pod(given_template, TRIAL)
    assert not isinstance(made, NoTrial), made
    return made


def test_it_is_the_templates_engine_where_the_template_would_run() -> None:
    made = pod_of(template(nodeSelector={"gpu": "h100"}))["spec"]

    assert made["containers"] == template()["spec"]["containers"]
    assert made["nodeSelector"] == {"gpu": "h100"}
    assert made["tolerations"] == template()["spec"]["tolerations"]
    assert made["schedulerName"] == "gpu-scheduler"


def test_it_ends_never_comes_back_and_pushes_nobody_aside() -> None:
    made = pod_of(template())["spec"]

    assert made["restartPolicy"] == "Never"
    assert made["activeDeadlineSeconds"] == 1800
    assert made["terminationGracePeriodSeconds"] == 1
    assert made["priorityClassName"] == PRIORITY_CLASS
    assert not {"priority", "preemptionPolicy"} & set(made)


def test_it_goes_with_its_resource_and_has_no_label_or_annotation_of_the_fleet() -> None:
    metadata = pod_of(template())["metadata"]

    assert metadata["labels"] == {TRIAL_LABEL: "uid-1"}
    assert "annotations" not in metadata
    (owner,) = metadata["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("KVRemediation", "llm", "uid-1")
    assert not owner["blockOwnerDeletion"]


@given(labels=st.dictionaries(st.sampled_from(["app", "serving", "role"]), st.sampled_from("ab"), min_size=1))
def test_no_selector_that_finds_the_fleet_finds_the_trial(labels: dict[str, str]) -> None:
    fleet = template()
    fleet["metadata"]["labels"] = labels

    own = pod_of(fleet)["metadata"]["labels"]

    assert not any(own.get(name) == text for name, text in labels.items())


def test_the_template_is_left_as_it_was() -> None:
    given_template = template()
    before = copy.deepcopy(given_template)

    made = pod_of(given_template)
    made["spec"]["containers"][0]["args"].append("--changed")

    assert given_template == before


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ({"hostNetwork": True}, "host's network"),
        ({"nodeName": "gpu-7"}, "names its node (gpu-7)"),
        (
            {"containers": [{"name": "vllm", "ports": [{"containerPort": 8000, "hostPort": 8000}]}]},
            "container vllm takes port 8000 of its host",
        ),
        (
            {"initContainers": [{"name": "load", "ports": [{"hostPort": 1}]}], "containers": []},
            "container load takes port 1",
        ),
        (
            {"volumes": [{"name": "models", "persistentVolumeClaim": {"claimName": "models-rwo"}}]},
            "volume models is PersistentVolumeClaim/models-rwo",
        ),
    ],
)
def test_a_template_that_only_one_pod_can_have_is_refused_by_name(spec: dict[str, Any], named: str) -> None:
    refused = trial_pod(template(**spec), TRIAL, held_claims=frozenset({"models-rwo"}))

    assert isinstance(refused, NoTrial)
    assert named in refused.why


def test_volumes_that_many_pods_may_have_are_no_obstacle() -> None:
    volumes = [
        {"name": "models", "persistentVolumeClaim": {"claimName": "models-rox", "readOnly": True}},
        {"name": "shared-memory", "emptyDir": {"medium": "Memory"}},
        {"name": "cache", "ephemeral": {"volumeClaimTemplate": {}}},
    ]

    assert not isinstance(trial_pod(template(volumes=volumes), TRIAL, frozenset({"models-rwo"})), NoTrial)
