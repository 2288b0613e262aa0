"""What engines say at their start: the beginning of their present log, of which only a number is kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from kubernetes.aio.client import Configuration

from http_double import HangUpError, Reply, Request, Server
from kvmedic.cluster.engine_logs import BEGINNING_BYTES, pools_of, starts_of
from kvmedic.engines.engine_log import Start, Started, Unread
from kvmedic.engines.vllm_signals import POOL_LINES, VLLM_START
from kvmedic.kube.client import Client, Limits
from kvmedic.model.evidence import LoggedSize, SizeUnit
from run_builder import a_pod

TIME = "2026-03-01T02:58:00.123456789Z"
LOG = (
    f"{TIME} starting\n{TIME} INFO [kv_cache_utils.py:634] GPU KV cache size: 4,800 tokens\n"
    f"{TIME} prompt: my secret\n"
)


async def looked(
    answer: Callable[[Request], Reply], *names: str
) -> tuple[dict[str, LoggedSize], list[Request]]:
    return await asked(answer, pools_of, POOL_LINES, *names)


async def told(answer: Callable[[Request], Reply], *names: str) -> dict[str, Start]:
    return (await asked(answer, starts_of, VLLM_START, *names))[0]


async def asked(answer: Callable[[Request], Reply], read: Any, forms: Any, *names: str) -> Any:
    with Server(answer) as server:
        configuration = Configuration()
        configuration.host = server.url
        async with Client(configuration, Limits(total_seconds=2)) as client:
            found = await read(client, "serving", [a_pod(name) for name in names], "vllm", forms)
    return found, server.requests


async def test_the_beginning_of_the_present_log_of_the_engines_container_is_read() -> None:
    found, requests = await looked(lambda _: Reply(200, LOG.encode()), "llm-0")

    assert found == {"llm-0": LoggedSize(4800, SizeUnit.TOKENS)}
    (request,) = requests
    assert urlsplit(request.path).path == "/api/v1/namespaces/serving/pods/llm-0/log"
    assert parse_qs(urlsplit(request.path).query) == {
        "container": ["vllm"],
        "limitBytes": [str(BEGINNING_BYTES)],
        "timestamps": ["true"],
    }


def hang_up(_: Request) -> Reply:
    raise HangUpError


UNREADABLE = pytest.mark.parametrize(
    "answer",
    [
        lambda _: Reply(200, b"unable to retrieve container logs for containerd://1"),
        lambda _: Reply(200, b"GPU KV cache size: 4,800 tokens"),
        lambda _: Reply(403, b'{"kind":"Status","message":"forbidden"}'),
        lambda _: Reply(404, b'{"kind":"Status","message":"gone"}'),
        hang_up,
    ],
    ids=["no log", "no time", "no right", "no pod", "no answer"],
)


@UNREADABLE
async def test_a_log_that_cannot_be_read_tells_nothing(answer: Callable[[Request], Reply]) -> None:
    assert (await looked(answer, "llm-0"))[0] == {}


async def test_one_that_tells_nothing_leaves_the_others() -> None:
    def answer(request: Request) -> Reply:
        return Reply(200, LOG.encode() if "llm-1" in request.path else b"")

    assert (await looked(answer, "llm-0", "llm-1"))[0] == {"llm-1": LoggedSize(4800, SizeUnit.TOKENS)}


STARTED = (
    f"{TIME} INFO [api_utils.py:286] non-default args: {{'api_key': ['sesame']}}\n"
    f"{TIME} INFO [cache.py:232] Using fp8 data type to store kv cache. It reduces the GPU memory footprint\n"
    f"{TIME} INFO [kv_cache_utils.py:634] GPU KV cache size: 4,800 tokens\n"
    f"{TIME} INFO:     Application startup complete.\n"
    f"{TIME} INFO Received request a: prompt: 'sesame, Using int8 data type to store kv cache'\n"
)


async def test_a_start_is_told_in_known_words_alone() -> None:
    found = await told(lambda _: Reply(200, STARTED.encode()), "llm-0")

    assert found == {
        "llm-0": Started(
            ("Using fp8 data type to store kv cache",),
            "fp8",
            (),
            LoggedSize(4800, SizeUnit.TOKENS),
            is_whole=True,
        )
    }


@UNREADABLE
async def test_a_start_that_cannot_be_read_says_why(answer: Callable[[Request], Reply]) -> None:
    found = (await told(answer, "llm-0"))["llm-0"]

    assert isinstance(found, Unread)
    assert found.why
    assert "tokens" not in found.why
