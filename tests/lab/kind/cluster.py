"""The cluster by kind, where a Docker engine answers: Kubernetes in a container, any system, no root."""

import base64
import ipaddress
import json
import shutil
import socket
import subprocess
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from lab.cluster import network
from lab.cluster.api import until
from lab.cluster.interface import is_ready, set_gpus
from lab.cluster.machine import BUILD, KUBECONFIG, Stopwatch, say, step
from lab.cluster.pki import Access
from lab.cluster.toolchain import Tool, binary
from lab.images import PREFIX
from lab.kind.engine import docker_answers, ensure_docker, environment, stop_own_engine
from lab.kind.node_image import provide_node_image

CONFIG = Path(__file__).with_name("kind.yaml")
NAME = "kvmedic-lab"
NODE = f"{NAME}-control-plane"
DIRECTORY = BUILD / "kind"
_READY_WAIT = "180s"
_API_SERVICE = ("10.78.0.1", 443)
"""Where pods find the API server: the first Service of `kind.yaml`'s range."""
_REACHED_SECONDS = 30
_CANNOT_PULL = "failed to pull image"


class KindCluster:
    """The cluster named `kvmedic-lab`; kind keeps its state in Docker, `directory` has credentials."""

    def __init__(self, directory: Path = DIRECTORY, kubeconfig: Path = KUBECONFIG) -> None:
        self.directory = directory
        self.kubeconfig = kubeconfig

    @property
    def access(self) -> Access:
        """The administrator's access, by kind's client certificate."""
        return access_from(yaml.safe_load(self.kubeconfig.read_text()), self.directory)

    @property
    def host_address(self) -> str:
        """The gateway of Docker's network `kind`, which is this machine."""
        return gateway(json.loads(_docker("network", "inspect", "kind")))

    @property
    def has_registry(self) -> bool:
        """Whether Docker pulled the node's image, and so can pull others; the lab's own image was not."""
        return not _docker("inspect", "--format={{.Config.Image}}", NODE).startswith(PREFIX)

    def up(self, gpus: int) -> None:
        """Create the cluster; one that is up stays, one that does not answer is created anew."""
        ensure_docker()
        if not self.is_up():
            network.refuse_second_lab()
            self._delete()
            self._create()
        self._lead_to_pods()
        set_gpus(self.access, gpus)
        say(f"the cluster is up; kubeconfig {self.kubeconfig}")

    def down(self) -> None:
        self._delete()
        stop_own_engine()

    def is_up(self) -> bool:
        """Whether kind knows the cluster, its API server answers and its node is Ready."""
        return self._is_known() and self.kubeconfig.exists() and is_ready(self.access)

    def load_image(self, archive: Path, reference: str) -> None:
        """Copy the image of a docker-archive into the node, unless the node has it."""
        present = _docker("exec", NODE, "ctr", "--namespace=k8s.io", "images", "list", "--quiet")
        if reference in present.split():
            return
        with step(f"loading {reference}"):
            _kind("load", "image-archive", str(archive), "--name", NAME)

    def _is_known(self) -> bool:
        return docker_answers() and NAME in _kind("get", "clusters").split()

    def _delete(self) -> None:
        if self._is_known():
            with step("deleting the kind cluster"):
                _lead(())
                _kind("delete", "cluster", "--name", NAME)
        self.kubeconfig.unlink(missing_ok=True)
        shutil.rmtree(self.directory, ignore_errors=True)

    def _create(self) -> None:
        watch = Stopwatch()
        self.kubeconfig.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._create_of()
        except RuntimeError as error:
            if _CANNOT_PULL not in str(error):
                raise
            say("kind's node image cannot be pulled: one is built from Debian's packages and Go modules")
            self._create_of("--image", provide_node_image(_docker))
        say(f"kind took {watch.seconds:.1f} s")

    def _create_of(self, *image: str) -> None:
        wait = ("--wait", _READY_WAIT, "--kubeconfig", str(self.kubeconfig))
        with step("creating the kind cluster"):
            _kind("create", "cluster", "--name", NAME, "--config", str(CONFIG), *image, *wait)

    def _lead_to_pods(self) -> None:
        """Have this machine reach pods and Services at their addresses, as on a node: clients run here.

        Raises:
            RuntimeError: it does not, as where Docker runs in a virtual machine.
        """
        address = _docker("inspect", "--format={{.NetworkSettings.Networks.kind.IPAddress}}", NODE).strip()
        _lead((address,))
        try:
            until(partial(_answers, _API_SERVICE), _REACHED_SECONDS, "an answer of a Service's address")
        except TimeoutError:
            raise RuntimeError(
                f"pods of kind's network cannot be reached from this machine through {address}, as where "
                "Docker runs in a virtual machine: use Docker on Linux, or LAB_CLUSTER=native (Linux, root)"
            ) from None


def access_from(kubeconfig: dict[str, Any], directory: Path) -> Access:
    """Access from a kubeconfig with inline certificates, as kind writes it; they go into `directory`."""
    cluster, user = kubeconfig["clusters"][0]["cluster"], kubeconfig["users"][0]["user"]
    directory.mkdir(parents=True, exist_ok=True)
    directory.chmod(0o700)
    files = {
        "ca.crt": cluster["certificate-authority-data"],
        "client.crt": user["client-certificate-data"],
        "client.key": user["client-key-data"],
    }
    for name, content in files.items():
        (directory / name).write_bytes(base64.b64decode(content))
    client = (directory / "client.crt", directory / "client.key")
    return Access(cluster["server"], directory / "ca.crt", client=client)


def gateway(networks: list[dict[str, Any]]) -> str:
    """The IPv4 gateway in the answer of `docker network inspect`."""
    for config in networks[0]["IPAM"]["Config"]:
        address = config.get("Gateway", "")
        if address and ipaddress.ip_address(address).version == 4:
            return str(address)
    raise LookupError("Docker's network kind has no IPv4 gateway")


def _lead(via: tuple[str, ...]) -> None:
    """Lead the networks of pods and Services to a node, or nowhere; in a container of the node's own image.

    Docker is asked because this user may not be root, and who may run containers may do this.
    """
    image = _docker("inspect", "--format={{.Config.Image}}", NODE).strip()
    run = ("run", "--rm", "--net=host", "--cap-add=NET_ADMIN", "--entrypoint=ip", image)
    for subnet in (network.PODS, network.SERVICES):
        if via:
            _docker(*run, "route", "replace", subnet, "via", *via)
        else:
            with suppress(RuntimeError):
                _docker(*run, "route", "delete", subnet)


def _answers(address: tuple[str, int]) -> bool:
    with suppress(OSError), socket.create_connection(address, timeout=1):
        return True
    return False


def _kind(*arguments: str) -> str:
    return _run(str(binary(Tool.KIND)), *arguments)


def _docker(*arguments: str) -> str:
    return _run("docker", *arguments)


def _run(*argv: str) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, env=environment(), check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(argv)} failed: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout
