"""What is there before a play begins: cluster, images, Prometheus, exporter, operator; and a fresh fleet."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import httpx

from lab.cluster.api import Api, ApiError, until
from lab.cluster.interface import Cluster
from lab.cluster.machine import LAB_SOURCES, say
from lab.images import Recipe, builder_for
from lab.installation import install, recording_rules
from lab.keda import installation as keda
from lab.lws import installation as lws
from lab.play import manifests, vllm
from lab.play.hands import LABELS, Exporter, Hands, Meter, addresses_of
from lab.play.picker import Picker, ensure_definitions
from lab.play.play import Play
from lab.play.registry import Registry
from lab.play.schema import EVALUATION, FLEET, Engine, Scenario
from lab.play.story import View
from lab.play.witness import WORKLOADS, Witness
from lab.prometheus import PodScrape, Prometheus, cluster_prometheus

GONE_SECONDS = 120.0
SERVED_SECONDS = 30.0
"""From a definition until its kind is served: a second or two on a machine that has the time."""
ANSWER_SECONDS = 60.0
"""For one request: an API server on a machine with twenty times more to do than it can took over 15 s."""
OWNER = "kubectl"
"""The field manager of a person: what a GitOps tool applies again and again is never touched."""
NOWHERE = "no-service"
"""Host in the clients' URL where no Service leads: they are given each replica."""
SCRAPES = (*(PodScrape(name) for name in manifests.PORT_NAMES), PodScrape("metrics", "lab/kvmedic"))
"""Each port of a pod is scraped by itself, as a PodMonitor has an endpoint for each; the operator's, too."""
SCRAPE_INTERVAL = "2s"
ENGINE_VERSION = "0.32.0"
"""The vLLM that the lab engine behaves like; its image's tag says so, as the operator reads it there."""

PACE = {"idle": "5s", "verifying": "3s", "replica": "1s", "spareLimit": "30s"}
"""A lab's pace; the defaults (30s, 15s, 2s, 5m) suit fleets whose troubles last longer."""
ALONE = {
    "budgets": {"runs": 100, "runsPerNamespace": 2, "fleetShare": 1},
    "storm": {"runs": 100, "window": "1m", "lasts": "1m"},
}
"""Plays side by side know nothing of each other: that one run ends badly, as it is to, must not keep another
scenario's from being opened."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage that is set; several fleets may stand on it, each in a namespace of its own."""

    cluster: Cluster
    image: str
    exporter: Exporter
    registry: Registry
    prometheus: Prometheus
    """At the same URL from this machine as from pods."""

    @contextmanager
    def set(self, scenario: Scenario, namespace: str, view: View) -> Iterator[Play]:
        """Put a scenario's fleet into a namespace that is cleared before; it stays there afterwards."""
        with Api(self.cluster.access, ANSWER_SECONDS) as api, ExitStack() as beside:
            clear(api, namespace)
            api.apply(manifests.namespace(namespace, scenario.fleet.engine))
            image = self._image_for(scenario, namespace)
            for each in manifests.objects(scenario, image):
                api.apply(each, namespace, manager=OWNER)
                _await_served(api, each)
            picker = Picker.of(scenario.fleet, manifests.PORT)
            has_service = picker is None
            service = api.get("Service", FLEET, namespace)["spec"]["clusterIP"] if has_service else NOWHERE
            hands = Hands(api, namespace, scenario.fleet, image, self.exporter, self.registry)
            url = f"http://{service}:{manifests.PORT}"
            if scenario.fleet.device_memory:
                beside.enter_context(self._meter(api, namespace))
            try:
                yield Play(scenario, Witness(self.cluster.access, namespace, picker), hands, url, view)
            finally:
                if scenario.stops_everything:
                    hands.resume()
                    hands.start_operator()

    def vacate(self) -> None:
        """Take away what plays before left standing, whose replicas hold GPUs; returns when all are gone."""
        with Api(self.cluster.access, ANSWER_SECONDS) as api:
            vacate(api)

    def _image_for(self, scenario: Scenario, namespace: str) -> str:
        """Return the engine's image: the one on the node, or that of the registry under the play's name."""
        tag = self.image.rpartition(":")[2]
        return self.registry.reference(f"{namespace}/vllm", tag) if scenario.fleet.registry else self.image

    def _meter(self, api: Api, namespace: str) -> Meter:
        on_memory = partial(self.exporter.measure, namespace)
        return Meter(partial(addresses_of, api, namespace), manifests.PORT, on_memory)

    def remove(self, namespace: str) -> None:
        """Take a fleet away with its namespace; returns when both are gone."""
        with Api(self.cluster.access, ANSWER_SECONDS) as api:
            clear(api, namespace)
            api.delete("Namespace", namespace)
            until(lambda: not _is_there(api, namespace), GONE_SECONDS, f"namespace {namespace} is gone")


@contextmanager
def stage(cluster: Cluster, scenarios: Sequence[Scenario], gpus: int) -> Iterator[Stage]:
    """Bring up what is not up; afterwards cluster, operator, and what runs beside it stay, the rest ends.

    Args:
        cluster: the machine's.
        scenarios: what is to be played; real vLLM, KEDA and LeaderWorkerSet are built only where one has it.
        gpus: of the node: those of every replica and of one spare for each fleet that stands at once.
    """
    if any(each.fleet.engine is Engine.VLLM for each in scenarios):
        vllm.ensure()
    cluster.up(gpus)
    if any(keda.is_needed(each.fleet.objects) for each in scenarios):
        keda.ensure(cluster.access, cluster.directory)
    if any(each.fleet.groups is not None for each in scenarios):
        lws.ensure(cluster.access, cluster.directory)
    if any(each.fleet.pool is not None for each in scenarios):
        ensure_definitions(cluster.access)
    image = builder_for(cluster).build(engine_recipe())
    cluster.load_image(image.archive, image.reference)
    with (
        Exporter(cluster.host_address) as exporter,
        Registry(image.archive) as registry,
        cluster_prometheus(cluster, SCRAPES, SCRAPE_INTERVAL, recording_rules()) as prometheus,
    ):
        prometheus.set_targets({exporter.address: LABELS})
        install(cluster, operator_values(prometheus.url))
        yield Stage(cluster, image.reference, exporter, registry, prometheus)


def engine_recipe() -> Recipe:
    """The lab engine's image, named and tagged as one of vLLM; the evaluation's program is in it, too."""
    engine = LAB_SOURCES / "engine"
    sources = [engine, LAB_SOURCES / "evaluation"]
    return Recipe("vllm", engine / "Containerfile", LAB_SOURCES.parent, sources, version=ENGINE_VERSION)


def operator_values(prometheus: str) -> dict[str, Any]:
    """The chart's values: where the metrics are, a pace that suits a lab, budgets that leave plays alone."""
    source = {"url": prometheus, "freshness": "20s", "resolution": SCRAPE_INTERVAL, "reuse": "1s"}
    return {
        "sources": {"default": source},
        "pace": PACE,
        "probe": {"trialPods": True, "evaluations": True},
        "compression": {"variables": ["LAB_*"]},
        "rbac": {"configFiles": True},
        **ALONE,
    }


def clear(api: Api, namespace: str) -> None:
    """Remove a fleet, its resource and its Events; harmless when there are none.

    The resource's finalizer is taken off by hand: what it would bring back is deleted here anyway.
    """
    for kind in ("KVRemediation", "Service", *WORKLOADS):
        _remove(api, kind, FLEET, namespace)
    _remove(api, "Service", manifests.GOVERNING, namespace)
    _remove(api, "CronJob", EVALUATION, namespace)
    for each in _standing(api, "ScaledObject", namespace):
        api.delete("ScaledObject", each["metadata"]["name"], namespace)
    gone = partial(_is_clear, api, namespace)
    until(gone, GONE_SECONDS, f"the earlier fleet of {namespace} is gone")
    for kind in ("Event", "EndpointSlice"):
        api.request("DELETE", api.resource(kind).path(namespace))


def vacate(api: Api) -> None:
    """Remove the fleet of every namespace that has one."""
    names = [each["metadata"]["name"] for each in api.list("Namespace", None)]
    for name in names:
        found = (each for kind in WORKLOADS for each in _standing(api, kind, name))
        if any(each["metadata"]["name"] == FLEET for each in found):
            say(f"removing the fleet that an earlier play left in {name}")
            clear(api, name)


def _await_served(api: Api, body: Mapping[str, Any]) -> None:
    """Wait until the kind is served that a definition defines; anything else defines none."""
    if body["kind"] != "CustomResourceDefinition":
        return
    spec = body["spec"]
    version = f"{spec['group']}/{spec['versions'][0]['name']}"
    until(lambda: api.serves(spec["names"]["kind"], version), SERVED_SECONDS, f"{version} is served")


def _is_clear(api: Api, namespace: str) -> bool:
    # KEDA takes its finalizer off itself.
    return not api.list("Pod", namespace) and not _standing(api, "ScaledObject", namespace)


def _standing(api: Api, kind: str, namespace: str) -> list[dict[str, Any]]:
    """Return a namespace's objects of a kind; none without its definition, which may come or go."""
    try:
        return api.list(kind, namespace) if api.serves(kind) else []
    except ApiError as error:
        if error.code != httpx.codes.NOT_FOUND:
            raise
        return []


def _is_there(api: Api, namespace: str) -> bool:
    return any(each["metadata"]["name"] == namespace for each in api.list("Namespace", None))


def _remove(api: Api, kind: str, name: str, namespace: str) -> None:
    if not api.serves(kind):
        return
    if kind == "KVRemediation":
        try:
            api.patch(kind, name, {"metadata": {"finalizers": None}}, namespace)
        except ApiError as error:
            if error.code != httpx.codes.NOT_FOUND:
                raise
    api.delete(kind, name, namespace)
