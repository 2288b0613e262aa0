"""What tests and the demo may ask of a cluster, whichever kind it is."""

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Protocol

from lab.cluster.api import Api, until
from lab.cluster.pki import Access

GPU = "nvidia.com/gpu"


class Cluster(Protocol):
    """A real cluster of one node."""

    @property
    def access(self) -> Access:
        """The administrator's access; the same is in `build/lab/kubeconfig`."""

    @property
    def directory(self) -> Path:
        """Where its own files lie; removed with it."""

    @property
    def host_address(self) -> str:
        """The address under which pods reach servers of this machine."""

    @property
    def has_registry(self) -> bool:
        """Whether images may be made of those of a registry; the cluster is up."""

    def up(self, gpus: int) -> None:
        """Bring it up, or leave it alone when it is up; the node then has `gpus` GPUs."""

    def down(self) -> None:
        """Take it down and remove every trace; harmless when there is none."""

    def is_up(self) -> bool:
        """Whether its API server answers and its node is Ready."""

    def load_image(self, archive: Path, reference: str) -> None:
        """Make the image of a docker-archive available to pods as `reference`; skipped when it is there."""


def set_gpus(access: Access, count: int) -> None:
    """Give every node `count` GPUs, as an extended resource that the scheduler counts like any other."""
    with Api(access) as api:
        for name in (node["metadata"]["name"] for node in api.list("Node", None)):
            room = {"capacity": {GPU: str(count)}, "allocatable": {GPU: str(count)}}
            api.patch("Node", name, {"status": room}, subresource="status")
            until(partial(_has_gpus, api, name, count), 30, f"{count} GPUs on {name}")


def is_ready(access: Access) -> bool:
    """Whether the API server answers and all nodes are Ready."""
    with Api(access, timeout_seconds=3) as api:
        if not api.is_ready():
            return False
        nodes = api.list("Node", None)
        return bool(nodes) and all(_ready(node["status"].get("conditions", ())) for node in nodes)


def _has_gpus(api: Api, name: str, count: int) -> bool:
    status = api.get("Node", name, None)["status"]
    return {status[each].get(GPU, "0") for each in ("capacity", "allocatable")} == {str(count)}


def _ready(conditions: Iterable[dict[str, str]]) -> bool:
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
