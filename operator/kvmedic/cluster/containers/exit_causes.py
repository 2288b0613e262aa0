"""What logs say of how engines ended last, and of how they started; bounded in size, and so is each line.

Tenants write logs: they are read in threads, and the loop goes on meanwhile. They may hold prompts: nothing
leaves this module but numbers, known marks and known phrases.
Every line is asked for with its time: from Kubernetes 1.32 on a kubelet answers 200 with an undated sentence
of its own where a log is gone.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, TypeAlias

from kvmedic.engines import VOCABULARIES
from kvmedic.engines.engine_log import LINE_LENGTH, Start, StartForms, Unread, parse_start
from kvmedic.kube.cpu import in_thread
from kvmedic.kube.errors import ApiError
from kvmedic.kube.objects import PODS, Ref
from kvmedic.model.devices import Cause, ContainerEnd, EngineEnd, Instance
from kvmedic.model.evidence import LogForms, LoggedSize, logged_size
from kvmedic.model.fleet import Pod
from kvmedic.rollout.trial import LastWords, refusal_in

if TYPE_CHECKING:
    from kvmedic.kube.client import Client

TAIL_LINES = 500
"""What is read of a log's end: a failed start of vLLM 0.32 ends with two tracebacks of about 60 lines each
and, with several ranks, one more of each rank."""
LIMIT_BYTES = 256 << 10
"""Bytes of a log that are read, at most; the kubelet cuts off what is later. A start of vLLM 0.32 wrote 5 kB
before it logged its pool (measured, CPU build); with several ranks and a model that is downloaded each of
them adds lines."""
LATE = timedelta(seconds=2)
"""How long after an end, as Kubernetes writes it, a line may be dated that is still of that life: one second
that is cut off (meta/v1 Time is in whole seconds), and one for what was in the pipe. The container runtime
dates a line when it reads it (containerd, cri/io/logger.go), and reads on when the process is gone."""
CHATTER = re.compile(r"\b(?:INFO|DEBUG)\b")
"""A line of ordinary logging: with request logging on it quotes prompts, which may say anything."""


@dataclass(frozen=True, slots=True)
class NoLog:
    """There is no log to go by."""

    why: str
    """For a person; never a part of a log."""


Log: TypeAlias = tuple[str, ...] | NoLog
"""Lines without their times. They may hold prompts."""


async def read_log_of_end(client: Client, namespace: str, pod: str, end: ContainerEnd) -> Log:
    """Return the last lines that an instance of a container wrote before it ended.

    The kubelet distinguishes the instances by "present" and "previous" alone, and the container may have been
    started again since the pod was read: what was written before or after that life is left out.
    """
    query = [("container", end.container), ("tailLines", str(TAIL_LINES)), ("limitBytes", str(LIMIT_BYTES))]
    if end.instance is Instance.PREVIOUS:
        query.append(("previous", "true"))
    found = await _read_dated_lines(client, Ref(PODS, namespace, pod), query)
    if isinstance(found, NoLog):
        return found
    own = tuple(text for at, text in found if end.started_at <= at < end.ended_at + LATE)
    return own or NoLog(f"the kubelet has nothing of {end.started_at:%H:%M:%SZ} to {end.ended_at:%H:%M:%SZ}")


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
    cause, trouble = Cause.HOST_MEMORY, ""
    if not end.at_memory_limit:
        log = await read_log_of_end(client, namespace, pod.name, end)
        if isinstance(log, NoLog):
            cause, trouble = Cause.UNKNOWN, log.why
        else:
            is_memory = await in_thread(bears_device_memory, log)
            cause = Cause.DEVICE_MEMORY if is_memory else Cause.ANOTHER
    return EngineEnd(cause, end.exit_code, end.ended_at, pod.restarts, trouble)


def bears_device_memory(lines: Iterable[str]) -> bool:
    """Return whether a log says that a device's memory ran out; ordinary log lines do not count."""
    forms = tuple(each.out_of_memory for each in VOCABULARIES)
    said = (line for line in lines if any(form.search(line) for form in forms))
    return any(not CHATTER.search(line) for line in said)


async def last_words_of(
    client: Client, namespace: str, pod: Pod, refusals: Sequence[re.Pattern[str]]
) -> LastWords:
    """Return what the log of a pod's last end says of it; nothing where it never ended.

    Args:
        refusals: how an engine refuses a type of its KV cache; ordinary log lines do not count.
    """
    if pod.last_end is None:
        return LastWords()
    log = await read_log_of_end(client, namespace, pod.name, pod.last_end)
    if isinstance(log, NoLog):
        return LastWords(trouble=log.why)
    return LastWords(await in_thread(_refusal_in, log, refusals))


def _refusal_in(log: Sequence[str], refusals: Sequence[re.Pattern[str]]) -> str:
    return refusal_in((line for line in log if not CHATTER.search(line)), refusals)


async def pools_of(
    client: Client, namespace: str, pods: Sequence[Pod], container: str, forms: LogForms
) -> dict[str, LoggedSize]:
    """Return the pools that the present logs of replicas name, by pod; one that names none is not there."""
    logs = await _read_starts(client, namespace, pods, container)
    found = {
        name: await in_thread(logged_size, log, forms)
        for name, log in logs.items()
        if not isinstance(log, NoLog)
    }
    return {name: size for name, size in found.items() if size is not None}


async def starts_of(
    client: Client, namespace: str, pods: Sequence[Pod], container: str, forms: StartForms
) -> dict[str, Start]:
    """Return what the present logs of replicas say of their start, by pod."""
    logs = await _read_starts(client, namespace, pods, container)
    return {
        name: Unread(log.why) if isinstance(log, NoLog) else await in_thread(parse_start, log, forms)
        for name, log in logs.items()
    }


async def _read_starts(client: Client, namespace: str, pods: Sequence[Pod], container: str) -> dict[str, Log]:
    """Return the beginning of each replica's present log, as far as it is kept."""
    query = [("container", container), ("limitBytes", str(LIMIT_BYTES))]
    logs = await asyncio.gather(
        *(_read_dated_lines(client, Ref(PODS, namespace, pod.name), query) for pod in pods)
    )
    return {
        pod.name: log if isinstance(log, NoLog) else tuple(text for _, text in log)
        for pod, log in zip(pods, logs, strict=True)
    }


async def _read_dated_lines(
    client: Client, pod: Ref, query: list[tuple[str, str]]
) -> tuple[tuple[datetime, str], ...] | NoLog:
    """Return the lines of a log with their times; NoLog where it cannot be read, or has none."""
    try:
        text = await client.text(pod, "log", (*query, ("timestamps", "true")))
    except ApiError as error:
        return NoLog(str(error))
    return await in_thread(dated_lines, text) or NoLog("the kubelet has no log any more")


def dated_lines(text: str) -> tuple[tuple[datetime, str], ...]:
    """Return the lines of a log with their times; those without one are not of the log."""
    return tuple(_each_dated_line(text))


def _each_dated_line(text: str) -> Iterator[tuple[datetime, str]]:
    # Lines end as the runtime writes them: a carriage return is within one.
    for line in text.split("\n"):
        stamp, _, words = line.partition(" ")
        try:
            at = datetime.fromisoformat(stamp)
        except ValueError:
            continue
        if at.tzinfo is not None:
            yield at, words[:LINE_LENGTH]
