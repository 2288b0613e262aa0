"""Real LeaderWorkerSet for a cluster: its own definition, rights and webhooks, and its controller.

It runs on this machine with no more than the rights of the ServiceAccount that its own manifests give. The
API server asks its webhooks beside it; the certificates are the lab's. Without them no pod of a group knows
its place.
"""

import base64
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from lab.cluster import traces
from lab.cluster.api import Api, Object, read_manifests, until
from lab.cluster.machine import free_ports, locked, step
from lab.cluster.pki import Access, Authority
from lab.cluster.process import Component
from lab.cluster.toolchain import Tool, binary, module_directory

MODULE = "sigs.k8s.io/lws"
KIND = "LeaderWorkerSet"
MANAGER = "lws"
"""The field manager of what it applies (0.8, leaderworkerset_controller.go)."""
PROGRAM = Tool.LEADER_WORKER_SET.name.lower()
"""Its process, and the field manager of all else that it writes."""
NAMESPACE = "lws-system"
ACCOUNT = "lws-controller-manager"
LOOPBACK = "127.0.0.1"
"""The API server is a process of this machine too."""
TOKEN_SECONDS = 365 * 24 * 3600
READY_SECONDS = 60.0
PROBE_SECONDS = 2.0
WEBHOOKS = "lws-validating-webhook-configuration"
"""What is applied last."""
PODS = {"matchExpressions": [{"key": "leaderworkerset.sigs.k8s.io/name", "operator": "Exists"}]}
"""The pods that its webhooks are asked about (0.8, config/webhook/mutating-patch.yaml)."""
CONFIGURATION = """\
apiVersion: config.lws.x-k8s.io/v1alpha1
kind: Configuration
leaderElection: {{leaderElect: false}}
internalCertManagement: {{enable: false}}
metrics: {{bindAddress: "0"}}
health: {{healthProbeBindAddress: "0"}}
webhook: {{host: {host}, port: {port}, certDir: {certificates}}}
"""


def ensure(access: Access, directory: Path) -> None:
    """Build it if needed and run it unless it runs; returns when its webhooks answer.

    It stays when this process ends. What died, or was killed while it started, is started anew.

    Args:
        access: the administrator's, of a cluster whose API server is a process of this machine.
        directory: the cluster's own; what carries its mark is ended with it.

    Raises:
        ComponentDiedError: with the end of its log.
    """
    program = binary(Tool.LEADER_WORKER_SET)
    with locked(directory / "lws.lock"), Api(access) as api:
        if _processes(directory) and _is_asked(api):
            return
        with step("starting LeaderWorkerSet"):
            traces.end_processes(lambda: _processes(directory))
            start(api, program, directory, outlives_owner=True)


def _is_asked(api: Api) -> bool:
    """Return whether the API server knows of webhooks, and something answers where they are."""
    made = {each["metadata"]["name"]: each for each in api.list("ValidatingWebhookConfiguration", None)}
    hooks = made.get(WEBHOOKS, {}).get("webhooks", ())
    ports = {urlsplit(each["clientConfig"]["url"]).port or 0 for each in hooks}
    return bool(ports) and all(_answers(port) for port in ports)


def _processes(directory: Path) -> list[int]:
    return [pid for pid, name in traces.processes(directory).items() if name == PROGRAM]


def start(api: Api, program: Path, directory: Path, *, outlives_owner: bool) -> Component:
    """Install its manifests and start its controller; returns when its webhooks answer."""
    config = module_directory(Tool.LEADER_WORKER_SET.value, MODULE) / "config"
    (port,) = free_ports(1)
    home = directory / "lws"
    authority = Authority(home / "certs")
    authority.sign("tls", f"/CN={ACCOUNT}", [f"IP:{LOOPBACK}"])
    api.apply(own_manifests(config))
    token = api.token_for(ACCOUNT, NAMESPACE, TOKEN_SECONDS)
    own = Access(api.access.url, api.access.ca_file, token).write_kubeconfig(home / "kubeconfig")
    text = CONFIGURATION.format(host=LOOPBACK, port=port, certificates=home / "certs")
    (home / "config.yaml").write_text(text)
    env = {traces.MARKER: str(directory), "KUBECONFIG": str(own), "LWS_NAMESPACE": NAMESPACE}
    argv = [str(program), f"--config={home / 'config.yaml'}", "--zap-log-level=info"]
    controller = Component(program.name, argv, home, env, outlives_owner=outlives_owner)
    controller.start()
    controller.await_ready(lambda: _answers(port), READY_SECONDS)
    until(lambda: api.serves(KIND), READY_SECONDS, f"{KIND} is served")
    api.apply(webhooks(config, port, authority.certificate.read_bytes()))
    return controller


def own_manifests(config: Path) -> Iterator[Object]:
    """Yield what it brings itself: definition, namespace, account and rights, which hold everywhere."""
    (definition,) = read_manifests(config / "crd/bases/leaderworkerset.x-k8s.io_leaderworkersets.yaml")
    yield definition
    yield {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    account = {"name": ACCOUNT, "namespace": NAMESPACE}
    yield {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account}
    for role in read_manifests(config / "rbac/role.yaml"):
        if role["kind"] != "ClusterRole":
            continue
        name = f"lws-{role['metadata']['name']}"
        yield {**role, "metadata": {"name": name}}
        yield {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": name},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
            "subjects": [{"kind": "ServiceAccount", **account}],
        }


def webhooks(config: Path, port: int, authority: bytes) -> Iterator[Object]:
    """Yield its webhooks as the API server asks them here; of pods only those of groups."""
    for body in read_manifests(config / "webhook/manifests.yaml"):
        hooks = [
            {
                **each,
                "clientConfig": {
                    "url": f"https://{LOOPBACK}:{port}{each['clientConfig']['service']['path']}",
                    "caBundle": base64.b64encode(authority).decode(),
                },
                **({"objectSelector": PODS} if each["rules"][0]["resources"] == ["pods"] else {}),
            }
            for each in body["webhooks"]
        ]
        yield {**body, "metadata": {"name": f"lws-{body['metadata']['name']}"}, "webhooks": hooks}


def _answers(port: int) -> bool:
    try:
        with socket.create_connection((LOOPBACK, port), PROBE_SECONDS):
            return True
    except OSError:
        return False
