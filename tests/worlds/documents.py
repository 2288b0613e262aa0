"""Manifests of a namespace, as a team has them: no uid, no status, nothing that only a server knows."""

from __future__ import annotations

from typing import Any

IMAGE = "vllm/vllm-openai:v0.11.0"
GPU = {"limits": {"nvidia.com/gpu": "1"}}


def an_engine(*args: str, image: str = IMAGE, **fields: Any) -> dict[str, Any]:
    """A container that starts vLLM."""
    command = ["vllm", "serve", "some/model", *args]
    return {"name": "vllm", "image": image, "command": command, "resources": GPU, **fields}


def a_deployment(
    *containers: dict[str, Any], replicas: int = 2, pod: dict[str, Any] | None = None, **spec: Any
) -> dict[str, Any]:
    """A Deployment named llm, whose selector and labels are its Service's."""
    template = {
        "metadata": {"labels": {"app": "llm"}},
        "spec": {"containers": [*(containers or [an_engine()])], **(pod or {})},
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "llm"},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": "llm"}},
            "template": template,
            **spec,
        },
    }


def a_service(**selector: str) -> dict[str, Any]:
    """The Service in front."""
    ports = [{"port": 80, "targetPort": 8000}]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "llm"},
        "spec": {"selector": selector or {"app": "llm"}, "ports": ports},
    }


def an_object(version: str, kind: str, name: str, **spec: Any) -> dict[str, Any]:
    """Any other object."""
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec}
