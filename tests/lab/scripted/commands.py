"""A WebSocket server on loopback that plays the kubelet's part of `pods/exec`, from a script."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

from aiohttp import web

from lab.scripted.listening import listening

STDOUT, STDERR, STATUS = b"\x01", b"\x02", b"\x03"
PROTOCOL = "v4.channel.k8s.io"

Play: TypeAlias = Callable[[web.WebSocketResponse, list[str]], Awaitable[None]]
"""What happens on a connection, with the words of the command."""


def exit_status(code: int) -> bytes:
    """The last message of a command that ran, as the kubelet writes it."""
    if code == 0:
        return STATUS + b'{"metadata":{},"status":"Success"}'
    cause = {"reason": "ExitCode", "message": str(code)}
    body = {"status": "Failure", "reason": "NonZeroExitCode", "details": {"causes": [cause]}}
    return STATUS + json.dumps(body).encode()


NO_PROGRAM = (
    STATUS
    + json.dumps(
        {
            "metadata": {},
            "status": "Failure",
            "message": 'OCI runtime exec failed: exec: "nvidia-smi": executable file not found in $PATH',
            "reason": "InternalError",
            "details": {"causes": [{"message": "error executing command in container"}]},
            "code": 500,
        }
    ).encode()
)


def prints(text: str, code: int = 0) -> Play:
    async def play(socket: web.WebSocketResponse, words: list[str]) -> None:
        await socket.send_bytes(STDOUT + text.encode())
        await socket.send_bytes(exit_status(code))

    return play


def sends(*messages: bytes) -> Play:

    async def play(socket: web.WebSocketResponse, words: list[str]) -> None:
        for message in messages:
            await socket.send_bytes(message)

    return play


async def hangs(socket: web.WebSocketResponse, words: list[str]) -> None:
    """A command whose process sits in the kernel: it never ends, nor does anybody answer a close."""
    await asyncio.sleep(3600)


async def floods(socket: web.WebSocketResponse, words: list[str]) -> None:
    while not socket.closed:
        await socket.send_bytes(STDOUT + b"x" * 1024)


async def drips(socket: web.WebSocketResponse, words: list[str]) -> None:
    """A command that prints a little now and then, and hears no close."""
    while True:
        await socket.send_bytes(STDOUT + b"x")
        await asyncio.sleep(0.05)


@dataclass
class Commands:
    """Runs whatever it is asked to as its script says; `plays` by pod, `play` for every other."""

    play: Play = hangs
    plays: dict[str, Play] = field(default_factory=dict)
    refusal: int = 0
    """Code of the answer in place of a connection; 0: none."""
    asked: list[tuple[str, str, tuple[str, ...]]] = field(default_factory=list)
    """Pod, container and words of each command."""
    headers: list[dict[str, str]] = field(default_factory=list)
    most_at_once: int = 0
    now: int = 0

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer one request, of a client or of an API server that passes it on."""
        if self.refusal:
            return web.json_response({"kind": "Status", "reason": "Forbidden"}, status=self.refusal)
        pod, container = _place(request)
        words = request.query.getall("command", [])
        self.asked.append((pod, container, tuple(words)))
        self.headers.append(dict(request.headers))
        socket = web.WebSocketResponse(protocols=(PROTOCOL,), autoping=True)
        await socket.prepare(request)
        self.now += 1
        self.most_at_once = max(self.most_at_once, self.now)
        try:
            await self.plays.get(pod, self.play)(socket, words)
        except ConnectionError:
            pass
        finally:
            self.now -= 1
        return socket


def _place(request: web.Request) -> tuple[str, str]:
    """Return pod and container: a kubelet has them in the path, an API server's client in the query."""
    parts = request.path.strip("/").split("/")
    if parts[0] == "exec":
        return parts[2], parts[3]
    return parts[parts.index("pods") + 1], request.query["container"]


@asynccontextmanager
async def serving(commands: Commands, context: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    runner = web.ServerRunner(web.Server(commands.answer), shutdown_timeout=0.1)
    async with listening(runner, context) as port:
        yield port
