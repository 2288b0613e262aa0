"""A fleet whose cap stands in a configuration file, mounted from a ConfigMap."""

from __future__ import annotations

import json
from typing import Any

from lab.cluster.api import ApiError
from worlds.phases import PATIENCE_SECONDS
from worlds.world import World

NAME, KEY = "limits", "engine.yaml"
SECRET = "s3cret-of-the-file"
TEXT = f"# limits of the fleet\nmax-num-seqs: 64   # cap\napi-key: {SECRET}\n"
CHANGED = TEXT.replace("64 ", "14 ")
ARGS = ["--max-model-len", "2048", "--config", f"/etc/vllm/{KEY}", "--block-size=32"]
LABEL = "kvmedic.io/target"


def configure(world: World, history: int = 10, **config_map: Any) -> None:
    """Move the fleet's cap into a ConfigMap, and wait until that is rolled out.

    `history` is the Deployment's `revisionHistoryLimit`; other words are fields of the ConfigMap.
    """
    body = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": NAME, **config_map.pop("metadata", {})},
    }
    data = {KEY: TEXT, "template.jinja": "{{ messages }}"}
    world.cluster.api.create({**body, "data": data, **config_map}, world.namespace)
    container = world.deployment()["spec"]["template"]["spec"]["containers"][0]
    mounted = {**container, "args": ARGS, "volumeMounts": [{"name": "config", "mountPath": "/etc/vllm"}]}
    pod = {"containers": [mounted], "volumes": [{"name": "config", "configMap": {"name": NAME}}]}
    spec = {"revisionHistoryLimit": history, "template": {"spec": pod}}
    world.cluster.api.patch("Deployment", "llm", {"spec": spec}, world.namespace)
    world.kubectl("rollout", "status", "deployment/llm", "--timeout=60s")
    world.wait(lambda: _is_rolled_out(world), PATIENCE_SECONDS, "the file is rolled out")
    world.rewrite(revision=world.revision())


def _is_rolled_out(world: World) -> bool:
    """Return whether every replica reads the file and none of before is there, not even on its way out."""
    every = world.cluster.api.list("Pod", world.namespace, "app=llm")
    return world.is_settled() and len(every) == world.replicas()


def config_map(world: World, name: str = NAME) -> dict[str, Any] | None:
    """Return a ConfigMap, or None where there is none."""
    try:
        return world.cluster.api.get("ConfigMap", name, world.namespace)
    except ApiError:
        return None


def copies(world: World) -> list[dict[str, Any]]:
    """Return the copies that are there."""
    return world.cluster.api.list("ConfigMap", world.namespace, LABEL)


def referred(world: World) -> str:
    """Return the ConfigMap that the template refers to."""
    return str(world.deployment()["spec"]["template"]["spec"]["volumes"][0]["configMap"]["name"])


def text_of(world: World, name: str) -> str:
    """Return the engine's file in a ConfigMap."""
    found = config_map(world, name)
    assert found is not None, f"ConfigMap {name} is gone"
    return str(found["data"][KEY])


def point_at(world: World, name: str, text: str) -> None:
    """Have a person repoint the template to another ConfigMap, as a tool does that names them by hash."""
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {KEY: text}}
    world.cluster.api.create(body, world.namespace)
    patch = [{"op": "replace", "path": "/spec/template/spec/volumes/0/configMap/name", "value": name}]
    world.kubectl("patch", "deployment", "llm", "--type=json", "-p", json.dumps(patch))


def edit_file(world: World, old: str = "64", new: str = "32") -> None:
    """Change the file in place, as a person would."""
    data = {KEY: TEXT.replace(old, new)}
    world.cluster.api.patch("ConfigMap", NAME, {"data": data}, world.namespace)
