"""A fleet with an operator for one test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from lab.cluster.light import LightCluster
from worlds.world import Maker, World, define

LIMIT_SECONDS = 400
"""Three times what a wait may take on a busy machine, and some."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give what makes a world its time, unless it says how much it needs."""
    for item in items:
        if "a_world" in getattr(item, "fixturenames", ()) and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(LIMIT_SECONDS))


@pytest.fixture(scope="session")
def crd(light: LightCluster) -> None:
    define(light)


@pytest.fixture
def a_world(light: LightCluster, crd: None, namespace: str, tmp_path: Any) -> Iterator[Callable[..., World]]:
    """Makes a settled fleet and its resource; the operator is started by the test."""
    with ExitStack() as stack:
        yield Maker(light, namespace, tmp_path, stack).make
