"""The cluster by kind, where a Docker engine answers: Kubernetes in a container, any system, no root."""

import base64
import ipaddress
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import yaml

from lab.cluster.interface import is_ready, set_gpus
from lab.cluster.machine import BUILD, KUBECONFIG, Stopwatch, say, step
from lab.cluster.pki import Access
from lab.cluster.toolchain import Tool, binary

CONFIG = Path(__file__).with_name("kind.yaml")
NAME = "kvmedic-lab"
DIRECTORY = BUILD / "kind"
_ANSWER_SECONDS = 10
_READY_WAIT = "180s"


def docker_answers() -> bool:
    """Whether a Docker engine serves this user; a client without an engine does not count."""
    if shutil.which("docker") is None:
        return False
    argv = ["docker", "info", "--format", "{{.ServerVersion}}"]
    try:
        done = subprocess.run(argv, capture_output=True, timeout=_ANSWER_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0 and bool(done.stdout.strip())


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
        return gateway(json.loads(_run("docker", "network", "inspect", "kind")))

    def up(self, gpus: int) -> None:
        """Create the cluster; one that is up stays, one that does not answer is created anew."""
        if not self.is_up():
            self.down()
            self._create()
        set_gpus(self.access, gpus)
        say(f"the cluster is up; kubeconfig {self.kubeconfig}")

    def down(self) -> None:
        if NAME in _kind("get", "clusters").split():
            with step("deleting the kind cluster"):
                _kind("delete", "cluster", "--name", NAME)
        self.kubeconfig.unlink(missing_ok=True)
        shutil.rmtree(self.directory, ignore_errors=True)

    def is_up(self) -> bool:
        """Whether kind knows the cluster, its API server answers and its node is Ready."""
        known = NAME in _kind("get", "clusters").split()
        return known and self.kubeconfig.exists() and is_ready(self.access)

    def load_image(self, archive: Path, reference: str) -> None:
        """Copy the image of a docker-archive into the node, unless the node has it."""
        present = _run("docker", "exec", f"{NAME}-control-plane", "crictl", "images", "--output=json")
        tags = {tag for image in json.loads(present)["images"] for tag in image["repoTags"]}
        if reference in tags:
            return
        with step(f"loading {reference}"):
            _kind("load", "image-archive", str(archive), "--name", NAME)

    def _create(self) -> None:
        watch = Stopwatch()
        with step("creating the kind cluster"):
            self.kubeconfig.parent.mkdir(parents=True, exist_ok=True)
            wait = ("--wait", _READY_WAIT, "--kubeconfig", str(self.kubeconfig))
            _kind("create", "cluster", "--name", NAME, "--config", str(CONFIG), *wait)
        say(f"kind took {watch.seconds:.1f} s")


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


def _kind(*arguments: str) -> str:
    return _run(str(binary(Tool.KIND)), *arguments)


def _run(*argv: str) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(argv)} failed: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout
