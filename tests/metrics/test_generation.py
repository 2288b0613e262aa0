"""A long generation on a lab engine, watched from outside, and what becomes of one that is disturbed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime

import httpx
import pytest

from kvmedic.engines.vllm_signals import VLLM_SIGNALS
from kvmedic.kube.cpu import Metered
from kvmedic.metrics.generation import (
    MOST_EVENT_BYTES,
    NO_KEY,
    PROMPT,
    READ_AT_ONCE_BYTES,
    Course,
    Engine,
    Rhythm,
    generate,
)
from kvmedic.metrics.page import Page, names_of, parse_page
from kvmedic.metrics.scrape import MOST_PIECES
from kvmedic.model.compression import Keep
from kvmedic.model.trial import Interrupted, Reclaim, Watched
from kvmedic.runbooks.compression.probes import Generation, Reclamation, judge
from lab_engine.engine_process import Running, an_engine

LONG = (
    "--no-enable-prefix-caching",
    "--max-model-len=20000",
    "--block-size=16",
    "--num-gpu-blocks-override=1300",
)
BUDGET = {"LAB_MODEL_MAX_LEN": "20000", "LAB_EVICTION_BUDGET": "1024"}
RHYTHM = Rhythm(interval_seconds=0.02, silence_seconds=20)


async def watched(
    running: Running, tokens: int, model: str = "tiny", interval_seconds: float = 0.02
) -> Watched | Interrupted:
    async def page() -> Page:
        return parse_page(
            (await running.http.get("/metrics")).text, datetime.now(UTC), names_of(VLLM_SIGNALS)
        )

    engine = Engine(running.http, str(running.http.base_url).rstrip("/"), {}, VLLM_SIGNALS, page)
    return await generate(engine, model, tokens, Course(), Rhythm(interval_seconds, silence_seconds=20))


@pytest.mark.parametrize(
    ("environ", "reclaim"),
    [
        ({"LAB_EVICTION": "scattered", "LAB_EVICTION_COMPACTION": "in-order"}, Reclaim.RECLAIMS),
        ({"LAB_EVICTION": "per-head"}, Reclaim.NONE),
    ],
)
async def test_a_generation_on_an_engine_shows_what_its_method_does(
    environ: dict[str, str], reclaim: Reclaim
) -> None:
    async with an_engine(*LONG, environ=BUDGET | environ, step_ms=0.1) as running:
        seen = await watched(running, 16_400, interval_seconds=0.05)

    assert isinstance(seen, Watched), seen
    assert seen.generated == 16_400
    generation = Generation(seen.samples, seen.generated, seen.block_tokens, Keep(budget=1024), heads=8)
    found = judge(generation)
    assert isinstance(found, Reclamation), found
    assert found.reclaim is reclaim


async def test_readings_follow_the_tokens() -> None:
    async with an_engine(*LONG, environ={"LAB_MODEL_MAX_LEN": "20000"}, step_ms=0.5) as running:
        seen = await watched(running, 1000)

    assert isinstance(seen, Watched)
    assert len(seen.samples) > 5
    assert seen.blocks == 1299
    for each in seen.samples:
        assert each.tokens > len(PROMPT)
        assert each.used == pytest.approx(each.tokens / 16, abs=8)


async def test_other_requests_are_noticed() -> None:
    async with an_engine(*LONG, environ={"LAB_MODEL_MAX_LEN": "20000"}, step_ms=0.5) as running:
        body = {"model": "tiny", "prompt": "a b", "max_tokens": 2000}
        other = asyncio.create_task(running.http.post("/v1/completions", json=body))
        seen = await watched(running, 1000)
        await other

    assert seen == Interrupted("other requests were served meanwhile")


async def test_an_engine_that_stops_in_the_middle_shows_nothing() -> None:
    async with an_engine(*LONG, environ={"LAB_MODEL_MAX_LEN": "20000"}, step_ms=0.5) as running:
        watching = asyncio.create_task(watched(running, 5000))
        await asyncio.sleep(0.5)
        running.server.close()
        seen = await watching

    assert isinstance(seen, Interrupted)
    assert "of 5000 tokens" in seen.why


async def test_another_model_is_refused_by_the_engine() -> None:
    async with an_engine(*LONG, environ={"LAB_MODEL_MAX_LEN": "20000"}) as running:
        seen = await watched(running, 100, model="another")

    assert seen == Interrupted("after 0 of 100 tokens the engine answered 404")


async def test_an_answer_that_the_model_cannot_hold_ends_early_and_shows_nothing() -> None:
    async with an_engine("--no-enable-prefix-caching", step_ms=0.1) as running:
        seen = await watched(running, 10_000)

    assert isinstance(seen, Interrupted)


class _Stream(httpx.AsyncByteStream):
    """What an engine sends, in pieces."""

    def __init__(self, piece: bytes, pieces: int) -> None:
        self._piece, self._pieces = piece, pieces

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for _ in range(self._pieces):
            yield self._piece


def answer(piece: bytes, pieces: int = 1) -> httpx.Response:
    return httpx.Response(200, stream=_Stream(piece, pieces))


async def asked(response: httpx.Response, rhythm: Rhythm = RHYTHM) -> Watched | Interrupted:
    """What is made of an answer by an engine whose metrics are empty."""

    async def nothing() -> Page:
        return parse_page("", datetime.now(UTC))

    transport = httpx.MockTransport(lambda request: response)
    async with httpx.AsyncClient(transport=transport) as http:
        engine = Engine(http, "http://pod", {}, VLLM_SIGNALS, nothing)
        return await generate(engine, "m", 10, Course(), rhythm)


@pytest.mark.parametrize(
    "text",
    [
        "data: no JSON\n\n",
        "data: [1, 2]\n\n",
        'data: {"usage": {"completion_tokens": "many"}}\n\n',
        'data: {"usage": {"completion_tokens": [1]}}\n\n',
        'data: {"usage": {"completion_tokens": Infinity}}\n\n',
        f"data: {'[' * 60_000}\n\n",
        "data: \udcff\n\n",
    ],
    ids=["no JSON", "a list", "a word", "a list of tokens", "infinity", "nested", "no text"],
)
async def test_what_is_no_completion_shows_nothing(text: str) -> None:
    seen = await asked(answer(text.encode(errors="surrogateescape")))

    assert seen == Interrupted("after 0 of 10 tokens the engine sent what is no event of a completion")


async def test_an_event_without_end_is_not_waited_for() -> None:
    seen = await asked(answer(b"data: " + b"x" * (MOST_EVENT_BYTES + 1)))

    assert seen == Interrupted("after 0 of 10 tokens the engine sent an event that is too large")


async def test_comments_without_end_are_not_read_on() -> None:
    seen = await asked(answer(b":\n", 2 * MOST_PIECES))

    pieces = f"the answer comes in more than {MOST_PIECES + 40} pieces"
    assert seen == Interrupted(f"after 0 of 10 tokens the engine's answer cannot be read: {pieces}")


@pytest.mark.parametrize(
    ("line", "count", "in_thread"),
    [
        ("data:{}", READ_AT_ONCE_BYTES // len("data:{}\n"), False),
        ("data:{}", READ_AT_ONCE_BYTES // len("data:{}\n") + 1, True),
        ("", READ_AT_ONCE_BYTES, False),
        ("", READ_AT_ONCE_BYTES + 1, True),
    ],
)
async def test_many_events_at_once_are_read_in_a_thread(line: str, count: int, *, in_thread: bool) -> None:
    async def look() -> None:
        seen = await asked(answer(f"{line}\n".encode() * count))
        assert seen == Interrupted("the engine ended the answer after 0 of 10 tokens")

    metered = Metered(look(), lambda: 0.0)
    await metered

    assert (metered.seconds > 0) is in_thread


async def test_what_came_before_an_event_that_cannot_be_read_is_counted_also_in_a_thread() -> None:
    comments = b": ping\n" * READ_AT_ONCE_BYTES

    seen = await asked(answer(b'data:{"choices":[{}]}\n' * 3 + comments + b"data: no JSON\n"))

    assert seen == Interrupted("after 3 of 10 tokens the engine sent what is no event of a completion")


async def test_an_engine_without_a_pool_in_its_metrics_shows_nothing() -> None:
    events = [{"choices": [{}], "usage": {"completion_tokens": count}} for count in (4, 10)]
    text = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"

    seen = await asked(answer(text.encode()))

    assert seen == Interrupted("the engine's metrics do not report its pool")


@pytest.mark.parametrize(
    ("status", "why"),
    [(401, f"the engine answered 401: {NO_KEY}"), (403, f"the engine answered 403: {NO_KEY}")]
    + [(status, f"the engine answered {status}") for status in (302, 400, 500, 503)],
)
async def test_a_refusal_is_reported_without_the_engines_words(status: int, why: str) -> None:
    seen = await asked(httpx.Response(status, text="wrong key hunter2", headers={"location": "http://x/"}))

    assert seen == Interrupted(f"after 0 of 10 tokens {why}")


class _Comments(httpx.AsyncByteStream):
    """An engine that keeps its connection open, and generates nothing."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            await asyncio.sleep(0.01)
            yield b": ping\n\n"


async def test_a_connection_that_is_only_kept_open_is_given_up() -> None:
    seen = await asked(httpx.Response(200, stream=_Comments()), Rhythm(0.02, silence_seconds=0.2))

    assert seen == Interrupted("after 0 of 10 tokens nothing came for 0.2 s")


async def test_no_more_is_counted_than_was_asked_for() -> None:
    line = b'data: {"choices": [{}], "usage": {"completion_tokens": 99999}}\n\n'

    seen = await asked(answer(line))

    assert seen == Interrupted("the engine's metrics do not report its pool")


async def test_a_watch_that_is_cancelled_ends_its_request() -> None:
    async with an_engine(*LONG, environ={"LAB_MODEL_MAX_LEN": "20000"}, step_ms=0.5) as running:
        watching = asyncio.create_task(watched(running, 10_000))
        await asyncio.sleep(0.5)
        assert running.server.engine.unfinished == 1

        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching
        await asyncio.sleep(0.2)

        assert running.server.engine.unfinished == 0
