"""Fixtures that start parts of the lab; nothing here starts unless a test asks for it."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from lab.cluster.light import LightCluster

SHARED_GPUS = 256


@pytest.fixture(scope="session")
def light() -> Iterator[LightCluster]:
    """One API server with real controllers and simulated pods for the whole session; see `namespace`."""
    with LightCluster(controllers=True, kwok=True, node_gpus=SHARED_GPUS) as cluster:
        yield cluster


@pytest.fixture
def new_namespace(light: LightCluster) -> Iterator[Callable[..., str]]:
    """Makes namespaces of the shared light cluster; they are deleted after the test."""
    made: list[str] = []

    def create(labels: dict[str, str] | None = None) -> str:
        made.append(light.create_namespace(f"test-{uuid.uuid4().hex[:10]}", labels))
        return made[-1]

    yield create
    for name in made:
        light.api.delete("Namespace", name)


@pytest.fixture
def namespace(new_namespace: Callable[..., str]) -> str:
    """A namespace of the shared light cluster that belongs to this test alone."""
    return new_namespace()


@pytest.fixture
def private_light() -> Iterator[Callable[..., LightCluster]]:
    """Starts light clusters for one test alone: `private_light(controllers=True, kwok=True, node_gpus=8)`."""
    with ExitStack() as stack:

        def start(**options: Any) -> LightCluster:
            return stack.enter_context(LightCluster(**options))

        yield start
