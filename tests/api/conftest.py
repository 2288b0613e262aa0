"""The resource on a real API server."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from lab.cluster.api import until
from lab.cluster.light import LightCluster

DEFINITION = Path(__file__).parents[2] / "crds" / "kvmedic.io_kvremediations.yaml"
COLLECTION = "/apis/kvmedic.io/v1alpha1/namespaces/{namespace}/kvremediations"
_NUMBERS = itertools.count()


@dataclass(frozen=True)
class Resources:
    """KVRemediations of one namespace; `strict` asks for field validation as kubectl does."""

    http: httpx.Client
    namespace: str
    cluster: LightCluster

    @property
    def path(self) -> str:
        return COLLECTION.format(namespace=self.namespace)

    def create(self, spec: object, *, strict: bool = True, **more: Any) -> httpx.Response:
        body = {
            "apiVersion": "kvmedic.io/v1alpha1",
            "kind": "KVRemediation",
            "metadata": {"name": f"kvr-{next(_NUMBERS)}"},
            "spec": spec,
            **more,
        }
        return self.http.post(self.path, json=body, params=validation(strict=strict))

    def created(self, spec: object, **more: Any) -> dict[str, Any]:
        response = self.create(spec, **more)
        assert response.is_success, response.text
        return dict(response.json())

    def get(self, name: str) -> dict[str, Any]:
        return dict(self.http.get(f"{self.path}/{name}").json())

    def put(self, resource: dict[str, Any], subresource: str = "") -> httpx.Response:
        return self.http.put(f"{self.path}/{resource['metadata']['name']}{subresource}", json=resource)

    def patch(self, name: str, spec: dict[str, Any]) -> httpx.Response:
        headers = {"Content-Type": "application/merge-patch+json"}
        return self.http.patch(f"{self.path}/{name}", json={"spec": spec}, headers=headers)


def validation(*, strict: bool) -> dict[str, str]:
    return {"fieldValidation": "Strict" if strict else "Ignore"}


@pytest.fixture(scope="session")
def defined(light: LightCluster) -> LightCluster:
    """The shared light cluster with the CustomResourceDefinition established."""
    definition = yaml.safe_load(DEFINITION.read_text())
    light.apply(definition)
    until(lambda: light.api.http.get(COLLECTION.format(namespace="default")).is_success, 20, "kvremediations")
    return light


@pytest.fixture(scope="session")
def resources(defined: LightCluster) -> Iterator[Resources]:
    """KVRemediations in a namespace of their own; every test makes its own."""
    namespace = defined.create_namespace(f"test-{uuid.uuid4().hex[:10]}")
    yield Resources(defined.api.http, namespace, defined)
    defined.api.delete("Namespace", namespace)
