"""Fixtures that start parts of the lab; nothing here starts unless a test asks for it."""

from __future__ import annotations

import gc
import os
import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from lab.cluster.api import Api, abandon_namespace, create_namespace
from lab.cluster.interface import Cluster
from lab.cluster.light import LightCluster
from lab.cluster.native import choose
from lab.cluster.shared import join_light

LIGHT_FIXTURES = frozenset({"light", "private_light"})
SHARED_GPUS = 256
REAL_GPUS = 8


@pytest.fixture(scope="session")
def light() -> Iterator[LightCluster]:
    """One API server with real controllers and simulated pods for the whole session; see `namespace`.

    All workers share it: what a test makes outside its namespace bears a name of its own, or is the same in
    all tests.
    """
    session = os.environ.get("PYTEST_XDIST_TESTRUNUID")
    if session is None:
        with LightCluster(controllers=True, kwok=True, node_gpus=SHARED_GPUS) as cluster:
            yield cluster
    else:
        cluster = join_light(session, os.getppid(), controllers=True, kwok=True, node_gpus=SHARED_GPUS)
        yield cluster
        cluster.api.close()


@pytest.fixture
def new_namespace(light: LightCluster) -> Iterator[Callable[..., str]]:
    """Makes namespaces of the shared light cluster; nothing works in them after the test."""
    made: list[str] = []

    def create(labels: dict[str, str] | None = None) -> str:
        made.append(light.create_namespace(f"test-{uuid.uuid4().hex[:10]}", labels))
        return made[-1]

    yield create
    for name in made:
        abandon_namespace(light.api, name)


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


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what uses a cluster of which kind, and say what one worker takes as a whole, and what comes first.

    Tests that take the cluster down come last, so that the others share one. On several workers each test of
    the shared light cluster is dealt out singly, as those are the slow ones; other modules stay whole, so
    that what they prepare is prepared once, or go with those of the group that they name. The slow ones wait
    most of their time, and come first, those before all that may last longest: what computes fills the end.
    """
    for item in items:
        used = getattr(item, "fixturenames", ())
        if "cluster" in used or item.get_closest_marker("takes_cluster_down") is not None:
            item.add_marker("cluster")
        if LIGHT_FIXTURES.intersection(used):
            item.add_marker("light")
        if "light" not in used and item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))
    items.sort(key=_order)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write down what failed by the names that a session without workers knows.

    Workers add "@group" to a test's name. `--last-failed` would find none of them, and run everything.
    """
    cache = getattr(session.config, "cache", None)
    if cache is None or hasattr(session.config, "workerinput"):
        return
    failed = cache.get("cache/lastfailed", {})
    named = {re.sub(r"@[^\]@]*$", "", name): True for name in failed}
    if named != failed:
        cache.set("cache/lastfailed", named)


def pytest_collection_finish() -> None:
    """Leave what was imported and collected out of every later garbage collection: it stays to the end."""
    gc.collect()
    gc.freeze()


def _order(item: pytest.Item) -> tuple[bool, bool, float]:
    limit = item.get_closest_marker("timeout")
    return (
        item.get_closest_marker("takes_cluster_down") is not None,
        item.get_closest_marker("light") is None,
        -float(limit.args[0]) if limit is not None and limit.args else 0.0,
    )


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """The lab's real cluster, shared by the session; one that was up before outlives what shares it."""
    found = choose()
    was_up = found.is_up()
    found.up(REAL_GPUS)
    yield found
    if not was_up:
        found.down()


@pytest.fixture
def api(cluster: Cluster) -> Iterator[Api]:
    """The administrator's client of the real cluster."""
    with Api(cluster.access) as client:
        yield client


@pytest.fixture
def new_real_namespace(api: Api) -> Iterator[Callable[..., str]]:
    """Makes namespaces of the real cluster; they are deleted after the test."""
    made: list[str] = []

    def create(labels: dict[str, str] | None = None) -> str:
        made.append(create_namespace(api, f"test-{uuid.uuid4().hex[:10]}", labels))
        return made[-1]

    yield create
    for name in made:
        api.delete("Namespace", name)


@pytest.fixture
def real_namespace(new_real_namespace: Callable[..., str]) -> str:
    """A namespace of the real cluster that belongs to this test alone."""
    return new_real_namespace()
