"""One command in a container, with hard limits on its time and on what is read of it.

A command may hang for ever where the kernel does not let its process go, and may print without end. Both
limits hold here, whatever happens there: a process that hangs is left behind in its container, because
nobody can end it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from aiohttp import ClientWebSocketResponse, WSMsgType
from kubernetes.aio.stream import WsApiClient
from kubernetes.aio.stream.ws_client import ERROR_CHANNEL

from kvmedic.kube.client import Client
from kvmedic.kube.objects import Ref

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


async def run(client: Client, pod: Ref, container: str, argv: Sequence[str], bounds: Bounds) -> Ending:
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
                return await _ending(socket, bounds.limit_bytes)
    except TimeoutError:
        return TimedOut()


async def _ending(socket: ClientWebSocketResponse, limit_bytes: int) -> Ending:
    """Read to the exit status; every byte of every stream counts."""
    printed = bytearray()
    async for message in socket:
        if message.type is not WSMsgType.BINARY or not message.data:
            continue
        stream, data = message.data[0], message.data[1:]
        if stream == ERROR_CHANNEL:
            return _finished(data, printed.decode(errors="replace"))
        printed += data
        if len(printed) > limit_bytes:
            return Flooded()
    return Broken()


def _finished(status: bytes, text: str) -> Finished | NotStarted:
    """Return how a command ended by its status; one without an exit code is of a command that never ran."""
    try:
        return Finished(WsApiClient.parse_error_data(status), text)  # type: ignore[no-untyped-call]
    except (ValueError, LookupError, TypeError, AttributeError):
        return NotStarted()
