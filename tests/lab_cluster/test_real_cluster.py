"""What the operator and the demo rely on works on the lab's real cluster."""

import http.client
import json
import ssl
import textwrap
import threading
import urllib.request
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest

from lab.cluster.api import ApiError, is_rolled_out, until
from lab.installation import DENY_ALL
from lab.kind.cluster import KindCluster

RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}
SAFE = {
    "allowPrivilegeEscalation": False,
    "runAsNonRoot": True,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}


@pytest.fixture(scope="module")
def image(probe_image):
    return probe_image


@pytest.fixture
def http_server(cluster):
    """Port of a server on the address of this machine that pods reach."""
    server = ThreadingHTTPServer((cluster.host_address, 0), SimpleHTTPRequestHandler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


def container(image, *command, **more):
    given = {"command": list(command)} if command else {}
    return {
        "name": "main",
        "image": image,
        "imagePullPolicy": "Never",
        "securityContext": SAFE,
        **given,
        **more,
    }


def pod(name, *containers, **spec):
    labels = {"app": name}
    metadata = {"name": name, "labels": labels}
    spec = {"containers": list(containers), "terminationGracePeriodSeconds": 1, **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def outcome(api, namespace, manifest):
    """Run a pod to its end and return its log."""
    name = manifest["metadata"]["name"]
    api.create({**manifest, "spec": {**manifest["spec"], "restartPolicy": "Never"}}, namespace)
    path = f"/api/v1/namespaces/{namespace}/pods/{name}"
    phase = until(lambda: _ended(api.get("Pod", name, namespace)), 60, f"{name} ends")
    log = api.http.get(f"{path}/log").text
    assert phase == "Succeeded", log
    return log


def _ended(pod):
    phase = pod["status"].get("phase")
    return phase if phase in ("Succeeded", "Failed") else None


def test_a_service_answers_on_its_address_from_the_machine_and_from_a_pod(api, real_namespace, image):
    probe = {"httpGet": {"path": "/", "port": 8000}, "periodSeconds": 1}
    labels = {"app": "web"}
    template = pod("web", container(image, readinessProbe=probe))
    spec = {
        "replicas": 2,
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": template["spec"]},
    }
    service = {"selector": labels, "ports": [{"port": 80, "targetPort": 8000}]}
    api.apply(
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": spec},
        real_namespace,
    )
    api.apply(
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}, "spec": service}, real_namespace
    )
    until(lambda: is_rolled_out(api.get("Deployment", "web", real_namespace)), 60)
    address = api.get("Service", "web", real_namespace)["spec"]["clusterIP"]

    def fetch():
        try:
            with urllib.request.urlopen(f"http://{address}/", timeout=5) as answer:
                return answer.status
        except OSError:
            # kube-proxy takes a moment to learn of the endpoints.
            return None

    assert until(fetch, 10) == 200
    # Twenty fresh connections: replies between pods of one bridge find their way back from every replica.
    code = f"""
    import urllib.request
    print({{urllib.request.urlopen("http://{address}/", timeout=5).status for _ in range(20)}})
    """
    log = outcome(
        api, real_namespace, pod("client", container(image, "python3", "-c", textwrap.dedent(code)))
    )
    assert log.strip() == "{200}"


def test_a_pod_reaches_the_api_server_with_the_rights_of_its_service_account(api, real_namespace, image):
    code = """
    import json, os, ssl, urllib.error, urllib.request
    base = "/var/run/secrets/kubernetes.io/serviceaccount/"
    url = "https://" + os.environ["KUBERNETES_SERVICE_HOST"] + ":" + os.environ["KUBERNETES_SERVICE_PORT"]
    trust = ssl.create_default_context(cafile=base + "ca.crt")
    headers = {"Authorization": "Bearer " + open(base + "token").read()}
    def ask(path):
        try:
            request = urllib.request.Request(url + path, headers=headers)
            return urllib.request.urlopen(request, context=trust).status
        except urllib.error.HTTPError as error:
            return error.code
    print(json.dumps([ask("/version"), ask("/api/v1/nodes")]))
    """

    log = outcome(api, real_namespace, pod("asker", container(image, "python3", "-c", textwrap.dedent(code))))

    assert json.loads(log) == [200, 403]


def test_a_pod_reaches_a_server_of_this_machine(api, cluster, real_namespace, image, http_server):
    code = (
        f"import urllib.request as u; print(u.urlopen('http://{cluster.host_address}:{http_server}/').status)"
    )

    log = outcome(api, real_namespace, pod("dialer", container(image, "python3", "-c", code)))

    assert log.strip() == "200"


def test_a_policy_that_denies_all_counts_on_kind_alone(api, cluster, real_namespace, image, http_server):
    api.apply(DENY_ALL, real_namespace)
    code = f"""
    import time, urllib.request
    url = "http://{cluster.host_address}:{http_server}/"
    def reaches():
        try:
            return urllib.request.urlopen(url, timeout=2).status == 200
        except OSError:
            return False
    refused = 0
    for _ in range(10):
        time.sleep(0.5)
        refused = 0 if reaches() else refused + 1
        if refused == 3:  # a busy machine may be late once
            print("refused")
            break
    else:
        print("reached")
    """

    log = outcome(
        api, real_namespace, pod("dialer", container(image, "python3", "-c", textwrap.dedent(code)))
    )

    assert log.strip() == ("refused" if isinstance(cluster, KindCluster) else "reached")


def test_restricted_pod_security_refuses_root_and_takes_the_safe_pod(api, new_real_namespace, image):
    namespace = new_real_namespace(RESTRICTED)
    unsafe = container(image)
    del unsafe["securityContext"]

    with pytest.raises(ApiError, match=r"403: .*violates PodSecurity \"restricted:latest\""):
        api.create(pod("unsafe", unsafe), namespace)
    assert (
        outcome(api, namespace, pod("safe", container(image, "python3", "-c", "print('ran')"))).strip()
        == "ran"
    )


def test_an_admission_policy_refuses_with_its_own_message(api, new_real_namespace):
    namespace = new_real_namespace({"lab.kvmedic.io/no-configmaps": "true"})
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}
    match = {"resourceRules": [rule]}
    policy = {
        "matchConstraints": match,
        "validations": [{"expression": "object.data.size() < 2", "message": "one entry at most"}],
    }
    selector = {"namespaceSelector": {"matchLabels": {"lab.kvmedic.io/no-configmaps": "true"}}}
    group = "admissionregistration.k8s.io/v1"
    name = {"name": f"{namespace}-small"}
    binding = {"policyName": name["name"], "validationActions": ["Deny"], "matchResources": selector}
    api.apply({"apiVersion": group, "kind": "ValidatingAdmissionPolicy", "metadata": name, "spec": policy})
    api.apply(
        {"apiVersion": group, "kind": "ValidatingAdmissionPolicyBinding", "metadata": name, "spec": binding}
    )
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "c-"}}

    def refusal():
        try:
            api.create({**config, "data": {"a": "1", "b": "2"}}, namespace)
        except ApiError as error:
            return str(error)
        return ""

    try:
        assert "one entry at most" in until(refusal, 15, "the policy is in force")
        api.create({**config, "data": {"a": "1"}}, namespace)
    finally:
        api.delete("ValidatingAdmissionPolicyBinding", name["name"])
        api.delete("ValidatingAdmissionPolicy", name["name"])


def test_pods_beyond_the_gpus_wait_until_there_are_more(api, cluster, real_namespace, image):
    node = api.list("Node", None)[0]["status"]["allocatable"]["nvidia.com/gpu"]
    resources = {"limits": {"nvidia.com/gpu": str(int(node) + 1)}}

    api.create(pod("greedy", container(image, "sleep", "60", resources=resources)), real_namespace)

    until(lambda: "Insufficient nvidia.com/gpu" in str(api.get("Pod", "greedy", real_namespace)["status"]))
    assert "nodeName" not in api.get("Pod", "greedy", real_namespace)["spec"]


def test_the_kubelet_answers_nobody_without_credentials(api):
    node = api.list("Node", None)[0]["status"]
    host = next(a["address"] for a in node["addresses"] if a["type"] == "InternalIP")
    port = node["daemonEndpoints"]["kubeletEndpoint"]["Port"]
    unverified = ssl._create_unverified_context()

    connection = http.client.HTTPSConnection(host, port, context=unverified, timeout=5)
    try:
        connection.request("GET", "/pods")
        assert connection.getresponse().status == 401
    finally:
        connection.close()


def test_pre_stop_runs_and_a_terminating_pod_still_answers(api, real_namespace, image):
    hook = {"preStop": {"exec": {"command": ["sleep", "3"]}}}
    manifest = pod("web", container(image, lifecycle=hook), terminationGracePeriodSeconds=10)
    api.create(manifest, real_namespace)
    address = until(lambda: api.get("Pod", "web", real_namespace)["status"].get("podIP"), 30)

    def answers():
        try:
            with urllib.request.urlopen(f"http://{address}:8000/", timeout=2) as answer:
                return answer.status == 200
        except OSError:
            return False

    until(answers, 20)
    api.delete("Pod", "web", real_namespace)
    until(lambda: "deletionTimestamp" in api.get("Pod", "web", real_namespace)["metadata"])
    assert answers()
    until(lambda: not api.list("Pod", real_namespace), 20)
    assert not answers()
