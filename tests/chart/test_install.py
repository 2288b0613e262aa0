"""The chart on a real API server: installed under the restricted level, upgraded, uninstalled."""

import copy
import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from chart.generated import CHART, NAMESPACE, ROOT, Grant, Permission, permissions
from chart.rendering import EVERYTHING, RELEASE, Values, helm, hook, kustomize, pod_of, render
from lab.cluster.api import ApiError, until
from lab.cluster.light import LightCluster
from lab.cluster.toolchain import Tool, binary
from lab.installation import clear_unfinished

pytestmark = pytest.mark.light

RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}
CRD = "kvremediations.kvmedic.io"
EVERY_OBJECT = {"replicas": 2, "podDisruptionBudget": {"enabled": True}}
WATCHED, OTHER = "serving", "elsewhere"


@pytest.fixture(scope="module")
def server():
    """An API server of this module's own, because the chart's objects are cluster-wide."""
    with LightCluster(controllers=True, kwok=True) as light:
        light.create_namespace(NAMESPACE, RESTRICTED)
        light.create_namespace(WATCHED)
        light.create_namespace(OTHER)
        yield light


def run(server: LightCluster, *arguments: str, values: Values | None = None) -> str:
    """helm against the cluster; its output."""
    done = helm([*arguments, "--kubeconfig", str(server.kubeconfig), "--namespace", NAMESPACE], values)
    assert done.returncode == 0, done.stderr
    return done.stdout


def install(server: LightCluster, values: Values | None = None) -> str:
    """Install or upgrade, and wait until the operator's (simulated) pods are Ready."""
    return run(
        server, "upgrade", "--install", RELEASE, str(CHART), "--wait", "--timeout=60s", values=values or {}
    )


@pytest.fixture
def installed(server, request):
    """An installation with the values that the test names; what helm said."""
    yield install(server, getattr(request, "param", None))
    run(server, "uninstall", RELEASE, "--wait")


def pod(values: Values) -> dict[str, Any]:
    """The operator's pod as the Deployment's controller would make it."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "operator", "namespace": NAMESPACE},
        "spec": pod_of(render(values)) | {"serviceAccountName": "default"},
    }


def try_out(server: LightCluster, body: dict[str, Any]) -> None:
    """Ask the API server what it would say to a pod."""
    path = f"/api/v1/namespaces/{NAMESPACE}/pods"
    server.api.request("POST", path, params={"dryRun": "All"}, json=body)


@pytest.mark.parametrize("values", [{}, EVERYTHING], ids=["defaults", "every source option"])
def test_the_pod_passes_the_restricted_level(server, values):
    try_out(server, pod(values))


def test_the_pod_of_helm_test_passes_it_too(server):
    made = hook()
    made["spec"]["serviceAccountName"] = "default"

    try_out(server, made)


@pytest.mark.parametrize(
    ("field", "value"), [("allowPrivilegeEscalation", True), ("capabilities", {}), ("runAsUser", 0)]
)
def test_the_level_is_really_enforced(server, field, value):
    loose = copy.deepcopy(pod({}))
    loose["spec"]["containers"][0]["securityContext"][field] = value

    with pytest.raises(ApiError, match="violates PodSecurity"):
        try_out(server, loose)


def test_the_notes_show_the_next_two_commands(installed):
    assert "kubectl apply -f -" in installed
    assert "kubectl get kvr -A" in installed
    assert "create configmap kvmedic-stop" in installed
    assert "No metrics source is configured" in installed


@pytest.mark.parametrize("installed", [EVERYTHING], indirect=True)
def test_the_resource_in_the_notes_is_one_that_the_api_server_takes(server, installed):
    shown = (
        installed.partition("<<'EOF'\n")[2].partition("EOF")[0].replace("MY-", "my-").replace("LLM", "llm")
    )
    manifest = shown.replace("my-NAMESPACE", WATCHED)

    server.kubectl("apply", "--dry-run=server", "--validate=strict", "-f", _file(server, manifest))

    assert "No metrics source" not in installed


def _file(server: LightCluster, text: str) -> str:
    path = Path(server.directory) / "manifest.yaml"
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize("installed", [EVERY_OBJECT], indirect=True)
def test_every_object_is_taken_and_the_replicas_become_ready(server, installed):
    deployment = server.api.get("Deployment", RELEASE, NAMESPACE)

    assert installed
    assert deployment["status"]["readyReplicas"] == 2
    assert server.api.get("PodDisruptionBudget", RELEASE, NAMESPACE)["spec"]["maxUnavailable"] == 1
    assert server.api.get("NetworkPolicy", RELEASE, NAMESPACE)


def test_uninstalling_leaves_the_crd_and_the_resources_and_installing_takes_them_up_again(server):
    install(server)
    manifest = {
        "apiVersion": "kvmedic.io/v1alpha1",
        "kind": "KVRemediation",
        "metadata": {"name": "kept", "namespace": WATCHED},
        "spec": {"targetRef": {"name": "llm"}},
    }
    server.apply(manifest, WATCHED)

    run(server, "uninstall", RELEASE, "--wait")
    left = server.api.get("KVRemediation", "kept", WATCHED)
    install(server)

    assert server.api.get("KVRemediation", "kept", WATCHED)["metadata"]["uid"] == left["metadata"]["uid"]
    server.api.delete("KVRemediation", "kept", WATCHED)
    run(server, "uninstall", RELEASE, "--wait")


def test_an_installation_that_was_killed_in_the_middle_can_be_repeated(server):
    never_ready = json.dumps({"nodeSelector": {"no-such": "node"}})
    argv = [binary(Tool.HELM), "install", RELEASE, CHART, "--wait", "-n", NAMESPACE, "-f", "-"]
    killed = subprocess.Popen([*argv, f"--kubeconfig={server.kubeconfig}"], stdin=subprocess.PIPE, text=True)
    killed.stdin.write(never_ready)
    killed.stdin.close()
    until(lambda: server.api.get("Deployment", RELEASE, NAMESPACE), 30)
    killed.kill()
    killed.wait()
    with pytest.raises(AssertionError, match="another operation"):
        install(server)

    clear_unfinished(server.kubeconfig)

    install(server)
    run(server, "uninstall", RELEASE, "--wait")


def test_an_upgrade_brings_the_crd_of_its_own_version(server):
    install(server)
    path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{CRD}"
    older = server.api.request("GET", path)
    older["spec"]["names"]["shortNames"] = ["older"]
    server.api.request("PUT", path, json=older)

    install(server, {"replicas": 2})

    names = server.api.request("GET", path)["spec"]["names"]
    run(server, "uninstall", RELEASE, "--wait")
    assert names["shortNames"] == ["kvr"]


NEVER = (
    ("get", "", "secrets", ""),
    ("list", "", "secrets", ""),
    ("list", "", "configmaps", ""),
    ("update", "", "configmaps", "kvmedic-stop"),
    ("patch", "", "configmaps", ""),
    ("create", "", "pods", ""),
    ("create", "", "pods/exec", ""),
    ("create", "", "pods/eviction", ""),
    ("get", "", "pods/proxy", ""),
    ("get", "", "nodes", ""),
    ("patch", "", "services", ""),
    ("create", "apps", "deployments", ""),
    ("delete", "apps", "deployments", ""),
    ("patch", "apps", "deployments/scale", ""),
    ("patch", "apps", "replicasets", ""),
    ("create", "kvmedic.io", "kvremediations", ""),
    ("delete", "kvmedic.io", "kvremediations", ""),
    ("update", "coordination.k8s.io", "leases", "another"),
    ("list", "apiextensions.k8s.io", "customresourcedefinitions", ""),
    ("impersonate", "", "serviceaccounts", ""),
    ("create", "rbac.authorization.k8s.io", "rolebindings", ""),
)
"""Verb, group, resource and name of some of what nothing of the operator's should ever ask for."""


def allowed(server: LightCluster, verb: str, row: Permission, namespace: str) -> bool:
    """Whether the operator's ServiceAccount may, as the API server's authorizer sees it."""
    resource, _, subresource = row.resource.partition("/")
    attributes = {
        "verb": verb,
        "group": row.group,
        "resource": resource,
        "subresource": subresource,
        "namespace": namespace,
        "name": row.names[0] if row.names else "",
    }
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {
            "user": f"system:serviceaccount:{NAMESPACE}:{RELEASE}",
            "groups": [
                "system:serviceaccounts",
                f"system:serviceaccounts:{NAMESPACE}",
                "system:authenticated",
            ],
            "resourceAttributes": attributes,
        },
    }
    path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    return bool(server.api.request("POST", path, json=review)["status"]["allowed"])


def granted(row: Permission, grant: Grant, rows: Sequence[Permission], reach: set[str]) -> set[str]:
    """Return the namespaces in which a verb is granted, by rows of these names or one that holds for all."""
    found: set[str] = set()
    for other in rows:
        alike = (other.group, other.resource) == (row.group, row.resource)
        if alike and other.names in {(), row.names} and grant.verb in {each.verb for each in other.grants}:
            some = reach - {OTHER} if OTHER not in reach else set()
            found |= {"own": {NAMESPACE}, "each": some}.get(other.scope, reach)
    return found


@pytest.mark.parametrize(
    ("installed", "reach", "on"),
    [
        (None, {WATCHED, OTHER}, {""}),
        ({"watchNamespaces": [WATCHED]}, {WATCHED}, {""}),
        ({"nodeHealth": {"nvidiaSmi": True}}, {WATCHED, OTHER}, {"", "nodeHealth.nvidiaSmi"}),
        ({"probe": {"trialPods": True}, "watchNamespaces": [WATCHED]}, {WATCHED}, {"", "probe.trialPods"}),
        (
            {"probe": {"trialPods": True, "evaluations": True}},
            {WATCHED, OTHER},
            {"", "probe.trialPods", "probe.evaluations"},
        ),
    ],
    ids=["cluster-wide", "one namespace", "nvidia-smi", "trial pods in one namespace", "evaluations"],
    indirect=["installed"],
)
def test_the_service_account_may_do_what_the_table_says_where_it_says(server, installed, reach, on):
    assert installed
    rows = [row for row in permissions() if row.only in on]
    for row in permissions():
        for grant in row.grants:
            for namespace in (WATCHED, OTHER):
                expected = namespace in granted(row, grant, rows, reach)
                assert allowed(server, grant.verb, row, namespace) is expected, (row, grant, namespace)
            if row.scope == "own":
                assert allowed(server, grant.verb, row, NAMESPACE), (row, grant)


def test_the_service_account_may_do_nothing_else(server, installed):
    given = [
        (verb, group, resource)
        for verb, group, resource, name in NEVER
        if allowed(server, verb, Permission("own", group, resource, (name,) if name else (), ()), NAMESPACE)
    ]

    assert installed
    assert given == []


def test_who_may_view_or_edit_a_namespace_may_view_or_edit_its_resources(server, installed):
    account = f"system:serviceaccount:{WATCHED}:default"

    def may(role: str, verb: str, *resource: str) -> bool:
        server.kubectl(
            "create",
            "rolebinding",
            role,
            f"--clusterrole={role}",
            f"--serviceaccount={WATCHED}:default",
            "-n",
            WATCHED,
        )
        argv = ["auth", "can-i", verb, *resource, "-n", WATCHED, f"--as={account}"]
        try:
            return server.kubectl(*argv).strip() == "yes"
        except subprocess.CalledProcessError:
            return False
        finally:
            server.kubectl("delete", "rolebinding", role, "-n", WATCHED)

    kind = "kvremediations.kvmedic.io"
    assert installed
    assert may("view", "get", kind)
    assert not may("view", "create", kind)
    assert may("edit", "create", kind)
    assert may("edit", "update", kind)
    assert not may("edit", "update", kind, "--subresource=status")


def test_the_kustomize_base_is_taken_under_the_restricted_level(server):
    base = kustomize()
    pod = base["Deployment", RELEASE]["spec"]["template"]["spec"] | {"serviceAccountName": "default"}

    try_out(
        server,
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "namespace": NAMESPACE}, "spec": pod},
    )
    answer = server.kubectl(
        "apply", "--server-side", "--dry-run=server", "--force-conflicts", "-k", str(ROOT / "deploy")
    )

    assert f"deployment.apps/{RELEASE} serverside-applied" in answer
    assert json.dumps(base["Namespace", NAMESPACE]["metadata"]["labels"]).count("restricted") == 1
