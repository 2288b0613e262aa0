"""Commands in containers: against a scripted kubelet, alone and behind a real API server."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from kubernetes.aio.client import Configuration

from kvmedic.kube import client as client_module
from kvmedic.kube.client import Client, Limits
from kvmedic.kube.errors import ApiError, Refused, Unavailable
from kvmedic.kube.objects import PODS, Ref
from kvmedic.kube.pods import (
    Bounds,
    Broken,
    Ending,
    Finished,
    Flooded,
    NotStarted,
    TimedOut,
    run_command,
)
from lab.cluster.light import LightCluster
from lab.cluster.pki import Authority
from lab.scripted.commands import (
    NO_PROGRAM,
    STATUS,
    STDERR,
    STDOUT,
    Commands,
    Play,
    drips,
    exit_status,
    floods,
    hangs,
    prints,
    sends,
    serving,
)

POD = Ref(PODS, "serving", "llm-0")
WORDS = ("nvidia-smi", "--query-gpu=index,uuid", "--format=csv,noheader")
BOUNDS = Bounds(seconds=5, limit_bytes=4096)


@asynccontextmanager
async def client_of(url: str, token: str = "", ca: Path | None = None) -> AsyncIterator[Client]:
    configuration = Configuration(host=url, ssl_ca_cert=str(ca) if ca else None)
    configuration.api_key["BearerToken"] = f"Bearer {token}"
    async with Client(configuration, Limits()) as client:
        yield client


async def ran(commands: Commands, bounds: Bounds = BOUNDS) -> Ending:
    async with serving(commands) as port, client_of(f"http://127.0.0.1:{port}", "our-token") as client:
        return await run_command(client, POD, "vllm", WORDS, bounds)


async def test_a_command_is_asked_for_word_by_word_and_without_input() -> None:
    commands = Commands(prints("0, GPU-1\n"))

    ending = await ran(commands)

    assert ending == Finished(0, "0, GPU-1\n")
    assert commands.asked == [("llm-0", "vllm", WORDS)]
    (headers,) = commands.headers
    assert headers["Authorization"] == "Bearer our-token"
    assert headers["Sec-WebSocket-Protocol"] == "v4.channel.k8s.io"


@pytest.mark.parametrize(
    ("play", "expected"),
    [
        (prints("lost\n", code=15), Finished(15, "lost\n")),
        (prints("", code=255), Finished(255, "")),
        (sends(STDOUT + b"a", STDERR + b"b", STDOUT, b"", STDOUT + b"c", exit_status(0)), Finished(0, "abc")),
        (sends(STDOUT + b"\xff\xfe", exit_status(0)), Finished(0, "\ufffd\ufffd")),
        (sends(NO_PROGRAM), NotStarted()),
        (sends(STATUS + b"not JSON"), NotStarted()),
        (sends(STATUS + b"[]"), NotStarted()),
        (sends(STATUS + b'{"status":"Failure","details":null}'), NotStarted()),
        (sends(STATUS + b'{"status":"Failure","details":{"causes":[]}}'), NotStarted()),
        (sends(STDOUT + b"half an ans"), Broken()),
        (sends(), Broken()),
        (sends(STDOUT + b"x" * 4096, exit_status(0)), Finished(0, "x" * 4096)),
        (sends(STDOUT + b"x" * 4097, exit_status(0)), Flooded()),
        (sends(STDOUT + b"x" * 4000, STDERR + b"x" * 97, exit_status(0)), Flooded()),
        (floods, Flooded()),
    ],
    ids=[
        "it fails",
        "it fails otherwise",
        "both streams in pieces",
        "no text",
        "no such program",
        "a status that is no JSON",
        "a status that is no object",
        "a failure without details",
        "a failure without causes",
        "cut in the middle",
        "cut at once",
        "as much as may be read",
        "one byte more",
        "one byte more on two streams",
        "without end",
    ],
)
async def test_a_command_ends_in_one_of_a_few_ways(play: Play, expected: Ending) -> None:
    assert await asyncio.wait_for(ran(Commands(play)), 10) == expected


async def test_a_message_larger_than_any_answer_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "MESSAGE_BYTES", 8192)

    assert await ran(Commands(sends(STDOUT + b"x" * 10_000, exit_status(0)))) == Broken()


@pytest.mark.parametrize("play", [hangs, drips], ids=["in silence", "while it goes on printing"])
async def test_a_command_that_hangs_is_given_up_in_time_also_where_nobody_hears_the_close(play: Play) -> None:
    began = time.monotonic()

    ending = await asyncio.wait_for(ran(Commands(play), Bounds(0.5, 4096)), 10)

    assert ending == TimedOut()
    assert time.monotonic() - began < 0.5 + client_module.CLOSE_SECONDS + 1


async def test_an_answer_that_never_comes_is_given_up_in_time() -> None:
    async def deaf(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(deaf, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    began = time.monotonic()

    async with client_of(f"http://127.0.0.1:{port}") as client:
        ending = await run_command(client, POD, "vllm", WORDS, Bounds(0.3, 4096))
    server.close()

    assert ending == TimedOut()
    assert time.monotonic() - began < 2


@pytest.mark.parametrize(
    ("code", "leaf"),
    [(400, Refused), (401, Refused), (403, Refused), (404, Refused), (429, Unavailable), (500, Unavailable)],
)
async def test_a_connection_that_is_refused_is_an_error_of_the_api(code: int, leaf: type[ApiError]) -> None:
    with pytest.raises(leaf, match=f"get /api/v1/namespaces/serving/pods/llm-0/exec: {code}") as caught:
        await ran(Commands(refusal=code))

    assert caught.value.code == code
    assert "our-token" not in str(caught.value)


async def test_nobody_listening_is_unavailable() -> None:
    async with serving(Commands()) as port:
        pass
    async with client_of(f"http://127.0.0.1:{port}") as client:
        with pytest.raises(Unavailable, match="no answer"):
            await run_command(client, POD, "vllm", WORDS, BOUNDS)


async def test_one_who_stops_waiting_is_let_go() -> None:
    commands = Commands(hangs)
    async with serving(commands) as port, client_of(f"http://127.0.0.1:{port}") as client:
        waiting = asyncio.create_task(run_command(client, POD, "vllm", WORDS, BOUNDS))
        while not commands.asked:
            await asyncio.sleep(0.01)

        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(waiting, 3)


def rule(*verbs: str) -> dict[str, Any]:
    return {"apiGroups": [""], "resources": ["pods/exec"], "verbs": list(verbs)}


def account(name: str, *verbs: str) -> list[dict[str, Any]]:
    """A ServiceAccount that has some verbs on `pods/exec` and no other right."""
    subject = {"kind": "ServiceAccount", "name": name, "namespace": "default"}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
    rbac = "rbac.authorization.k8s.io/v1"
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}},
        {"apiVersion": rbac, "kind": "Role", "metadata": {"name": name}, "rules": [rule(*verbs)]},
        {
            "apiVersion": rbac,
            "kind": "RoleBinding",
            "metadata": {"name": name},
            "roleRef": role,
            "subjects": [subject],
        },
    ]


def node(port: int) -> dict[str, Any]:
    """A node whose kubelet listens on loopback."""
    status = {
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
    }
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "gpu-7"}, "status": status}


def pod() -> dict[str, Any]:
    spec = {
        "nodeName": "gpu-7",
        "containers": [{"name": "vllm", "image": "x"}, {"name": "side", "image": "x"}],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "llm-0"}, "spec": spec}


@pytest.mark.light
async def test_a_real_api_server_wants_both_verbs_and_passes_the_command_to_the_kubelet(
    private_light: Callable[..., LightCluster], tmp_path: Path
) -> None:
    light = private_light()
    certificate, key = Authority(tmp_path).sign("kubelet", "/CN=kubelet", ["IP:127.0.0.1"])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    commands = Commands(prints("0, GPU-1\n"))
    here = Ref(PODS, "default", "llm-0")
    async with serving(commands, context) as port:
        light.api.create(node(port))
        light.api.create(pod(), "default")
        endings: dict[str, Ending | int | None] = {}
        for name, verbs in {"one": ("create",), "other": ("get",), "both": ("get", "create")}.items():
            light.apply(account(name, *verbs))
            access = light.impersonate(name)
            async with client_of(light.url, access.token, light.ca_file) as client:
                try:
                    endings[name] = await run_command(client, here, "vllm", WORDS, BOUNDS)
                except Refused as error:
                    endings[name] = error.code
                if name == "both":
                    commands.play = hangs
                    began = time.monotonic()
                    hung = await run_command(client, here, "vllm", WORDS, Bounds(0.5, 4096))
                    took = time.monotonic() - began
                    with pytest.raises(ApiError) as nowhere:
                        await run_command(client, here, "another", WORDS, BOUNDS)

    assert endings == {"one": 403, "other": 403, "both": Finished(0, "0, GPU-1\n")}
    assert commands.asked[0] == ("llm-0", "vllm", WORDS)
    assert hung == TimedOut()
    assert took < 0.5 + client_module.CLOSE_SECONDS + 1
    assert nowhere.value.code == 400
