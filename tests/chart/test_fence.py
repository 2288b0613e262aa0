"""What the API server refuses to the operator's own account although RBAC allows it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from chart.generated import CHART
from chart.rendering import render
from kvmedic.manifests.owner_fields import LISTS, RENDERINGS, Rendering
from kvmedic.runbooks.compression.bundle import NEVER
from lab.cluster.api import Api
from lab.cluster.light import LightCluster
from worlds.fenced import refusal, rights_in
from worlds.rendered import DEFINITIONS, define

pytestmark = pytest.mark.xdist_group("fence")
ENGINE = "/spec/template/spec/containers/0"
DEPLOYMENT = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "llm", "labels": {"app": "llm"}},
    "spec": {
        "replicas": 1,
        "selector": {"matchLabels": {"app": "llm"}},
        "template": {
            "metadata": {"labels": {"app": "llm"}},
            "spec": {
                "containers": [
                    {
                        "name": "engine",
                        "image": "registry.example/vllm:1",
                        "args": ["--max-num-seqs=256"],
                        "env": [
                            {"name": "PYTHONPATH", "value": "/plugins"},
                            {"name": "KEEP", "value": "8"},
                        ],
                        "volumeMounts": [{"name": "config", "mountPath": "/etc/vllm"}],
                    }
                ],
                "volumes": [{"name": "config", "configMap": {"name": "limits"}}],
            },
        },
    },
}
PASSES = {
    "an argument": [("replace", f"{ENGINE}/args/0", "--max-num-seqs=14")],
    "a variable": [("replace", f"{ENGINE}/env/1/value", "4")],
    "a variable more": [("add", f"{ENGINE}/env/-", {"name": "EVICT_TOKENS", "value": "1"})],
    "a copy of its ConfigMap": [("replace", "/spec/template/spec/volumes/0/configMap/name", "limits-copy")],
    "replicas and the rollout": [
        ("replace", "/spec/replicas", 2),
        ("add", "/spec/paused", True),
        ("add", "/spec/minReadySeconds", 60),
    ],
    "an annotation": [("add", "/metadata/annotations", {"kvmedic.io/run": "1"})],
}
OTHER_ENGINE, IDENTITY, VARIABLE = "arguments, variables, replicas", "identity, privilege", "sets no variable"
REFUSED = {
    "another image": ([("replace", f"{ENGINE}/image", "registry.example/other:1")], OTHER_ENGINE),
    "a mount less": ([("remove", f"{ENGINE}/volumeMounts", None)], OTHER_ENGINE),
    "a probe that runs a command": (
        [("add", f"{ENGINE}/livenessProbe", {"exec": {"command": ["sh"]}})],
        OTHER_ENGINE,
    ),
    "another container first": (
        [("add", "/spec/template/spec/initContainers", [{"name": "a", "image": "registry.example/a:1"}])],
        OTHER_ENGINE,
    ),
    "a container more": (
        [("add", "/spec/template/spec/containers/-", {"name": "a", "image": "registry.example/a:1"})],
        IDENTITY,
    ),
    "another account": ([("add", "/spec/template/spec/serviceAccountName", "admin")], IDENTITY),
    "the node's network": ([("add", "/spec/template/spec/hostNetwork", True)], IDENTITY),
    "a privilege": ([("add", f"{ENGINE}/securityContext", {"privileged": True})], IDENTITY),
    "a path of the node": (
        [("add", "/spec/template/spec/volumes/-", {"name": "root", "hostPath": {"path": "/"}})],
        IDENTITY,
    ),
    "a Secret as a volume": (
        [("add", "/spec/template/spec/volumes/-", {"name": "key", "secret": {"secretName": "key"}})],
        IDENTITY,
    ),
    "a Secret as variables": (
        [("add", f"{ENGINE}/envFrom", [{"secretRef": {"name": "key"}}])],
        IDENTITY,
    ),
    "a Secret as a variable": (
        [
            (
                "add",
                f"{ENGINE}/env/-",
                {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "key", "key": "key"}}},
            )
        ],
        VARIABLE,
    ),
    "another library first": (
        [("add", f"{ENGINE}/env/-", {"name": "LD_PRELOAD", "value": "/tmp/a.so"})],
        VARIABLE,
    ),
    "another value of such a variable": ([("replace", f"{ENGINE}/env/0/value", "/tmp")], VARIABLE),
}


@pytest.fixture(scope="module")
def account(light: LightCluster) -> Iterator[Api]:
    """The operator's account, which may not put back images either; a Deployment stands where it may act."""
    name = light.create_namespace("fenced")
    light.apply(DEPLOYMENT, name)
    light.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "limits"}}, name)
    values = {"fence": {"revisionRollback": False}, "probe": {"trialPods": True, "evaluations": True}}
    values["rbac"] = {"ownerFields": True}
    define(light, *(each["metadata"]["name"] for each in DEFINITIONS))
    for rendered in OWNERS.values():
        light.apply(owner_object(*rendered), name)
    with rights_in(light, name, **values) as made:
        yield made


def patch_deployment(account: Api, operations: list[tuple[str, str, Any]]) -> str:
    """Return why a JSON patch of the Deployment is refused; empty: it would pass."""
    return patch(account, "/apis/apps/v1/namespaces/fenced/deployments/llm", operations)


def patch(account: Api, path: str, operations: list[tuple[str, str, Any]]) -> str:
    body = [
        {"op": op, "path": path, **({} if op == "remove" else {"value": value})}
        for op, path, value in operations
    ]
    return refusal(account, "PATCH", path, body)


@pytest.mark.parametrize("operations", PASSES.values(), ids=PASSES)
def test_what_a_run_changes_passes(account, operations):
    assert patch_deployment(account, operations) == ""


@pytest.mark.parametrize(("operations", "message"), REFUSED.values(), ids=REFUSED)
def test_what_no_run_changes_is_refused(account, operations, message):
    assert message in patch_deployment(account, operations)


OWNERS = {
    f"{kind} of {group}": (f"{group}/{min(known.versions)}", kind, known)
    for (group, kind), known in RENDERINGS.items()
}
"""Every kind whose fields are written, in a version that tests/data/owners defines."""
OF_RUNTIME = {
    "/spec/model": {"modelURL": "m", "maxNumSeqs": 64, "maxModelLen": 8192},
    "/spec/vllmConfig": {
        "gpuMemoryUtilization": "0.9",
        "enablePrefixCaching": True,
        "enableChunkedPrefill": True,
    },
    "/spec/deploymentConfig": {"replicas": 2},
}
"""What a VLLMRuntime has beside its lists."""
CHANGED = {int: 14, str: "0.8", bool: False}


def owner_object(version: str, kind: str, known: Rendering) -> dict[str, Any]:
    """Return an owner's object with an engine at every place where it may have one."""
    body: dict[str, Any] = {"apiVersion": version, "kind": kind, "metadata": {"name": "llm"}, "spec": {}}
    engine = {
        **{name: ["--max-num-seqs=256"] for name in LISTS},
        "env": [{"name": "PYTHONPATH", "value": "/plugins"}, {"name": "KEEP", "value": "8"}],
        "image": "registry.example/vllm:1",
    }
    filled = [*((place, engine) for place in known.containers), *(OF_RUNTIME.items() if known.fields else ())]
    for place, fields in filled:
        holder, (*parents, last) = body, place.removesuffix("/*").strip("/").split("/")
        for key in parents:
            holder = holder.setdefault(key, {})
        if place.endswith("/*"):
            holder[last] = [{"name": name, **fields} for name in ("sidecar", "engine")]
        else:
            holder[last] = {**holder.get(last, {}), **fields}
    return body


def patch_owner(account: Api, who: str, *operations: tuple[str, str, Any]) -> str:
    version, _, known = OWNERS[who]
    return patch(account, f"/apis/{version}/namespaces/fenced/{known.plural}/llm", list(operations))


ENGINES = [
    (who, place.replace("*", "1")) for who, (*_, known) in OWNERS.items() for place in known.containers
]
SETTINGS = [(who, path) for who, (*_, known) in OWNERS.items() for path in known.fields.values()]


@pytest.mark.parametrize(("who", "engine"), ENGINES)
def test_an_argument_and_the_value_of_a_variable_of_an_owners_object_pass(account, who, engine):
    for name in LISTS:
        assert patch_owner(account, who, ("replace", f"{engine}/{name}/0", "--max-num-seqs=14")) == ""
        assert patch_owner(account, who, ("add", f"{engine}/{name}/1", "--async-scheduling")) == ""
    assert patch_owner(account, who, ("replace", f"{engine}/env/1/value", "4")) == ""


@pytest.mark.parametrize(("who", "path"), SETTINGS)
def test_a_setting_of_its_own_passes(account, who, path):
    above, _, last = path.rpartition("/")

    assert patch_owner(account, who, ("replace", path, CHANGED[type(OF_RUNTIME[above][last])])) == ""


SECRET = {"valueFrom": {"secretKeyRef": {"name": "key", "key": "key"}}}


@pytest.mark.parametrize(("who", "engine"), ENGINES)
def test_nothing_else_of_an_owners_object_passes(account, who, engine):
    above, _, last = engine.rpartition("/")
    another = f"{above}/-" if last == "1" else f"{above}/another"
    refused: dict[str, list[tuple[str, str, Any]]] = {
        "another image": [("replace", f"{engine}/image", "registry.example/other:1")],
        "an image less": [("remove", f"{engine}/image", None)],
        "a privilege": [("add", f"{engine}/securityContext", {"privileged": True})],
        "a field for another": [
            ("remove", f"{engine}/image", None),
            ("add", f"{engine}/imagePullPolicy", "Always"),
        ],
        "an engine more": [("add", another, {"name": "a", "args": ["a"]})],
        "a variable more": [("add", f"{engine}/env/-", {"name": "A", "value": "1"})],
        "another variable": [("replace", f"{engine}/env/1/name", "LD_PRELOAD")],
        "a Secret as a variable": [("replace", f"{engine}/env/1", {"name": "KEEP", **SECRET})],
        "another library first": [("replace", f"{engine}/env/0/value", "/tmp")],
        "another account": [("add", "/spec/serviceAccountName", "admin")],
        "a label": [("add", "/metadata/labels", {"a": "b"})],
        "an annotation": [("add", "/metadata/annotations", {"a": "b"})],
    }
    if last == "1":
        refused["an engine less"] = [("remove", engine, None)]

    passed = [
        name for name, each in refused.items() if "owner's object" not in patch_owner(account, who, *each)
    ]

    assert passed == []


GROUPS = "/spec/leaderWorkerTemplate"
OPEN = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
OF_GROUPS = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {
        "name": "leaderworkersets.leaderworkerset.x-k8s.io",
        "annotations": {"api-approved.kubernetes.io": "https://github.com/kubernetes-sigs/lws"},
    },
    "spec": {
        "group": "leaderworkerset.x-k8s.io",
        "names": {"kind": "LeaderWorkerSet", "plural": "leaderworkersets"},
        "scope": "Namespaced",
        "versions": [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": OPEN}}],
    },
}


@pytest.fixture(scope="module")
def grouped(account: Api, light: LightCluster) -> Iterator[Api]:
    """The account, with a LeaderWorkerSet; its kind goes again, as operators watch it where it is known."""
    light.apply(OF_GROUPS, "")
    named = f"crd/{OF_GROUPS['metadata']['name']}"
    light.kubectl("wait", "--for=condition=Established", named, "--timeout=30s")
    template = DEPLOYMENT["spec"]["template"]
    groups = {"size": 2, "leaderTemplate": template, "workerTemplate": template}
    body = {"metadata": {"name": "llm"}, "spec": {"replicas": 2, "leaderWorkerTemplate": groups}}
    head = {"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet"}
    light.apply({**head, **body}, "fenced")
    yield account
    light.kubectl("delete", named, "--wait=false")


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (f"{GROUPS}/leaderTemplate/spec/containers/0/args/0", "--max-num-seqs=14", ""),
        ("/spec/rolloutStrategy", {"rollingUpdateConfiguration": {"partition": 2147483646}}, ""),
        (f"{GROUPS}/leaderTemplate/spec/containers/0/image", "registry.example/other:1", OTHER_ENGINE),
        (f"{GROUPS}/leaderTemplate/spec/hostNetwork", True, IDENTITY),
        (
            f"{GROUPS}/workerTemplate/spec/containers/0/args/0",
            "--max-num-seqs=14",
            "the template of what serves",
        ),
        (f"{GROUPS}/size", 4, "the template of what serves"),
        ("/spec/replicas", 3, "the template of what serves"),
    ],
)
def test_of_a_leader_worker_set_the_leaders_template_and_the_strategy_pass(grouped, path, value, message):
    place = "/apis/leaderworkerset.x-k8s.io/v1/namespaces/fenced/leaderworkersets/llm"

    found = patch(
        grouped, place, [("add" if "Strategy" in path or "host" in path else "replace", path, value)]
    )

    assert message in found
    assert bool(found) is bool(message)


def pod(**metadata: Any) -> dict[str, Any]:
    spec = {"containers": [{"name": "engine", "image": "registry.example/vllm:1"}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", **metadata}, "spec": spec}


OWNED = {
    "labels": {"kvmedic.io/trial": "1"},
    "ownerReferences": [
        {"apiVersion": "kvmedic.io/v1alpha1", "kind": "KVRemediation", "name": "llm", "uid": "1"}
    ],
}
PRIVILEGED = pod(**OWNED)
PRIVILEGED["spec"]["containers"][0]["securityContext"] = {"privileged": True}
BATCH = "/apis/batch/v1/namespaces/fenced/jobs"
JOB = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "metadata": {"name": "a"},
    "spec": {"template": {"spec": {"restartPolicy": "Never", **pod()["spec"]}}},
}


@pytest.mark.parametrize(
    ("method", "path", "body", "message"),
    [
        ("POST", "/api/v1/namespaces/fenced/pods", pod(), "trial pods only"),
        ("POST", "/api/v1/namespaces/fenced/pods", PRIVILEGED, "trial pods only"),
        ("POST", "/api/v1/namespaces/fenced/pods", pod(**OWNED), ""),
        ("POST", BATCH, JOB, "its own Jobs"),
        ("POST", BATCH, {**JOB, "metadata": {"name": "a", "labels": OWNED["labels"]}}, ""),
        ("DELETE", "/api/v1/namespaces/fenced/configmaps/limits", None, "own copies"),
    ],
    ids=["a pod", "a privileged trial", "a trial pod", "a job", "a job of a trial", "somebody's ConfigMap"],
)
def test_of_what_it_makes_and_removes_only_its_own_passes(account, method, path, body, message):
    found = refusal(account, method, path, body)

    assert message in found
    assert bool(found) is bool(message)


def test_everybody_else_is_not_asked(account, light):
    path = "/apis/apps/v1/namespaces/fenced/deployments/llm"
    body = [{"op": "replace", "path": f"{ENGINE}/image", "value": "registry.example/other:1"}]

    assert refusal(light.api, "PATCH", path, body) == ""


def test_it_refuses_the_variables_that_no_spec_may_name():
    (given,) = [each["expression"] for each in fence()["variables"] if each["name"] == "never"]

    assert re.fullmatch(r"r'\^\((.*)\)\$'", given).group(1) == NEVER.pattern


def test_a_refusal_is_never_taken_for_a_patch_that_came_too_late():
    assert {each["reason"] for each in fence()["validations"]} == {"Forbidden"}


def fence() -> dict[str, Any]:
    return yaml.safe_load((CHART / "files" / "fence.yaml").read_text())


@pytest.mark.parametrize(
    ("watched", "kept"),
    [
        ([], '"kube-node-lease","kvmedic-system"'),
        (["ml"], '"kvmedic-system"'),
        (["kvmedic-system"], '"kube-node-lease"]'),
    ],
    ids=["everywhere", "elsewhere", "its own"],
)
def test_its_own_namespace_is_left_alone_unless_it_is_told_to_watch_it(watched, kept):
    policy = render({"watchNamespaces": watched})["ValidatingAdmissionPolicy", "kvmedic-fence"]

    assert kept in policy["spec"]["validations"][0]["expression"]
