"""A fleet with an operator for one test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from lab.cluster.light import LightCluster
from reconcile.world import Maker, World, define


@pytest.fixture(scope="session")
def crd(light: LightCluster) -> None:
    define(light)


@pytest.fixture
def a_world(light: LightCluster, crd: None, namespace: str, tmp_path: Any) -> Iterator[Callable[..., World]]:
    """Makes a settled fleet and its resource; the operator is started by the test."""
    with ExitStack() as stack:
        yield Maker(light, namespace, tmp_path, stack).make
