"""Command lines of etcd and the control plane, the same for the light tier and the native cluster."""

import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lab.cluster.pki import Access, Authority
from lab.cluster.process import Component

ADMIN, KUBELET_GROUP = "system:masters", "system:nodes"
FRONT_PROXY = "front-proxy-client"
LIGHT_CONTROLLERS = (
    "deployment-controller",
    "replicaset-controller",
    "statefulset-controller",
    "job-controller",
    "endpointslice-controller",
    "serviceaccount-controller",
    "namespace-controller",
    "garbage-collector-controller",
    "disruption-controller",
    "resourcequota-controller",
    "clusterrole-aggregation-controller",
    "horizontal-pod-autoscaler-controller",
    "validatingadmissionpolicy-status-controller",
)


@dataclass(frozen=True)
class Addresses:
    """Where a control plane listens; ports on `host` except those of etcd, which stay on loopback."""

    etcd: int
    etcd_peer: int
    api: int
    host: str = "127.0.0.1"
    services: str = "10.78.0.0/24"


@dataclass
class ControlPlane:
    """Makes the components of one cluster; everything it writes lies in `directory`."""

    kube: Path
    directory: Path
    addresses: Addresses
    api_flags: Sequence[str] = ()
    outlives_owner: bool = False
    env: Mapping[str, str] = field(default_factory=dict)
    tokens: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.pki = Authority(self.directory / "pki")

    @property
    def url(self) -> str:
        return f"https://{self.addresses.host}:{self.addresses.api}"

    def identity(self, user: str, group: str) -> Access:
        """A token of its own for one component or person; known to the API server from its next start on."""
        token = self.tokens.setdefault(f"{user},{user},{group}", secrets.token_hex(16))
        return Access(self.url, self.pki.certificate, token)

    def admin_kubeconfig(self) -> Path:
        """The administrator's kubeconfig, in this cluster's own directory."""
        return self.identity("admin", ADMIN).write_kubeconfig(self.directory / "kubeconfig")

    def etcd(self) -> Component:
        """etcd without fsync: the lab's data may die with the machine."""
        client = f"http://127.0.0.1:{self.addresses.etcd}"
        peer = f"http://127.0.0.1:{self.addresses.etcd_peer}"
        return self._component(
            "etcd",
            "--data-dir=etcd",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--unsafe-no-fsync",
            "--log-level=warn",
        )

    def apiserver(self) -> Component:
        """kube-apiserver with RBAC, token and client-certificate authentication and its own authority."""
        self._write_tokens()
        host = self.addresses.host
        names = ("IP:127.0.0.1", f"IP:{host}", f"IP:{_first_of(self.addresses.services)}")
        certificate, key = self.pki.sign(
            "apiserver", "/CN=kube-apiserver", (*names, "DNS:localhost", "DNS:kubernetes.default.svc")
        )
        client, client_key = self.pki.sign("kubelet-client", "/O=system:masters/CN=kube-apiserver-kubelet")
        signing_key = self.pki.signing_key()
        return self._component(
            "kube-apiserver",
            f"--etcd-servers=http://127.0.0.1:{self.addresses.etcd}",
            f"--secure-port={self.addresses.api}",
            f"--bind-address={host}",
            f"--advertise-address={host}" if host != "127.0.0.1" else "--endpoint-reconciler-type=none",
            f"--tls-cert-file={certificate}",
            f"--tls-private-key-file={key}",
            f"--client-ca-file={self.pki.certificate}",
            *self._front_proxy(),
            f"--kubelet-client-certificate={client}",
            f"--kubelet-client-key={client_key}",
            "--kubelet-preferred-address-types=InternalIP",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-signing-key-file={signing_key}",
            f"--service-account-key-file={signing_key}",
            "--token-auth-file=tokens.csv",
            "--authorization-mode=Node,RBAC",
            f"--service-cluster-ip-range={self.addresses.services}",
            "--allow-privileged=true",
            "--profiling=false",
            *self.api_flags,
        )

    def _front_proxy(self) -> tuple[str, ...]:
        """How aggregated APIs, such as that of external metrics, know whom the API server asks for."""
        certificate, key = self.pki.sign(FRONT_PROXY, f"/CN={FRONT_PROXY}")
        return (
            f"--requestheader-client-ca-file={self.pki.certificate}",
            f"--requestheader-allowed-names={FRONT_PROXY}",
            "--requestheader-username-headers=X-Remote-User",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            f"--proxy-client-cert-file={certificate}",
            f"--proxy-client-key-file={key}",
        )

    def controller_manager(self, controllers: Sequence[str] = ("*",), *flags: str) -> Component:
        """kube-controller-manager without a port of its own and without the client's default rate limit."""
        return self._component(
            "kube-controller-manager",
            f"--kubeconfig={self.admin_kubeconfig()}",
            f"--controllers={','.join(controllers)}",
            f"--service-account-private-key-file={self.pki.signing_key()}",
            f"--root-ca-file={self.pki.certificate}",
            "--leader-elect=false",
            "--secure-port=0",
            "--kube-api-qps=200",
            "--kube-api-burst=400",
            "--profiling=false",
            *flags,
        )

    def scheduler(self) -> Component:
        return self._component(
            "kube-scheduler",
            f"--kubeconfig={self.admin_kubeconfig()}",
            "--leader-elect=false",
            "--secure-port=0",
            "--kube-api-qps=200",
            "--kube-api-burst=400",
            "--profiling=false",
        )

    def _component(self, name: str, *flags: str) -> Component:
        argv = [str(self.kube), name, *flags]
        return Component(name, argv, self.directory, env=self.env, outlives_owner=self.outlives_owner)

    def _write_tokens(self) -> None:
        self.identity("admin", ADMIN)
        lines = []
        for who, token in self.tokens.items():
            user, uid, group = who.split(",")
            lines.append(f'{token},{user},{uid},"{group}"\n')
        path = self.directory / "tokens.csv"
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.writelines(lines)


def _first_of(network: str) -> str:
    return network.rsplit(".", 1)[0] + ".1"
