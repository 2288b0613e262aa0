"""A Deployment that KServe renders, by a small imitation of its controller on the light control plane."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import yaml

from lab.cluster.api import ApiError
from lab.cluster.light import LightCluster
from worlds.world import World, deployment

DEFINITIONS = list(
    yaml.safe_load_all((Path(__file__).parents[1] / "data" / "owners" / "definitions.yaml").read_text())
)
VERSION, KIND, NAME = "serving.kserve.io/v1beta1", "InferenceService", "chat"
SERVED = f"{VERSION}/{KIND}"
"""OME has a kind of the same name."""
OWN_ARGS = ["--max-num-seqs=64", "--block-size=32"]
OF_THE_RUNTIME = deployment(1)["spec"]["template"]["spec"]["containers"][0]["args"][:2]
"""What a runtime's own arguments are; those of the InferenceService follow."""
STRATEGY = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}


def define(cluster: LightCluster, *plurals: str) -> None:
    """Have the API server serve some of the owners' kinds."""
    definitions = [each for each in DEFINITIONS if each["metadata"]["name"] in plurals]
    cluster.apply(definitions, "")
    names = [f"crd/{each['metadata']['name']}" for each in definitions]
    cluster.kubectl("wait", "--for=condition=Established", *names, "--timeout=30s")


def probed(container: dict[str, Any], _pod: dict[str, Any]) -> None:
    """Give the engine a readiness probe, as KServe does."""
    container["readinessProbe"] = {"tcpSocket": {"port": 8000}}


def give_owner(world: World) -> None:
    """Let an InferenceService be what the fleet is rendered from."""
    define(world.cluster, "inferenceservices.serving.kserve.io")
    body = {
        "apiVersion": VERSION,
        "kind": KIND,
        "metadata": {"name": NAME},
        "spec": {"predictor": {"model": {"modelFormat": {"name": "vLLM"}, "args": OWN_ARGS}}},
    }
    made = world.cluster.api.create(body, world.namespace)
    reference = {
        "apiVersion": body["apiVersion"],
        "kind": KIND,
        "name": NAME,
        "uid": made["metadata"]["uid"],
        "controller": True,
    }
    change = {"metadata": {"ownerReferences": [reference]}, "spec": {"strategy": STRATEGY}}
    world.cluster.api.patch("Deployment", "llm", change, world.namespace)


def own_args(world: World) -> list[str]:
    found = world.cluster.api.get(SERVED, NAME, world.namespace)
    return list(found["spec"]["predictor"]["model"]["args"])


def set_own_args(world: World, args: list[str]) -> None:
    change = {"spec": {"predictor": {"model": {"args": args}}}}
    world.cluster.api.patch(SERVED, NAME, change, world.namespace)


@contextmanager
def rendering(world: World) -> Iterator[list[str]]:
    """Put back whatever of the Deployment differs, again and again; yields what was put back, by name.

    As KServe's: the arguments, and the rollout's fields; an update drops annotations that are not its own.
    """
    ended, reverted = threading.Event(), list[str]()

    def again() -> None:
        while not ended.wait(0.2):
            with suppress(ApiError, httpx.HTTPError):
                _reconcile(world, reverted)

    thread = threading.Thread(target=again, daemon=True)
    thread.start()
    yield reverted
    ended.set()
    thread.join(10)


def _reconcile(world: World, reverted: list[str]) -> None:
    live = world.cluster.api.get("Deployment", "llm", world.namespace)
    spec, (container,) = live["spec"], live["spec"]["template"]["spec"]["containers"]
    args = [*OF_THE_RUNTIME, *own_args(world)]
    found = {
        "args": container["args"] != args,
        "paused": bool(spec.get("paused")),
        "strategy": spec["strategy"] != STRATEGY,
        "minReadySeconds": bool(spec.get("minReadySeconds")),
    }
    if not any(found.values()):
        return
    reverted += [name for name, differs in found.items() if differs]
    template = {
        **spec["template"],
        "spec": {**spec["template"]["spec"], "containers": [{**container, "args": args}]},
    }
    ours = [name for name in live["metadata"].get("annotations", {}) if name.startswith("kvmedic.io/")]
    fields = {"paused": None, "minReadySeconds": None, "strategy": STRATEGY, "template": template}
    change = {"metadata": {"annotations": dict.fromkeys(ours)}, "spec": fields}
    world.cluster.api.patch("Deployment", "llm", change, world.namespace)
