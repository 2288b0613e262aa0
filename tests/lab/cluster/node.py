"""One real node: containerd, kubelet and kube-proxy with their configuration."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

import yaml

from lab.cluster.machine import program
from lab.cluster.network import NODE_IP, PODS
from lab.cluster.pki import Access
from lab.cluster.process import Component
from lab.cluster.traces import MARKER

NAME = "node1"
KUBELET_PORT = 26250
PAUSE_IMAGE = "localhost/kvmedic-lab/pause:1"


@dataclass(frozen=True)
class Node:
    """Makes the node's components; everything they write lies in `directory`."""

    kube: Path
    directory: Path

    @property
    def socket(self) -> Path:
        return self.directory / "containerd" / "sock"

    @property
    def logs(self) -> Path:
        return self.directory / "pods"

    def containerd(self) -> Component:
        """containerd with its whole state, network namespaces included, under the cluster's directory."""
        config = self.directory / "containerd.toml"
        config.write_text(_CONTAINERD.format(directory=self.directory, pause=PAUSE_IMAGE, cni=_cni_plugins()))
        return self._component("containerd", program("containerd"), f"--config={config}")

    def kubelet(self, access: Access, ca_file: Path, serving: tuple[Path, Path]) -> Component:
        """kubelet on the bridge address only; requests are authenticated and authorised by the API server."""
        config = self._write("kubelet.yaml", self._kubelet_configuration(ca_file, serving))
        root = self.directory / "kubelet"
        _share(root)
        return self._component(
            "kubelet",
            str(self.kube),
            "kubelet",
            f"--config={config}",
            f"--kubeconfig={access.write_kubeconfig(self.directory / 'kubelet.kubeconfig')}",
            f"--root-dir={root}",
            f"--cert-dir={self.directory / 'pki'}",
            f"--hostname-override={NAME}",
            f"--node-ip={NODE_IP}",
        )

    def kube_proxy(self, access: Access, *, masquerade_all: bool) -> Component:
        """kube-proxy by iptables; `masquerade_all` where the kernel hides bridged packets from iptables."""
        kubeconfig = access.write_kubeconfig(self.directory / "kube-proxy.kubeconfig")
        config = self._write("kube-proxy.yaml", _proxy_configuration(kubeconfig, masquerade_all))
        return self._component("kube-proxy", str(self.kube), "kube-proxy", f"--config={config}")

    def is_serving(self) -> bool:
        return self.ctr("version").returncode == 0

    def ctr(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """containerd's client in the kubelet's image namespace."""
        argv = [program("ctr"), "--address", str(self.socket), "--namespace", "k8s.io", *arguments]
        return subprocess.run(argv, capture_output=True, text=True, check=False)

    def _component(self, name: str, *argv: str) -> Component:
        env = {MARKER: str(self.directory)}
        return Component(name, list(argv), self.directory, env=env, outlives_owner=True)

    def _write(self, name: str, content: dict[str, object]) -> Path:
        path = self.directory / name
        path.write_text(yaml.safe_dump(content))
        return path

    def _kubelet_configuration(self, ca_file: Path, serving: tuple[Path, Path]) -> dict[str, object]:
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": NODE_IP,
            "port": KUBELET_PORT,
            "healthzPort": 0,
            "readOnlyPort": 0,
            "tlsCertFile": str(serving[0]),
            "tlsPrivateKeyFile": str(serving[1]),
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(ca_file)},
            },
            "authorization": {"mode": "Webhook"},
            "containerRuntimeEndpoint": f"unix://{self.socket}",
            "podLogsDir": str(self.logs),
            "cgroupDriver": "cgroupfs",
            # Version 1 is what older machines and some virtual ones still have.
            "failCgroupV1": False,
            "failSwapOn": False,
            "resolvConf": "",
            "enforceNodeAllocatable": [],
            # The lab must not evict because a laptop's disk is 90 % full.
            "evictionHard": {
                "memory.available": "1Mi",
                "nodefs.available": "1%",
                "nodefs.inodesFree": "1%",
                "imagefs.available": "1%",
            },
            "imageGCHighThresholdPercent": 100,
            "nodeStatusUpdateFrequency": "5s",
            "serializeImagePulls": False,
        }


def _share(root: Path) -> None:
    """Mount a folder on itself, shared, as the kubelet would do while it starts.

    It would do so beside making sockets in there, and end when one of them is renamed at that very moment
    (seen once: "invalid cross-device link"). A folder that is shared already is left as it is.
    """
    root.mkdir(parents=True, exist_ok=True)
    for options in (("--bind", str(root), str(root)), ("--make-rshared", str(root))):
        subprocess.run([program("mount"), *options], check=True, capture_output=True)


def _proxy_configuration(kubeconfig: Path, masquerade_all: bool) -> dict[str, object]:
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "clientConnection": {"kubeconfig": str(kubeconfig)},
        "mode": "iptables",
        "hostnameOverride": NAME,
        "clusterCIDR": PODS,
        "nodePortAddresses": [f"{NODE_IP}/32"],
        "healthzBindAddress": "127.0.0.1:26256",
        "metricsBindAddress": "127.0.0.1:26249",
        "iptables": {"masqueradeAll": masquerade_all, "localhostNodePorts": False},
        # Limits of the whole machine, which are not the lab's to change.
        "conntrack": {"maxPerCore": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
    }


def _cni_plugins() -> str:
    for folder in ("/usr/lib/cni", "/opt/cni/bin"):
        if Path(folder, "bridge").exists():
            return folder
    raise FileNotFoundError("no CNI bridge plugin; install containernetworking-plugins")


# restrict_oom_score_adj: without CAP_SYS_RESOURCE nobody may lower it, and runc would die with "can't get
# final child's PID from pipe".
_CONTAINERD = """\
version = 2
root = "{directory}/containerd/root"
state = "{directory}/containerd/state"
disabled_plugins = [
  "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs",
  "io.containerd.internal.v1.tracing", "io.containerd.tracing.processor.v1.otlp",
]
[grpc]
  address = "{directory}/containerd/sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      Root = "{directory}/containerd/runc"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{cni}"
    conf_dir = "{directory}/cni"
"""
