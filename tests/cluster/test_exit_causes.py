"""What logs say of how engines ended and started, of which nothing but marks and numbers is kept."""

from __future__ import annotations

import json
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, TypeVar
from urllib.parse import parse_qs, urlsplit

import pytest
from kubernetes.aio.client import Configuration

from kvmedic.cluster.containers import exit_causes
from kvmedic.cluster.containers.exit_causes import (
    LIMIT_BYTES,
    TAIL_LINES,
    bears_device_memory,
    ends_of,
    pools_of,
    starts_of,
)
from kvmedic.cluster.trial_pods import Trials
from kvmedic.engines.engine_log import Start, Started, Unread
from kvmedic.engines.vllm_log import POOL_LINES, VLLM_REFUSALS, VLLM_START
from kvmedic.kube.client import Client, Limits
from kvmedic.model.devices import Cause, ContainerEnd, EngineEnd, Instance
from kvmedic.model.evidence import LoggedSize, SizeUnit
from kvmedic.model.fleet import Pod
from kvmedic.rollout.trial import LastWords
from run_builder import NOW, a_pod
from worlds.http_double import HangUpError, Reply, Request, Server

SINCE = NOW - timedelta(minutes=5)
LATELY = NOW - timedelta(minutes=2)
STARTED = LATELY - timedelta(minutes=1)
TORCH = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has a total capacity of "
    "79.11 GiB of which 0.98 GiB is free."
)
NINE = timedelta(minutes=9)
SECRET = "my prompt: how do I bake bread"


def ended(
    reason: str = "Error",
    code: int = 1,
    ago: timedelta = timedelta(minutes=2),
    instance: Instance = Instance.PREVIOUS,
    **pod: Any,
) -> Pod:
    """A pod whose engine ran for a minute and ended."""
    at = NOW - ago
    end = ContainerEnd("vllm", code, reason, at - timedelta(minutes=1), at, instance)
    return replace(a_pod("llm-0"), last_end=end, restarts=3, **pod)


T = TypeVar("T")


async def ask(
    answer: Callable[[Request], Reply], read: Callable[[Client], Awaitable[T]], seconds: float = 2
) -> tuple[T, list[Request]]:
    """Return what is read of a kubelet's answers, and what it was asked for."""
    with Server(answer) as server:
        async with Client(Configuration(host=server.url), Limits(total_seconds=seconds)) as client:
            found = await read(client)
    return found, server.requests


async def looked(
    answer: Callable[[Request], Reply], *pods: Pod
) -> tuple[dict[str, EngineEnd], list[Request]]:
    return await ask(answer, lambda client: ends_of(client, "serving", pods, SINCE))


def log(text: str, at: datetime = LATELY) -> Callable[[Request], Reply]:
    """A kubelet whose log has each line dated, as it does when it is asked for times."""
    lines = (f"{at:%Y-%m-%dT%H:%M:%S}.123456789Z {line}\n" for line in text.splitlines())
    return undated("".join(lines))


def undated(text: str) -> Callable[[Request], Reply]:
    return lambda _: Reply(200, text.encode(), {"Content-Type": "text/plain"})


@pytest.mark.parametrize(
    "line",
    [
        TORCH,
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB",
        f"(EngineCore pid=77) ERROR 11-21 04:50:01 [core.py:1213] {TORCH}",
        "RuntimeError: CUDA out of memory occurred when warming up sampler with 1024 dummy requests.",
        "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 GiB.",
        "RuntimeError: CUDA error: out of memory",
        "torch.distributed.DistBackendError: NCCL error ... Cuda failure 2 'out of memory'",
        "ValueError: Free memory on device cuda:0 (60.1/79.1 GiB) on startup is less than desired GPU memory "
        "utilization (0.92, 72.8 GiB). Decrease GPU memory utilization or reduce GPU memory used by other "
        "processes.",
    ],
    ids=["torch", "torch of old", "in the engine's log", "sampler", "HIP", "CUDA", "NCCL", "taken by others"],
)
def test_a_log_bears_the_mark(line: str) -> None:
    assert bears_device_memory(["starting", line, "RuntimeError: Engine core initialization failed."])


@pytest.mark.parametrize(
    "line",
    [
        "",
        "RuntimeError: Engine core initialization failed. See root cause above.",
        "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when "
        "initializing the engine.",
        "MemoryError",
        "OSError: [Errno 12] Cannot allocate memory",
        "(APIServer pid=1) INFO 11-21 04:50:01 [logger.py:43] Received request cmpl-1: prompt: 'why does "
        "torch say CUDA out of memory?'",
        "DEBUG 11-21 04:50:01 [x.py:1] torch.OutOfMemoryError",
    ],
    ids=[
        "empty",
        "no cause",
        "needs a larger share",
        "host",
        "host too",
        "a prompt that speaks of it",
        "debug",
    ],
)
def test_a_log_does_not_bear_the_mark(line: str) -> None:
    assert not bears_device_memory(["starting", line])


@pytest.mark.parametrize(
    ("text", "cause"),
    [(f"{SECRET}\n{TORCH}\n", Cause.DEVICE_MEMORY), (f"{SECRET}\nKeyError\n", Cause.ANOTHER)],
    ids=["marked", "not marked"],
)
@pytest.mark.parametrize(
    ("instance", "asked_for"),
    [(Instance.PREVIOUS, {"previous": ["true"]}), (Instance.PRESENT, {})],
    ids=["of the instance before", "of the present one"],
)
async def test_the_log_of_the_end_shows_the_cause_and_nothing_of_it_is_kept(
    text: str, cause: Cause, instance: Instance, asked_for: dict[str, list[str]]
) -> None:
    found, requests = await looked(log(text), ended(instance=instance))

    assert found == {"llm-0": EngineEnd(cause, 1, LATELY, 3)}
    assert SECRET not in repr(found)
    (request,) = requests
    asked = urlsplit(request.path)
    assert asked.path == "/api/v1/namespaces/serving/pods/llm-0/log"
    assert parse_qs(asked.query) == {
        "container": ["vllm"],
        "timestamps": ["true"],
        **asked_for,
        "tailLines": [str(TAIL_LINES)],
        "limitBytes": [str(LIMIT_BYTES)],
    }


async def test_a_container_killed_at_its_limit_needs_no_log() -> None:
    found, requests = await looked(log(TORCH), ended("OOMKilled", 137))

    assert found == {"llm-0": EngineEnd(Cause.HOST_MEMORY, 137, LATELY, 3)}
    assert requests == []


@pytest.mark.parametrize(
    ("pod", "counts"),
    [
        (ended(ago=timedelta(minutes=5)), True),
        (ended(ago=timedelta(minutes=5, seconds=1)), False),
        (ended(ago=timedelta(hours=2)), False),
        (ended(ago=NINE, ready_at=None, waiting_reason="CrashLoopBackOff"), True),
        (ended(ago=NINE, ready_at=None, waiting_reason="ImagePullBackOff"), False),
        (ended(ago=NINE, ready_at=None, instance=Instance.PRESENT), True),
        (ended(ago=NINE, ready_at=None, unready_at=NOW - NINE), True),
        (ended(ago=NINE, ready_at=None, unready_at=NOW - NINE + timedelta(seconds=1)), False),
        (ended(ago=NINE, ready_at=None), False),
        (a_pod("llm-0"), False),
    ],
    ids=[
        "as old as the window",
        "a second older",
        "long ago",
        "it still waits",
        "it waits otherwise",
        "it is not started again",
        "it loads, and never was Ready since",
        "it was Ready since",
        "nobody says since when it is not Ready",
        "never",
    ],
)
async def test_only_an_end_inside_the_window_counts_and_only_its_log_is_read(pod: Pod, counts: bool) -> None:
    found, requests = await looked(log(TORCH, pod.last_end.ended_at if pod.last_end else NOW), pod)

    assert bool(found) is counts
    assert len(requests) == (1 if counts else 0)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (Reply(403, json.dumps({"reason": "Forbidden", "message": "no pods/log"}).encode()), "403 Forbidden"),
        (Reply(400, json.dumps({"reason": "BadRequest", "message": SECRET}).encode()), "400 BadRequest"),
        (Reply(404, b"{}"), "404"),
        (Reply(500, SECRET.encode()), "500"),
    ],
    ids=["forbidden", "gone", "no such pod", "no kubelet"],
)
async def test_a_log_that_cannot_be_read_makes_the_cause_unknown(answer: Reply, words: str) -> None:
    found, _ = await looked(lambda _: answer, ended())

    assert found["llm-0"].cause is Cause.UNKNOWN
    assert words in found["llm-0"].trouble
    assert SECRET not in found["llm-0"].trouble


@pytest.mark.parametrize(
    ("at", "cause"),
    [
        (STARTED - timedelta(seconds=1), Cause.UNKNOWN),
        (STARTED, Cause.DEVICE_MEMORY),
        (LATELY, Cause.DEVICE_MEMORY),
        (LATELY + timedelta(seconds=1), Cause.DEVICE_MEMORY),
        (LATELY + timedelta(seconds=2), Cause.UNKNOWN),
    ],
    ids=[
        "of the exit before",
        "as it starts",
        "as it ends",
        "in the pipe as it ended",
        "started again since",
    ],
)
async def test_only_what_was_written_in_the_life_that_ended_counts(at: datetime, cause: Cause) -> None:
    found, _ = await looked(log(TORCH, at), ended())

    assert found["llm-0"].cause is cause


async def test_the_memory_of_an_exit_before_is_not_what_the_newest_end_is_blamed_on() -> None:
    earlier, own = log(TORCH, STARTED - timedelta(seconds=20)), log("KeyError: 'x'")

    def answer(request: Request) -> Reply:
        return Reply(200, earlier(request).body + own(request).body)

    found, _ = await looked(answer, ended(instance=Instance.PRESENT))

    assert found["llm-0"].cause is Cause.ANOTHER


@pytest.mark.parametrize(
    "text",
    [
        "unable to retrieve container logs for containerd://5d2",
        f"{TORCH}\n",
        f"20260301 {TORCH}\n",
        f"2026-03-01T02:58:00 {TORCH}\n",
        "",
    ],
    ids=["the kubelet's own words", "no time", "a day", "no zone", "nothing"],
)
async def test_a_line_without_a_time_is_none_of_the_engines(text: str) -> None:
    found, _ = await looked(undated(text), ended())

    assert found["llm-0"].cause is Cause.UNKNOWN
    assert "has no log any more" in found["llm-0"].trouble


@pytest.mark.parametrize("sign", ["\r", "\u2028", "\x0b"], ids=["return", "separator", "tabulator"])
async def test_a_prompt_does_not_pass_for_a_line_of_its_own(sign: str) -> None:
    line = f"INFO 03-01 02:57:59 [logger.py:43] Received request: prompt: 'x{sign}{TORCH}'"

    found, _ = await looked(undated(f"{LATELY:%Y-%m-%dT%H:%M:%SZ} {line}\n"), ended())

    assert found["llm-0"].cause is Cause.ANOTHER


async def test_a_time_in_another_zone_is_the_time_that_it_is() -> None:
    found, _ = await looked(undated(f"2026-03-01T04:58:00.000000000+02:00 {TORCH}\n"), ended())

    assert found["llm-0"].cause is Cause.DEVICE_MEMORY


async def test_a_kubelet_that_hangs_is_left_after_the_time_out() -> None:
    released = threading.Event()

    def hang(_: Request) -> Reply:
        released.wait(10)
        raise HangUpError

    async def read(client: Client) -> dict[str, EngineEnd]:
        try:
            return await ends_of(client, "serving", [ended()], SINCE)
        finally:
            released.set()

    found, _ = await ask(hang, read, seconds=0.3)

    assert found["llm-0"].cause is Cause.UNKNOWN
    assert "no answer within 0.3 s" in found["llm-0"].trouble


async def read_last_words(
    answer: Callable[[Request], Reply], pod: Pod | None = None
) -> tuple[LastWords, list[Request]]:
    """Return what a trial pod's log says of its end, and what was asked for."""
    asked = pod or ended(instance=Instance.PRESENT)
    return await ask(answer, lambda client: Trials(client).last_words("serving", asked, VLLM_REFUSALS))


NO_EIGHT_BITS = "FlashAttention does not support fp8 kv-cache on this device"


async def test_of_a_trial_pods_log_only_the_phrase_of_a_refusal_is_kept() -> None:
    found, requests = await read_last_words(log(f"{SECRET}\nNotImplementedError: {NO_EIGHT_BITS}.\n{SECRET}"))

    assert found == LastWords(NO_EIGHT_BITS)
    assert parse_qs(urlsplit(requests[0].path).query)["tailLines"] == [str(TAIL_LINES)]


@pytest.mark.parametrize(
    "text",
    [
        f"{SECRET}\nKeyError",
        f"INFO 11-21 04:50:01 [logger.py:43] Received request cmpl-1: prompt: 'why: {NO_EIGHT_BITS}?'",
    ],
    ids=["another end", "a prompt that speaks of it"],
)
async def test_a_log_without_a_refusal_says_nothing(text: str) -> None:
    assert (await read_last_words(log(text)))[0] == LastWords()


async def test_a_log_of_another_life_says_nothing() -> None:
    found, _ = await read_last_words(log(NO_EIGHT_BITS, LATELY - timedelta(minutes=9)))

    assert found.refusal == ""
    assert "the kubelet has nothing of" in found.trouble


async def test_a_log_that_cannot_be_read_says_why() -> None:
    found, _ = await read_last_words(lambda _: Reply(403, json.dumps({"reason": "Forbidden"}).encode()))

    assert found.refusal == ""
    assert "403 Forbidden" in found.trouble


async def test_a_pod_that_never_ended_is_not_asked() -> None:
    assert await read_last_words(log(NO_EIGHT_BITS), a_pod("llm-0")) == (LastWords(), [])


TIME = "2026-03-01T02:58:00.123456789Z"
POOL_LOG = (
    f"{TIME} starting\n{TIME} INFO [kv_cache_utils.py:634] GPU KV cache size: 4,800 tokens\n"
    f"{TIME} prompt: my secret\n"
)


async def read_starts(answer: Callable[[Request], Reply], *names: str) -> dict[str, Start]:
    return (await asked(answer, starts_of, VLLM_START, *names))[0]


async def asked(answer: Callable[[Request], Reply], read: Any, forms: Any, *names: str) -> Any:
    pods = [a_pod(name) for name in names]
    return await ask(answer, lambda client: read(client, "serving", pods, "vllm", forms))


async def test_the_beginning_of_the_present_log_of_the_engines_container_is_read() -> None:
    found, requests = await asked(lambda _: Reply(200, POOL_LOG.encode()), pools_of, POOL_LINES, "llm-0")

    assert found == {"llm-0": LoggedSize(4800, SizeUnit.TOKENS)}
    (request,) = requests
    assert urlsplit(request.path).path == "/api/v1/namespaces/serving/pods/llm-0/log"
    assert parse_qs(urlsplit(request.path).query) == {
        "container": ["vllm"],
        "limitBytes": [str(LIMIT_BYTES)],
        "timestamps": ["true"],
    }


def hang_up(_: Request) -> Reply:
    raise HangUpError


@pytest.mark.parametrize(
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
async def test_a_log_that_cannot_be_read_says_nothing_but_why(answer: Callable[[Request], Reply]) -> None:
    assert (await asked(answer, pools_of, POOL_LINES, "llm-0"))[0] == {}

    found = (await read_starts(answer, "llm-0"))["llm-0"]

    assert isinstance(found, Unread)
    assert found.why
    assert "tokens" not in found.why


async def test_one_that_says_nothing_leaves_the_others() -> None:
    def answer(request: Request) -> Reply:
        return Reply(200, POOL_LOG.encode() if "llm-1" in request.path else b"")

    assert (await asked(answer, pools_of, POOL_LINES, "llm-0", "llm-1"))[0] == {
        "llm-1": LoggedSize(4800, SizeUnit.TOKENS)
    }


START_LOG = (
    f"{TIME} INFO [api_utils.py:286] non-default args: {{'api_key': ['sesame']}}\n"
    f"{TIME} INFO [cache.py:232] Using fp8 data type to store kv cache. It reduces the GPU memory footprint\n"
    f"{TIME} INFO [kv_cache_utils.py:634] GPU KV cache size: 4,800 tokens\n"
    f"{TIME} INFO:     Application startup complete.\n"
    f"{TIME} INFO Received request a: prompt: 'sesame, Using int8 data type to store kv cache'\n"
)


async def test_a_start_is_reported_in_known_words_alone() -> None:
    found = await read_starts(lambda _: Reply(200, START_LOG.encode()), "llm-0")

    assert found == {
        "llm-0": Started(
            ("Using fp8 data type to store kv cache",),
            "fp8",
            (),
            LoggedSize(4800, SizeUnit.TOKENS),
            is_whole=True,
        )
    }


async def test_logs_are_read_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    readers: dict[str, threading.Thread] = {}

    def note(name: str) -> None:
        read = getattr(exit_causes, name)

        def noted(*args: Any) -> Any:
            readers[name] = threading.current_thread()
            return read(*args)

        monkeypatch.setattr(exit_causes, name, noted)

    names = ("dated_lines", "bears_device_memory", "logged_size", "parse_start")
    for name in names:
        note(name)
    answer = log(TORCH)

    await looked(answer, ended())
    await ask(answer, lambda client: pools_of(client, "serving", [a_pod("llm-0")], "vllm", POOL_LINES))
    await ask(answer, lambda client: starts_of(client, "serving", [a_pod("llm-0")], "vllm", VLLM_START))

    assert tuple(readers) == names
    assert threading.current_thread() not in readers.values()
