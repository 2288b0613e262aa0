"""Fixtures of what reads and changes a cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from kvmedic.kube.client import Client, Limits, connect
from lab.cluster.light import LightCluster
from worlds.live_fleet import LiveFleet


@pytest.fixture
async def client(light: LightCluster) -> AsyncIterator[Client]:
    """An administrator of the shared light cluster, who is never held back."""
    async with await connect(light.kubeconfig, Limits(per_second=500, burst=500)) as made:
        yield made


@pytest.fixture
def live(light: LightCluster, client: Client, namespace: str) -> LiveFleet:
    """A fleet in a namespace of its own."""
    return LiveFleet(light, client, namespace)
