"""What logs tell of how engines ended last, and of how they started.

Logs may hold prompts: nothing leaves this module but numbers, known marks and known phrases.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Sequence
from datetime import datetime

from kvmedic.engines.engine_log import Start, StartForms, Unread, started_of
from kvmedic.kube.client import Client
from kvmedic.kube.objects import PODS, Ref
from kvmedic.kube.pods import Log, NoLog, Tail, log_of, log_start
from kvmedic.model.devices import Cause, EngineEnd
from kvmedic.model.evidence import LogForms, LoggedSize, logged_size
from kvmedic.model.fleet import ContainerEnd, Pod
from kvmedic.rollout.trial import LastWords, refusal_in

TAIL = Tail(lines=500, limit_bytes=256 << 10)
"""What is read of a log: a failed start of vLLM 0.32 ends with two tracebacks of about 60 lines each and,
with several ranks, one more of each rank."""
DEVICE_MEMORY = re.compile(
    r"torch\.(?:cuda\.)?OutOfMemoryError|(?:CUDA|HIP) out of memory|CUDA error: out of memory"
    r"|Cuda failure(?: \d+)? '?out of memory"
    r"|Free memory on device .* is less than desired GPU memory utilization"
)
"""How vLLM, torch and NCCL say that a GPU's memory ran out: at start-up also that other processes hold
what the engine was told to take (vLLM 0.32). `No available memory for the cache
blocks` is not among them: that engine needs a larger share, not a smaller one."""
CHATTER = re.compile(r"\b(?:INFO|DEBUG)\b")
"""A line of ordinary logging: with request logging on it quotes prompts, which may say anything."""


async def ends_of(
    client: Client, namespace: str, pods: Sequence[Pod], since: datetime
) -> dict[str, EngineEnd]:
    """Return the newest end of each engine that ended since a moment, or was not Ready since, by pod.

    A log is asked for only where the kubelet does not say enough; one that cannot be read makes the
    cause unknown, never another.
    """
    # The kubelet waits for minutes before it starts a container again that keeps ending, and a large model
    # loads for minutes more: the end of one that is not Ready since counts, however old it is.
    recent = [
        (pod, pod.last_end)
        for pod in pods
        if pod.last_end and (pod.last_end.ended_at >= since or pod.keeps_ending)
    ]
    found = await asyncio.gather(*(_end_of(client, namespace, pod, end) for pod, end in recent))
    return {pod.name: end for (pod, _), end in zip(recent, found, strict=True)}


async def _end_of(client: Client, namespace: str, pod: Pod, end: ContainerEnd) -> EngineEnd:
    if end.at_memory_limit:
        return EngineEnd(Cause.HOST_MEMORY, end.exit_code, end.ended_at, pod.restarts, "")
    log = await log_of(client, Ref(PODS, namespace, pod.name), end, TAIL)
    if isinstance(log, NoLog):
        return EngineEnd(Cause.UNKNOWN, end.exit_code, end.ended_at, pod.restarts, log.why)
    cause = Cause.DEVICE_MEMORY if bears_device_memory(log) else Cause.ANOTHER
    return EngineEnd(cause, end.exit_code, end.ended_at, pod.restarts, "")


def bears_device_memory(lines: Iterable[str]) -> bool:
    """Return whether a log says that a device's memory ran out; ordinary log lines do not count."""
    return any(DEVICE_MEMORY.search(line) and not CHATTER.search(line) for line in lines)


async def last_words_of(
    client: Client, namespace: str, pod: Pod, refusals: Sequence[re.Pattern[str]]
) -> LastWords:
    """Return what the log of a pod's last end says of it; nothing where it never ended.

    Args:
        refusals: how an engine refuses a type of its KV cache; ordinary log lines do not count.
    """
    if pod.last_end is None:
        return LastWords()
    log = await log_of(client, Ref(PODS, namespace, pod.name), pod.last_end, TAIL)
    if isinstance(log, NoLog):
        return LastWords(trouble=log.why)
    return LastWords(refusal_in((line for line in log if not CHATTER.search(line)), refusals))


BEGINNING_BYTES = 256 << 10
"""What is read of a log: a start of vLLM 0.32 wrote 5 kB before it told its pool (measured, CPU build); with
several ranks and a model that is downloaded each of them adds lines."""


async def pools_of(
    client: Client, namespace: str, pods: Sequence[Pod], container: str, forms: LogForms
) -> dict[str, LoggedSize]:
    """Return the pools that the present logs of replicas tell, by pod; one that tells none is not there."""
    logs = await _beginnings(client, namespace, pods, container)
    found = {name: logged_size(log, forms) for name, log in logs.items() if not isinstance(log, NoLog)}
    return {name: size for name, size in found.items() if size is not None}


async def starts_of(
    client: Client, namespace: str, pods: Sequence[Pod], container: str, forms: StartForms
) -> dict[str, Start]:
    """Return what the present logs of replicas tell of their start, by pod."""
    logs = await _beginnings(client, namespace, pods, container)
    return {
        name: Unread(log.why) if isinstance(log, NoLog) else started_of(log, forms)
        for name, log in logs.items()
    }


async def _beginnings(client: Client, namespace: str, pods: Sequence[Pod], container: str) -> dict[str, Log]:
    refs = [Ref(PODS, namespace, pod.name) for pod in pods]
    logs = await asyncio.gather(*(log_start(client, ref, container, BEGINNING_BYTES) for ref in refs))
    return {pod.name: log for pod, log in zip(pods, logs, strict=True)}
