"""The native cluster comes and goes without a trace, whatever happens on the way."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lab.cluster import native, traces
from lab.cluster.api import Api, until
from lab.cluster.interface import is_ready
from lab.cluster.machine import KUBECONFIG, program
from lab.cluster.native import NativeCluster
from lab.cluster.network import BRIDGE, BRIDGE_MAC
from lab.cluster.node import PAUSE_IMAGE
from lab_cluster.footprint import differences, footprint

pytestmark = pytest.mark.takes_cluster_down

# Measured 4.3 to 5.7 s on 2 cores once the binary is built.
UP_BOUND_SECONDS = 60


def lab(*arguments):
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "lab", *arguments], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return time.monotonic() - started


@pytest.fixture
def before():
    """What the machine looks like without a cluster; one that is up is taken down, also a foreign one."""
    lab("down")
    yield footprint()
    lab("down")


def run_pods(api, count):
    labels = {"app": "pause"}
    pod = {
        "metadata": {"labels": labels},
        "spec": {"containers": [{"name": "pause", "image": PAUSE_IMAGE, "imagePullPolicy": "Never"}]},
    }
    spec = {"replicas": count, "selector": {"matchLabels": labels}, "template": pod}
    service = {"selector": labels, "ports": [{"port": 80}]}
    api.apply({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "pause"}, "spec": spec})
    api.apply({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "pause"}, "spec": service})
    until(lambda: api.get("Deployment", "pause")["status"].get("availableReplicas") == count, 60)


def test_a_cluster_with_pods_comes_and_goes_without_a_trace(before):
    up_seconds = lab("up", "--gpus=2")
    cluster = NativeCluster()
    with Api(cluster.access) as api:
        run_pods(api, 3)
    assert Path("/sys/class/net", BRIDGE, "address").read_text().strip() == BRIDGE_MAC
    during = footprint()

    down_seconds = lab("down")

    print(f"up {up_seconds:.1f} s, down {down_seconds:.1f} s")
    assert up_seconds < UP_BOUND_SECONDS
    for kind in ("processes", "mounts", "links", "rules", "routes", "control groups", "files"):
        assert during[kind] - before[kind], f"the comparison is blind for {kind}"
    assert differences(before, footprint()) == {}
    assert not KUBECONFIG.exists()


def test_up_twice_keeps_the_processes_and_changes_the_gpus(before):
    lab("up", "--gpus=2")
    cluster = NativeCluster()
    processes = cluster.running()

    lab("up", "--gpus=5")

    assert cluster.running() == processes
    with Api(cluster.access) as api:
        (node,) = api.list("Node", None)
    assert node["status"]["allocatable"]["nvidia.com/gpu"] == "5"
    lab("down")
    lab("down")
    assert differences(before, footprint()) == {}


@pytest.mark.parametrize("last", ["containerd", "kube-apiserver", "kube-proxy"])
def test_an_up_that_was_killed_is_cleaned_by_the_next_one(before, last):
    cluster = NativeCluster()
    with subprocess.Popen([sys.executable, "-m", "lab", "up"], stderr=subprocess.DEVNULL) as up:
        until(lambda: last in cluster.running().values(), 60, f"{last} runs")
        up.send_signal(signal.SIGKILL)
    left = set(cluster.running())
    assert left

    lab("up")

    assert not left & set(cluster.running())
    assert is_ready(cluster.access)
    lab("down")
    assert differences(before, footprint()) == {}


def test_a_cluster_whose_component_died_is_made_anew(before):
    lab("up")
    cluster = NativeCluster()
    (scheduler,) = [pid for pid, name in cluster.running().items() if name == "kube-scheduler"]
    os.kill(scheduler, signal.SIGKILL)
    until(lambda: not cluster.is_up(), 10)

    lab("up")

    assert cluster.is_up()


def test_the_bridge_of_another_clone_is_left_alone(before):
    ip = program("ip")
    subprocess.run([ip, "link", "add", BRIDGE, "type", "bridge"], check=True)
    with subprocess.Popen(["sleep", "60"], env={**os.environ, traces.MARKER: "/elsewhere"}) as alive:
        try:
            subprocess.run([ip, "link", "set", BRIDGE, "alias", "/elsewhere"], check=True)

            done = subprocess.run(
                [sys.executable, "-m", "lab", "up"], capture_output=True, text=True, check=False
            )

            assert done.returncode == 1
            assert f"{BRIDGE} belongs to the cluster of /elsewhere; take that one down first" in done.stderr
            assert Path("/sys/class/net", BRIDGE).exists()
        finally:
            alive.kill()
            subprocess.run([ip, "link", "delete", BRIDGE], check=True)
    assert differences(before, footprint()) == {}


def test_what_another_clones_dead_cluster_left_is_removed(before, tmp_path):
    lab("up")
    there = NativeCluster()
    elsewhere = tmp_path / "native"
    traces.end_processes(there.running)
    traces.unmount(there.directory)
    there.directory.rename(elsewhere)
    subprocess.run([program("ip"), "link", "set", BRIDGE, "alias", str(elsewhere)], check=True)

    lab("up")

    assert there.is_up()
    assert not elsewhere.exists()
    lab("down")
    assert differences(before, footprint()) == {}


def test_a_dead_clone_whose_files_are_gone_leaves_a_bridge_that_is_removed(before):
    ip = program("ip")
    subprocess.run([ip, "link", "add", BRIDGE, "type", "bridge"], check=True)
    subprocess.run([ip, "link", "set", BRIDGE, "alias", "/elsewhere"], check=True)

    native.clear_abandoned()

    assert not Path("/sys/class/net", BRIDGE).exists()
    assert differences(before, footprint()) == {}
