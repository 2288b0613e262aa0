"""Whether the cluster knows the resource at all: kopf looks for it once, when it starts."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta

from kvmedic.api.resource import GROUP, PLURAL
from kvmedic.kube.client import Client
from kvmedic.kube.errors import ApiError
from kvmedic.record.store import RESOURCES

LOG = logging.getLogger("kvmedic")
OFTENEST = timedelta(seconds=2)
"""Between two looks, at most: somebody who installs by hand is watching."""
ADVICE = (
    f"CustomResourceDefinition {PLURAL}.{GROUP} is not installed: apply it (`kvmedic crd` prints it; chart: "
    "crds.enabled); waiting for it"
)


async def defined(client: Client, pace: timedelta) -> None:
    """Wait until the API server serves the resource; say so once while it does not.

    Nothing answers the liveness probe meanwhile, so Kubernetes restarts a process that waits for long.
    """
    told = ""
    while True:
        try:
            if await client.serves(RESOURCES):
                return
            problem = ADVICE
        except ApiError as error:
            problem = f"the API server does not say whether it knows {PLURAL}.{GROUP}: {error}; asking again"
        if problem != told:
            LOG.warning("reason=ResourceUnknown message=%r", problem)
            told = problem
        await asyncio.sleep(min(pace, OFTENEST).total_seconds())
