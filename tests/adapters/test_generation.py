"""A long generation on a lab engine, watched from outside, and what becomes of one that is disturbed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime

import httpx
import pytest

from kvmedic.core.blocks import Keep
from kvmedic.core.reclamation_probe import Generation, Reclaim, Reclamation, judge
from kvmedic.engines.vllm_signals import VLLM_SIGNALS
from kvmedic.metrics.exposition import Page, parse_page
from kvmedic.metrics.generation import PROMPT, Asked, Interrupted, Watched, generate
from lab_engine.engine_process import Running, an_engine

LONG = (
    "--no-enable-prefix-caching",
    "--max-model-len=20000",
    "--block-size=16",
    "--num-gpu-blocks-override=1300",
)
BUDGET = {"LAB_MODEL_MAX_LEN": "20000", "LAB_EVICTION_BUDGET": "1024"}
INTERVAL = 0.02


async def watched(running: Running, tokens: int, model: str = "tiny") -> Watched | Interrupted:
    async def page() -> Page:
        return parse_page((await running.http.get("/metrics")).text, datetime.now(UTC))

    return await generate(running.http, VLLM_SIGNALS, Asked(model, tokens), page, INTERVAL)


@pytest.mark.parametrize(
    ("environ", "reclaim"),
    [
        ({"LAB_EVICTION": "scattered"}, Reclaim.SCATTERED),
        ({"LAB_EVICTION": "scattered", "LAB_EVICTION_COMPACTION": "in-order"}, Reclaim.RECLAIMS),
        ({"LAB_EVICTION": "per-head"}, Reclaim.NONE),
    ],
)
async def test_a_generation_on_an_engine_tells_what_its_method_does(
    environ: dict[str, str], reclaim: Reclaim
) -> None:
    async with an_engine(*LONG, environ=BUDGET | environ, step_ms=0.1) as running:
        seen = await watched(running, 16_400)

    assert isinstance(seen, Watched), seen
    assert seen.generated == 16_400
    generation = Generation(seen.samples, seen.generated, seen.pool.block_tokens, Keep(budget=1024), heads=8)
    found = judge(generation)
    assert isinstance(found, Reclamation), found
    assert found.reclaim is reclaim


async def test_readings_follow_the_tokens() -> None:
    async with an_engine(*LONG, environ={"LAB_MODEL_MAX_LEN": "20000"}, step_ms=0.5) as running:
        seen = await watched(running, 1000)

    assert isinstance(seen, Watched)
    assert len(seen.samples) > 5
    assert seen.pool.blocks == 1299
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


async def test_an_engine_that_stops_in_the_middle_tells_nothing() -> None:
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


async def test_an_answer_that_the_model_cannot_hold_ends_early_and_tells_nothing() -> None:
    async with an_engine("--no-enable-prefix-caching", step_ms=0.1) as running:
        seen = await watched(running, 10_000)

    assert isinstance(seen, Interrupted)


def answering(respond: Callable[[], httpx.Response]) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.MockTransport(lambda request: respond()), base_url="http://pod")


@pytest.mark.parametrize(
    "text",
    [
        "data: no JSON\n\n",
        "data: [1, 2]\n\n",
        'data: {"usage": {"completion_tokens": "many"}}\n\n',
        'data: {"usage": {"completion_tokens": [1]}}\n\n',
    ],
)
async def test_what_is_no_completion_tells_nothing(text: str) -> None:
    async def nothing() -> Page:
        return parse_page("", datetime.now(UTC))

    async with answering(lambda: httpx.Response(200, text=text)) as http:
        seen = await generate(http, VLLM_SIGNALS, Asked("m", 10), nothing, INTERVAL)

    assert seen == Interrupted("after 0 of 10 tokens the engine sent what is no event of a completion")


async def test_an_engine_without_a_pool_in_its_metrics_tells_nothing() -> None:
    events = [{"choices": [{}], "usage": {"completion_tokens": count}} for count in (4, 10)]
    text = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"

    async def nothing() -> Page:
        return parse_page("", datetime.now(UTC))

    async with answering(lambda: httpx.Response(200, text=text)) as http:
        seen = await generate(http, VLLM_SIGNALS, Asked("m", 10), nothing, INTERVAL)

    assert seen == Interrupted("the engine's metrics do not tell its pool")


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
