"""Logs of containers, bounded, and only what an instance of a container wrote itself.

Every line is asked for with its time. From Kubernetes 1.32 on a kubelet answers 200 with a sentence of its
own where a log is gone (`unable to retrieve container logs for containerd://...`); that has no time, and is
never taken for the words of an engine.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeAlias

from kvmedic.core.fleet import ContainerEnd, Instance
from kvmedic.kube.client import Client
from kvmedic.kube.errors import ApiError
from kvmedic.kube.objects import Ref

LATE = timedelta(seconds=2)
"""How long after an end, as Kubernetes writes it, a line may be dated that is still of that life: one second
that is cut off (meta/v1 Time is in whole seconds), and one for what was in the pipe. The container runtime
dates a line when it reads it (containerd, cri/io/logger.go), and reads on when the process is gone."""


@dataclass(frozen=True, slots=True)
class Tail:
    """How much of a log's end is read."""

    lines: int
    limit_bytes: int
    """Bytes of these lines, at most; the kubelet cuts off what is later."""


@dataclass(frozen=True, slots=True)
class NoLog:
    """There is no log to go by."""

    why: str
    """For a person; never a part of a log."""


Log: TypeAlias = tuple[str, ...] | NoLog
"""Lines without their times. They may hold prompts."""


async def log_of(client: Client, pod: Ref, end: ContainerEnd, tail: Tail) -> Log:
    """Return the last lines that an instance of a container wrote before it ended.

    The kubelet tells the instances apart by "present" and "previous" alone, and the container may have been
    started again since the pod was read: what was written before or after that life is left out.
    """
    query = [
        ("container", end.container),
        ("tailLines", str(tail.lines)),
        ("limitBytes", str(tail.limit_bytes)),
    ]
    if end.instance is Instance.PREVIOUS:
        query.append(("previous", "true"))
    found = await _dated(client, pod, query)
    if isinstance(found, NoLog):
        return found
    own = tuple(text for at, text in found if end.started_at <= at < end.ended_at + LATE)
    return own or NoLog(f"the kubelet has nothing of {end.started_at:%H:%M:%SZ} to {end.ended_at:%H:%M:%SZ}")


async def log_start(client: Client, pod: Ref, container: str, limit_bytes: int) -> Log:
    """Return the beginning of the present log of a container as far as it is kept."""
    query = [("container", container), ("limitBytes", str(limit_bytes))]
    found = await _dated(client, pod, query)
    return found if isinstance(found, NoLog) else tuple(text for _, text in found)


async def _dated(
    client: Client, pod: Ref, query: list[tuple[str, str]]
) -> tuple[tuple[datetime, str], ...] | NoLog:
    """Return the lines of a log with their times; NoLog where it cannot be read, or has none."""
    try:
        text = await client.text(pod, "log", (*query, ("timestamps", "true")))
    except ApiError as error:
        return NoLog(str(error))
    return tuple(_lines(text)) or NoLog("the kubelet has no log any more")


def _lines(text: str) -> Iterator[tuple[datetime, str]]:
    """Return what is dated. Lines end as the runtime writes them: a carriage return is within one."""
    for line in text.split("\n"):
        stamp, _, words = line.partition(" ")
        try:
            at = datetime.fromisoformat(stamp)
        except ValueError:
            continue
        if at.tzinfo is not None:
            yield at, words
