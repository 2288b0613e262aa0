"""The lab's own endpoint picker and label router: which pods take requests where there is no Service.

As the picker of the Gateway API Inference Extension and the router of production-stack find them: a pod
counts that has the labels, is Ready and is not being deleted. What they choose by, such as queues and
prefixes, is left out: each request goes to any of them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lab.cluster.api import Api, read_manifests, until
from lab.cluster.pki import Access
from lab.cluster.toolchain import fetched_module
from lab.play.schema import FLEET, Fleet, Pool

Object = dict[str, Any]
MODULE = "sigs.k8s.io/gateway-api-inference-extension@v1.3.1"
CHECKSUM = "h1:Tpjo2frgcdUUeqPWcIWter2a7GCHBrNyYBkK1Em1u+8="
"""Of the module, as go.sum has it."""
DEFINITIONS = "config/crd/bases/*_inferencepools.yaml"
"""Of both groups, in the module."""
GROUPS: Mapping[Pool, str] = {
    Pool.RELEASED: "inference.networking.k8s.io/v1",
    Pool.OLDER: "inference.networking.x-k8s.io/v1alpha2",
}
KIND = "InferencePool"
PICKER = "lab-picker"
PICKER_PORT = 9002
"""Where a pool says that its picker is; it is asked by no gateway here."""
SERVED_SECONDS = 30.0


@dataclass(slots=True)
class Picker:
    """Knows the labels and ports of the pods that take requests; those of a pool once it knows it."""

    selector: Mapping[str, str] = field(default_factory=dict)
    ports: tuple[int, ...] = ()
    pool: Pool | None = None

    @classmethod
    def of(cls, fleet: Fleet, port: int) -> "Picker | None":
        """Return the picker of a fleet; None where a Service leads requests to it."""
        if fleet.pool is not None:
            return cls(pool=fleet.pool)
        return None if fleet.router is None else cls(fleet.router, (port,))

    def follow(self, pools: Iterable[Object]) -> None:
        """Learn from the pools of the namespace as they are now what the fleet's says."""
        spec = next((each["spec"] for each in pools if each["metadata"]["name"] == FLEET), {})
        selector = dict(spec.get("selector") or {})
        self.selector = selector.get("matchLabels", selector)
        numbers = [each["number"] for each in spec.get("targetPorts", ())] or [spec.get("targetPortNumber")]
        self.ports = tuple(port for port in numbers if port)

    def pick(self, pods: Iterable[Object]) -> frozenset[str]:
        """Return the uids of the pods that take requests."""
        return frozenset(str(each["metadata"]["uid"]) for each in pods if self._takes(each))

    def _takes(self, pod: Object) -> bool:
        metadata, conditions = pod["metadata"], pod.get("status", {}).get("conditions", ())
        is_ready = any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
        has_labels = bool(self.selector) and self.selector.items() <= metadata.get("labels", {}).items()
        return is_ready and has_labels and "deletionTimestamp" not in metadata


def pool_of(kind: Pool, labels: Mapping[str, str], ports: Sequence[int]) -> Object:
    """Return the InferencePool that stands in place of a Service; the older API has one port."""
    reference = {"name": PICKER, "port": {"number": PICKER_PORT}}
    released = {
        "selector": {"matchLabels": dict(labels)},
        "targetPorts": [{"number": port} for port in ports],
        "endpointPickerRef": reference,
    }
    older = {
        "selector": dict(labels),
        "targetPortNumber": ports[0],
        "extensionRef": {"name": PICKER, "portNumber": PICKER_PORT},
    }
    return {
        "apiVersion": GROUPS[kind],
        "kind": KIND,
        "metadata": {"name": FLEET},
        "spec": released if kind is Pool.RELEASED else older,
    }


def ensure_definitions(access: Access) -> None:
    """Give a cluster the real definitions of InferencePools, of both groups; they stay with it."""
    with Api(access) as api:
        for path in sorted(fetched_module(MODULE, CHECKSUM).glob(DEFINITIONS)):
            api.apply(read_manifests(path))
        for version in GROUPS.values():
            until(lambda version=version: api.serves(KIND, version), SERVED_SECONDS, f"{version} is served")
