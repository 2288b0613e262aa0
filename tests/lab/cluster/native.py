"""A real one-node cluster on this Linux machine, without Docker: Kubernetes from Go modules, containerd.

Needs root. Everything lies in `build/lab/native`; what a node must change elsewhere (a bridge, iptables
chains, control groups, kernel settings) is taken back by `down`, also after a crash.
"""

import json
import os
import platform
from pathlib import Path

from lab.cluster import network, traces
from lab.cluster.api import Api, until
from lab.cluster.controlplane import KUBELET_GROUP, Addresses, ControlPlane
from lab.cluster.interface import Cluster, is_ready, set_gpus
from lab.cluster.machine import (
    BUILD,
    CLUSTER_PACKAGES,
    KUBECONFIG,
    Stopwatch,
    ensure_packages,
    free_ports,
    locked,
    say,
    step,
)
from lab.cluster.node import NAME, PAUSE_IMAGE, Node
from lab.cluster.pki import Access, read_kubeconfig
from lab.cluster.process import Component
from lab.cluster.toolchain import Tool, binary
from lab.images import write_program_image
from lab.kind.cluster import KindCluster
from lab.kind.engine import docker_answers

DIRECTORY = BUILD / "native"
API_PORT = 26443
_LOCK = BUILD / "native.lock"
# A Unix socket's path has 107 bytes, and the kubelet's longest is 40 below the directory.
_LONGEST_DIRECTORY = 66
# No volumes from providers, no node addresses to hand out, nobody asks for certificates.
_CONTROLLERS = (
    "*",
    "-persistentvolume-attach-detach-controller",
    "-persistentvolume-binder-controller",
    "-persistentvolume-expander-controller",
    "-persistentvolume-protection-controller",
    "-volumeattributesclass-protection-controller",
    "-certificatesigningrequest-approving-controller",
    "-certificatesigningrequest-cleaner-controller",
    "-certificatesigningrequest-signing-controller",
    "-node-ipam-controller",
    "-cronjob-controller",
)


class NativeCluster:
    """The cluster of `build/lab/native`; there is one per machine, because bridge and addresses are fixed."""

    def __init__(self, directory: Path = DIRECTORY) -> None:
        self.directory = directory

    @property
    def access(self) -> Access:
        return read_kubeconfig(KUBECONFIG)

    @property
    def host_address(self) -> str:
        """The bridge's address, which is the node's."""
        return network.NODE_IP

    @property
    def has_registry(self) -> bool:
        """None: images are made of Debian's packages."""
        return False

    def up(self, gpus: int) -> None:
        """Bring the cluster up; one that is up stays, one that is half up is taken down first."""
        _refuse_other_machines()
        with locked(_LOCK):
            if self.is_up():
                set_gpus(self.access, gpus)
                say(f"the cluster is up already; kubeconfig {KUBECONFIG}")
            else:
                self._remove()
                self._create(gpus)

    def down(self) -> None:
        """Remove the cluster and all its traces; harmless when there is none."""
        with locked(_LOCK):
            self._remove()

    def _create(self, gpus: int) -> None:
        watch = Stopwatch()
        ensure_packages(CLUSTER_PACKAGES)
        clear_abandoned()
        self._refuse_conflicts()
        for tool in (Tool.PAUSE, Tool.KUBE):
            binary(tool)
        self._start(gpus)
        say(f"the cluster is up after {watch.seconds:.1f} s; kubeconfig {KUBECONFIG}")

    def _remove(self) -> None:
        """End every process, then remove mounts, control groups, links, rules, settings and files."""
        if not self._before.exists():
            return
        with step("taking the cluster down"):
            traces.end_processes(lambda: [*traces.processes(self.directory), *traces.pod_processes()])
            traces.unmount(self.directory)
            traces.remove_cgroups()
            network.remove_bridge()
            network.remove_cni_results()
            traces.clean_iptables()
            traces.remove_links_to(self.directory, Path("/var/log/containers"))
            traces.remove_dead_sockets(Path("/run/containerd/s"))
            traces.remove_dead_sockets(Path("/var/lib/kubelet/device-plugins"))
            network.write_sysctls(json.loads(self._before.read_text()))
            traces.remove_tree(self.directory)
            KUBECONFIG.unlink(missing_ok=True)

    def is_up(self) -> bool:
        """Whether every component runs, the API server answers and the node is Ready."""
        running = set(self.running().values())
        return KUBECONFIG.exists() and running >= set(COMPONENTS) and is_ready(self.access)

    def running(self) -> dict[int, str]:
        """The cluster's processes with those of its pods, by process id."""
        return traces.processes(self.directory)

    def load_image(self, archive: Path, reference: str) -> None:
        """Import a docker-archive; one with the same content under the same name is skipped."""
        if reference in self._images():
            return
        with step(f"loading {reference}"):
            done = self._node.ctr("images", "import", str(archive))
            if done.returncode != 0 or reference not in self._images():
                raise RuntimeError(f"{archive} gave no image {reference}: {done.stderr or done.stdout}")

    @property
    def _before(self) -> Path:
        return self.directory / "before.json"

    @property
    def _node(self) -> Node:
        return Node(binary(Tool.KUBE), self.directory)

    def _images(self) -> set[str]:
        return set(self._node.ctr("images", "list", "--quiet").stdout.split())

    def _refuse_conflicts(self) -> None:
        if len(str(self.directory)) > _LONGEST_DIRECTORY:
            raise RuntimeError(f"{self.directory} is too long for the sockets in it; clone to a shorter path")
        network.refuse_second_lab()
        if chains := traces.kube_chains():
            raise RuntimeError(f"another Kubernetes uses this machine's iptables: {chains[0]}")
        network.refuse_overlap()

    def _start(self, gpus: int) -> None:
        self.directory.mkdir(parents=True)
        # Written before the first change: shows the next `up` or `down` that there is something to undo.
        self._before.write_text(json.dumps(network.read_sysctls()))
        network.add_bridge(self.directory)
        network.write_cni(self.directory / "cni", self.directory / "leases")
        node = self._node
        plane = self._control_plane()
        with step("starting containerd"):
            _launch(node.containerd()).await_ready(node.is_serving)
            self._load_pause()
        with step("starting the control plane"):
            self._start_control_plane(plane)
        with step("starting the node"):
            self._start_node(plane, node)
        plane.identity("admin", "system:masters").write_kubeconfig(KUBECONFIG)
        set_gpus(self.access, gpus)

    def _control_plane(self) -> ControlPlane:
        etcd, peer = free_ports(2)
        ports = Addresses(etcd, peer, API_PORT, host=network.NODE_IP, services=network.SERVICES)
        env = {traces.MARKER: str(self.directory)}
        return ControlPlane(binary(Tool.KUBE), self.directory, ports, outlives_owner=True, env=env)

    def _start_control_plane(self, plane: ControlPlane) -> None:
        # Tokens are read once, at the start of the API server: all identities are made before.
        admin = plane.identity("admin", "system:masters")
        plane.identity(f"system:node:{NAME}", KUBELET_GROUP)
        plane.identity("system:kube-proxy", "")
        _launch(plane.etcd())
        with Api(admin) as api:
            _launch(plane.apiserver()).await_ready(api.is_ready)
        _launch(plane.controller_manager(_CONTROLLERS))
        _launch(plane.scheduler())

    def _start_node(self, plane: ControlPlane, node: Node) -> None:
        serving = plane.pki.sign(
            "kubelet", f"/O=system:nodes/CN=system:node:{NAME}", [f"IP:{network.NODE_IP}"]
        )
        access = plane.identity(f"system:node:{NAME}", KUBELET_GROUP)
        kubelet = _launch(node.kubelet(access, plane.pki.certificate, serving))
        proxy = plane.identity("system:kube-proxy", "")
        _launch(node.kube_proxy(proxy, masquerade_all=not network.sees_bridged_packets()))
        admin = plane.identity("admin", "system:masters")
        kubelet.await_ready(lambda: is_ready(admin))
        with Api(admin) as api:
            until(lambda: api.get("ServiceAccount", "default"), 30, "the default service account")

    def _load_pause(self) -> None:
        archive = self.directory / "pause.tar"
        write_program_image(binary(Tool.PAUSE), PAUSE_IMAGE, archive)
        self.load_image(archive, PAUSE_IMAGE)


COMPONENTS = (
    "containerd",
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubelet",
    "kube-proxy",
)


def _launch(component: Component) -> Component:
    component.start()
    return component


def clear_abandoned() -> None:
    """Remove what another clone's cluster left when it died; one that is alive is left alone.

    The caller holds the lock.
    """
    owner = network.bridge_owner()
    if owner is None or traces.processes(owner):
        return
    with step("removing what another clone's dead cluster left"):
        NativeCluster(owner)._remove()
        network.remove_bridge()
        traces.clean_iptables()


def _refuse_other_machines() -> None:
    if platform.system() != "Linux":
        raise RuntimeError("the native cluster needs Linux; start a Docker engine and kind is used instead")
    if os.geteuid() != 0:
        raise PermissionError("the native cluster needs root: run this with sudo, or start a Docker engine")


VARIABLE = "LAB_CLUSTER"


def choose() -> Cluster:
    """The cluster of this machine; the environment variable LAB_CLUSTER=native or =kind overrules."""
    wish = os.environ.get(VARIABLE, "")
    if wish not in ("", "native", "kind"):
        raise ValueError(f"{VARIABLE}={wish}: give native or kind, or leave it unset")
    if wish == "kind" or (not wish and docker_answers()):
        return KindCluster()
    return NativeCluster()
