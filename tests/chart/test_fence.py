"""What the API server refuses to the operator's own account although RBAC allows it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest
import yaml

from chart.generated import CHART
from chart.rendering import render
from kvmedic.cluster.stateful.groups import normalise_part
from kvmedic.engines.kv_methods import METHODS
from kvmedic.model.config_edits import Contents, copy_name
from kvmedic.model.redaction import names_secret
from kvmedic.rollout.owners.rendering import LISTS, RENDERINGS, Rendering
from kvmedic.runbooks.compression.allowed_settings import NEVER
from lab.cluster.api import Api
from lab.cluster.light import LightCluster
from worlds.fenced import refusal, rights_in
from worlds.neighbours import DEFINITIONS as NEIGHBOURS
from worlds.neighbours import hpa, scaled
from worlds.rendered import DEFINITIONS, define

pytestmark = pytest.mark.xdist_group("fence")
KEDA = NEIGHBOURS[0]
POD = "/spec/template/spec"
ENGINE = f"{POD}/containers/0"
COPY = copy_name("limits", Contents({"config.yaml": "max-num-seqs: 14"}), "uid")
DEPLOYMENT = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "llm", "labels": {"app": "llm"}},
    "spec": {
        "replicas": 1,
        "selector": {"matchLabels": {"app": "llm"}},
        "template": {
            "metadata": {"labels": {"app": "llm"}, "annotations": {"checksum/config": "1", "keep": "1"}},
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
                        "volumeMounts": [
                            {"name": "config", "mountPath": "/etc/vllm"},
                            {"name": "key", "mountPath": "/key", "readOnly": True},
                        ],
                        "resources": {"limits": {"nvidia.com/gpu": "1"}},
                        "ports": [{"containerPort": 8000}],
                    }
                ],
                "initContainers": [{"name": "fetch", "image": "registry.example:5000/tools/fetch:1"}],
                "volumes": [
                    {"name": "config", "configMap": {"name": "limits"}},
                    {"name": "files", "projected": {"sources": [{"configMap": {"name": COPY}}]}},
                    {"name": "key", "secret": {"secretName": "key"}},
                ],
            },
        },
    },
}
PASSES = {
    "an argument": [("replace", f"{ENGINE}/args/0", "--max-num-seqs=14")],
    "a variable": [("replace", f"{ENGINE}/env/1/value", "4")],
    "a variable more": [("add", f"{ENGINE}/env/-", {"name": "EVICT_TOKENS", "value": "1"})],
    "a copy of its ConfigMap": [("replace", f"{POD}/volumes/0/configMap/name", COPY)],
    "a copy of a copy, and back": [
        ("replace", f"{POD}/volumes/1/projected/sources/0/configMap/name", "limits"),
    ],
    "replicas and the rollout": [
        ("replace", "/spec/replicas", 2),
        ("add", "/spec/paused", True),
        ("add", "/spec/minReadySeconds", 60),
    ],
    "an annotation": [("add", "/metadata/annotations", {"kvmedic.io/run": "1"})],
}
OTHER_ENGINE, IDENTITY, VARIABLE = "arguments, variables, replicas", "identity, privilege", "sets no variable"
WORKLOAD, MINIMUM = "never whom it belongs to", "an autoscaler's minimum"
NOBODY = {"apiVersion": "v1", "kind": "ConfigMap", "name": "gone", "uid": "0"}
"""What belongs to an object that is not there is removed by the garbage collector."""
REFUSED = {
    "another image": ([("replace", f"{ENGINE}/image", "registry.example/other:1")], OTHER_ENGINE),
    "a mount less": ([("remove", f"{ENGINE}/volumeMounts", None)], OTHER_ENGINE),
    "a probe that runs a command": (
        [("add", f"{ENGINE}/livenessProbe", {"exec": {"command": ["sh"]}})],
        OTHER_ENGINE,
    ),
    "another container first": (
        [("add", f"{POD}/initContainers/0", {"name": "a", "image": "registry.example/a:1"})],
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
        [("add", "/spec/template/spec/volumes/-", {"name": "a", "secret": {"secretName": "key"}})],
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
    "such a variable less": ([("remove", f"{ENGINE}/env/0", None)], VARIABLE),
    **{
        f"a value of {name}": ([("add", f"{ENGINE}/env/-", {"name": name, "value": "a"})], VARIABLE)
        for name in ("VLLM_API_KEY", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY")
    },
    "another ConfigMap": ([("replace", f"{POD}/volumes/0/configMap/name", "limits-copy")], IDENTITY),
    "another ConfigMap among several": (
        [("replace", f"{POD}/volumes/1/projected/sources/0/configMap/name", "others")],
        IDENTITY,
    ),
    "another file of its ConfigMap": (
        [("add", f"{POD}/volumes/0/configMap/items", [{"key": "a", "path": "a"}])],
        IDENTITY,
    ),
    "a token of its account": (
        [("add", f"{POD}/volumes/1/projected/sources/-", {"serviceAccountToken": {"path": "token"}})],
        IDENTITY,
    ),
    **{
        f"{kind} in place of a ConfigMap": (
            [("replace", f"{POD}/volumes/0", {"name": "config", kind: source})],
            IDENTITY,
        )
        for kind, source in {
            "nfs": {"server": "files.example", "path": "/"},
            "image": {"reference": "registry.example/other:1"},
            "ephemeral": {
                "volumeClaimTemplate": {
                    "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
                }
            },
            "downwardAPI": {"items": [{"path": "a", "fieldRef": {"fieldPath": "metadata.name"}}]},
            "emptyDir": {},
        }.items()
    },
    **{
        f"another {field}": ([("add", f"{POD}/{field}", value)], IDENTITY)
        for field, value in {
            "hostAliases": [{"ip": "192.0.2.1", "hostnames": ["models.example"]}],
            "dnsConfig": {"nameservers": ["192.0.2.1"]},
            "dnsPolicy": "Default",
            "tolerations": [{"operator": "Exists"}],
            "nodeSelector": {"a": "b"},
            "affinity": {"podAntiAffinity": {}},
            "resourceClaims": [{"name": "a", "resourceClaimName": "a"}],
            "schedulerName": "another",
            "enableServiceLinks": False,
        }.items()
    },
    "a field of a container": ([("add", f"{ENGINE}/terminationMessagePath", "/key/a")], IDENTITY),
    "when an image is pulled": ([("add", f"{ENGINE}/imagePullPolicy", "Always")], OTHER_ENGINE),
    "time to end": ([("add", f"{POD}/terminationGracePeriodSeconds", 0)], OTHER_ENGINE),
    "a label of its pods": ([("add", "/spec/template/metadata/labels/a", "b")], OTHER_ENGINE),
    "an annotation of its pods": (
        [("replace", "/spec/template/metadata/annotations/checksum~1config", "2")],
        OTHER_ENGINE,
    ),
    "a finalizer of its pods": ([("add", "/spec/template/metadata/finalizers", ["a/b"])], IDENTITY),
    "its history": ([("add", "/spec/revisionHistoryLimit", 0)], WORKLOAD),
    "another owner": ([("add", "/metadata/ownerReferences", [NOBODY])], WORKLOAD),
    "a finalizer": ([("add", "/metadata/finalizers", ["a/b"])], WORKLOAD),
}
GOES_BACK = {
    "everything that a revision may have otherwise": [
        ("replace", f"{ENGINE}/image", "registry.example/vllm:0.9@sha256:" + "0" * 64),
        ("replace", f"{POD}/initContainers/0/image", "registry.example:5000/tools/fetch"),
        ("replace", f"{ENGINE}/args/0", "--max-num-seqs=64"),
        ("replace", f"{ENGINE}/env/1/value", "4"),
        ("add", f"{ENGINE}/livenessProbe", {"httpGet": {"path": "/health", "port": 8000}}),
        ("add", f"{ENGINE}/workingDir", "/work"),
        ("add", f"{ENGINE}/ports/-", {"containerPort": 8001}),
        ("replace", f"{ENGINE}/resources/limits", {"nvidia.com/gpu": "2", "memory": "9Gi"}),
        ("add", f"{POD}/volumes/-", {"name": "shm", "emptyDir": {"medium": "Memory"}}),
        ("add", f"{POD}/volumes/-", {"name": "more", "configMap": {"name": "others"}}),
        ("add", f"{ENGINE}/volumeMounts/-", {"name": "shm", "mountPath": "/dev/shm"}),
        ("add", f"{POD}/initContainers/0/volumeMounts", [{"name": "more", "mountPath": "/more"}]),
        ("add", f"{POD}/terminationGracePeriodSeconds", 60),
        ("replace", "/spec/template/metadata/annotations/checksum~1config", "2"),
        ("add", "/spec/template/metadata/labels/helm.sh~1chart", "llm-1"),
    ],
    "without a Secret": [("remove", f"{ENGINE}/volumeMounts/1", None), ("remove", f"{POD}/volumes/2", None)],
}
EARLIER = "goes back to no revision"
OF_CONFIG_MAPS = ("another ConfigMap", "another file of its ConfigMap", "emptyDir in place of a ConfigMap")
"""What an earlier revision may have otherwise."""
NEVER_BACK = {
    **{
        f"another repository: {image}": ([("replace", f"{ENGINE}/image", image)], EARLIER)
        for image in (
            "registry.example/other:1",
            "registry.example/vllm-other:1",
            "registry.example:5000/vllm:1",
            "vllm:1",
        )
    },
    "a repository of another container": (
        [("replace", f"{POD}/initContainers/0/image", "registry.example/vllm:1")],
        EARLIER,
    ),
    "another port of the registry": (
        [("replace", f"{POD}/initContainers/0/image", "registry.example:5001/tools/fetch:1")],
        EARLIER,
    ),
    "another container first": (
        [("add", f"{POD}/initContainers/0", {"name": "a", "image": "registry.example/vllm:1"})],
        IDENTITY,
    ),
    "no container first": ([("remove", f"{POD}/initContainers", None)], EARLIER),
    "a privilege of the one before": (
        [("add", f"{POD}/initContainers/0/securityContext", {"privileged": True})],
        IDENTITY,
    ),
    "a variable of the one before": (
        [("add", f"{POD}/initContainers/0/env", [{"name": "LD_PRELOAD", "value": "/tmp/a.so"}])],
        VARIABLE,
    ),
    "a port of the node": ([("add", f"{ENGINE}/ports/0/hostPort", 8000)], EARLIER),
    "a probe of another host": (
        [("add", f"{ENGINE}/livenessProbe", {"httpGet": {"port": 80, "host": "192.0.2.1"}})],
        EARLIER,
    ),
    "a connection to another host": (
        [("add", f"{ENGINE}/readinessProbe", {"tcpSocket": {"port": 80, "host": "192.0.2.1"}})],
        EARLIER,
    ),
    "another device": ([("add", f"{ENGINE}/resources/limits/example.com~1fuse", "1")], EARLIER),
    "a Secret in another container": (
        [("add", f"{POD}/initContainers/0/volumeMounts", [{"name": "key", "mountPath": "/key"}])],
        EARLIER,
    ),
    "a Secret elsewhere": ([("replace", f"{ENGINE}/volumeMounts/1/mountPath", "/models")], EARLIER),
    "a volume to write": ([("replace", f"{ENGINE}/volumeMounts/1/readOnly", False)], EARLIER),
    "a Secret by another name": ([("replace", f"{POD}/volumes/2/secret/secretName", "other")], IDENTITY),
    "a label by which it may be selected": (
        [("add", "/spec/template/metadata/labels/role", "gateway")],
        EARLIER,
    ),
    "an annotation that has others add an image": (
        [("add", "/spec/template/metadata/annotations/sidecar.istio.io~1proxyImage", "a")],
        EARLIER,
    ),
    "an annotation less": ([("remove", "/spec/template/metadata/annotations/keep", None)], EARLIER),
    **{
        name: each for name, each in REFUSED.items() if each[1] != OTHER_ENGINE and name not in OF_CONFIG_MAPS
    },
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


BY_DEFAULT = "fenced-by-default"


@pytest.fixture(scope="module")
def by_default(light: LightCluster) -> Iterator[Api]:
    """The operator's account as the chart makes it by default, beside the same Deployment."""
    name = light.create_namespace(BY_DEFAULT)
    light.apply(DEPLOYMENT, name)
    with rights_in(light, name) as made:
        yield made


@pytest.mark.parametrize("operations", [*PASSES.values(), *GOES_BACK.values()], ids=[*PASSES, *GOES_BACK])
def test_by_default_a_revision_of_the_same_repository_may_be_put_back(by_default, operations):
    assert patch(by_default, f"/apis/apps/v1/namespaces/{BY_DEFAULT}/deployments/llm", operations) == ""


@pytest.mark.parametrize(("operations", "message"), NEVER_BACK.values(), ids=NEVER_BACK)
def test_by_default_no_other_image_identity_or_secret_comes_with_a_revision(by_default, operations, message):
    path = f"/apis/apps/v1/namespaces/{BY_DEFAULT}/deployments/llm"

    assert message in patch(by_default, path, operations)


def test_a_pod_template_of_many_parts_is_not_too_dear_to_compare(by_default, light):
    many = [{"name": f"v{n}", "secret": {"secretName": f"s{n}", "optional": True}} for n in range(100)]
    mounts = [{"name": each["name"], "mountPath": f"/v/{each['name']}"} for each in many]
    variables = [{"name": f"SECRET_{n}", "value": "a" * 100} for n in range(100)]
    parts = {"image": "registry.example/vllm:1", "args": ["a" * 100] * 50, "env": variables}
    containers = [{"name": f"c{n}", **parts, "volumeMounts": mounts} for n in range(24)]
    body = deepcopy(DEPLOYMENT)
    body["metadata"]["name"] = "large"
    body["spec"]["template"]["spec"] = {"containers": containers, "volumes": many}
    light.apply(body, BY_DEFAULT)

    path = f"/apis/apps/v1/namespaces/{BY_DEFAULT}/deployments/large"

    assert patch(by_default, path, [("replace", f"{ENGINE}/args/0", "b")]) == ""


@pytest.fixture(scope="module")
def in_order(account: Api, light: LightCluster) -> Api:
    """The account, with a StatefulSet of the same template."""
    spec = {key: each for key, each in DEPLOYMENT["spec"].items() if key != "strategy"}
    body = {**DEPLOYMENT, "kind": "StatefulSet", "spec": {**spec, "serviceName": "llm"}}
    light.apply(body, "fenced")
    return account


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (f"{ENGINE}/args/0", "--max-num-seqs=14", ""),
        ("/spec/updateStrategy", {"type": "RollingUpdate", "rollingUpdate": {"partition": 9}}, ""),
        (f"{ENGINE}/image", "registry.example/other:1", OTHER_ENGINE),
        (f"{POD}/hostNetwork", True, IDENTITY),
        ("/spec/persistentVolumeClaimRetentionPolicy", {"whenScaled": "Delete"}, WORKLOAD),
    ],
)
def test_of_a_stateful_set_no_more_passes_than_of_a_deployment(in_order, path, value, message):
    found = patch(in_order, "/apis/apps/v1/namespaces/fenced/statefulsets/llm", [("add", path, value)])

    assert message in found
    assert bool(found) is bool(message)


@pytest.fixture(scope="module")
def autoscaled(account: Api, light: LightCluster) -> Api:
    """The account, with an autoscaler of each kind."""
    light.apply(KEDA, "")
    light.kubectl("wait", "--for=condition=Established", f"crd/{KEDA['metadata']['name']}", "--timeout=30s")
    light.apply([hpa("llm"), scaled("llm", minReplicaCount=1)], "fenced")
    return account


DISABLED = {
    "SelectPolicy": "Disabled",
    "Policies": [{"Type": "Pods", "Value": 1, "PeriodSeconds": 60}],
}


@pytest.mark.parametrize(
    ("version", "path", "value", "message"),
    [
        ("autoscaling/v2", "/spec/minReplicas", 2, ""),
        ("autoscaling/v2", "/spec/maxReplicas", 9, MINIMUM),
        ("autoscaling/v2", "/spec/behavior", {"scaleDown": {"selectPolicy": "Disabled"}}, MINIMUM),
        ("autoscaling/v2", "/metadata/finalizers", ["a/b"], MINIMUM),
        (
            "autoscaling/v1",
            "/metadata/annotations",
            {"autoscaling.alpha.kubernetes.io/behavior": json.dumps({"ScaleDown": DISABLED})},
            MINIMUM,
        ),
        ("keda.sh/v1alpha1", "/spec/minReplicaCount", 2, ""),
        ("keda.sh/v1alpha1", "/spec/idleReplicaCount", 0, MINIMUM),
        ("keda.sh/v1alpha1", "/spec/advanced", {"restoreToOriginalReplicaCount": True}, MINIMUM),
    ],
)
def test_of_an_autoscaler_the_minimum_passes(autoscaled, version, path, value, message):
    plural = "scaledobjects" if "keda" in version else "horizontalpodautoscalers"

    found = patch(autoscaled, f"/apis/{version}/namespaces/fenced/{plural}/llm", [("add", path, value)])

    assert message in found
    assert bool(found) is bool(message)


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
        "env": [
            {"name": "PYTHONPATH", "value": "/plugins"},
            {"name": "KEEP", "value": "8"},
            {"name": "VLLM_API_KEY", "value": "a"},
        ],
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
        "another key": [("replace", f"{engine}/env/2/value", "b")],
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
TEMPLATE = DEPLOYMENT["spec"]["template"]
AS_WRITTEN = {
    **TEMPLATE,
    "spec": {**TEMPLATE["spec"], "hostNetwork": False, "nodeSelector": {}, "tolerations": []},
}
"""The API server keeps such fields of a LeaderWorkerSet; a template that is put back is without them."""
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
    groups = {"size": 2, "leaderTemplate": AS_WRITTEN, "workerTemplate": AS_WRITTEN}
    body = {"metadata": {"name": "llm"}, "spec": {"replicas": 2, "leaderWorkerTemplate": groups}}
    head = {"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet"}
    light.apply({**head, **body}, "fenced")
    yield account
    light.kubectl("delete", named, "--wait=false")


ADDED = ("rolloutStrategy", "finalizers")


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (f"{GROUPS}/leaderTemplate/spec/containers/0/args/0", "--max-num-seqs=14", ""),
        (f"{GROUPS}/leaderTemplate", normalise_part(AS_WRITTEN), ""),
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
        ("/metadata/finalizers", ["a/b"], WORKLOAD),
    ],
)
def test_of_a_leader_worker_set_the_leaders_template_and_the_strategy_pass(grouped, path, value, message):
    place = "/apis/leaderworkerset.x-k8s.io/v1/namespaces/fenced/leaderworkersets/llm"

    found = patch(grouped, place, [("add" if path.rpartition("/")[2] in ADDED else "replace", path, value)])

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
PRIVILEGED_FIRST = pod(**OWNED)
PRIVILEGED_FIRST["spec"]["initContainers"] = [{**PRIVILEGED["spec"]["containers"][0], "name": "first"}]
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
        ("POST", "/api/v1/namespaces/fenced/pods", PRIVILEGED_FIRST, "trial pods only"),
        ("POST", "/api/v1/namespaces/fenced/pods", pod(**OWNED), ""),
        ("POST", BATCH, JOB, "its own Jobs"),
        ("POST", BATCH, {**JOB, "metadata": {"name": "a", "labels": OWNED["labels"]}}, ""),
        ("DELETE", "/api/v1/namespaces/fenced/configmaps/limits", None, "own copies"),
    ],
    ids=[
        "a pod",
        "a privileged trial",
        "one whose first container is",
        "a trial pod",
        "a job",
        "a job of a trial",
        "somebody's ConfigMap",
    ],
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


def test_it_knows_a_secret_by_the_name_of_its_variable_as_the_operator_does():
    (given,) = [each["expression"] for each in fence()["variables"] if each["name"] == "secret"]
    pattern = re.compile(given.removeprefix("r'").removesuffix("'"))
    methods = [each.env for method in METHODS for each in method.settings if each.env]
    names = [
        "VLLM_API_KEY",
        "apikey",
        "HF_TOKEN",
        "TOKEN_FILE",
        "TOKENIZERS_PARALLELISM",
        "TOKENI",
        "MAX_TOKENS",
    ]
    names += ["AWS_SECRET", "MY_PASSWD", "PASSWORD", "PASSWARD", "GOOGLE_CREDENTIALS", "KEEP", *methods]

    assert [bool(pattern.search(name)) for name in names] == [names_secret(name) for name in names]
    assert not any(map(names_secret, methods))


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
def test_its_own_namespace_is_left_alone_unless_it_is_watched(watched, kept):
    policy = render({"watchNamespaces": watched})["ValidatingAdmissionPolicy", "kvmedic-fence"]

    assert kept in policy["spec"]["validations"][0]["expression"]
