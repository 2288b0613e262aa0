"""What replicas' own GPU drivers say, asked by `nvidia-smi` in their containers; off unless allowed.

It is asked seldom and of few replicas at once, because every answer costs a process in a tenant's container,
bounded in time and size. A command may hang for ever where the kernel does not let its process go: it is left
behind, because nobody can end it. What is remembered of an answer only spares asking again: a process that
starts anew asks anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from aiohttp import ClientWebSocketResponse, WSMsgType
from kubernetes.aio.stream import WsApiClient
from kubernetes.aio.stream.ws_client import ERROR_CHANNEL

from kvmedic.kube.clock import loop_seconds
from kvmedic.kube.errors import FORBIDDEN, ApiError
from kvmedic.kube.objects import PODS, Ref
from kvmedic.model.devices import CLOCK_FIELDS, Answer, NvidiaSmiError, nvidia_smi_query, parse_devices
from kvmedic.model.fleet import Pod

if TYPE_CHECKING:
    from kvmedic.kube.client import Client

LIMIT_BYTES = 64 << 10
"""What is read of one answer: a line is under 100 bytes, and a node has 16 GPUs at most."""
PROTOCOL = "v4.channel.k8s.io"
"""How the streams share the connection: the first byte of each message is the stream's number, and the last
message is the exit status on `ERROR_CHANNEL`. Every API server since 1.4 speaks it; the fifth differs only
in how a client ends its input, and there is none here."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long is waited, and how soon somebody is asked again."""

    seconds: float = 10.0
    """For one answer. Without persistence mode the driver wakes each GPU first, which takes seconds."""
    at_once: int = 8
    """Replicas that are asked side by side: a choice, so that a large fleet does not take all connections."""
    look_seconds: float = 30.0
    """After which nobody else's turn comes in one look: as long as one idle tick (`pace.idle`)."""
    fresh_seconds: float = 120.0
    """How long an answer counts: as old as a metrics source's newest sample may be (`sources.freshness`)."""
    hung_seconds: float = 600.0
    """How long nobody is asked whose command did not end. Each try may leave another process that nobody can
    end, so a fleet that hangs for a day is left with at most 144 per replica and operator: a choice."""


class NvidiaSmi:
    """The drivers under the replicas of one cluster."""

    def __init__(self, client: Client, patience: Patience = Patience()) -> None:
        self._client, self._patience = client, patience
        self._turns = asyncio.Semaphore(patience.at_once)
        self._kept: dict[str, tuple[Answer, float]] = {}
        """Answers by the pod's uid, with the time until which they count."""

    async def ask(self, namespace: str, pods: Sequence[Pod], container: str) -> Mapping[str, Answer]:
        """Return what the driver under each replica says, by pod name; a fresh answer serves again."""
        now = loop_seconds()
        self._kept = {uid: kept for uid, kept in self._kept.items() if kept[1] > now}
        due = [pod for pod in pods if pod.uid not in self._kept]
        last_turn = now + self._patience.look_seconds
        await asyncio.gather(*(self._in_turn(namespace, pod, container, last_turn) for pod in due))
        kept = self._kept
        return {pod.name: kept[pod.uid][0] if pod.uid in kept else NvidiaSmiError.NO_TURN for pod in pods}

    async def _in_turn(self, namespace: str, pod: Pod, container: str, last_turn: float) -> None:
        async with self._turns:
            if loop_seconds() >= last_turn:
                return
            answer: Answer = NvidiaSmiError.UNKNOWN_FIELD
            # By the newest names of the fields first; an older driver is asked once more.
            for field in CLOCK_FIELDS:
                answer = await self._ask_once(Ref(PODS, namespace, pod.name), container, field)
                if answer is not NvidiaSmiError.UNKNOWN_FIELD:
                    break
            hung = answer is NvidiaSmiError.TIMED_OUT
            lasts = self._patience.hung_seconds if hung else self._patience.fresh_seconds
            self._kept[pod.uid] = answer, loop_seconds() + lasts

    async def _ask_once(self, pod: Ref, container: str, field: str) -> Answer:
        at, argv = self._client.clock.now(), nvidia_smi_query(field)
        try:
            ended = await run_command(self._client, pod, container, argv, self._patience.seconds)
        except ApiError as error:
            return NvidiaSmiError.FORBIDDEN if error.code == FORBIDDEN else NvidiaSmiError.UNREACHABLE
        return parse_devices(ended.exit_code, ended.text, at) if isinstance(ended, Finished) else ended


@dataclass(frozen=True, slots=True)
class Finished:
    """A command ran to its end."""

    exit_code: int
    text: str
    """What it printed, errors included. It comes out of a tenant's container: never store it."""


Ending: TypeAlias = Finished | NvidiaSmiError
"""A command that did not end by itself has the reason for which nothing is known."""


async def run_command(
    client: Client, pod: Ref, container: str, argv: Sequence[str], seconds: float
) -> Ending:
    """Run a command without input in a container and return how it ended.

    Needs `get` and `create` on `pods/exec`: an API server asks for both where a WebSocket is opened (a real
    one of 1.36 answers 403 to `create` alone).

    Args:
        seconds: from the request to the exit status. Closing the connection may take `CLOSE_SECONDS` more.

    Raises:
        Refused: commands may not be run there, or there is no such container.
        Unavailable: the API server or the kubelet did not answer.
    """
    query = [("container", container), ("stdout", "true"), ("stderr", "true")]
    query += [("command", word) for word in argv]
    try:
        async with asyncio.timeout(seconds):
            async with client.socket(pod, "exec", query, PROTOCOL) as socket:
                return await _read_to_end(socket)
    except TimeoutError:
        return NvidiaSmiError.TIMED_OUT


async def _read_to_end(socket: ClientWebSocketResponse) -> Ending:
    """Read to the exit status; every byte of every stream counts."""
    printed = bytearray()
    async for message in socket:
        if message.type is not WSMsgType.BINARY or not message.data:
            continue
        stream, data = message.data[0], message.data[1:]
        if stream == ERROR_CHANNEL:
            try:
                code = WsApiClient.parse_error_data(data)  # type: ignore[no-untyped-call]
            except (ValueError, LookupError, TypeError, AttributeError):
                # A status without an exit code is of a command that never ran.
                return NvidiaSmiError.NOT_STARTED
            return Finished(code, printed.decode(errors="replace"))
        printed += data
        if len(printed) > LIMIT_BYTES:
            return NvidiaSmiError.TOO_LONG
    return NvidiaSmiError.UNREACHABLE
