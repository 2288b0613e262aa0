"""Logs of containers, bounded."""

from __future__ import annotations

from dataclasses import dataclass

from kvmedic.kube.client import Client
from kvmedic.kube.objects import Ref


@dataclass(frozen=True, slots=True)
class Tail:
    """How much of a log's end is read."""

    lines: int
    limit_bytes: int
    """Bytes of these lines, at most; the kubelet cuts off what is later."""


async def previous_log(client: Client, pod: Ref, container: str, tail: Tail) -> str:
    """Return the end of the log of the container's instance before the present one. It may hold prompts.

    Raises:
        Refused: the log is gone, or may not be read.
        Unavailable: the kubelet did not answer.
    """
    query = (
        ("container", container),
        ("previous", "true"),
        ("tailLines", str(tail.lines)),
        ("limitBytes", str(tail.limit_bytes)),
    )
    return await client.text(pod, "log", query)


async def log_start(client: Client, pod: Ref, container: str, limit_bytes: int) -> str:
    """Return the beginning of the log of a container as far as it is kept. It may hold prompts.

    Raises:
        Refused: the log is gone, or may not be read.
        Unavailable: the kubelet did not answer.
    """
    return await client.text(pod, "log", (("container", container), ("limitBytes", str(limit_bytes))))
