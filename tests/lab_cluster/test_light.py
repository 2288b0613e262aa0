"""The light tier keeps its promises: quick, several at once, real controllers, obedient pods."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lab.cluster.api import ApiError, is_rolled_out, until
from lab.cluster.light import DIRECTORY, LightCluster, gpus
from lab.cluster.simulation import behaviour
from lab.cluster.traces import is_running

pytestmark = pytest.mark.light

# Measured 2.6 s on 2 idle cores; the bound leaves room for a machine that others use.
START_BOUND_SECONDS = 20


def deployment(name, args=(), replicas=1, gpu=1, **annotations):
    container = {"name": "vllm", "image": "engine", "args": list(args), "resources": gpus(gpu)}
    labels = {"app": name}
    template = {
        "metadata": {"labels": labels, "annotations": behaviour(**annotations)},
        "spec": {"containers": [container]},
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template},
    }


def pods(cluster, namespace, app):
    return cluster.api.list("Pod", namespace, f"app={app}")


def ready(pod):
    return any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions", ()))


def statuses(cluster, namespace, app):
    """The first container's status of every pod that has one."""
    found = (pod["status"].get("containerStatuses") for pod in pods(cluster, namespace, app))
    return [status[0] for status in found if status]


def test_two_light_clusters_come_up_quickly_do_not_see_each_other_and_outlive_a_killed_api_server(
    private_light,
):
    first = private_light()
    second = private_light(controllers=True, kwok=True, node_gpus=2)
    second.apply([deployment("a", replicas=3)])
    first.create_namespace("only-here")

    print(f"bare {first.start_seconds:.1f} s, with controllers and nodes {second.start_seconds:.1f} s")
    assert max(first.start_seconds, second.start_seconds) < START_BOUND_SECONDS
    with pytest.raises(ApiError, match="404"):
        second.api.get("Namespace", "only-here", None)
    with pytest.raises(ApiError, match="401"):
        second.api.request("GET", "/api/v1/nodes", headers={"Authorization": f"Bearer {first.token}"})

    url = first.url
    first.stop_component("kube-apiserver")
    assert not first.api.is_ready()
    first.start_component("kube-apiserver")
    assert first.url == url
    assert first.api.get("Namespace", "only-here", None)["status"]["phase"] == "Active"

    until(lambda: sum(ready(pod) for pod in pods(second, "default", "a")) == 2)
    (left,) = [pod["metadata"]["name"] for pod in pods(second, "default", "a") if not ready(pod)]
    (condition, *_) = until(lambda: second.api.get("Pod", left)["status"].get("conditions"))
    assert "Insufficient nvidia.com/gpu" in condition["message"], "beyond the GPUs of the node it waits"


def test_a_deployment_becomes_ready_and_its_service_gets_distinct_addresses(light, namespace):
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "a"},
        "spec": {"selector": {"app": "a"}, "ports": [{"port": 80}]},
    }

    light.apply([deployment("a", replicas=4), service], namespace)

    until(lambda: is_rolled_out(light.api.get("Deployment", "a", namespace)))
    slices = "kubernetes.io/service-name=a"
    endpoints = until(lambda: _ready_endpoints(light, namespace, slices, 4))
    assert endpoints == {pod["status"]["podIP"] for pod in pods(light, namespace, "a")}
    assert len(endpoints) == 4


def _ready_endpoints(light, namespace, selector, count):
    found = light.api.list("EndpointSlice", namespace, selector)
    ready_ones = [e for each in found for e in each.get("endpoints", ()) if e["conditions"]["ready"]]
    addresses = {e["addresses"][0] for e in ready_ones}
    return addresses if len(addresses) == count else None


def test_only_pods_with_the_named_argument_crash(light, namespace):
    crash = {"mode": "crash", "mode_when": "--max-num-seqs[= ]12", "restart_after": "300ms", "exit_code": "2"}

    light.apply([deployment("bad", ["--max-num-seqs=12"], **crash)], namespace)
    light.apply([deployment("good", ["--max-num-seqs=16"], **crash)], namespace)

    until(lambda: is_rolled_out(light.api.get("Deployment", "good", namespace)))
    (status,) = until(lambda: [s for s in statuses(light, namespace, "bad") if s["restartCount"] >= 2])
    assert status["lastState"]["terminated"]["exitCode"] == 2
    assert not any(ready(pod) for pod in pods(light, namespace, "bad"))
    assert statuses(light, namespace, "good")[0]["restartCount"] == 0


def test_a_pod_behaves_as_annotated_and_otherwise_when_the_annotation_changes(light, namespace):
    for mode in ("unready", "pending"):
        light.apply([deployment(mode, mode=mode, ready_after="50ms")], namespace)
    light.apply([deployment("a")], namespace)
    (pod,) = until(lambda: [pod for pod in pods(light, namespace, "a") if ready(pod)])
    name = pod["metadata"]["name"]

    light.api.patch("Pod", name, {"metadata": {"annotations": behaviour(mode="unready")}}, namespace)
    until(lambda: not ready(light.api.get("Pod", name, namespace)))
    light.api.patch("Pod", name, {"metadata": {"annotations": behaviour(mode="ready")}}, namespace)
    until(lambda: ready(light.api.get("Pod", name, namespace)))

    for mode, state in (("unready", "running"), ("pending", "waiting")):
        (status,) = until(lambda mode=mode: statuses(light, namespace, mode))
        assert set(status["state"]) == {state}
        assert not ready(pods(light, namespace, mode)[0])


def test_start_and_deletion_take_as_long_as_the_annotations_say(light, namespace):
    light.apply([deployment("a", ready_after="1s", gone_after="1s")], namespace)
    (pod,) = until(lambda: [pod for pod in pods(light, namespace, "a") if pod["status"].get("podIP")])
    name, started = pod["metadata"]["name"], time.monotonic()
    until(lambda: ready(light.api.get("Pod", name, namespace)))
    assert time.monotonic() - started > 0.8

    light.api.patch("Deployment", "a", {"spec": {"replicas": 0}}, namespace)
    until(lambda: "deletionTimestamp" in light.api.get("Pod", name, namespace)["metadata"])
    started = time.monotonic()
    until(lambda: not pods(light, namespace, "a"))
    assert time.monotonic() - started > 0.8


def test_a_service_account_has_its_own_rights_and_no_more(light, namespace):
    light.apply([{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "reader"}}], namespace)
    role = {"metadata": {"name": "reader"}, "apiVersion": "rbac.authorization.k8s.io/v1"}
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]
    subject = {"kind": "ServiceAccount", "name": "reader", "namespace": namespace}
    ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"}
    light.apply(
        [
            {**role, "kind": "Role", "rules": rules},
            {**role, "kind": "RoleBinding", "subjects": [subject], "roleRef": ref},
        ],
        namespace,
    )

    headers = light.impersonate("reader", namespace).headers()

    until(lambda: light.api.request("GET", f"/api/v1/namespaces/{namespace}/pods", headers=headers))
    with pytest.raises(ApiError, match="403"):
        light.api.request("GET", "/api/v1/namespaces/default/pods", headers=headers)
    with pytest.raises(ApiError, match="403"):
        light.api.request("GET", f"/api/v1/namespaces/{namespace}/secrets", headers=headers)


def test_nothing_survives_the_death_of_the_owner():
    script = (
        "from lab.cluster.light import LightCluster; import time\n"
        "with LightCluster() as c:\n"
        "    print(c.directory, *(x.pid for x in c.components.values()), flush=True); time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as owner:
        directory, *pids = owner.stdout.readline().split()
        owner.send_signal(signal.SIGKILL)

    assert len(pids) == 2
    until(lambda: not any(is_running(int(pid)) for pid in pids), 10, "components are gone")
    assert Path(directory).is_relative_to(DIRECTORY)
    with LightCluster():
        assert not Path(directory).exists()
