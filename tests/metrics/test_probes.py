"""Tests on trial pods that go on beside the ticks, against lab engines in the place of the pods."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvmedic.metrics.generation import NO_KEY
from kvmedic.metrics.probes import KEPT, api_of
from kvmedic.model.compression import Keep
from kvmedic.model.trial import Counted, Interrupted, Reclaim, Served, Underway, Watched
from kvmedic.runbooks.compression.probes import Generation, Reclamation, judge
from kvmedic.settings import Secret
from lab_engine.engine_process import Running, a_process, an_engine, until_healthy
from run_builder import a_pod
from worlds.probing import a_place

LONG = (
    "--no-enable-prefix-caching",
    "--max-model-len=20000",
    "--block-size=16",
    "--num-gpu-blocks-override=1300",
)
MODEL = {"LAB_MODEL_MAX_LEN": "20000"}
KEY = "hunter2"


@asynccontextmanager
async def engines(count: int, step_ms: float = 0.5) -> AsyncIterator[list[Running]]:
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(an_engine(*LONG, environ=MODEL, step_ms=step_ms))
            for _ in range(count)
        ]


async def test_a_probe_shows_what_becomes_of_evicted_tokens(tmp_path: Path) -> None:
    options = MODEL | {"LAB_EVICTION_BUDGET": "1024", "LAB_STEP_MS": "0.1", "LAB_EVICTION": "scattered"}
    with a_process(*LONG, "--served-model-name=a-name-of-its-own", **options) as (_, url):
        until_healthy(url)
        async with a_place(tmp_path) as place:
            pod = place.pod("trial", url)
            place.begin(pod, 16_400)
            before = place.probes.progress(pod)
            seen = await place.ended(pod)

    assert before == Underway(0, 16_400)
    assert isinstance(seen, Watched), seen
    assert (seen.generated, seen.block_tokens, seen.blocks) == (16_400, 16, 1299)
    found = judge(Generation(seen.samples, seen.generated, seen.block_tokens, Keep(budget=1024), heads=8))
    assert isinstance(found, Reclamation), found
    assert found.reclaim is Reclaim.SCATTERED


async def test_tokens_move_while_it_goes_on_and_a_second_beginning_changes_nothing(tmp_path: Path) -> None:
    async with engines(1) as (engine,), a_place(tmp_path) as place:
        pod = place.pod("trial", engine.http.base_url)
        assert place.probes.progress(pod) is None

        place.begin(pod, 1000)
        await place.generating(pod)
        place.begin(pod, 5)
        seen = [place.probes.progress(pod)]
        while isinstance(seen[-1], Underway):
            await asyncio.sleep(0.05)
            seen.append(place.probes.progress(pod))

    counts = [each.tokens for each in seen if isinstance(each, Underway)]
    assert counts == sorted(counts)
    assert len(set(counts)) > 3
    assert isinstance(seen[-1], Watched), seen[-1]
    assert seen[-1].generated == 1000


async def test_all_probes_end_where_another_process_leads(tmp_path: Path) -> None:
    async with engines(1) as (engine,), a_place(tmp_path) as place:
        pod = place.pod("replica", engine.http.base_url)
        place.begin(pod, 15_000)
        await place.generating(pod)

        place.probes.forget_all()
        await asyncio.sleep(0.2)

        assert place.probes.progress(pod) is None
        assert engine.server.engine.unfinished == 0


async def test_a_probe_that_is_forgotten_ends_its_request_and_can_be_begun_anew(tmp_path: Path) -> None:
    async with engines(1) as (engine,), a_place(tmp_path) as place:
        pod = place.pod("trial", engine.http.base_url)
        place.begin(pod, 15_000)
        await place.generating(pod)

        place.probes.forget(pod)
        gone = place.probes.progress(pod)
        await asyncio.sleep(0.2)
        unfinished = engine.server.engine.unfinished
        place.begin(pod, 400)
        seen = await place.ended(pod)
        place.probes.forget(pod)
        place.probes.forget(pod)

    assert gone is None
    assert unfinished == 0
    assert isinstance(seen, Watched), seen


async def test_a_pod_of_the_same_name_is_another_pod(tmp_path: Path) -> None:
    async with engines(1) as (engine,), a_place(tmp_path) as place:
        pod = place.pod("trial", engine.http.base_url)
        place.begin(pod, 15_000)

        assert place.probes.progress(replace(pod, uid="another")) is None


async def test_two_pods_are_watched_side_by_side(tmp_path: Path) -> None:
    async with engines(2) as (one, two), a_place(tmp_path) as place:
        pods = [place.pod("one", one.http.base_url), place.pod("two", two.http.base_url)]
        for pod in pods:
            place.begin(pod, 400)
        for pod in pods:
            await place.generating(pod)
        both = [place.probes.progress(pod) for pod in pods]
        seen = [await place.ended(pod) for pod in pods]

    assert all(isinstance(each, Underway) for each in both)
    assert [each.generated for each in seen if isinstance(each, Watched)] == [400, 400]


async def test_who_is_one_too_many_waits_for_a_turn(tmp_path: Path) -> None:
    async with engines(2) as (one, two), a_place(tmp_path, at_once=1) as place:
        first, second = place.pod("one", one.http.base_url), place.pod("two", two.http.base_url)
        place.begin(first, 15_000)
        place.begin(second, 400)
        await place.generating(first)
        await asyncio.sleep(0.1)
        waiting = place.probes.progress(second)
        asked = two.server.engine.unfinished

        place.probes.forget(first)
        seen = await place.ended(second)

    assert waiting == Underway(0, 400)
    assert asked == 0
    assert isinstance(seen, Watched), seen


async def test_who_waits_for_a_turn_can_be_forgotten(tmp_path: Path) -> None:
    async with engines(1) as (engine,), a_place(tmp_path, at_once=1) as place:
        first, second = place.pod("one", engine.http.base_url), place.pod("two", engine.http.base_url)
        place.begin(first, 400)
        place.begin(second, 400)
        await place.generating(first)

        place.probes.forget(second)
        seen = await place.ended(first)

        assert place.probes.progress(second) is None
    assert isinstance(seen, Watched), seen


async def test_an_engine_that_dies_in_the_middle_interrupts(tmp_path: Path) -> None:
    with a_process(*LONG, "--served-model-name=tiny", **MODEL, LAB_STEP_MS="1") as (process, url):
        until_healthy(url)
        async with a_place(tmp_path) as place:
            pod = place.pod("trial", url)
            place.begin(pod, 15_000)
            await place.generating(pod)

            process.kill()
            seen = await place.ended(pod)

    assert isinstance(seen, Interrupted), seen
    assert "of 15000 tokens" in seen.why


async def test_an_engine_that_hangs_interrupts(tmp_path: Path) -> None:
    async with engines(1) as (engine,), a_place(tmp_path, silence_seconds=2.0) as place:
        pod = place.pod("trial", engine.http.base_url)
        place.begin(pod, 15_000)
        await place.generating(pod)

        engine.server.engine.slow_down(1e6)
        seen = await place.ended(pod)

    assert isinstance(seen, Interrupted), seen
    assert seen.why.endswith("of 15000 tokens nothing came for 2 s")


async def test_closing_ends_all_and_leaves_no_task(tmp_path: Path) -> None:
    async with engines(2) as (one, two), a_place(tmp_path, at_once=1) as place:
        pods = [place.pod("one", one.http.base_url), place.pod("two", two.http.base_url)]
        for pod in pods:
            place.begin(pod, 15_000)
        await place.generating(pods[0])
        place.probes.forget(pods[0])

        await place.probes.close()

        assert place.probes.progress(pods[1]) == Interrupted("the operator ends")
        assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("probe")]


async def test_nothing_at_the_address_interrupts(tmp_path: Path) -> None:
    async with a_place(tmp_path) as place:
        nobody = place.pod("nobody", "http://127.0.0.1:1")
        nowhere = replace(a_pod("nowhere"), uid="uid-nowhere", address="")
        odd = place.pod("odd", "http://[10.0.0.1")
        for pod in (nobody, nowhere, odd):
            place.begin(pod, 400)

        assert await place.ended(nobody) == Interrupted("the engine's metrics cannot be read")
        assert await place.ended(nowhere) == Interrupted("the pod has no address")
        assert await place.ended(odd) == Interrupted("the pod's address is no URL")


async def test_an_engine_that_reports_no_model_interrupts(tmp_path: Path) -> None:
    async with an_engine("--disable-log-stats") as engine, a_place(tmp_path) as place:
        pod = place.pod("trial", engine.http.base_url)
        place.begin(pod, 400)

        assert await place.ended(pod) == Interrupted("the engine's metrics do not report its model")


async def test_of_many_that_nobody_forgets_the_oldest_is(tmp_path: Path) -> None:
    async with a_place(tmp_path) as place:
        pods = [replace(a_pod(f"t-{n}"), uid=f"uid-{n}", address="") for n in range(KEPT + 1)]
        for pod in pods:
            place.begin(pod, 400)
            await place.ended(pod)

        assert place.probes.progress(pods[0]) is None
        assert all(place.probes.progress(pod) is not None for pod in pods[1:])


def with_key(**container: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "vllm", "command": ["vllm", "serve", "m"], **container}]}}


FROM_SECRET = {"name": "VLLM_API_KEY", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "vllm"}}}


@pytest.mark.parametrize(
    ("template", "own"),
    [
        (with_key(args=["--api-key", KEY]), "another"),
        (with_key(args=[f"--api-key={KEY}"]), None),
        (with_key(env=[{"name": "VLLM_API_KEY", "value": KEY}]), "another"),
        (with_key(env=[FROM_SECRET]), KEY),
        (with_key(), KEY),
    ],
    ids=["two items", "one item", "variable", "from a Secret: the operator's", "not given: the operator's"],
)
async def test_an_engine_that_wants_a_key_gets_it_and_nobody_else_does(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, template: dict[str, Any], own: str | None
) -> None:
    caplog.set_level(logging.DEBUG)
    secret = Secret(value=own) if own else None  # type: ignore[arg-type]
    async with (
        an_engine(*LONG, f"--api-key={KEY}", environ=MODEL, step_ms=0.5) as engine,
        a_place(tmp_path, api_key=secret) as place,
    ):
        pod = place.pod("trial", engine.http.base_url)
        place.begin(pod, 400, template)
        tasks = repr(asyncio.all_tasks())
        seen = await place.ended(pod)

    assert isinstance(seen, Watched), seen
    assert KEY not in caplog.text + tasks + repr(seen) + repr(vars(place.probes))


@pytest.mark.parametrize("own", [None, "an-old-key"])
async def test_without_the_key_it_says_what_to_set(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, own: str | None
) -> None:
    caplog.set_level(logging.DEBUG)
    secret = Secret(value=own) if own else None  # type: ignore[arg-type]
    async with (
        an_engine(f"--api-key={KEY}") as engine,
        a_place(tmp_path, api_key=secret) as place,
    ):
        pod = place.pod("trial", engine.http.base_url)
        place.begin(pod, 400)
        seen = await place.ended(pod)

    assert seen == Interrupted(f"after 0 of 400 tokens the engine answered 401: {NO_KEY}")
    assert "an-old-key" not in caplog.text


async def test_a_key_is_read_anew_for_each_probe_and_its_file_may_be_gone(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(f"{KEY}\n")
    async with (
        an_engine(*LONG, "--api-key", "new-key", environ=MODEL, step_ms=0.5) as engine,
        a_place(tmp_path, api_key=Secret(file=file)) as place,
    ):
        pods = [place.pod(name, engine.http.base_url) for name in ("one", "two", "three", "four")]
        seen = []
        for pod, content in zip(pods, (None, b"new-key", b"k\xc3\xa9y", b"\xff"), strict=True):
            if content is not None:
                file.write_bytes(content)
            place.begin(pod, 400)
            seen.append(await place.ended(pod))
        file.unlink()
        last = place.pod("five", engine.http.base_url)
        place.begin(last, 400)
        seen.append(await place.ended(last))

    unreadable = Interrupted("the file of probe.apiKey cannot be read: mount it again")
    assert seen[0] == Interrupted(f"after 0 of 400 tokens the engine answered 401: {NO_KEY}")
    assert isinstance(seen[1], Watched), seen[1]
    assert seen[2] == Interrupted("the API key has characters that cannot be sent: use printable ASCII")
    assert seen[3:] == [unreadable, unreadable]


async def test_an_error_of_ours_names_its_kind_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> str:
        raise LookupError(KEY)

    monkeypatch.setattr("kvmedic.metrics.probes.api_key_of", broken)
    async with a_place(tmp_path) as place:
        pod = place.pod("trial", "http://127.0.0.1:1")
        place.begin(pod, 400)
        seen = await place.ended(pod)
        place.probes.forget(pod)

    assert seen == Interrupted("LookupError in the operator")
    assert KEY not in caplog.text


async def test_a_probe_reports_what_a_pods_engine_serves_and_has_done(tmp_path: Path) -> None:
    async with engines(1) as (engine,), a_place(tmp_path) as place:
        pod, url = place.pod("trial", engine.http.base_url), str(engine.http.base_url).rstrip("/")
        before = await place.probes.read_served("serving", pod)
        place.begin(pod, 400)
        await place.ended(pod)
        after = await place.probes.read_served("serving", pod)

    assert isinstance(before, Served), before
    assert isinstance(after, Served), after
    assert (before.url, before.counted) == (url, Counted(0, 0.0))
    assert (after.url, after.model, after.cache_type) == (url, before.model, before.cache_type)
    assert after.counted.requests == 1
    assert after.counted.tokens > 400


async def test_of_an_engine_that_does_not_answer_it_says_why(tmp_path: Path) -> None:
    async with an_engine("--disable-log-stats") as engine, a_place(tmp_path) as place:
        nobody = place.pod("nobody", "http://127.0.0.1:1")
        silent = place.pod("silent", engine.http.base_url)
        nowhere = replace(a_pod("nowhere"), uid="uid-nowhere", address="")

        reasons = [await place.probes.read_served("serving", pod) for pod in (nobody, silent, nowhere)]

    assert reasons == [
        "the engine's metrics cannot be read",
        "the engine's metrics do not report its model",
        "the pod has no address",
    ]


@pytest.mark.parametrize(
    ("metrics", "api"),
    [
        ("http://10.0.0.1:8000/metrics", "http://10.0.0.1:8000"),
        ("https://[fd00::1]:8000/metrics/", "https://[fd00::1]:8000"),
        ("http://gateway/pods/a/metrics?x=1#y", "http://gateway/pods/a"),
        ("http://10.0.0.1:9000/m", "http://10.0.0.1:9000"),
    ],
)
def test_the_api_is_where_the_metrics_are(metrics: str, api: str) -> None:
    assert api_of(metrics) == api
