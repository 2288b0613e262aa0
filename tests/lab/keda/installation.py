"""Real KEDA for a cluster: its own definitions and rights, its operator and its metrics adapter.

Both run on this machine with no more than the ServiceAccount's rights that KEDA's own manifests give, as a
pod of theirs would, and the HPA controller asks the adapter through the API server's aggregation. The
certificates are the lab's: what KEDA makes itself (`--enable-cert-rotation`) ends its process and waits for a
kubelet to start it again with the Secret mounted. Its admission webhooks are not part of it.
"""

import base64
import socket
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from types import MappingProxyType

from lab.cluster import traces
from lab.cluster.api import Api, ApiError, Object, read_manifests
from lab.cluster.machine import free_ports, locked, step
from lab.cluster.pki import Access, Authority
from lab.cluster.process import Component
from lab.cluster.toolchain import Tool, binary, module_directory

MODULE = "github.com/kedacore/keda/v2"
GROUP = "keda.sh/"
NAMESPACE = "keda"
"""Of KEDA's own manifests, as all names here."""
ACCOUNT = "keda-operator"
OPERATOR, ADAPTER = "keda-operator", "keda-metrics-apiserver"
METRICS_API = "v1beta1.external.metrics.k8s.io"
MANIFESTS = (
    "general/namespace.yaml",
    "service_account/service_account.yaml",
    "crd/bases/*.yaml",
    "rbac/role.yaml",
    "rbac/role_binding.yaml",
    "metrics-server/role.yaml",
    "metrics-server/role_binding.yaml",
)
"""What is applied of KEDA's `config`, in this order; its Deployments and Services are what runs here."""
OF_A_POD = MappingProxyType(
    {"POD_NAMESPACE": NAMESPACE, "KEDA_CLUSTER_OBJECT_NAMESPACE": NAMESPACE, "WATCH_NAMESPACE": ""}
)
"""What KEDA knows in a pod by its manifest and its token, and ends without; it watches all namespaces."""
PROGRAMS = frozenset(tool.name.lower() for tool in (Tool.KEDA_OPERATOR, Tool.KEDA_ADAPTER))
"""Names of the processes, which are those of the built programs."""
LOOPBACK = "127.0.0.1"
"""The API server is a process of this machine too."""
TOKEN_SECONDS = 365 * 24 * 3600
"""As long as the lab's certificates (lab/cluster/pki.py): KEDA stays as long as its cluster."""
READY_SECONDS = 120.0
"""The lease of a killed operator runs for 15 s (controller-runtime 0.24), and the API server looks at an
aggregated API every 30 s (kube-aggregator 1.36)."""
PROBE_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Ports:
    """Where the processes listen, all on loopback."""

    grpc: int
    """The operator, for the adapter; served only by the one that leads."""
    metrics: int
    """The adapter, for the API server."""


def is_needed(objects: Iterable[Object]) -> bool:
    """Return whether one of the objects is KEDA's, so that nothing would come of it without KEDA."""
    return any(str(each["apiVersion"]).startswith(GROUP) for each in objects)


def ensure(access: Access, directory: Path) -> None:
    """Build KEDA if needed and run it unless it runs; returns when the HPA controller can ask it.

    It stays when this process ends. What died of it, or was killed while it started, is started anew.

    Args:
        access: the administrator's, of a cluster whose API server is a process of this machine.
        directory: the cluster's own; what carries its mark is ended with it.

    Raises:
        ComponentDiedError: with the end of a process's log.
    """
    programs = (binary(Tool.KEDA_OPERATOR), binary(Tool.KEDA_ADAPTER))
    with locked(directory / "keda.lock"), Api(access) as api:
        if is_running(api, directory):
            return
        with step("starting KEDA"):
            end(directory)
            _start(api, programs, directory)


def is_running(api: Api, directory: Path) -> bool:
    """Return whether a cluster's KEDA runs, both processes of it, and its metrics are served."""
    return len(processes_of(directory)) == len(PROGRAMS) and _is_served(api)


def processes_of(directory: Path) -> list[int]:
    """Return the process ids of a cluster's KEDA, operator and adapter."""
    return [pid for pid, name in traces.processes(directory).items() if name in PROGRAMS]


def end(directory: Path) -> None:
    """Kill both processes of a cluster's KEDA."""
    traces.end_processes(lambda: processes_of(directory))


def _start(api: Api, programs: tuple[Path, Path], directory: Path) -> None:
    config = module_directory(Tool.KEDA_OPERATOR.value, MODULE) / "config"
    api.apply(own_manifests(config))
    ports = Ports(*free_ports(len(fields(Ports))))
    home = directory / "keda"
    authority = certified(home / "certs")
    token = api.token_for(ACCOUNT, NAMESPACE, TOKEN_SECONDS)
    own = Access(api.access.url, api.access.ca_file, token).write_kubeconfig(home / "kubeconfig")
    env = {**OF_A_POD, traces.MARKER: str(directory), "KUBECONFIG": str(own)}
    flags = (operator_flags(ports), adapter_flags(ports))
    operator, adapter = (
        Component(program.name, [str(program), *its], home, env, outlives_owner=True)
        for program, its in zip(programs, flags, strict=True)
    )
    operator.start()
    operator.await_ready(lambda: _answers(ports.grpc), READY_SECONDS)
    adapter.start()
    api.apply(aggregation(ports, authority.certificate.read_bytes()))
    adapter.await_ready(lambda: _is_served(api), READY_SECONDS)


def certified(directory: Path) -> Authority:
    """Return the authority of a certificate that both processes show to each other and to the API server."""
    authority = Authority(directory)
    authority.sign("tls", f"/CN={OPERATOR}", [f"DNS:{service(name)}" for name in (OPERATOR, ADAPTER)])
    return authority


def service(name: str) -> str:
    """Return the name under which a Service of KEDA's is asked."""
    return f"{name}.{NAMESPACE}.svc"


def own_manifests(config: Path) -> Iterator[Object]:
    """Yield what KEDA itself brings: its namespace, its definitions, and the rights of its ServiceAccount."""
    for pattern in MANIFESTS:
        found = sorted(config.glob(pattern))
        if not found:
            raise LookupError(f"KEDA has no {pattern} in {config}: name in MANIFESTS what this version has")
        for path in found:
            yield from read_manifests(path)


def operator_flags(ports: Ports) -> tuple[str, ...]:
    """The operator's flags: those of KEDA's own manifest, but for the certificates and where it listens."""
    return (
        "--leader-elect",
        "--zap-log-level=info",
        "--enable-cert-rotation=false",
        "--cert-dir=certs",
        f"--metrics-service-bind-address={LOOPBACK}:{ports.grpc}",
        "--metrics-bind-address=0",
        "--health-probe-bind-address=0",
    )


def adapter_flags(ports: Ports) -> tuple[str, ...]:
    """The adapter's flags: those of KEDA's own manifest, but for identity and where it listens."""
    kubeconfigs = ("lister", "authentication", "authorization")
    return (
        f"--bind-address={LOOPBACK}",
        f"--secure-port={ports.metrics}",
        "--port=0",
        "--zap-log-level=error",
        "--client-ca-file=certs/ca.crt",
        "--tls-cert-file=certs/tls.crt",
        "--tls-private-key-file=certs/tls.key",
        "--cert-dir=certs",
        f"--metrics-service-address={LOOPBACK}:{ports.grpc}",
        f"--metrics-service-grpc-authority={service(OPERATOR)}",
        *(f"--{use}-kubeconfig=kubeconfig" for use in kubeconfigs),
    )


def aggregation(ports: Ports, authority: bytes) -> Iterator[Object]:
    """Yield what shows the API server where external metrics are: beside it, under a Service's name."""
    yield {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": ADAPTER, "namespace": NAMESPACE},
        "spec": {"type": "ExternalName", "externalName": LOOPBACK},
    }
    yield {
        "apiVersion": "apiregistration.k8s.io/v1",
        "kind": "APIService",
        "metadata": {"name": METRICS_API},
        "spec": {
            "service": {"name": ADAPTER, "namespace": NAMESPACE, "port": ports.metrics},
            "group": METRICS_API.partition(".")[2],
            "version": METRICS_API.partition(".")[0],
            "groupPriorityMinimum": 100,
            "versionPriority": 100,
            "caBundle": base64.b64encode(authority).decode(),
        },
    }


def _answers(port: int) -> bool:
    try:
        with socket.create_connection((LOOPBACK, port), PROBE_SECONDS):
            return True
    except OSError:
        return False


def _is_served(api: Api) -> bool:
    """Return whether the adapter answers the API server now; its condition may be of an earlier one."""
    version, _, group = METRICS_API.partition(".")
    try:
        return bool(api.request("GET", f"/apis/{group}/{version}"))
    except ApiError:
        return False
