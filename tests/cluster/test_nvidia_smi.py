"""Replicas' GPU drivers, asked by nvidia-smi in containers: what is known, how seldom, how it ends."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kubernetes.aio.client import Configuration

from kvmedic.cluster.containers.nvidia_smi import (
    LIMIT_BYTES,
    Ending,
    Finished,
    NvidiaSmi,
    Patience,
    run_command,
)
from kvmedic.kube import client as client_module
from kvmedic.kube.client import Client, Limits
from kvmedic.kube.errors import ApiError, Refused, Unavailable
from kvmedic.kube.objects import PODS, Ref
from kvmedic.model.devices import Answer, NvidiaSmiError, Vital
from kvmedic.model.evidence import Measured
from kvmedic.model.fleet import Pod
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
from run_builder import a_pod

UUID = "GPU-5a1f0c9e-30ba-9f6e-0000-0123456789ab"
WELL = f"0, {UUID}, Disabled, 0, 0x0000000000000004\n"
SOON = Patience(seconds=5)


def pods(count: int) -> list[Pod]:
    return [replace(a_pod(f"llm-{i}"), uid=f"uid-{i}") for i in range(count)]


@asynccontextmanager
async def drivers(commands: Commands, patience: Patience = SOON) -> AsyncIterator[NvidiaSmi]:
    async with serving(commands) as port:
        configuration = Configuration(host=f"http://127.0.0.1:{port}")
        async with Client(configuration, Limits(per_second=1000)) as client:
            yield NvidiaSmi(client, patience)


async def asked(commands: Commands, count: int = 1, patience: Patience = SOON) -> Mapping[str, Answer]:
    async with drivers(commands, patience) as made:
        return await made.ask("serving", pods(count), "vllm")


def clocks(answer: Answer) -> int | None:
    assert isinstance(answer, Measured)
    return answer.value[0].value(Vital.CLOCK_REASONS)


@pytest.mark.parametrize(
    ("commands", "nvidia_smi_error"),
    [
        (Commands(refusal=403), NvidiaSmiError.FORBIDDEN),
        (Commands(refusal=401), NvidiaSmiError.UNREACHABLE),
        (Commands(refusal=404), NvidiaSmiError.UNREACHABLE),
        (Commands(refusal=500), NvidiaSmiError.UNREACHABLE),
        (Commands(hangs), NvidiaSmiError.TIMED_OUT),
        (Commands(floods), NvidiaSmiError.TOO_LONG),
        (Commands(prints("")), NvidiaSmiError.NO_DEVICE),
        (Commands(prints("Failed to initialize NVML\n", code=255)), NvidiaSmiError.FAILED),
        (
            Commands(prints('Field "x" is not a valid field to query.\n', code=2)),
            NvidiaSmiError.UNKNOWN_FIELD,
        ),
    ],
    ids=[
        "it may not be run",
        "a wrong token",
        "the container is gone",
        "the kubelet is away",
        "it hangs",
        "it prints without end",
        "it lists nothing",
        "it fails",
        "it knows no such field",
    ],
)
async def test_a_driver_that_reports_nothing_is_never_one_whose_gpus_are_well(
    commands: Commands, nvidia_smi_error: NvidiaSmiError
) -> None:
    patience = Patience(seconds=0.5 if nvidia_smi_error is NvidiaSmiError.TIMED_OUT else 5)

    assert await asked(commands, patience=patience) == {"llm-0": nvidia_smi_error}


async def test_each_replica_has_its_own_answer() -> None:
    hot = prints(WELL.replace("0x0000000000000004", "0x0000000000000040"))
    commands = Commands(prints(WELL), plays={"llm-1": hot, "llm-2": hangs})

    found = await asked(commands, 3, Patience(seconds=1))

    assert (clocks(found["llm-0"]), clocks(found["llm-1"]), found["llm-2"]) == (
        0,
        0x40,
        NvidiaSmiError.TIMED_OUT,
    )
    assert {container for _, container, _ in commands.asked} == {"vllm"}


async def test_a_driver_of_old_is_asked_by_the_fields_old_name() -> None:
    async def of_old(socket: object, words: list[str]) -> None:
        new = any("clocks_event_reasons" in word for word in words)
        await (prints("not a valid field", code=2) if new else prints(WELL))(socket, words)  # type: ignore[arg-type]

    commands = Commands(of_old)

    found = await asked(commands)

    assert clocks(found["llm-0"]) == 0
    assert ["clocks_event" in words[1] for _, _, words in commands.asked] == [True, False]


async def test_a_fresh_answer_serves_again_and_an_old_one_does_not() -> None:
    commands = Commands(prints(WELL))
    async with drivers(commands, Patience(seconds=30, fresh_seconds=0.5)) as made:
        first = await made.ask("serving", pods(1), "vllm")
        second = await made.ask("serving", pods(1), "vllm")
        assert (len(commands.asked), second) == (1, first)
        await asyncio.sleep(0.6)

        third = await made.ask("serving", pods(1), "vllm")

    assert len(commands.asked) == 2
    assert isinstance(first["llm-0"], Measured)
    assert isinstance(third["llm-0"], Measured)
    assert third["llm-0"].at > first["llm-0"].at


async def test_another_pod_of_the_same_name_is_asked_anew() -> None:
    commands = Commands(prints(WELL))
    async with drivers(commands) as made:
        await made.ask("serving", pods(1), "vllm")
        await made.ask("serving", [replace(pods(1)[0], uid="another")], "vllm")

    assert len(commands.asked) == 2


async def test_one_that_hung_is_left_alone_for_longer_than_one_that_answered() -> None:
    """Each try may leave another process that nobody can end."""
    commands = Commands(hangs)
    async with drivers(commands, Patience(seconds=0.2, fresh_seconds=0.3)) as made:
        await made.ask("serving", pods(1), "vllm")
        await asyncio.sleep(0.5)

        found = await made.ask("serving", pods(1), "vllm")

    assert (len(commands.asked), found) == (1, {"llm-0": NvidiaSmiError.TIMED_OUT})


async def test_few_are_asked_at_once() -> None:
    async def slow(socket: object, words: list[str]) -> None:
        await asyncio.sleep(0.1)
        await prints(WELL)(socket, words)  # type: ignore[arg-type]

    commands = Commands(slow)

    found = await asked(commands, 9, Patience(seconds=30, at_once=3))

    assert commands.most_at_once == 3
    assert {clocks(answer) for answer in found.values()} == {0}


async def test_a_look_ends_in_time_however_many_hang_and_the_next_goes_on_with_the_others() -> None:
    answering: dict[str, Play] = {f"llm-{i}": prints(WELL) for i in range(4, 6)}
    commands = Commands(hangs, plays=answering)
    patience = Patience(seconds=0.8, at_once=2, look_seconds=0.5)
    async with drivers(commands, patience) as made:
        began = time.monotonic()
        first = await made.ask("serving", pods(6), "vllm")
        took = time.monotonic() - began
        second = await made.ask("serving", pods(6), "vllm")
        third = await made.ask("serving", pods(6), "vllm")

    assert list(first.values()) == [NvidiaSmiError.TIMED_OUT] * 2 + [NvidiaSmiError.NO_TURN] * 4
    assert list(second.values())[:4] == [NvidiaSmiError.TIMED_OUT] * 4
    assert [clocks(third[name]) for name in answering] == [0, 0]
    assert took < 3
    assert len(commands.asked) == 6


POD = Ref(PODS, "serving", "llm-0")
WORDS = ("nvidia-smi", "--query-gpu=index,uuid", "--format=csv,noheader")


@asynccontextmanager
async def client_of(url: str, token: str = "", ca: Path | None = None) -> AsyncIterator[Client]:
    configuration = Configuration(host=url, ssl_ca_cert=str(ca) if ca else None)
    configuration.api_key["BearerToken"] = f"Bearer {token}"
    async with Client(configuration, Limits()) as client:
        yield client


async def ran(commands: Commands, seconds: float = 5) -> Ending:
    async with serving(commands) as port, client_of(f"http://127.0.0.1:{port}", "our-token") as client:
        return await run_command(client, POD, "vllm", WORDS, seconds)


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
        (sends(NO_PROGRAM), NvidiaSmiError.NOT_STARTED),
        (sends(STATUS + b"not JSON"), NvidiaSmiError.NOT_STARTED),
        (sends(STATUS + b"[]"), NvidiaSmiError.NOT_STARTED),
        (sends(STATUS + b'{"status":"Failure","details":null}'), NvidiaSmiError.NOT_STARTED),
        (sends(STATUS + b'{"status":"Failure","details":{"causes":[]}}'), NvidiaSmiError.NOT_STARTED),
        (sends(STDOUT + b"half an ans"), NvidiaSmiError.UNREACHABLE),
        (sends(), NvidiaSmiError.UNREACHABLE),
        (sends(STDOUT + b"x" * LIMIT_BYTES, exit_status(0)), Finished(0, "x" * LIMIT_BYTES)),
        (sends(STDOUT + b"x" * (LIMIT_BYTES + 1), exit_status(0)), NvidiaSmiError.TOO_LONG),
        (
            sends(STDOUT + b"x" * (LIMIT_BYTES - 96), STDERR + b"x" * 97, exit_status(0)),
            NvidiaSmiError.TOO_LONG,
        ),
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
    ],
)
async def test_a_command_ends_in_one_of_a_few_ways(play: Play, expected: Ending) -> None:
    assert await asyncio.wait_for(ran(Commands(play)), 10) == expected


async def test_a_message_larger_than_any_answer_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "MESSAGE_BYTES", 8192)

    assert await ran(Commands(sends(STDOUT + b"x" * 10_000, exit_status(0)))) is NvidiaSmiError.UNREACHABLE


@pytest.mark.parametrize("play", [hangs, drips], ids=["in silence", "while it goes on printing"])
async def test_a_command_that_hangs_is_given_up_in_time_also_where_nobody_hears_the_close(play: Play) -> None:
    began = time.monotonic()

    ending = await asyncio.wait_for(ran(Commands(play), 0.5), 10)

    assert ending is NvidiaSmiError.TIMED_OUT
    assert time.monotonic() - began < 0.5 + client_module.CLOSE_SECONDS + 1


async def test_an_answer_that_never_comes_is_given_up_in_time() -> None:
    async def deaf(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(deaf, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    began = time.monotonic()

    async with client_of(f"http://127.0.0.1:{port}") as client:
        ending = await run_command(client, POD, "vllm", WORDS, 0.3)
    server.close()

    assert ending is NvidiaSmiError.TIMED_OUT
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
            await run_command(client, POD, "vllm", WORDS, 5)


async def test_one_who_stops_waiting_is_let_go() -> None:
    commands = Commands(hangs)
    async with serving(commands) as port, client_of(f"http://127.0.0.1:{port}") as client:
        waiting = asyncio.create_task(run_command(client, POD, "vllm", WORDS, 5))
        while not commands.asked:
            await asyncio.sleep(0.01)

        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(waiting, 3)


def rule(*verbs: str) -> dict[str, Any]:
    return {"apiGroups": [""], "resources": ["pods/exec"], "verbs": list(verbs)}


def account(name: str, namespace: str, *verbs: str) -> list[dict[str, Any]]:
    """A ServiceAccount that has some verbs on `pods/exec` and no other right."""
    subject = {"kind": "ServiceAccount", "name": name, "namespace": namespace}
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


def node(name: str, port: int) -> dict[str, Any]:
    """A node whose kubelet listens on loopback."""
    status = {
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name},
        "spec": {"unschedulable": True},
        "status": status,
    }


def a_manifest(node_name: str) -> dict[str, Any]:
    spec = {
        "nodeName": node_name,
        "containers": [{"name": "vllm", "image": "x"}, {"name": "side", "image": "x"}],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "llm-0"}, "spec": spec}


async def test_a_real_api_server_wants_both_verbs_and_passes_the_command_to_the_kubelet(
    light: LightCluster, namespace: str, tmp_path: Path
) -> None:
    certificate, key = Authority(tmp_path).sign("kubelet", "/CN=kubelet", ["IP:127.0.0.1"])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    commands = Commands(prints("0, GPU-1\n"))
    here = Ref(PODS, namespace, "llm-0")
    async with serving(commands, context) as port:
        light.api.create(node(name := f"gpu-{port}", port))
        light.api.create(a_manifest(name), namespace)
        endings: dict[str, Ending | int | None] = {}
        for user, verbs in {"one": ("create",), "other": ("get",), "both": ("get", "create")}.items():
            light.apply(account(user, namespace, *verbs), namespace)
            access = light.impersonate(user, namespace)
            async with client_of(light.url, access.token, light.ca_file) as client:
                try:
                    endings[user] = await run_command(client, here, "vllm", WORDS, 5)
                except Refused as error:
                    endings[user] = error.code
                if user == "both":
                    commands.play = hangs
                    began = time.monotonic()
                    hung = await run_command(client, here, "vllm", WORDS, 0.5)
                    took = time.monotonic() - began
                    with pytest.raises(ApiError) as nowhere:
                        await run_command(client, here, "another", WORDS, 5)
        light.api.delete("Node", name)

    assert endings == {"one": 403, "other": 403, "both": Finished(0, "0, GPU-1\n")}
    assert commands.asked[0] == ("llm-0", "vllm", WORDS)
    assert hung is NvidiaSmiError.TIMED_OUT
    assert took < 0.5 + client_module.CLOSE_SECONDS + 1
    assert nowhere.value.code == 400
