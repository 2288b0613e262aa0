"""The operator's pod is asked to end before its process handles signals."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from lab.cluster.api import Api, until
from lab.cluster.interface import Cluster
from lab.installation import NAMESPACE, RELEASE, install, uninstall

NOWHERE = "http://127.0.0.1:9"
"""No Prometheus: it is not asked before there is a resource."""
GRACE_SECONDS = 30
"""Of the chart's pods: what does not end is killed then."""


@pytest.fixture
def installed(cluster: Cluster) -> Iterator[None]:
    """The operator by its chart, without a fleet to look after."""
    install(cluster, {"sources": {"default": {"url": NOWHERE}}})
    yield
    uninstall(cluster)


def test_an_operator_that_is_asked_to_end_while_it_starts_ends_at_once(api: Api, installed: None) -> None:
    """As process 1 it would get no signal: the kernel drops those that such a process does not handle yet."""
    scale(api, 0)
    until(lambda: not api.list("Pod", NAMESPACE), GRACE_SECONDS, "the operator's pod is gone")
    scale(api, 1)
    until(lambda: any(map(is_running, api.list("Pod", NAMESPACE))), GRACE_SECONDS, "the next one runs")

    asked = time.monotonic()
    scale(api, 0)
    until(lambda: not api.list("Pod", NAMESPACE), 2 * GRACE_SECONDS, "the next one is gone")

    assert time.monotonic() - asked < GRACE_SECONDS / 2


def scale(api: Api, replicas: int) -> None:
    api.patch("Deployment", RELEASE, {"spec": {"replicas": replicas}}, NAMESPACE)


def is_running(pod: dict[str, Any]) -> bool:
    statuses = pod.get("status", {}).get("containerStatuses", ())
    return any("running" in each["state"] for each in statuses)
