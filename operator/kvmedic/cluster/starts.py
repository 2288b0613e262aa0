"""What engines said of themselves when they started, where their metrics do not say it.

Logs may hold prompts. One is searched here for numbers, and nothing else of it leaves this module.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from kvmedic.core.fleet import Pod
from kvmedic.core.logged_pool import LogForms, LoggedSize, logged_size
from kvmedic.kube.client import Client
from kvmedic.kube.logs import NoLog, log_start
from kvmedic.kube.objects import PODS, Ref

BEGINNING_BYTES = 256 << 10
"""What is read of a log: a start of vLLM 0.32 wrote 5 kB before it told its pool (measured, CPU build); with
several ranks and a model that is downloaded each of them adds lines."""


async def pools_of(
    client: Client, namespace: str, pods: Sequence[Pod], container: str, forms: LogForms
) -> dict[str, LoggedSize]:
    """Return the pools that the present logs of replicas tell, by pod; one that tells none is not there.

    Args:
        client: the API.
        namespace: of the pods.
        pods: whose logs are read.
        container: the engine's.
        forms: how its log tells the pool.
    """
    found = await asyncio.gather(*(_pool_of(client, namespace, pod, container, forms) for pod in pods))
    return {pod.name: size for pod, size in zip(pods, found, strict=True) if size is not None}


async def _pool_of(
    client: Client, namespace: str, pod: Pod, container: str, forms: LogForms
) -> LoggedSize | None:
    log = await log_start(client, Ref(PODS, namespace, pod.name), container, BEGINNING_BYTES)
    return None if isinstance(log, NoLog) else logged_size(log, forms)
