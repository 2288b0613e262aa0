"""A trial pod: the template's engine, and nothing by which anybody would take it for a part of the fleet."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvmedic.engines import ENGINES
from kvmedic.manifests.engine_file import Configuration, MountedFile, engine_file
from kvmedic.manifests.errors import ErrorReason, ManifestError
from kvmedic.manifests.invocation import version_of
from kvmedic.manifests.trial_pod import (
    PRIORITY_CLASS,
    TRIAL_LABEL,
    Owner,
    Trial,
    remote_cache_in_file,
    trial_pod,
    without_remote_cache,
)
from kvmedic.model.config_edits import ConfigMap, Contents
from kvmedic.model.engine import Engine
from kvmedic.model.evidence import Blocked

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
    assert not isinstance(made, Blocked), made
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


STARTS_BY = {
    "gke-gcsfuse/volumes": "true",
    "gke-gcsfuse/memory-limit": "1Gi",
    "k8s.v1.cni.cncf.io/networks": "rdma-a,rdma-b",
    "vault.hashicorp.com/agent-inject": "true",
    "vault.hashicorp.com/role": "llm",
    "iam.amazonaws.com/role": "models",
    "sidecar.istio.io/inject": "false",
    "container.apparmor.security.beta.kubernetes.io/vllm": "unconfined",
    "example.org/whatever-a-webhook-asks-for": "x",
}
OF_THE_FLEET = {
    "kvmedic.io/cordoned": "{}",
    "kubectl.kubernetes.io/last-applied-configuration": "{}",
    "kubectl.kubernetes.io/restartedAt": "2026-03-01T03:00:00Z",
    "controller.kubernetes.io/pod-deletion-cost": "7",
    "prometheus.io/scrape": "true",
    "external-dns.alpha.kubernetes.io/hostname": "llm.example.org",
    "consul.hashicorp.com/connect-inject": "true",
    "scheduling.k8s.io/group-name": "llm",
}


def test_what_webhooks_need_to_start_a_pod_stays_and_what_makes_it_one_of_the_fleet_goes() -> None:
    fleet = template()
    fleet["metadata"]["annotations"] = {**STARTS_BY, **OF_THE_FLEET}
    let_in = {"azure.workload.identity/use": "true", "sidecar.istio.io/inject": "false", "runai/queue": "a"}
    fleet["metadata"]["labels"] |= {
        **let_in,
        "app.kubernetes.io/name": "llm",
        "kueue.x-k8s.io/queue-name": "a",
    }

    metadata = pod_of(fleet)["metadata"]

    assert metadata["annotations"] == STARTS_BY
    assert metadata["labels"] == {**let_in, TRIAL_LABEL: "uid-1"}


def test_devices_that_the_fleet_shares_are_cut_and_those_of_each_pod_stay() -> None:
    claims = [
        {"name": "own", "resourceClaimTemplateName": "gpu"},
        {"name": "link", "resourceClaimName": "imex-of-the-fleet"},
    ]
    container = {"name": "vllm", "resources": {"claims": [{"name": "own"}, {"name": "link", "request": "a"}]}}

    made = pod_of(template(containers=[container], resourceClaims=claims))["spec"]

    assert made["resourceClaims"] == claims[:1]
    assert made["containers"][0]["resources"]["claims"] == [{"name": "own"}]


@pytest.mark.parametrize(
    ("limits", "refused"), [(None, True), ({"memory": "1Gi"}, True), ({"nvidia.com/gpu": "1"}, False)]
)
def test_without_a_device_but_a_shared_one_there_is_no_trial(
    limits: dict[str, str] | None, refused: bool
) -> None:
    resources = {"claims": [{"name": "gpu"}], "limits": limits}
    spec = template(
        containers=[{"name": "vllm", "resources": resources}],
        resourceClaims=[{"name": "gpu", "resourceClaimName": "the-only-one"}],
    )

    made = trial_pod(spec, TRIAL)

    assert isinstance(made, Blocked) is refused
    if isinstance(made, Blocked):
        assert "ResourceClaim the-only-one" in made.message
        assert "resourceClaimTemplateName" in made.message


CONNECTOR = '{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}'
SHARED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "two words": ({"args": ["--port=1", "--kv-transfer-config", CONNECTOR]}, {"args": ["--port=1"]}),
    "one word": ({"args": ["--port=1", f"--kv-transfer-config={CONNECTOR}"]}, {"args": ["--port=1"]}),
    "underscores": ({"args": ["--port=1", f"--kv_transfer_config={CONNECTOR}"]}, {"args": ["--port=1"]}),
    "keys with dots": (
        {
            "args": [
                "--kv-transfer-config.kv_connector",
                "X",
                "--kv-transfer-config.kv_role=kv_both",
                "--port=1",
            ]
        },
        {"args": ["--port=1"]},
    ),
    "events of blocks": (
        {"args": ["--kv-events-config", '{"publisher":"zmq"}', "--port=1"]},
        {"args": ["--port=1"]},
    ),
    "a script": (
        {"command": ["sh", "-c", f"exec vllm serve /m --kv-transfer-config '{CONNECTOR}' --port 1"]},
        {"command": ["sh", "-c", "exec vllm serve /m --port 1"]},
    ),
    "a variable": (
        {
            "args": ["--port=1", "--kv-transfer-config", "$(SHARED)"],
            "env": [{"name": "SHARED", "value": CONNECTOR}],
        },
        {"args": ["--port=1"], "env": [{"name": "SHARED", "value": CONNECTOR}]},
    ),
    "variables of connectors": (
        {
            "args": ["--port=1"],
            "env": [{"name": "LMCACHE_REMOTE_URL", "value": "redis://a"}, {"name": "HF_HOME", "value": "/m"}],
            "envFrom": [{"prefix": "LMCACHE_", "configMapRef": {"name": "a"}}, {"secretRef": {"name": "b"}}],
        },
        {
            "args": ["--port=1"],
            "env": [{"name": "HF_HOME", "value": "/m"}],
            "envFrom": [{"secretRef": {"name": "b"}}],
        },
    ),
}


def engine(changed: dict[str, Any]) -> dict[str, Any]:
    container = {"name": "vllm", "image": "vllm/vllm-openai:v0.32.0", **changed}
    return template(containers=[{"name": "proxy", "image": "envoy"}, container])


@pytest.mark.parametrize(("given_container", "alone"), SHARED.values(), ids=SHARED)
def test_a_trial_pod_shares_no_blocks_with_the_fleet(
    given_container: dict[str, Any], alone: dict[str, Any]
) -> None:
    fleet = engine(given_container)
    before = copy.deepcopy(fleet)

    found = without_remote_cache(fleet, "vllm", ENGINES)

    assert found == engine(alone)
    assert fleet == before


def test_a_connector_that_cannot_be_taken_off_is_refused_by_name() -> None:
    found = without_remote_cache(
        engine(
            {
                "command": ["sh", "-c", "vllm serve /m $(ALL)"],
                "args": [],
                "env": [
                    {"name": "ALL", "value": "--kv-transfer-config.kv_role kv_both"},
                ],
            }
        ),
        "vllm",
        ENGINES,
    )

    assert isinstance(found, Blocked)
    assert "must not share the fleet's KV store: --kv-transfer-config" in found.message


@pytest.mark.parametrize(
    ("text", "said"), [("max-num-seqs: 4\n", ""), ("kv-transfer-config: '{}'\n", "gives kv_transfer_config")]
)
def test_a_file_with_a_connector_keeps_an_engine_from_being_cut_off(text: str, said: str) -> None:
    container = {"name": "vllm", "image": "vllm/vllm-openai:v0.32.0"}
    read = engine_file(text, "/c.yaml", container, Engine(ENGINES[0], version_of(container, ENGINES[0])))
    assert not isinstance(read, ManifestError)
    source = ConfigMap(Contents({}))
    mounted = MountedFile("engine", "c.yaml", "engine", 0, None)

    found = remote_cache_in_file(Configuration(mounted, read, source), ENGINES[0])

    assert (said in found) if said else found == ""
    unknown = ManifestError(ErrorReason.UNSAFE, "nobody saw it")
    assert "nobody saw it" in remote_cache_in_file(unknown, ENGINES[0])


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

    assert isinstance(refused, Blocked)
    assert named in refused.message


def test_volumes_that_many_pods_may_have_block_nothing() -> None:
    volumes = [
        {"name": "models", "persistentVolumeClaim": {"claimName": "models-rox", "readOnly": True}},
        {"name": "shared-memory", "emptyDir": {"medium": "Memory"}},
        {"name": "cache", "ephemeral": {"volumeClaimTemplate": {}}},
    ]

    assert not isinstance(trial_pod(template(volumes=volumes), TRIAL, frozenset({"models-rwo"})), Blocked)
