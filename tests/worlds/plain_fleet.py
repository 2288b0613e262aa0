"""A fleet on the light tier as most are: its Service selects what the Deployment selects, and no more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvmedic.cluster.fronts import DrainWay
from kvmedic.cluster.snapshot import snapshot
from kvmedic.model.fleet import Fleet
from kvmedic.model.spec import RotationWay
from kvmedic.runbooks.workload import View
from lab.cluster.simulation import behaviour
from worlds.live_fleet import LABEL, NAME, TARGET, LiveFleet, deployment, is_whole, service

SLOW = behaviour(ready_after="2s")
"""Starts for longer than the controllers take to let a stand-in go."""
GPU = {"limits": {"nvidia.com/gpu": "1"}}


@dataclass
class PlainFleet(LiveFleet):
    """A Deployment without a rotation label, and its Service."""

    way: RotationWay = RotationWay.AUTO

    async def look(self) -> View:
        """The fleet as it is now."""
        seen = await snapshot(self.client, self.namespace, TARGET, LABEL, DrainWay(self.way))
        assert seen is not None
        return seen

    async def serving(self, replicas: int, annotations: dict[str, str] | None = None, **spec: Any) -> Fleet:
        """Create the Deployment and its Service, and wait until every replica is in rotation."""
        self.light.api.create(service(app=NAME), self.namespace)
        body = deployment(replicas, SLOW if annotations is None else annotations, GPU, **spec)
        del body["spec"]["template"]["metadata"]["labels"][LABEL.key]
        self.light.api.create(body, self.namespace)
        return await self.until(is_whole, f"{replicas} replicas in rotation")
