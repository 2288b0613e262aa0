"""What engines said of themselves when they started, where their metrics do not say it.

Logs may hold prompts. One is searched here for numbers and known phrases, and nothing else of it leaves this
module.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from kvmedic.core.fleet import Pod
from kvmedic.core.logged_pool import LogForms, LoggedSize, logged_size
from kvmedic.core.started import Start, StartForms, Unread, started_of
from kvmedic.kube.client import Client
from kvmedic.kube.logs import Log, NoLog, log_start
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
    logs = await _beginnings(client, namespace, pods, container)
    found = {name: logged_size(log, forms) for name, log in logs.items() if not isinstance(log, NoLog)}
    return {name: size for name, size in found.items() if size is not None}


async def starts_of(
    client: Client, namespace: str, pods: Sequence[Pod], container: str, forms: StartForms
) -> dict[str, Start]:
    """Return what the present logs of replicas tell of their start, by pod.

    Args:
        client: the API.
        namespace: of the pods.
        pods: whose logs are read.
        container: the engine's.
        forms: how its log tells of a start.
    """
    logs = await _beginnings(client, namespace, pods, container)
    return {name: _start(log, forms) for name, log in logs.items()}


def _start(log: Log, forms: StartForms) -> Start:
    return Unread(log.why) if isinstance(log, NoLog) else started_of(log, forms)


async def _beginnings(client: Client, namespace: str, pods: Sequence[Pod], container: str) -> dict[str, Log]:
    refs = [Ref(PODS, namespace, pod.name) for pod in pods]
    logs = await asyncio.gather(*(log_start(client, ref, container, BEGINNING_BYTES) for ref in refs))
    return {pod.name: log for pod, log in zip(pods, logs, strict=True)}
