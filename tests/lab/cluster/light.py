"""The light tier: etcd and an API server on loopback, with real controllers and simulated pods on request.

Several may run at once. Everything is written under `build/lab/light/`; all processes end with the context,
and also when the owning process is killed. A run that died leaves its directory to the next one, which
removes it.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lab.cluster import simulation
from lab.cluster.api import Api, Object, create_namespace
from lab.cluster.controlplane import LIGHT_CONTROLLERS, Addresses, ControlPlane
from lab.cluster.machine import BUILD, Stopwatch, free_ports, make_scratch
from lab.cluster.pki import Access
from lab.cluster.process import Component, ComponentDiedError
from lab.cluster.toolchain import Tool, binary

DIRECTORY = BUILD / "light"
START_ATTEMPTS = 3
SELDOM_COLLECTED = {"GOGC": "1600"}
"""Memory is plentiful and processors are not: a sixth of an API server's time was garbage collection."""
UNSHARED = "--enable-priority-and-fairness=false"
"""Nobody has to be kept from taking another one's share, which costs something at each request."""
HPA_PERIOD = "--horizontal-pod-autoscaler-sync-period=2s"
"""How often the HPA controller looks; by default every 15 s, most of which a test would wait."""


@dataclass(kw_only=True)
class LightCluster:
    """A context manager.

    `controllers` adds kube-controller-manager; `kwok` adds scheduler, nodes and simulated pods. Without
    controllers the ServiceAccount admission is off, so that pods can be created all the same. `stages` are
    further kwok Stages. `url`, `token`, `ca_file` and `kubeconfig` are the administrator's.
    """

    controllers: bool = False
    kwok: bool = False
    node_gpus: int = 0
    nodes: int = 1
    timing: simulation.Timing = field(default_factory=simulation.Timing)
    stages: Sequence[simulation.Stage] = ()
    enabled_controllers: Sequence[str] = LIGHT_CONTROLLERS
    api_flags: Sequence[str] = ()
    start_seconds: float = 0.0
    directory: Path = field(init=False, repr=False)
    plane: ControlPlane = field(init=False, repr=False)
    api: Api = field(init=False, repr=False)
    components: dict[str, Component] = field(init=False, repr=False)

    def __enter__(self) -> LightCluster:
        watch = Stopwatch()
        for attempt in range(START_ATTEMPTS):
            self._prepare()
            try:
                self._start()
                break
            except ComponentDiedError:
                # Between the look for a free port and its use somebody else may have taken it.
                self.close()
                if attempt == START_ATTEMPTS - 1:
                    raise
            except BaseException:
                self.close()
                raise
        self.start_seconds = watch.seconds
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def access(self) -> Access:
        """The administrator's address, authority and token."""
        return self.plane.identity("admin", "system:masters")

    @property
    def url(self) -> str:
        """Address of the API server; the same after a restart."""
        return self.access.url

    @property
    def token(self) -> str:
        return self.access.token

    @property
    def ca_file(self) -> Path:
        """The authority that signed the API server's certificate."""
        return self.access.ca_file

    @property
    def kubeconfig(self) -> Path:
        return self.directory / "kubeconfig"

    def apply(self, manifest: str | Object | Iterable[Object], namespace: str = "default") -> list[Object]:
        """Server-side apply of YAML text or objects, as the administrator; see `Api.apply`."""
        return self.api.apply(manifest, namespace)

    def create_namespace(self, name: str, labels: dict[str, str] | None = None) -> str:
        """A namespace that is ready for pods, as far as there are controllers to make it so."""
        return create_namespace(self.api, name, labels, has_controllers=self.controllers)

    def impersonate(self, service_account: str, namespace: str = "default") -> Access:
        """Access with nothing but a ServiceAccount's own rights."""
        return Access(self.url, self.ca_file, self.api.token_for(service_account, namespace))

    def kubectl(self, *arguments: str) -> str:
        """kubectl of the cluster's own version; the output, or CalledProcessError.

        It remembers nothing of an earlier call: what it has cached of the API would hide a new definition
        from `get all` for ten minutes.
        """
        with TemporaryDirectory(dir=self.directory) as cache:
            options = [f"--kubeconfig={self.kubeconfig}", f"--cache-dir={cache}"]
            argv = [str(binary(Tool.KUBE)), "kubectl", *options, *arguments]
            return subprocess.run(argv, check=True, capture_output=True, text=True).stdout

    def stop_component(self, name: str, sig: signal.Signals = signal.SIGKILL) -> None:
        """End one of `etcd`, `kube-apiserver`, `kube-controller-manager`, `kube-scheduler`, `kwok`."""
        self.components[name].stop(sig)

    def start_component(self, name: str) -> None:
        """Start it again on the same address and data; waits until the API server serves."""
        component = self.components[name]
        component.start()
        if name in ("etcd", "kube-apiserver"):
            self.components["kube-apiserver"].await_ready(self.api.is_ready)

    def signal_component(self, name: str, sig: signal.Signals) -> None:
        """Send a signal, such as SIGSTOP and SIGCONT to hang a component for a while."""
        os.killpg(self.components[name].pid, sig)

    def close(self) -> None:
        """End everything and remove the directory; harmless when it is closed already."""
        for component in reversed(list(self.components.values())):
            component.stop()
        self.components = {}
        self.api.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _prepare(self) -> None:
        self.directory = make_scratch(DIRECTORY)
        flags = [
            UNSHARED,
            *self.api_flags,
            *([] if self.controllers else ["--disable-admission-plugins=ServiceAccount"]),
        ]
        etcd, peer, api = free_ports(3)
        addresses = Addresses(etcd, peer, api)
        self.plane = ControlPlane(binary(Tool.KUBE), self.directory, addresses, flags, env=SELDOM_COLLECTED)
        self.api = Api(self.access)
        self.components = {}

    def _start(self) -> None:
        self.plane.admin_kubeconfig()
        self._add(self.plane.etcd())
        self._add(self.plane.apiserver()).await_ready(self.api.is_ready)
        if self.controllers:
            self._add(self.plane.controller_manager(self.enabled_controllers, HPA_PERIOD))
        if self.kwok:
            self._add(self.plane.scheduler())
            stages = [*simulation.stages(self.timing), *self.stages]
            player = self._add(simulation.kwok(binary(Tool.KWOK), self.directory, self.kubeconfig, stages))
            self._add_nodes()
            player.await_ready(lambda: len(self.api.list("Lease", "kube-node-lease")) == self.nodes)

    def _add(self, component: Component) -> Component:
        self.components[component.name] = component
        component.start()
        return component

    def _add_nodes(self) -> None:
        for index in range(self.nodes):
            node = simulation.node(f"node{index + 1}", self.node_gpus)
            self.api.create(node)
            # Admission taints every new node; in a real cluster the node lifecycle controller removes that.
            self.api.patch("Node", node["metadata"]["name"], {"spec": {"taints": None}})


def gpus(count: int) -> dict[str, Any]:
    return {"limits": {"nvidia.com/gpu": str(count)}, "requests": {"nvidia.com/gpu": str(count)}}
