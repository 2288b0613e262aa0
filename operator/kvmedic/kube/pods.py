"""Logs of containers and commands in containers, bounded in time and size.

Every line of a log is asked for with its time: from Kubernetes 1.32 on a kubelet answers 200 with an undated
sentence of its own where a log is gone. A command may hang for ever where the kernel does not let its process
go: it is left behind in its container, because nobody can end it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeAlias

from aiohttp import ClientWebSocketResponse, WSMsgType
from kubernetes.aio.stream import WsApiClient
from kubernetes.aio.stream.ws_client import ERROR_CHANNEL

from kvmedic.kube.client import Client
from kvmedic.kube.errors import ApiError
from kvmedic.kube.objects import Ref
from kvmedic.model.fleet import ContainerEnd, Instance

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
    found = await _parse_log(client, pod, query)
    if isinstance(found, NoLog):
        return found
    own = tuple(text for at, text in found if end.started_at <= at < end.ended_at + LATE)
    return own or NoLog(f"the kubelet has nothing of {end.started_at:%H:%M:%SZ} to {end.ended_at:%H:%M:%SZ}")


async def log_start(client: Client, pod: Ref, container: str, limit_bytes: int) -> Log:
    """Return the beginning of the present log of a container as far as it is kept."""
    query = [("container", container), ("limitBytes", str(limit_bytes))]
    found = await _parse_log(client, pod, query)
    return found if isinstance(found, NoLog) else tuple(text for _, text in found)


async def _parse_log(
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


PROTOCOL = "v4.channel.k8s.io"
"""How the streams share the connection: the first byte of each message is the stream's number, and the last
message is the exit status on `ERROR_CHANNEL`. Every API server since 1.4 speaks it; the fifth differs only
in how a client ends its input, and there is none here."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What one command may take."""

    seconds: float
    """From the request to the exit status. Closing the connection may take `CLOSE_SECONDS` more."""
    limit_bytes: int


@dataclass(frozen=True, slots=True)
class Finished:
    """It ran to its end."""

    exit_code: int
    text: str
    """What it printed, errors included. It comes out of a tenant's container: never store it."""


@dataclass(frozen=True, slots=True)
class NotStarted:
    """The container's runtime could not start it, because there is no such program for instance."""


@dataclass(frozen=True, slots=True)
class TimedOut:
    """It did not end in time."""


@dataclass(frozen=True, slots=True)
class Flooded:
    """It printed more than was to be read."""


@dataclass(frozen=True, slots=True)
class Broken:
    """The connection ended before the command did."""


Ending: TypeAlias = Finished | NotStarted | TimedOut | Flooded | Broken


async def run_command(
    client: Client, pod: Ref, container: str, argv: Sequence[str], bounds: Bounds
) -> Ending:
    """Run a command without input in a container and return how it ended.

    Needs `get` and `create` on `pods/exec`: an API server asks for both where a WebSocket is opened (a real
    one of 1.36 answers 403 to `create` alone).

    Raises:
        Refused: commands may not be run there, or there is no such container.
        Unavailable: the API server or the kubelet did not answer.
    """
    query = [("container", container), ("stdout", "true"), ("stderr", "true")]
    query += [("command", word) for word in argv]
    try:
        async with asyncio.timeout(bounds.seconds):
            async with client.socket(pod, "exec", query, PROTOCOL) as socket:
                return await _read_to_end(socket, bounds.limit_bytes)
    except TimeoutError:
        return TimedOut()


async def _read_to_end(socket: ClientWebSocketResponse, limit_bytes: int) -> Ending:
    """Read to the exit status; every byte of every stream counts."""
    printed = bytearray()
    async for message in socket:
        if message.type is not WSMsgType.BINARY or not message.data:
            continue
        stream, data = message.data[0], message.data[1:]
        if stream == ERROR_CHANNEL:
            return _command_result(data, printed.decode(errors="replace"))
        printed += data
        if len(printed) > limit_bytes:
            return Flooded()
    return Broken()


def _command_result(status: bytes, text: str) -> Finished | NotStarted:
    """Return how a command ended by its status; one without an exit code is of a command that never ran."""
    try:
        return Finished(WsApiClient.parse_error_data(status), text)  # type: ignore[no-untyped-call]
    except (ValueError, LookupError, TypeError, AttributeError):
        return NotStarted()
