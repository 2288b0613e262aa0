"""What is there before the play begins: cluster, images, Prometheus, operator, a fresh fleet."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from lab.cluster.api import Api, ApiError, until
from lab.cluster.interface import Cluster
from lab.cluster.kind import KindCluster
from lab.cluster.paths import LAB_SOURCES
from lab.cluster.progress import step
from lab.images import Recipe, provide
from lab.installation import install
from lab.prometheus import cluster_prometheus

from . import vllm
from .manifests import deployment, namespace, remediation, service
from .scenario import FLEET, NAMESPACE, PORT, Engine, Scenario

GONE_SECONDS = 120.0
OWNER = "kubectl"
"""The field manager of a person: what a GitOps tool applies again and again is never touched."""
SCRAPE_INTERVAL = "2s"

PACE = {
    "idle": "5s",
    "verifying": "3s",
    "replica": "1s",
    "spareLimit": "30s",
}
"""A demo's pace; the defaults (30s, 15s, 2s, 5m) suit fleets whose troubles last longer."""


@dataclass(frozen=True, slots=True)
class Set:
    """A stage that is set."""

    cluster: Cluster
    url: str
    """Where clients send: the Service's own address."""


@contextmanager
def stage(scenario: Scenario, cluster: Cluster) -> Iterator[Set]:
    """Bring up whatever is not up, remove what an earlier play left, put a fresh fleet there.

    Afterwards cluster, operator and fleet stay; Prometheus ends.
    """
    if not is_reachable(cluster):
        raise RuntimeError(
            "the demo's clients reach Services and pods from this machine, which kind's network does not "
            "allow: run it with LAB_CLUSTER=native (Linux, root)"
        )
    if scenario.fleet.engine is Engine.VLLM:
        vllm.ensure()
    cluster.up(scenario.fleet.gpus)
    image = provide(cluster, engine_recipe())
    with Api(cluster.access) as api, step("clearing the stage"):
        clear(api)
    with cluster_prometheus(cluster, scrape_interval=SCRAPE_INTERVAL) as prometheus:
        install(cluster, operator_values(prometheus.url))
        yield Set(cluster, _put_fleet(cluster, scenario, image))


def is_reachable(cluster: Cluster) -> bool:
    """Return whether addresses of Services and pods lead somewhere on this machine."""
    return not isinstance(cluster, KindCluster)


def _put_fleet(cluster: Cluster, scenario: Scenario, image: str) -> str:
    """Apply what the fleet's owner wrote; return the address that clients send to."""
    with Api(cluster.access) as api:
        api.apply(namespace(scenario.fleet.engine))
        for each in (service(), deployment(scenario.fleet, image), remediation(scenario)):
            api.apply(each, manager=OWNER)
        address = api.get("Service", FLEET, NAMESPACE)["spec"]["clusterIP"]
    return f"http://{address}:{PORT}"


def engine_recipe() -> Recipe:
    """The lab engine's image."""
    tests = LAB_SOURCES.parent
    return Recipe("engine", LAB_SOURCES / "engine" / "Containerfile", tests, [LAB_SOURCES / "engine"])


def operator_values(prometheus: str) -> dict[str, Any]:
    """The chart's values: where the metrics are, and a pace that suits a demo."""
    source = {
        "url": prometheus,
        "freshness": "20s",
        "resolution": SCRAPE_INTERVAL,
        "reuse": "1s",
    }
    return {"sources": {"default": source}, "pace": PACE}


def clear(api: Api) -> None:
    """Remove the fleet, its resource and its Events; harmless when there are none.

    The resource's finalizer is taken off by hand: what it would bring back is deleted here anyway.
    """
    for kind, name in (("KVRemediation", FLEET), ("Service", FLEET), ("Deployment", FLEET)):
        _remove(api, kind, name)
    until(lambda: not api.list("Pod", NAMESPACE), GONE_SECONDS, "the earlier fleet's pods are gone")
    for kind in ("Event", "EndpointSlice"):
        api.request("DELETE", api.resource(kind).path(NAMESPACE))


def _remove(api: Api, kind: str, name: str) -> None:
    try:
        if kind == "KVRemediation":
            api.patch(kind, name, {"metadata": {"finalizers": None}}, NAMESPACE)
        api.delete(kind, name, NAMESPACE)
    except (ApiError, LookupError) as error:
        if isinstance(error, ApiError) and error.code != 404:
            raise
