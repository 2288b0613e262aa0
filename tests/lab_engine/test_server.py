"""The lab engine's API over HTTP: formats, counts, limits, clients that go away."""

import asyncio
import json
import time

import pytest

from kvmedic.engines.vllm_signals import VLLM_SIGNALS
from kvmedic.metrics.scrape import PodAddress, Scraper
from kvmedic.metrics.series import PodKey
from kvmedic.model.engine import Version
from kvmedic.model.evidence import Measured
from kvmedic.settings import ScrapeOptions
from lab_engine.engine_process import an_engine


def asked(**fields):
    return {"model": "tiny", "prompt": "one two three", "max_tokens": 4, "ignore_eos": True, **fields}


async def events(response):
    return [line.removeprefix("data: ") async for line in response.aiter_lines() if line]


async def streamed(engine, path="/v1/completions", **fields):
    body = (
        {"model": "tiny", "stream": True, **fields} if "messages" in fields else asked(stream=True, **fields)
    )
    async with engine.http.stream("POST", path, json=body) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        return await events(response)


@pytest.mark.parametrize(
    ("path", "status"),
    [("/health", 200), ("/ping", 200), ("/load", 200), ("/metrics", 200), ("/nowhere", 404)],
)
async def test_plain_endpoints_answer(path, status):
    async with an_engine() as engine:
        assert (await engine.http.get(path)).status_code == status


@pytest.mark.parametrize(
    ("arguments", "environ"),
    [
        (["--api-key", "hunter2", "other"], {}),
        ([], {"VLLM_API_KEY": "hunter2"}),
        (["--api-key=hunter2"], {"VLLM_API_KEY": "x"}),
    ],
    ids=["flag", "variable", "the flag wins"],
)
async def test_a_key_guards_what_is_under_v1(arguments, environ):
    async with an_engine(*arguments, environ=environ) as engine:

        async def status(path, **headers):
            return (await engine.http.get(path, headers=headers)).status_code

        assert await status("/v1/models", Authorization="Bearer hunter2") == 200
        assert await status("/v1/models", Authorization="Bearer x") == 401
        assert await status("/v1/models") == 401
        assert await status("/metrics") == 200


async def test_version_and_models_are_vllms():
    async with an_engine() as engine:
        version = (await engine.http.get("/version")).json()
        models = (await engine.http.get("/v1/models")).json()

    assert version == {"version": "0.32.0"}
    assert [(card["id"], card["root"], card["max_model_len"]) for card in models["data"]] == [
        ("tiny", "m", 512)
    ]


async def test_the_operator_reads_the_version_beside_the_metrics():
    async with an_engine() as engine:
        scraper = Scraper(ScrapeOptions(), VLLM_SIGNALS, lambda _: f"{engine.http.base_url}/metrics")
        version = await scraper.version(PodAddress(PodKey("serving", "llm-0"), "127.0.0.1"))
        await scraper.close()

    assert isinstance(version, Measured)
    assert version.value == Version.parse("0.32.0")


async def test_a_completion_has_one_word_per_token():
    async with an_engine() as engine:
        answer = (await engine.http.post("/v1/completions", json=asked())).json()

    assert len(answer["choices"][0]["text"].split()) == 4
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"] == {"prompt_tokens": 3, "total_tokens": 7, "completion_tokens": 4}


async def test_a_stream_has_one_event_per_token_and_ends_with_done():
    async with an_engine() as engine:
        *tokens, done = await streamed(engine)

    assert done == "[DONE]"
    choices = [json.loads(event)["choices"][0] for event in tokens]
    assert [choice["finish_reason"] for choice in choices] == [None, None, None, "length"]
    assert set(choices[0]) == {"index", "text", "logprobs", "finish_reason", "stop_reason"}
    assert set(json.loads(tokens[0])) == {"id", "object", "created", "model", "choices"}


async def test_usage_comes_where_it_was_asked_for():
    async with an_engine() as engine:
        *_, usage, _ = await streamed(engine, stream_options={"include_usage": True})

    assert json.loads(usage)["choices"] == []
    assert json.loads(usage)["usage"]["completion_tokens"] == 4


async def test_a_chat_streams_a_role_and_then_its_tokens():
    messages = [{"role": "user", "content": "hello there"}]
    async with an_engine() as engine:
        first, *tokens, done = await streamed(engine, "/v1/chat/completions", messages=messages, max_tokens=3)

    assert json.loads(first)["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert len(tokens) == 3
    assert json.loads(tokens[-1])["choices"][0]["finish_reason"] == "length"
    assert done == "[DONE]"


@pytest.mark.parametrize(
    ("fields", "status", "message"),
    [
        ({"model": "other"}, 404, "The model `other` does not exist."),
        ({"prompt": [1] * 512}, 400, "Input length (512) exceeds model's maximum context length (512)."),
        ({"prompt": ["a", "b"]}, 400, "prompt must be one text or one list of token ids"),
        ({"max_tokens": -1}, 400, "max_tokens must be at least 1"),
        ({"n": 2}, 400, "n must be 1"),
    ],
)
async def test_a_bad_request_is_answered_with_its_reason(fields, status, message):
    async with an_engine() as engine:
        answer = await engine.http.post("/v1/completions", json=asked(**fields))

    assert answer.status_code == status
    assert message in answer.json()["error"]["message"]


async def test_an_answer_ends_at_the_models_length():
    async with an_engine() as engine:
        answer = await engine.http.post("/v1/completions", json=asked(prompt=[1] * 500, max_tokens=100))

    assert answer.json()["usage"]["completion_tokens"] == 12


async def test_what_clients_saw_is_what_the_metrics_say():
    async with an_engine("--max-num-seqs=8") as engine:
        streams = [streamed(engine, prompt=[number] * 40, max_tokens=60) for number in range(1, 13)]
        answers = await asyncio.gather(*streams)
        tokens = sum(len(answer) - 1 for answer in answers)

        assert tokens == 12 * 60 == await engine.metric("generation_tokens_total")
        assert await engine.metric("request_success_total", finished_reason="length") == 12
        assert await engine.metric("prompt_tokens_total") == 12 * 40
        assert await engine.metric("num_preemptions_total") == engine.scheduler.preemptions > 0
        assert await engine.metric("request_num_preemptions_sum") == engine.scheduler.preemptions
        # Recompute shows in no token counter: as on the recorded page under thrash.
        assert await engine.metric("iteration_tokens_total_sum") == 12 * 100
        assert await engine.metric("inter_token_latency_seconds_count") == 12 * 59
        assert await engine.metric("kv_cache_usage_perc") == 0.0
        assert await engine.metric("num_requests_running") == await engine.metric("num_requests_waiting") == 0


async def test_exported_times_are_wall_clock():
    async with an_engine(step_ms=20) as engine:
        began = time.monotonic()
        await streamed(engine, max_tokens=11)
        seconds = time.monotonic() - began

        assert 11 * 0.02 <= await engine.metric("e2e_request_latency_seconds_sum") <= seconds
        assert 10 * 0.02 * 0.9 <= await engine.metric("inter_token_latency_seconds_sum") <= seconds


async def test_a_prompt_seen_before_is_counted_in_tokens():
    async with an_engine() as engine:
        for _ in range(2):
            await streamed(engine, prompt=list(range(20)))

        assert await engine.metric("prefix_cache_queries_total") == 40
        assert await engine.metric("prefix_cache_hits_total") == 16
        assert await engine.metric("prompt_tokens_by_source_total", source="local_cache_hit") == 16


async def test_a_client_that_goes_away_frees_its_blocks():
    async with an_engine(step_ms=5) as engine:
        async with engine.http.stream(
            "POST", "/v1/completions", json=asked(stream=True, max_tokens=400)
        ) as response:
            async for _ in response.aiter_lines():
                break
        await asyncio.wait_for(engine.server.engine.idle.wait(), 5)

        assert engine.scheduler.pool.usage == 0.0
        assert not engine.scheduler.has_requests


@pytest.mark.parametrize(
    ("flag", "reason"),
    [
        ("--max-num-queued-reqs=1", "max_num_queued_reqs"),
        ("--max-num-queued-tokens=3", "max_num_queued_tokens"),
    ],
)
async def test_a_full_queue_answers_503(flag, reason):
    async with an_engine(flag, step_ms=50) as engine:
        first = asyncio.create_task(streamed(engine))
        while not engine.server.engine.unfinished:
            await asyncio.sleep(0.01)

        answer = await engine.http.post("/v1/completions", json=asked())

        assert answer.status_code == 503
        assert await engine.metric("admission_rejections_total", reason=reason) == 1
        assert len(await first) == 5


async def answer_to(sent):
    """Return all that an engine answers to these bytes."""
    async with an_engine() as engine:
        port = int(str(engine.http.base_url).rstrip("/").rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        text = (await reader.read()).decode()
        writer.close()
        await writer.wait_closed()
    return text


async def test_requests_on_one_connection_are_answered_in_order():
    text = await answer_to(b"GET /version HTTP/1.1\r\n\r\nGET /health HTTP/1.1\r\nconnection: close\r\n\r\n")

    assert text.count("HTTP/1.1 200 OK") == 2
    assert text.index("0.32.0") < text.index("connection: close")


@pytest.mark.parametrize(
    ("sent", "status"), [(b"nonsense\r\n\r\n", 400), (b"GET / HTTP/1.1\r\nx: " + b"y" * 70_000, 431)]
)
async def test_what_is_not_http_is_refused(sent, status):
    assert (await answer_to(sent)).startswith(f"HTTP/1.1 {status} ")


async def test_without_statistics_there_are_no_metrics():
    async with an_engine("--disable-log-stats") as engine:
        assert "vllm:" not in (await engine.http.get("/metrics")).text
